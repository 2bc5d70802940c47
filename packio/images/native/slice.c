/* Slices of a batch: samples are read from their files, checked and made, some in each call. The
   threads of a batch share its samples out here: one that comes back to Python for each of them
   waits there for the others. */

#include "core.h"

#if !defined(_WIN32)
#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

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

/* Make some outputs of a sample. Those that become floats are first made in memory of the thread. */
static int make_outputs(Scratch *scratch, const Batch *batch, int number, int first, int count,
                        const uint8_t *data) {
    const Sample *sample = batch->samples + number;
    const Request *asked = batch->requests + (int64_t)number * batch->outputs + first;
    const Finish *finish = batch->finish ? batch->finish + first : NULL;
    const uint8_t *points = batch->points + sample->points;
    if (!finish)
        return packio_make(scratch, asked, count, data, sample->length, points,
                           sample->points_size, sample->layout);
    Request own[MOST_OUTPUTS];
    size_t pixels[MOST_OUTPUTS], bytes = 0;
    if (count > MOST_OUTPUTS) return REQUEST;
    for (int i = 0; i < count; i++) {
        const Request *r = asked + i;
        if (r->out_height < 1 || r->out_width < 1 || r->channels < 1 || r->channels > 3)
            return REQUEST;
        pixels[i] = (size_t)r->out_height * (size_t)r->out_width;
        if (finish[i].size) bytes += pixels[i] * (size_t)r->channels;
    }
    uint8_t *to = packio_reserve(&scratch->outputs, bytes + 1);
    if (!to) return MEMORY;
    for (int i = 0; i < count; i++) {
        own[i] = asked[i];
        if (!finish[i].size) continue;
        own[i].out = to;
        to += pixels[i] * (size_t)own[i].channels;
    }
    int status = packio_make(scratch, own, count, data, sample->length, points,
                             sample->points_size, sample->layout);
    for (int i = 0; i < count && !status; i++) {
        const Finish *f = finish + i;
        const Request *r = own + i;
        if (f->each)
            status = packio_kernels()->operate(scratch, r->out, r->channels, r->out_height, r->out_width,
                                               f->operations + (int64_t)number * f->each, f->each);
        if (f->size && !status)
            status = packio_look_up(r->out, 1, r->channels, (int64_t)pixels[i], f->tables,
                                    f->constants, f->size, 0, asked[i].out);
    }
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
    int at_once = sample->is_once ? batch->outputs : 1, status = MADE;
    for (int i = 0; i < batch->outputs && !status; i += at_once)
        status = make_outputs(scratch, batch, number, i, at_once, data);
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
