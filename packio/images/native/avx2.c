/* The kernels for x86-64 processors with AVX2; empty for others. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi,bmi2")
#endif
#include <immintrin.h>
#define AVX2
#define KERNELS packio_avx2
#include "kernels/all.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
