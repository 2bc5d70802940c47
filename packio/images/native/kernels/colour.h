/* Rows of pixels: chroma as wide and high as luma, and YCbCr to RGB, as libjpeg does both.

   Chroma samples lie between luma samples; each pixel mixes the nearest two rows and columns of
   chroma 3 : 1. Source: libjpeg's "fancy" upsampling; JFIF 1.02 for the colours. */

enum { SPARE = 64 };  /* bytes before and behind each row */

/* The row of a plane that holds sample (y, x) of a component, at that sample. */
INLINE const uint8_t *sample(const Region *region, int c, int y, int x) {
    return region->plane[c] + (size_t)(y - region->high[c] * region->y0[c]) * region->stride[c] +
           (size_t)(x - region->broad[c] * region->x0[c]);
}

/* Twice as many samples as `in`, which has one more before and behind: 3 : 1 of neighbours. */
INLINE void doubled(const int16_t *in, uint8_t *out, int count, const int bits, const int even,
                    const int odd) {
#ifdef AVX2
    const __m256i a = _mm256_set1_epi16((short)even), b = _mm256_set1_epi16((short)odd);
    for (int i = 0; i < count; i += 16) {
        __m256i here = _mm256_loadu_si256((const void *)(in + i));
        __m256i left = _mm256_loadu_si256((const void *)(in + i - 1));
        __m256i right = _mm256_loadu_si256((const void *)(in + i + 1));
        __m256i three = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
        left = _mm256_add_epi16(_mm256_add_epi16(three, left), a);
        right = _mm256_add_epi16(_mm256_add_epi16(three, right), b);
        left = _mm256_srli_epi16(left, bits);
        right = _mm256_slli_epi16(_mm256_srli_epi16(right, bits), 8);
        _mm256_storeu_si256((void *)(out + 2 * i), _mm256_or_si256(left, right));
    }
#else
    for (int i = 0; i < count; i++) {
        out[2 * i] = (uint8_t)((3 * in[i] + in[i - 1] + even) >> bits);
        out[2 * i + 1] = (uint8_t)((3 * in[i] + in[i + 1] + odd) >> bits);
    }
#endif
}

/* Numbers of 16 bits: 3 * a + b, or a alone. */
INLINE void mixed(const uint8_t *a, const uint8_t *b, int16_t *out, int from, int to) {
#ifdef AVX2
    for (int i = from; i < to; i += 16) {
        __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(a + i)));
        if (b) {
            __m256i y = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(b + i)));
            x = _mm256_add_epi16(_mm256_add_epi16(x, _mm256_add_epi16(x, x)), y);
        }
        _mm256_storeu_si256((void *)(out + i), x);
    }
#else
    for (int i = from; i < to; i++) out[i] = (int16_t)(b ? 3 * a[i] + b[i] : a[i]);
#endif
}

/* YCbCr to RGB; writes up to 31 bytes more. */
static void to_rgb(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *const *rgb,
                   int count) {
#ifdef AVX2
    const __m256i middle = _mm256_set1_epi16(128), one = _mm256_set1_epi16(1);
    const __m256i of_red = _mm256_set1_epi16(26345), of_blue = _mm256_set1_epi16(-14942);
    const __m256i of_green = pair_of(-22554, 18734), half = _mm256_set1_epi32(32768);
    for (int i = 0; i < count; i += 32) {
        __m256i red[2], green[2], blue[2];
        for (int k = 0; k < 2; k++) {
            int at = i + 16 * k;
            __m256i l = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(y + at)));
            __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(cb + at)));
            __m256i r = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(cr + at)));
            b = _mm256_sub_epi16(b, middle);
            r = _mm256_sub_epi16(r, middle);
            /* factors above 1/2 do not fit: whole multiples are added apart */
            __m256i part = _mm256_mulhi_epi16(_mm256_add_epi16(r, r), of_red);
            part = _mm256_srai_epi16(_mm256_add_epi16(part, one), 1);
            red[k] = _mm256_add_epi16(l, _mm256_add_epi16(r, part));
            part = _mm256_mulhi_epi16(_mm256_add_epi16(b, b), of_blue);
            part = _mm256_srai_epi16(_mm256_add_epi16(part, one), 1);
            blue[k] = _mm256_add_epi16(l, _mm256_add_epi16(_mm256_add_epi16(b, b), part));
            Wide both = plus(products(b, r, of_green), (Wide){half, half});
            green[k] = _mm256_add_epi16(l, _mm256_sub_epi16(rounded(both, 16), r));
        }
        __m256i *found[3] = {red, green, blue};
        for (int p = 0; p < 3; p++) {
            __m256i bytes = _mm256_packus_epi16(found[p][0], found[p][1]);
            _mm256_storeu_si256((void *)(rgb[p] + i), _mm256_permute4x64_epi64(bytes, 0xD8));
        }
    }
#else
    for (int i = 0; i < count; i++) {
        int b = cb[i] - 128, r = cr[i] - 128;
        int values[3] = {y[i] + ((91881 * r + 32768) >> 16),
                         y[i] + ((-22554 * b - 46802 * r + 32768) >> 16),
                         y[i] + ((116130 * b + 32768) >> 16)};
        for (int p = 0; p < 3; p++)
            rgb[p][i] = (uint8_t)(values[p] < 0 ? 0 : values[p] > 255 ? 255 : values[p]);
    }
#endif
}

/* Continue rows of chroma beyond the sides of the image. */
static void extend(const Jpeg *jpeg, const Region *region) {
    int width = (jpeg->width + 1) / 2;
    if (region->across == 1) return;
    for (int c = 1; c < 3; c++)
        for (int y = 8 * region->y0[c]; y < 8 * region->y1[c]; y++) {
            uint8_t *row = (uint8_t *)sample(region, c, y, 8 * region->x0[c]);
            if (region->x0[c] == 0) row[-1] = row[0];
            int beyond = width - 8 * region->x0[c];
            if (region->x1[c] * 8 >= width) row[beyond] = row[beyond - 1];
        }
}

/* Memory of a row while it is made. */
typedef struct {
    int16_t *mixed;    /* of one sample before the first one */
    uint8_t *chroma[2];
    uint8_t *rgb[3];
} Rows;

/* The same of raw pixels. */
static void raw_row(int components, const Region *region, Rows *rows, int y, const uint8_t **out) {
    int left = region->left, width = region->right - left, last = components - 1;
    size_t place = (size_t)y * region->stride[0] + (size_t)left;
    if (region->layout & PLANES || components == 1) {
        for (int p = 0; p < 3; p++) out[p] = region->plane[p] + place;
        return;
    }
    const uint8_t *in = region->plane[0] + 3 * place;
    for (int x = 0; x < width; x++)
        for (int p = 0; p < 3; p++) rows->rgb[p][x] = in[3 * x + (region->layout & BGR ? last - p : p)];
    for (int p = 0; p < 3; p++) out[p] = rows->rgb[p];
}

/* One row of pixels, from column region->left to region->right; pointers to its planes. */
static void row_of(const Jpeg *jpeg, const Region *region, Rows *rows, int y, const uint8_t **out) {
    int left = region->left, width = region->right - left;
    if (region->layout) {
        raw_row(jpeg->components, region, rows, y, out);
        return;
    }
    const uint8_t *luma = sample(region, 0, y, left), *chroma[2];
    if (jpeg->components == 1) {
        out[0] = out[1] = out[2] = luma;
        return;
    }
    int first = left / 2, count = (region->right - 1) / 2 - first + 1;
    for (int c = 1; c < 3; c++) {
        if (region->across == 1) {
            chroma[c - 1] = sample(region, c, y, left);
            continue;
        }
        const uint8_t *near = sample(region, c, y / region->down, first), *far = NULL;
        if (region->down == 2) {
            int last = (jpeg->height + 1) / 2 - 1, other = y & 1 ? y / 2 + 1 : y / 2 - 1;
            far = sample(region, c, other < 0 ? 0 : other > last ? last : other, first);
        }
        mixed(near, far, rows->mixed, -1, count + 1);
        if (far)
            doubled(rows->mixed, rows->chroma[c - 1], count, 4, 8, 7);
        else
            doubled(rows->mixed, rows->chroma[c - 1], count, 2, 1, 2);
        chroma[c - 1] = rows->chroma[c - 1] + (left & 1);
    }
    to_rgb(luma, chroma[0], chroma[1], rows->rgb, width);
    for (int p = 0; p < 3; p++) out[p] = rows->rgb[p];
}
