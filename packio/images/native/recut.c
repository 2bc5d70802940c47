/* Functions that write a scan with other restart intervals, without loss.

   All codes are moved as they are, but for some of DC coefficients: a coefficient is coded as the
   difference from the one before it in the segment, so those at the beginnings of segments change.
   The caller reads the header, and writes the new one.

   Source: ITU-T T.81 (1992), annexes B.1.1.5 (stuffing), F.1.2.1 (DC differences), F.2.2. */

#include "core.h"
#include "writer.h"

enum { EOI = 0xD9, RST0 = 0xD0 };

EXPORTED int64_t packio_recut(Scratch *scratch, const Recut *recut, const uint8_t *data, int64_t size,
                              uint8_t *out, int64_t room, int32_t *lengths, int32_t *used);

static uint64_t bits_from(const uint8_t *clean, uint64_t place) {
    uint64_t word;
    memcpy(&word, clean + (place >> 3), 8);
    return swapped(word) << (place & 7);
}

static void copy(Writer *w, const uint8_t *clean, uint64_t from, uint64_t to) {
    for (; from + 56 <= to; from += 56) put(w, bits_from(clean, from) & ~UINT64_C(0xFF), 56);
    int count = (int)(to - from);
    if (count) put(w, bits_from(clean, from) >> (64 - count) << (64 - count), count);
}

/* Write a DC difference. Whether there is a code for it. */
static int put_difference(Writer *w, int value, const int32_t *codes, int32_t *used) {
    int size = 0;
    while (abs(value) >> size) size++;
    if (size >= SIZES || !codes[size]) return 0;
    if (value < 0) value += (1 << size) - 1;
    int count = (codes[size] & 31) + size;
    put(w, ((uint64_t)(codes[size] >> 5) << size | (uint64_t)value) << (64 - count), count);
    *used |= 1 << size;
    return 1;
}

/* The bits of the code and the difference at a place: they were walked through. */
static int bits_of_difference(const Codes *codes, uint64_t bits) {
    int found = codes->single[bits >> (64 - codes->bits)], length = found & 255, symbol = found >> 8;
    if (length) return length + symbol;
    int32_t next = (int32_t)(bits >> 48);
    for (length = codes->bits + 1; length < 16 && next >= codes->limit[length];) length++;
    return length + codes->symbols[((next >> (16 - length)) + codes->first[length]) & 255];
}

/* A scan that was walked through. */
typedef struct {
    const Recut *recut;
    const Pattern *pattern;
    const uint8_t *clean;
    Walked walked;               /* behind each segment's blocks, one for its end */
    int segments;
} Passage;

/* Write MCUs of one segment; at both ends they may or may not be cut, or have been. */
static int write_piece(const Passage *scan, Writer *w, int from, int to, int32_t *used) {
    const Recut *r = scan->recut;
    size_t in_mcu = (size_t)r->blocks, segment = (size_t)(from / r->restarts);
    const uint32_t *places = scan->walked.places + segment;
    const int16_t *dc = scan->walked.dc + segment;
    int before[MOST_COMPONENTS] = {0}, done[MOST_COMPONENTS] = {0};
    size_t first = (size_t)from * in_mcu;
    if (from) /* the last block of each component counts; the one of another segment lies before */
        for (size_t i = 0; i < in_mcu; i++)
            before[r->component[i]] = (dc - (from % r->restarts == 0))[first - in_mcu + i];
    uint64_t place = places[first];
    for (size_t i = 0; i < in_mcu; i++) {
        int c = r->component[i], value = dc[first + i];
        if (done[c]++) continue;
        int was = from % r->restarts ? before[c] : 0, is = from % r->interval ? before[c] : 0;
        if (was == is) continue;
        uint64_t at = places[first + i];
        copy(w, scan->clean, place, at);
        place = at + (uint64_t)bits_of_difference(&scan->pattern->dc[c]->codes, bits_from(scan->clean, at));
        if (!put_difference(w, value - is, r->tables[c].codes, used + c)) return DAMAGED;
    }
    copy(w, scan->clean, place, places[(size_t)to * in_mcu]);
    return MADE;
}

static int write_all(const Passage *scan, uint8_t *out, int32_t *lengths, int32_t *used, int64_t *size) {
    const Recut *r = scan->recut;
    Writer w = {.at = out};
    uint8_t *begun = out;
    for (int from = 0, to; from < r->mcus; from = to) {
        int restart = from - from % r->restarts + r->restarts;
        int end = from - from % r->interval + r->interval;
        to = restart < end ? restart : end;
        if (to > r->mcus) to = r->mcus;
        int status = write_piece(scan, &w, from, to, used);
        if (status) return status;
        if (to != end && to != r->mcus) continue;
        int number = from / r->interval;
        end_segment(&w, to == r->mcus ? EOI : RST0 + number % 8);
        lengths[number] = (int32_t)(w.at - begun);
        begun = w.at;
    }
    *size = w.at - out;
    return MADE;
}

/* Take the stuffing out of all segments, and walk through them. A status. */
static int walk_segments(Scratch *scratch, Passage *scan, const uint8_t *data, size_t size) {
    const Recut *r = scan->recut;
    uint8_t *clean = scratch->clean.memory;
    size_t *begins = packio_reserve(&scratch->tasks, ((size_t)scan->segments + 1) * sizeof *begins);
    if (!begins) return MEMORY;
    size_t at = (size_t)r->scan, length = 0;
    for (int s = 0; s < scan->segments; s++) {
        size_t end = packio_next_marker(data, at, size);
        if (!end) return DAMAGED;
        if (data[end + 1] != (s == scan->segments - 1 ? EOI : RST0 + s % 8)) return DAMAGED;
        begins[s] = length;
        length += (size_t)packio_kernels()->unstuff(clean + length, data + at, end - at, data + size);
        at = end + 2;
    }
    begins[scan->segments] = length;
    memset(clean + length, 0, CLEAN_MORE);
    size_t slot = 0;
    for (int s = 0; s < scan->segments; s++) {
        int mcus = r->mcus - s * r->restarts;
        size_t blocks = (size_t)(mcus < r->restarts ? mcus : r->restarts) * (size_t)r->blocks;
        Walked walked = {scan->walked.places + slot, scan->walked.dc + slot};
        int status = packio_kernels()->walk(scratch, scan->pattern, clean, begins[s], begins[s + 1],
                                            blocks, walked);
        if (status) return status;
        uint64_t end = 8 * begins[s + 1], place = walked.places[blocks];
        if (place > end || end - place >= 8) return DAMAGED;
        slot += blocks + 1;
    }
    scan->clean = clean;
    return MADE;
}

static int is_sound(const Recut *r, int64_t size) {
    if (r->scan < 0 || r->scan > size || r->mcus < 1 || r->restarts < 1 || r->interval < 1) return 0;
    if (r->blocks < 1 || r->blocks > MOST_BLOCKS) return 0;
    if (r->components < 1 || r->components > MOST_COMPONENTS) return 0;
    for (int i = 0; i < r->blocks; i++)
        if (r->component[i] >= r->components) return 0;
    return (int64_t)r->mcus * r->blocks <= 4 * (size - r->scan); /* a block has two bits or more */
}

/* Write the data of a scan with other restart intervals, to its EOI. The bytes of `out`; minus a
   status. lengths: of each new segment, bytes with its marker. used: for each component bit `size`
   is set if a difference of that size was written. */
int64_t packio_recut(Scratch *scratch, const Recut *recut, const uint8_t *data, int64_t size,
                     uint8_t *out, int64_t room, int32_t *lengths, int32_t *used) {
    const uint8_t *dc[MOST_COMPONENTS], *ac[MOST_COMPONENTS];
    Pattern pattern = {.blocks = recut->blocks};
    Passage scan = {.recut = recut, .pattern = &pattern};
    packio_trim(scratch);
    if (!is_sound(recut, size)) return -REQUEST;
    scan.segments = (recut->mcus - 1) / recut->restarts + 1;
    int64_t made = 0, bytes = size - recut->scan, ends = (recut->mcus - 1) / recut->interval + 1;
    if (room < 2 * bytes + ROOM_A_SEGMENT * (scan.segments + ends)) return -REQUEST;
    memcpy(pattern.component, recut->component, sizeof pattern.component);
    for (int c = 0; c < recut->components; c++) dc[c] = recut->tables[c].dc, ac[c] = recut->tables[c].ac;
    int status = packio_steps(scratch, recut->components, dc, ac, &pattern);
    size_t blocks = (size_t)recut->mcus * (size_t)recut->blocks;
    if (!status)
        status = packio_room(scratch, (size_t)bytes, blocks, (size_t)scan.segments, &scan.walked);
    if (!status) status = walk_segments(scratch, &scan, data, (size_t)size);
    if (!status) status = write_all(&scan, out, lengths, used, &made);
    return status ? -status : made;
}
