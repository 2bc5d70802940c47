/* Entropy decoding: bits of a JPEG to coefficients, up to four segments side by side.

   One position runs through all blocks of a segment. Block b has its DC coefficient at position
   128 * b + 127 and AC coefficient k at 128 * (b + 1) + k - 1. So position >> 6 tells which table
   reads the next bits, and the end of a block is no branch: an entry that ends one sets the lower
   seven bits. Four streams in turns hide how long each waits for its table. Behind the last block
   lies a table of nothing, in which a stream stays until the others have ended.

   Bits are believed in no more than this: a code that is not in the table, a block of more than 64
   coefficients, a segment that ends too early or too late, and padding that is not ones. */

typedef struct {
    const uint8_t *at;             /* the byte of `bits`' first bit, once `used` is taken off */
    uint64_t bits, used;           /* the next bits, left-justified; bits used since `at` */
    uint64_t place, end;           /* position, and where the last block ends */
    const Entry *const *tables;    /* of each 64 positions */
    int16_t *coefficients;         /* of the first block */
} Stream;

enum { FIRST = STRIDE - 1, MOST_BYTES = 212 };  /* place; bytes that a block can have */

/* What a single symbol gives: bits used | positions passed << 8 | value << 16 */
enum { ENDS = 1 << 14, IS_BAD = 1 << 15 };

COLD uint64_t one_symbol(const Codes *table, uint64_t bits) {
    unsigned found = table->single[bits >> (64 - table->bits)];
    int length = (int)(found & 255), symbol = (int)(found >> 8);
    if (!length) {
        int32_t next = (int32_t)(bits >> 48);
        for (length = table->bits + 1; length <= 16 && next >= table->limit[length];) length++;
        if (length > 16) return IS_BAD;
        symbol = table->symbols[((next >> (16 - length)) + table->first[length]) & 255];
    }
    int run = table->is_dc ? 0 : symbol >> 4, size = table->is_dc ? symbol : symbol & 15;
    if (size > 11 - !table->is_dc) return IS_BAD;
    if (!size) {
        if (table->is_dc) return (uint64_t)length | 1 << 8;
        return run == 15 ? (uint64_t)length | 16 << 8 : run ? IS_BAD : (uint64_t)length | ENDS;
    }
    int value = (int)((bits << length) >> (64 - size));
    if (value < 1 << (size - 1)) value -= (1 << size) - 1;
    return (uint64_t)(length + size) | (uint64_t)(run + 1) << 8 | (uint64_t)(uint16_t)value << 16;
}

INLINE uint64_t next_bits(const uint8_t *at) {
    uint64_t bits;
    memcpy(&bits, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    bits = __builtin_bswap64(bits);
#endif
    return bits;
}

INLINE void store_values(int16_t *to, const int8_t *values) {
#ifdef AVX2
    _mm_storel_epi64((__m128i *)to, _mm_cvtepi8_epi16(_mm_loadl_epi64((const void *)values)));
#else
    for (int i = 0; i < 4; i++) to[i] = values[i];
#endif
}

#define REFILL(S)                                                   \
    do {                                                            \
        S.at += (S.used & 63) >> 3;                                 \
        S.used &= 7;                                                \
        S.bits = next_bits(S.at) << S.used;                         \
    } while (0)

/* One lookup of a stream; in the rare case one symbol. */
#define STEP(S, NUMBER)                                                                         \
    do {                                                                                        \
        const Entry *entry = table##S + (S.bits >> (64 - table_bits));                          \
        uint32_t meta = entry->meta;                                                            \
        uint64_t next = S.place + (meta >> 8 & 255);                                            \
        if (UNLIKELY((next + 1) & 64)) {                                                        \
            REFILL(S);                                                                          \
            const void *head = (const uint8_t *)table##S - offsetof(Table, entries);            \
            uint64_t one = one_symbol(&((const Table *)head)->codes, S.bits);                                            \
            S.used += one & 63;                                                                 \
            REFILL(S);                                                                          \
            if (one & ENDS) {                                                                   \
                S.place |= 127;                                                                 \
            } else if (one & IS_BAD) {                                                          \
                bad |= 1u << NUMBER;                                                            \
                S.place = S.end;                                                                \
            } else {                                                                            \
                next = S.place + (one >> 8 & 63);                                               \
                S.coefficients[(int64_t)next - 1 - FIRST] = (int16_t)(one >> 16);               \
                if ((next & 127) > 63) bad |= 1u << NUMBER;                                     \
                S.place = (next + 1) & 64 ? next | 127 : next;                                  \
            }                                                                                   \
        } else {                                                                                \
            store_values(S.coefficients + (S.place + (meta >> 16 & 255)) - FIRST, entry->values); \
            S.used += meta;                                                                     \
            S.bits <<= meta & 63;                                                               \
            S.place = next | meta >> 24;                                                        \
        }                                                                                       \
        table##S = S.tables[S.place >> 6];                                                      \
    } while (0)

#define TAKE(S, I) Stream S = streams[I]; const Entry *table##S = S.tables[S.place >> 6]

/* Decode until one of so many streams has ended. Which are bad, as bits. */
INLINE unsigned run(Stream *streams, const int count, const int table_bits) {
    unsigned bad = 0;
    TAKE(A, 0);
    TAKE(B, count > 1 ? 1 : 0);
    TAKE(C, count > 2 ? 2 : 0);
    TAKE(D, count > 3 ? 3 : 0);
    int going;
    do {
        REFILL(A);
        if (count > 1) REFILL(B);
        if (count > 2) REFILL(C);
        if (count > 3) REFILL(D);
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
            STEP(A, 0);
            if (count > 1) STEP(B, 1);
            if (count > 2) STEP(C, 2);
            if (count > 3) STEP(D, 3);
        }
        going = A.place < A.end;
        if (count > 1) going &= B.place < B.end;
        if (count > 2) going &= C.place < C.end;
        if (count > 3) going &= D.place < D.end;
    } while (LIKELY(going));
    streams[0] = A;
    if (count > 1) streams[1] = B;
    if (count > 2) streams[2] = C;
    if (count > 3) streams[3] = D;
    return bad;
}

#define RUN(COUNT, BITS)                                                               \
    static __attribute__((noinline)) unsigned run_##COUNT##_##BITS(Stream *streams) {  \
        return run(streams, COUNT, BITS);                                              \
    }
RUN(1, 10) RUN(2, 10) RUN(3, 10) RUN(4, 10) RUN(1, 13) RUN(2, 13) RUN(3, 13) RUN(4, 13)
typedef unsigned (*Run)(Stream *);
static const Run RUNS[2][4] = {{run_1_10, run_2_10, run_3_10, run_4_10},
                               {run_1_13, run_2_13, run_3_13, run_4_13}};

/* Copy the bytes of a segment without the zero behind each FF. The number of bytes; -1: there is a
   marker. May write 32 bytes more. */
static int64_t unstuff(uint8_t *out, const uint8_t *at, size_t length, const uint8_t *limit) {
    const uint8_t *end = at + length;
    uint8_t *to = out;
    (void)limit; /* behind which nothing is read */
#ifdef AVX2
    const __m256i ones = _mm256_set1_epi8(-1);
    while (at < end && limit - at >= 33) {
        __m256i bytes = _mm256_loadu_si256((const void *)at);
        unsigned found = (unsigned)_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, ones));
        _mm256_storeu_si256((void *)to, bytes);
        int taken = found ? __builtin_ctz(found) + 1 : 32;
        if (taken > end - at) taken = (int)(end - at), found = 0;
        at += taken;
        to += taken;
        if (found && (at == end || *at++)) return -1;
    }
#endif
    while (at < end) {
        const uint8_t *stop = memchr(at, 0xFF, (size_t)(end - at));
        size_t plain = (size_t)((stop ? stop + 1 : end) - at);
        memcpy(to, at, plain);
        to += plain;
        at += plain;
        if (stop && (at == end || *at++)) return -1;
    }
    return to - out;
}

/* Whether the bits of a segment end in its last byte, whose rest is ones. */
static int ends_well(const Stream *stream, const uint8_t *end) {
    const uint8_t *at = stream->at + ((stream->used & 63) >> 3);
    int used = stream->used & 7;
    if (!used) return at == end;
    uint8_t padding = (uint8_t)(0xFF >> used);
    return at + 1 == end && (*at & padding) == padding;
}

/* Whether the bits of a task end where a seek point says. */
static int ends_at_point(const Stream *stream, const Task *task, const uint8_t *end,
                         const int *predicted) {
    const uint8_t *at = stream->at + ((stream->used & 63) >> 3) + (task->end_bit > 0);
    if (at != end || (int)(stream->used & 7) != task->end_bit) return 0;
    for (int c = 0; c < 3; c++)
        if (predicted[c] != task->end_dc[c]) return 0;
    return 1;
}

static int is_within(const Stream *stream, const uint8_t *end) {
    return stream->at + ((stream->used & 63) + 7) / 8 <= end;
}

/* What the streams of an image share. */
typedef struct {
    const Jpeg *jpeg;
    uint8_t *clean, *clean_end;    /* bytes of the segments; NULL: all of them are used */
    const Entry **tables[4];
    int16_t *coefficients[4];
    int blocks[4];                 /* that each list of tables ends behind */
    const Run *runs;
} Streams;

/* Have memory for streams of up to `most` MCUs, and `bytes` bytes in up to `tasks` segments. */
static int prepare(Streams *s, Scratch *scratch, const Jpeg *jpeg, const Pair *pairs, int streams,
                   size_t most, size_t bytes, size_t tasks) {
    size_t blocks = most * (size_t)jpeg->blocks + 1;
    size_t room = bytes + tasks * 40 + blocks * MOST_BYTES + 64;
    s->jpeg = jpeg;
    s->clean = packio_reserve(&scratch->clean, room);
    int16_t *coefficients =
        packio_reserve(&scratch->coefficients, (size_t)streams * blocks * STRIDE * 2);
    const Entry **tables =
        packio_reserve(&scratch->tables, (size_t)streams * (2 * blocks + 1) * sizeof *tables);
    if (!s->clean || !coefficients || !tables) return MEMORY;
    s->runs = RUNS[pairs[0].dc->codes.bits == LARGE_BITS];
    for (int i = 0; i < streams; i++) {
        s->coefficients[i] = coefficients + (size_t)i * blocks * STRIDE;
        s->tables[i] = tables + (size_t)i * (2 * blocks + 1);
        s->blocks[i] = 0;
        for (size_t b = 0, in_mcu = 0; b < blocks; b++) {
            const Pair *pair = pairs + jpeg->block_component[in_mcu];
            s->tables[i][2 * b + 1] = pair->dc->entries;
            s->tables[i][2 * b + 2] = pair->ac->entries;
            if (++in_mcu == (size_t)jpeg->blocks) in_mcu = 0;
        }
    }
    return MADE;
}

/* Let a stream begin where its bits are, with some MCUs. */
static void begin(Streams *s, Stream *stream, int slot, int mcus, const Pair *pairs) {
    s->tables[slot][2 * s->blocks[slot] + 1] = pairs[0].dc->entries; /* an MCU begins there */
    s->blocks[slot] = mcus * s->jpeg->blocks;
    s->tables[slot][2 * s->blocks[slot] + 1] = packio_stopped;
    stream->place = FIRST;
    stream->end = FIRST + (uint64_t)STRIDE * (uint64_t)s->blocks[slot];
    stream->tables = s->tables[slot];
    stream->coefficients = s->coefficients[slot];
}

/* Copy the bytes of a task, and let a stream begin with them. Their end; NULL: they are bad. */
static const uint8_t *begin_task(Streams *s, Stream *stream, int slot, const Task *task,
                                 const Pair *pairs) {
    const Jpeg *jpeg = s->jpeg;
    stream->at = s->clean;
    stream->used = (uint64_t)task->bit;
    int64_t length = unstuff(s->clean, jpeg->data + task->offset, task->length, jpeg->end);
    if (length < 0) return NULL;
    s->clean += length;
    memset(s->clean, 0, 8);
    begin(s, stream, slot, task->count, pairs);
    LAP(COPY);
    return s->clean;
}

/* Decode tasks side by side. */
static int decode_beside(Scratch *scratch, const Jpeg *jpeg, const Pair *pairs,
                         const Region *region, const Task *tasks, int count) {
    Streams s;
    Stream streams[4];
    const Task *tasks_of[4];
    const uint8_t *ends[4];
    int slots[4], alive = 0, at = 0, predicted[3];
    size_t most = 0, bytes = 0;
    for (int i = 0; i < count; i++) {
        if ((size_t)tasks[i].count > most) most = (size_t)tasks[i].count;
        bytes += tasks[i].length;
    }
    int status = prepare(&s, scratch, jpeg, pairs, count < 4 ? count : 4, most, bytes, (size_t)count);
    if (status) return status;
    for (; alive < 4 && at < count; alive++, at++) {
        slots[alive] = alive;
        tasks_of[alive] = tasks + at;
        ends[alive] = begin_task(&s, streams + alive, alive, tasks + at, pairs);
        if (!ends[alive]) return DAMAGED;
    }
    while (alive) {
        if (s.runs[alive - 1](streams)) return DAMAGED;
        LAP(ENTROPY);
        for (int i = 0; i < alive; i++) {
            if (streams[i].place < streams[i].end) continue;
            const Task *task = tasks_of[i];
            for (int c = 0; c < 3; c++) predicted[c] = task->dc[c];
            if (put_blocks(jpeg, region, task->mcu, task->count, predicted, s.coefficients[slots[i]]))
                return DAMAGED;
            int good = !task->whole ? is_within(streams + i, ends[i])
                       : task->to_point
                           ? ends_at_point(streams + i, task, ends[i], predicted)
                           : ends_well(streams + i, ends[i]);
            if (!good) return DAMAGED;
            if (at < count) {
                tasks_of[i] = tasks + at;
                ends[i] = begin_task(&s, streams + i, slots[i], tasks + at++, pairs);
                if (!ends[i]) return DAMAGED;
            } else {
                alive--;
                streams[i] = streams[alive];
                tasks_of[i] = tasks_of[alive];
                ends[i] = ends[alive];
                slots[i] = slots[alive];
                i--;
            }
        }
    }
    return MADE;
}

/* Decode the one segment of a JPEG, a task after the other. */
static int decode_in_turn(Scratch *scratch, const Jpeg *jpeg, const Pair *pairs,
                          const Region *region, const Task *tasks, int count) {
    Streams s;
    Stream stream;
    int predicted[3] = {0, 0, 0};
    int status = prepare(&s, scratch, jpeg, pairs, 1, (size_t)jpeg->columns, tasks->length, 1);
    if (status) return status;
    const uint8_t *end = begin_task(&s, &stream, 0, tasks, pairs);
    if (!end) return DAMAGED;
    for (int i = 0; i < count; i++) {
        begin(&s, &stream, 0, tasks[i].count, pairs);
        if (s.runs[0](&stream) || !is_within(&stream, end)) return DAMAGED;
        LAP(ENTROPY);
        if (put_blocks(jpeg, region, tasks[i].mcu, tasks[i].count, predicted, s.coefficients[0]))
            return DAMAGED;
    }
    return ends_well(&stream, end) ? MADE : DAMAGED;
}

/* Forget blocks of a stream that was given up: the next image would meet them. */
static void forget(Scratch *scratch) {
    Buffer *buffer = &scratch->coefficients;
    if (buffer->memory) memset(buffer->memory, 0, buffer->size);
}

static int decode(Scratch *scratch, const Jpeg *jpeg, const Pair *pairs, const Region *region,
                  const Task *tasks, int count, int in_turn) {
    int status = (in_turn ? decode_in_turn : decode_beside)(scratch, jpeg, pairs, region, tasks, count);
    if (status) forget(scratch);
    return status;
}
