/* The weights that pixels have when an axis is resized with antialiasing.

   Source: PyTorch 2.13, UpSampleKernel.cpp: numbers of 64 bits, then of 16 bits with as many bits
   behind the point as the largest weight leaves. */

#include "core.h"

static double absolute(double x) { return x < 0 ? -x : x; }

static double bilinear(double x) {
    x = absolute(x);
    return x < 1 ? 1 - x : 0;
}

static double bicubic(double x) {
    const double a = -0.5;
    x = absolute(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
    return 0;
}

static int rounded_up(double x) {
    int whole = (int)x;
    return whole < x ? whole + 1 : whole;
}

/* A part of a buffer; NULL: none left. */
static void *part_of(Buffer *memory, size_t *used, size_t bytes) {
    size_t at = (*used + 63) & ~(size_t)63;
    if (at + bytes > memory->size) return NULL;
    *used = at + bytes;
    return (uint8_t *)memory->memory + at;
}

/* Each output is the input at the floor of its place times the ratio, in single precision.

   Source: PyTorch 2.13, UpSampleKernel.cpp, nearest_idx. */
static int nearest(Buffer *memory, size_t *used, int length, int to, int first, int count,
                   Axis *axis) {
    float ratio = (float)length / (float)to;
    *axis = (Axis){.count = count, .taps = 1};
    axis->start = part_of(memory, used, (size_t)count * sizeof(int));
    axis->size = part_of(memory, used, (size_t)count * sizeof(int));
    if (!axis->start || !axis->size) return MEMORY;
    for (int i = 0; i < count; i++) {
        int place = (int)((float)(first + i) * ratio);
        axis->start[i] = place < length ? place : length - 1;
        axis->size[i] = 1;
    }
    axis->begin = axis->start[0];
    axis->end = axis->start[count - 1] + 1;
    return MADE;
}

/* Each output is the mean of the inputs that it touches.

   Source: PyTorch 2.13, AdaptivePooling.h, start_index and end_index. */
static int area(Buffer *memory, size_t *used, int length, int to, int first, int count, Axis *axis) {
    *axis = (Axis){.count = count, .is_mean = 1};
    axis->start = part_of(memory, used, (size_t)count * sizeof(int));
    axis->size = part_of(memory, used, (size_t)count * sizeof(int));
    if (!axis->start || !axis->size) return MEMORY;
    for (int i = 0; i < count; i++) {
        int64_t place = first + i;
        axis->start[i] = (int)(place * length / to);
        axis->end = (int)(((place + 1) * length + to - 1) / to);
        axis->size[i] = axis->end - axis->start[i];
        if (axis->size[i] > axis->taps) axis->taps = axis->size[i];
    }
    axis->begin = axis->start[0];
    return MADE;
}

int packio_axis(Buffer *memory, size_t *used, const Side *side, int method, int first, int count,
                Axis *axis) {
    const int length = side->length, to = side->to;
    const double ratio = side->ratio;
    if (method == NEAREST) return nearest(memory, used, length, to, first, count, axis);
    if (method == AREA) return area(memory, used, length, to, first, count, axis);
    double scale = ratio > 0 ? 1 / (1 / ratio) : (double)length / to, largest = 0;
    double inverse = scale >= 1 ? 1 / scale : 1, reach = method == BICUBIC ? 2 : 1;
    if (scale >= 1) reach *= scale;
    if (!(reach < 1 << 20)) return REQUEST;
    int taps = rounded_up(reach) * 2 + 1;
    size_t all = (size_t)count * (size_t)taps;
    *axis = (Axis){.count = count, .taps = taps};
    axis->start = part_of(memory, used, (size_t)count * sizeof(int));
    axis->size = part_of(memory, used, (size_t)count * sizeof(int));
    axis->weights = part_of(memory, used, all * sizeof(int16_t));
    double *found = part_of(memory, used, (all + (size_t)taps) * sizeof(double));
    if (!axis->start || !axis->size || !axis->weights || !found) return MEMORY;
    axis->begin = length;
    axis->end = 0;
    for (int i = 0; i < to; i++) { /* all: the largest weight may be one that is not shown */
        double centre = side->offset + scale * (i + 0.5), total = 0;
        int is_shown = i >= first && i < first + count;
        double *weights = found + (size_t)taps * (size_t)(is_shown ? i - first : count);
        int64_t start = (int64_t)(centre - reach + 0.5), end = (int64_t)(centre + reach + 0.5);
        if (start < 0) start = 0;
        if (end > length) end = length;
        int size = end - start > taps ? taps : end < start ? 0 : (int)(end - start);
        for (int j = 0; j < size; j++) {
            double x = ((double)(j + start) - centre + 0.5) * inverse;
            weights[j] = method == BICUBIC ? bicubic(x) : bilinear(x);
            total += weights[j];
        }
        for (int j = 0; j < size; j++) {
            if (total != 0) weights[j] /= total;
            if (weights[j] > largest) largest = weights[j];
        }
        if (!is_shown) continue;
        if (!size) return REQUEST; /* beyond the box: the ratio is not that of the sizes */
        memset(weights + size, 0, (size_t)(taps - size) * sizeof *weights);
        axis->start[i - first] = (int)start;
        axis->size[i - first] = size;
        if (start < axis->begin) axis->begin = (int)start;
        if (start + size > axis->end) axis->end = (int)start + size;
    }
    if (!(largest < 1 << 14)) return REQUEST; /* weights that almost cancel each other */
    int precision = 0;
    while (precision < 22 && (int)(0.5 + largest * (1 << (precision + 1))) < 1 << 15) precision++;
    axis->precision = precision;
    for (size_t i = 0; i < all; i++) {
        double weight = found[i] * (1 << precision);
        if (!(absolute(weight) < 32767.5)) return REQUEST;
        axis->weights[i] = (int16_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
    return MADE;
}
