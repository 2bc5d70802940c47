/* What warps have in common: the channels of a pixel side by side, and where the pixels of a row
   come from. */

/* Sixteen columns of a row that are scaled: from where on in a row they come, and which of up to 32
   bytes from there on they are; none of them where they lie farther apart. */
typedef struct {
    uint8_t low[16], high[16];
    int32_t from, is_near;
} Picks;

enum { BORDER = 2 };  /* pixels on a side that repeat the image's border */
enum { AHEAD = 64, MORE = 16 };  /* bytes before the first pixel, columns behind the last one, that
                                    vectors may reach */

typedef struct {
    const double *values;
    int channels, height, width;
    int is_perspective, is_bicubic;
    uint8_t fill[3];
    size_t plane;
    uint8_t *image;            /* the result, in planes */
    uint32_t *pixels;          /* the image, with all channels of a pixel side by side, or */
    const uint8_t *bytes;      /* a copy of a gray one */
    int stride;                /* pixels from row to row */
    int32_t *at;               /* of a row: where each pixel comes from; -1: from outside */
    double *dx, *dy;           /* how far on from there, 0..1 */
    Picks *picks;              /* of 16 columns */
    double *x, *y, *z;         /* of a column: its share of the numerators and the denominator */
} Warp;

/* Lay the channels of each pixel side by side; a gray image gets three. `border` pixels around the
   image repeat it. */
static void lay_pixels(const Canvas *canvas, uint32_t *restrict pixels, int stride, int border) {
    const int height = canvas->height, width = canvas->width;
    const size_t other = canvas->channels == 3 ? canvas->plane : 0;
    for (int y = 0; y < height; y++) {
        const uint8_t *restrict in = canvas->image + (size_t)y * (size_t)width;
        uint32_t *restrict row = pixels + (size_t)(y + border) * (size_t)stride + border;
        for (int x = 0; x < width; x++)
            row[x] = in[x] | (uint32_t)in[x + other] << 8 | (uint32_t)in[x + 2 * other] << 16;
        for (int k = 1; k <= border; k++) row[-k] = row[0], row[width - 1 + k] = row[width - 1];
    }
    const size_t bytes = (size_t)stride * sizeof *pixels;
    const uint32_t *first = pixels + (size_t)border * (size_t)stride;
    const uint32_t *last = pixels + (size_t)(border + height - 1) * (size_t)stride;
    for (int k = 0; k < border; k++) {
        memcpy(pixels + (size_t)k * (size_t)stride, first, bytes);
        memcpy(pixels + (size_t)(border + height + k) * (size_t)stride, last, bytes);
    }
}

/* Give columns of a row the fill colour. */
static void fill_row(const Warp *warp, int y, int begin, int end) {
    if (begin >= end) return;
    for (int c = 0; c < warp->channels; c++)
        memset(warp->image + (size_t)c * warp->plane + (size_t)y * (size_t)warp->width + begin,
               warp->fill[c], (size_t)(end - begin));
}

/* Memory for the pixels of the image, and for what is known of a row. A status. */
static int reserve_warp(Canvas *canvas, Warp *warp, int border) {
    const int longer = warp->width > warp->height ? warp->width : warp->height;
    const size_t columns = (size_t)longer + MORE;
    const size_t side = (size_t)warp->width + 2 * (size_t)border;
    const size_t pixels = side * ((size_t)warp->height + 2 * (size_t)border);
    const size_t tables = columns * (5 * sizeof(double) + sizeof(int32_t)) +
                          (columns / 16 + 1) * sizeof(Picks);
    uint8_t *memory = packio_reserve(&canvas->scratch->work,
                                     tables + AHEAD + pixels * sizeof(uint32_t) + BEYOND);
    if (!memory) return MEMORY;
    double *numbers = (double *)memory;
    warp->dx = numbers, warp->dy = numbers + columns;
    warp->x = numbers + 2 * columns, warp->y = numbers + 3 * columns;
    warp->z = numbers + 4 * columns;
    warp->at = (int32_t *)(numbers + 5 * columns);
    warp->picks = (Picks *)(warp->at + columns);
    for (size_t x = (size_t)warp->width; x < columns; x++) {
        warp->at[x] = 0;
        warp->dx[x] = warp->dy[x] = 0.0;
    }
    warp->stride = (int)side;
    warp->pixels = (uint32_t *)(memory + tables + AHEAD);
    return MADE;
}

/* What a column adds to the place of its pixels. */
static void share_columns(const Warp *warp) {
    const double *a = warp->values;
    for (int x = 0; x < warp->width; x++) {
        warp->x[x] = a[0] * (x + 0.5);
        warp->y[x] = a[3] * (x + 0.5);
        if (warp->is_perspective) warp->z[x] = a[6] * (x + 0.5);
    }
}

/* Find where the pixels of a row come from. For mixing, that is the first pixel that each mixes,
   and how far right of and below the middle of a pixel the place is. Returns
   how many are not outside. */
INLINE int place_row(const Warp *warp, int y, const int is_perspective, const int is_nearest) {
    const double *a = warp->values, y_out = y + 0.5;
    const double down_x = a[1] * y_out, down_y = a[4] * y_out, x_0 = a[2], y_0 = a[5];
    const double down_z = is_perspective ? a[7] * y_out : 0.0;
    const double width = warp->width, height = warp->height, half = is_nearest ? 0.0 : 0.5;
    const double *restrict share_x = warp->x, *restrict share_y = warp->y;
    const double *restrict share_z = warp->z;
    const int count = warp->width, stride = warp->stride;
    const int back = is_nearest ? 0 : BORDER - warp->is_bicubic;
    const int32_t outside = is_nearest ? (int32_t)warp->plane : -1;
    const int32_t begin = back * stride + back;
    int32_t *restrict at = warp->at;
    double *restrict dx = warp->dx, *restrict dy = warp->dy;
    int inside = 0, x = 0;
#ifdef AVX2
    const __m256d right = _mm256_set1_pd(width), bottom = _mm256_set1_pd(height);
    const __m256d zero = _mm256_setzero_pd(), back_half = _mm256_set1_pd(half);
    const __m256d rows = _mm256_set1_pd(stride), first = _mm256_set1_pd(begin);
    const __m256d else_at = _mm256_set1_pd(outside);
    for (; x < count; x += 4) { /* up to 3 columns behind the row */
        __m256d x_in = _mm256_add_pd(_mm256_loadu_pd(share_x + x), _mm256_set1_pd(down_x));
        __m256d y_in = _mm256_add_pd(_mm256_loadu_pd(share_y + x), _mm256_set1_pd(down_y));
        x_in = _mm256_add_pd(x_in, _mm256_set1_pd(x_0));
        y_in = _mm256_add_pd(y_in, _mm256_set1_pd(y_0));
        if (is_perspective) {
            __m256d z = _mm256_add_pd(_mm256_loadu_pd(share_z + x), _mm256_set1_pd(down_z));
            z = _mm256_add_pd(z, _mm256_set1_pd(1.0));
            x_in = _mm256_div_pd(x_in, z), y_in = _mm256_div_pd(y_in, z);
        }
        __m256d is_in = _mm256_cmp_pd(x_in, zero, _CMP_GE_OQ);
        is_in = _mm256_and_pd(is_in, _mm256_cmp_pd(x_in, right, _CMP_LT_OQ));
        is_in = _mm256_and_pd(is_in, _mm256_cmp_pd(y_in, zero, _CMP_GE_OQ));
        is_in = _mm256_and_pd(is_in, _mm256_cmp_pd(y_in, bottom, _CMP_LT_OQ));
        x_in = _mm256_sub_pd(x_in, back_half), y_in = _mm256_sub_pd(y_in, back_half);
        __m256d column = _mm256_floor_pd(x_in), row = _mm256_floor_pd(y_in);
        if (!is_nearest) {
            _mm256_storeu_pd(dx + x, _mm256_sub_pd(x_in, column));
            _mm256_storeu_pd(dy + x, _mm256_sub_pd(y_in, row));
        }
        __m256d from = _mm256_add_pd(_mm256_add_pd(_mm256_mul_pd(row, rows), column), first);
        from = _mm256_blendv_pd(else_at, from, is_in);
        _mm_storeu_si128((void *)(at + x), _mm256_cvttpd_epi32(from));
        inside += __builtin_popcount((unsigned)_mm256_movemask_pd(is_in));
    }
    for (int k = count; k < x; k++) inside -= at[k] != outside;
#endif
    for (; x < count; x++) {
        double x_in = share_x[x] + down_x + x_0, y_in = share_y[x] + down_y + y_0;
        if (is_perspective) {
            double z = share_z[x] + down_z + 1.0;
            x_in /= z, y_in /= z;
        }
        int is_in = (x_in >= 0.0) & (x_in < width) & (y_in >= 0.0) & (y_in < height);
        x_in = is_in ? x_in - half : 0.0, y_in = is_in ? y_in - half : 0.0;
        int32_t column = (int32_t)x_in, row = (int32_t)y_in;
        if (!is_nearest) {
            column -= column > x_in, row -= row > y_in;
            dx[x] = x_in - column, dy[x] = y_in - row;
        }
        at[x] = is_in ? row * stride + column + begin : outside;
        inside += is_in;
    }
    return inside;
}
