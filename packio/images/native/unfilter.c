/* The rows of a PNG, without their filters.

   Source: W3C, Portable Network Graphics (PNG) Specification, third edition, section 9.

   A row is a byte that names its filter, then its bytes. Each byte was stored as its difference from
   what the filter foretells of bytes that come before it: the one to the left (of the same channel),
   the one above, and the one above that to the left. Bytes that lie beyond the image are 0. */

#include "core.h"

EXPORTED int packio_unfilter(const uint8_t *rows, int64_t size, int64_t height, int64_t stride,
                             int32_t channels, uint8_t *out, int64_t room);

enum Filter { NONE = 0, SUB = 1, UP = 2, AVERAGE = 3, PAETH = 4 };
enum { MOST_CHANNELS = 3 };

/* What Paeth's filter foretells: of left, up and corner that nearest to left + up - corner, in this
   order where two are as near. Written so that no branch is needed, and little waits for left.
   Source: stb_image 2.30, stbi__paeth. */
INLINE int paeth(int left, int up, int corner) {
    int mirrored = (3 * corner) - (left + up);
    int low = (left < up) ? left : up;
    int high = (left < up) ? up : left;
    int other = (high <= mirrored) ? low : corner;
    return (mirrored <= low) ? high : other;
}

INLINE uint64_t eight(const uint8_t *at) {
    uint64_t bytes;
    memcpy(&bytes, at, sizeof bytes);
    return bytes;
}

INLINE void undo_sub(uint8_t *restrict out, const uint8_t *restrict in, size_t stride,
                     size_t channels) {
    uint8_t left[MOST_CHANNELS] = {0};
    size_t x = 0;
    while (x < stride) {
        if ((channels == 1) && (stride - x >= 8) && (eight(in + x) == 0)) { /* a run, as in masks */
            memset(out + x, left[0], 8);
            x += 8;
            continue;
        }
        for (size_t c = 0; c < channels; c++, x++) {
            left[c] = (uint8_t)(in[x] + left[c]);
            out[x] = left[c];
        }
    }
}

INLINE void undo_up(uint8_t *restrict out, const uint8_t *restrict in,
                    const uint8_t *restrict above, size_t stride) {
    for (size_t x = 0; x < stride; x++) out[x] = (uint8_t)(in[x] + above[x]);
}

/* `above` is NULL in the first row. */
INLINE void undo_average(uint8_t *restrict out, const uint8_t *restrict in,
                         const uint8_t *restrict above, size_t stride, size_t channels) {
    uint8_t left[MOST_CHANNELS] = {0};
    for (size_t x = 0; x < stride;) {
        for (size_t c = 0; c < channels; c++, x++) {
            int up = above ? above[x] : 0;
            left[c] = (uint8_t)(in[x] + ((left[c] + up) >> 1));
            out[x] = left[c];
        }
    }
}

INLINE void undo_paeth(uint8_t *restrict out, const uint8_t *restrict in,
                       const uint8_t *restrict above, size_t stride, size_t channels) {
    uint8_t left[MOST_CHANNELS] = {0}, corner[MOST_CHANNELS] = {0};
    size_t x = 0;
    while (x < stride) {
        /* Where a byte above is equal to the one before it, left is foretold: a run. */
        if ((channels == 1) && (x > 0) && (stride - x >= 8) && (eight(in + x) == 0) &&
            (eight(above + x) == eight(above + x - 1))) {
            memset(out + x, left[0], 8);
            x += 8; /* the corner is the same */
            continue;
        }
        for (size_t c = 0; c < channels; c++, x++) {
            int up = above[x];
            left[c] = (uint8_t)(in[x] + paeth(left[c], up, corner[c]));
            corner[c] = (uint8_t)up;
            out[x] = left[c];
        }
    }
}

/* Undo the filter of a row; `above` is NULL in the first row. A status. */
INLINE int undo(int filter, uint8_t *out, const uint8_t *in, const uint8_t *above, size_t stride,
                size_t channels) {
    if (!above && (filter == UP)) filter = NONE;
    if (!above && (filter == PAETH)) filter = SUB; /* as up and corner are 0 */
    switch (filter) {
    case NONE: memcpy(out, in, stride); return MADE;
    case SUB: undo_sub(out, in, stride, channels); return MADE;
    case UP: undo_up(out, in, above, stride); return MADE;
    case AVERAGE: undo_average(out, in, above, stride, channels); return MADE;
    case PAETH: undo_paeth(out, in, above, stride, channels); return MADE;
    default: return DAMAGED;
    }
}

INLINE int undo_all(const uint8_t *rows, size_t height, size_t stride, size_t channels,
                    uint8_t *out) {
    const uint8_t *above = NULL;
    for (size_t y = 0; y < height; y++) {
        if (undo(rows[0], out, rows + 1, above, stride, channels) != MADE) return DAMAGED;
        above = out;
        out += stride;
        rows += stride + 1;
    }
    return MADE;
}

/* Undo the filters of `height` rows, each of a filter's byte and `stride` bytes with 1 or 3 channels.
   `size` and `room` are the bytes of `rows` and of `out`. A status. */
int packio_unfilter(const uint8_t *rows, int64_t size, int64_t height, int64_t stride,
                    int32_t channels, uint8_t *out, int64_t room) {
    if ((channels != 1) && (channels != 3)) return REQUEST;
    if ((height < 1) || (stride < 1) || (stride % channels != 0) || (size < 0)) return REQUEST;
    if ((stride >= size) || (size % (stride + 1) != 0) || (size / (stride + 1) != height) ||
        (room != size - height)) {
        return REQUEST;
    }
    if (channels == 1) return undo_all(rows, (size_t)height, (size_t)stride, 1, out);
    return undo_all(rows, (size_t)height, (size_t)stride, 3, out);
}
