/* Warps that mix 2 x 2 or 4 x 4 pixels. */

/* Channels of a pixel that are mixed at once. Vectors of this size are not passed by value: where
   there is no AVX, compilers differ about how. */
#ifdef AVX2
enum { MIXED_AT_ONCE = 4 };
typedef double Channels __attribute__((vector_size(32)));

INLINE void load_channels(const uint8_t *pixel, Channels *to) {
    int32_t bytes;
    memcpy(&bytes, pixel, sizeof bytes);
    *to = (Channels)_mm256_cvtepi32_pd(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(bytes)));
}

INLINE void put_channels(const Channels *values, uint8_t *out, size_t plane, int channels) {
    __m128i whole = _mm256_cvttpd_epi32((__m256d)*values);
    whole = _mm_packs_epi32(whole, whole);
    uint32_t bytes = (uint32_t)_mm_cvtsi128_si32(_mm_packus_epi16(whole, whole));
    for (int c = 0; c < channels; c++, bytes >>= 8) out[(size_t)c * plane] = (uint8_t)bytes;
}
#else
enum { MIXED_AT_ONCE = 1 };
typedef double Channels;

INLINE void load_channels(const uint8_t *pixel, Channels *to) { *to = *pixel; }

INLINE void put_channels(const Channels *values, uint8_t *out, size_t plane, int channels) {
    (void)plane, (void)channels;
    *out = *values <= 0.0 ? 0 : *values >= 255.0 ? 255 : (uint8_t)*values;
}
#endif

INLINE void mix_two(const Channels *v, double d, Channels *to) { *to = v[0] + (v[1] - v[0]) * d; }

INLINE void mix_four(const Channels *v, double d, Channels *to) {
    Channels first = v[2] - v[0], second = 2.0 * (v[0] - v[1]) + v[2] - v[3];
    Channels third = v[1] - v[0] - v[2] + v[3];
    *to = v[1] + d * (first + d * (second + d * third));
}

/* Mix the pixels from `at` on in doubles, as Pillow does. */
INLINE void mix_exactly(const Warp *warp, int x, uint8_t *out, const int is_bicubic) {
    const uint8_t *first = (const uint8_t *)(warp->pixels + warp->at[x]);
    const size_t stride = (size_t)warp->stride * sizeof *warp->pixels;
    const int taps = is_bicubic ? 4 : 2;
    for (int c = 0; c < warp->channels; c += MIXED_AT_ONCE) {
        const uint8_t *in = first + c;
        Channels rows[4], columns[4];
        _Pragma("GCC unroll 4") for (int k = 0; k < taps; k++, in += stride) {
            _Pragma("GCC unroll 4") for (int i = 0; i < taps; i++)
                load_channels(in + 4 * i, columns + i);
            if (is_bicubic) mix_four(columns, warp->dx[x], rows + k);
            else mix_two(columns, warp->dx[x], rows + k);
        }
        if (is_bicubic) mix_four(rows, warp->dy[x], columns);
        else mix_two(rows, warp->dy[x], columns);
        put_channels(columns, out + (size_t)c * warp->plane, warp->plane, warp->channels);
    }
}

#ifdef AVX2
/* Eight pixels at once are mixed in single precision, with some bits behind the point. Where the
   result is as near to an integer as the last of these bits, doubles decide. With u = 2^-16, the
   last bit of values from 128 on, a result is off by less than 7 u if 2 x 2 pixels are mixed, and
   by less than 70 u if 4 x 4 are: weights are off by 4 / 2^24 at most, and the sum of their
   absolute values is at most 1.5 on each axis. The bits are 16 u and 128 u. */
enum { BITS_OF_TWO = 12, BITS_OF_FOUR = 9 };

INLINE __m256 singles_of(const double *values) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(_mm256_loadu_pd(values))),
                                _mm256_cvtpd_ps(_mm256_loadu_pd(values + 4)), 1);
}

/* A channel, times 256^c. */
INLINE __m256 channel_of(__m256i pixels, const int c) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(pixels, _mm256_set1_epi32(255 << 8 * c)));
}

INLINE __m128i two_pixels(const uint32_t *first, const uint32_t *second) {
    return _mm_unpacklo_epi64(_mm_loadl_epi64((const void *)first),
                              _mm_loadl_epi64((const void *)second));
}

/* Of eight pixels of the result: those of the image at `at`, and the next ones. */
INLINE void load_two(const uint32_t *from, const int32_t *at, __m256i *taps) {
    __m256i pairs[2];
    for (int k = 0; k < 2; k++, at += 2)
        pairs[k] = join_halves(two_pixels(from + at[0], from + at[1]),
                               two_pixels(from + at[4], from + at[5]));
    __m256 a = _mm256_castsi256_ps(pairs[0]), b = _mm256_castsi256_ps(pairs[1]);
    taps[0] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
    taps[1] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD));
}

/* The same of four pixels in a row. */
INLINE void load_four(const uint32_t *from, const int32_t *at, __m256i *taps) {
    __m256i rows[4];
    for (int k = 0; k < 4; k++)
        rows[k] = join_halves(_mm_loadu_si128((const void *)(from + at[k])),
                       _mm_loadu_si128((const void *)(from + at[k + 4])));
    __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]);
    __m256i b = _mm256_unpacklo_epi32(rows[2], rows[3]);
    __m256i c = _mm256_unpackhi_epi32(rows[0], rows[1]);
    __m256i d = _mm256_unpackhi_epi32(rows[2], rows[3]);
    taps[0] = _mm256_unpacklo_epi64(a, b), taps[1] = _mm256_unpackhi_epi64(a, b);
    taps[2] = _mm256_unpacklo_epi64(c, d), taps[3] = _mm256_unpackhi_epi64(c, d);
}

/* The weights of four pixels at distance d. Source: Keys, "Cubic convolution interpolation for
   digital image processing", 1981, with a = -1. */
INLINE void weigh_four(__m256 d, __m256 *weights) {
    const __m256 one = _mm256_set1_ps(1.0f), two = _mm256_set1_ps(2.0f);
    const __m256 square = _mm256_mul_ps(d, d), rest = _mm256_sub_ps(one, d);
    weights[0] = _mm256_mul_ps(_mm256_mul_ps(rest, rest), _mm256_sub_ps(_mm256_setzero_ps(), d));
    weights[1] = _mm256_add_ps(one, _mm256_mul_ps(square, _mm256_sub_ps(d, two)));
    weights[2] = _mm256_mul_ps(d, _mm256_add_ps(one, _mm256_mul_ps(d, rest)));
    weights[3] = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(square, rest));
}

/* Cut off what is behind the point of channel c. Finds the bits that are cut off, plus one: 0 and 1
   are next to an integer. */
INLINE __m256i cut_values(__m256 values, const int c, const int bits, __m256i *rest) {
    const float scale = (float)(1 << bits) / (float)(1 << 8 * c);
    __m256i whole = _mm256_cvttps_epi32(_mm256_mul_ps(values, _mm256_set1_ps(scale)));
    __m256i inner = whole;
    if (bits == BITS_OF_FOUR) { /* around 0 and above 255, all is one byte */
        inner = _mm256_max_epi32(inner, _mm256_set1_epi32(1 << (bits - 1)));
        inner = _mm256_min_epi32(inner, _mm256_set1_epi32(511 << (bits - 1)));
    }
    inner = _mm256_add_epi32(inner, _mm256_set1_epi32(1));
    *rest = _mm256_and_si256(inner, _mm256_set1_epi32((1 << bits) - 1));
    return _mm256_srai_epi32(whole, bits);
}

/* Put up to eight pixels, of which each vector has a channel, into planes. */
INLINE void put_pixels(const __m256i *whole, uint8_t *out, size_t plane, int count,
                       const int channels) {
    __m256i a = _mm256_packs_epi32(whole[0], whole[channels > 1]);
    __m256i b = _mm256_packs_epi32(whole[channels - 1], whole[0]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    a = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order);
    uint64_t bytes[4];
    _mm256_storeu_si256((void *)bytes, a);
    for (int c = 0; c < channels; c++, out += plane)
        if (LIKELY(count == 8)) memcpy(out, bytes + c, 8);
        else memcpy(out, bytes + c, (size_t)count);
}

/* Whether all pixels that are mixed are one, which is the result. */
INLINE int is_flat(const Warp *warp, int x) {
    const uint32_t *from = warp->pixels + warp->at[x];
    const __m128i first = _mm_set1_epi32((int)*from);
    __m128i same = _mm_cmpeq_epi32(first, first);
    for (int k = 0; k < 4; k++, from += warp->stride)
        same = _mm_and_si128(same, _mm_cmpeq_epi32(first, _mm_loadu_si128((const void *)from)));
    return _mm_movemask_epi8(same) == 0xFFFF;
}

/* Mix those pixels in doubles whose bits are set in `doubts`. They are few: not inlined. */
static __attribute__((noinline)) void settle_two(const Warp *warp, int x, unsigned doubts,
                                                 uint8_t *out) {
    for (; doubts; doubts &= doubts - 1) {
        int k = __builtin_ctz(doubts);
        mix_exactly(warp, x + k, out + k, 0);
    }
}

static __attribute__((noinline)) void settle_four(const Warp *warp, int x, unsigned doubts,
                                                  uint8_t *out) {
    for (; doubts; doubts &= doubts - 1) {
        int k = __builtin_ctz(doubts);
        if (!is_flat(warp, x + k)) {
            mix_exactly(warp, x + k, out + k, 1);
            continue;
        }
        const uint8_t *in = (const uint8_t *)(warp->pixels + warp->at[x + k]);
        for (int c = 0; c < warp->channels; c++) out[k + (size_t)c * warp->plane] = in[c];
    }
}

/* Mix 2 x 2 pixels of a channel. Returns the bits that are cut off, plus one; -1 where no pixel but
   the first has a share, or none differs: there is nothing to cut off. */
INLINE __m256i mix_channel(const __m256i *taps, __m256 dx, __m256 dy, const int c, __m256i *whole) {
    __m256 a = channel_of(taps[0], c), b = channel_of(taps[1], c);
    __m256 d = channel_of(taps[2], c), e = channel_of(taps[3], c);
    __m256 upper = _mm256_mul_ps(_mm256_sub_ps(b, a), dx);
    __m256 lower = _mm256_mul_ps(_mm256_sub_ps(e, d), dx);
    a = _mm256_add_ps(a, upper), d = _mm256_add_ps(d, lower);
    __m256 down = _mm256_mul_ps(_mm256_sub_ps(d, a), dy);
    __m256i rest;
    *whole = cut_values(_mm256_add_ps(a, down), c, BITS_OF_TWO, &rest);
    __m256 any = _mm256_or_ps(_mm256_or_ps(upper, down), _mm256_mul_ps(lower, dy));
    any = _mm256_cmp_ps(any, _mm256_setzero_ps(), _CMP_EQ_OQ);
    return _mm256_or_si256(rest, _mm256_castps_si256(any));
}

INLINE void mix_run(const Warp *warp, int begin, int end, uint8_t *out, const int channels,
                    const int is_bicubic) {
    for (int x = begin; x < end; x += 8) {
        const int32_t *at = warp->at + x;
        const __m256 dx = singles_of(warp->dx + x), dy = singles_of(warp->dy + x);
        __m256i least = _mm256_set1_epi32(-1), whole[3];
        if (is_bicubic) {
            __m256 sums[3], across[4], down[4];
            weigh_four(dx, across), weigh_four(dy, down);
            const uint32_t *from = warp->pixels;
            _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++, from += warp->stride) {
                __m256i taps[4];
                load_four(from, at, taps);
                _Pragma("GCC unroll 3") for (int c = 0; c < channels; c++) {
                    __m256 a = _mm256_mul_ps(channel_of(taps[0], c), across[0]);
                    __m256 b = _mm256_mul_ps(channel_of(taps[1], c), across[1]);
                    a = _mm256_add_ps(a, _mm256_mul_ps(channel_of(taps[2], c), across[2]));
                    b = _mm256_add_ps(b, _mm256_mul_ps(channel_of(taps[3], c), across[3]));
                    a = _mm256_mul_ps(_mm256_add_ps(a, b), down[k]);
                    sums[c] = k ? _mm256_add_ps(sums[c], a) : a;
                }
            }
            _Pragma("GCC unroll 3") for (int c = 0; c < channels; c++) {
                __m256i rest;
                whole[c] = cut_values(sums[c], c, BITS_OF_FOUR, &rest);
                least = _mm256_min_epu32(least, rest);
            }
        } else {
            __m256i taps[4];
            load_two(warp->pixels, at, taps);
            load_two(warp->pixels + warp->stride, at, taps + 2);
            _Pragma("GCC unroll 3") for (int c = 0; c < channels; c++)
                least = _mm256_min_epu32(least, mix_channel(taps, dx, dy, c, whole + c));
        }
        const int count = end - x < 8 ? end - x : 8;
        put_pixels(whole, out + x, warp->plane, count, channels);
        __m256i doubts = _mm256_cmpeq_epi32(_mm256_srli_epi32(least, 1), _mm256_setzero_si256());
        unsigned asked = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(doubts));
        asked &= (1u << count) - 1;
        if (LIKELY(!asked)) continue;
        if (is_bicubic) settle_four(warp, x, asked, out + x);
        else settle_two(warp, x, asked, out + x);
    }
}
#endif

/* Mix the pixels of a row, none of which is from outside. */
static void mix_row(const Warp *warp, int y, int begin, int end) {
    uint8_t *out = warp->image + (size_t)y * (size_t)warp->width;
#ifdef AVX2
    if (warp->channels == 1 && warp->is_bicubic) mix_run(warp, begin, end, out, 1, 1);
    else if (warp->channels == 1) mix_run(warp, begin, end, out, 1, 0);
    else if (warp->is_bicubic) mix_run(warp, begin, end, out, 3, 1);
    else mix_run(warp, begin, end, out, 3, 0);
#else
    if (warp->is_bicubic)
        for (int x = begin; x < end; x++) mix_exactly(warp, x, out + x, 1);
    else
        for (int x = begin; x < end; x++) mix_exactly(warp, x, out + x, 0);
#endif
}

static void mix_rows(const Warp *warp) {
    const int width = warp->width;
    share_columns(warp);
    for (int y = 0; y < warp->height; y++) {
        int inside = warp->is_perspective ? place_row(warp, y, 1, 0) : place_row(warp, y, 0, 0);
        int x = 0;
        while (inside) { /* a perspective may leave several runs of pixels */
            int begin = x;
            while (warp->at[begin] < 0) begin++;
            int end = begin + inside;
            if (warp->is_perspective && inside < width)
                for (end = begin + 1; end < width && warp->at[end] >= 0;) end++;
            fill_row(warp, y, x, begin);
            mix_row(warp, y, begin, end);
            inside -= end - begin;
            x = end;
        }
        fill_row(warp, y, x, width);
    }
}
