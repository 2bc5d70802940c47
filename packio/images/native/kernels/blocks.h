/* Blocks of coefficients, put into the planes of their components as samples. */

/* Put a block that has a DC coefficient alone. */
INLINE void put_flat(const Waiting *x, int dc) {
    int value = (dc * 4 + 16) >> 5;
    value = (value < -128 ? -128 : value > 127 ? 127 : value) + 128;
    uint64_t samples = (uint64_t)value * UINT64_C(0x0101010101010101);
    if (LIKELY(x->sort->high == 8 && x->sort->broad == 8))
        for (int i = 0; i < 8; i++) memcpy(x->to + (size_t)i * x->sort->stride, &samples, 8);
    else
        for (int i = 0; i < x->sort->high; i++)
            memset(x->to + (size_t)i * x->sort->stride, value, (size_t)x->sort->broad);
}

/* Blocks that wait to be transformed, listed by kind: so no branch is taken that depends on a block.
   Those of an image that is decoded smaller are listed by component, FEW and HALF being chroma. */
enum { AT_ONCE = 48 };  /* blocks that are listed before they are transformed, at least */
typedef struct {
    int count[KINDS], is_scaled;
    Waiting lists[KINDS][AT_ONCE + MOST_BLOCKS + 1];
} Waitings;

typedef int (*PutTwo)(const Waiting *, const Waiting *);

/* Put the blocks of a list two by two; the last one waits, if it is alone, unless `all`. Whether
   blocks are bad. */
INLINE int put_list(Waitings *w, const enum Kind kind, const PutTwo put, const int all) {
    Waiting *list = w->lists[kind];
    int bad = 0, i = 0, count = w->count[kind];
    for (; i + 1 < count; i += 2) bad |= put(list + i, list + i + 1);
    if (i < count && all) bad |= put(list + i, list + i);
    w->count[kind] = i < count && !all;
    if (w->count[kind]) list[0] = list[i];
    return bad;
}

static int put_flats(Waitings *w) {
    int bad = 0;
    for (int i = 0; i < w->count[FLAT]; i++) {
        const Waiting *x = w->lists[FLAT] + i;
        int dc = x->block[0] * x->sort->quant[0];
        bad |= dc > MOST_IN_ROW || dc < -MOST_IN_ROW - 1;
        put_flat(x, dc);
    }
    w->count[FLAT] = 0;
    return bad;
}

static int put_scaled(const Waiting *x, const Waiting *y) {
    return x->sort->high == 8 && x->sort->broad == 8 ? put_two(x, y) : put_two_scaled(x, y);
}

/* Put what waits; with `all`, the last ones of lists, too. Whether blocks are bad. */
static int put_waiting(Waitings *w, const int all) {
    int bad = put_flats(w);
    bad |= put_list(w, FEW, w->is_scaled ? put_scaled : put_few, all);
    bad |= put_list(w, HALF, w->is_scaled ? put_scaled : put_half, all);
    bad |= put_list(w, ANY, w->is_scaled ? put_scaled : put_two, all);
    return bad;
}

/* List a block of component c by its kind. */
INLINE void list_block(Waitings *w, int kind, int c, int16_t *block, uint8_t *to, const Sort *sort) {
    if (UNLIKELY(w->is_scaled)) kind = !kind || sort->high * sort->broad == 1 ? FLAT : c ? HALF : ANY;
    COUNT(kind);
    w->lists[kind][w->count[kind]++] = (Waiting){block, to, sort};
}

/* Where the first block of row y of a region goes. */
INLINE uint8_t *row_of_blocks(const Region *region, int c, int y) {
    size_t rows = (size_t)(y - region->y0[c]) * (size_t)region->high[c];
    return region->plane[c] + rows * region->stride[c];
}

/* A block of an MCU: where it goes. */
typedef struct {
    Sort sort;
    int component, in_rows;  /* whether the row of blocks is needed */
    int x, steps;            /* column of blocks, from the first needed one; from MCU to MCU */
    unsigned columns;        /* that are needed */
    ptrdiff_t at;            /* of its first sample, in the component's plane */
    uint8_t *plane;
} Place;

/* Where the blocks of an MCU go. */
static void find_places(const Jpeg *jpeg, const Region *region, int row, int column, Place *places) {
    for (int i = 0; i < jpeg->blocks; i++) {
        int c = jpeg->block_component[i], high = region->high[c], broad = region->broad[c];
        int y = row * (c ? 1 : jpeg->down) + jpeg->block_y[i] - region->y0[c];
        int steps = c ? 1 : jpeg->across, x = column * steps + jpeg->block_x[i] - region->x0[c];
        size_t stride = region->stride[c];
        places[i] = (Place){
            .sort = {jpeg->quant[c], stride, high, broad}, .component = c, .x = x, .steps = steps,
            .in_rows = y >= 0 && y < region->y1[c] - region->y0[c],
            .columns = (unsigned)(region->x1[c] - region->x0[c]), .plane = region->plane[c],
            .at = (ptrdiff_t)y * high * (ptrdiff_t)stride + (ptrdiff_t)x * broad,
        };
    }
}

/* Put the blocks of a region, all of whose coefficients are there. A status. */
static int put_kept(const Jpeg *jpeg, const Region *region, const Coefficients *all) {
    Waitings w;
    memset(w.count, 0, sizeof w.count);
    w.is_scaled = region->high[0] != 8;
    int bad = 0;
    for (int c = 0; c < jpeg->components; c++) {
        Sort sort = {jpeg->quant[c], region->stride[c], region->high[c], region->broad[c]};
        int listed = 0;
        for (int y = region->y0[c]; y < region->y1[c]; y++) {
            int16_t *block = all->of[c] + 64 * ((size_t)y * all->columns[c] + (size_t)region->x0[c]);
            uint8_t *to = row_of_blocks(region, c, y);
            for (int x = region->x0[c]; x < region->x1[c]; x++, block += 64, to += region->broad[c]) {
                COUNT(KINDS);
                list_block(&w, kind_of(block), c, block, to, &sort);
                if (++listed == AT_ONCE) bad |= put_waiting(&w, 0), listed = 0;
            }
        }
        bad |= put_waiting(&w, 1);
    }
    LAP(IDCT);
    return bad ? DAMAGED : MADE;
}

/* Keep the blocks of some MCUs, and clear them, as put_blocks. */
static int keep_blocks(const Jpeg *jpeg, const Region *region, int mcu, int count, int *predicted,
                       int16_t *block) {
    int row = mcu / jpeg->columns, column = mcu % jpeg->columns, bad = 0;
    for (int m = 0; m < count; m++) {
        for (int i = 0; i < jpeg->blocks; i++, block += STRIDE) {
            int dc = predicted[jpeg->block_component[i]] += block[0];
            bad |= dc > MOST_DC || dc < -MOST_DC - 1;
            int16_t *to = packio_block(jpeg, region->kept, row, column, i);
            memcpy(to, block, 64 * sizeof *block);
            to[0] = (int16_t)dc;
            clear(block);
        }
        if (++column == jpeg->columns) column = 0, row++;
    }
    return bad;
}

/* Put the needed blocks of some MCUs into their planes, and clear all of them.

   predicted: the DC coefficients before the first MCU; afterwards, those of the last MCU. */
static int put_blocks(const Jpeg *jpeg, const Region *region, int mcu, int count, int *predicted,
                      int16_t *block) {
    if (region->kept) return keep_blocks(jpeg, region, mcu, count, predicted, block);
    int row = mcu / jpeg->columns, column = mcu % jpeg->columns, bad = 0, listed = 0;
    const int blocks = jpeg->blocks;
    int16_t *first = block;
    Place places[6];
    Waitings w;
    memset(w.count, 0, sizeof w.count);
    w.is_scaled = region->high[0] != 8;
    find_places(jpeg, region, row, column, places);
    for (int m = 0; m < count; m++) {
        for (int i = 0; i < blocks; i++, block += STRIDE) {
            Place *p = places + i;
            int dc = predicted[p->component] += block[0], x = p->x;
            ptrdiff_t at = p->at;
            p->x += p->steps;
            p->at += (ptrdiff_t)p->steps * p->sort.broad;
            bad |= dc > MOST_DC || dc < -MOST_DC - 1;
            COUNT(KINDS);
            if (!p->in_rows || (unsigned)x >= p->columns) continue;
            int kind = kind_of(block); /* before the block is written to: its loads would wait */
            block[0] = (int16_t)dc;
            list_block(&w, kind, p->component, block, p->plane + at, &p->sort);
            listed++;
        }
        if (listed >= AT_ONCE) bad |= put_waiting(&w, 0), listed = 0;
        if (++column == jpeg->columns) {
            column = 0, row++;
            find_places(jpeg, region, row, column, places);
        }
    }
    bad |= put_waiting(&w, 1);
    for (; first < block; first += STRIDE) clear(first);
    LAP(IDCT);
    return bad;
}
