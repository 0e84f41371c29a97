// What a compiled kernel and the driver know of each other.
#pragma once

// Where the running thread stands; the kernel reads it as threadIdx, blockIdx, blockDim and gridDim.
struct EmuPlace {
    unsigned thread[3], block[3], block_size[3], grid_size[3];
};

// One __global__ function, as its library exports it.
struct EmuKernel {
    void (*call)(void** arguments);
    int count;          // of arguments
    const int* sizes;   // in bytes
    bool needs_fibers;  // its threads wait for one another
    bool needs_order;   // its result could depend on the order of threads: shared memory or atomics
    bool of_doubles;    // it is given float64 numbers
};

enum EmuWarpOp { EMU_SHUFFLE = 1, EMU_VOTE = 2, EMU_WARP_BARRIER = 3, EMU_ACTIVE_MASK = 4 };
