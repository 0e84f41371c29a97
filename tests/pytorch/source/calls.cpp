// PyTorch's own caching allocator, called as standard input says; each answer is a line: the result, then all counters.
//   m SIZE STREAM        allocate: its address, or "oom"
//   p SIZE STREAM POOL   allocate in a memory pool
//   f ADDRESS            free
//   r ADDRESS STREAM     another stream uses the block
//   s                    the streams have done their work (the allocator finds out at its next allocation)
//   e                    empty_cache
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <iostream>
#include <string>

extern "C" void set_capacity(size_t bytes);
extern "C" void finish_streams();
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*has)(c10::DeviceIndex));
}
namespace allocator = c10::cuda::CUDACachingAllocator;

static cudaStream_t stream(size_t number) { // addresses of streams: sorted like their numbers
  return reinterpret_cast<cudaStream_t>(number * 16);
}

static void allocate(size_t size, size_t number) {
  try {
    std::cout << reinterpret_cast<uintptr_t>(allocator::raw_alloc_with_stream(size, stream(number)));
  } catch (const c10::OutOfMemoryError&) {
    std::cout << "oom";
  }
}

static void counters() {
  auto stats = allocator::getDeviceStats(0);
  for (size_t kind = 0; kind < 3; ++kind)
    for (auto* each :
         {&stats.allocation,
          &stats.segment,
          &stats.active,
          &stats.inactive_split,
          &stats.allocated_bytes,
          &stats.reserved_bytes,
          &stats.active_bytes,
          &stats.inactive_split_bytes,
          &stats.requested_bytes}) {
      auto& stat = (*each)[kind];
      std::cout << " " << stat.current << " " << stat.peak << " " << stat.allocated << " " << stat.freed;
    }
  auto& large = stats.oversize_segments;
  std::cout << " " << large.current << " " << large.peak << " " << large.allocated << " " << large.freed;
  for (auto number :
       {stats.num_alloc_retries, stats.num_ooms, stats.num_sync_all_streams, stats.num_device_alloc, stats.num_device_free})
    std::cout << " " << number;
  std::cout << std::endl;
}

int main(int, char** arguments) {
  set_capacity(std::stoull(arguments[1]));
  c10::cuda::_internal::setHasPrimaryContext(+[](c10::DeviceIndex) { return true; });
  allocator::init(1);
  double share = std::stod(arguments[2]);
  if (share > 0)
    allocator::setMemoryFraction(share, 0);
  std::string call;
  while (std::cin >> call) {
    size_t first = 0, second = 0, third = 0;
    if (call == "m" && std::cin >> first >> second) {
      allocate(first, second);
    } else if (call == "p" && std::cin >> first >> second >> third) {
      c10::cuda::MempoolId_t pool{0, third};
      allocator::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
      allocate(first, second);
      allocator::endAllocateToPool(0, pool);
    } else if (call == "f" && std::cin >> first) {
      allocator::raw_delete(reinterpret_cast<void*>(first));
    } else if (call == "r" && std::cin >> first >> second) {
      auto* address = reinterpret_cast<void*>(first);
      c10::DataPtr held(address, address, allocator::get()->raw_deleter(), c10::Device(c10::kCUDA, 0));
      allocator::recordStream(held, c10::cuda::getStreamFromExternal(stream(second), 0));
      held.release_context();
    } else if (call == "s") {
      finish_streams();
    } else if (call == "e") {
      allocator::emptyCache();
    }
    counters();
  }
}
