/* packio's native core: the bytes of a JPEG, or raw pixels, in; the planes of an output out.

   The pixels are those of libjpeg-turbo (its accurate integer DCT, smooth upsampling) and of
   PyTorch's resizing, with antialiasing, to means of areas or to the nearest pixel, bit by bit. The
   core does what photographs are: baseline and progressive JPEGs of 8 bits, gray or YCbCr with
   4:4:4, 4:2:2 or 4:2:0. Whatever is unusual or damaged it declines, and its caller decodes that
   image in another way. If asked, it decodes at 1/2, 1/4 or 1/8 of the size, less exactly.

   progressive.c leads through the scans of a progressive JPEG; kernels/scans.h decodes one.
   open.c stores the coefficients of a JPEG open, and writes the JPEG again; kernels/expand.h decodes
   such an image.

   Seek points and other restart intervals need no coefficients: steps.c and kernels/walk.h find
   where all blocks begin; points.c and recut.c write what is asked for.

   One image goes through these files: header.c reads the JPEG's header and its segments; tables.c
   makes the Huffman tables; kernels/entropy.h decodes coefficients, four segments side by side;
   kernels/idct.h, kernels/scaled.h and kernels/blocks.h make samples of them; kernels/colour.h makes
   rows of pixels; weights.c and kernels/resize.h resize them; kernels/render.h puts them into the
   output. make.c leads an image through all of this; slice.c does so with some samples of a batch,
   which it reads and checks (crc.c, kernels/crc.h); memory.c has a thread's memory. The kernels are
   compiled twice: for any processor, and for x86-64 processors with AVX2.

   unfilter.c is about PNGs, and needs nothing of this: it undoes the filters of their rows. Nor does
   floats.c, which turns bytes into floats. */

#ifndef PACKIO_CORE_H
#define PACKIO_CORE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif
#define INLINE static inline __attribute__((always_inline))
#define COLD static __attribute__((noinline, cold))
/* Before a loop whose turns do not depend on each other, whatever its pointers may say. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Kinds of blocks, by where coefficients are that are not 0. Each has a transform of its own. */
enum Kind {
    FLAT,  /* a DC coefficient alone */
    FEW,   /* in the first four rows and columns */
    HALF,  /* among the first 32, as coded */
    ANY,
    KINDS  /* counted under it: all blocks that are decoded */
};

/* Clocks at the borders of the stages that an image goes through, for benchmarks/stages.py. They are
   compiled with -DSTAGES only, for x86-64 processors and one thread. */
enum Stage { READ, CHECK, PLAN, COPY, ENTROPY, IDCT, COLOUR, ACROSS, DOWN, STAGES_COUNT };
#ifdef STAGES
#include <x86intrin.h>
extern uint64_t packio_ticks[STAGES_COUNT], packio_blocks[KINDS + 1], packio_last;
#define START() (void)(packio_last = __rdtsc())
#define LAP(STAGE)                                       \
    do {                                                 \
        uint64_t now = __rdtsc();                        \
        packio_ticks[STAGE] += now - packio_last;        \
        packio_last = now;                               \
    } while (0)
#define COUNT(KIND) (void)packio_blocks[KIND]++
#else
#define START() (void)0
#define LAP(STAGE) (void)0
#define COUNT(KIND) (void)0
#endif

_Static_assert(sizeof(size_t) >= 8, "sizes of buffers are computed without checks for 32 bits");

/* What became of an image. `packio.images.native` names the statuses. */
enum Status {
    MADE = 0,
    KIND = 1,     /* of JPEG that the core does not do */
    DAMAGED = 2,  /* or doubtful */
    SIZE = 3,     /* not the size that the index says */
    REQUEST = 4,  /* an output that the core does not make */
    MEMORY = 5,   /* none left */
    UNREAD = 7,   /* its bytes could not be read, or are not those that were packed */
};

enum Method { BILINEAR = 0, BICUBIC = 1, UNRESIZED = 2, NEAREST = 3, AREA = 4 };

/* One output to make of an image. `packio.images.native` packs the same fields in the same order. */
typedef struct {
    uint8_t *out;                /* (channels, out_height, out_width); all of it is written */
    double ratio_y, ratio_x;     /* rows, columns of the box that become one; 0: as the sizes say */
    int32_t height, width;       /* of the stored image, pixels */
    int32_t top, left;           /* of the box, in the stored image */
    int32_t box_height, box_width;
    int32_t orientation;         /* 1..8, to turn the box by before it is resized */
    int32_t flips;               /* 1: mirror the output left-right, 2: top-bottom */
    int32_t to_height, to_width; /* of the resized box */
    int32_t out_top, out_left;   /* of the output in the resized box; outside of it is black */
    int32_t out_height, out_width;
    int32_t channels, method;
    int32_t scale;               /* 1; 2, 4 or 8: decode at 1/2, 1/4, 1/8 of the size, less exactly */
    int32_t level;               /* 1: the JPEG is the stored image; a power of 2 up to 64: it is a
                                    level, with sides of 1/level of the image's, rounded up */
} Request;

/* One operation on an image of 8 bits, in planes. `packio.images.native` has the same fields in the
   same order. Each gives the pixels of Pillow; which values it takes stands at its kernel. */
enum Operator {
    NOTHING = 0,
    /* kernels/tones.h */
    BRIGHTNESS = 1, CONTRAST, SATURATION, HUE, GRAYSCALE, INVERT, POSTERIZE, SOLARIZE, SOLARIZE_ADD,
    EQUALIZE, AUTOCONTRAST, SHARPNESS, FLIP_ACROSS, FLIP_DOWN,
    /* kernels/warp.h */
    AFFINE = 32, PERSPECTIVE,
    /* kernels/blur.h */
    GAUSSIAN_BLUR = 49, KERNEL_BLUR,
};
typedef struct {
    int32_t operator;
    int32_t interpolation;       /* of a warp: NEAREST, BILINEAR, BICUBIC */
    double values[12];
} Operation;

enum { IN_MEMORY = -2 };

/* What the bytes of an image are: a JPEG, or raw bytes of RGB or gray, plane by plane or pixel by
   pixel; with BGR the last channel comes first; or a JPEG whose coefficients are open: see open.c. */
enum Layout { JPEG = 0, PLANES = 1, PIXELS = 2, BGR = 4, OPEN = 8 };

/* A sample of a batch: where the bytes of its image are. `packio.images.native` has the same fields in
   the same order. */
typedef struct {
    int64_t offset, length;      /* in the file, bytes; of bytes in memory, their address */
    int64_t points;              /* where its seek points begin, in those of the batch, bytes */
    int32_t points_size;
    int32_t file;                /* descriptor; -1: `path` names a file that is all of the image;
                                    IN_MEMORY: none is read */
    uint32_t crc32c;
    int32_t path;                /* where its path begins, in those of the batch, bytes */
    int32_t layout;
    int16_t is_checked;          /* whether the CRC32C must be that of the bytes */
    int16_t is_once;             /* whether all its outputs are made of one decode */
} Sample;

/* What a lookup of the next bits gives: up to four coefficients of 8 bits.
   meta: bits used | positions passed << 8 | zeros before the first coefficient << 16
         | 127 << 24 if the block ends */
typedef struct {
    uint32_t meta;
    int8_t values[4];
} Entry;

/* The codes of a Huffman table, DC or AC. */
typedef struct {
    int32_t limit[18];  /* length -> first code, left-justified to 16 bits, that is longer */
    int32_t first[18];  /* length -> what to add to a code for the index of its symbol */
    uint8_t symbols[256];
    int bits, is_dc;
    uint16_t *single;   /* next bits -> symbol << 8 | length; 0: a longer code */
} Codes;

/* A lookup that gives coefficients. `entries` of a DC table go on with AC codes. */
typedef struct {
    Codes codes;
    Entry entries[];
} Table;

typedef struct {
    Table *dc, *ac;
} Pair;

/* What the header of a JPEG says. */
typedef struct {
    const uint8_t *data, *end;
    size_t scan;                 /* where the entropy-coded data begin */
    int height, width, components;
    int across, down;            /* blocks of luma in an MCU */
    int rows, columns;           /* of MCUs */
    int interval;                /* MCUs between restart markers; 0: there are none */
    int is_progressive;          /* it has several scans: see progressive.c; no tables are found */
    uint8_t ids[3];              /* of the components */
    int blocks;                  /* in an MCU */
    uint8_t block_component[6], block_y[6], block_x[6];
    uint16_t quant[3][64] __attribute__((aligned(32)));  /* of each component, row by row */
    const uint8_t *dc[3], *ac[3];  /* of each component: 16 counts of codes, then symbols */
} Jpeg;

/* Some MCUs in a row that can be decoded by themselves. */
typedef struct {
    size_t offset, length;  /* of the bytes */
    int mcu, count;         /* the first MCU; how many to decode */
    int whole;              /* whether all MCUs of the bytes are decoded */
    int bit, end_bit;       /* at which they begin, and end; end_bit 0: padding ends the last byte */
    int16_t dc[3], end_dc[3]; /* DC coefficients before the first MCU, after the last */
    int to_point;           /* whether a seek point follows them, not a marker */
} Task;

/* Points at which decoding may begin, as the index of a pack keeps them: uint16 MCUs from one to
   the next, then for each but the first MCU's: uint32 bits from the beginning of the scan, and three
   int16 DC coefficients before it. Little-endian. */
enum { POINT = 10, POINTS_HEAD = 2 };

/* A lookup that passes codes without their coefficients: see kernels/walk.h. The next bits ->
   what to add to the state, and what to set in it behind the end of a block. */
enum { STEP_BITS = 11, STEP_MOST = 19 };  /* looked at; passed at most, as three follow a refill */
enum { PLACE = 32, AT_DC = 191, TO_AC = 65, TOO_FAR = 64 };  /* of a state: see there */
typedef struct {
    Codes codes;
    uint16_t single[1 << STEP_BITS];
    uint64_t add[1 << STEP_BITS], end[1 << STEP_BITS];
} Steps;

/* What the blocks of an MCU are. */
enum { MOST_COMPONENTS = 4, MOST_BLOCKS = 10 };
typedef struct {
    int blocks;
    uint8_t component[MOST_BLOCKS];
    const Steps *dc[MOST_COMPONENTS], *ac[MOST_COMPONENTS];  /* of each component */
} Pattern;

/* A scan to write with other restart intervals. tests/images/test_recut.py packs the same fields in
   the same order. */
enum { SIZES = 12, ROOM_A_SEGMENT = 48 };  /* of DC differences; bytes that a segment needs more */
typedef struct {
    int32_t scan;                /* the byte at which its data begin */
    int32_t mcus;
    int32_t restarts, interval;  /* MCUs between restart markers, as they are and as they shall be */
    int32_t blocks, components;  /* in an MCU */
    uint8_t component[12];       /* of each block */
    struct {
        int32_t codes[SIZES];    /* for each size of a difference, the code << 5 | its length; 0: none */
        uint8_t dc[16 + 256], ac[16 + 256];
    } tables[MOST_COMPONENTS];   /* of each component */
} Recut;

/* Where blocks begin, in bits of the bytes without stuffing; and their DC coefficients, the first
   ones of all components coded against 0. Behind the last block is where it ends. */
typedef struct {
    uint32_t *places;
    int16_t *dc;
} Walked;

typedef struct {
    void *memory;
    size_t size;
    size_t needed; /* the most of late */
} Buffer;

enum { CACHED = 16, BEYOND = 64 };  /* bytes that kernels may read behind raw pixels */

/* Memory of a thread, which is kept from image to image. */
typedef struct {
    struct {
        uint8_t codes[2][16 + 256];
        Pair small, large;
        Steps *steps[2];  /* of DC, of AC coefficients */
        uint64_t used;  /* when it was used last */
        unsigned times; /* images, up to a few */
    } cached[CACHED];
    uint64_t clock;
    unsigned images;
    Buffer bytes, clean, coefficients, tables, tasks, planes, turned, rows, small, axes, taps, walked, logs;
    Buffer second, work;  /* of operations: a second image, and what a kernel needs beside it */
} Scratch;

/* How an axis of an image is resized. */
typedef struct {
    int count;            /* outputs that are shown */
    int taps;             /* most that an output has */
    int precision;        /* bits behind the point of a weight */
    int begin, end;       /* inputs that are needed */
    int *start, *size;    /* (count) of each output's inputs */
    int16_t *weights;     /* (count, taps), 0 behind an output's size; NULL: an output is its input,
                             or the mean of its inputs */
    int is_mean;
} Axis;

/* A JPEG whose coefficients are stored open: see open.c. */
enum { A_PLACE = 16, MOST_READ = 152 };  /* blocks of a row; bytes that are read of a block */
typedef struct {
    int rows[3], columns[3];     /* of blocks, of each component */
    const uint8_t *places[3];    /* where the values of every sixteenth block of a row begin */
    const uint8_t *blocks[3];    /* what each block is: its DC, and the kinds of its groups */
    const uint8_t *values;
    size_t size;                 /* bytes of values */
    const uint8_t *limit;        /* the last byte at which values of a block may begin */
    const uint8_t *rest;         /* of the JPEG, behind its EOI */
    size_t rest_size;
} Open;

/* Coefficients of all blocks of a JPEG, in code order, component by component. */
typedef struct {
    int16_t *of[3];
    size_t columns[3];  /* blocks of a row */
    uint64_t *masks;    /* of all blocks: which coefficients are not 0, but for the DC; if expanded */
} Coefficients;

/* A scan of a progressive JPEG. */
enum { SCAN_BITS = 10, SCAN_MORE = 512 };  /* of a lookup; bytes behind a segment that may be read */
typedef struct {
    Codes codes;
    uint16_t single[1 << SCAN_BITS];
} ScanCodes;
typedef struct {
    int count, components[3];       /* which components it has */
    int rows, columns;              /* of MCUs; of blocks, if it has one component */
    int first, last, high, low;     /* coefficients; bits that lack before and after it */
    const ScanCodes *dc[3], *ac;
} Scan;

/* What is needed of a JPEG, and where its samples go. */
typedef struct {
    int top, left, bottom, right;              /* pixels that are needed, of the image as decoded */
    int box_top, box_height, box_width;        /* all pixels of the box */
    int across, down;                          /* pixels for one sample of chroma */
    int high[3], broad[3];                     /* samples of a block: 8, or fewer if scaled */
    int y0[3], y1[3], x0[3], x1[3];            /* blocks of each component */
    uint8_t *plane[3];                         /* the first sample of block (y0, x0) */
    size_t stride[3];
    int layout;                                /* of raw pixels: all of them are in `plane` */
    const Coefficients *kept;                  /* where coefficients go; no samples are made then */
} Region;

/* The kernels for a kind of processor. */
typedef struct {
    int (*decode)(Scratch *, const Jpeg *, const Pair *, const Region *, const Task *, int count,
                  int in_turn);
    int (*scan)(const Jpeg *, const Scan *, const Coefficients *, int mcu, int last,
                const uint8_t *clean, const uint8_t *end);
    int (*put_kept)(const Jpeg *, const Region *, const Coefficients *);
    int (*expand)(const Jpeg *, const Region *, const Open *);
    const uint8_t *(*expand_block)(int16_t *to, unsigned kinds, const uint8_t *values, uint64_t *masks);
    unsigned (*compact)(const int16_t *block, uint8_t *at, uint8_t **end);
    int (*walk)(Scratch *, const Pattern *, const uint8_t *clean, size_t begin, size_t end,
                size_t blocks, Walked);
    uint32_t (*crc32c)(const uint8_t *at, size_t length);
    int64_t (*unstuff)(uint8_t *out, const uint8_t *at, size_t length, const uint8_t *limit);
    int (*render)(Scratch *, const Jpeg *, const Region *, const Request *, const Axis *down,
                  const Axis *across);
    int (*operate)(Scratch *, uint8_t *image, int channels, int height, int width,
                   const Operation *operations, int count);
} Kernels;

extern const Kernels packio_portable;
extern const Kernels packio_avx2;
const Kernels *packio_kernels(void);  /* those that are chosen */

/* Memory of a buffer: at least so many bytes, aligned to 64; the first time they are zeros, later
   as they were left, or zeros where the buffer has grown. NULL: none left. */
void *packio_reserve(Buffer *buffer, size_t bytes);

/* Before an image: give back what no image of late has needed, as after a very large one. All
   buffers may go but the file's bytes. */
void packio_trim(Scratch *scratch);

/* CRC32C: see crc.c, and kernels/crc.h. A checksum so far, and more bytes; before the first and
   behind the last, bits are inverted. */
enum { CRC_LANE = 1024 };  /* bytes */
extern uint32_t packio_crc_bytes[8][256], packio_crc_shifts[2][4][256];
uint32_t packio_crc_by_tables(uint32_t crc, const uint8_t *at, size_t length);

/* Make outputs of an image: see make.c. */
EXPORTED int packio_make(Scratch *scratch, const Request *requests, int count, const uint8_t *data,
                         int64_t size, const uint8_t *points, int64_t points_size, int layout);

/* Read a header. A status. */
int packio_header(const uint8_t *data, size_t size, Jpeg *jpeg);

/* Decode all scans of a progressive JPEG. A status; *all is in the thread's memory. */
enum { MOST_KEPT = 1 << 20 };  /* blocks: 45 megapixels at 4:2:0, 128 MB of coefficients */
int packio_scans(Scratch *scratch, Jpeg *jpeg, Coefficients *all);

/* Read what is in front of open coefficients, and the header behind them. A status. */
int packio_open(const uint8_t *data, size_t size, Jpeg *jpeg, Open *open);

/* The end of the segment whose bytes begin at `from`: the place of the next marker; 0: none. */
size_t packio_next_marker(const uint8_t *data, size_t from, size_t size);

/* Memory to walk through segments: `clean` for their bytes, CLEAN_MORE behind each, and room for
   blocks and the ends of segments. A status. */
enum { CLEAN_MORE = 64 };
int packio_room(Scratch *scratch, size_t bytes, size_t blocks, size_t segments, Walked *walked);

/* List what has to be decoded for some MCUs, rows r0..r1, columns c0..c1. A number of tasks, whose
   order is that of the JPEG, or minus a status. *in_turn: each task begins where another ends. */
int packio_tasks(Scratch *scratch, const Jpeg *jpeg, const uint8_t *points, size_t points_size,
                 int r0, int r1, int c0, int c1, int *in_turn);

INLINE uint32_t packio_number(const uint8_t *at) { /* little-endian */
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Where block i of an MCU is. */
INLINE int16_t *packio_block(const Jpeg *jpeg, const Coefficients *all, int row, int column, int i) {
    int c = jpeg->block_component[i];
    size_t y = (size_t)(row * (c ? 1 : jpeg->down) + jpeg->block_y[i]);
    size_t x = (size_t)(column * (c ? 1 : jpeg->across) + jpeg->block_x[i]);
    return all->of[c] + 64 * (y * all->columns[c] + x);
}

/* The Huffman tables of each component. A status. */
int packio_tables(Scratch *scratch, const Jpeg *jpeg, Pair pairs[3]);
void packio_drop_tables(Scratch *scratch);

/* Codes, and the lookup of one symbol of `bits` bits, for which `single` has room. A status. */
int packio_codes(Codes *codes, const uint8_t *counts, int bits, int is_dc);
size_t packio_codes_size(const uint8_t *codes);

/* The tables that pass the codes of the components of a pattern. A status. */
int packio_steps(Scratch *scratch, int components, const uint8_t *const *dc, const uint8_t *const *ac,
                 Pattern *pattern);
int packio_make_steps(const uint8_t *dc, const uint8_t *ac, Steps *steps[2]);

/* A side of the box, upright, and of the output. */
typedef struct {
    int length;                  /* of the box, pixels as decoded */
    double ratio, offset;        /* pixels for one of the resized box, 0: as the sizes say; pixels
                                    before the box begins, below 1 */
    int resizes;
    int to, out_start, out;      /* of the resized box; the output's place in it; the output's */
} Side;

/* How a side is resized to outputs, of which `count` from `first` on are shown. A status. `memory`
   is used up from its beginning. */
int packio_axis(Buffer *memory, size_t *used, const Side *side, int method, int first, int count,
                Axis *axis);

extern const uint8_t packio_zigzag[64];  /* place in a block's code -> place in the block */
extern const Entry packio_stopped[];     /* a table of nothing: a stream that meets it stays */

enum { LARGE_BITS = 13, SMALL_BITS = 10 };
enum { STRIDE = 128 };  /* from a block's coefficients to those of the next */

#endif
