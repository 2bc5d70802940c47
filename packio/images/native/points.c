/* The function that Python calls to find seek points. */

#include "core.h"

EXPORTED int64_t packio_find_points(Scratch *scratch, const uint8_t *data, int64_t size,
                                    uint8_t *points, int64_t room);

enum { BYTES_A_POINT = 3300, FEWEST_MCUS = 8 };  /* from one seek point to the next */

static int pattern_of(Scratch *scratch, const Jpeg *jpeg, Pattern *pattern) {
    *pattern = (Pattern){.blocks = jpeg->blocks};
    memcpy(pattern->component, jpeg->block_component, sizeof jpeg->block_component);
    return packio_steps(scratch, jpeg->components, jpeg->dc, jpeg->ac, pattern);
}

/* Walk through the one segment of a JPEG. Its bytes without stuffing; NULL, and a status. */
static const uint8_t *walk_all(Scratch *scratch, const Jpeg *jpeg, const Pattern *pattern,
                               size_t blocks, Walked *walked, int *status) {
    size_t end = packio_next_marker(jpeg->data, jpeg->scan, (size_t)(jpeg->end - jpeg->data));
    *status = DAMAGED;
    if (!end || jpeg->data[end + 1] != 0xD9) return NULL;
    size_t bytes = end - jpeg->scan;
    if (blocks > 4 * bytes) return NULL; /* a block has two bits or more */
    *status = packio_room(scratch, bytes, blocks, 1, walked);
    if (*status) return NULL;
    uint8_t *clean = scratch->clean.memory;
    int64_t length = packio_kernels()->unstuff(clean, jpeg->data + jpeg->scan, bytes, jpeg->end);
    memset(clean + length, 0, CLEAN_MORE);
    *status = packio_kernels()->walk(scratch, pattern, clean, 0, (size_t)length, blocks, *walked);
    if (*status) return NULL;
    *status = DAMAGED;
    uint32_t place = walked->places[blocks], padding = 0xFF >> (place & 7);
    if (place > 8 * length || 8 * length - place >= 8) return NULL;
    if ((place & 7) && (clean[place >> 3] & padding) != padding) return NULL;
    *status = MADE;
    return clean;
}

static size_t count_ff(const uint8_t *at, const uint8_t *end) {
    size_t all = 0;
    while (at < end) {
        uint8_t some = 0;
        for (const uint8_t *stop = end - at < 255 ? end : at + 255; at < stop; at++) some += *at == 0xFF;
        all += some;
    }
    return all;
}

static void write_point(uint8_t *point, uint64_t place, const int16_t dc[3]) {
    for (int i = 0; i < 4; i++) point[i] = (uint8_t)(place >> 8 * i);
    for (int c = 0; c < 3; c++) {
        point[4 + 2 * c] = (uint8_t)dc[c];
        point[5 + 2 * c] = (uint8_t)((uint16_t)dc[c] >> 8);
    }
}

/* Find the seek points of a JPEG. The bytes that they have, at most `room`: 0 if it needs none,
   because it has restart markers or is small; minus a status if the core does not decode it. */
int64_t packio_find_points(Scratch *scratch, const uint8_t *data, int64_t size, uint8_t *points,
                           int64_t room) {
    Jpeg jpeg;
    Pattern pattern;
    Walked walked;
    packio_trim(scratch);
    int status = packio_header(data, (size_t)size, &jpeg);
    if (status || jpeg.is_progressive) return -(status ? status : KIND);
    int64_t mcus = (int64_t)jpeg.rows * jpeg.columns;
    if (jpeg.interval && jpeg.interval < mcus) return 0;
    int64_t step = mcus * BYTES_A_POINT / (size + 1);
    if (step < FEWEST_MCUS) step = FEWEST_MCUS;
    if (step > jpeg.columns) step = jpeg.columns;
    int64_t bytes = POINTS_HEAD + POINT * ((mcus + step - 1) / step - 1);
    if (bytes == POINTS_HEAD) return 0;
    if (bytes > room) return -REQUEST;
    status = pattern_of(scratch, &jpeg, &pattern);
    if (status) return -status;
    size_t in_mcu = (size_t)jpeg.blocks, blocks = (size_t)mcus * in_mcu;
    const uint8_t *clean = walk_all(scratch, &jpeg, &pattern, blocks, &walked, &status);
    if (!clean) return -status;
    points[0] = (uint8_t)step;
    points[1] = (uint8_t)(step >> 8);
    points += POINTS_HEAD;
    const uint8_t *counted = clean;
    size_t zeros = 0; /* behind FF, which are not among the clean bytes */
    for (size_t mcu = (size_t)step; mcu < (size_t)mcus; mcu += (size_t)step, points += POINT) {
        uint32_t place = walked.places[mcu * in_mcu];
        const uint8_t *at = clean + (place >> 3);
        zeros += count_ff(counted, at);
        counted = at;
        int16_t dc[3] = {0, 0, 0};
        for (size_t i = 0; i < in_mcu; i++) /* the last block of a component counts */
            dc[jpeg.block_component[i]] = walked.dc[(mcu - 1) * in_mcu + i];
        uint64_t in_file = ((uint64_t)(at - clean) + zeros) << 3 | (place & 7);
        if (in_file >> 32) return -KIND;
        write_point(points, in_file, dc);
    }
    return bytes;
}
