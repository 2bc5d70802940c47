/* Open coefficients to samples: see open.c. */

#ifdef AVX2

/* A group's kind and mask -> where its values go, in bytes; and how many bytes they have. */
static uint64_t SPREAD[4][256];
static uint8_t TAKEN[4][256];
static uint64_t SPREAD_16[16]; /* as SPREAD, for four values of 16 bits */
static const uint8_t SIGNS[4] = {0, 0x02, 0x08, 0x80};

static __attribute__((constructor)) void find_spread(void) {
    static const int bits[4] = {0, 2, 4, 8};
    for (int kind = 1; kind < 4; kind++)
        for (int mask = 0; mask < 256; mask++) {
            for (int i = 0; i < 8; i++)
                if (mask >> i & 1) SPREAD[kind][mask] |= ((UINT64_C(1) << bits[kind]) - 1) << 8 * i;
            TAKEN[kind][mask] = (uint8_t)((__builtin_popcount((unsigned)mask) * bits[kind] + 7) / 8);
        }
    for (int mask = 0; mask < 16; mask++)
        for (int i = 0; i < 4; i++)
            if (mask >> i & 1) SPREAD_16[mask] |= UINT64_C(0xFFFF) << 16 * i;
}

INLINE uint64_t eight(const uint8_t *at) {
    uint64_t bytes;
    memcpy(&bytes, at, 8);
    return bytes;
}

/* The masks of a block's groups, a byte each; they are the first of its values. */
INLINE uint64_t masks_of(unsigned kinds, const uint8_t *values, int *count) {
    unsigned there = (kinds | kinds >> 1) & 0x5555;
    *count = __builtin_popcount(there);
    uint64_t groups = _pdep_u64(_pext_u64(there, 0x5555), UINT64_C(0x0101010101010101)) * 255;
    return _pdep_u64(eight(values), groups);
}

/* Expand the first groups. Where the values go on. */
INLINE const uint8_t *expand_groups(int16_t *to, unsigned kinds, uint64_t masks, const uint8_t *at,
                                    const int groups) {
    for (int i = 0; i < groups; i += 2) {
        unsigned kind = kinds & 3, kind2 = kinds >> 2 & 3, mask = masks & 255, mask2 = masks >> 8 & 255;
        uint64_t a = _pdep_u64(eight(at), SPREAD[kind][mask]);
        at += TAKEN[kind][mask];
        uint64_t b = _pdep_u64(eight(at), SPREAD[kind2][mask2]);
        at += TAKEN[kind2][mask2];
        uint64_t sign = SIGNS[kind] * UINT64_C(0x0101010101010101);
        uint64_t sign2 = SIGNS[kind2] * UINT64_C(0x0101010101010101);
        __m128i signs = _mm_set_epi64x((long long)sign2, (long long)sign);
        __m128i values = _mm_xor_si128(_mm_set_epi64x((long long)b, (long long)a), signs);
        values = _mm_sub_epi8(values, signs);
        _mm256_store_si256((__m256i *)(to + 8 * i), _mm256_cvtepi8_epi16(values));
        kinds >>= 4;
        masks >>= 16;
    }
    return at;
}

/* As expand_groups, of all groups; behind the masks a byte tells those of kind 3 that have 16 bits. */
static __attribute__((noinline)) const uint8_t *expand_wide(int16_t *to, unsigned kinds,
                                                            uint64_t masks, const uint8_t *at) {
    unsigned wide = *at++;
    for (int i = 0; i < 8; i++, kinds >>= 2, masks >>= 8, wide >>= 1, to += 8) {
        unsigned kind = kinds & 3, mask = masks & 255;
        if (kind == 3 && wide & 1) {
            uint64_t a = _pdep_u64(eight(at), SPREAD_16[mask & 15]);
            at += 2 * __builtin_popcount(mask & 15);
            uint64_t b = _pdep_u64(eight(at), SPREAD_16[mask >> 4]);
            at += 2 * __builtin_popcount(mask >> 4);
            _mm_store_si128((__m128i *)to, _mm_set_epi64x((long long)b, (long long)a));
            continue;
        }
        __m128i signs = _mm_set1_epi8((char)SIGNS[kind]);
        uint64_t a = _pdep_u64(eight(at), SPREAD[kind][mask]);
        at += TAKEN[kind][mask];
        __m128i values = _mm_xor_si128(_mm_cvtsi64_si128((long long)a), signs);
        _mm_store_si128((__m128i *)to, _mm_cvtepi8_epi16(_mm_sub_epi8(values, signs)));
    }
    return at;
}

static uint64_t NOT_FEW;  /* coefficients, in code order, that are not in the first four rows and columns */

static __attribute__((constructor)) void find_not_few(void) {
    for (int k = 0; k < 64; k++)
        if ((packio_zigzag[k] >> 3) > 3 || (packio_zigzag[k] & 7) > 3) NOT_FEW |= UINT64_C(1) << k;
}

/* Expand a block as far as its kind is read. Its kind; *values is behind it. */
INLINE int expand_block(int16_t *to, unsigned kinds, const uint8_t **values, int all) {
    if (!kinds) {
        if (all) clear(to);
        return FLAT;
    }
    int count;
    uint64_t masks = masks_of(kinds, *values, &count);
    const uint8_t *at = *values + count;
    if (UNLIKELY(masks & 1)) {
        *values = expand_wide(to, kinds, masks & ~UINT64_C(1), at);
        return ANY;
    }
    if (kinds >> 8 || all) {
        *values = expand_groups(to, kinds, masks, at, 8);
        return ANY;
    }
    *values = expand_groups(to, kinds, masks, at, 4);
    return masks & NOT_FEW ? HALF : FEW;
}

/* Expand all of a block but its DC, and say which coefficients are not 0. Where the next begins. */
static const uint8_t *expand_whole(int16_t *to, unsigned kinds, const uint8_t *values, uint64_t *masks) {
    int count;
    *masks = kinds ? masks_of(kinds, values, &count) & ~UINT64_C(1) : 0;
    expand_block(to, kinds, &values, 1);
    return values;
}

/* Write the groups of a block. Their kinds; *end is behind its values. */
static unsigned compact(const int16_t *block, uint8_t *at, uint8_t **end) {
    uint64_t bytes[8];
    unsigned masks[8], kinds = 0, wide = 0;
    for (int i = 0; i < 8; i++) {
        __m128i group = _mm_loadu_si128((const void *)(block + 8 * i));
        if (!i) group = _mm_insert_epi16(group, 0, 0);
        __m128i narrow = _mm_packs_epi16(group, _mm_setzero_si128());
        bytes[i] = (uint64_t)_mm_cvtsi128_si64(narrow);
        masks[i] = ~(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(narrow, _mm_setzero_si128())) & 255;
        if (!masks[i]) continue;
        __m128i size = _mm_xor_si128(group, _mm_srai_epi16(group, 15)); /* below 2, 8, 128 */
        unsigned kind = 1 + !_mm_testz_si128(size, _mm_set1_epi16(~1)) + !_mm_testz_si128(size, _mm_set1_epi16(~7));
        wide |= (unsigned)!_mm_testz_si128(size, _mm_set1_epi16(~127)) << i;
        kinds |= kind << 2 * i;
    }
    if (wide && !masks[0]) kinds |= 1;
    for (int i = 0; i < 8; i++) {
        *at = (uint8_t)(masks[i] | (!i && wide));
        at += (kinds >> 2 * i & 3) != 0;
    }
    if (wide) *at++ = (uint8_t)wide;
    for (int i = 0; i < 8; i++) {
        unsigned kind = kinds >> 2 * i & 3;
        if (wide >> i & 1) {
            for (unsigned left = masks[i]; left; left &= left - 1, at += 2)
                memcpy(at, block + 8 * i + __builtin_ctz(left), 2);
            continue;
        }
        uint64_t packed = _pext_u64(bytes[i], SPREAD[kind][masks[i]]);
        memcpy(at, &packed, 8);
        at += TAKEN[kind][masks[i]];
    }
    *end = at;
    return kinds;
}

#else

static const int BITS_OF_KIND[4] = {0, 2, 4, 8};

static const uint8_t *expand_whole(int16_t *to, unsigned kinds, const uint8_t *values, uint64_t *masks) {
    const uint8_t *mask = values;
    *masks = 0;
    for (unsigned left = kinds; left; left >>= 2) values += (left & 3) != 0;
    unsigned wide = kinds & 3 && *mask & 1 ? *values++ : 0;
    memset(to, 0, 64 * sizeof *to);
    for (int group = 0; group < 8; group++, kinds >>= 2, wide >>= 1, to += 8) {
        if (!(kinds & 3)) continue;
        uint64_t own = *mask++ & (group ? 0xFF : 0xFE);
        *masks |= own << 8 * group;
        int bits = BITS_OF_KIND[kinds & 3] << (wide & 1 && (kinds & 3) == 3), used = 0;
        int high = 1 << (bits - 1);
        for (int i = 0; i < 8; i++) {
            if (!(own >> i & 1)) continue;
            int value = values[used >> 3] >> (used & 7);
            if (bits == 16) value |= values[(used >> 3) + 1] << 8;
            to[i] = (int16_t)(((value & (2 * high - 1)) ^ high) - high);
            used += bits;
        }
        values += (used + 7) >> 3;
    }
    return values;
}

static unsigned compact(const int16_t *block, uint8_t *at, uint8_t **end) {
    unsigned kinds = 0, masks[8] = {0}, wide = 0;
    for (int k = 1; k < 64; k++) {
        int value = block[k], size = value < 0 ? ~value : value;
        unsigned kind = !value ? 0 : size < 2 ? 1 : size < 8 ? 2 : 3, group = (unsigned)k >> 3;
        masks[group] |= (unsigned)(value != 0) << (k & 7);
        wide |= (unsigned)(size > 127) << group;
        if (kind > (kinds >> 2 * group & 3)) kinds = (kinds & ~(3u << 2 * group)) | kind << 2 * group;
    }
    if (wide && !masks[0]) kinds |= 1;
    for (int i = 0; i < 8; i++)
        if (kinds >> 2 * i & 3) *at++ = (uint8_t)(masks[i] | (!i && wide));
    if (wide) *at++ = (uint8_t)wide;
    for (int i = 0; i < 8; i++) {
        int bits = BITS_OF_KIND[kinds >> 2 * i & 3] << (wide >> i & 1), used = 0;
        for (unsigned left = masks[i]; left; left &= left - 1) {
            unsigned value = (uint16_t)block[8 * i + __builtin_ctz(left)] & ((1u << bits) - 1);
            if (!(used & 7)) *at = 0;
            *at |= (uint8_t)(value << (used & 7));
            used += bits;
            if (!(used & 7)) at++;
            if (bits == 16) at[-1] = (uint8_t)value, *at++ = (uint8_t)(value >> 8);
        }
        at += (used & 7) != 0;
    }
    *end = at;
    return kinds;
}

INLINE int expand_block(int16_t *to, unsigned kinds, const uint8_t **values, int all) {
    uint64_t masks;
    if (!kinds && !all) return FLAT;
    *values = expand_whole(to, kinds, *values, &masks);
    return kinds ? ANY : FLAT;
}

#endif

/* Expand the blocks that a region needs, and put them into its planes. A status. */
static int expand(const Jpeg *jpeg, const Region *region, const Open *open) {
    int16_t blocks[AT_ONCE * 64] __attribute__((aligned(64)));
    Waitings w;
    memset(w.count, 0, sizeof w.count);
    w.is_scaled = region->high[0] != 8;
    int bad = 0;
    for (int c = 0; c < jpeg->components; c++) {
        Sort sort = {jpeg->quant[c], region->stride[c], region->high[c], region->broad[c]};
        size_t columns = (size_t)open->columns[c], runs = (columns + A_PLACE - 1) / A_PLACE;
        int used = 0, first = region->x0[c] - region->x0[c] % A_PLACE;
        for (int y = region->y0[c]; y < region->y1[c]; y++) {
            const uint8_t *place = open->places[c] + 4 * (runs * (size_t)y + (size_t)first / A_PLACE);
            const uint8_t *values = NULL;
            const uint8_t *block = open->blocks[c] + 4 * (columns * (size_t)y + (size_t)first);
            uint8_t *to = row_of_blocks(region, c, y);
            for (int x = first; x < region->x1[c]; x++, block += 4) {
                int16_t *out = blocks + 64 * used;
                uint32_t told = packio_number(block), kinds = told >> 16;
                int dc = (int16_t)told;
                if (x % A_PLACE == 0) { /* what is made of a damaged image depends on no region */
                    uint32_t begin = packio_number(place);
                    if (begin > open->size || (values && values != open->values + begin)) return DAMAGED;
                    values = open->values + begin, place += 4;
                }
                if (UNLIKELY(values > open->limit)) return DAMAGED;
                if (x < region->x0[c]) {
                    if (kinds) expand_block(out, kinds, &values, 0);
                    continue;
                }
                int kind = expand_block(out, kinds, &values, w.is_scaled);
                out[0] = (int16_t)dc;
                bad |= dc > MOST_DC || dc < -MOST_DC - 1;
                COUNT(KINDS);
                list_block(&w, kind, c, out, to, &sort);
                to += region->broad[c];
                if (++used < AT_ONCE) continue;
                LAP(ENTROPY);
                bad |= put_waiting(&w, 1);
                LAP(IDCT);
                used = 0;
            }
        }
        LAP(ENTROPY);
        bad |= put_waiting(&w, 1);
        LAP(IDCT);
    }
    return bad ? DAMAGED : MADE;
}
