// A CUDA driver and runtime without a GPU, as far as PyTorch's caching allocator asks them: they count bytes, hand addresses out in
// rising order like tinygrad_mem.pytorch's Driver, and say that work on other streams goes on until `finish_streams`.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#undef cuMemsetD32Async
#undef cuStreamWriteValue32

static size_t capacity = 0, taken = 0;
static uintptr_t next_address = 0x7F0000000000ull;
static uint64_t next_handle = 1;
static std::map<uintptr_t, size_t> segments;
static std::map<uint64_t, size_t> pages;
struct Event {
  bool done;
};
static std::vector<Event*> events;

static uintptr_t addresses(size_t size) {
  const size_t step = 2u << 20;
  uintptr_t first = next_address;
  next_address += (size + step - 1) / step * step;
  return first;
}

static bool take(size_t size) {
  if (capacity && taken + size > capacity)
    return false;
  taken += size;
  return true;
}

static size_t total() {
  return capacity ? capacity : 80ull << 30;
}

extern "C" {

void set_capacity(size_t bytes) {
  capacity = bytes;
}

void finish_streams() {
  for (auto event : events)
    event->done = true;
}

cudaError_t cudaMalloc(void** address, size_t size) {
  if (!take(size))
    return cudaErrorMemoryAllocation;
  *address = reinterpret_cast<void*>(addresses(size));
  segments[reinterpret_cast<uintptr_t>(*address)] = size;
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  auto found = segments.find(reinterpret_cast<uintptr_t>(address));
  if (found != segments.end()) {
    taken -= found->second;
    segments.erase(found);
  }
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  *all = total();
  *free = total() - taken;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* properties, int) {
  memset(properties, 0, sizeof *properties);
  properties->totalGlobalMem = total();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  events.push_back(new Event{false});
  *event = reinterpret_cast<cudaEvent_t>(events.back());
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  reinterpret_cast<Event*>(event)->done = false;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return reinterpret_cast<Event*>(event)->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  reinterpret_cast<Event*>(event)->done = true;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t) {
  return "refused";
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp*, unsigned long long) {
  if (!take(size))
    return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = next_handle++;
  pages[*handle] = size;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  taken -= pages[handle];
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr, unsigned long long) {
  *address = addresses(size);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* size, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *size = 2u << 20;
  return CUDA_SUCCESS;
}
}
