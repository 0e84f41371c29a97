// The products of cuBLAS that CuPy calls, with the library's rules for their arguments. Each sum runs over k in order, in the
// type that the compute type names.
#include <algorithm>
#include <cstring>
#include <vector>

#include "emulated.h"

namespace emulated {

enum { FLOAT = 0, DOUBLE = 1, HALF = 2 };                                   // cudaDataType
enum { COMPUTE_16F = 64, COMPUTE_32F = 68, COMPUTE_64F = 70, FAST_TF32 = 77 };  // cublasComputeType
enum { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };

struct Handle {
    void* stream = nullptr;
    int pointer_mode = 0, math_mode = 0;
};
struct Matrix {  // column by column, as Fortran keeps it
    const void* data;
    int type, leading;
    long long stride;  // from one matrix of the batch to the next
    bool transposed;
    int rows, columns;  // as it lies in memory
};
struct Product {
    Matrix a, b, c;
    int m, n, k, batch, compute;
    double alpha, beta;
};

static int size_of(int type) { return type == DOUBLE ? 8 : type == FLOAT ? 4 : 2; }

static double get(const void* data, long long i, int type) {
    if (type == DOUBLE) return ((const double*)data)[i];
    return type == FLOAT ? ((const float*)data)[i] : (float)((const _Float16*)data)[i];
}
static void put(void* data, long long i, int type, double value) {
    if (type == DOUBLE) ((double*)data)[i] = value;
    else if (type == FLOAT) ((float*)data)[i] = (float)value;
    else ((_Float16*)data)[i] = (_Float16)(float)value;
}

static void check_columns(const char* who, const Matrix& matrix, long long first) {
    if ((uintptr_t)matrix.data % size_of(matrix.type)) problem(std::string(who) + ": numbers at no multiple of their size");
    for (int column = 0; column < matrix.columns; ++column) {
        long long at = first + (long long)column * matrix.leading;
        check_range(who, (const char*)matrix.data + at * size_of(matrix.type), (size_t)matrix.rows * size_of(matrix.type));
    }
}

// The matrix as (outer, inner) rows of T; `along_rows`: the outer index is the row of the matrix as it is multiplied.
template <class T>
static std::vector<T> rows_of(const Matrix& matrix, long long first, int outer, int inner, bool along_rows) {
    std::vector<T> rows((size_t)outer * inner);
    for (int o = 0; o < outer; ++o)
        for (int i = 0; i < inner; ++i) {
            long long row = along_rows ? o : i, column = along_rows ? i : o;
            if (matrix.transposed) std::swap(row, column);
            rows[(size_t)o * inner + i] = (T)get(matrix.data, first + row + column * matrix.leading, matrix.type);
        }
    return rows;
}

// sums[i] += a[l][i] * b[l] for each l in turn; four of them for each time that the sums are read and written.
#define ADD_PRODUCTS(T)                                                                                          \
    __attribute__((target_clones("avx2", "default"))) static void add_products(T* sums, const T* a, int m,       \
                                                                              const T* b, int k) {              \
        int l = 0;                                                                                               \
        for (; l + 4 <= k; l += 4, a += (size_t)4 * m)                                                           \
            for (int i = 0; i < m; ++i) {                                                                        \
                T sum = sums[i] + a[i] * b[l];                                                                   \
                sum = sum + a[i + (size_t)m] * b[l + 1];                                                         \
                sum = sum + a[i + (size_t)2 * m] * b[l + 2];                                                     \
                sums[i] = sum + a[i + (size_t)3 * m] * b[l + 3];                                                 \
            }                                                                                                    \
        for (; l < k; ++l, a += m)                                                                               \
            for (int i = 0; i < m; ++i) sums[i] += a[i] * b[l];                                                  \
    }
ADD_PRODUCTS(float) ADD_PRODUCTS(double)
static void add_products(_Float16* sums, const _Float16* a, int m, const _Float16* b, int k) {
    for (int l = 0; l < k; ++l)
        for (int i = 0; i < m; ++i) sums[i] = (_Float16)((float)sums[i] + (float)a[(size_t)l * m + i] * (float)b[l]);
}

template <class T>
static void multiply(const Product& p, int batch) {
    long long first = batch * p.c.stride;
    auto a = rows_of<T>(p.a, batch * p.a.stride, p.k, p.m, false), b = rows_of<T>(p.b, batch * p.b.stride, p.n, p.k, false);
    std::vector<T> sums(p.m);
    for (int j = 0; j < p.n; ++j) {
        std::fill(sums.begin(), sums.end(), T(0));
        add_products(sums.data(), a.data(), p.m, b.data() + (size_t)j * p.k, p.k);
        for (int i = 0; i < p.m; ++i) {
            long long at = first + i + (long long)j * p.c.leading;
            double before = p.beta == 0 ? 0 : p.beta * get(p.c.data, at, p.c.type);  // with beta 0 what is there is not read
            put((void*)p.c.data, at, p.c.type, p.alpha * (double)sums[i] + before);
        }
    }
}

static void run(const Product& p) {
    for (int batch = 0; batch < p.batch; ++batch) {
        if (p.k) check_columns("a product of cuBLAS reads", p.a, batch * p.a.stride);
        if (p.k) check_columns("a product of cuBLAS reads", p.b, batch * p.b.stride);
        check_columns("a product of cuBLAS writes", p.c, batch * p.c.stride);
        if (p.compute == COMPUTE_64F) multiply<double>(p, batch);
        else if (p.compute == COMPUTE_16F) multiply<_Float16>(p, batch);
        else multiply<float>(p, batch);
    }
}

// The combinations of cublasGemmEx's table that this driver knows.
static bool types_are_listed(int a, int b, int c, int compute) {
    if (a != b) return false;
    switch (compute) {
        case COMPUTE_64F: return a == DOUBLE && c == DOUBLE;
        case COMPUTE_32F: return (a == FLOAT && c == FLOAT) || (a == HALF && (c == HALF || c == FLOAT));
        case COMPUTE_16F: return a == HALF && c == HALF;
        case FAST_TF32: return a == FLOAT && c == FLOAT;
        default: return false;
    }
}

static int gemm(Handle* handle, Product p, const void* alpha, const void* beta) {
    GUARD;
    bool sizes = p.m >= 0 && p.n >= 0 && p.k >= 0 && p.batch >= 0;
    if (!sizes || p.a.leading < std::max(1, p.a.rows) || p.b.leading < std::max(1, p.b.rows) || p.c.leading < std::max(1, p.m)) {
        problem("a product of cuBLAS is refused: a leading dimension is smaller than its matrix");
        return INVALID_VALUE;
    }
    if (!types_are_listed(p.a.type, p.b.type, p.c.type, p.compute)) {
        problem("a product of cuBLAS is refused: its types are in no row of the table");
        return NOT_SUPPORTED;
    }
    if (handle->pointer_mode) {
        problem("a product of cuBLAS with scalars in device memory is not emulated");
        return NOT_SUPPORTED;
    }
    int scalar = p.compute == COMPUTE_64F ? DOUBLE : p.compute == COMPUTE_16F ? HALF : FLOAT;
    p.alpha = get(alpha, 0, scalar);
    p.beta = get(beta, 0, scalar);
    for (const void* data : {p.a.data, p.b.data, (const void*)p.c.data}) want_here("a product of cuBLAS", data);
    if (device_of_stream(handle->stream) != current_device()) problem("a product of cuBLAS: its stream is another device's");
    if (p.m && p.n) submit(handle->stream, {[p] { run(p); }});
    return OK;
}

static Matrix matrix(const void* data, int type, int leading, long long stride, int transposed, int rows, int columns) {
    bool t = transposed != 0;
    return {data, type, leading, stride, t, t ? columns : rows, t ? rows : columns};
}

}  // namespace emulated
using namespace emulated;
typedef const void* In;

API int cublasGemmStridedBatchedEx(Handle* h, int ta, int tb, int m, int n, int k, In alpha, In a, int type_a, int lda, long long sa,
                                   In b, int type_b, int ldb, long long sb, In beta, void* c, int type_c, int ldc, long long sc,
                                   int batch, int compute, int) {
    Product p{matrix(a, type_a, lda, sa, ta, m, k), matrix(b, type_b, ldb, sb, tb, k, n), matrix(c, type_c, ldc, sc, 0, m, n),
              m, n, k, batch, compute, 0, 0};
    return gemm(h, p, alpha, beta);
}
API int cublasGemmEx(Handle* h, int ta, int tb, int m, int n, int k, In alpha, In a, int type_a, int lda, In b, int type_b, int ldb,
                     In beta, void* c, int type_c, int ldc, int compute, int algorithm) {
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c, ldc, 0, 1,
                                      compute, algorithm);
}
#define OF_ONE_TYPE(letter, type, compute)                                                                                         \
    API int cublas##letter##gemm_v2(Handle* h, int ta, int tb, int m, int n, int k, In alpha, In a, int lda, In b, int ldb,        \
                                    In beta, void* c, int ldc) {                                                                   \
        return cublasGemmEx(h, ta, tb, m, n, k, alpha, a, type, lda, b, type, ldb, beta, c, type, ldc, compute, -1);               \
    }                                                                                                                              \
    API int cublas##letter##gemmStridedBatched(Handle* h, int ta, int tb, int m, int n, int k, In alpha, In a, int lda,            \
                                               long long sa, In b, int ldb, long long sb, In beta, void* c, int ldc, long long sc, \
                                               int batch) {                                                                        \
        return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, type, lda, sa, b, type, ldb, sb, beta, c, type, ldc, sc,   \
                                          batch, compute, -1);                                                                     \
    }
OF_ONE_TYPE(S, FLOAT, COMPUTE_32F)
OF_ONE_TYPE(D, DOUBLE, COMPUTE_64F)

API int cublasCreate_v2(Handle** out) {
    *out = new Handle;
    return OK;
}
API int cublasDestroy_v2(Handle* handle) {
    delete handle;
    return OK;
}
API int cublasGetVersion_v2(Handle*, int* version) {
    *version = 120900;
    return OK;
}
#define PROPERTY(Name, Type, field)                                  \
    API int cublasSet##Name(Handle* handle, Type value) {            \
        handle->field = value;                                       \
        return OK;                                                   \
    }                                                                \
    API int cublasGet##Name(Handle* handle, Type* value) {           \
        *value = handle->field;                                      \
        return OK;                                                   \
    }
PROPERTY(Stream_v2, void*, stream)
PROPERTY(PointerMode_v2, int, pointer_mode)
PROPERTY(MathMode, int, math_mode)
