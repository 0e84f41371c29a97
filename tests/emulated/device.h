// What NVRTC gives to device code, for g++: included before every kernel. Names that begin with emu_ are ours.
#pragma once
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9
#include <bits/c++config.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS  // functions of Bessel and others, which take g++ longer than a kernel does
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <tuple>
#include <type_traits>
#include <utility>

#include <vector_types.h>
#include <vector_functions.h>
#include <cuda_fp16.h>

#include "abi.h"

#undef __noinline__
#undef __forceinline__
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict

using std::abs; using std::ceil; using std::exp; using std::expm1; using std::fabs; using std::floor;
using std::isfinite; using std::isinf; using std::isnan; using std::log1p; using std::signbit; using std::sqrt; using std::tanh;

// Subnormal float32 numbers are 0 in a kernel: the processor sees to it (launches.cpp), except where libm reads a number's bits.
inline float emu_flushed(float x) { return std::fabs(x) < __FLT_MIN__ ? std::copysign(0.0f, x) : x; }
template <class T> inline T emu_flushed(T x) { return x; }
template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> inline auto log(T x) { return std::log(emu_flushed(x)); }
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
inline auto pow(A a, B b) { return std::pow(emu_flushed(a), emu_flushed(b)); }
#define powf pow
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
inline auto fmod(A a, B b) { return emu_flushed(std::fmod(emu_flushed(a), emu_flushed(b))); }

// ---- where a thread stands
extern "C" EmuPlace emu_place;
struct emu_dim3 { unsigned x, y, z; };
#define threadIdx (*(const emu_dim3*)emu_place.thread)
#define blockIdx (*(const emu_dim3*)emu_place.block)
#define blockDim (*(const emu_dim3*)emu_place.block_size)
#define gridDim (*(const emu_dim3*)emu_place.grid_size)
#define warpSize 32
inline int emu_lane() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
}

// ---- shared memory: sources.py writes each declaration in terms of these
extern "C" void* emu_shared_array(const void* declaration, size_t bytes);
extern "C" void* emu_dynamic_shared();
#define EMU_SHARED(type, name, ...)               \
    typedef type emu_type_of_##name __VA_ARGS__;  \
    static char emu_key_of_##name;                \
    auto& name = *(emu_type_of_##name*)emu_shared_array(&emu_key_of_##name, sizeof(emu_type_of_##name));

// ---- barriers, shuffles, votes: the line tells one call from another
extern "C" void emu_sync_block(int site);
extern "C" unsigned long long* emu_sync_warp(int op, unsigned mask, unsigned long long value, int site, unsigned* active);
#define __syncthreads() emu_sync_block(__LINE__)
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T> inline T emu_shuffle(unsigned mask, T value, int from, int site) {
    static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
    unsigned long long bits = 0;
    unsigned active;
    memcpy(&bits, &value, sizeof value);
    unsigned long long* all = emu_sync_warp(EMU_SHUFFLE, mask, bits, site, &active);
    const unsigned long long of_nobody = 0x7ff7dead7fd7deadull;  // a lane that takes no part gives junk
    bits = active >> from & 1 ? all[from] : of_nobody;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline int emu_near(int lane, int width, int wanted) { return wanted / width == lane / width && wanted >= 0 && wanted < 32 ? wanted : lane; }
#define __shfl_sync(mask, value, from, ...) emu_shuffle(mask, value, emu_from(from, ##__VA_ARGS__), __LINE__)
#define __shfl_xor_sync(mask, value, bits, ...) emu_shuffle(mask, value, emu_from_xor(bits, ##__VA_ARGS__), __LINE__)
#define __shfl_down_sync(mask, value, by, ...) emu_shuffle(mask, value, emu_from_down(by, ##__VA_ARGS__), __LINE__)
#define __shfl_up_sync(mask, value, by, ...) emu_shuffle(mask, value, emu_from_up(by, ##__VA_ARGS__), __LINE__)
inline int emu_from(int from, int width = 32) { return emu_lane() / width * width + (from & (width - 1)); }
inline int emu_from_xor(int bits, int width = 32) { return emu_near(emu_lane(), width, emu_lane() ^ bits); }
inline int emu_from_down(int by, int width = 32) { return emu_near(emu_lane(), width, emu_lane() + by); }
inline int emu_from_up(int by, int width = 32) { return emu_lane() % width < by ? emu_lane() : emu_lane() - by; }

inline unsigned emu_ballot(unsigned mask, bool vote, int site) {
    unsigned active, result = 0;
    unsigned long long* all = emu_sync_warp(EMU_VOTE, mask, vote, site, &active);
    for (int lane = 0; lane < 32; ++lane)
        if ((active >> lane & 1) && all[lane]) result |= 1u << lane;
    return result;
}
#define __ballot_sync(mask, vote) emu_ballot(mask, vote, __LINE__)
#define __any_sync(mask, vote) (emu_ballot(mask, vote, __LINE__) != 0)
#define __all_sync(mask, vote) (emu_ballot(mask, !(vote), __LINE__) == 0)
inline void emu_warp_barrier(int site, unsigned mask = ~0u) {
    unsigned active;
    emu_sync_warp(EMU_WARP_BARRIER, mask, 0, site, &active);
}
#define __syncwarp(...) emu_warp_barrier(__LINE__, ##__VA_ARGS__)

// ---- bits
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
template <class To, class From> inline To emu_same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float __int_as_float(int x) { return emu_same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emu_same_bits<float>(x); }
inline int __float_as_int(float x) { return emu_same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emu_same_bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return emu_same_bits<double>(x); }
inline long long __double_as_longlong(double x) { return emu_same_bits<long long>(x); }

// ---- arithmetic
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline double rsqrt(int x) { return rsqrt((double)x); }
inline double rsqrt(long long x) { return rsqrt((double)x); }
inline float rsqrtf(float x) { return rsqrt(x); }
// The inverse of erf: a start, and Newton's steps until nothing changes.
inline double erfinv(double y) {
    if (!(y > -1 && y < 1)) return y == 1 ? INFINITY : y == -1 ? -INFINITY : NAN;
    double log_ = std::log1p(-y * y), half = 4.330746750799873 + log_ / 2;  // 2 / (pi * 0.147)
    double x = std::copysign(std::sqrt(std::sqrt(half * half - log_ / 0.147) - half), y);
    for (int i = 0; i < 8 && x != 0; ++i) {
        double off = x < 0 ? std::erfc(-x) - (1 + y) : (1 - y) - std::erfc(x);  // erf(x) - y, without cancellation near 1
        double step = off / (1.1283791670955126 * std::exp(-x * x));
        x -= step / (1 + x * step);
    }
    return x;
}
inline float erfinv(float y) { return (float)erfinv((double)y); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
template <class A, class B>
using emu_common = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>>;
template <class A, class B> inline emu_common<A, B> max(A a, B b) {
    typedef emu_common<A, B> C;
    if constexpr (std::is_floating_point_v<C>) return std::fmax((C)a, (C)b);
    else return (C)a < (C)b ? (C)b : (C)a;
}
template <class A, class B> inline emu_common<A, B> min(A a, B b) {
    typedef emu_common<A, B> C;
    if constexpr (std::is_floating_point_v<C>) return std::fmin((C)a, (C)b);
    else return (C)b < (C)a ? (C)b : (C)a;
}

// ---- atomics: one thread runs at a time, so that reading and writing in turn is one step
template <class T, class F> inline T emu_atomic(T* at, F change) {
    T old = *at;
    *at = change(old);
    return old;
}
#define EMU_ADD(T) inline T atomicAdd(T* at, T value) { return emu_atomic(at, [=](T old) { return (T)(old + value); }); }
EMU_ADD(int) EMU_ADD(unsigned) EMU_ADD(unsigned long long) EMU_ADD(float) EMU_ADD(double)
#define EMU_CHANGE(T)                                                                                                       \
    inline T atomicCAS(T* at, T expected, T value) { return emu_atomic(at, [=](T old) { return old == expected ? value : old; }); } \
    inline T atomicExch(T* at, T value) { return emu_atomic(at, [=](T) { return value; }); }
EMU_CHANGE(int) EMU_CHANGE(unsigned) EMU_CHANGE(unsigned long long)
#define EMU_EXTREMUM(T)                                                                                             \
    inline T atomicMax(T* at, T value) { return emu_atomic(at, [=](T old) { return old < value ? value : old; }); } \
    inline T atomicMin(T* at, T value) { return emu_atomic(at, [=](T old) { return value < old ? value : old; }); }
EMU_EXTREMUM(int) EMU_EXTREMUM(unsigned) EMU_EXTREMUM(unsigned long long) EMU_EXTREMUM(long long)

// ---- how a kernel is called through an array of pointers to its arguments
template <class F, F* function, class Indices, class... A> struct emu_caller;
template <class... A, void (*function)(A...), size_t... I>
struct emu_caller<void(A...), function, std::index_sequence<I...>, A...> {
    __attribute__((no_sanitize("kernel-address"))) static void call(void** arguments) {  // they are the driver's
        (void)arguments;
        function(*(std::remove_cv_t<A>*)arguments[I]...);
    }
    static constexpr int sizes[sizeof...(A) + 1] = {(int)sizeof(A)..., 0};
    static constexpr int count = sizeof...(A);
};
template <class T> constexpr bool emu_is_of_doubles = std::is_same_v<T, double*> || std::is_same_v<T, const double*>;
template <class T, int dimensions, bool c, bool i> class CArray;
template <int d, bool c, bool i> constexpr bool emu_is_of_doubles<CArray<double, d, c, i>> = true;
template <class F> struct emu_signature;
template <class... A> struct emu_signature<void(A...)> {
    static constexpr bool of_doubles = (emu_is_of_doubles<A> || ...);
    template <void (*function)(A...)>
    using caller = emu_caller<void(A...), function, std::index_sequence_for<A...>, A...>;
};
#define EMU_KERNEL(name, needs_fibers, needs_order)                                                                         \
    extern "C" __attribute__((visibility("default"))) const EmuKernel emu_kernel_##name = {                                 \
        &emu_signature<decltype(name)>::caller<&name>::call, emu_signature<decltype(name)>::caller<&name>::count,          \
        emu_signature<decltype(name)>::caller<&name>::sizes, needs_fibers, needs_order,                                     \
        emu_signature<decltype(name)>::of_doubles};

// ---- what CuPy puts before most kernels: read once, here. Its plain functions are declared inline first: of those that are
// not, g++ makes code for each kernel again, which was half of its time.
class float16;
#define EMU_FLOOR(T) inline T _floor_divide(T, T);
EMU_FLOOR(int) EMU_FLOOR(unsigned) EMU_FLOOR(long long) EMU_FLOOR(unsigned long long) EMU_FLOOR(float) EMU_FLOOR(double)
#define EMU_OF_CUPY(T) inline T atomicMax(T*, T); inline T atomicMin(T*, T);
EMU_OF_CUPY(float) EMU_OF_CUPY(double)
inline long long atomicAdd(long long*, long long);
inline float16 min(float16, float16); inline float16 max(float16, float16);
inline float16 fmin(float16, float16); inline float16 fmax(float16, float16);
inline int iszero(float16); inline int isnan(float16); inline int isinf(float16);
inline int isfinite(float16); inline int signbit(float16);
#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/math_constants.h>
#include <cupy/float16.cuh>
