/* Operations on the values of pixels, with the pixels of Pillow 13.

   BRIGHTNESS, CONTRAST, SATURATION, SHARPNESS: ImageEnhance's, values[0] is the factor, any number.
   HUE: values[0] is added to H of HSV, 0..255. GRAYSCALE: each channel becomes L. INVERT.
   POSTERIZE: values[0] bits are kept, 0..8; 0 gives black. SOLARIZE: values below values[0] stay.
   SOLARIZE_ADD: values below values[1] get values[0], timm's. EQUALIZE. AUTOCONTRAST: without a
   cutoff.

   Whatever changes a byte by itself alone is done to the planes as to one row of bytes. */

enum { PIECE = 1024 };  /* pixels whose luma is made at once, so that it stays in the first cache */

/* Put values of a table in place of bytes. */
static void replace_bytes(const uint8_t *table, uint8_t *bytes, size_t count) {
    size_t i = 0;
#ifdef AVX2
    /* A shuffle looks up 16 bytes by the low bits, and gives 0 where the top bit is set. Values
       from 0 to 127 get the XOR of all differences from one 16 to the next up to their own:
       what is subtracted makes them negative behind that. The others likewise, from 128 on. */
    __m256i steps[16];
    for (int k = 0; k < 16; k++) {
        __m128i step = _mm_loadu_si128((const void *)(table + 16 * k));
        if (k % 8) step = _mm_xor_si128(step, _mm_loadu_si128((const void *)(table + 16 * k - 16)));
        steps[k] = _mm256_broadcastsi128_si256(step);
    }
    const __m256i sixteen = _mm256_set1_epi8(16), top = _mm256_set1_epi8(-128);
    for (; i + 64 <= count; i += 64) {
        __m256i low[2], high[2], made[2];
        for (int j = 0; j < 2; j++) {
            low[j] = _mm256_loadu_si256((const void *)(bytes + i + 32 * j));
            high[j] = _mm256_xor_si256(low[j], top);
            made[j] = _mm256_setzero_si256();
        }
        _Pragma("GCC unroll 8") for (int k = 0; k < 8; k++) for (int j = 0; j < 2; j++) {
            made[j] = _mm256_xor_si256(made[j], _mm256_shuffle_epi8(steps[k], low[j]));
            made[j] = _mm256_xor_si256(made[j], _mm256_shuffle_epi8(steps[k + 8], high[j]));
            low[j] = _mm256_subs_epi8(low[j], sixteen);
            high[j] = _mm256_subs_epi8(high[j], sixteen);
        }
        for (int j = 0; j < 2; j++) _mm256_storeu_si256((void *)(bytes + i + 32 * j), made[j]);
    }
#endif
    for (; i < count; i++) bytes[i] = table[bytes[i]];
}

/* The luma of pixels: rgb2l of src/libImaging/Convert.c. */
static void find_luma(const uint8_t *red, const uint8_t *green, const uint8_t *blue, uint8_t *luma,
                      size_t count) {
    enum { RED = 19595, GREEN = 38470, BLUE = 7471, HALF = 1 << 15 };  /* of 1 << 16 */
    size_t i = 0;
#ifdef AVX2
    /* The weight of green is too large for 16 bits with a sign: each half of it has a partner. */
    const __m256i first = _mm256_set1_epi32(RED | (GREEN / 2) << 16);
    const __m256i second = _mm256_set1_epi32(GREEN / 2 | BLUE << 16);
    const __m256i half = _mm256_set1_epi32(HALF);
    for (; i + 16 <= count; i += 16) {
        __m256i r = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(red + i)));
        __m256i g = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(green + i)));
        __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(blue + i)));
        __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(r, g), first);
        __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(r, g), first);
        low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(g, b), second));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(g, b), second));
        low = _mm256_srli_epi32(_mm256_add_epi32(low, half), 16);
        high = _mm256_srli_epi32(_mm256_add_epi32(high, half), 16);
        __m256i words = _mm256_packus_epi32(low, high);
        __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words),
                                         _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128((void *)(luma + i), bytes);
    }
#endif
    for (; i < count; i++)
        luma[i] = (uint8_t)((red[i] * RED + green[i] * GREEN + blue[i] * BLUE + HALF) >> 16);
}

/* Go from one value to another, or beyond: ImagingBlend of src/libImaging/Blend.c, in float32. It
   clips only if the factor is outside of 0..1; within, that would change nothing. The factor is
   FARTHEST at most, which leads to 0 or 255 from everywhere: sums fit into integers. */
enum { FARTHEST = 1 << 16 };
INLINE uint8_t blend_value(int from, int to, float factor) {
    float value = (float)from + factor * (float)(to - from);
    value = value > 0.0f ? value : 0.0f;
    return (uint8_t)(int)(value < 255.0f ? value : 255.0f);
}

/* `out` may be `from` or `to`. */
static void blend(const uint8_t *from, const uint8_t *to, uint8_t *out, size_t count,
                  float factor) {
    size_t i = 0;
#ifdef AVX2
    const __m256 factors = _mm256_set1_ps(factor);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (; i + 32 <= count; i += 32) {
        __m256i made[4];
        _Pragma("GCC unroll 4") for (size_t k = 0; k < 4; k++) {
            __m128i eight = _mm_loadl_epi64((const void *)(from + i + 8 * k));
            __m256 a = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
            eight = _mm_loadl_epi64((const void *)(to + i + 8 * k));
            __m256 b = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
            b = _mm256_mul_ps(factors, _mm256_sub_ps(b, a));
            made[k] = _mm256_cvttps_epi32(_mm256_add_ps(a, b));
        }
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(made[0], made[1]),
                                            _mm256_packs_epi32(made[2], made[3]));
        _mm256_storeu_si256((void *)(out + i), _mm256_permutevar8x32_epi32(bytes, order));
    }
#endif
    for (; i < count; i++) out[i] = blend_value(from[i], to[i], factor);
}

static void blend_from(int from, float factor, uint8_t *bytes, size_t count) {
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = blend_value(from, i, factor);
    replace_bytes(table, bytes, count);
}

/* ImageEnhance.Contrast: the mean of luma, rounded, is where values come from. */
static void change_contrast(Canvas *canvas, float factor) {
    const uint8_t *image = canvas->image;
    size_t plane = canvas->plane;
    uint64_t sum = 0;
    uint8_t luma[PIECE];
    for (size_t at = 0; at < plane; at += PIECE) {
        size_t count = plane - at < PIECE ? plane - at : PIECE;
        const uint8_t *piece = image + at;
        if (canvas->channels == 3) {
            find_luma(piece, piece + plane, piece + 2 * plane, luma, count);
            piece = luma;
        }
        uint32_t partial = 0;
        for (size_t i = 0; i < count; i++) partial += piece[i];
        sum += partial;
    }
    int mean = (int)((double)sum / (double)plane + 0.5);
    blend_from(mean, factor, canvas->image, plane * (size_t)canvas->channels);
}

/* ImageEnhance.Color: values come from their pixel's luma. With the factor 0, all are that. */
static void change_saturation(Canvas *canvas, float factor) {
    uint8_t *image = canvas->image, luma[PIECE];
    size_t plane = canvas->plane;
    if (canvas->channels != 3) return;
    for (size_t at = 0; at < plane; at += PIECE) {
        size_t count = plane - at < PIECE ? plane - at : PIECE;
        find_luma(image + at, image + at + plane, image + at + 2 * plane, luma, count);
        for (size_t c = 0; c < 3; c++) {
            uint8_t *piece = image + at + c * plane;
            if (factor == 0.0f) memcpy(piece, luma, count);
            else blend(luma, piece, piece, count, factor);
        }
    }
}

INLINE int16_t larger(int16_t a, int16_t b) { return a > b ? a : b; }
INLINE int16_t smaller(int16_t a, int16_t b) { return a < b ? a : b; }
INLINE int16_t mask_of(int is) { return (int16_t)-is; }
INLINE int16_t select_bits(int16_t mask, int16_t yes, int16_t no) {
    return (int16_t)((mask & yes) | (~mask & no));
}

/* Add to the hue, as torchvision does: to H of HSV, a byte, as rgb2hsv_row and hsv2rgb of
   src/libImaging/Convert.c convert it. What these compute in float64 comes out the same in float32,
   and in integers, for all colours and additions: a number is far enough from where its rounding
   changes, or exactly there, and then the steps before it round alike. Masks and integers of 16
   bits, without branches, are for the compiler's vectors. */
static void change_hue(Canvas *canvas, int addition) {
    if (canvas->channels != 3) return;
    uint8_t *red = canvas->image, *green = red + canvas->plane, *blue = green + canvas->plane;
    const size_t plane = canvas->plane;
    INDEPENDENT for (size_t i = 0; i < plane; i++) {
        const int16_t r = red[i], g = green[i], b = blue[i];
        const int16_t most = larger(r, larger(g, b)), least = smaller(r, smaller(g, b));
        const int16_t range = (int16_t)(most - least), middle = (int16_t)(r + g + b - most - least);
        /* Where the hue is on a circle from 0 to 6, red, green and blue at 0, 2 and 4: from the odd
           number beside it, up or down by a part of the range. Behind red, that is below 0. */
        const int16_t in_red = mask_of(r == most);
        const int16_t in_green = (int16_t)(~in_red & mask_of(g == most));
        const int16_t falls = select_bits(
            in_red, mask_of(g >= b), select_bits(in_green, mask_of(r < b), mask_of(r >= g)));
        const int16_t below = select_bits(in_red, -1, select_bits(in_green, 1, 3));
        const int16_t from = (int16_t)(below - 2 * falls), is_behind = (int16_t)(in_red & ~falls);
        const int16_t way = (int16_t)(((most - middle) ^ falls) - falls);
        const float place = (float)from + (float)way / (float)larger(range, 1);
        const float turn = place / 6.0f - (float)is_behind;
        const uint16_t hue = (uint16_t)(((int)(turn * 255.0f) + addition) & 255);
        const uint16_t saturation =
            (uint16_t)(int)((float)range / (float)larger(most, 1) * 255.0f);
        /* And back: which sixth of the circle, and how far in it; the middle channel rises in the
           even ones and falls in the odd ones. */
        const uint16_t six = (uint16_t)(6 * hue), sixth = (uint16_t)(six / 255);
        const int16_t rest = (int16_t)(six - 255 * sixth);
        const int16_t share = select_bits(mask_of(sixth & 1), rest, (int16_t)(255 - rest));
        const uint16_t weight = (uint16_t)(saturation * (uint16_t)share);
        const uint16_t product = (uint16_t)(most * saturation + 127);
        const int16_t low = (int16_t)(most - product / 255);
        const float less = (float)most * (float)weight * (1 / 65025.0f);
        const int16_t mid = (int16_t)(most - (int)(less + 0.5f));
        const int16_t is_1 = mask_of(sixth == 1), is_2 = mask_of(sixth == 2);
        const int16_t is_3 = mask_of(sixth == 3), is_4 = mask_of(sixth == 4);
        const int16_t is_5 = mask_of(sixth == 5);
        red[i] = (uint8_t)select_bits(is_1 | is_4, mid, select_bits(is_2 | is_3, low, most));
        green[i] = (uint8_t)select_bits(is_1 | is_2, most, select_bits(is_4 | is_5, low, mid));
        blue[i] = (uint8_t)select_bits(is_3 | is_4, most, select_bits(is_2 | is_5, mid, low));
    }
}

/* ImageEnhance.Sharpness: values come from the image that ImageFilter.SMOOTH makes, with the border
   as it was. src/libImaging/Filter.c computes a thirteenth of a sum in float32 and rounds; no sum
   is half-way between two results, so that integers give the same. */
static int change_sharpness(Canvas *canvas, float factor) {
    size_t height = (size_t)canvas->height, width = (size_t)canvas->width;
    size_t bytes = canvas->plane * (size_t)canvas->channels;
    if (height < 3 || width < 3) return MADE;
    uint16_t *sums = packio_reserve(&canvas->scratch->work, width * sizeof *sums);
    if (!sums) return MEMORY;
    for (size_t row = 0; row < bytes / width; row++) {
        const uint8_t *in = canvas->image + row * width;
        uint8_t *out = canvas->other + row * width;
        if (row % height == 0 || row % height == height - 1) {
            memcpy(out, in, width);
            continue;
        }
        const uint8_t *above = in - width, *below = in + width;
        for (size_t x = 0; x < width; x++) sums[x] = (uint16_t)(above[x] + in[x] + below[x]);
        for (size_t x = 1; x < width - 1; x++) {
            int sum = sums[x - 1] + sums[x] + sums[x + 1] + 4 * in[x];
            out[x] = (uint8_t)((uint16_t)(sum + 6) / 13);
        }
        out[0] = in[0];
        out[width - 1] = in[width - 1];
    }
    blend(canvas->other, canvas->image, canvas->other, bytes, factor);
    swap(canvas);
    return MADE;
}

/* ImageOps.equalize, a plane by itself: each value becomes its rank. */
static void equalize(uint8_t *plane, size_t count) {
    uint32_t counts[4][256];  /* apart, as equal neighbours would wait for one another */
    uint8_t table[256];
    memset(counts, 0, sizeof counts);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t eight;
        memcpy(&eight, plane + i, 8);
        _Pragma("GCC unroll 8") for (int k = 0; k < 8; k++) counts[k % 4][eight >> 8 * k & 255]++;
    }
    for (; i < count; i++) counts[0][plane[i]]++;
    uint32_t last = 0, step, sum;
    for (int v = 0; v < 256; v++) {
        counts[0][v] += counts[1][v] + counts[2][v] + counts[3][v];
        if (counts[0][v]) last = counts[0][v];
    }
    step = ((uint32_t)count - last) / 255;
    if (!step) return;
    sum = step / 2;
    for (int v = 0; v < 256; v++) {
        uint32_t rank = sum / step;
        table[v] = (uint8_t)(rank < 255 ? rank : 255);
        sum += counts[0][v];
    }
    replace_bytes(table, plane, count);
}

/* ImageOps.autocontrast, a plane by itself: its least value becomes 0, its largest 255. */
static void stretch(uint8_t *plane, size_t count) {
    uint8_t least = 255, most = 0, table[256];
    for (size_t i = 0; i < count; i++) {
        least = plane[i] < least ? plane[i] : least;
        most = plane[i] > most ? plane[i] : most;
    }
    if (most <= least) return;
    double scale = 255.0 / (most - least), offset = -least * scale;
    for (int v = 0; v < 256; v++) {
        double value = v * scale + offset;
        table[v] = (uint8_t)(int)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
    replace_bytes(table, plane, count);
}

/* Values from a threshold on, up to 256: their complements. */
static void solarize(uint8_t *bytes, size_t count, int threshold) {
    if (threshold > 255) return;
    const uint8_t least = (uint8_t)threshold;
    for (size_t i = 0; i < count; i++)
        bytes[i] = bytes[i] < least ? bytes[i] : (uint8_t)~bytes[i];
}

/* Values below a threshold get so many more. */
static void solarize_add(uint8_t *bytes, size_t count, int more, int threshold) {
    uint8_t table[256];
    for (int v = 0; v < 256; v++) table[v] = byte_of(v < threshold ? v + more : v);
    replace_bytes(table, bytes, count);
}

/* How many bytes are below a threshold: any number, but no NaN. */
static int bytes_below(double threshold) {
    if (threshold <= 0) return 0;
    if (threshold > 255) return 256;
    int whole = (int)threshold;
    return whole + (whole < threshold);
}

/* A status. */
static int change_tones(Canvas *canvas, const Operation *operation) {
    const size_t bytes = canvas->plane * (size_t)canvas->channels;
    const double value = operation->values[0];
    float factor = (float)value;
    uint8_t *image = canvas->image;
    switch (operation->operator) {
    case BRIGHTNESS: case CONTRAST: case SATURATION: case SHARPNESS:
        if (!(factor - factor == 0)) return REQUEST;  /* infinite, or NaN */
        if (factor == 1.0f) return MADE;
        factor = factor < -FARTHEST ? -FARTHEST : factor > FARTHEST ? FARTHEST : factor;
        if (operation->operator == BRIGHTNESS) blend_from(0, factor, image, bytes);
        else if (operation->operator == CONTRAST) change_contrast(canvas, factor);
        else if (operation->operator == SATURATION) change_saturation(canvas, factor);
        else return change_sharpness(canvas, factor);
        return MADE;
    case HUE:
        if (!(value >= 0 && value < 256)) return REQUEST;
        change_hue(canvas, (int)value);
        return MADE;
    case GRAYSCALE:
        change_saturation(canvas, 0.0f);
        return MADE;
    case INVERT:
        for (size_t i = 0; i < bytes; i++) image[i] = (uint8_t)~image[i];
        return MADE;
    case POSTERIZE: {
        if (!(value >= 0 && value < 9)) return REQUEST;
        const uint8_t mask = (uint8_t)(0xFF00 >> (int)value);
        for (size_t i = 0; i < bytes; i++) image[i] &= mask;
        return MADE;
    }
    case SOLARIZE:
        if (value != value) return REQUEST;
        solarize(image, bytes, bytes_below(value));
        return MADE;
    case SOLARIZE_ADD:
        if (!(value >= -255 && value < 256) || operation->values[1] != operation->values[1])
            return REQUEST;
        solarize_add(image, bytes, (int)value, bytes_below(operation->values[1]));
        return MADE;
    case EQUALIZE: case AUTOCONTRAST:
        for (int c = 0; c < canvas->channels; c++) {
            uint8_t *plane = image + (size_t)c * canvas->plane;
            if (operation->operator == EQUALIZE) equalize(plane, canvas->plane);
            else stretch(plane, canvas->plane);
        }
        return MADE;
    default:
        return REQUEST;
    }
}
