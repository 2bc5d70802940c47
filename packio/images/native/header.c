/* The header of a JPEG, and the segments of its entropy-coded data.

   Source: ITU-T T.81 (1992), annexes A.2 (MCUs), B.2 (markers), F.2.1.3 (restarts). */

#include "core.h"

enum { SOF0 = 0xC0, SOF1 = 0xC1, SOF2 = 0xC2, DHT = 0xC4, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB };
enum { DRI = 0xDD, APP0 = 0xE0, APP14 = 0xEE, APP15 = 0xEF, COM = 0xFE };
enum { MOST_PIXELS = 1 << 28 };

const uint8_t packio_zigzag[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

/* What is met before the scan. */
typedef struct {
    const uint8_t *quant[4], *codes[2][4], *frame;
    int jfif, adobe;  /* adobe: its transform + 1; 0: there is no such marker */
    int progressive;
} Found;

static int word(const uint8_t *at) { return at[0] << 8 | at[1]; }

static int read_quant(const uint8_t *at, const uint8_t *end, Found *found) {
    while (at < end) {
        if (end - at < 65 || *at > 3) return KIND; /* 16 bits a number, or damaged */
        found->quant[*at] = at + 1;
        at += 65;
    }
    return MADE;
}

static int read_codes(const uint8_t *at, const uint8_t *end, Found *found) {
    while (at < end) {
        if (end - at < 17) return DAMAGED;
        int kind = at[0] >> 4, id = at[0] & 15, count = 0;
        for (int i = 1; i <= 16; i++) count += at[i];
        if (kind > 1 || id > 3 || count > 256 || end - at < 17 + count) return DAMAGED;
        found->codes[kind][id] = at + 1;
        at += 17 + count;
    }
    return MADE;
}

/* Whether libjpeg takes three components for YCbCr, without a doubt. */
static int is_ycc(const Found *found) {
    const uint8_t *f = found->frame;
    if (found->adobe) return found->adobe == 2;
    return found->jfif || (f[6] == 1 && f[9] == 2 && f[12] == 3);
}

static int read_frame(const Found *found, const uint8_t *scan, int length, Jpeg *jpeg) {
    const uint8_t *f = found->frame;
    if (!f) return DAMAGED;
    jpeg->height = word(f + 1);
    jpeg->width = word(f + 3);
    jpeg->components = f[5];
    if (f[0] != 8 || (f[5] != 1 && f[5] != 3)) return KIND;
    if (!jpeg->height || !jpeg->width) return KIND;
    if ((int64_t)jpeg->height * jpeg->width > MOST_PIXELS) return KIND;
    if (f[5] == 3 && !is_ycc(found)) return KIND;
    int several = jpeg->is_progressive = found->progressive;
    if (!several && (length != 4 + 2 * f[5] || scan[0] != f[5])) return KIND; /* several scans, too */
    if (!several && (scan[length - 3] != 0 || scan[length - 2] != 63 || scan[length - 1] != 0))
        return KIND;
    jpeg->across = jpeg->down = 1;
    for (int c = 0; c < f[5]; c++) {
        const uint8_t *component = f + 6 + 3 * c, *chosen = scan + 1 + 2 * c;
        int across = component[1] >> 4, down = component[1] & 15;
        if (c == 0 && f[5] == 3) {
            if (!(across == 1 && down == 1) && !(across == 2 && (down == 1 || down == 2)))
                return KIND;
            jpeg->across = across;
            jpeg->down = down;
        } else if (across < 1 || down < 1 || across > 4 || down > 4 || (c && (across * down > 1))) {
            return KIND;
        }
        if (component[2] > 3 || !found->quant[component[2]]) return DAMAGED;
        const uint8_t *quant = found->quant[component[2]];
        jpeg->ids[c] = component[0];
        if (!several) {
            int dc = chosen[1] >> 4, ac = chosen[1] & 15;
            if (component[0] != chosen[0] || dc > 3 || ac > 3) return DAMAGED;
            jpeg->dc[c] = found->codes[0][dc];
            jpeg->ac[c] = found->codes[1][ac];
            if (!jpeg->dc[c] || !jpeg->ac[c]) return DAMAGED;
        }
        for (int i = 0; i < 64; i++) jpeg->quant[c][packio_zigzag[i]] = quant[i];
    }
    return MADE;
}

static void count_blocks(Jpeg *jpeg) {
    int high = 8 * jpeg->down, broad = 8 * jpeg->across;
    jpeg->rows = (jpeg->height + high - 1) / high;
    jpeg->columns = (jpeg->width + broad - 1) / broad;
    jpeg->blocks = 0;
    for (int c = 0; c < jpeg->components; c++)
        for (int y = 0; y < (c ? 1 : jpeg->down); y++)
            for (int x = 0; x < (c ? 1 : jpeg->across); x++) {
                int block = jpeg->blocks++;
                jpeg->block_component[block] = (uint8_t)c;
                jpeg->block_y[block] = (uint8_t)y;
                jpeg->block_x[block] = (uint8_t)x;
            }
}

int packio_header(const uint8_t *data, size_t size, Jpeg *jpeg) {
    Found found = {{0}, {{0}}, 0, 0, 0, 0};
    memset(jpeg, 0, sizeof *jpeg);
    jpeg->data = data;
    jpeg->end = data + size;
    if (size < 4 || data[0] != 0xFF || data[1] != SOI) return KIND;
    size_t at = 2;
    for (;;) {
        if (size - at < 4 || data[at] != 0xFF) return DAMAGED;
        int marker = data[at + 1], length = word(data + at + 2) - 2, status = MADE;
        if (length < 0 || (size_t)length > size - at - 4) return DAMAGED;
        const uint8_t *content = data + at + 4, *end = content + length;
        at += 4 + (size_t)length;
        if (marker == SOF0 || marker == SOF1 || marker == SOF2) {
            found.progressive = marker == SOF2;
            if (found.frame || length < 6 || length != 6 + 3 * content[5]) return DAMAGED;
            found.frame = content;
        } else if (marker == DQT) {
            status = read_quant(content, end, &found);
        } else if (marker == DHT) {
            status = read_codes(content, end, &found);
        } else if (marker == DRI) {
            if (length != 2) return DAMAGED;
            jpeg->interval = word(content);
        } else if (marker == SOS) {
            if (length < 1) return DAMAGED;
            status = read_frame(&found, content, length, jpeg);
            jpeg->scan = at;
            if (!status) count_blocks(jpeg);
            return status;
        } else if (marker == APP0) {
            int is_jfif = length >= 14 && !memcmp(content, "JFIF", 5);
            if (is_jfif && content[5] != 1) return DAMAGED; /* an unknown version */
            found.jfif |= is_jfif;
        } else if (marker == APP14) {
            if (length >= 12 && !memcmp(content, "Adobe", 5)) found.adobe = content[11] + 1;
        } else if (!(marker >= APP0 && marker <= APP15) && marker != COM) {
            return KIND; /* progressive, arithmetic, … */
        }
        if (status) return status;
    }
}

/* The last MCU from `first` to `last` that is needed; -1: none. */
static int last_needed(const Jpeg *jpeg, int first, int last, int r0, int r1, int c0, int c1) {
    int from = first / jpeg->columns, to = last / jpeg->columns;
    if (from < r0) from = r0;
    for (int row = to < r1 ? to : r1; row >= from; row--) {
        int a = row * jpeg->columns + c0, b = row * jpeg->columns + c1;
        if (a < first) a = first;
        if (b > last) b = last;
        if (a <= b) return b;
    }
    return -1;
}

size_t packio_next_marker(const uint8_t *data, size_t from, size_t size) {
    const uint8_t *at = data + from, *end = data + size;
    while (at < end && (at = memchr(at, 0xFF, (size_t)(end - at)))) {
        if (end - at < 2) return 0;
        if (at[1]) return (size_t)(at - data);
        at += 2;
    }
    return 0;
}

static size_t next_marker(const Jpeg *jpeg, size_t from) {
    return packio_next_marker(jpeg->data, from, (size_t)(jpeg->end - jpeg->data));
}

/* One segment: each row of MCUs goes on where the one before ended. */
static int rows_in_turn(const Jpeg *jpeg, Task *tasks, int *in_turn) {
    size_t end = next_marker(jpeg, jpeg->scan);
    if (!end || jpeg->data[end + 1] != EOI) return -DAMAGED;
    *in_turn = 1;
    for (int row = 0; row < jpeg->rows; row++)
        tasks[row] = (Task){.offset = jpeg->scan,
                            .length = end - jpeg->scan,
                            .mcu = row * jpeg->columns,
                            .count = jpeg->columns,
                            .whole = 1};
    return jpeg->rows;
}

/* Where a seek point is: a byte of the file, and a bit of it. */
static size_t read_point(const Jpeg *jpeg, const uint8_t *point, int *bit, int16_t *dc) {
    uint32_t place = packio_number(point);
    *bit = place & 7;
    for (int c = 0; c < 3; c++)
        dc[c] = (int16_t)(point[4 + 2 * c] | point[5 + 2 * c] << 8);
    return jpeg->scan + (place >> 3);
}

/* The tasks between seek points. */
static int from_points(Scratch *scratch, const Jpeg *jpeg, const uint8_t *points, size_t points_size,
                       int r0, int r1, int c0, int c1) {
    int mcus = jpeg->rows * jpeg->columns, count = 0;
    int step = points_size < POINTS_HEAD ? 0 : points[0] | points[1] << 8;
    if (!step) return -DAMAGED;
    int segments = (mcus + step - 1) / step;
    if (points_size != POINTS_HEAD + POINT * (size_t)(segments - 1)) return -DAMAGED;
    Task *tasks = packio_reserve(&scratch->tasks, (size_t)segments * sizeof *tasks);
    if (!tasks) return -MEMORY;
    Task task = {.offset = jpeg->scan};
    const uint8_t *point = points + POINTS_HEAD;
    size_t size = (size_t)(jpeg->end - jpeg->data);
    for (int i = 0; i < segments; i++, point += POINT) {
        int last = i == segments - 1 ? mcus - 1 : (i + 1) * step - 1;
        int needed = last_needed(jpeg, i * step, last, r0, r1, c0, c1);
        Task next = {.offset = 0};
        task.mcu = i * step;
        task.count = needed - task.mcu + 1;
        task.whole = needed == last;
        task.to_point = i < segments - 1;
        if (task.to_point) {
            next.offset = read_point(jpeg, point, &next.bit, next.dc);
            if (next.offset < task.offset || next.offset + 2 > size) return -DAMAGED;
            task.length = next.offset - task.offset + (next.bit > 0);
            /* the zero behind an FF belongs to it */
            if (next.bit && jpeg->data[next.offset] == 0xFF) task.length++;
            task.end_bit = next.bit;
            memcpy(task.end_dc, next.dc, sizeof next.dc);
        } else if (needed >= 0) {
            size_t end = next_marker(jpeg, task.offset);
            if (!end || jpeg->data[end + 1] != EOI) return -DAMAGED;
            task.length = end - task.offset;
            task.end_bit = 0;
        }
        if (needed >= 0) tasks[count++] = task;
        task = next;
    }
    return count;
}

int packio_tasks(Scratch *scratch, const Jpeg *jpeg, const uint8_t *points, size_t points_size,
                 int r0, int r1, int c0, int c1, int *in_turn) {
    *in_turn = 0;
    if (points_size) return from_points(scratch, jpeg, points, points_size, r0, r1, c0, c1);
    int mcus = jpeg->rows * jpeg->columns, interval = jpeg->interval ? jpeg->interval : mcus;
    int segments = (mcus + interval - 1) / interval, count = 0;
    int most = segments > jpeg->rows ? segments : jpeg->rows;
    Task *tasks = packio_reserve(&scratch->tasks, (size_t)most * sizeof *tasks);
    if (!tasks) return -MEMORY;
    if (segments == 1) return rows_in_turn(jpeg, tasks, in_turn);
    size_t at = jpeg->scan;
    for (int i = 0; i < segments; i++) {
        size_t end = next_marker(jpeg, at);
        int marker = i == segments - 1 ? EOI : 0xD0 + i % 8;
        if (!end || jpeg->data[end + 1] != marker) return -DAMAGED;
        int first = i * interval, last = i == segments - 1 ? mcus - 1 : first + interval - 1;
        int needed = last_needed(jpeg, first, last, r0, r1, c0, c1);
        if (needed >= 0)
            tasks[count++] = (Task){.offset = at,
                                    .length = end - at,
                                    .mcu = first,
                                    .count = needed - first + 1,
                                    .whole = needed == last};
        at = end + 2;
    }
    return count;
}
