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

/* A number as a sum of two floats, and x times it, rounded once but for one case in millions. */
typedef struct {
    __m256 high, low;
} Factor;

WITH_FMA static inline Factor factor(double number) {
    float high = (float)number;
    return (Factor){_mm256_set1_ps(high), _mm256_set1_ps((float)(number - (double)high))};
}

WITH_FMA static inline __m256 times(__m256 x, Factor by) {
    return _mm256_fmadd_ps(x, by.high, _mm256_mul_ps(x, by.low));
}

/* What (x / 255 - mean) / std takes. */
typedef struct {
    Factor scale, inverse;
    __m256 mean;
} Recipe;

WITH_FMA static inline __m256 normalise(__m256i bytes, const Recipe *by) {
    __m256 x = times(_mm256_cvtepi32_ps(bytes), by->scale);
    return times(_mm256_sub_ps(x, by->mean), by->inverse);
}

/* Bits of floats whose upper half is that of bfloat16: to the nearest, else to even. */
WITH_FMA static inline __m256i round_upper(__m256 x) {
    __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    return _mm256_add_epi32(bits, _mm256_add_epi32(_mm256_set1_epi32(0x7FFF), odd));
}

/* (x / 255 - mean) / std of bytes, sixteen at a time; returns how many. */
WITH_FMA INLINE int64_t compute_as(const enum Float kind, const uint8_t *from, int64_t count,
                                   const float *constants, void *out) {
    const Recipe by = {factor(1 / 255.0), factor(1 / (double)constants[1]),
                       _mm256_set1_ps(constants[0])};
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m128i bytes = _mm_loadu_si128((const void *)(from + i));
        if (kind == BFLOAT16) { /* pairs: their halves lie as they come out */
            __m256i pairs = _mm256_cvtepu16_epi32(bytes);
            __m256 even = normalise(_mm256_and_si256(pairs, _mm256_set1_epi32(255)), &by);
            __m256 odd = normalise(_mm256_srli_epi32(pairs, 8), &by);
            __m256i first = _mm256_srli_epi32(round_upper(even), 16);
            first = _mm256_blend_epi16(first, round_upper(odd), 0xAA);
            _mm256_storeu_si256((void *)((uint16_t *)out + i), first);
            continue;
        }
        for (int half = 0; half < 2; half++, bytes = _mm_srli_si128(bytes, 8)) {
            __m256 x = normalise(_mm256_cvtepu8_epi32(bytes), &by);
            if (kind == FLOAT32) _mm256_storeu_ps((float *)out + i + 8 * half, x);
            else _mm_storeu_si128((void *)((uint16_t *)out + i + 8 * half), _mm256_cvtps_ph(x, 0));
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
