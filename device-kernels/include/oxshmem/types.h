/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The element types that the named functions exist for, as tables: each applies a macro to every
 * row. For C and C++, on the host and the device.
 */
#ifndef OXSHMEM_TYPES_H
#define OXSHMEM_TYPES_H

#include <stdint.h>

/* A context, by value. What its words are is the library's. Zeros: the default context. */
typedef struct oxshmem_ctx {
    uint64_t words[6];
} oxshmem_ctx_t;
#ifdef __cplusplus
#define OXSHMEM_CTX_DEFAULT (oxshmem_ctx_t{})
#else
#define OXSHMEM_CTX_DEFAULT ((oxshmem_ctx_t){{0}})
#endif

/* An aggregating context, by value: the bytes of oxshmem::aggregate::Context. */
typedef struct oxshmemx_aggregate {
    uint64_t words[11];
} oxshmemx_aggregate_t;

/* X(type name, C++ type): the standard RMA types of OpenSHMEM 1.5, table 5, less long double, which
 * GPUs do not have. */
#define OXSHMEM_FOR_EACH_RMA_TYPE(X)                                                                                           \
    X(float, float)                                                                                                            \
    X(double, double)                                                                                                          \
    X(char, char)                                                                                                              \
    X(schar, signed char)                                                                                                      \
    X(short, short)                                                                                                            \
    X(int, int)                                                                                                                \
    X(long, long)                                                                                                              \
    X(longlong, long long)                                                                                                     \
    X(uchar, unsigned char)                                                                                                    \
    X(ushort, unsigned short)                                                                                                  \
    X(uint, unsigned int)                                                                                                      \
    X(ulong, unsigned long)                                                                                                    \
    X(ulonglong, unsigned long long)                                                                                           \
    X(int8, int8_t)                                                                                                            \
    X(int16, int16_t)                                                                                                          \
    X(int32, int32_t)                                                                                                          \
    X(int64, int64_t)                                                                                                          \
    X(uint8, uint8_t)                                                                                                          \
    X(uint16, uint16_t)                                                                                                        \
    X(uint32, uint32_t)                                                                                                        \
    X(uint64, uint64_t)                                                                                                        \
    X(size, size_t)                                                                                                            \
    X(ptrdiff, ptrdiff_t)

/* Table 8: extended, standard and bitwise atomic types. */
#define OXSHMEM_FOR_EACH_FLOATING_ATOMIC_TYPE(X)                                                                               \
    X(float, float)                                                                                                            \
    X(double, double)

#define OXSHMEM_FOR_EACH_BITWISE_ATOMIC_TYPE(X)                                                                                \
    X(uint, unsigned int)                                                                                                      \
    X(ulong, unsigned long)                                                                                                    \
    X(ulonglong, unsigned long long)                                                                                           \
    X(int32, int32_t)                                                                                                          \
    X(int64, int64_t)                                                                                                          \
    X(uint32, uint32_t)                                                                                                        \
    X(uint64, uint64_t)

#define OXSHMEM_FOR_EACH_STANDARD_ATOMIC_TYPE(X)                                                                               \
    OXSHMEM_FOR_EACH_BITWISE_ATOMIC_TYPE(X)                                                                                    \
    X(int, int)                                                                                                                \
    X(long, long)                                                                                                              \
    X(longlong, long long)                                                                                                     \
    X(size, size_t)                                                                                                            \
    X(ptrdiff, ptrdiff_t)

/* Table 9: types of point-to-point synchronisation. */
#define OXSHMEM_FOR_EACH_WAIT_TYPE(X)                                                                                          \
    X(short, short)                                                                                                            \
    X(int, int)                                                                                                                \
    X(long, long)                                                                                                              \
    X(longlong, long long)                                                                                                     \
    X(ushort, unsigned short)                                                                                                  \
    X(uint, unsigned int)                                                                                                      \
    X(ulong, unsigned long)                                                                                                    \
    X(ulonglong, unsigned long long)                                                                                           \
    X(int32, int32_t)                                                                                                          \
    X(int64, int64_t)                                                                                                          \
    X(uint32, uint32_t)                                                                                                        \
    X(uint64, uint64_t)                                                                                                        \
    X(size, size_t)                                                                                                            \
    X(ptrdiff, ptrdiff_t)

/* X(bits, C++ type) */
#define OXSHMEM_FOR_EACH_SIZE(X)                                                                                               \
    X(8, uint8_t)                                                                                                              \
    X(16, uint16_t)                                                                                                            \
    X(32, uint32_t)                                                                                                            \
    X(64, uint64_t)                                                                                                            \
    X(128, oxshmem::port::vec16)

/* X(type name, C++ type): the types of reductions by and, or and xor, by min and max, and by sum
 * and product: tables 10 to 12 of OpenSHMEM 1.5, and the 16-bit floating-point types, which transfers
 * and other collectives have too. */
#define OXSHMEM_FOR_EACH_BITWISE_REDUCE_TYPE(X)                                                                                \
    X(uchar, unsigned char)                                                                                                    \
    X(ushort, unsigned short)                                                                                                  \
    X(uint, unsigned int)                                                                                                      \
    X(ulong, unsigned long)                                                                                                    \
    X(ulonglong, unsigned long long)                                                                                           \
    X(int8, int8_t)                                                                                                            \
    X(int16, int16_t)                                                                                                          \
    X(int32, int32_t)                                                                                                          \
    X(int64, int64_t)                                                                                                          \
    X(uint8, uint8_t)                                                                                                          \
    X(uint16, uint16_t)                                                                                                        \
    X(uint32, uint32_t)                                                                                                        \
    X(uint64, uint64_t)                                                                                                        \
    X(size, size_t)

#define OXSHMEM_FOR_EACH_NARROW_FLOAT_TYPE(X)                                                                                  \
    X(half, oxshmem::half)                                                                                                     \
    X(bfloat16, oxshmem::bfloat16)

#define OXSHMEM_FOR_EACH_COMPLEX_REDUCE_TYPE(X)                                                                                \
    X(complexf, oxshmem::complex<float>)                                                                                       \
    X(complexd, oxshmem::complex<double>)

#endif
