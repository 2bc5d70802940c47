/* Warps that take the nearest pixel. Without shear, columns come from columns; with it, places are
   in 16.16 fixed point, or sums of doubles where that would overflow. */

/* As x86 processors do it: what is too large becomes the least integer, which is outside. */
INLINE int int_of(double value) {
    return value >= -2147483648.0 && value < 2147483648.0 ? (int)value : INT32_MIN;
}

INLINE int fixed_of(double value) {
    value = value * 65536.0 + 0.5;
    int whole = int_of(value);
    return whole > value && whole != INT32_MIN ? whole - 1 : whole;
}

#ifdef AVX2
INLINE __m256i join_halves(__m128i low, __m128i high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

INLINE __m128i four_pixels(const uint32_t *from, const int32_t *at) {
    __m128i a = _mm_cvtsi32_si128((int)from[at[0]]), b = _mm_cvtsi32_si128((int)from[at[2]]);
    a = _mm_insert_epi32(a, (int)from[at[1]], 1), b = _mm_insert_epi32(b, (int)from[at[3]], 1);
    return _mm_unpacklo_epi64(a, b);
}
#endif

/* Take pixels of a row from where `at` says; behind the image is a pixel of the fill colour. */
static void take_nearest(const Warp *warp, int y) {
    const int width = warp->width, channels = warp->channels;
    const int32_t *restrict at = warp->at;
    uint8_t *restrict out = warp->image + (size_t)y * (size_t)width;
    const size_t plane = warp->plane;
    int x = 0;
    if (channels == 1) {
        for (; x < width; x++) out[x] = warp->bytes[at[x]];
        return;
    }
#ifdef AVX2
    const __m256i bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const uint32_t *from = warp->pixels;
    for (; x + 8 <= width; x += 8) { /* loads are faster than a gather: 27 cycles */
        __m256i eight = join_halves(four_pixels(from, at + x), four_pixels(from, at + x + 4));
        eight = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(eight, bytes), order);
        __m128i low = _mm256_castsi256_si128(eight);
        _mm_storel_epi64((void *)(out + x), low);
        _mm_storel_epi64((void *)(out + x + plane), _mm_unpackhi_epi64(low, low));
        _mm_storel_epi64((void *)(out + x + 2 * plane), _mm256_extracti128_si256(eight, 1));
    }
#endif
    for (; x < width; x++) {
        uint32_t pixel = warp->pixels[at[x]];
        out[x] = (uint8_t)pixel;
        out[x + plane] = (uint8_t)(pixel >> 8);
        out[x + 2 * plane] = (uint8_t)(pixel >> 16);
    }
}

/* Have a copy of the image from which pixels are taken, with a pixel of the fill colour behind. */
static void copy_nearest(Canvas *canvas, Warp *warp) {
    if (warp->channels == 1) {
        memcpy(canvas->other, canvas->image, canvas->plane);
        canvas->other[canvas->plane] = warp->fill[0]; /* one of the BEYOND bytes */
        warp->bytes = canvas->other;
        return;
    }
    lay_pixels(canvas, warp->pixels, warp->stride, 0);
    const uint8_t *fill = warp->fill;
    warp->pixels[warp->plane] = fill[0] | (uint32_t)fill[1] << 8 | (uint32_t)fill[2] << 16;
}

/* Columns `begin` to `end` of each row come from as many columns, from `from` on, of a row. */
static void move_rows(Canvas *canvas, const Warp *warp, int begin, int end, int from) {
    const double step = warp->values[4];
    const int width = warp->width, height = warp->height;
    int32_t *row = warp->at;
    double y_in = warp->values[5] + step * 0.5;
    int is_up = 1, is_down = 1; /* whether all rows come from below, from above, or stay */
    for (int y = 0; y < height; y++, y_in += step) {
        row[y] = y_in >= 0.0 && y_in < height ? (int)y_in : -1;
        is_up &= row[y] < 0 || row[y] >= y;
        is_down &= row[y] < 0 || row[y] <= y;
    }
    const uint8_t *in = warp->image;
    if (!is_up && !is_down) in = memcpy(canvas->other, in, warp->plane * (size_t)warp->channels);
    for (int k = 0; k < height; k++) { /* what a row comes from is written after it */
        const int y = is_up ? k : height - 1 - k;
        uint8_t *out = warp->image + (size_t)y * (size_t)width + begin;
        size_t at = (size_t)row[y] * (size_t)width + (size_t)from;
        for (size_t plane = 0; row[y] >= 0 && plane < warp->plane * (size_t)warp->channels;
             plane += warp->plane)
            memmove(out + plane, in + plane + at, (size_t)(end - begin));
        fill_row(warp, y, row[y] < 0 ? width : 0, begin);
        fill_row(warp, y, row[y] < 0 ? 0 : end, width);
    }
}

/* Find out how to take columns of all rows, in groups of 16. */
static void plan_picks(const Warp *warp, const int32_t *column, int begin, int end) {
#ifdef AVX2
    Picks *picks = warp->picks;
    for (int x = begin; x < end; x += 16, picks++) {
        int last = (x + 16 < end ? x + 16 : end) - 1;
        int from = column[x] < column[last] ? column[x] : column[last]; /* they rise, or fall */
        picks->from = from, picks->is_near = 1;
        for (int k = 0; k < 16; k++) {
            int at = column[x + k < end ? x + k : last] - from;
            picks->low[k] = (uint8_t)(at < 16 ? at : 128), picks->high[k] = (uint8_t)(at - 16);
            if (at > 31) picks->is_near = 0;
        }
    }
#else
    (void)warp, (void)column, (void)begin, (void)end;
#endif
}

/* Take columns of one row. Reads up to 31 bytes behind the row. */
static void pick_columns(const Warp *warp, const int32_t *restrict column, int begin, int end,
                         const uint8_t *restrict in, uint8_t *restrict out) {
    int x = begin;
    (void)warp;
#ifdef AVX2
    for (const Picks *picks = warp->picks; x + 16 <= end; x += 16, picks++) {
        if (!picks->is_near) {
            for (int k = x; k < x + 16; k++) out[k] = in[column[k]];
            continue;
        }
        __m128i low = _mm_loadu_si128((const void *)(in + picks->from));
        __m128i high = _mm_loadu_si128((const void *)(in + picks->from + 16));
        low = _mm_shuffle_epi8(low, _mm_loadu_si128((const void *)picks->low));
        high = _mm_shuffle_epi8(high, _mm_loadu_si128((const void *)picks->high));
        _mm_storeu_si128((void *)(out + x), _mm_or_si128(low, high));
    }
#endif
    for (; x < end; x++) out[x] = in[column[x]];
}

/* Without shear: columns come from columns, rows from rows. */
static void scale_nearest(Canvas *canvas, Warp *warp) {
    const double *a = warp->values;
    const int width = warp->width, height = warp->height;
    int32_t *column = warp->at;
    double x_in = a[2] + a[0] * 0.5, y_in = a[5] + a[4] * 0.5;
    int begin = width, end = 0, is_copy = 1;
    for (int x = 0; x < width; x++, x_in += a[0]) {
        column[x] = -1;
        if (!(x_in >= 0.0 && x_in < width)) continue;
        column[x] = (int)x_in;
        if (end && column[x] != column[x - 1] + 1) is_copy = 0;
        if (!end) begin = x;
        end = x + 1;
    }
    if (is_copy && begin < end) {
        move_rows(canvas, warp, begin, end, column[begin]);
        return;
    }
    memcpy(canvas->other, canvas->image, warp->plane * (size_t)warp->channels);
    plan_picks(warp, column, begin, end);
    for (int y = 0; y < height; y++, y_in += a[4]) {
        if (!(y_in >= 0.0 && y_in < height) || begin >= end) {
            fill_row(warp, y, 0, width);
            continue;
        }
        const uint8_t *in = canvas->other + (size_t)y_in * (size_t)width;
        uint8_t *out = warp->image + (size_t)y * (size_t)width;
        for (int c = 0; c < warp->channels; c++, in += warp->plane, out += warp->plane)
            pick_columns(warp, column, begin, end, in, out);
        fill_row(warp, y, 0, begin);
        fill_row(warp, y, end, width);
    }
}

INLINE int is_fixed(const double *a, int x, int y) {
    double x_in = x * a[0] + y * a[1] + a[2], y_in = x * a[3] + y * a[4] + a[5];
    return x_in > -32768.0 && x_in < 32768.0 && y_in > -32768.0 && y_in < 32768.0;
}

/* In 16.16 fixed point, which may wrap in the last column. */
static void turn_nearest(const Warp *warp) {
    const double *a = warp->values;
    const int width = warp->width, height = warp->height, outside = (int)warp->plane;
    const uint32_t across_x = (uint32_t)fixed_of(a[0]), across_y = (uint32_t)fixed_of(a[3]);
    const uint32_t down_x = (uint32_t)fixed_of(a[1]), down_y = (uint32_t)fixed_of(a[4]);
    uint32_t first_x = (uint32_t)fixed_of(a[2] + a[0] * 0.5 + a[1] * 0.5);
    uint32_t first_y = (uint32_t)fixed_of(a[5] + a[3] * 0.5 + a[4] * 0.5);
    int32_t *restrict at = warp->at;
    for (int y = 0; y < height; y++, first_x += down_x, first_y += down_y) {
        int x = 0;
#ifdef AVX2
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i last_x = _mm256_set1_epi32(width - 1), last_y = _mm256_set1_epi32(height - 1);
        const __m256i wide = _mm256_set1_epi32(width), else_at = _mm256_set1_epi32(outside);
        const __m256i step_x = _mm256_set1_epi32((int)across_x);
        const __m256i step_y = _mm256_set1_epi32((int)across_y);
        __m256i x_16 = _mm256_set1_epi32((int)first_x), y_16 = _mm256_set1_epi32((int)first_y);
        x_16 = _mm256_add_epi32(x_16, _mm256_mullo_epi32(lanes, step_x));
        y_16 = _mm256_add_epi32(y_16, _mm256_mullo_epi32(lanes, step_y));
        for (; x < width; x += 8) { /* up to 7 columns behind the row */
            __m256i x_in = _mm256_srai_epi32(x_16, 16), y_in = _mm256_srai_epi32(y_16, 16);
            __m256i is_in = _mm256_and_si256(
                _mm256_cmpeq_epi32(x_in, _mm256_min_epu32(x_in, last_x)),
                _mm256_cmpeq_epi32(y_in, _mm256_min_epu32(y_in, last_y)));
            __m256i from = _mm256_add_epi32(_mm256_mullo_epi32(y_in, wide), x_in);
            _mm256_storeu_si256((void *)(at + x), _mm256_blendv_epi8(else_at, from, is_in));
            x_16 = _mm256_add_epi32(x_16, _mm256_slli_epi32(step_x, 3));
            y_16 = _mm256_add_epi32(y_16, _mm256_slli_epi32(step_y, 3));
        }
#endif
        for (; x < width; x++) {
            int x_in = (int32_t)(first_x + (uint32_t)x * across_x) >> 16;
            int y_in = (int32_t)(first_y + (uint32_t)x * across_y) >> 16;
            int is_in = (x_in >= 0) & (x_in < width) & (y_in >= 0) & (y_in < height);
            int from = (int)((uint32_t)y_in * (uint32_t)width + (uint32_t)x_in);
            at[x] = is_in ? from : outside;
        }
        take_nearest(warp, y);
    }
}

/* Where fixed point would overflow. */
static void sum_nearest(const Warp *warp) {
    const double *a = warp->values;
    const int width = warp->width, height = warp->height;
    double first_x = a[2] + a[1] * 0.5 + a[0] * 0.5, first_y = a[5] + a[4] * 0.5 + a[3] * 0.5;
    for (int y = 0; y < height; y++, first_x += a[1], first_y += a[4]) {
        double x_in = first_x, y_in = first_y;
        for (int x = 0; x < width; x++, x_in += a[0], y_in += a[3]) {
            int is_in = x_in >= 0.0 && x_in < width && y_in >= 0.0 && y_in < height;
            warp->at[x] = is_in ? (int)y_in * width + (int)x_in : (int)warp->plane;
        }
        take_nearest(warp, y);
    }
}

static int warp_nearest(Canvas *canvas, Warp *warp) {
    const double *a = warp->values;
    int status = reserve_warp(canvas, warp, 0);
    if (status) return status;
    if (!warp->is_perspective && a[1] == 0.0 && a[3] == 0.0) {
        scale_nearest(canvas, warp);
        return MADE;
    }
    copy_nearest(canvas, warp);
    if (warp->is_perspective) {
        share_columns(warp);
        for (int y = 0; y < warp->height; y++) {
            place_row(warp, y, 1, 1);
            take_nearest(warp, y);
        }
    } else if (is_fixed(a, 0, 0) && is_fixed(a, warp->width, warp->height) &&
               is_fixed(a, 0, warp->height) && is_fixed(a, warp->width, 0)) turn_nearest(warp);
    else sum_nearest(warp);
    return MADE;
}
