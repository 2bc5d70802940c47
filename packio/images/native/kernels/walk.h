/* Where the blocks of a scan begin: codes are passed, coefficients are not decoded.

   A state is a bit of the bytes, and above it a place: block b has its DC coefficient at place
   256 * b + 191 and AC coefficient k at 256 * (b + 1) + k. So one addition passes codes, place >> 7
   tells which table reads the next bits, and a block of too many coefficients sets bit 6. Each step
   notes its state under place >> 7; those at DC coefficients are logged. Nothing branches at a
   block's end.

   A segment is walked by six walkers side by side, which hides how long each waits for its table.
   The first begins where the segment does, the others anywhere, as if a block began there. Huffman
   codes find themselves: soon another walker comes to a bit at which a block of the same number in
   its MCU begins as well. From there on all that follows is the same, and its log is taken.

   Source: A. Weissenberger and B. Schmidt, "Accelerating JPEG Decompression on GPUs", 2021, on
   walkers that begin anywhere. */

enum { WALKERS = 6, LIST = 64, OVERRUN = 4 };  /* blocks in the list of tables, at least; passed
                                                  between two looks at the end, at most 3 */
enum { HALVES = 2 * (LIST + MOST_BLOCKS + OVERRUN + 2) };  /* of the 256 places of each block */
#ifndef WALKER_BYTES
#define WALKER_BYTES 2048 /* for a walker, at least; tools/native_sanitize.sh has fewer */
#endif
enum { OVERLAP = WALKER_BYTES / 8 };           /* bytes that it goes on, to meet the next */
#define STATE(BLOCK, BIT) (((uint64_t)(BLOCK) * 256 + AT_DC) << PLACE | (BIT))

typedef struct {
    uint64_t state, stop;     /* stop: bit at which to stop */
    uint64_t last[HALVES];    /* states of the last blocks, by half; odd ones are of DC coefficients */
    uint64_t *log;            /* of block 0 of the state */
    uint64_t *begin, *end;    /* memory of the log */
} Walker;

/* What all walkers of a scan share; and those that walk just now. */
typedef struct {
    const uint8_t *clean;
    uint64_t list;                 /* blocks in `tables`, whole MCUs */
    int blocks;                    /* in an MCU */
    const Steps *tables[HALVES];   /* by half */
    Walker walkers[WALKERS];
} Walk;

INLINE uint64_t bits_at(const uint8_t *clean, uint64_t state) {
    return next_bits(clean + ((uint32_t)state >> 3)) << (state & 7);
}

/* Pass one code. A block with what is bad is logged without a place. */
COLD uint64_t pass_one(const Walk *walk, Walker *walker, uint64_t state) {
    const uint64_t at_dc = (uint64_t)AT_DC << PLACE, too_far = (uint64_t)TOO_FAR << PLACE;
    const Codes *codes = &walk->tables[state >> 39]->codes;
    uint64_t one = one_symbol(codes, bits_at(walk->clean, state)), used = one & 63;
    int is_dc = codes->is_dc;
    if (one & ENDS) return (state + used) | at_dc;
    uint64_t next = state + used + (((one >> 8 & 63) + (is_dc ? TO_AC : 0)) << PLACE);
    if (!(one & IS_BAD)) {
        if (!(next & too_far)) return next;
        if (!(next >> PLACE & 63)) return (next ^ too_far) | at_dc; /* 64 coefficients */
    }
    walker->last[(state >> 39) - !is_dc] &= UINT32_MAX;
    return is_dc ? state + (UINT64_C(256) << PLACE) + 1 : (state | at_dc) + 1;
}

/* The DC coefficient, as coded, whose code the next bits are. */
INLINE int dc_of(const Steps *steps, uint64_t bits) {
    int found = steps->single[bits >> (64 - STEP_BITS)], length = found & 255, size = found >> 8 & 15;
    if (UNLIKELY(!length)) return (int16_t)(one_symbol(&steps->codes, bits) >> 16);
    int value = (int)(bits << length >> 1 >> (63 - size));
    return value - ((value - (1 << size >> 1)) >> 31 & ((1 << size) - 1));
}

#define PASS(I)                                                                 \
    do {                                                                        \
        uint64_t half = state##I >> 39;                                         \
        const Steps *steps = walk->tables[half];                                \
        uint64_t index = bits##I >> (64 - STEP_BITS), add = steps->add[index];  \
        uint64_t next = state##I + add;                                         \
        walk->walkers[I].last[half] = state##I;                                 \
        if (UNLIKELY(next >> (PLACE + 6) & 1)) {                                \
            state##I = pass_one(walk, walk->walkers + I, state##I);             \
            bits##I = bits_at(walk->clean, state##I);                           \
        } else {                                                                \
            bits##I <<= add & 63;                                               \
            state##I = next | steps->end[index];                                \
        }                                                                       \
    } while (0)

/* Log so many blocks, and go back in the list of tables. */
COLD uint64_t put_down(Walker *walker, uint64_t state, uint64_t count) {
    for (uint64_t b = 0; b < count; b++) walker->log[b] = walker->last[2 * b + 1];
    memcpy(walker->last, walker->last + 2 * count, 2 * (OVERRUN + 2) * sizeof *walker->last);
    walker->log += count;
    if (walker->end - walker->log < HALVES / 2) walker->stop = 0;
    return state - (count << 40);
}

/* Whether a walker goes on. */
#define GOES(I)                                                                          \
    ((UNLIKELY(state##I >> 40 > walk->list)                                              \
          ? (void)(state##I = put_down(walk->walkers + I, state##I, walk->list))         \
          : (void)0),                                                                    \
     (uint32_t)state##I < walk->walkers[I].stop)
#define BITS(I) bits##I = bits_at(walk->clean, state##I)
#define IF(I, WHAT)        \
    do {                   \
        if (count > I) WHAT; \
    } while (0)

/* Let so many walkers go until one of them has come to its stop. */
INLINE void go(Walk *walk, const int count) {
    uint64_t state0 = walk->walkers[0].state, state1 = walk->walkers[1].state;
    uint64_t state2 = walk->walkers[2].state, state3 = walk->walkers[3].state;
    uint64_t state4 = walk->walkers[4].state, state5 = walk->walkers[5].state;
    uint64_t bits0, bits1, bits2, bits3, bits4, bits5;
    int going = 1;
    do {
        IF(0, BITS(0)); IF(1, BITS(1)); IF(2, BITS(2)); IF(3, BITS(3));IF(4, BITS(4));IF(5, BITS(5));
        _Pragma("GCC unroll 3") for (int i = 0; i < 3; i++) {
            IF(0, PASS(0)); IF(1, PASS(1)); IF(2, PASS(2)); IF(3, PASS(3));IF(4, PASS(4));IF(5, PASS(5));
        }
        IF(0, going &= GOES(0)); IF(1, going &= GOES(1)); IF(2, going &= GOES(2)); IF(3, going &= GOES(3));IF(4, going &= GOES(4));IF(5, going &= GOES(5));
    } while (LIKELY(going));
    walk->walkers[0].state = state0, walk->walkers[1].state = state1;
    walk->walkers[2].state = state2, walk->walkers[3].state = state3;
    walk->walkers[4].state = state4, walk->walkers[5].state = state5;
}

#define GO_OF(COUNT) \
    static __attribute__((noinline)) void go_##COUNT(Walk *walk) { go(walk, COUNT); }
GO_OF(1) GO_OF(2) GO_OF(3) GO_OF(4) GO_OF(5) GO_OF(6)

/* Let all walkers come to their stops. */
static void go_all(Walk *walk, Walker *walkers, int count) {
    static void (*const goes[WALKERS])(Walk *) = {go_1, go_2, go_3, go_4, go_5, go_6};
    int numbers[WALKERS];
    for (int i = 0; i < count; i++) walk->walkers[i] = walkers[i], numbers[i] = i;
    while (count) {
        goes[count - 1](walk);
        for (int i = 0; i < count; i++) {
            Walker *w = walk->walkers + i;
            if ((uint32_t)w->state < w->stop) continue;
            uint64_t at = w->state >> 40; /* where the last block ended, if it did */
            w->last[w->state >> 39] = w->state;
            for (uint64_t b = 0; b <= at; b++) w->log[b] = w->last[2 * b + 1];
            if (!(w->state >> 39 & 1)) w->log[at] = 0;
            walkers[numbers[i]] = *w;
            count--;
            *w = walk->walkers[count];
            numbers[i] = numbers[count];
            i--;
        }
    }
}

static size_t logged(const Walker *w) { return (size_t)(w->log - w->begin) + (w->state >> 40) + 1; }
static int is_good(uint64_t entry) { return (entry >> PLACE & 255) == AT_DC; }

/* Whether two walkers have met: at an entry of each, from those given on. */
static int meet(const Walk *walk, const Walker *one, size_t *i, size_t base, const Walker *other,
                size_t *m) {
    size_t ends[2] = {logged(one), logged(other)}, blocks = (size_t)walk->blocks;
    while (*i < ends[0] && *m < ends[1]) {
        uint64_t mine = one->begin[*i], its = other->begin[*m];
        uint32_t a = (uint32_t)mine, b = (uint32_t)its;
        if (a == b && is_good(mine) && is_good(its) && (*i + base) % blocks == *m % blocks)
            return 1;
        *i += a <= b;
        *m += b <= a;
    }
    return 0;
}

/* Take blocks of a log, up to number `blocks`. Whether all of them are good. */
static int take(const Walker *walker, size_t from, size_t to, size_t base, size_t blocks,
                uint32_t *places) {
    int good = 1;
    for (size_t i = from; i < to && base + i <= blocks; i++) {
        good &= is_good(walker->begin[i]) || base + i == blocks; /* behind the end is anything */
        places[base + i] = (uint32_t)walker->begin[i];
    }
    return good;
}

/* Follow the first walker, and from where it meets another one, that one. A status. */
static int follow(Walk *walk, Walker *walkers, int count, size_t end, size_t blocks,
                  uint32_t *places) {
    Walker *walker = walkers;
    size_t from = 0, i = 0, base = 0; /* of the walker's log: taken; looked at; its first block */
    for (int other = 1; other < count; other++) {
        size_t m = 0;
        int met = 0;
        for (i = logged(walker) - 1; i > from;) /* back to where the other began */
            if ((uint32_t)walker->begin[--i] < (uint32_t)walkers[other].begin[0]) break;
        while (!(met = meet(walk, walker, &i, base, walkers + other, &m))) {
            if (m >= logged(walkers + other) || walker->stop >= 8 * end || !walker->stop) break;
            i = logged(walker) - 1; /* this block may go on */
            walker->stop += 8 * OVERLAP;
            go_all(walk, walker, 1);
        }
        if (!met) continue;
        if (!take(walker, from, i, base, blocks, places)) return DAMAGED;
        base += i - m;
        from = i = m;
        walker = walkers + other;
    }
    if (walker->stop && walker->stop < 8 * end) {
        walker->stop = 8 * end;
        go_all(walk, walker, 1);
    }
    if (base + logged(walker) <= blocks) return DAMAGED;
    return take(walker, from, logged(walker), base, blocks, places) ? MADE : DAMAGED;
}

/* The DC coefficients of blocks whose places are known. A status. */
static int read_dc(const Pattern *pattern, const uint8_t *clean, size_t blocks, Walked walked) {
    int predicted[MOST_COMPONENTS] = {0}, bad = 0;
    for (size_t b = 0; b < blocks;)
        for (int i = 0; i < pattern->blocks; i++, b++) {
            int c = pattern->component[i];
            int dc = predicted[c] += dc_of(pattern->dc[c], bits_at(clean, walked.places[b]));
            bad |= dc > MOST_DC || dc < -MOST_DC - 1;
            walked.dc[b] = (int16_t)dc;
        }
    return bad ? DAMAGED : MADE;
}

/* Walk through so many blocks, which begin at a byte and end before another, behind which 64 bytes
   can be read. There is room for the places of one block more. A status. */
static int walk(Scratch *scratch, const Pattern *pattern, const uint8_t *clean, size_t begin,
                size_t end, size_t blocks, Walked walked) {
    Walk walk;
    walk.clean = clean, walk.blocks = pattern->blocks, walk.list = (uint64_t)pattern->blocks;
    Walker walkers[WALKERS];
    size_t bytes = end - begin;
    int count = bytes < WALKERS * WALKER_BYTES ? (int)(bytes / WALKER_BYTES) : WALKERS;
    if (!count) count = 1;
    while (walk.list < LIST) walk.list += (uint64_t)pattern->blocks;
    for (int b = 0, in_mcu = 0; b <= (int)walk.list + OVERRUN; b++) {
        walk.tables[2 * b + 1] = pattern->dc[pattern->component[in_mcu]];
        walk.tables[2 * b + 2] = pattern->ac[pattern->component[in_mcu]];
        if (++in_mcu == pattern->blocks) in_mcu = 0;
    }
    size_t room = blocks + HALVES;
    uint64_t *log = packio_reserve(&scratch->logs, (size_t)count * room * sizeof *log);
    if (!log) return MEMORY;
    for (int i = 0; i < count; i++, log += room) {
        size_t from = begin + bytes * (size_t)i / (size_t)count;
        size_t to = begin + bytes * ((size_t)i + 1) / (size_t)count + OVERLAP;
        Walker *w = walkers + i;
        w->state = STATE(0, 8 * from), w->stop = 8 * (to < end ? to : end);
        w->log = w->begin = log, w->end = log + room;
    }
    go_all(&walk, walkers, count);
    int status = follow(&walk, walkers, count, end, blocks, walked.places);
    return status ? status : read_dc(pattern, clean, blocks, walked);
}
