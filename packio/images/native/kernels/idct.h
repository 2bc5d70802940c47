/* The inverse DCT: coefficients to samples, as libjpeg's "islow" computes them.

   libjpeg-turbo's vector code, which this follows bit by bit, adds in 16 bits where a damaged block
   overflows and the portable code of libjpeg would not.

   Source: C. Loeffler, A. Ligtenberg, G. Moschytz, "Practical Fast 1-D DCT Algorithms with 11
   Multiplications", ICASSP 1989; 13 bits behind the point, 2 of them kept between the passes. */

#define FIXED(x) ((int)((x) * 8192 + 0.5))
enum { MOST_DC = 2047, MOST_IN_ROW = 8191 };  /* as coded, and times the quantiser */

/* What blocks of a component share. */
typedef struct {
    const uint16_t *quant;
    size_t stride;
    int high, broad; /* samples to put, 8 and 8 unless the image is decoded smaller */
} Sort;

/* A block that waits for another one of its kind, since two are transformed at once. */
typedef struct {
    int16_t *block;
    uint8_t *to;
    const Sort *sort;
} Waiting;

#ifdef AVX2

/* Row of a block -> which eight coefficients in code order it has values of. */
static const uint8_t PARTS[8] = {0x0B, 0x2F, 0x2F, 0x6E, 0x76, 0xF4, 0xF4, 0xD0};
static const uint8_t PARTS_OF_FEW[4] = {0x01, 0x03, 0x07, 0x0E};
static __m128i ROW_OF_CODE[8][8]; /* bytes of row i that come from eight coefficients j */
/* -1 for coefficients, in code order, that are not in the first four rows and columns. */
static int16_t NOT_OF_FEW[32] __attribute__((aligned(32)));

static __attribute__((constructor)) void find_rows(void) {
    int8_t bytes[8][8][16];
    memset(bytes, -1, sizeof bytes);
    for (int k = 0; k < 64; k++) {
        int row = packio_zigzag[k] >> 3, column = packio_zigzag[k] & 7;
        bytes[row][k >> 3][2 * column] = (int8_t)(2 * (k & 7));
        bytes[row][k >> 3][2 * column + 1] = (int8_t)(2 * (k & 7) + 1);
        if (k < 32) NOT_OF_FEW[k] = row < 4 && column < 4 ? 0 : -1;
    }
    memcpy(ROW_OF_CODE, bytes, sizeof bytes);
}

INLINE __m256i pair_of(int a, int b) {
    return _mm256_set1_epi32((int)((uint32_t)(uint16_t)a | (uint32_t)b << 16));
}

INLINE __m256i two(const int16_t *a, const int16_t *b) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_load_si128((const void *)a)),
                                   _mm_load_si128((const void *)b), 1);
}

typedef struct {
    __m256i low, high; /* four numbers of 32 bits of each block, and four more */
} Wide;

INLINE Wide products(__m256i a, __m256i b, __m256i factors) {
    return (Wide){_mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), factors),
                  _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), factors)};
}

INLINE Wide plus(Wide a, Wide b) {
    return (Wide){_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}

INLINE Wide minus(Wide a, Wide b) {
    return (Wide){_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}

INLINE Wide shifted_up(__m256i a) { /* by 13 bits */
    __m256i zero = _mm256_setzero_si256();
    return (Wide){_mm256_srai_epi32(_mm256_unpacklo_epi16(zero, a), 3),
                  _mm256_srai_epi32(_mm256_unpackhi_epi16(zero, a), 3)};
}

INLINE __m256i rounded(Wide a, const int bits) {
    return _mm256_packs_epi32(_mm256_srai_epi32(a.low, bits), _mm256_srai_epi32(a.high, bits));
}

/* One pass: eight rows of eight numbers of four, the others being zeros, for each of two blocks. The
   sums are those of `transform`, without what is 0. */
INLINE void transform_few(__m256i *r, const int bits) {
    const Wide half = {_mm256_set1_epi32(1 << (bits - 1)), _mm256_set1_epi32(1 << (bits - 1))};
    const int a = FIXED(0.541196100), b = FIXED(1.175875602);
    const int c = FIXED(0.899976223), d = FIXED(2.562915447);
    const int e = a + FIXED(0.765366865), one = 8192;
    const int to3 = b - FIXED(1.961570560), to4 = b - FIXED(0.390180644);
    Wide sum03 = plus(products(r[0], r[2], pair_of(one, e)), half);
    Wide rest03 = plus(products(r[0], r[2], pair_of(one, -e)), half);
    Wide sum12 = plus(products(r[0], r[2], pair_of(one, a)), half);
    Wide rest12 = plus(products(r[0], r[2], pair_of(one, -a)), half);
    Wide odd0 = products(r[3], r[1], pair_of(to3, b - c));
    Wide odd1 = products(r[3], r[1], pair_of(b - d, to4));
    Wide odd2 = products(r[3], r[1], pair_of(FIXED(3.072711026) - d + to3, b));
    Wide odd3 = products(r[3], r[1], pair_of(b, FIXED(1.501321110) - c + to4));
    r[0] = rounded(plus(sum03, odd3), bits), r[7] = rounded(minus(sum03, odd3), bits);
    r[3] = rounded(plus(rest03, odd0), bits), r[4] = rounded(minus(rest03, odd0), bits);
    r[1] = rounded(plus(sum12, odd2), bits), r[6] = rounded(minus(sum12, odd2), bits);
    r[2] = rounded(plus(rest12, odd1), bits), r[5] = rounded(minus(rest12, odd1), bits);
}

/* One pass: eight rows of eight numbers, for each of two blocks. */
INLINE void transform(__m256i *r, const int bits) {
    const Wide half = {_mm256_set1_epi32(1 << (bits - 1)), _mm256_set1_epi32(1 << (bits - 1))};
    const int a = FIXED(0.541196100), b = FIXED(1.175875602);
    Wide even2 = products(r[2], r[6], pair_of(a, a - FIXED(1.847759065)));
    Wide even3 = products(r[2], r[6], pair_of(a + FIXED(0.765366865), a));
    Wide even0 = plus(shifted_up(_mm256_add_epi16(r[0], r[4])), half);
    Wide even1 = plus(shifted_up(_mm256_sub_epi16(r[0], r[4])), half);
    __m256i sum3 = _mm256_add_epi16(r[7], r[3]), sum4 = _mm256_add_epi16(r[5], r[1]);
    Wide odd3 = products(sum3, sum4, pair_of(b - FIXED(1.961570560), b));
    Wide odd4 = products(sum3, sum4, pair_of(b, b - FIXED(0.390180644)));
    const int c = FIXED(0.899976223), d = FIXED(2.562915447);
    Wide odd0 = plus(products(r[7], r[1], pair_of(FIXED(0.298631336) - c, -c)), odd3);
    Wide odd1 = plus(products(r[5], r[3], pair_of(FIXED(2.053119869) - d, -d)), odd4);
    Wide odd2 = plus(products(r[5], r[3], pair_of(-d, FIXED(3.072711026) - d)), odd3);
    odd3 = plus(products(r[7], r[1], pair_of(-c, FIXED(1.501321110) - c)), odd4);
    Wide sum = plus(even0, even3), rest = minus(even0, even3);
    r[0] = rounded(plus(sum, odd3), bits), r[7] = rounded(minus(sum, odd3), bits);
    r[3] = rounded(plus(rest, odd0), bits), r[4] = rounded(minus(rest, odd0), bits);
    sum = plus(even1, even2), rest = minus(even1, even2);
    r[1] = rounded(plus(sum, odd2), bits), r[6] = rounded(minus(sum, odd2), bits);
    r[2] = rounded(plus(rest, odd1), bits), r[5] = rounded(minus(rest, odd1), bits);
}

INLINE void transpose(__m256i *r) {
    __m256i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_unpacklo_epi32(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm256_unpackhi_epi32(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm256_unpacklo_epi32(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm256_unpackhi_epi32(a[4 * i + 1], a[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        r[2 * i] = _mm256_unpacklo_epi64(b[i], b[i + 4]);
        r[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 4]);
    }
}

/* The first four columns of eight rows become four rows. */
INLINE void transpose_few(__m256i *r) {
    __m256i a[4], b[4];
    for (int i = 0; i < 4; i++) a[i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    for (int i = 0; i < 2; i++) {
        b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        r[2 * i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
        r[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
    }
}

/* Rows of the coefficients of two blocks. Whether the blocks are bad: libjpeg-turbo takes a shorter
   way for blocks of one row, in which such numbers come out otherwise. */
INLINE int dequantise(const Waiting *x, const Waiting *y, __m256i *r, const enum Kind kind) {
    __m256i code[8];
    const int parts = kind == ANY ? 8 : 4, rows = kind == FEW ? 4 : kind == HALF ? 7 : 8;
    for (int j = 0; j < parts; j++) code[j] = two(x->block + 8 * j, y->block + 8 * j);
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {
        __m256i row = _mm256_setzero_si256();
        if (i >= rows) {
            r[i] = row;
            continue;
        }
        const int has = kind == FEW ? PARTS_OF_FEW[i & 3] : PARTS[i];
        _Pragma("GCC unroll 8") for (int j = 0; j < parts; j++) if (has >> j & 1) {
            __m256i bytes = _mm256_broadcastsi128_si256(ROW_OF_CODE[i][j]);
            row = _mm256_or_si256(row, _mm256_shuffle_epi8(code[j], bytes));
        }
        __m256i quant = two((const int16_t *)x->sort->quant + 8 * i, (const int16_t *)y->sort->quant + 8 * i);
        r[i] = _mm256_mullo_epi16(row, quant);
    }
    __m256i large = _mm256_add_epi16(r[0], _mm256_set1_epi16(MOST_IN_ROW + 1));
    large = _mm256_srli_epi16(large, 14);
    return !_mm256_testz_si256(large, large);
}

/* Put the samples of two blocks of a kind. Whether the blocks are bad. */
INLINE int put_two_of(const Waiting *x, const Waiting *y, const enum Kind kind) {
    __m256i r[8];
    int large = dequantise(x, y, r, kind);
    if (kind == FEW) {
        transform_few(r, 11);
        transpose_few(r);
        transform_few(r, 18);
    } else {
        transform(r, 11);
        transpose(r);
        transform(r, 18);
    }
    transpose(r);
    const __m256i middle = _mm256_set1_epi8(-128);
    for (int i = 0; i < 8; i += 2) {
        __m256i samples = _mm256_add_epi8(_mm256_packs_epi16(r[i], r[i + 1]), middle);
        __m128i a = _mm256_castsi256_si128(samples), b = _mm256_extracti128_si256(samples, 1);
        _mm_storel_epi64((void *)(x->to + (size_t)i * x->sort->stride), a);
        _mm_storeh_pd((void *)(x->to + (size_t)(i + 1) * x->sort->stride), _mm_castsi128_pd(a));
        _mm_storel_epi64((void *)(y->to + (size_t)i * y->sort->stride), b);
        _mm_storeh_pd((void *)(y->to + (size_t)(i + 1) * y->sort->stride), _mm_castsi128_pd(b));
    }
    return large;
}

static __attribute__((noinline)) int put_few(const Waiting *x, const Waiting *y) {
    return put_two_of(x, y, FEW);
}
static __attribute__((noinline)) int put_half(const Waiting *x, const Waiting *y) {
    return put_two_of(x, y, HALF);
}
static __attribute__((noinline)) int put_two(const Waiting *x, const Waiting *y) {
    return put_two_of(x, y, ANY);
}

/* The kind of a block, without a branch: each kind is part of the next. */
INLINE int kind_of(const int16_t *block) {
    const __m256i *v = (const void *)block;
    const __m256i not_dc = _mm256_set_epi16(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                            -1, 0);
    const __m256i *many = (const void *)NOT_OF_FEW;
    __m256i behind = _mm256_or_si256(v[2], v[3]), above_dc = _mm256_and_si256(v[0], not_dc);
    __m256i more = _mm256_or_si256(_mm256_and_si256(v[0], many[0]),
                                   _mm256_and_si256(v[1], many[1]));
    above_dc = _mm256_or_si256(_mm256_or_si256(above_dc, v[1]), behind);
    more = _mm256_or_si256(more, behind);
    return ANY - _mm256_testz_si256(above_dc, above_dc) - _mm256_testz_si256(more, more) -
           _mm256_testz_si256(behind, behind);
}

INLINE void clear(int16_t *block) {
    for (int i = 0; i < 4; i++) _mm256_store_si256((__m256i *)block + i, _mm256_setzero_si256());
}

#else

INLINE int saturated(int value, int limit) {
    return value < -limit - 1 ? -limit - 1 : value > limit ? limit : value;
}

#define SCALED(x) ((uint32_t)FIXED(x))

/* One pass over eight columns of eight numbers. */
static void transform(const int16_t *in, int16_t *out, int bits) {
    const uint32_t half = 1u << (bits - 1);
    for (int i = 0; i < 8; i++) {
        const int16_t *r = in + i;
        uint32_t a = (uint32_t)r[16] + (uint32_t)r[48], b;
        uint32_t even2 = a * SCALED(0.541196100) - (uint32_t)r[48] * SCALED(1.847759065);
        uint32_t even3 = a * SCALED(0.541196100) + (uint32_t)r[16] * SCALED(0.765366865);
        uint32_t even0 = ((uint32_t)(int16_t)(r[0] + r[32]) << 13) + half;
        uint32_t even1 = ((uint32_t)(int16_t)(r[0] - r[32]) << 13) + half;
        uint32_t sum3 = (uint32_t)(int16_t)(r[56] + r[24]);
        uint32_t sum4 = (uint32_t)(int16_t)(r[40] + r[8]);
        b = (sum3 + sum4) * SCALED(1.175875602);
        uint32_t odd3 = b - sum3 * SCALED(1.961570560), odd4 = b - sum4 * SCALED(0.390180644);
        a = ((uint32_t)r[56] + (uint32_t)r[8]) * SCALED(0.899976223);
        b = ((uint32_t)r[40] + (uint32_t)r[24]) * SCALED(2.562915447);
        uint32_t odd0 = (uint32_t)r[56] * SCALED(0.298631336) - a + odd3;
        uint32_t odd1 = (uint32_t)r[40] * SCALED(2.053119869) - b + odd4;
        uint32_t odd2 = (uint32_t)r[24] * SCALED(3.072711026) - b + odd3;
        odd3 = (uint32_t)r[8] * SCALED(1.501321110) - a + odd4;
        uint32_t sums[8] = {
            even0 + even3 + odd3, even1 + even2 + odd2, even1 - even2 + odd1, even0 - even3 + odd0,
            even0 - even3 - odd0, even1 - even2 - odd1, even1 + even2 - odd2, even0 + even3 - odd3,
        };
        for (int k = 0; k < 8; k++)
            out[8 * i + k] = (int16_t)saturated((int32_t)sums[k] >> bits, 32767); /* transposed */
    }
}

/* Rows of a block's coefficients. Whether the block is bad. */
static int dequantise(const Waiting *x, int16_t *a) {
    for (int k = 0; k < 64; k++)
        a[packio_zigzag[k]] = (int16_t)((uint32_t)x->block[k] * x->sort->quant[packio_zigzag[k]]);
    int large = 0;
    for (int i = 0; i < 8; i++) large |= a[i] > MOST_IN_ROW || a[i] < -MOST_IN_ROW - 1;
    return large;
}

static int put_one(const Waiting *x) {
    int16_t a[64], b[64];
    int large = dequantise(x, a);
    transform(a, b, 11);
    transform(b, a, 18);
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 8; k++)
            x->to[(size_t)i * x->sort->stride + (size_t)k] = (uint8_t)(saturated(a[8 * i + k], 127) + 128);
    return large;
}

INLINE int put_two(const Waiting *x, const Waiting *y) {
    int large = put_one(x);
    return x->block == y->block ? large : put_one(y) | large;
}

#define put_few put_two
#define put_half put_two

INLINE int kind_of(const int16_t *block) {
    int any = 0;
    for (int i = 1; i < 64; i++) any |= block[i];
    return any ? ANY : FLAT;
}

INLINE void clear(int16_t *block) { memset(block, 0, 64 * sizeof *block); }

#endif
