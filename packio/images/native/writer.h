/* Writing the bits of a scan. */

/* What is written: whole bytes, then up to 7 bits, left-justified. */
typedef struct {
    uint8_t *at;
    uint64_t held;
    int count;
} Writer;

INLINE uint64_t swapped(uint64_t word) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Write up to 56 bits, behind which are zeros. */
INLINE void put(Writer *w, uint64_t bits, int count) {
    uint64_t word = w->held | bits >> w->count;
    count += w->count;
    if (LIKELY(!((~word - UINT64_C(0x0101010101010101)) & word & UINT64_C(0x8080808080808080)))) {
        uint64_t bytes = swapped(word);
        memcpy(w->at, &bytes, 8);
        w->at += count >> 3;
        w->held = word << (count & ~7);
        w->count = count & 7;
        return;
    }
    for (; count >= 8; count -= 8, word <<= 8) { /* an FF is among them, perhaps */
        *w->at++ = (uint8_t)(word >> 56);
        if (word >> 56 == 0xFF) *w->at++ = 0;
    }
    w->held = word;
    w->count = count;
}

static void end_segment(Writer *w, int marker) {
    if (w->count) put(w, ~UINT64_C(0) << (56 + w->count), 8 - w->count);
    *w->at++ = 0xFF;
    *w->at++ = (uint8_t)marker;
}
