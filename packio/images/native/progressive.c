/* Progressive JPEGs: all scans, into the coefficients of all blocks.

   Whatever is not as an encoder writes it is declined: scans that do not refine each other bit by
   bit, coefficients that no scan completes (libjpeg smooths such blocks), bytes that are left over.

   Source: ITU-T T.81 (1992), annex G. */

#include "core.h"

enum { EOI = 0xD9, RST0 = 0xD0, DHT = 0xC4, DRI = 0xDD, SOS = 0xDA, APP0 = 0xE0, APP15 = 0xEF };
enum { COM = 0xFE, UNKNOWN = -1 };
/* Decode the segments of a scan. A status; *at becomes the place of the marker behind them. */
static int read_scan(Scratch *scratch, const Jpeg *jpeg, Scan *s, const Coefficients *all, size_t *at) {
    size_t size = (size_t)(jpeg->end - jpeg->data);
    int mcus = s->rows * s->columns, interval = jpeg->interval ? jpeg->interval : mcus;
    for (int mcu = 0, number = 0; mcu < mcus; number++) {
        size_t stop = packio_next_marker(jpeg->data, *at, size);
        if (!stop) return DAMAGED;
        uint8_t *clean = packio_reserve(&scratch->clean, stop - *at + SCAN_MORE);
        if (!clean) return MEMORY;
        int64_t length = packio_kernels()->unstuff(clean, jpeg->data + *at, stop - *at, jpeg->end);
        if (length < 0) return DAMAGED;
        memset(clean + length, 0, SCAN_MORE);
        int last = mcus - mcu < interval ? mcus : mcu + interval;
        int status = packio_kernels()->scan(jpeg, s, all, mcu, last, clean, clean + length);
        if (status) return status;
        *at = stop;
        mcu = last;
        if (mcu == mcus) return MADE;
        if (jpeg->data[stop + 1] != RST0 + number % 8) return DAMAGED;
        *at += 2;
    }
    return MADE;
}

/* Read what a scan is. A status; `known` is what is known of each coefficient, in bits that lack. */
static int read_scan_header(const Jpeg *jpeg, const uint8_t *at, int length, Scan *s,
                            const ScanCodes tables[2][4], unsigned there, int8_t known[3][64]) {
    int count = length ? at[0] : 0;
    if (count < 1 || count > jpeg->components || length != 4 + 2 * count) return DAMAGED;
    const uint8_t *end = at + 1 + 2 * count;
    int c = 0;
    *s = (Scan){.count = count, .first = end[0], .last = end[1], .high = end[2] >> 4, .low = end[2] & 15};
    if (s->first > s->last || s->last > 63 || (!s->first && s->last) || (s->first && count > 1))
        return DAMAGED;
    if (s->low > 10 || (s->high && s->high != s->low + 1)) return DAMAGED;
    for (int i = 0; i < count; i++) {
        int dc = at[2 + 2 * i] >> 4, ac = at[2 + 2 * i] & 15;
        for (c = 0; c < jpeg->components && jpeg->ids[c] != at[1 + 2 * i];) c++;
        if (c == jpeg->components || (i && c <= s->components[i - 1]) || dc > 3 || ac > 3) return DAMAGED;
        s->components[i] = c;
        if (s->first) {
            if (known[c][0] == UNKNOWN || !(there >> 4 >> ac & 1)) return DAMAGED;
            s->ac = &tables[1][ac];
        } else if (!s->high) {
            if (!(there >> dc & 1)) return DAMAGED;
            s->dc[i] = &tables[0][dc];
        }
        for (int k = s->first; k <= s->last; k++) {
            if (known[c][k] != (s->high ? s->high : UNKNOWN)) return DAMAGED;
            known[c][k] = (int8_t)s->low;
        }
    }
    s->rows = jpeg->rows, s->columns = jpeg->columns;
    if (count == 1) { /* blocks that the component has, and no more */
        int high = 8 * (c ? jpeg->down : 1), broad = 8 * (c ? jpeg->across : 1);
        s->rows = (jpeg->height + high - 1) / high;
        s->columns = (jpeg->width + broad - 1) / broad;
    }
    return MADE;
}

static int read_codes(const uint8_t *at, const uint8_t *end, ScanCodes tables[2][4], unsigned *there) {
    while (at < end) {
        if (end - at < 17) return DAMAGED;
        int kind = at[0] >> 4, id = at[0] & 15;
        if (kind > 1 || id > 3) return DAMAGED;
        size_t size = packio_codes_size(at + 1);
        if (size > 16 + 256 || (size_t)(end - at) < 1 + size) return DAMAGED;
        ScanCodes *table = &tables[kind][id];
        table->codes.single = table->single;
        int status = packio_codes(&table->codes, at + 1, SCAN_BITS, !kind);
        if (status) return status;
        *there |= 1u << (4 * kind + id);
        at += 1 + size;
    }
    return MADE;
}

/* Decode all scans. A status; `all` has the coefficients, in the memory of the thread. */
int packio_scans(Scratch *scratch, Jpeg *jpeg, Coefficients *all) {
    ScanCodes tables[2][4];
    unsigned there = 0;
    int8_t known[3][64];
    memset(known, UNKNOWN, sizeof known);
    size_t blocks = (size_t)jpeg->rows * (size_t)jpeg->columns * (size_t)jpeg->blocks;
    size_t size = (size_t)(jpeg->end - jpeg->data), at = 2;
    if (blocks > MOST_KEPT) return KIND;
    int16_t *memory = packio_reserve(&scratch->second, blocks * 64 * sizeof *memory);
    if (!memory) return MEMORY;
    memset(memory, 0, blocks * 64 * sizeof *memory);
    for (int c = 0; c < jpeg->components; c++) {
        all->of[c] = memory;
        all->columns[c] = (size_t)jpeg->columns * (size_t)(c ? 1 : jpeg->across);
        memory += 64 * all->columns[c] * (size_t)jpeg->rows * (size_t)(c ? 1 : jpeg->down);
    }
    jpeg->interval = 0; /* it is read again */
    for (;;) {
        if (size - at < 2 || jpeg->data[at] != 0xFF) return DAMAGED;
        int marker = jpeg->data[at + 1], status = MADE;
        if (marker == EOI) break;
        if (size - at < 4) return DAMAGED;
        int length = (jpeg->data[at + 2] << 8 | jpeg->data[at + 3]) - 2;
        if (length < 0 || (size_t)length > size - at - 4) return DAMAGED;
        const uint8_t *content = jpeg->data + at + 4;
        at += 4 + (size_t)length;
        if (marker == DHT) {
            status = read_codes(content, content + length, tables, &there);
        } else if (marker == DRI) {
            if (length != 2) return DAMAGED;
            jpeg->interval = content[0] << 8 | content[1];
        } else if (marker == SOS) {
            Scan scan;
            status = read_scan_header(jpeg, content, length, &scan, tables, there, known);
            if (!status) status = read_scan(scratch, jpeg, &scan, all, &at);
        } else if (at > jpeg->scan && !(marker >= APP0 && marker <= APP15) && marker != COM) {
            return KIND; /* other quantisers for later scans, … */
        }
        if (status) return status;
    }
    for (int c = 0; c < jpeg->components; c++)
        for (int k = 0; k < 64; k++)
            if (known[c][k]) return KIND; /* blocks that libjpeg smooths */
    return MADE;
}
