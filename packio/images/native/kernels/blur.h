/* Blurs: by boxes, with the pixels of Pillow, and by a Gaussian kernel, nearly as torchvision.

   Boxes work on strips, in which the 32 bytes of a row are blurred side by side, each with those
   above and below. To blur across, rows of the image become columns of a strip. */

enum { STRIP = 32, MOST_RADIUS = 1 << 20 };  /* pixels; Pillow's sums overflow above 1 << 23 */

/* A box with a border that counts less. Weights are in units of 2^-24. */
typedef struct {
    int radius;            /* pixels on each side that count in full */
    uint32_t inner, edge;  /* weight of a pixel that does, and of the first one on each side that
                              does not */
} Box;

/* The box of a radius. 0: there is none. Source: Pillow 13.0, BoxBlur.c,
   ImagingHorizontalBoxBlur. */
static int find_box(float radius, Box *box) {
    if (!(radius >= 0 && radius <= MOST_RADIUS)) return 0;
    box->radius = (int)radius;
    box->inner = (uint32_t)((float)(1 << 24) / (radius * 2 + 1));
    box->edge = ((1U << 24) - (uint32_t)(box->radius * 2 + 1) * box->inner) / 2;
    return 1;
}

/* The square root of a number from 1 on; the core is not linked with a library of functions. */
static double root(double x) {
    double found = x, next = (x + 1) / 2;
    while (next < found) {
        found = next;
        next = (found + x / found) / 2;
    }
    return found;
}

/* The radius of a box that, used three times, is nearly a Gaussian. Steps are rounded to floats.
   Source: Pillow 13.0, BoxBlur.c, _gaussian_blur_radius, after Gwosdek et al., "Theoretical
   foundations of Gaussian convolution by extended box filtering", 2011, equations 7, 11 and 14. */
static float box_radius(float sigma) {
    float variance = sigma * sigma / 3;
    float length = (float)root(12.0 * variance + 1.0);
    float whole = (float)(int)((length - 1.0) / 2.0);
    float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
    part /= 6 * (variance - (whole + 1) * (whole + 1));
    return whole + part;
}

INLINE int at_most(int value, int most) { return value < most ? value : most; }

/* A row of a strip: `sums`, of the row before, lose row `before` and gain row `end`. */
static void blur_strip_row(const uint8_t *restrict before, const uint8_t *restrict end,
                           const uint8_t *restrict behind, const Box *box,
                           uint32_t *restrict sums, uint8_t *restrict out) {
    const uint32_t inner = box->inner, edge = box->edge;
    for (int i = 0; i < STRIP; i++) {
        uint32_t sum = sums[i] + end[i] - before[i];
        uint32_t edges = (uint32_t)before[i] + behind[i];
        sums[i] = sum;
        out[i] = (uint8_t)((sum * inner + edges * edge + (1U << 23)) >> 24);
    }
}

/* Blur the columns of a strip. Beyond its ends are its first and its last row. */
static void blur_columns(const uint8_t *in, uint8_t *out, int length, const Box *box) {
    const int radius = box->radius, last = length - 1, near = at_most(radius, last);
    uint32_t sums[STRIP]; /* of the box around the row before the first one */
    for (int i = 0; i < STRIP; i++)
        sums[i] = in[i] * (uint32_t)(radius + 1) + in[last * STRIP + i] * (uint32_t)(radius - near);
    for (int y = 0; y < near; y++)
        for (int i = 0; i < STRIP; i++) sums[i] += in[y * STRIP + i];
    for (int y = 0; y < length; y++)
        blur_strip_row(in + (y > radius ? y - radius - 1 : 0) * STRIP,
                       in + at_most(y + radius, last) * STRIP,
                       in + at_most(y + radius + 1, last) * STRIP, box, sums, out + y * STRIP);
}

#ifdef AVX2
enum { SHORT_RADIUS = 63 };  /* the sums of larger boxes need more than 15 bits */

/* 32 bytes as words: of each half of a vector, the first eight are in `low`. */
typedef struct {
    __m256i low, high;
} Words;

INLINE Words words_of(const uint8_t *at) {
    const __m256i none = _mm256_setzero_si256();
    __m256i bytes = _mm256_loadu_si256((const void *)at);
    return (Words){_mm256_unpacklo_epi8(bytes, none), _mm256_unpackhi_epi8(bytes, none)};
}

/* (sums * inner + edges * edge + 2^23) >> 24: weights are split into 12 bits below and the others
   above, for products of words. `above` and `below` have pairs of inner and edge. */
INLINE __m256i weigh_words(__m256i sums, __m256i edges, __m256i above, __m256i below) {
    const __m256i half = _mm256_set1_epi32(1 << 11);
    __m256i pairs[2] = {_mm256_unpacklo_epi16(sums, edges), _mm256_unpackhi_epi16(sums, edges)};
    for (int i = 0; i < 2; i++) {
        __m256i high = _mm256_add_epi32(_mm256_madd_epi16(pairs[i], above), half);
        __m256i low = _mm256_srli_epi32(_mm256_madd_epi16(pairs[i], below), 12);
        pairs[i] = _mm256_srli_epi32(_mm256_add_epi32(high, low), 12);
    }
    return _mm256_packs_epi32(pairs[0], pairs[1]);
}

/* `blur_columns` for boxes whose sums have 15 bits. */
static void blur_short_columns(const uint8_t *in, uint8_t *out, int length, const Box *box) {
    const int radius = box->radius, last = length - 1, near = at_most(radius, last);
    const __m256i above = _mm256_set1_epi32((int)(box->inner >> 12 | box->edge >> 12 << 16));
    const __m256i below = _mm256_set1_epi32((int)((box->inner & 4095) | (box->edge & 4095) << 16));
    const Words first = words_of(in), final = words_of(in + last * STRIP);
    const __m256i ahead = _mm256_set1_epi16((short)(radius + 1));
    const __m256i beyond = _mm256_set1_epi16((short)(radius - near));
    Words sums = {_mm256_add_epi16(_mm256_mullo_epi16(first.low, ahead),
                                   _mm256_mullo_epi16(final.low, beyond)),
                  _mm256_add_epi16(_mm256_mullo_epi16(first.high, ahead),
                                   _mm256_mullo_epi16(final.high, beyond))};
    for (int y = 0; y < near; y++) {
        Words row = words_of(in + y * STRIP);
        sums.low = _mm256_add_epi16(sums.low, row.low);
        sums.high = _mm256_add_epi16(sums.high, row.high);
    }
    Words end = words_of(in + near * STRIP);
    for (int y = 0; y < length; y++) {
        Words before = words_of(in + (y > radius ? y - radius - 1 : 0) * STRIP);
        Words behind = words_of(in + at_most(y + radius + 1, last) * STRIP);
        sums.low = _mm256_add_epi16(sums.low, _mm256_sub_epi16(end.low, before.low));
        sums.high = _mm256_add_epi16(sums.high, _mm256_sub_epi16(end.high, before.high));
        __m256i low = weigh_words(sums.low, _mm256_add_epi16(before.low, behind.low), above, below);
        __m256i high =
            weigh_words(sums.high, _mm256_add_epi16(before.high, behind.high), above, below);
        _mm256_storeu_si256((void *)(out + y * STRIP), _mm256_packus_epi16(low, high));
        end = behind;
    }
}

/* Transpose 16 rows of 32 bytes. */
static void transpose_block(const uint8_t *in, size_t stride, uint8_t *out, size_t out_stride) {
    __m256i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = _mm256_loadu_si256((const void *)(in + (size_t)i * stride));
    /* Four times: the first half of the rows is interleaved with the second one. */
#define INTERLEAVE(FROM, TO)                                       \
    for (int i = 0; i < 8; i++) {                                  \
        TO[2 * i] = _mm256_unpacklo_epi8(FROM[i], FROM[i + 8]);     \
        TO[2 * i + 1] = _mm256_unpackhi_epi8(FROM[i], FROM[i + 8]); \
    }
    INTERLEAVE(a, b)
    INTERLEAVE(b, a)
    INTERLEAVE(a, b)
    INTERLEAVE(b, a)
#undef INTERLEAVE
    for (int i = 0; i < 16; i++) {
        uint8_t *to = out + (size_t)i * out_stride;
        _mm_storeu_si128((void *)to, _mm256_castsi256_si128(a[i]));
        _mm_storeu_si128((void *)(to + 16 * out_stride), _mm256_extracti128_si256(a[i], 1));
    }
}
#endif

/* Rows become columns. */
static void transpose_bytes(const uint8_t *in, size_t stride, int rows, int columns, uint8_t *out,
                      size_t out_stride) {
#ifdef AVX2
    if (rows >= 16 && columns >= 32) { /* the last blocks overlap others */
        for (int y = 0; y < rows; y += 16)
            for (int x = 0; x < columns; x += 32) {
                size_t row = (size_t)at_most(y, rows - 16);
                size_t column = (size_t)at_most(x, columns - 32);
                transpose_block(in + row * stride + column, stride, out + column * out_stride + row,
                                out_stride);
            }
        return;
    }
#endif
    for (int x = 0; x < columns; x++)
        for (int y = 0; y < rows; y++)
            out[(size_t)x * out_stride + (size_t)y] = in[(size_t)y * stride + (size_t)x];
}

/* Blur the columns of a strip three times; the result is in either of both. */
static const uint8_t *blur_strip(uint8_t *strip, uint8_t *other, int length, const Box *box) {
    for (int i = 0; i < 3; i++) {
#ifdef AVX2
        if (box->radius <= SHORT_RADIUS && box->edge <= 1 << 24)
            blur_short_columns(strip, other, length, box);
        else
#endif
            blur_columns(strip, other, length, box);
        uint8_t *made = other;
        other = strip;
        strip = made;
    }
    return strip;
}

INLINE void copy_columns(const uint8_t *in, size_t stride, uint8_t *out, size_t out_stride,
                         int rows, int columns) {
    for (int y = 0; y < rows; y++, in += stride, out += out_stride) {
        if (columns == STRIP) memcpy(out, in, STRIP);
        else memcpy(out, in, (size_t)columns);
    }
}

/* Blur each row, then each column, by a box, three times. A status. Source: Pillow 13.0, BoxBlur.c,
   ImagingBoxBlur: bytes are rounded each time. */
static int blur_boxes(Canvas *canvas, float radius) {
    Box box;
    if (!find_box(radius, &box)) return REQUEST;
    if (!(radius > 0)) return MADE;
    const size_t width = (size_t)canvas->width;
    const int longest = canvas->width > canvas->height ? canvas->width : canvas->height;
    uint8_t *strip = packio_reserve(&canvas->scratch->work, 2 * STRIP * (size_t)longest);
    if (!strip) return MEMORY;
    uint8_t *other = strip + STRIP * (size_t)longest;
    const int rows = canvas->channels * canvas->height;
    for (int y = 0; y < rows; y += STRIP) {
        uint8_t *at = canvas->image + (size_t)y * width;
        int count = at_most(STRIP, rows - y);
        transpose_bytes(at, width, count, canvas->width, strip, STRIP);
        const uint8_t *made = blur_strip(strip, other, canvas->width, &box);
        transpose_bytes(made, STRIP, canvas->width, count, at, width);
    }
    for (int c = 0; c < canvas->channels; c++)
        for (int x = 0; x < canvas->width; x += STRIP) {
            uint8_t *at = canvas->image + (size_t)c * canvas->plane + x;
            int count = at_most(STRIP, canvas->width - x);
            copy_columns(at, width, strip, STRIP, canvas->height, count);
            const uint8_t *made = blur_strip(strip, other, canvas->height, &box);
            copy_columns(made, STRIP, at, width, canvas->height, count);
        }
    return MADE;
}

/* A blur by a kernel goes across each row in integers, then down the columns in floats. Groups of
   columns are handled at once; within a group, floats are in the order that is the quickest. */
#ifdef AVX2
enum { LANES = 8, GROUP = 32 };
#else
enum { LANES = 4, GROUP = 16 };
#endif
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
enum { VECTORS = GROUP / LANES };

/* What sums across are computed of; both kinds of sums are exact. */
#ifdef AVX2
typedef uint8_t Cell;
#else
typedef double Cell;
typedef double Doubles __attribute__((vector_size(16), aligned(8), may_alias));
#endif

/* Two rows of floats that have the same weight, on both sides of the middle; or it twice. */
typedef struct {
    const float *a, *b;
    float weight;
} Tap;

/* What blurs planes by a kernel. */
typedef struct {
    int half_x, half_y;      /* pixels on each side of the middle */
    int first_x, first_y;    /* of these, the first ones whose weights are not 0 */
    uint32_t *weights;       /* across, of pixels up to the middle, and a 0; in units of 2^-24 */
    double *shares;          /* to compute weights */
    Tap *taps;               /* down */
    Cell *row;               /* and what is reflected beside it */
    float *blurred;          /* the last rows that are blurred across */
    size_t stride;           /* of these */
    int kept;                /* how many they are */
} Kernel;

/* e to the power of -x, for x >= 0; the core is not linked with a library of functions. */
static double falling_exponential(double x) {
    if (!(x < 200)) return 0;
    int whole = (int)x;
    double part = whole - x, term = 1, found = 1, power = 0.36787944117144233; /* 1 / e */
    for (int i = 1; i < 20; i++) found += term *= part / i;
    for (; whole; whole >>= 1, power *= power)
        if (whole & 1) found *= power;
    return found;
}

/* The shares of a Gaussian's pixels up to the middle, of which the last one is half the middle's.
   Source: torchvision 0.28, transforms/_functional_tensor.py, _get_gaussian_kernel1d. */
static void find_shares(int half, double sigma, double *shares) {
    double sum = 0;
    for (int i = 0; i <= half; i++) {
        double distance = (half - i) / sigma;
        shares[i] = falling_exponential(0.5 * distance * distance) / (i < half ? 1 : 2);
        sum += 2 * shares[i];
    }
    for (int i = 0; i <= half; i++) shares[i] /= sum;
}

static void find_weights(Kernel *kernel, double sigma_x, double sigma_y) {
    const int half_x = kernel->half_x, half_y = kernel->half_y;
    double sum = 0;
    uint32_t rounded = 0; /* sums are rounded, so that all weights make one, and errors no trend */
    find_shares(half_x, sigma_x, kernel->shares);
    for (int i = 0; i < half_x; i++) {
        sum += kernel->shares[i] * (1 << 24);
        kernel->weights[i] = (uint32_t)(sum + 0.5) - rounded;
        rounded += kernel->weights[i];
    }
    kernel->weights[half_x] = (1 << 23) - rounded;
    kernel->weights[half_x + 1] = 0;
    for (kernel->first_x = 0; !kernel->weights[kernel->first_x];) kernel->first_x++;
#ifdef AVX2
    for (uint32_t *weight = kernel->weights + kernel->first_x;
         weight <= kernel->weights + half_x; weight += 2) {
        uint32_t next = weight[1]; /* of two weights, the 12 bits below and the others above */
        weight[1] = (weight[0] & 4095) | (next & 4095) << 16;
        weight[0] = weight[0] >> 12 | next >> 12 << 16;
    }
#endif
    find_shares(half_y, sigma_y, kernel->shares);
    for (int i = 0; i <= half_y; i++)
        kernel->taps[i].weight = (float)(kernel->shares[i] / (1 << 23)); /* as blur_row's units */
    for (kernel->first_y = 0; kernel->shares[kernel->first_y] < 1e-10;) kernel->first_y++;
}

#ifdef AVX2
INLINE __m256i interleaved(const uint8_t *a, const uint8_t *b, int is_high) {
    __m256i from_a = _mm256_loadu_si256((const void *)a);
    __m256i from_b = _mm256_loadu_si256((const void *)b);
    return is_high ? _mm256_unpackhi_epi8(from_a, from_b) : _mm256_unpacklo_epi8(from_a, from_b);
}
#endif

/* Blur a group of columns across, from `in` on, where the kernel begins: to units of 2^-23. */
INLINE void blur_group(const Kernel *kernel, const Cell *in, float *out) {
    const Cell *a = in + kernel->first_x, *b = in + 2 * kernel->half_x - kernel->first_x;
    const uint32_t *weight = kernel->weights + kernel->first_x;
    const uint32_t *end = kernel->weights + kernel->half_x;
#ifdef AVX2
    const __m256i ones = _mm256_set1_epi8(1);
    __m256i above[VECTORS] = {0}, below[VECTORS] = {0};
    for (; weight <= end; weight += 2, a += 2, b -= 2) {
        const __m256i high = _mm256_set1_epi32((int)weight[0]);
        const __m256i low = _mm256_set1_epi32((int)weight[1]);
        for (int k = 0; k < VECTORS; k += 2) {
            __m256i near = _mm256_maddubs_epi16(interleaved(a, b, k), ones);
            __m256i next = _mm256_maddubs_epi16(interleaved(a + 1, b - 1, k), ones);
            __m256i pairs = _mm256_unpacklo_epi16(near, next);
            above[k] = _mm256_add_epi32(above[k], _mm256_madd_epi16(pairs, high));
            below[k] = _mm256_add_epi32(below[k], _mm256_madd_epi16(pairs, low));
            pairs = _mm256_unpackhi_epi16(near, next);
            above[k + 1] = _mm256_add_epi32(above[k + 1], _mm256_madd_epi16(pairs, high));
            below[k + 1] = _mm256_add_epi32(below[k + 1], _mm256_madd_epi16(pairs, low));
        }
    }
    for (int k = 0; k < VECTORS; k++) {
        __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(above[k], 12), below[k]);
        _mm256_storeu_ps(out + k * LANES, _mm256_cvtepi32_ps(_mm256_srli_epi32(sum, 1)));
    }
#else
    double values[GROUP];
    Doubles sums[GROUP / 2] = {0};
    for (; weight <= end; weight++, a++, b--) {
        const Doubles *from_a = (const void *)a, *from_b = (const void *)b;
        for (int k = 0; k < GROUP / 2; k++) sums[k] += (from_a[k] + from_b[k]) * *weight;
    }
    memcpy(values, sums, sizeof values);
    for (int i = 0; i < GROUP; i++) out[i] = (float)(int)(values[i] / 2);
#endif
}

/* Blur a row across, reflected at its ends. */
static void blur_row(const Kernel *kernel, const uint8_t *in, int width, float *out) {
    Cell *row = kernel->row + kernel->half_x;
    for (int x = 0; x < width; x++) row[x] = in[x];
    for (int i = 1; i <= kernel->half_x; i++) {
        row[-i] = in[i];
        row[width - 1 + i] = in[width - 1 - i];
    }
    for (int x = 0; x < width; x += GROUP) blur_group(kernel, kernel->row + x, out + x);
}

/* Blur a row down: columns of rows of taps. Half a gray level goes to the even one. */
static void blur_down(const Kernel *kernel, uint8_t *out, int width) {
    const Tap *first = kernel->taps + kernel->first_y, *last = kernel->taps + kernel->half_y;
    for (int x = 0; x < width; x += GROUP) {
        const int count = at_most(GROUP, width - x);
        uint8_t short_group[GROUP], *bytes = count == GROUP ? out + x : short_group;
        Floats sums[VECTORS] = {0};
        for (const Tap *tap = first; tap <= last; tap++) { /* small ones first, for precision */
            const Floats *a = (const void *)(tap->a + x), *b = (const void *)(tap->b + x);
            __asm__("" : "+r"(a), "+r"(b)); /* one register each, not a sum for each vector: 10 % */
            for (int k = 0; k < VECTORS; k++) sums[k] += (a[k] + b[k]) * tap->weight;
        }
#ifdef AVX2
        __m256i a = _mm256_packs_epi32(_mm256_cvtps_epi32(sums[0]), _mm256_cvtps_epi32(sums[1]));
        __m256i b = _mm256_packs_epi32(_mm256_cvtps_epi32(sums[2]), _mm256_cvtps_epi32(sums[3]));
        _mm256_storeu_si256((void *)bytes, _mm256_packus_epi16(a, b));
#else
        const float whole = 1 << 23; /* added, it leaves no bits behind the point */
        float values[GROUP];
        memcpy(values, sums, sizeof values);
        for (int i = 0; i < GROUP; i++) bytes[i] = (uint8_t)(int)(values[i] + whole - whole);
#endif
        if (bytes == short_group) memcpy(out + x, bytes, (size_t)count);
    }
}

/* A row of a kernel, reflected at the borders. `from` is the row in the first slot. */
INLINE const float *kept_row(const Kernel *kernel, int y, int last, int from) {
    y = y < 0 ? -y : y > last ? 2 * last - y : y;
    int slot = y - from < kernel->kept ? y - from : y - from - kernel->kept;
    return kernel->blurred + (size_t)slot * kernel->stride;
}

static void blur_plane(const Kernel *kernel, uint8_t *plane, int height, int width) {
    const int half = kernel->half_y, last = height - 1;
    float *next_row = kernel->blurred;
    for (int y = 0, next = 0, from = 0; y < height; y++, plane += width) {
        for (; next <= at_most(y + half, last); next++) {
            blur_row(kernel, plane + (ptrdiff_t)(next - y) * width, width, next_row);
            next_row += kernel->stride;
            if ((next + 1) % kernel->kept == 0) next_row = kernel->blurred;
        }
        if (y - half >= from + kernel->kept) from += kernel->kept;
        for (int i = kernel->first_y; i <= half; i++) {
            kernel->taps[i].a = kept_row(kernel, y - half + i, last, from);
            kernel->taps[i].b = kept_row(kernel, y + half - i, last, from);
        }
        blur_down(kernel, plane, width);
    }
}

/* The side of a kernel; 0: none that is odd and, reflected, within the image. */
static int kernel_side(double size, int side) {
    if (!(size >= 1 && size < 2 * side)) return 0;
    return (int)size == size && (int)size % 2 ? (int)size : 0;
}

INLINE int is_sigma(double value) { return value >= 1e-30 && value <= 1e30; }

/* Blur by the outer product of two kernels. A status. Beyond its borders the image is reflected.
   Source: torchvision 0.28, transforms/_functional_tensor.py, gaussian_blur. */
static int blur_kernel(Canvas *canvas, const double *values) {
    const int width = kernel_side(values[0], canvas->width);
    const int height = kernel_side(values[1], canvas->height);
    if (!width || !height || !is_sigma(values[2]) || !is_sigma(values[3])) return REQUEST;
    const int most = width > height ? width : height;
    Kernel kernel = {.half_x = width / 2, .half_y = height / 2,
                     .stride = ((size_t)canvas->width + GROUP - 1) / GROUP * GROUP,
                     .kept = at_most(height, canvas->height)};
    const size_t floats = (size_t)kernel.kept * kernel.stride * sizeof(float);
    const size_t cells = ((kernel.stride + (size_t)width) * sizeof(Cell) + 63) / 64 * 64;
    const size_t taps = (size_t)(kernel.half_y + 1) * sizeof(Tap);
    const size_t shares = (size_t)most * sizeof(double), weights = (size_t)(width + 1) * 4;
    uint8_t *memory =
        packio_reserve(&canvas->scratch->work, floats + cells + taps + shares + weights);
    if (!memory) return MEMORY;
    kernel.blurred = (void *)memory;
    kernel.row = (void *)(memory += floats);
    memset(kernel.row, 0, cells); /* what is read behind it shall not be slow numbers */
    kernel.taps = (void *)(memory += cells);
    kernel.shares = (void *)(memory += taps);
    kernel.weights = (void *)(memory + shares);
    find_weights(&kernel, values[2], values[3]);
    for (int c = 0; c < canvas->channels; c++)
        blur_plane(&kernel, canvas->image + (size_t)c * canvas->plane, canvas->height,
                   canvas->width);
    return MADE;
}

/* A status. */
static int blur(Canvas *canvas, const Operation *operation) {
    const double *values = operation->values;
    if (operation->operator == GAUSSIAN_BLUR) {
        if (!(values[0] >= 0 && values[0] <= MOST_RADIUS)) return REQUEST;
        return blur_boxes(canvas, box_radius((float)values[0]));
    }
    if (operation->operator == KERNEL_BLUR) return blur_kernel(canvas, values);
    return REQUEST;
}
