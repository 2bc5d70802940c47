/* Resizing: each row across, then columns of the results down, with rounding to bytes after both. */

enum { BESIDE = 8, REACHED = 15 };  /* outputs made at once; inputs that a vector reaches */

INLINE uint8_t byte_of(int value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

/* What makes eight outputs of a row: step by step two taps of each, or 16 taps of one. */
typedef struct __attribute__((aligned(32))) {
    int8_t bytes[32];
    int16_t weights[16];
    int32_t from[2];
} Taps;

/* How a row is resized across. */
typedef struct {
    const Axis *axis;
    int steps, apart;  /* of Taps for eight outputs; whether each is of one output alone, or,
                          without taps, whether the last output comes first */
    Taps *taps;
} Across;

/* Find the taps. With `mirrored`, the last output comes first. A status. */
static int plan_across(Buffer *memory, const Axis *axis, int mirrored, Across *across) {
    *across = (Across){.axis = axis, .apart = mirrored};
    if (!axis->weights) return MADE;
#ifdef AVX2
    int groups = (axis->count + BESIDE - 1) / BESIDE, span = 0, most = 0;
    for (int i = 0; i < axis->count; i++) {
        int last = i + 3 < axis->count ? i + 3 : axis->count - 1;
        if (axis->start[last] - axis->start[i] > span) span = axis->start[last] - axis->start[i];
        if (axis->size[i] > most) most = axis->size[i];
    }
    int pairs = (most + 1) / 2;
    across->apart = span + 1 > REACHED;
    across->steps = across->apart ? BESIDE * ((most + 15) / 16) : pairs;
    size_t count = (size_t)groups * (size_t)across->steps;
    across->taps = packio_reserve(memory, count * sizeof(Taps));
    if (!across->taps) return MEMORY;
    Taps *taps = across->taps;
    for (int g = 0; g < groups; g++)
        for (int step = 0; step < across->steps; step++, taps++) {
            memset(taps->weights, 0, sizeof taps->weights);
            memset(taps->bytes, -1, sizeof taps->bytes);
            if (across->apart) {
                int i = g * BESIDE + step % BESIDE, tap = step / BESIDE * 16;
                if (i >= axis->count) i = axis->count - 1;
                if (mirrored) i = axis->count - 1 - i;
                taps->from[0] = axis->start[i] - axis->begin + tap;
                for (int k = 0; k < 16 && tap + k < axis->size[i]; k++)
                    taps->weights[k] = axis->weights[i * axis->taps + tap + k];
                if (tap >= axis->size[i]) taps->from[0] = 0;
                continue;
            }
            for (int half = 0; half < 2; half++) {
                int outputs[4], from = 1 << 30;
                for (int k = 0; k < 4; k++) {
                    int i = g * BESIDE + half * 4 + k;
                    if (i >= axis->count) i = axis->count - 1;
                    outputs[k] = mirrored ? axis->count - 1 - i : i;
                    int start = axis->start[outputs[k]];
                    if (start < from) from = start;
                }
                taps->from[half] = from - axis->begin + 2 * step;
                for (int k = 0; k < 4; k++)
                    for (int t = 0; t < 2; t++) {
                        int i = outputs[k], tap = 2 * step + t;
                        if (tap >= axis->size[i]) continue;
                        int at = axis->start[i] - from + t;
                        taps->bytes[16 * half + 4 * k + 2 * t] = (int8_t)at;
                        taps->weights[8 * half + 2 * k + t] = axis->weights[i * axis->taps + tap];
                    }
            }
        }
#else
    (void)memory;
#endif
    return MADE;
}

/* Take one byte of a row for each output. */
static void pick(const Axis *axis, int mirrored, const uint8_t *in, uint8_t *out) {
    for (int i = 0; i < axis->count; i++)
        out[mirrored ? axis->count - 1 - i : i] = in[axis->start[i] - axis->begin];
}

#ifdef AVX2
INLINE void put_eight(__m256i sums, __m128i bits, uint8_t *out) {
    sums = _mm256_sra_epi32(sums, bits);
    __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    _mm_storel_epi64((void *)out, _mm_packus_epi16(words, words));
}

/* Rows of `planes` planes: what is known of an output's taps is loaded once for all of them. */
INLINE void resize_near(const Across *across, const uint8_t *const *in, uint8_t *const *out,
                        const int planes) {
    const Axis *axis = across->axis;
    const Taps *taps = across->taps;
    const __m256i half = _mm256_set1_epi32(1 << (axis->precision - 1));
    const __m128i bits = _mm_cvtsi32_si128(axis->precision);
    for (int i = 0; i < axis->count; i += BESIDE) {
        __m256i sums[3] = {half, half, half};
        for (int step = 0; step < across->steps; step++, taps++) {
            const __m256i places = _mm256_load_si256((const void *)taps->bytes);
            const __m256i weights = _mm256_load_si256((const void *)taps->weights);
            _Pragma("GCC unroll 3") for (int p = 0; p < planes; p++) {
                __m256i bytes = _mm256_inserti128_si256(
                    _mm256_castsi128_si256(_mm_loadu_si128((const void *)(in[p] + taps->from[0]))),
                    _mm_loadu_si128((const void *)(in[p] + taps->from[1])), 1);
                bytes = _mm256_shuffle_epi8(bytes, places);
                sums[p] = _mm256_add_epi32(sums[p], _mm256_madd_epi16(bytes, weights));
            }
        }
        _Pragma("GCC unroll 3") for (int p = 0; p < planes; p++) put_eight(sums[p], bits, out[p] + i);
    }
}

static void resize_apart(const Across *across, const uint8_t *in, uint8_t *out) {
    const Axis *axis = across->axis;
    const Taps *taps = across->taps;
    const __m256i half = _mm256_set1_epi32(1 << (axis->precision - 1));
    const __m128i bits = _mm_cvtsi32_si128(axis->precision);
    for (int i = 0; i < axis->count; i += BESIDE) {
        __m256i each[BESIDE];
        for (int k = 0; k < BESIDE; k++) each[k] = _mm256_setzero_si256();
        for (int step = 0; step < across->steps; step += BESIDE)
            for (int k = 0; k < BESIDE; k++, taps++) {
                __m256i bytes =
                    _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(in + taps->from[0])));
                __m256i weights = _mm256_load_si256((const void *)taps->weights);
                each[k] = _mm256_add_epi32(each[k], _mm256_madd_epi16(bytes, weights));
            }
        __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(each[0], each[1]),
                                      _mm256_hadd_epi32(each[2], each[3]));
        __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(each[4], each[5]),
                                      _mm256_hadd_epi32(each[6], each[7]));
        __m256i sums = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                                        _mm256_permute2x128_si256(a, b, 0x31));
        put_eight(_mm256_add_epi32(half, sums), bits, out + i);
    }
}
#else
static void resize_one(const Across *across, const uint8_t *in, uint8_t *out) {
    const Axis *axis = across->axis;
    for (int i = 0; i < axis->count; i++) {
        const uint8_t *from = in + axis->start[i] - axis->begin;
        const int16_t *weights = axis->weights + i * axis->taps;
        int sum = 1 << (axis->precision - 1);
        for (int j = 0; j < axis->size[i]; j++) sum += weights[j] * from[j];
        out[across->apart ? axis->count - 1 - i : i] = byte_of(sum >> axis->precision);
    }
}
#endif

/* Resize a row of each plane, which begins at the axis' first needed input. Reads and writes up to
   32 bytes more. */
static void resize_rows(const Across *across, const uint8_t *const *in, uint8_t *const *out,
                        int planes) {
    if (!across->axis->weights) {
        for (int p = 0; p < planes; p++) pick(across->axis, across->apart, in[p], out[p]);
        return;
    }
#ifdef AVX2
    if (across->apart)
        for (int p = 0; p < planes; p++) resize_apart(across, in[p], out[p]);
    else if (planes == 3)
        resize_near(across, in, out, 3);
    else
        resize_near(across, in, out, 1);
#else
    for (int p = 0; p < planes; p++) resize_one(across, in[p], out[p]);
#endif
}

#ifdef AVX2
/* Add rows times their weights, 16 columns a vector. */
INLINE void add_rows(const uint8_t *at, size_t stride, const int16_t *weights, int size, Wide *sums,
                     const int vectors) {
    int j = 0;
    for (; j + 1 < size; j += 2, at += 2 * stride) {
        __m256i factors = pair_of(weights[j], weights[j + 1]);
        _Pragma("GCC unroll 2") for (int k = 0; k < vectors; k++) {
            __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(at + 16 * k)));
            __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(at + stride + 16 * k)));
            sums[k] = plus(sums[k], products(a, b, factors));
        }
    }
    if (j == size) return;
    __m256i factors = pair_of(weights[j], 0);
    _Pragma("GCC unroll 2") for (int k = 0; k < vectors; k++) {
        __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(at + 16 * k)));
        sums[k] = plus(sums[k], products(a, a, factors));
    }
}

INLINE __m128i bytes_of(Wide sums, __m128i bits) {
    __m256i words = _mm256_packs_epi32(_mm256_sra_epi32(sums.low, bits),
                                       _mm256_sra_epi32(sums.high, bits));
    return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
#endif

/* Output i of the axis down: rows of `in`, the first of which is the axis' first needed one. */
static void resize_down(const Axis *axis, int i, const uint8_t *in, size_t stride, uint8_t *out,
                        int count) {
    const uint8_t *from = in + (size_t)(axis->start[i] - axis->begin) * stride;
    if (!axis->weights) {
        memcpy(out, from, (size_t)count);
        return;
    }
    const int16_t *weights = axis->weights + i * axis->taps;
    int x = 0, size = axis->size[i];
#ifdef AVX2
    const __m256i half = _mm256_set1_epi32(1 << (axis->precision - 1));
    const __m128i bits = _mm_cvtsi32_si128(axis->precision);
    for (; x + 32 <= count; x += 32) {
        Wide sums[2] = {{half, half}, {half, half}};
        add_rows(from + x, stride, weights, size, sums, 2);
        for (int k = 0; k < 2; k++)
            _mm_storeu_si128((void *)(out + x + 16 * k), bytes_of(sums[k], bits));
    }
    for (; x < count; x += 16) {
        Wide sums = {half, half};
        add_rows(from + x, stride, weights, size, &sums, 1);
        uint8_t last[16];
        _mm_storeu_si128((void *)last, bytes_of(sums, bits));
        memcpy(out + x, last, (size_t)(count - x < 16 ? count - x : 16));
    }
#else
    for (; x < count; x++) {
        int sum = 1 << (axis->precision - 1);
        for (int j = 0; j < size; j++) sum += weights[j] * from[(size_t)j * stride + (size_t)x];
        out[x] = byte_of(sum >> axis->precision);
    }
#endif
}

/* Output i of the axis down, of means: rows of `in`, the first of which is the axis' first needed
   one, unresized. `sums` has room for such a row. Source: PyTorch 2.13, AdaptiveAvgPoolKernel.cpp:
   the sum, then divided by the rows and by the columns, in single precision. */
static void average(const Axis *down, const Axis *across, int i, int mirrored, const uint8_t *in,
                    size_t stride, uint32_t *sums, uint8_t *out) {
    const uint8_t *from = in + (size_t)(down->start[i] - down->begin) * stride;
    const int width = across->end - across->begin, high = down->size[i];
    for (int x = 0; x < width; x++) sums[x] = from[x];
    for (int y = 1; y < high; y++) {
        from += stride;
        for (int x = 0; x < width; x++) sums[x] += from[x];
    }
    for (int k = 0; k < across->count; k++) {
        const uint32_t *at = sums + across->start[k] - across->begin;
        uint32_t sum = 0;
        for (int x = 0; x < across->size[k]; x++) sum += at[x];
        float mean = (float)sum / (float)high / (float)across->size[k];
        const float whole = 1 << 23; /* added, it leaves no bits behind the point: half to even */
        out[mirrored ? across->count - 1 - k : k] = (uint8_t)(mean + whole - whole);
    }
}

/* Copy a row, perhaps mirrored. */
static void copy_row(const uint8_t *in, uint8_t *out, int count, int mirrored) {
    if (!mirrored) memcpy(out, in, (size_t)count);
    else
        for (int i = 0; i < count; i++) out[i] = in[count - 1 - i];
}
