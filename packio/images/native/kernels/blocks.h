/* Blocks of coefficients, put into the planes of their components as samples. */

/* Put a block that has a DC coefficient alone. */
INLINE void put_flat(const Waiting *x, int dc) {
    int value = (dc * 4 + 16) >> 5;
    value = (value < -128 ? -128 : value > 127 ? 127 : value) + 128;
    uint64_t samples = (uint64_t)value * UINT64_C(0x0101010101010101);
    if (LIKELY(x->high == 8 && x->broad == 8))
        for (int i = 0; i < 8; i++) memcpy(x->to + (size_t)i * x->stride, &samples, 8);
    else
        for (int i = 0; i < x->high; i++)
            memset(x->to + (size_t)i * x->stride, value, (size_t)x->broad);
}

INLINE int put(const Waiting *x, const Waiting *y) {
    return LIKELY(x->high == 8 && x->broad == 8) ? put_two(x, y) : put_two_scaled(x, y);
}

/* Put the needed blocks of some MCUs into their planes, and clear all of them.

   predicted: the DC coefficients before the first MCU; afterwards, those of the last MCU. */
static int put_blocks(const Jpeg *jpeg, const Region *region, int mcu, int count, int *predicted,
                      int16_t *block) {
    int row = mcu / jpeg->columns, column = mcu % jpeg->columns, waits = 0, bad = 0;
    Waiting waiting, now;
    int16_t *first = block;
    for (int m = 0; m < count; m++) {
        for (int i = 0; i < jpeg->blocks; i++, block += STRIDE) {
            int c = jpeg->block_component[i];
            int y = row * (c ? 1 : jpeg->down) + jpeg->block_y[i];
            int x = column * (c ? 1 : jpeg->across) + jpeg->block_x[i];
            predicted[c] += block[0];
            bad |= predicted[c] > MOST_DC || predicted[c] < -MOST_DC - 1;
            if (y < region->y0[c] || y >= region->y1[c]) continue;
            if (x < region->x0[c] || x >= region->x1[c]) continue;
            now.block = block;
            now.quant = jpeg->quant[c];
            now.stride = region->stride[c];
            now.high = region->high[c];
            now.broad = region->broad[c];
            now.to = region->plane[c] + (size_t)(y - region->y0[c]) * (size_t)now.high * now.stride +
                     (size_t)(x - region->x0[c]) * (size_t)now.broad;
            block[0] = (int16_t)predicted[c];
            if (now.high * now.broad == 1 || is_flat(block)) {
                int dc = block[0] * now.quant[0];
                bad |= dc > MOST_IN_ROW || dc < -MOST_IN_ROW - 1;
                put_flat(&now, dc);
            } else if (waits && waiting.high == now.high && waiting.broad == now.broad) {
                bad |= put(&waiting, &now);
                waits = 0;
            } else {
                if (waits) bad |= put(&waiting, &waiting);
                waiting = now;
                waits = 1;
            }
        }
        if (++column == jpeg->columns) column = 0, row++;
    }
    if (waits) bad |= put(&waiting, &waiting);
    for (; first < block; first += STRIDE) clear(first);
    return bad;
}
