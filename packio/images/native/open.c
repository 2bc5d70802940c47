/* JPEGs whose coefficients are stored open: written of a JPEG, and written back, byte for byte.

   Huffman codes are read one after the other; here each block says at once where its coefficients
   are, so it is expanded by shuffles (kernels/expand.h), and no block is needed for another one. All
   numbers are little-endian. First:

       8 bytes      MAGIC
       uint32       bytes of the JPEG's header, from SOI to the end of SOS
       uint32       bytes of the JPEG behind its EOI
       uint32       bytes of values of all components

   Then, of each component in turn, rows by columns of blocks, those included that fill the last MCU:

       uint32       of every 16th block of each row: where its values begin, among all
       4 bytes      of each block: int16 DC coefficient; uint16 kinds of its eight groups, 2 bits each

   and the values of all blocks, component by component, row by row; then the JPEG's header, and what
   is behind its EOI. The header and the rest of the file thus lie behind the values, which are read
   by eight bytes.

   A group is eight coefficients in code order. Kind 0: all are 0. A byte of mask, for each other
   group, says which are not 0; then follow those, lowest bits first, in 2, 4 or 8 bits (kinds 1, 2,
   3), each group in whole bytes. The first mask's lowest bit would be the DC coefficient's: it says
   that a byte follows the masks, which tells the groups of kind 3 that have 16 bits.

   The caller compares what is written back with the JPEG: padding that is not ones, other codes for
   the same coefficients and whatever else this leaves out come out otherwise, and such a JPEG stays
   as it is. */

#include "core.h"
#include "writer.h"

EXPORTED int64_t packio_write_open(Scratch *scratch, const uint8_t *data, int64_t size,
                                   const uint8_t **made);
EXPORTED int64_t packio_write_jpeg(Scratch *scratch, const uint8_t *data, int64_t size,
                                   const uint8_t **made);

enum { EOI = 0xD9, RST0 = 0xD0, HEAD = 20, A_BLOCK = 4, MOST_OF_BLOCK = 9 + 128 };
enum { MOST_BLOCKS_OPEN = 1 << 20 }; /* 45 megapixels at 4:2:0; their coefficients take 128 MB */
static const uint8_t MAGIC[8] = "PKIODCT\1";

static void put_number(uint8_t *to, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> 8 * i);
}

/* Which blocks a JPEG has. How many; and how many places, of all components. */
static size_t lay_out(const Jpeg *jpeg, Open *open, size_t *places) {
    size_t blocks = 0;
    *places = 0;
    for (int c = 0; c < jpeg->components; c++) {
        open->rows[c] = jpeg->rows * (c ? 1 : jpeg->down);
        open->columns[c] = jpeg->columns * (c ? 1 : jpeg->across);
        blocks += (size_t)open->rows[c] * (size_t)open->columns[c];
        *places += (size_t)open->rows[c] * (size_t)((open->columns[c] + A_PLACE - 1) / A_PLACE);
    }
    return blocks;
}

/* Where the tables of each component begin, one component behind the other. */
static const uint8_t *find_tables(const Jpeg *jpeg, Open *open, const uint8_t *at) {
    for (int c = 0; c < jpeg->components; c++) {
        size_t rows = (size_t)open->rows[c], columns = (size_t)open->columns[c];
        open->places[c] = at;
        at += 4 * rows * ((columns + A_PLACE - 1) / A_PLACE);
        open->blocks[c] = at;
        at += A_BLOCK * rows * columns;
    }
    return at;
}

int packio_open(const uint8_t *data, size_t size, Jpeg *jpeg, Open *open) {
    if (size < HEAD || memcmp(data, MAGIC, sizeof MAGIC)) return KIND;
    size_t header = packio_number(data + 8), rest = packio_number(data + 12), places;
    open->size = packio_number(data + 16);
    if (header + rest + open->size > size - HEAD) return DAMAGED;
    open->rest = data + size - rest;
    open->rest_size = rest;
    int status = packio_header(open->rest - header, header, jpeg);
    if (status || jpeg->is_progressive) return status ? status : KIND;
    if (jpeg->scan != header) return DAMAGED;
    size_t blocks = lay_out(jpeg, open, &places);
    if (size != HEAD + 4 * places + A_BLOCK * blocks + open->size + header + rest) return DAMAGED;
    open->values = find_tables(jpeg, open, data + HEAD);
    if (size < MOST_READ) return DAMAGED;
    open->limit = data + size - MOST_READ;
    return MADE;
}

static int reserve(Scratch *scratch, const Jpeg *jpeg, const Open *open, size_t blocks,
                   Coefficients *all) {
    if (blocks > MOST_BLOCKS_OPEN) return KIND;
    int16_t *memory = packio_reserve(&scratch->second, blocks * 136);
    if (!memory) return MEMORY;
    all->masks = (uint64_t *)(memory + 64 * blocks);
    for (int c = 0; c < jpeg->components; c++) {
        all->of[c] = memory;
        all->columns[c] = (size_t)open->columns[c];
        memory += 64 * (size_t)open->rows[c] * all->columns[c];
    }
    return MADE;
}

/* Decode all blocks of a JPEG. A status; and the byte behind its EOI. */
static int read_scan(Scratch *scratch, const Jpeg *jpeg, const Coefficients *all, size_t *end) {
    Pair pairs[3];
    Region region = {.kept = all};
    int in_turn, status = packio_tables(scratch, jpeg, pairs);
    if (status) return status;
    int count = packio_tasks(scratch, jpeg, NULL, 0, 0, jpeg->rows - 1, 0, jpeg->columns - 1, &in_turn);
    if (count <= 0) return count ? -count : DAMAGED;
    const Task *tasks = scratch->tasks.memory, *last = tasks + count - 1;
    *end = last->offset + last->length + 2;
    return packio_kernels()->decode(scratch, jpeg, pairs, &region, tasks, count, in_turn);
}

/* Write the coefficients of a JPEG open. Bytes, at *made until the next call; minus a status. */
int64_t packio_write_open(Scratch *scratch, const uint8_t *data, int64_t size, const uint8_t **made) {
    Jpeg jpeg;
    Open open;
    Coefficients all;
    size_t places, end = 0;
    packio_trim(scratch);
    int status = packio_header(data, (size_t)size, &jpeg);
    if (status || jpeg.is_progressive) return -(status ? status : KIND);
    size_t blocks = lay_out(&jpeg, &open, &places);
    if (blocks > 4 * (size_t)size) return -DAMAGED; /* a block has two bits or more */
    status = reserve(scratch, &jpeg, &open, blocks, &all);
    if (!status) status = read_scan(scratch, &jpeg, &all, &end);
    if (status) return -status;
    size_t rest = (size_t)size - end;
    size_t most = HEAD + 4 * places + (A_BLOCK + MOST_OF_BLOCK) * blocks + jpeg.scan + rest;
    uint8_t *to = rest >> 31 ? NULL : packio_reserve(&scratch->work, most);
    if (!to) return -MEMORY;
    uint8_t *values = (uint8_t *)find_tables(&jpeg, &open, to + HEAD), *at = values;
    for (int c = 0; c < jpeg.components; c++) {
        uint8_t *place = (uint8_t *)open.places[c], *block = (uint8_t *)open.blocks[c];
        const int16_t *from = all.of[c];
        for (int y = 0; y < open.rows[c]; y++)
            for (int x = 0; x < open.columns[c]; x++, block += A_BLOCK, from += 64) {
                if (x % A_PLACE == 0) put_number(place, (uint32_t)(at - values), 4), place += 4;
                put_number(block, (uint16_t)from[0], 2);
                put_number(block + 2, packio_kernels()->compact(from, at, &at), 2);
            }
    }
    memcpy(to, MAGIC, sizeof MAGIC);
    put_number(to + 8, (uint32_t)jpeg.scan, 4);
    put_number(to + 12, (uint32_t)rest, 4);
    put_number(to + 16, (uint32_t)(at - values), 4);
    memcpy(at, data, jpeg.scan);
    memcpy(at + jpeg.scan, data + end, rest);
    *made = to;
    return at + jpeg.scan + rest - to;
}

/* Symbol -> its code << 5 | the code's length; 0: there is none. */
static void list_codes(const uint8_t *counts, uint32_t codes[256]) {
    uint32_t code = 0;
    memset(codes, 0, 256 * sizeof *codes);
    for (int length = 1, index = 16; length <= 16; length++, code <<= 1)
        for (int i = 0; i < counts[length - 1]; i++, index++, code++)
            codes[counts[index]] = code >> length ? 0 : code << 5 | (uint32_t)length;
}

/* Bits that wait until there are enough to write. */
typedef struct {
    uint64_t bits;
    int count, bad;  /* bad: a code was lacking, or a value is 0 that should not */
} Pending;

/* Write the code of some zeros and a value, and the value's bits. */
INLINE void write_value(Writer *w, Pending *pending, const uint32_t *codes, int zeros, int value) {
    unsigned size = value ? 32 - (unsigned)__builtin_clz((unsigned)abs(value)) : 0;
    uint32_t code = codes[(unsigned)zeros << 4 | (size & 15)];
    int count = (int)((code & 31) + size);
    pending->bad |= !code || size > 15;
    if (pending->count + count > 56) {
        put(w, pending->bits << (64 - pending->count), pending->count);
        pending->bits = 0, pending->count = 0;
    }
    uint64_t low = (uint64_t)(value + (value >> 31)) & ((1u << size) - 1);
    pending->bits = pending->bits << count | (uint64_t)(code >> 5) << size | low;
    pending->count += count;
}

/* Write a block; `left` says which of its other coefficients are not 0. Whether that is bad. */
static int write_coefficients(Writer *w, const uint32_t *dc, const uint32_t *ac, int before,
                              const int16_t *block, uint64_t left) {
    Pending pending = {0, 0, 0};
    int last = 0;
    write_value(w, &pending, dc, 0, block[0] - before);
    for (; left; left &= left - 1) {
        int k = __builtin_ctzll(left), zeros = k - last - 1;
        for (; zeros > 15; zeros -= 16) write_value(w, &pending, ac, 15, 0);
        write_value(w, &pending, ac, zeros, block[k]);
        pending.bad |= !block[k];
        last = k;
    }
    if (last < 63) write_value(w, &pending, ac, 0, 0);
    if (pending.count) put(w, pending.bits << (64 - pending.count), pending.count);
    return pending.bad;
}

/* Expand all blocks, which are where places say. How many coefficients are not 0; or minus a status. */
static int64_t expand_all(const Jpeg *jpeg, const Open *open, const Coefficients *all) {
    int64_t count = 0;
    const uint8_t *values = open->values;
    for (int c = 0; c < jpeg->components; c++) {
        const uint8_t *block = open->blocks[c], *place = open->places[c];
        size_t columns = all->columns[c], blocks = (size_t)open->rows[c] * columns;
        int16_t *to = all->of[c];
        for (size_t n = 0; n < blocks; n++, block += A_BLOCK, to += 64) {
            if (values > open->limit) return -DAMAGED;
            if (n % columns % A_PLACE == 0) {
                if (packio_number(place) != (size_t)(values - open->values)) return -DAMAGED;
                place += 4;
            }
            uint32_t told = packio_number(block);
            uint64_t masks = 0;
            values = packio_kernels()->expand_block(to, told >> 16, values, &masks);
            to[0] = (int16_t)told;
            all->masks[(to - all->of[0]) / 64] = masks;
            count += __builtin_popcountll(masks);
        }
    }
    return values == open->values + open->size ? count : -DAMAGED;
}

/* Write the JPEG of open coefficients. Bytes, at *made until the next call; minus a status. */
int64_t packio_write_jpeg(Scratch *scratch, const uint8_t *data, int64_t size, const uint8_t **made) {
    Jpeg jpeg;
    Open open;
    Coefficients all;
    uint32_t dc[3][256], ac[3][256];
    size_t places;
    packio_trim(scratch);
    int status = packio_open(data, (size_t)size, &jpeg, &open);
    if (status) return -status;
    size_t blocks = lay_out(&jpeg, &open, &places), header = jpeg.scan;
    status = reserve(scratch, &jpeg, &open, blocks, &all);
    int64_t count = status ? -status : expand_all(&jpeg, &open, &all);
    if (count < 0) return count;
    for (int c = 0; c < jpeg.components; c++) {
        list_codes(jpeg.dc[c], dc[c]);
        list_codes(jpeg.ac[c], ac[c]);
    }
    /* a code and a value have 32 bits at most, each byte may be stuffed; of a block there are the DC,
       up to three runs of zeros and the end beside its values */
    size_t room = (4 * ((size_t)count + 5 * blocks) + 4 * blocks + 64) * 2;
    uint8_t *to = packio_reserve(&scratch->work, header + room + open.rest_size);
    if (!to) return -MEMORY;
    memcpy(to, jpeg.data, header);
    Writer writer = {.at = to + header};
    int mcus = jpeg.rows * jpeg.columns, interval = jpeg.interval ? jpeg.interval : mcus;
    for (int mcu = 0, number = 0; mcu < mcus; number++) {
        int before[3] = {0, 0, 0}, last = mcus - mcu < interval ? mcus : mcu + interval;
        for (; mcu < last; mcu++)
            for (int i = 0; i < jpeg.blocks; i++) {
                int c = jpeg.block_component[i], row = mcu / jpeg.columns;
                const int16_t *block = packio_block(&jpeg, &all, row, mcu % jpeg.columns, i);
                uint64_t mask = all.masks[(block - all.of[0]) / 64];
                if (write_coefficients(&writer, dc[c], ac[c], before[c], block, mask)) return -DAMAGED;
                before[c] = block[0];
            }
        end_segment(&writer, mcu == mcus ? EOI : RST0 + number % 8);
        writer.held = 0, writer.count = 0;
    }
    memcpy(writer.at, open.rest, open.rest_size);
    *made = to;
    return writer.at + open.rest_size - to;
}
