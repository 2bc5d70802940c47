/* Fuzz the native core: damaged JPEGs, wrong seek points, requests that make no sense.

       native_fuzz FOLDER RUNS SEED

   FOLDER has JPEGs to begin with. tools/native_sanitize.sh compiles this with the core and the
   compiler's sanitizers, and runs it. Every input is made by two memories:

   - one that is new for each input, has not a byte more than was asked for, and is filled with
     bytes that mean nothing: what reads or writes beyond, or reads what nobody wrote, is noticed;
   - one that is kept from input to input, as a thread keeps its own: what an image leaves behind
     for the next one is noticed.

   One of them has the kernels for any processor, the other one those for AVX2. Statuses and pixels
   must be the same. After each batch of inputs, good images must be made as they were at first.

   A JPEG that is decoded whole is stored open, too. Its open form gives the same pixels, and comes
   back as a JPEG; then its bytes are changed, and whatever is made of it must be the same by both
   memories, and the same as of the JPEG that is written of it.

   With each input, rows of a PNG lose their filters, as the specification says. */

#define _GNU_SOURCE /* memmem */
#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "../packio/images/native/core.h"

Scratch *packio_new_scratch(void);
void packio_free_scratch(Scratch *scratch);
int packio_choose(int avx2);
int packio_make(Scratch *scratch, const Request *requests, int count, const uint8_t *data,
                int64_t size, const uint8_t *points, int64_t points_size, int layout);
int64_t packio_find_points(Scratch *scratch, const uint8_t *data, int64_t size, uint8_t *points,
                           int64_t room);
int64_t packio_write_open(Scratch *scratch, const uint8_t *data, int64_t size, const uint8_t **made);
int64_t packio_write_jpeg(Scratch *scratch, const uint8_t *data, int64_t size, const uint8_t **made);
int64_t packio_recut(Scratch *scratch, const Recut *recut, const uint8_t *data, int64_t size,
                     uint8_t *out, int64_t room, int32_t *lengths, int32_t *used);
int packio_unfilter(const uint8_t *rows, int64_t size, int64_t height, int64_t stride,
                    int32_t channels, uint8_t *out, int64_t room);
void *__real_packio_reserve(Buffer *buffer, size_t bytes);
void *__wrap_packio_reserve(Buffer *buffer, size_t bytes);

enum { SEEDS = 512, BATCH = 50, MOST_OUT = 1 << 21, MOST_WHOLE = 1 << 20 };

typedef struct {
    uint8_t *data, *points, *made; /* made: the first time */
    size_t size, points_size;
    int height, width, channels;
} Seed;

static Seed seeds[SEEDS];
static int seed_count;
static Scratch *exact, *kept;
static uint64_t state;
static uint64_t digest; /* of all that was made: the same for any processor and compiler */
static unsigned long calls, made, declined[8], points_found, recuts, unfiltered, operated;
static unsigned long opened, mutants_made, mutants_written; /* open forms */

/* Random numbers. Source: S. Vigna, splitmix64. */
static uint64_t draw(void) {
    uint64_t x = state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static int below(int n) { return n > 0 ? (int)(draw() % (uint64_t)n) : 0; }

static void note(const void *what, size_t size) {
    for (size_t i = 0; i < size; i++) digest = (digest ^ ((const uint8_t *)what)[i]) * UINT64_C(0x100000001B3);
}

static void fail(const char *what, unsigned long run) {
    fprintf(stderr, "run %lu: %s\n", run, what);
    abort();
}

static void show(const Request *r, const uint8_t *a, const uint8_t *b, size_t bytes) {
    size_t at = 0;
    while (at < bytes && a[at] == b[at]) at++;
    fprintf(stderr, "ratio %g, %g\nheight … level:", r->ratio_y, r->ratio_x);
    for (int i = 0; i < 18; i++) fprintf(stderr, " %d", (&r->height)[i]);
    fprintf(stderr, "\nbyte %zu of %zu: %d, %d\n", at, bytes, a[at], b[at]);
}

static void *copy_of(const void *data, size_t size) {
    void *copy = malloc(size ? size : 1);
    if (!copy) fail("no memory", 0);
    if (size) memcpy(copy, data, size);
    return copy;
}

/* Instead of the core's own: see above. Coefficients are the one memory that must be zeros. */
void *__wrap_packio_reserve(Buffer *buffer, size_t bytes) {
    uint8_t *at = (uint8_t *)buffer, *begin = (uint8_t *)exact;
    if (!exact || at < begin || at >= begin + sizeof(Scratch))
        return __real_packio_reserve(buffer, bytes);
    free(buffer->memory);
    buffer->memory = NULL;
    buffer->size = 0;
    if (bytes > 1 << 28 || posix_memalign(&buffer->memory, 64, bytes)) return buffer->memory = NULL;
    buffer->size = bytes;
    memset(buffer->memory, buffer == &exact->coefficients ? 0 : (int)draw(), bytes);
    return buffer->memory;
}

/* No coefficient is left behind. */
static void check_forgotten(unsigned long run) {
    const uint64_t *at = exact->coefficients.memory;
    for (size_t i = 0; at && i < exact->coefficients.size / 8; i++)
        if (at[i]) fail("coefficients are left behind", run);
}

/* Mutants: bytes of a JPEG are changed in place or moved. `room` is enough for all changes. */
typedef struct {
    uint8_t *data;
    size_t size, room;
} Bytes;

static size_t place_in(const Bytes *b) {
    size_t end = below(10) < 6 && b->size > 700 ? 700 : b->size;
    return end ? (size_t)below((int)end) : 0;
}

static void insert(Bytes *b, size_t at, const uint8_t *what, size_t count) {
    if (at > b->size || b->size + count > b->room) return;
    uint8_t *copy = copy_of(what, count);
    memmove(b->data + at + count, b->data + at, b->size - at);
    memcpy(b->data + at, copy, count);
    b->size += count;
    free(copy);
}

static void delete(Bytes *b, size_t at, size_t count) {
    if (at > b->size) return;
    if (count > b->size - at) count = b->size - at;
    memmove(b->data + at, b->data + at + count, b->size - at - count);
    b->size -= count;
}

/* Swap, repeat or drop segments of the header. */
static void change_segments(Bytes *b) {
    size_t starts[64], sizes[64], at = 2;
    int count = 0;
    while (count < 64 && at + 4 <= b->size && b->data[at] == 0xFF && b->data[at + 1] != 0xDA) {
        size_t size = 2 + (size_t)(b->data[at + 2] << 8 | b->data[at + 3]);
        if (at + size > b->size) break;
        starts[count] = at;
        sizes[count++] = size;
        at += size;
    }
    if (!count) return;
    int from = below(count), to = below(count), how = below(3);
    uint8_t *segment = copy_of(b->data + starts[from], sizes[from]);
    if (how != 1) delete(b, starts[from], sizes[from]);
    if (how != 0) insert(b, starts[to] > b->size ? b->size : starts[to], segment, sizes[from]);
    free(segment);
}

static void mutate(Bytes *b) {
    static const uint8_t codes[] = {0x00, 0xC0, 0xC1, 0xC2, 0xC4, 0xD0, 0xD1, 0xD7, 0xD8,
                                    0xD9, 0xDA, 0xDB, 0xDD, 0xE0, 0xE9, 0xEE, 0xFE, 0xFF};
    static const int times[] = {1, 1, 1, 2, 3, 8};
    for (int n = times[below(6)]; n > 0 && b->size; n--) {
        size_t at = place_in(b);
        uint8_t random[16];
        for (int i = 0; i < 16; i++) random[i] = (uint8_t)draw();
        switch (below(11)) {
        case 0: case 1: case 2: b->data[at] ^= (uint8_t)(1 << below(8)); break;
        case 3: case 4: b->data[at] = random[0]; break;
        case 5: delete(b, at, 1 + (size_t)below(20)); break;
        case 6: insert(b, at, random, 1 + (size_t)below(15)); break;
        case 7: if (!below(4)) b->size = at; break;
        case 8:
            b->data[at] = 0xFF;
            if (at + 1 < b->size) b->data[at + 1] = codes[below(sizeof codes)];
            break;
        case 9: change_segments(b); break;
        default: { /* bytes of another one, or of another place */
            const Seed *other = seeds + below(seed_count);
            size_t count = 1 + (size_t)below(200), from = (size_t)below((int)other->size);
            if (count > other->size - from) count = other->size - from;
            if (below(2)) delete(b, at, count);
            insert(b, at, other->data + from, count);
        }
        }
    }
}

static int any_of(const int *numbers, int count) { return numbers[below(count)]; }
#define ANY(numbers) any_of(numbers, (int)(sizeof numbers / sizeof *numbers))

static int hostile_number(void) {
    static const int numbers[] = {0, 1, -1, 2, 3, 7, 8, 9, 15, 16, 17, 40, 65535, 1 << 20,
                                  (1 << 20) + 1, -(1 << 20), INT_MAX, INT_MIN, INT_MAX - 7};
    return below(3) ? below(300) - 20 : ANY(numbers);
}

static double hostile_ratio(void) {
    static const double numbers[] = {0, -1, 1, 1e-300, 1e300, 0.5, 1.5, 3.99, 14, 33, 1000, 3e5, 1e7};
    switch (below(4)) {
    case 0: return numbers[below(13)];
    case 1: return below(2) ? NAN : INFINITY;
    case 2: return below(2000) / 100.0;
    default: return below(100) / 7.0;
    }
}

/* A request that packio might have, or not, for an image of some size. */
static void ask(Request *r, int height, int width) {
    memset(r, 0, sizeof *r);
    r->height = height;
    r->width = width;
    r->orientation = 1;
    r->channels = below(8) ? 3 : 1;
    r->method = UNRESIZED;
    r->scale = r->level = 1;
    r->box_height = height;
    r->box_width = width;
    int kind = (int64_t)height * width > MOST_WHOLE ? 1 + below(7) : below(10);
    if (kind) {
        int most = kind == 1 ? 1 : 300;
        r->box_height = 1 + below(height < most ? height : most);
        r->box_width = 1 + below(width < most ? width : most);
        if (!below(4) && height <= most) r->box_height = height;
        if (!below(4) && width <= most) r->box_width = width;
        r->top = below(height - r->box_height + 1);
        r->left = below(width - r->box_width + 1);
        if (!below(4)) r->top = height - r->box_height;
        if (!below(4)) r->left = width - r->box_width;
    }
    if (!below(3)) r->orientation = 1 + below(8);
    r->flips = below(4);
    int high = r->orientation >= 5 ? r->box_width : r->box_height;
    int broad = r->orientation >= 5 ? r->box_height : r->box_width;
    r->to_height = r->out_height = high;
    r->to_width = r->out_width = broad;
    if (kind < 3) return;
    r->method = below(5);
    if (below(3) == 0) r->scale = 1 << below(4);
    int most = below(5) ? 70 : 600;
    if (below(5)) r->to_height = below(6) ? 1 + below(most) : 1;
    if (below(5)) r->to_width = below(6) ? 1 + below(most) : 1;
    r->out_height = r->to_height;
    r->out_width = r->to_width;
    if (kind >= 5) {
        r->out_top = below(40) - 20;
        r->out_left = below(40) - 20;
        r->out_height = 1 + below(80);
        r->out_width = 1 + below(80);
    }
    if (kind == 6) { /* the box is a part of a larger one */
        int more[4];
        for (int i = 0; i < 4; i++) more[i] = below(200);
        r->ratio_y = (high + more[0]) / (double)(r->to_height + more[1]);
        r->ratio_x = (broad + more[2]) / (double)(r->to_width + more[3]);
    }
    if (kind < 8) return;
    if (!below(3)) r->ratio_y = hostile_ratio();
    if (!below(3)) r->ratio_x = hostile_ratio();
    int32_t *fields = &r->height; /* … and those behind it */
    for (int n = below(3); n > 0; n--) {
        int which = below(18);
        fields[which] = hostile_number();
    }
}

static int points_of_mutant(const uint8_t *data, size_t size, uint8_t **points, size_t *points_size,
                            unsigned long run) {
    size_t room = below(4) ? size / 64 + 4096 : (size_t)below(64);
    uint8_t *found[2] = {malloc(room + 1), malloc(room + 1)};
    packio_choose(run & 1);
    int64_t one = packio_find_points(exact, data, (int64_t)size, found[0], (int64_t)room);
    packio_choose(!(run & 1));
    int64_t two = packio_find_points(kept, data, (int64_t)size, found[1], (int64_t)room);
    calls += 2;
    if (one != two) fail("other seek points", run);
    if (one > 0 && memcmp(found[0], found[1], (size_t)one)) fail("other seek points", run);
    if (one > 0) {
        *points = copy_of(found[0], (size_t)one);
        *points_size = (size_t)one;
        points_found++;
        note(found[0], (size_t)one);
    }
    free(found[0]);
    free(found[1]);
    return one > 0;
}

static void change_points(uint8_t *points, size_t size) {
    for (int n = 1 + below(3); n > 0 && size; n--) {
        size_t at = below(4) ? (size_t)below((int)size) : (size_t)below(2);
        points[at] = (uint8_t)(below(2) ? draw() : points[at] ^ (1u << below(8)));
    }
}

/* An output that was made is the same with another one beside it, or both are declined. */
static void beside_another(const Request *one, const uint8_t *wanted, size_t bytes,
                           const uint8_t *data, size_t size, const uint8_t *points,
                           size_t points_size, int layout, unsigned long run) {
    Request both[2] = {*one, *one};
    ask(&both[1], one->height, one->width);
    both[1].scale = one->scale;
    both[1].level = one->level;
    both[1].channels = one->channels;
    int64_t pixels = (int64_t)both[1].out_height * both[1].out_width;
    if (both[1].out_height < 1 || both[1].out_width < 1 || pixels > MOST_OUT) return;
    uint8_t *outs[2] = {malloc(bytes), malloc((size_t)pixels * 3)};
    for (int i = 0; i < 2; i++) both[i].out = outs[i];
    uint8_t *own = copy_of(points, points_size);
    int status = packio_make(exact, both, 2, data, (int64_t)size, own, (int64_t)points_size, layout);
    calls++;
    if (!status && memcmp(outs[0], wanted, bytes)) fail("other pixels beside another output", run);
    free(own);
    free(outs[0]);
    free(outs[1]);
}

/* What both memories make of an image. A status; MEMORY if one of them had none. If it is 0, *out has
   the pixels. */
static int make_by_both(Request *r, const uint8_t *data, size_t size, const uint8_t *points,
                        size_t points_size, int layout, uint8_t **out, size_t *bytes, unsigned long run) {
    int64_t pixels = r->out_height > 0 && r->out_width > 0 ? (int64_t)r->out_height * r->out_width : 1;
    if (pixels > MOST_OUT || r->channels < 0 || r->channels > 3) pixels = 1, r->out_height = r->out_width = 1;
    *bytes = (size_t)pixels * (r->channels == 3 ? 3 : 1);
    uint8_t *outs[2] = {malloc(*bytes), malloc(*bytes)};
    memset(outs[0], 0x55, *bytes);
    memset(outs[1], 0xAA, *bytes);
    int statuses[2];
    for (int i = 0; i < 2; i++) {
        packio_choose((int)(run + (unsigned)i) & 1);
        r->out = outs[i];
        uint8_t *own = copy_of(points, points_size);
        statuses[i] = packio_make(i ? kept : exact, r, 1, data, (int64_t)size, own,
                                  (int64_t)points_size, layout);
        free(own);
    }
    calls += 2;
    note(statuses, sizeof statuses);
    if (statuses[0] < 0 || statuses[0] > MEMORY) fail("no such status", run);
    check_forgotten(run);
    int lacks = statuses[0] == MEMORY || statuses[1] == MEMORY;
    if (statuses[0] != statuses[1] && !lacks) fail("another status", run);
    if (!lacks && !statuses[0]) {
        if (memcmp(outs[0], outs[1], *bytes)) {
            show(r, outs[0], outs[1], *bytes);
            fail("other pixels", run);
        }
        note(outs[0], *bytes);
        *out = copy_of(outs[0], *bytes);
        if (below(2))
            beside_another(r, outs[0], *bytes, data, size, points, points_size, layout, run);
    }
    free(outs[0]);
    free(outs[1]);
    return lacks ? MEMORY : statuses[0];
}

typedef int64_t (*Write)(Scratch *, const uint8_t *, int64_t, const uint8_t **);

/* What both memories write of some bytes; no data if they decline it. */
static Bytes write_by_both(Write write, const Bytes *b, unsigned long run) {
    const uint8_t *outs[2] = {NULL, NULL};
    int64_t sizes[2];
    for (int i = 0; i < 2; i++) {
        packio_choose((int)(run + (unsigned)i) & 1);
        sizes[i] = write(i ? kept : exact, b->data, (int64_t)b->size, outs + i);
    }
    calls += 2;
    note(sizes, sizeof sizes);
    check_forgotten(run);
    if (sizes[0] == -MEMORY || sizes[1] == -MEMORY) return (Bytes){NULL, 0, 0};
    if (sizes[0] != sizes[1] || !sizes[0] || sizes[0] < -MEMORY) fail("another size of what is written", run);
    if (sizes[0] < 0) return (Bytes){NULL, 0, 0};
    size_t size = (size_t)sizes[0];
    if (memcmp(outs[0], outs[1], size)) fail("other bytes are written", run);
    note(outs[0], size);
    return (Bytes){copy_of(outs[0], size), size, size};
}

static int are_same(const Bytes *a, const Bytes *b) {
    return a->size == b->size && !memcmp(a->data, b->data, a->size);
}

/* An output of an open form is that of its JPEG. `may_lack`: one of them may be declined. Whether the
   open form was made. */
static int compare_open(const Bytes *open, const Bytes *jpeg, int height, int width, int may_lack,
                        unsigned long run) {
    Request r;
    uint8_t *outs[2] = {NULL, NULL};
    size_t bytes;
    ask(&r, height, width);
    uint64_t begun = state;
    int status = make_by_both(&r, open->data, open->size, NULL, 0, OPEN, outs, &bytes, run);
    state = begun; /* the same output beside it */
    if (jpeg->data) {
        int other = make_by_both(&r, jpeg->data, jpeg->size, NULL, 0, JPEG, outs + 1, &bytes, run);
        if (outs[0] && outs[1] && memcmp(outs[0], outs[1], bytes)) {
            show(&r, outs[0], outs[1], bytes);
            fail("other pixels of open coefficients", run);
        }
        if (status != other && !may_lack && status != MEMORY && other != MEMORY)
            fail("another status of open coefficients", run);
    }
    free(outs[0]);
    free(outs[1]);
    return !status;
}

static void write_number(uint8_t *to, uint32_t value) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(value >> 8 * i);
}

/* Change an open form: what is in front, places and blocks, values, or the header and the rest. */
static void mutate_open(Bytes *b, const Open *open, size_t header) {
    enum { FRONT = 20 };
    size_t values = (size_t)(open->values - b->data), end = values + open->size;
    size_t begins[] = {8, FRONT, values, end, b->size};
    static const int times[] = {1, 1, 1, 2, 3, 20};
    const uint8_t *frame = memmem(b->data + end, header, "\xFF\xC0", 2);
    int part = below(10) ? 1 + below(3) : 0;
    for (int n = times[below(6)]; n > 0; n--) {
        if (!below(4)) part = below(10) ? 1 + below(3) : 0;
        size_t at = begins[part] + (size_t)below((int)(begins[part + 1] - begins[part]));
        if (part == 3 && frame && !below(6)) at = (size_t)(frame - b->data) + 5 + (size_t)below(9);
        size_t most = b->size - at, count = 1 + (size_t)below(150), from = (size_t)below((int)b->size);
        if (count > most) count = most;
        switch (below(part == 1 ? 8 : 6)) {
        case 0: case 1: b->data[at] ^= (uint8_t)(1 << below(8)); break;
        case 2: b->data[at] = (uint8_t)draw(); break;
        case 3: memset(b->data + at, below(3) ? 0xFF : 0, count); break; /* many values, or none */
        case 4: case 5: /* bytes of another place */
            memmove(b->data + at, b->data + from, count < b->size - from ? count : b->size - from);
            break;
        default: /* a place is near the end */
            at = FRONT + 4 * (size_t)below(8);
            write_number(b->data + at, (uint32_t)open->size + (uint32_t)below(9) - 4);
        }
    }
    if (below(5)) return;
    uint8_t random[16];
    for (int i = 0; i < 16; i++) random[i] = (uint8_t)draw();
    size_t count = 1 + (size_t)below(15), size = open->size, rest = open->rest_size;
    size_t at = values + (size_t)below((int)size + 1);
    int grows = below(2);
    switch (below(4)) {
    case 0: b->size = (size_t)below((int)b->size + 1); break;
    case 1: insert(b, (size_t)below((int)b->size + 1), random, count); break;
    case 2: /* other values behind some place */
        if (grows) insert(b, at, random, count);
        else delete(b, at, count = count < end - at ? count : end - at);
        write_number(b->data + 16, (uint32_t)(grows ? size + count : size - count));
        break;
    default: /* another border of the header */
        write_number(b->data + 8, (uint32_t)(grows ? header + count : header - count));
        at = below(2) ? 12 : 16;
        write_number(b->data + at, (uint32_t)((at == 12 ? rest : size) - (grows ? count : -count)));
    }
}

/* Store a JPEG open, change that, and write it back. */
static void open_mutant(uint8_t *data, size_t size, int is_good, unsigned long run) {
    uint64_t begun = state;
    Jpeg jpeg;
    Open open;
    Bytes b = {data, size, size}, form = write_by_both(packio_write_open, &b, run);
    is_good = is_good && !packio_header(data, size, &jpeg) && !jpeg.is_progressive;
    if (is_good && !form.data) fail("a good JPEG is not stored open", run);
    if (!form.data) return;
    opened++;
    state = begun + (1 << 16); /* as in one_run */
    Bytes back = write_by_both(packio_write_jpeg, &form, run);
    if (is_good && (!back.data || !are_same(&back, &b))) fail("another JPEG comes back", run);
    if (packio_open(form.data, form.size, &jpeg, &open)) fail("an open form is damaged", run);
    int height = jpeg.height, width = jpeg.width;
    if (back.data) {
        Bytes again = write_by_both(packio_write_open, &back, run);
        if (!again.data || !are_same(&again, &form)) fail("another open form", run);
        free(again.data);
        state = begun + (2 << 16);
        compare_open(&form, &b, height, width, 0, run);
    }
    free(back.data);
    state = begun + (3 << 16);
    Bytes changed = {malloc(form.size + 64), form.size, form.size + 64};
    memcpy(changed.data, form.data, form.size);
    open.values = changed.data + (open.values - form.data);
    mutate_open(&changed, &open, jpeg.scan);
    Bytes mutant = {copy_of(changed.data, changed.size), changed.size, changed.size};
    int is_same = are_same(&mutant, &form), is_open = !packio_open(mutant.data, mutant.size, &jpeg, &open);
    free(changed.data);
    uint64_t then = state;
    back = write_by_both(packio_write_jpeg, &mutant, run);
    mutants_written += back.data && !is_same;
    state = then + 1;
    if (is_open) height = jpeg.height, width = jpeg.width;
    mutants_made += compare_open(&mutant, &back, height, width, 1, run) && !is_same;
    free(back.data);
    free(mutant.data);
    free(form.data);
}

/* A scan gets other restart intervals: with right codes of differences, or with some. */
static void ask_recut(Recut *r, const Jpeg *jpeg) {
    static const int intervals[] = {1, 2, 3, 7, 40};
    int mcus = jpeg->rows * jpeg->columns;
    memset(r, 0, sizeof *r);
    r->scan = (int32_t)jpeg->scan;
    r->mcus = mcus;
    r->restarts = jpeg->interval ? jpeg->interval : mcus;
    r->interval = below(2) ? jpeg->columns : ANY(intervals);
    r->blocks = jpeg->blocks;
    r->components = jpeg->components;
    memcpy(r->component, jpeg->block_component, sizeof jpeg->block_component);
    for (int c = 0; c < jpeg->components; c++) {
        for (int i = 0; i < SIZES; i++) {
            int length = 1 + below(16);
            r->tables[c].codes[i] = below(20) ? below(1 << length) << 5 | length : 0;
        }
        memcpy(r->tables[c].dc, jpeg->dc[c], packio_codes_size(jpeg->dc[c]));
        memcpy(r->tables[c].ac, jpeg->ac[c], packio_codes_size(jpeg->ac[c]));
    }
    if (below(20)) return;
    int32_t *field = &r->scan + below(6);
    *field = hostile_number();
}

static void recut_mutant(const Jpeg *jpeg, const uint8_t *data, size_t size, unsigned long run) {
    Recut r;
    ask_recut(&r, jpeg);
    if (r.interval < 1 || r.restarts < 1 || r.mcus < 1 || r.mcus > 4 * (int64_t)size) r.mcus = -1;
    int64_t segments = r.mcus < 1 ? 1 : (r.mcus - 1) / r.interval + 1;
    int64_t ends = r.mcus < 1 ? 1 : (r.mcus - 1) / r.restarts + 1;
    int64_t room = 2 * ((int64_t)size - r.scan) + ROOM_A_SEGMENT * (segments + ends);
    if (room < 0 || room > 1 << 26) room = 0;
    room -= !below(20) && room;
    uint8_t *outs[2] = {malloc((size_t)room), malloc((size_t)room)};
    int32_t *lengths = malloc((size_t)segments * sizeof *lengths), used[2][4] = {{0}};
    int64_t made_of[2];
    for (int i = 0; i < 2; i++) {
        packio_choose((int)(run + (unsigned)i) & 1);
        made_of[i] = packio_recut(i ? kept : exact, &r, data, (int64_t)size, outs[i], room, lengths, used[i]);
    }
    calls += 2;
    if (made_of[0] != made_of[1]) fail("another scan", run);
    if (made_of[0] > 0) {
        recuts++;
        note(outs[0], (size_t)made_of[0]);
        int64_t sum = 0;
        for (int i = 0; i < segments; i++) sum += lengths[i];
        if (memcmp(outs[0], outs[1], (size_t)made_of[0]) || memcmp(used[0], used[1], sizeof used[0]))
            fail("another scan", run);
        if (sum != made_of[0]) fail("lengths of segments that are others'", run);
    }
    free(outs[0]);
    free(outs[1]);
    free(lengths);
}

/* What a filter of PNG foretells, as the specification says it: section 9.2. */
static int foretold(int filter, int a, int b, int c) {
    int p = a + b - c, pa = abs(p - a), pb = abs(p - b), pc = abs(p - c);
    if (filter == 0) return 0;
    if (filter == 1) return a;
    if (filter == 2) return b;
    if (filter == 3) return (a + b) / 2;
    return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
}

/* A value of an operation: as users give them, or anything. */
static double value(void) {
    switch (below(10)) {
    case 0: return (double)hostile_number();
    case 1: return NAN;
    case 2: return below(2) ? INFINITY : -INFINITY;
    case 3: return below(2) ? 1e300 : 1e-300;
    case 4: return 0;
    case 5: return below(256);
    default: return (double)(below(2000000) - 1000000) / (below(2) ? 1e6 : 1e5);
    }
}

/* A row of operations on an image gives the same by both kinds of kernels, and harms nothing. */
static void operate_some(unsigned long run) {
    int channels = below(30) ? (below(2) ? 1 : 3) : below(5), height = 1 + below(40);
    int width = 1 + below(below(3) ? 40 : 90), count = below(5);
    Operation operations[4];
    for (int i = 0; i < count; i++) {
        Operation *o = operations + i;
        static const int first[] = {BRIGHTNESS, AFFINE, GAUSSIAN_BLUR};
        o->operator = below(20) ? first[below(3)] + below(15) : (int32_t)draw();
        o->interpolation = below(20) ? (below(2) ? BILINEAR : below(2) ? BICUBIC : NEAREST) : (int32_t)draw();
        for (int k = 0; k < 12; k++) o->values[k] = value();
        if (o->operator == KERNEL_BLUR)
            for (int k = 0; k < 2; k++) o->values[k] = 1 + 2 * below(8);
        if (o->operator == AFFINE && below(3)) {
            const double usual[] = {0.9, 0.2, -3, -0.2, 0.9, 4};
            for (int k = 0; k < 6; k++) o->values[k] = usual[k] + below(100) / 300.0;
        }
        for (int k = 6; k < 12 && below(4); k++) o->values[k] = below(256);
    }
    size_t bytes = (size_t)(channels * height * width), room = bytes ? bytes : 1;
    uint8_t *images[2] = {malloc(room), malloc(room)};
    for (size_t i = 0; i < bytes; i++) images[0][i] = (uint8_t)draw();
    memcpy(images[1], images[0], bytes);
    int statuses[2];
    for (int i = 0; i < 2; i++) {
        packio_choose((int)(run + (unsigned)i) & 1);
        statuses[i] = packio_kernels()->operate(i ? kept : exact, images[i], channels, height, width,
                                                operations, count);
    }
    calls += 2;
    if (statuses[0] < 0 || statuses[0] > MEMORY) fail("no such status of operations", run);
    if (statuses[0] != MEMORY && statuses[1] != MEMORY) {
        if (statuses[0] != statuses[1]) fail("another status of operations", run);
        if (!statuses[0] && memcmp(images[0], images[1], bytes)) fail("other pixels of operations", run);
        if (!statuses[0] && count) operated++;
    }
    free(images[0]);
    free(images[1]);
}

/* Rows of a PNG, random or with runs as in masks, some of them with a wrong filter or size. */
static void unfilter_some(unsigned long run) {
    int channels = below(2) ? 1 : 3, height = 1 + below(9), width = 1 + below(below(4) ? 40 : 300);
    int stride = width * channels, size = height * (stride + 1), wrong = !below(20), runs = below(2);
    uint8_t *rows = malloc((size_t)size), *wanted = malloc((size_t)(size - height));
    uint8_t *out = malloc((size_t)(size - height));
    for (int i = 0; i < size; i++) {
        if (!runs || !below(12)) rows[i] = (uint8_t)draw();
        else rows[i] = 0;
    }
    for (int y = 0; y < height; y++) rows[y * (stride + 1)] = (uint8_t)below(5);
    int wrong_row = below(height), no_filter = 5 + below(251);
    if (wrong) rows[wrong_row * (stride + 1)] = (uint8_t)no_filter;
    for (int y = 0; y < height; y++) {
        uint8_t *row = wanted + y * stride, *in = rows + y * (stride + 1);
        for (int x = 0; x < stride; x++) {
            int a = x < channels ? 0 : row[x - channels], b = y ? (row - stride)[x] : 0;
            int c = x < channels || !y ? 0 : (row - stride)[x - channels];
            row[x] = (uint8_t)(in[1 + x] + foretold(in[0], a, b, c));
        }
    }
    int status = packio_unfilter(rows, size, height, stride, channels, out, size - height);
    if (status != (wrong ? DAMAGED : MADE)) fail("another status of rows of a PNG", run);
    if (!wrong && memcmp(out, wanted, (size_t)(size - height))) fail("other pixels of a PNG", run);
    if (!wrong) note(out, (size_t)(size - height));
    unfiltered += !wrong;

    int64_t numbers[5] = {size, height, stride, channels, size - height};
    int which = below(5);
    int64_t was = numbers[which];
    numbers[which] = below(3) ? hostile_number() : (int64_t)draw();
    if (which == 3) numbers[which] = (int32_t)numbers[which];
    int is_other = numbers[which] != was && !(which == 3 && stride % 3 == 0 && numbers[3] == 4 - was);
    status = packio_unfilter(rows, numbers[0], numbers[1], numbers[2], (int32_t)numbers[3], out,
                             numbers[4]);
    calls += 2;
    if (is_other && status != REQUEST) fail("rows of a PNG of another size", run);
    free(rows);
    free(wanted);
    free(out);
}

static void one_run(unsigned long run) {
    uint64_t begun = state;
    const Seed *seed = seeds + below(seed_count);
    Bytes b = {NULL, seed->size, 2 * seed->size + 70000};
    b.data = malloc(b.room);
    memcpy(b.data, seed->data, seed->size);
    int is_mutant = below(20) > 0;
    if (is_mutant) mutate(&b);
    uint8_t *data = copy_of(b.data, b.size), *points = NULL;
    size_t size = b.size, points_size = 0;
    free(b.data);
    uint64_t then = state;
    state = begun + (3 << 18);
    open_mutant(data, size, !is_mutant, run);
    state = then;

    int which = below(8);
    if (which < 3) points_of_mutant(data, size, &points, &points_size, run);
    if (which >= 2 && which < 5 && seed->points_size && !points) {
        points_size = seed->points_size;
        points = copy_of(seed->points, points_size);
    }
    if (points && below(2)) change_points(points, points_size);
    if (points && !below(20)) points_size = (size_t)below((int)points_size);

    Jpeg jpeg;
    Request r;
    int layout = 0, raw_height = 1 + below(60), raw_width = 1 + below(90);
    if (!below(6)) {
        free(data);
        layout = 1 + below(8);
        size = (size_t)(raw_height * raw_width) * (below(2) ? 3 : 1);
        if (!below(20)) size = (size_t)below(20000);
        data = malloc(size ? size : 1);
        for (size_t i = 0; i < size; i++) data[i] = (uint8_t)draw();
    }
    int is_good = !packio_header(data, size, &jpeg);
    if (is_good && !jpeg.is_progressive && !below(3)) recut_mutant(&jpeg, data, size, run);
    int level = below(4) ? 1 : 1 << below(7); /* of which image the JPEG is a level */
    int height = is_good ? jpeg.height : seed->height, width = is_good ? jpeg.width : seed->width;
    if (layout) height = raw_height, width = raw_width, level = below(10) ? 1 : level;
    height = height * level - below(level);
    width = width * level - below(level);
    ask(&r, height, width);
    if (r.level == 1) r.level = level;
    uint8_t *out = NULL;
    size_t bytes;
    int status = make_by_both(&r, data, size, points, points_size, layout, &out, &bytes, run);
    if (status) declined[status]++;
    else made++;
    free(out);
    free(points);
    free(data);
    state = begun + (1 << 19); /* whatever was drawn for memory, which depends on the processor */
    unfilter_some(run);
    state = begun + (1 << 20);
    operate_some(run);
}

static int whole(Scratch *scratch, const Seed *seed, uint8_t *out, int with_points) {
    Request r = {.out = out, .height = seed->height, .width = seed->width,
                 .box_height = seed->height, .box_width = seed->width, .orientation = 1,
                 .to_height = seed->height, .to_width = seed->width, .out_height = seed->height,
                 .out_width = seed->width, .channels = seed->channels, .method = UNRESIZED, .scale = 1,
                 .level = 1};
    return packio_make(scratch, &r, 1, seed->data, (int64_t)seed->size, seed->points,
                       with_points ? (int64_t)seed->points_size : 0, 0);
}

/* A good image is made as it was at first. */
static void check_good(Scratch *scratch, const Seed *seed, unsigned long run) {
    size_t bytes = (size_t)seed->channels * (size_t)seed->height * (size_t)seed->width;
    uint8_t *out = malloc(bytes);
    packio_choose(below(2));
    if (whole(scratch, seed, out, below(2))) fail("a good image is declined", run);
    if (memcmp(out, seed->made, bytes)) fail("a good image is another one", run);
    free(out);
}

/* A thread may make more than 2 ** 32 images. */
static void check_after_many(void) {
    for (int i = 0; i < seed_count; i++) {
        Scratch *scratch = packio_new_scratch();
        scratch->clock = UINT_MAX;
        check_good(scratch, seeds + i, 0);
        packio_free_scratch(scratch);
    }
}

static void read_seeds(const char *folder) {
    DIR *opened = opendir(folder);
    for (struct dirent *entry; opened && (entry = readdir(opened)) && seed_count < SEEDS;) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *file = strstr(entry->d_name, ".jpg") ? fopen(path, "rb") : NULL;
        if (!file) continue;
        Seed *seed = seeds + seed_count;
        uint8_t held[1 << 16];
        seed->size = fread(held, 1, sizeof held, file);
        fclose(file);
        seed->data = copy_of(held, seed->size);
        Jpeg jpeg;
        if (packio_header(seed->data, seed->size, &jpeg)) fail(path, 0);
        seed->height = jpeg.height;
        seed->width = jpeg.width;
        seed->channels = jpeg.components;
        packio_choose(0);
        int64_t found = packio_find_points(kept, seed->data, (int64_t)seed->size, held, sizeof held);
        if (found < 0 && !jpeg.is_progressive) fail(path, 0);
        if (found < 0) found = 0;
        seed->points = copy_of(held, (size_t)found);
        seed->points_size = (size_t)found;
        seed->made = malloc((size_t)jpeg.components * (size_t)jpeg.height * (size_t)jpeg.width);
        if (whole(kept, seed, seed->made, 0)) fail(path, 0);
        seed_count++;
    }
    if (opened) closedir(opened);
    if (!seed_count) fail("no JPEGs in the folder", 0);
}

int main(int count, char **arguments) {
    if (count != 4) return fprintf(stderr, "native_fuzz FOLDER RUNS SEED\n"), 2;
    unsigned long runs = strtoul(arguments[2], NULL, 10);
    kept = packio_new_scratch();
    read_seeds(arguments[1]);
    exact = packio_new_scratch();
    check_after_many();
    for (unsigned long run = 0; run < runs; run++) {
        state = strtoull(arguments[3], NULL, 10) + (run << 20);
        one_run(run);
        if (run % BATCH == BATCH - 1) check_good(run / BATCH % 4 ? kept : exact, seeds + below(seed_count), run);
    }
    packio_free_scratch(kept);
    packio_free_scratch(exact);
    fprintf(stderr, "%lu times operated, %lu calls of the core\n", operated, calls); /* depends on the processor, a little */
    printf("%lu runs: %lu made, %lu of other kinds, %lu damaged, %lu of another size, "
           "%lu requests, %lu memory; %lu seek points, %lu scans, %lu PNGs, %lu stored open, "
           "%lu changed and made, %lu changed and written; digest %016llx\n",
           runs, made, declined[1], declined[2], declined[3], declined[4], declined[5], points_found,
           recuts, unfiltered, opened, mutants_made, mutants_written, (unsigned long long)digest);
    return 0;
}
