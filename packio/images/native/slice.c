/* Slices of a batch: samples are read from their files, checked and made, some in each call. The
   threads of a batch share its samples out here: one that comes back to Python for each of them
   waits there for the others. */

#include "core.h"

#if !defined(_WIN32)
#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

/* What is made, and of which bytes. */
typedef struct {
    const Sample *samples;
    const Request *requests; /* the outputs of each sample, one after the other */
    const uint8_t *points;
    const char *paths;
    const int32_t *numbers; /* of the samples to make, in this order */
    int outputs;            /* of each sample */
    int count, taken;       /* of numbers; `taken` is shared by all threads */
} Batch;

EXPORTED int packio_make_slice(Scratch *scratch, Batch *batch, int most, int32_t *declined);

EXPORTED uint32_t packio_crc32c(const uint8_t *data, int64_t size);

uint32_t packio_crc32c(const uint8_t *data, int64_t size) {
    return packio_kernels()->crc32c(data, (size_t)size);
}

static int read_whole(int file, uint8_t *to, int64_t length, int64_t offset) {
    while (length > 0) {
        ssize_t got = pread(file, to, (size_t)length, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return UNREAD;
        to += got, offset += got, length -= got;
    }
    return MADE;
}

/* Read a file that has so many bytes, and no more. */
static int read_file(const char *path, uint8_t *to, int64_t length) {
    int file; /* without O_NONBLOCK, opening a FIFO would wait for its writer */
    do file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    while (file < 0 && errno == EINTR);
    if (file < 0) return UNREAD;
    int status = read_whole(file, to, length, 0);
    uint8_t more;
    if (!status && pread(file, &more, 1, (off_t)length) != 0) status = UNREAD;
    close(file);
    return status;
}

static int make_one(Scratch *scratch, const Batch *batch, int number) {
    const Sample *sample = batch->samples + number;
    if (sample->length < 0 || sample->offset < 0) return UNREAD;
    START();
    const uint8_t *data = (const uint8_t *)(intptr_t)sample->offset;
    if (sample->file != IN_MEMORY) {
        uint8_t *to = packio_reserve(&scratch->bytes, (size_t)sample->length + BEYOND);
        if (!to) return MEMORY;
        int status = sample->file < 0
                         ? read_file(batch->paths + sample->path, to, sample->length)
                         : read_whole(sample->file, to, sample->length, sample->offset);
        if (status) return status;
        data = to;
    }
    LAP(READ);
    if (sample->is_checked && packio_kernels()->crc32c(data, (size_t)sample->length) != sample->crc32c)
        return UNREAD;
    LAP(CHECK);
    const Request *requests = batch->requests + (int64_t)number * batch->outputs;
    int at_once = sample->is_once ? batch->outputs : 1, status = MADE;
    for (int i = 0; i < batch->outputs && !status; i += at_once)
        status = packio_make(scratch, requests + i, at_once, data, sample->length,
                             batch->points + sample->points, sample->points_size, sample->layout);
    return status;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Make samples that no thread has taken, for a while. Returns how many were not made, and gives
   their numbers. */
int packio_make_slice(Scratch *scratch, Batch *batch, int most, int32_t *declined) {
    int lost = 0;
    int64_t end = now() + 20 * INT64_C(1000000);
    while (most-- > 0 && now() < end) {
        int next = __atomic_fetch_add(&batch->taken, 1, __ATOMIC_RELAXED);
        if (next >= batch->count) break;
        int number = batch->numbers[next];
        if (make_one(scratch, batch, number)) declined[lost++] = number;
    }
    return lost;
}
#endif
