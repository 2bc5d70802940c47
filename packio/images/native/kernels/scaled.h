/* The inverse DCT of an image that is decoded smaller: fewer samples of a block, each the mean of
   those that the whole transform would give.

   A coefficient's wave has the same mean everywhere but for a factor, so that the factors of
   neighbours are the same but for their signs. Columns and rows may have different numbers of
   samples: chroma has as many as luma, and is not upsampled. Source: as idct.h; the sums of the
   cosines sqrt(2) * cos((2 * x + 1) * k * pi / 16) over two and four samples x. */

#ifdef AVX2

/* Means of two numbers of each column. */
INLINE void halve(__m256i *r, const int bits) {
    const Wide half = {_mm256_set1_epi32(1 << (bits - 1)), _mm256_set1_epi32(1 << (bits - 1))};
    const __m256i even_of = pair_of(FIXED(0.923879533), -FIXED(0.382683432));
    const __m256i outer_a = pair_of(FIXED(1.281457724), FIXED(0.449988111));
    const __m256i outer_b = pair_of(-FIXED(0.300672443), -FIXED(0.254897789));
    const __m256i inner_a = pair_of(FIXED(0.530797169), -FIXED(1.086367402));
    const __m256i inner_b = pair_of(FIXED(0.725887490), -FIXED(0.105582121));
    Wide middle = plus(shifted_up(r[0]), half), even = products(r[2], r[6], even_of);
    Wide outer = plus(products(r[1], r[3], outer_a), products(r[5], r[7], outer_b));
    Wide inner = plus(products(r[1], r[3], inner_a), products(r[5], r[7], inner_b));
    Wide sum = plus(middle, even), rest = minus(middle, even);
    r[0] = rounded(plus(sum, outer), bits), r[3] = rounded(minus(sum, outer), bits);
    r[1] = rounded(plus(rest, inner), bits), r[2] = rounded(minus(rest, inner), bits);
}

/* Means of four numbers of each column. */
INLINE void quarter(__m256i *r, const int bits) {
    const Wide half = {_mm256_set1_epi32(1 << (bits - 1)), _mm256_set1_epi32(1 << (bits - 1))};
    const __m256i a = pair_of(FIXED(0.906127446), -FIXED(0.318189645));
    const __m256i b = pair_of(FIXED(0.212607523), -FIXED(0.180239956));
    Wide middle = plus(shifted_up(r[0]), half);
    Wide odd = plus(products(r[1], r[3], a), products(r[5], r[7], b));
    r[0] = rounded(plus(middle, odd), bits), r[1] = rounded(minus(middle, odd), bits);
}

/* One pass: `count` rows of eight numbers, of eight rows. */
INLINE void reduce(__m256i *r, int count, const int bits) {
    const Wide half = {_mm256_set1_epi32(1 << (bits - 1)), _mm256_set1_epi32(1 << (bits - 1))};
    if (count == 8) transform(r, bits);
    else if (count == 4) halve(r, bits);
    else if (count == 2) quarter(r, bits);
    else r[0] = rounded(plus(shifted_up(r[0]), half), bits);
}

INLINE void put_row(uint8_t *to, const uint8_t *samples, int count) {
    if (count == 8) memcpy(to, samples, 8);
    else if (count == 4) memcpy(to, samples, 4);
    else if (count == 2) memcpy(to, samples, 2);
    else *to = *samples;
}

/* As put_two, for blocks of the same size. */
static __attribute__((noinline)) int put_two_scaled(const Waiting *x, const Waiting *y) {
    __m256i r[8];
    int large = dequantise(x, y, r, ANY);
    reduce(r, x->sort->high, 11);
    transpose(r);
    reduce(r, x->sort->broad, 18);
    transpose(r);
    const __m256i middle = _mm256_set1_epi8(-128);
    for (int i = 0; i < x->sort->high; i++) {
        uint8_t samples[32];
        __m256i row = _mm256_add_epi8(_mm256_packs_epi16(r[i], r[i]), middle);
        _mm256_storeu_si256((void *)samples, row);
        put_row(x->to + (size_t)i * x->sort->stride, samples, x->sort->broad);
        put_row(y->to + (size_t)i * y->sort->stride, samples + 16, x->sort->broad);
    }
    return large;
}

#else

/* One pass over eight columns of eight numbers; the `count` rows that it gives become columns. */
static void reduce(const int16_t *in, int16_t *out, int count, int bits) {
    const int32_t half = 1 << (bits - 1);
    if (count == 8) {
        transform(in, out, bits);
        return;
    }
    for (int i = 0; i < 8; i++) {
        const int16_t *r = in + i;
        int32_t middle = r[0] * 8192 + half, sums[4] = {middle};
        if (count == 4) {
            int32_t even = r[16] * FIXED(0.923879533) - r[48] * FIXED(0.382683432);
            int32_t outer = r[8] * FIXED(1.281457724) + r[24] * FIXED(0.449988111) -
                            r[40] * FIXED(0.300672443) - r[56] * FIXED(0.254897789);
            int32_t inner = r[8] * FIXED(0.530797169) - r[24] * FIXED(1.086367402) +
                            r[40] * FIXED(0.725887490) - r[56] * FIXED(0.105582121);
            sums[0] = middle + even + outer, sums[3] = middle + even - outer;
            sums[1] = middle - even + inner, sums[2] = middle - even - inner;
        } else if (count == 2) {
            int32_t odd = r[8] * FIXED(0.906127446) - r[24] * FIXED(0.318189645) +
                          r[40] * FIXED(0.212607523) - r[56] * FIXED(0.180239956);
            sums[0] = middle + odd, sums[1] = middle - odd;
        }
        for (int k = 0; k < count; k++)
            out[8 * i + k] = (int16_t)saturated(sums[k] >> bits, 32767);
    }
}

static int put_one_scaled(const Waiting *x) {
    int16_t a[64], b[64] = {0};
    int large = dequantise(x, a);
    reduce(a, b, x->sort->high, 11);
    reduce(b, a, x->sort->broad, 18);
    for (int i = 0; i < x->sort->high; i++)
        for (int k = 0; k < x->sort->broad; k++)
            x->to[(size_t)i * x->sort->stride + (size_t)k] = (uint8_t)(saturated(a[8 * i + k], 127) + 128);
    return large;
}

INLINE int put_two_scaled(const Waiting *x, const Waiting *y) {
    int large = put_one_scaled(x);
    return x->block == y->block ? large : put_one_scaled(y) | large;
}

#endif
