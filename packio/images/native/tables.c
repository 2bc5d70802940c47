/* Huffman tables: what the next bits of a scan mean.

   A lookup of 13 bits gives up to four coefficients at once. Making such tables takes as long as
   decoding a small photograph, so those of a thread are kept. Tables that are met for the first time
   have 10 bits, which takes a tenth of that.

   Source: ITU-T T.81 (1992), annexes C (codes) and F.1.2 (symbols). */

#include "core.h"

const Entry packio_stopped[(1 << LARGE_BITS) + 1] = {{0, {0}}}; /* values are read by eight */

enum { WORTH_LARGE = 3 };  /* images of a thread with the same tables */

int packio_codes(Codes *table, const uint8_t *counts, int bits, int is_dc) {
    int code = 0, index = 0;
    table->bits = bits;
    table->is_dc = is_dc;
    memset(table->single, 0, sizeof *table->single << bits);
    for (int length = 1; length <= 16; length++) {
        table->first[length] = index - code;
        if (code + counts[length - 1] >= 1 << length && counts[length - 1])
            return DAMAGED; /* too many codes, or one of ones alone */
        for (int i = 0; i < counts[length - 1]; i++, index++, code++) {
            int symbol = table->symbols[index] = counts[16 + index];
            if (is_dc && symbol > 15) return DAMAGED;
            if (length > bits) continue;
            uint16_t found = (uint16_t)(symbol << 8 | length);
            uint16_t *at = table->single + (code << (bits - length));
            for (int k = 0; k < 1 << (bits - length); k++) at[k] = found;
        }
        table->limit[length] = code << (16 - length);
        code <<= 1;
    }
    return MADE;
}

/* The coefficient that `size` bits say. */
static int extended(int value, int size) {
    return size && value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

static Entry combined(const Codes *table, const Codes *ac, uint32_t index) {
    int bits = table->bits, used = 0, passed = 0, zeros = 0, count = 0, ended = 0;
    uint32_t mask = (1u << bits) - 1;
    Entry entry = {0, {0}};
    while (count < 4) {
        uint32_t next = (index << used) & mask;
        int found = table->single[next], length = found & 255, symbol = found >> 8;
        int run = table->is_dc ? 0 : symbol >> 4, size = table->is_dc ? symbol : symbol & 15;
        if (!length || size > 11 || used + length + size > bits) break;
        if (!size && !table->is_dc) {
            if (run == 15 && !passed) { /* sixteen zeros */
                passed = 16;
                used += length;
                continue;
            }
            ended = run == 0;
            if (ended) used += length;
            break;
        }
        int value = extended((int)(next >> (bits - length - size)) & ((1 << size) - 1), size);
        if (value < -127 || value > 127 || (count && passed + run - zeros > 3)) break;
        if (!count) zeros = passed + run;
        entry.values[passed + run - zeros] = (int8_t)value;
        passed += run + 1;
        used += length + size;
        count++;
        table = ac;
    }
    /* 64 positions are too many: the one symbol that follows is read alone */
    entry.meta = used ? (uint32_t)(used | passed << 8 | zeros << 16) : 64u << 8;
    if (ended) entry.meta |= 127u << 24;
    return entry;
}

static Table *new_table(int bits) {
    size_t entries = sizeof(Entry) << bits, single = sizeof(uint16_t) << bits;
    Table *table = calloc(1, sizeof(Table) + entries + single);
    if (table) table->codes.single = (uint16_t *)((uint8_t *)table->entries + entries);
    return table;
}

static void drop(Pair *pair) {
    free(pair->dc);
    free(pair->ac);
    pair->dc = pair->ac = NULL;
}

static int make(Pair *pair, const uint8_t *dc, const uint8_t *ac, int bits) {
    pair->dc = new_table(bits);
    pair->ac = new_table(bits);
    int status = pair->dc && pair->ac ? MADE : MEMORY;
    if (!status) status = packio_codes(&pair->ac->codes, ac, bits, 0);
    if (!status) status = packio_codes(&pair->dc->codes, dc, bits, 1);
    if (status) {
        drop(pair);
        return status;
    }
    for (uint32_t i = 0; i < 1u << bits; i++) {
        pair->dc->entries[i] = combined(&pair->dc->codes, &pair->ac->codes, i);
        pair->ac->entries[i] = combined(&pair->ac->codes, &pair->ac->codes, i);
    }
    return MADE;
}

size_t packio_codes_size(const uint8_t *codes) {
    size_t size = 16;
    for (int i = 0; i < 16; i++) size += codes[i];
    return size;
}

static void drop_all(Scratch *scratch, int place) {
    drop(&scratch->cached[place].small);
    drop(&scratch->cached[place].large);
    for (int i = 0; i < 2; i++) {
        free(scratch->cached[place].steps[i]);
        scratch->cached[place].steps[i] = NULL;
    }
}

/* The place of some codes among those that are kept; they may be new there. */
static int place_of(Scratch *scratch, const uint8_t *dc, const uint8_t *ac) {
    size_t sizes[2] = {packio_codes_size(dc), packio_codes_size(ac)};
    int oldest = 0;
    for (int i = 0; i < CACHED; i++) {
        if ((scratch->cached[i].small.dc || scratch->cached[i].steps[0]) &&
            !memcmp(scratch->cached[i].codes[0], dc, sizes[0]) &&
            !memcmp(scratch->cached[i].codes[1], ac, sizes[1]))
            return i;
        if (scratch->cached[i].used < scratch->cached[oldest].used) oldest = i;
    }
    drop_all(scratch, oldest);
    memcpy(scratch->cached[oldest].codes[0], dc, sizes[0]);
    memcpy(scratch->cached[oldest].codes[1], ac, sizes[1]);
    scratch->cached[oldest].times = 0;
    return oldest;
}

int packio_tables(Scratch *scratch, const Jpeg *jpeg, Pair pairs[3]) {
    int places[3], large = 1;
    scratch->clock++;
    for (int c = 0; c < jpeg->components; c++) {
        int status = MADE, place = place_of(scratch, jpeg->dc[c], jpeg->ac[c]);
        if (!scratch->cached[place].small.dc)
            status = make(&scratch->cached[place].small, jpeg->dc[c], jpeg->ac[c], SMALL_BITS);
        if (status) return status;
        scratch->cached[place].used = scratch->clock;
        places[c] = place;
        if (scratch->cached[place].times < WORTH_LARGE) {
            scratch->cached[place].times++;
            large = 0;
        }
    }
    for (int c = 0; c < jpeg->components; c++) {
        int place = places[c];
        if (large && !scratch->cached[place].large.dc &&
            make(&scratch->cached[place].large, jpeg->dc[c], jpeg->ac[c], LARGE_BITS))
            return MEMORY;
        pairs[c] = large ? scratch->cached[place].large : scratch->cached[place].small;
    }
    return MADE;
}

int packio_steps(Scratch *scratch, int components, const uint8_t *const *dc, const uint8_t *const *ac,
                 Pattern *pattern) {
    scratch->clock++;
    for (int c = 0; c < components; c++) {
        int place = place_of(scratch, dc[c], ac[c]);
        Steps **steps = scratch->cached[place].steps;
        int status = steps[0] ? MADE : packio_make_steps(dc[c], ac[c], steps);
        if (status) return status;
        scratch->cached[place].used = scratch->clock;
        pattern->dc[c] = steps[0];
        pattern->ac[c] = steps[1];
    }
    return MADE;
}

void packio_drop_tables(Scratch *scratch) {
    for (int i = 0; i < CACHED; i++) drop_all(scratch, i);
}
