// What Python sets and asks; problems; the properties of the device.
#include <cstdio>
#include <cstring>
#include <map>

#include "emulated.h"

namespace emulated {

std::recursive_mutex lock;
Settings settings;
Seen seen;
static std::map<std::string, long> problems;
static long problem_count = 0;
static thread_local cudaError_t last_error = cudaSuccess;
static thread_local int current = 0;
int current_device() { return current; }

void problem(const std::string& text) {
    ++problems[text];
    ++problem_count;
}

cudaError_t fail(cudaError_t error) {
    last_error = error;
    return error;
}

}  // namespace emulated
using namespace emulated;

// A pending launch keeps the order that it was given under: work is finished before a setting changes.
API void emu_set_mode(int late, int order) {
    GUARD;
    wait_for_all();
    settings.late = late;
    settings.order = order;
}

API void emu_compare_subnormals(int compared) {
    GUARD;
    wait_for_all();
    settings.compared = compared;
}

API void emu_set_visible(int visible) {
    GUARD;
    settings.visible = visible;
}

API void emu_set_devices(int count) {
    GUARD;
    wait_for_all();
    settings.devices = count;
}

API void emu_set_junk(int value) {
    GUARD;
    settings.junk = value;
}

API void emu_set_capacity(size_t bytes) {
    GUARD;
    settings.capacity = bytes;
}

API void emu_refuse_after(long calls) {
    GUARD;
    settings.refuse_after = calls;
}

API void emu_take_seen(Seen* out) {
    GUARD;
    *out = seen;
    seen = Seen();
}

// Write the problems since the last call, a line each, and forget them. Returns how many different ones there were.
API int emu_take_problems(char* out, int room) {
    GUARD;
    wait_for_all();
    std::string text;
    for (auto& [what, times] : problems) text += what + (times > 1 ? " (" + std::to_string(times) + " times)\n" : "\n");
    snprintf(out, room, "%s", text.c_str());
    int count = (int)problems.size();
    problems.clear();
    return count;
}

API long emu_problem_count() { return problem_count; }

API int emu_not_emulated(const char* name) {
    GUARD;
    problem(std::string("not emulated: ") + name);
    return cudaErrorNotSupported;
}

API cudaError_t cudaGetDeviceCount(int* count) {
    *count = settings.visible ? settings.devices : 0;
    return settings.visible ? cudaSuccess : fail(cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int* device) {
    *device = current;
    return cudaSuccess;
}
API cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= settings.devices) return fail(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
API cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

API const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorNoDevice: return "cudaErrorNoDevice";
        case cudaErrorNotSupported: return "cudaErrorNotSupported";
        default: return "cudaErrorUnknown";
    }
}
API const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorNotSupported: return "operation not supported";
        default: return "unknown error";
    }
}

// The limits of compute capability 8.0, with few multiprocessors: kernels that size their grid by them stay small.
API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch ((int)attribute) {
        case cudaDevAttrMaxThreadsPerBlock:
        case cudaDevAttrMaxBlockDimX:
        case cudaDevAttrMaxBlockDimY: *value = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *value = 64; break;
        case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ: *value = 65535; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 166912; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 167936; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
        case cudaDevAttrMultiProcessorCount: *value = 4; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrComputeCapabilityMajor: *value = 8; break;
        case cudaDevAttrMemoryPoolsSupported:
        case cudaDevAttrUnifiedAddressing: *value = 1; break;
        default: *value = 0;
    }
    return cudaSuccess;
}

API cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* properties, int) {
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "emulated GPU");
    properties->totalGlobalMem = settings.capacity;
    properties->sharedMemPerBlock = 49152;
    properties->warpSize = 32;
    properties->major = 8;
    properties->multiProcessorCount = 4;
    properties->maxThreadsPerBlock = properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char* text, int room, int) {
    snprintf(text, room, "0000:00:00.0");
    return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = 0;
    return cudaSuccess;
}

API CUresult cuGetErrorName(CUresult error, const char** text) {
    static thread_local char name[40];
    snprintf(name, sizeof name, "CUDA_ERROR_%d", (int)error);
    *text = name;
    return CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult, const char** text) {
    *text = "an error of the emulated driver";
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = (CUcontext)(uintptr_t)(1 + current);
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
API CUresult cuCtxGetDevice(CUdevice* device) {
    *device = current;
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
API CUresult cuStreamGetCtx(CUstream, CUcontext* context) { return cuCtxGetCurrent(context); }
