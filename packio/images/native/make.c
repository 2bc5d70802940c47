/* The functions that Python calls to make outputs of an image. */

#include "core.h"

EXPORTED int packio_version(void);
EXPORTED int packio_choose(int avx2);

enum { VERSION = 14 };
enum { EXACT_SUMS = (1 << 24) / 255 };  /* pixels whose sum a float holds exactly */

static const Kernels *kernels = &packio_portable;
const Kernels *packio_kernels(void) { return kernels; }

#ifdef STAGES
EXPORTED uint64_t packio_ticks[STAGES_COUNT], packio_blocks[KINDS + 1], packio_last;
#endif

int packio_version(void) { return VERSION; }

/* Choose the kernels: those for AVX2, if they are wanted and the processor has it. Whether it is
   those. */
int packio_choose(int avx2) {
    kernels = &packio_portable;
    (void)avx2; /* other processors have the one kind */
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"))
        kernels = &packio_avx2;
#endif
    return kernels != &packio_portable;
}

static int at_least(int a, int b) { return a > b ? a : b; }
static int at_most(int a, int b) { return a < b ? a : b; }

/* How a side of the upright box becomes a side of the output. */
static int axis_of(Buffer *memory, size_t *used, const Side *side, int method, Axis *axis) {
    int first = at_least(side->out_start, 0), end = at_most(side->out_start + side->out, side->to);
    if (first >= end) return REQUEST; /* all of the output is black */
    if (side->resizes) {
        if (method == UNRESIZED) return REQUEST;
        return packio_axis(memory, used, side, method, first, end - first, axis);
    }
    *axis = (Axis){.count = end - first, .begin = first, .end = end};
    return MADE;
}

static int check(const Request *r) {
    int64_t bottom = (int64_t)r->top + r->box_height, right = (int64_t)r->left + r->box_width;
    int most = 1 << 20;
    if (r->top < 0 || r->left < 0 || r->box_height < 1 || r->box_width < 1) return REQUEST;
    if (bottom > r->height || right > r->width) return REQUEST;
    if (r->orientation < 1 || r->orientation > 8) return REQUEST;
    if (r->channels != 1 && r->channels != 3) return REQUEST;
    if (r->scale != 1 && r->scale != 2 && r->scale != 4 && r->scale != 8) return REQUEST;
    if (r->level < 1 || r->level > 64 || (r->level & (r->level - 1))) return REQUEST;
    if (r->scale * r->level != 1 && r->method != BILINEAR && r->method != BICUBIC) return REQUEST;
    if (r->out_height < 1 || r->out_width < 1) return REQUEST;
    if (r->to_height < 1 || r->to_width < 1 || r->to_height > most || r->to_width > most)
        return REQUEST;
    if (r->out_height > most || r->out_width > most) return REQUEST;
    if (r->out_top < -most || r->out_left < -most || r->out_top > most || r->out_left > most)
        return REQUEST;
    return MADE;
}

/* How a side of the stored box lies in pixels of 1/scale of the size: the first pixel, how many,
   and how much of the first and of the last one is not of the box. */
static int part_of(int start, int length, int scale, int *count, double *before, double *behind) {
    int first = start / scale, end = (start + length + scale - 1) / scale;
    *count = end - first;
    *before = (double)(start - first * scale) / scale;
    *behind = (double)(end * scale - start - length) / scale;
    return first;
}

/* The sides of the box and of the output, and where the box lies. */
static void measure(const Request *r, const Jpeg *jpeg, Region *region, Side *down, Side *across) {
    int swapped = r->orientation >= 5, scale = r->scale, all = scale * r->level;
    double before[2], behind[2];
    *region = (Region){.across = scale == 1 ? jpeg->across : 1, .down = scale == 1 ? jpeg->down : 1};
    for (int c = 0; c < 3; c++) { /* chroma that is decoded smaller is made as large as luma */
        region->high[c] = 8 / scale * (c && scale > 1 ? jpeg->down : 1);
        region->broad[c] = 8 / scale * (c && scale > 1 ? jpeg->across : 1);
    }
    region->top = part_of(r->top, r->box_height, all, &region->box_height, &before[0], &behind[0]);
    region->left = part_of(r->left, r->box_width, all, &region->box_width, &before[1], &behind[1]);
    region->box_top = region->top;
    region->bottom = region->top + region->box_height;
    region->right = region->left + region->box_width;
    *down = (Side){.length = swapped ? region->box_width : region->box_height, .ratio = r->ratio_y,
                   .to = r->to_height, .out_start = r->out_top, .out = r->out_height};
    *across = (Side){.length = swapped ? region->box_height : region->box_width, .ratio = r->ratio_x,
                     .to = r->to_width, .out_start = r->out_left, .out = r->out_width};
    down->resizes = down->length != down->to;
    across->resizes = across->length != across->to;
    if (all == 1) return;
    int height = swapped ? r->box_width : r->box_height;
    int width = swapped ? r->box_height : r->box_width, o = r->orientation;
    down->resizes = across->resizes = 1;
    down->ratio = (r->ratio_y > 0 ? r->ratio_y : (double)height / r->to_height) / all;
    across->ratio = (r->ratio_x > 0 ? r->ratio_x : (double)width / r->to_width) / all;
    down->offset = (o == 3 || o == 4 || o == 7 || o == 8 ? behind : before)[swapped];
    across->offset = (o == 2 || o == 3 || o == 6 || o == 7 ? behind : before)[!swapped];
}

/* Which blocks of each component the needed pixels have, and memory for their samples. */
static int place(Scratch *scratch, const Jpeg *jpeg, int scale, Region *region) {
    size_t sizes[3], bytes = 0;
    int height = (jpeg->height + scale - 1) / scale, width = (jpeg->width + scale - 1) / scale;
    for (int c = 0; c < jpeg->components; c++) {
        int across = c ? region->across : 1, down = c ? region->down : 1;
        int rows = (height + down - 1) / down, columns = (width + across - 1) / across;
        /* the neighbours of a sample are mixed with it */
        int top = at_least(region->top / down - (down > 1), 0);
        int left = at_least(region->left / across - (across > 1), 0);
        int bottom = at_most((region->bottom - 1) / down + 1 + (down > 1), rows);
        int right = at_most((region->right - 1) / across + 1 + (across > 1), columns);
        int high = region->high[c], broad = region->broad[c];
        region->y0[c] = top / high;
        region->x0[c] = left / broad;
        region->y1[c] = (bottom + high - 1) / high;
        region->x1[c] = (right + broad - 1) / broad;
        size_t samples = (size_t)broad * (size_t)(region->x1[c] - region->x0[c]);
        region->stride[c] = (samples + 127) & ~(size_t)63;
        sizes[c] = (size_t)high * (size_t)(region->y1[c] - region->y0[c]) * region->stride[c] + 256;
        bytes += sizes[c];
    }
    uint8_t *memory = packio_reserve(&scratch->planes, bytes);
    if (!memory) return MEMORY;
    for (int c = 0; c < jpeg->components; c++, memory += sizes[c - 1])
        region->plane[c] = memory + 64;
    return MADE;
}

enum { MOST_OUTPUTS = 16 };

/* How an output is made: where its pixels lie, and how they are resized. */
typedef struct {
    Region region;
    Side rows, columns;
    Axis down, across;
} Plan;

/* How several outputs of a JPEG are made, each by itself. A status. */
static int plan_outputs(Scratch *scratch, const Jpeg *jpeg, const Request *requests, int count,
                        Plan *plans) {
    size_t sides = 0, used = 0;
    for (int i = 0; i < count; i++) {
        const Side *rows = &plans[i].rows, *columns = &plans[i].columns;
        measure(requests + i, jpeg, &plans[i].region, &plans[i].rows, &plans[i].columns);
        sides += (size_t)(rows->length + rows->out) + (size_t)(columns->length + columns->out);
    }
    if (!packio_reserve(&scratch->axes, 256 * sides + 64 * 1024 * (size_t)count)) return MEMORY;
    for (int i = 0; i < count; i++) {
        Plan *plan = plans + i;
        Side *rows = &plan->rows, *columns = &plan->columns;
        Axis *down = &plan->down, *across = &plan->across;
        int method = requests[i].method;
        if (method == AREA) rows->resizes = columns->resizes = rows->resizes || columns->resizes;
        int status = axis_of(&scratch->axes, &used, rows, method, down);
        if (!status) status = axis_of(&scratch->axes, &used, columns, method, across);
        if (status) return status;
        if (down->is_mean && (int64_t)down->taps * across->taps > EXACT_SUMS) return REQUEST;
        if (down->is_mean && rows->to == 1 && columns->to == 1)
            return REQUEST; /* PyTorch's other mean */
        if (requests[i].orientation == 1) {
            Region *region = &plan->region;
            region->bottom = region->top + down->end;
            region->right = region->left + across->end;
            region->top += down->begin;
            region->left += across->begin;
        }
    }
    return MADE;
}

/* The region that holds those of all plans, and memory for its samples, which they share. */
static int share(Scratch *scratch, const Jpeg *jpeg, int scale, Plan *plans, int count,
                 Region *all) {
    *all = plans[0].region;
    for (int i = 1; i < count; i++) {
        all->top = at_most(all->top, plans[i].region.top);
        all->left = at_most(all->left, plans[i].region.left);
        all->bottom = at_least(all->bottom, plans[i].region.bottom);
        all->right = at_least(all->right, plans[i].region.right);
    }
    int status = place(scratch, jpeg, scale, all);
    if (status) return status;
    for (int i = 0; i < count; i++) {
        Region own = plans[i].region, *region = &plans[i].region;
        *region = *all;
        region->top = own.top, region->left = own.left;
        region->bottom = own.bottom, region->right = own.right;
        region->box_top = own.box_top;
        region->box_height = own.box_height, region->box_width = own.box_width;
    }
    return MADE;
}

/* Make outputs of raw pixels, as packio_make does. Kernels read beyond the last one. */
static int make_raw(Scratch *scratch, const Request *requests, int count, const uint8_t *data,
                    int64_t size, int layout) {
    Plan plans[MOST_OUTPUTS];
    const Request *first = requests;
    int64_t plane = (int64_t)first->height * first->width;
    if (first->height < 1 || first->width < 1 || first->scale * first->level != 1) return REQUEST;
    if (size != plane && size != 3 * plane) return SIZE;
    Jpeg jpeg = {.height = first->height, .width = first->width, .components = (int)(size / plane),
                 .across = 1, .down = 1};
    for (int i = 0; i < count; i++)
        if (requests[i].channels < jpeg.components) return KIND;
    uint8_t *pixels = packio_reserve(&scratch->bytes, (size_t)size + BEYOND);
    if (!pixels) return MEMORY;
    if (pixels != data) memcpy(pixels, data, (size_t)size);
    int status = plan_outputs(scratch, &jpeg, requests, count, plans);
    for (int i = 0; i < count && !status; i++) {
        Region *region = &plans[i].region;
        region->layout = layout;
        for (int c = 0; c < 3; c++) {
            int place = jpeg.components == 1 ? 0 : layout & BGR ? 2 - c : c;
            region->plane[c] = pixels + (layout & PLANES ? place * plane : 0);
            region->stride[c] = (size_t)first->width;
        }
        status = kernels->render(scratch, &jpeg, region, requests + i, &plans[i].down,
                                 &plans[i].across);
    }
    return status;
}

/* Decode the blocks of a region. A status. */
static int decode(Scratch *scratch, const Jpeg *jpeg, const Region *region, const uint8_t *points,
                  size_t points_size) {
    Pair pairs[3];
    int r0 = 1 << 30, r1 = 0, c0 = 1 << 30, c1 = 0, in_turn;
    int status = packio_tables(scratch, jpeg, pairs);
    if (status) return status;
    for (int c = 0; c < jpeg->components; c++) {
        int high = c ? 1 : jpeg->down, broad = c ? 1 : jpeg->across;
        r0 = at_most(r0, region->y0[c] / high);
        r1 = at_least(r1, (region->y1[c] - 1) / high);
        c0 = at_most(c0, region->x0[c] / broad);
        c1 = at_least(c1, (region->x1[c] - 1) / broad);
    }
    int found = packio_tasks(scratch, jpeg, points, points_size, r0, r1, c0, c1, &in_turn);
    if (found <= 0) return found ? -found : DAMAGED;
    LAP(PLAN);
    return kernels->decode(scratch, jpeg, pairs, region, scratch->tasks.memory, found, in_turn);
}

/* Make outputs of an image; a JPEG is decoded once, with seek points if points_size > 0. All
   requests are for the same image, scale and level. A status. */
int packio_make(Scratch *scratch, const Request *requests, int count, const uint8_t *data,
                int64_t size, const uint8_t *points, int64_t points_size, int layout) {
    Jpeg jpeg;
    Open open;
    Coefficients all;
    Region region;
    Plan plans[MOST_OUTPUTS];
    const Request *first = requests;
    START();
    packio_trim(scratch);
    if (count < 1 || count > MOST_OUTPUTS) return REQUEST;
    int status = MADE;
    for (int i = 0; i < count && !status; i++) {
        const Request *r = requests + i;
        status = check(r);
        if (r->height != first->height || r->width != first->width) status = REQUEST;
        if (r->scale != first->scale || r->level != first->level) status = REQUEST;
    }
    if (!status && layout && layout != OPEN)
        return make_raw(scratch, requests, count, data, size, layout);
    if (!status && layout == OPEN) status = packio_open(data, (size_t)size, &jpeg, &open);
    else if (!status) status = packio_header(data, (size_t)size, &jpeg);
    if (status) return status;
    if (jpeg.height != (first->height - 1) / first->level + 1) return SIZE;
    if (jpeg.width != (first->width - 1) / first->level + 1) return SIZE;
    for (int i = 0; i < count; i++)
        if (requests[i].channels < jpeg.components) return KIND;
    if (jpeg.across == 2 && jpeg.width <= 4) return KIND; /* libjpeg repeats such chroma */

    if (jpeg.is_progressive && (status = packio_scans(scratch, &jpeg, &all))) return status;
    status = plan_outputs(scratch, &jpeg, requests, count, plans);
    if (!status) status = share(scratch, &jpeg, first->scale, plans, count, &region);
    if (status) return status;
    if (layout == OPEN) status = kernels->expand(&jpeg, &region, &open);
    else if (jpeg.is_progressive) status = kernels->put_kept(&jpeg, &region, &all);
    else status = decode(scratch, &jpeg, &region, points, (size_t)points_size);
    for (int i = 0; i < count && !status; i++)
        status = kernels->render(scratch, &jpeg, &plans[i].region, requests + i, &plans[i].down,
                                 &plans[i].across);
    return status;
}
