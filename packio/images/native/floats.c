/* Bytes as floats, by tables: a byte has 256 values, so any arithmetic can be done beforehand. */

#include "core.h"

EXPORTED int packio_look_up(const uint8_t *planes, int64_t images, int channels, int64_t pixels,
                            const void *tables, int size, int is_last, void *out);

#define LOOK_UP(NAME, VALUE)                                                                       \
    static void NAME(const uint8_t *from, int64_t count, const VALUE *table, VALUE *to,            \
                     int64_t step) {                                                               \
        for (int64_t i = 0; i < count; i++) to[i * step] = table[from[i]];                         \
    }                                                                                              \
    static void NAME##_rgb(const uint8_t *red, int64_t count, const VALUE *table, VALUE *to) {     \
        const uint8_t *green = red + count, *blue = green + count;                                 \
        for (int64_t i = 0; i < count; i++, to += 3) {                                             \
            to[0] = table[red[i]];                                                                 \
            to[1] = table[256 + green[i]];                                                         \
            to[2] = table[512 + blue[i]];                                                          \
        }                                                                                          \
    }

LOOK_UP(look_up_16, uint16_t)
LOOK_UP(look_up_32, uint32_t)

/* Turn (images, channels, pixels) bytes into values of 2 or 4 bytes, of a table of 256 for each
   channel. Channels come last in the output if `is_last`. A status. */
int packio_look_up(const uint8_t *planes, int64_t images, int channels, int64_t pixels,
                   const void *tables, int size, int is_last, void *out) {
    if ((size != 2 && size != 4) || channels < 1 || images < 0 || pixels < 0) return REQUEST;
    int64_t step = is_last ? channels : 1, between = is_last ? 1 : pixels;
    for (; images-- > 0; planes += channels * pixels) {
        if (is_last && channels == 3) {
            if (size == 2) look_up_16_rgb(planes, pixels, tables, out);
            else look_up_32_rgb(planes, pixels, tables, out);
        } else {
            for (int64_t c = 0; c < channels; c++) {
                const uint8_t *from = planes + c * pixels;
                if (size == 2)
                    look_up_16(from, pixels, (const uint16_t *)tables + 256 * c,
                               (uint16_t *)out + c * between, step);
                else
                    look_up_32(from, pixels, (const uint32_t *)tables + 256 * c,
                               (uint32_t *)out + c * between, step);
            }
        }
        out = (uint8_t *)out + channels * pixels * size;
    }
    return MADE;
}
