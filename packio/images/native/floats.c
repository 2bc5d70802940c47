/* Bytes as floats, by tables: a byte has 256 values, so any arithmetic can be done beforehand.

   Arithmetic on eight values at once is faster than to look each up. It is used for a channel if it
   gives all values of the table, bit by bit. */

#include "core.h"

EXPORTED int packio_look_up(const uint8_t *planes, int64_t images, int channels, int64_t pixels,
                            const void *tables, const float *constants, int size, int is_last,
                            void *out);

#define LOOK_UP(NAME, VALUE)                                                                       \
    static void NAME(const uint8_t *from, int64_t count, const VALUE *table, VALUE *to,            \
                     int64_t step) {                                                               \
        for (int64_t i = 0; i < count; i++) to[i * step] = table[from[i]];                         \
    }                                                                                              \
    static void NAME##_rgb(const uint8_t *red, int64_t count, const VALUE *table, VALUE *to) {     \
        const uint8_t *green = red + count, *blue = green + count;                                 \
        for (int64_t i = 0; i < count; i++, to += 3) {                                             \
            to[0] = table[red[i]];                                                                 \
            to[1] = table[256 + green[i]];                                                         \
            to[2] = table[512 + blue[i]];                                                          \
        }                                                                                          \
    }

LOOK_UP(look_up_16, uint16_t)
LOOK_UP(look_up_32, uint32_t)

enum Float { FLOAT32, BFLOAT16, FLOAT16, NO_FLOAT };

#if defined(__x86_64__)
#include <immintrin.h>
#define WITH_FMA __attribute__((target("avx2,fma,f16c")))

/* x / by, rounded once: a product, corrected by what it leaves. */
WITH_FMA static inline __m256 divide(__m256 x, __m256 by, __m256 inverse) {
    __m256 product = _mm256_mul_ps(x, inverse);
    return _mm256_fmadd_ps(_mm256_fnmadd_ps(product, by, x), inverse, product);
}

/* (x / 255 - mean) / std of bytes, eight at a time; returns how many. */
WITH_FMA INLINE int64_t compute_as(const enum Float kind, const uint8_t *from, int64_t count,
                                   const float *constants, void *out) {
    const __m256 whole = _mm256_set1_ps(255), part = _mm256_set1_ps(1 / 255.0F);
    const __m256 mean = _mm256_set1_ps(constants[0]), std = _mm256_set1_ps(constants[1]);
    const __m256 inverse = _mm256_set1_ps(1 / constants[1]);
    const __m256i half = _mm256_set1_epi32(0x7FFF), one = _mm256_set1_epi32(1);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(from + i)));
        __m256 x = divide(_mm256_cvtepi32_ps(bytes), whole, part);
        x = divide(_mm256_sub_ps(x, mean), std, inverse);
        if (kind == FLOAT32) {
            _mm256_storeu_ps((float *)out + i, x);
        } else if (kind == FLOAT16) {
            _mm_storeu_si128((void *)((uint16_t *)out + i), _mm256_cvtps_ph(x, 0));
        } else { /* to the nearest, else to even */
            __m256i bits = _mm256_castps_si256(x);
            __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
            bits = _mm256_add_epi32(bits, _mm256_add_epi32(half, odd));
            bits = _mm256_srli_epi32(bits, 16);
            __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0xD8);
            _mm_storeu_si128((void *)((uint16_t *)out + i), _mm256_castsi256_si128(words));
        }
    }
    return i;
}

WITH_FMA static int64_t compute(const uint8_t *from, int64_t count, const float *constants,
                                enum Float kind, void *out) {
    if (kind == FLOAT32) return compute_as(FLOAT32, from, count, constants, out);
    if (kind == FLOAT16) return compute_as(FLOAT16, from, count, constants, out);
    return compute_as(BFLOAT16, from, count, constants, out);
}

/* Of which kind the values of a table are; NO_FLOAT: it takes the table to make them. */
static enum Float kind_of(const void *table, const float *constants, int size) {
    /* all processors with AVX2 and FMA have F16C, which older compilers cannot ask for */
    if (packio_kernels() != &packio_avx2 || !__builtin_cpu_supports("fma")) return NO_FLOAT;
    uint8_t all[256];
    float made[256];
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    for (enum Float kind = FLOAT32; kind < NO_FLOAT; kind++) {
        if (size != (kind == FLOAT32 ? 4 : 2)) continue;
        compute(all, 256, constants, kind, made);
        if (!memcmp(made, table, 256 * (size_t)size)) return kind;
    }
    return NO_FLOAT;
}
#else
static int64_t compute(const uint8_t *from, int64_t count, const float *constants, enum Float kind,
                       void *out) {
    (void)from, (void)count, (void)constants, (void)kind, (void)out;
    return 0;
}
static enum Float kind_of(const void *table, const float *constants, int size) {
    (void)table, (void)constants, (void)size;
    return NO_FLOAT;
}
#endif

/* Values of one channel, one every `step`. */
static void make_plane(const uint8_t *from, int64_t count, const void *table, enum Float kind,
                       const float *constants, int size, int64_t step, void *out) {
    int64_t done = kind == NO_FLOAT ? 0 : compute(from, count, constants, kind, out);
    if (size == 2)
        look_up_16(from + done, count - done, table, (uint16_t *)out + done * step, step);
    else
        look_up_32(from + done, count - done, table, (uint32_t *)out + done * step, step);
}

/* Turn (images, channels, pixels) bytes into values of 2 or 4 bytes, of a table of 256 for each
   channel, which holds (x / 255 - mean) / std; `constants` are mean and std of each channel.
   Channels come last in the output if `is_last`. A status. */
int packio_look_up(const uint8_t *planes, int64_t images, int channels, int64_t pixels,
                   const void *tables, const float *constants, int size, int is_last, void *out) {
    if ((size != 2 && size != 4) || channels < 1 || images < 0 || pixels < 0) return REQUEST;
    int64_t step = is_last ? channels : 1, between = is_last ? 1 : pixels;
    for (int64_t c = 0; c < channels && !(is_last && channels == 3); c++) {
        const uint8_t *table = (const uint8_t *)tables + 256 * c * size;
        enum Float kind = is_last ? NO_FLOAT : kind_of(table, constants + 2 * c, size);
        for (int64_t i = 0; i < images; i++)
            make_plane(planes + (i * channels + c) * pixels, pixels, table, kind, constants + 2 * c,
                       size, step, (uint8_t *)out + (i * channels * pixels + c * between) * size);
    }
    for (int64_t i = 0; i < images && is_last && channels == 3; i++) {
        const uint8_t *from = planes + i * channels * pixels;
        if (size == 2)
            look_up_16_rgb(from, pixels, tables, (uint16_t *)out + i * channels * pixels);
        else
            look_up_32_rgb(from, pixels, tables, (uint32_t *)out + i * channels * pixels);
    }
    return MADE;
}
