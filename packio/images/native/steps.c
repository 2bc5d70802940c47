/* Tables that pass the codes of a scan, for kernels/walk.h: as many codes as the next bits hold.

   The bits behind the last code, which say its coefficient, need not be among those looked at. */

#include "core.h"

static int is_valid(int symbol, int is_dc) {
    int size = symbol & 15;
    return is_dc ? symbol <= 11 : size ? size <= 10 : symbol == 0 || symbol == 0xF0;
}

/* What the next bits are: codes of `table`, then of `ac`. */
static void pass(Steps *steps, const Codes *table, const Codes *ac, uint32_t index) {
    int is_dc = table->is_dc, used = 0, passed = 0, ended = 0;
    uint32_t mask = (1u << STEP_BITS) - 1;
    while (used < STEP_BITS && !ended) {
        int found = table->single[index << used & mask], length = found & 255, symbol = found >> 8;
        int size = table->is_dc ? symbol : symbol & 15, run = table->is_dc ? 0 : symbol >> 4;
        if (!length || used + length > STEP_BITS || !is_valid(symbol, table->is_dc)) break;
        if (used + length + size > STEP_MOST || passed + run > 62) break;
        used += length + size;
        ended = !table->is_dc && !symbol;
        passed += ended ? 0 : run + 1;
        table = ac;
    }
    uint64_t places = (uint64_t)passed + (is_dc ? TO_AC : 0);
    steps->add[index] = used ? (uint64_t)used | places << PLACE : (uint64_t)TOO_FAR << PLACE;
    steps->end[index] = used && ended ? (uint64_t)AT_DC << PLACE : 0;
}

/* Make the tables of a pair of codes, those of DC coefficients first. A status. */
int packio_make_steps(const uint8_t *dc, const uint8_t *ac, Steps *steps[2]) {
    const uint8_t *specifications[2] = {dc, ac};
    int status = MADE;
    for (int i = 0; i < 2; i++) {
        Steps *made = steps[i] = malloc(sizeof(Steps));
        if (!made) {
            status = MEMORY;
        } else if (!status) {
            made->codes.single = made->single;
            status = packio_codes(&made->codes, specifications[i], STEP_BITS, i == 0);
        }
    }
    for (uint32_t i = 0; !status && i < 1u << STEP_BITS; i++) {
        pass(steps[0], &steps[0]->codes, &steps[1]->codes, i);
        pass(steps[1], &steps[1]->codes, &steps[1]->codes, i);
    }
    for (int i = 0; status && i < 2; i++) {
        free(steps[i]);
        steps[i] = NULL;
    }
    return status;
}
