/* The function that Python calls to change the images of a batch. */

#include "core.h"

/* Images that threads share out, and what is done to each: `each` operations, NOTHING included. */
typedef struct {
    uint8_t *images;      /* (count, channels, height, width), contiguous */
    const Operation *operations; /* (count, each) */
    int channels, height, width;
    int each, count, taken; /* `taken` is shared by all threads */
} Images;

EXPORTED int packio_operate(Scratch *scratch, Images *images, int most);

/* Change images that no thread has taken, `most` at most. A status: of the first that was not made. */
int packio_operate(Scratch *scratch, Images *images, int most) {
    packio_trim(scratch);
    size_t bytes = (size_t)images->channels * (size_t)images->height * (size_t)images->width;
    while (most-- > 0) {
        int next = __atomic_fetch_add(&images->taken, 1, __ATOMIC_RELAXED);
        if (next >= images->count) break;
        int status = packio_kernels()->operate(
            scratch, images->images + (size_t)next * bytes, images->channels, images->height,
            images->width, images->operations + (size_t)next * (size_t)images->each, images->each);
        if (status) return status;
    }
    return MADE;
}
