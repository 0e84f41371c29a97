"""Philox4x32-10 for CUDA: four random 32-bit numbers of a key and a counter, as a device function in C.

A kernel puts ``SOURCE`` before its own code (``preamble`` of an ElementwiseKernel) and calls ``philox(seed, call, block)``:
the seed is the key, (block, call) the counter. Block b gives the numbers of elements 4 b to 4 b + 3.

Source: Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
"""

from __future__ import annotations

SOURCE = r"""
__device__ inline uint4 philox(unsigned long long seed, unsigned long long call, unsigned long long block) {
    unsigned int k0 = (unsigned int)seed, k1 = (unsigned int)(seed >> 32);
    uint4 c = make_uint4((unsigned int)block, (unsigned int)(block >> 32), (unsigned int)call, (unsigned int)(call >> 32));
    #pragma unroll
    for (int round = 0; round < 10; ++round) {
        unsigned int high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
        unsigned int high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
        c = make_uint4(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

__device__ inline unsigned int philox_at(unsigned long long seed, unsigned long long call, unsigned long long i) {
    uint4 c = philox(seed, call, i >> 2);
    unsigned int k = (unsigned int)(i & 3);
    return k == 0 ? c.x : k == 1 ? c.y : k == 2 ? c.z : c.w;
}

__device__ inline float philox_uniform(unsigned int bits) {  // [0, 1), 24 bits
    return (float)(bits >> 8) * 5.9604644775390625e-8f;
}
"""
