// What the parts of the driver share. The driver is a library that stands for libcuda.so.1 and for the CUDA runtime.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"

#define API extern "C" __attribute__((visibility("default")))

namespace emulated {

// One lock for everything: a kernel that runs holds it, so that kernels never run side by side.
extern std::recursive_mutex lock;
#define GUARD std::lock_guard<std::recursive_mutex> guard_(emulated::lock)

// How work is executed. Python changes it between tests.
struct Settings {
    bool visible = true;             // whether programs find a GPU
    int devices = 1;                 // how many
    int late = 0;                    // EAGER, LATE, LATE_MAIN or IDLE
    int junk = 0xFF;                 // what the pool's memory is full of
    int order = 0;                   // FORWARD, BACKWARD or MIXED
    bool compared = false;           // whether comparisons see subnormal float32 numbers that are read
    size_t capacity = size_t(1) << 32;  // bytes of device memory
    long refuse_after = -1;          // so many more calls of cudaMalloc succeed, all later ones fail; -1: none fails
};
// LATE_MAIN: work of side streams runs at once, that of all others late. IDLE: no work runs, only memory is given.
enum { EAGER = 0, LATE = 1, LATE_MAIN = 2, IDLE = 3 };
enum { FORWARD = 0, BACKWARD = 1, MIXED = 2 };  // MIXED: some launches run forward and some backward
extern Settings settings;
const int DEVICES = 2;  // at most. Each has its memory and its streams; a thread has a current one
int current_device();

// What the tests since the last reset have exercised: the plugin decides by it which modes a test is run in again.
struct Seen {
    long launches = 0, with_fibers = 0, order_matters = 0, side_streams = 0;
};
extern Seen seen;

// A mistake of the program. It is noted once for each text, and the test during which it happened fails.
void problem(const std::string& text);
cudaError_t fail(cudaError_t error);

// Work in the order of a stream. `host` is pinned memory that the work reads or writes, if it does.
struct Work {
    std::function<void()> run;
    const void* host = nullptr;
    size_t bytes = 0;
};
void submit(void* stream, Work work);
int device_of_stream(void* stream);
void wait_for(void* stream);
void wait_for_blocking_streams();
void wait_for_all();
bool pending_on(const void* host, size_t bytes);

// Device memory lies in one range of addresses. A shadow byte says of each 8 bytes how many may be used.
enum : uint8_t { NEVER_GIVEN = 0xF1, BEYOND = 0xF2, FREED = 0xF3 };
bool in_device_memory(const void* address);
bool is_allocated(const void* address);
int device_of(const void* address);  // of allocated memory
void want_here(const std::string& who, const void* address);  // memory of another device is a problem
void check_range(const std::string& who, const void* address, size_t bytes);
std::string describe(uintptr_t address);
void let_reach(const std::vector<uint64_t>& arguments);
void allow(uintptr_t address, size_t bytes);
void forbid(uintptr_t address, size_t bytes, uint8_t why);
uintptr_t shared_memory();  // where the shared memory of the running block lies
const size_t SHARED_ROOM = size_t(1) << 20;

// What a kernel may use besides arrays, in one place, so that one comparison tells: where its threads stand, what the lanes of
// each warp gave to its last warp function, and a stack for each thread of a block.
const size_t STACK = size_t(32) << 10, THREADS = 1024;
struct Own {
    EmuPlace place;
    unsigned long long said[THREADS / 32][32];
    alignas(4096) char stacks[THREADS * STACK];
};
extern Own own asm("emu_place");  // by which name kernels know the first of it

// The launch that is running.
bool is_an_argument(uintptr_t address);
bool in_a_kernels_image(uintptr_t address);
std::string who_runs();
[[noreturn]] void stop_launch();
extern bool a_kernel_runs;

}  // namespace emulated
