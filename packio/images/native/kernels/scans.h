/* One scan of a progressive JPEG: see progressive.c.

   A scan that refines coefficients reads a bit for each that is not 0, among the codes of those that
   become so. Which are not 0 is a mask of a block, so that bits are read several at once, and added
   to all of the block at the end.

   Source: ITU-T T.81 (1992), annex G.1.2. */

enum { MOST_AC = 1023 };

/* The bits of a segment, left-justified. */
typedef struct {
    const uint8_t *at;
    uint64_t bits;
    int held, run;  /* run: blocks that have ended already */
} Bits;

INLINE void refill(Bits *b) {
    b->bits |= next_bits(b->at) >> b->held;
    b->at += (63 - b->held) >> 3;
    b->held |= 56;
}

/* The next bits, fewer than 32; there are as many. */
INLINE unsigned take_bits(Bits *b, int count) {
    unsigned value = (unsigned)(b->bits >> 32 >> (32 - count));
    b->bits <<= count;
    b->held -= count;
    return value;
}

/* The next symbol; -1: no such code. 40 bits are left at least. */
INLINE int symbol(Bits *b, const ScanCodes *table) {
    refill(b);
    int found = table->single[b->bits >> (64 - SCAN_BITS)], length = found & 255;
    if (UNLIKELY(!length)) {
        const Codes *codes = &table->codes;
        int32_t code = (int32_t)(b->bits >> 48);
        for (length = SCAN_BITS + 1; length <= 16 && code >= codes->limit[length];) length++;
        if (length > 16) return -1;
        found = codes->symbols[((code >> (16 - length)) + codes->first[length]) & 255] << 8;
    }
    b->bits <<= length;
    b->held -= length;
    return found >> 8;
}

INLINE int value_of(Bits *b, int size) {
    int value = (int)take_bits(b, size);
    return value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

static int first_of_ac(Bits *b, const Scan *s, int16_t *block) {
    for (int k = s->first; k <= s->last; k++) {
        int found = symbol(b, s->ac), zeros = found >> 4, size = found & 15;
        if (found < 0 || size > 10) return DAMAGED;
        if (!size && zeros < 15) {
            b->run = (1 << zeros) - 1 + (zeros ? (int)take_bits(b, zeros) : 0);
            return MADE;
        }
        k += zeros;
        if (!size) continue;
        int value = value_of(b, size) * (1 << s->low);
        if (k > s->last || value > MOST_AC || value < -MOST_AC) return DAMAGED;
        block[k] = (int16_t)value;
    }
    return MADE;
}

#ifdef AVX2

/* Which coefficients of a block are not 0. */
INLINE uint64_t nonzero_of(const int16_t *block) {
    const __m256i *at = (const void *)block, zero = _mm256_setzero_si256();
    __m256i a = _mm256_packs_epi16(_mm256_cmpeq_epi16(at[0], zero), _mm256_cmpeq_epi16(at[1], zero));
    __m256i b = _mm256_packs_epi16(_mm256_cmpeq_epi16(at[2], zero), _mm256_cmpeq_epi16(at[3], zero));
    unsigned low = (unsigned)_mm256_movemask_epi8(_mm256_permute4x64_epi64(a, 0xD8));
    unsigned high = (unsigned)_mm256_movemask_epi8(_mm256_permute4x64_epi64(b, 0xD8));
    return ~(low | (uint64_t)high << 32);
}

/* Add a bit to some coefficients, away from 0. */
INLINE void add_bit(int16_t *block, uint64_t which, int bit) {
    const __m256i each = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                           8192, 16384, -32768);
    __m256i *at = (void *)block, added = _mm256_set1_epi16((short)bit);
    for (int i = 0; i < 4; i++) {
        __m256i has = _mm256_and_si256(_mm256_set1_epi16((short)(which >> 16 * i)), each);
        __m256i own = _mm256_and_si256(_mm256_cmpeq_epi16(has, each), added);
        at[i] = _mm256_add_epi16(at[i], _mm256_sign_epi16(own, at[i]));
    }
}

/* The bit number `n` of those that are set, alone; 0: there are fewer. */
INLINE uint64_t bit_of(uint64_t set, int n) { return _pdep_u64(UINT64_C(1) << n, set); }
INLINE uint64_t spread_bits(uint64_t bits, uint64_t to) { return _pdep_u64(bits, to); }

#else

INLINE uint64_t nonzero_of(const int16_t *block) {
    uint64_t mask = 0;
    for (int k = 0; k < 64; k++) mask |= (uint64_t)(block[k] != 0) << k;
    return mask;
}

INLINE void add_bit(int16_t *block, uint64_t which, int bit) {
    for (; which; which &= which - 1) {
        int16_t *value = block + __builtin_ctzll(which);
        *value = (int16_t)(*value + (*value < 0 ? -bit : bit));
    }
}

INLINE uint64_t bit_of(uint64_t set, int n) {
    while (n-- > 0) set &= set - 1;
    return set & (~set + 1);
}

INLINE uint64_t spread_bits(uint64_t bits, uint64_t to) {
    uint64_t out = 0;
    for (; to; to &= to - 1, bits >>= 1) out |= (to & (~to + 1)) * (bits & 1);
    return out;
}

#endif

/* Read a bit for each of some coefficients. For which it is 1. */
INLINE uint64_t read_bits(Bits *b, uint64_t which) {
    uint64_t found = 0;
    while (which) {
        int count = __builtin_popcountll(which);
        count = count < 8 ? count : 8;
        if (b->held < 8) refill(b);
        uint32_t bits = take_bits(b, count) << (8 - count);
        bits = (uint32_t)((bits * UINT64_C(0x80200802) & UINT64_C(0x0884422110)) *
                          UINT64_C(0x0101010101) >> 32) & 0xFF; /* the first one lowest */
        uint64_t some = which & (bit_of(which, count) - 1);
        found |= spread_bits(bits, some);
        which ^= some;
    }
    return found;
}

static int more_of_ac(Bits *b, const Scan *s, int16_t *block) {
    const uint64_t span = (~UINT64_C(0) >> (63 - s->last)) & (~UINT64_C(0) << s->first);
    uint64_t there = nonzero_of(block) & span, added = 0, left = span; /* left: not passed yet */
    while (!b->run && left) {
        int found = symbol(b, s->ac), zeros = found >> 4, size = found & 15, value = 0;
        if (found < 0 || size > 1) return DAMAGED;
        if (size) {
            value = (int)take_bits(b, 1) * 2 - 1;
        } else if (zeros < 15) {
            b->run = (1 << zeros) + (zeros ? (int)take_bits(b, zeros) : 0);
            break;
        }
        uint64_t place = bit_of(left & ~there, zeros), before = left & (place - 1);
        added |= read_bits(b, before & there); /* all that are left, if there is no such place */
        left ^= before | place;
        if (!value) continue;
        if (!place) return DAMAGED;
        block[__builtin_ctzll(place)] = (int16_t)(value * (1 << s->low));
    }
    if (b->run) {
        added |= read_bits(b, left & there);
        b->run--;
    }
    if (added) add_bit(block, added, 1 << s->low);
    return MADE;
}

static int one_block(Bits *b, const Scan *s, const ScanCodes *codes, int *dc, int16_t *block) {
    if (s->high) {
        refill(b);
        block[0] = (int16_t)(block[0] | (int)take_bits(b, 1) * (1 << s->low));
        return MADE;
    }
    int size = symbol(b, codes);
    if (size < 0 || size > 11) return DAMAGED;
    *dc += size ? value_of(b, size) : 0;
    int value = *dc * (1 << s->low);
    if (value > MOST_DC || value < -MOST_DC - 1) return DAMAGED;
    block[0] = (int16_t)value;
    return MADE;
}

/* Decode the MCUs of a segment. A status. */
static int scan(const Jpeg *jpeg, const Scan *s, const Coefficients *all, int mcu, int last,
                const uint8_t *clean, const uint8_t *end) {
    Bits b = {clean, 0, 0, 0};
    int dc[3] = {0, 0, 0}, row = mcu / s->columns, column = mcu % s->columns, c = s->components[0];
    for (; mcu < last; mcu++) {
        int status = MADE;
        if (s->count == 1) {
            int16_t *block = all->of[c] + 64 * ((size_t)row * all->columns[c] + (size_t)column);
            if (!s->first) status = one_block(&b, s, s->dc[0], dc, block);
            else if (s->high) status = more_of_ac(&b, s, block);
            else if (b.run) b.run--;
            else status = first_of_ac(&b, s, block);
        } else {
            for (int n = 0, i; n < jpeg->blocks && !status; n++) {
                for (i = 0; i < s->count && s->components[i] != jpeg->block_component[n];) i++;
                if (i < s->count)
                    status = one_block(&b, s, s->dc[i], dc + i, packio_block(jpeg, all, row, column, n));
            }
        }
        if (status) return status;
        if (b.at > end + 8) return DAMAGED;
        if (++column == s->columns) column = 0, row++;
    }
    int64_t left = 8 * (end - b.at) + b.held;
    return left < 0 || left > 7 || b.run ? DAMAGED : MADE;
}
