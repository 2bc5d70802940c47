/* Slices of a batch: samples are read from their files, checked and made in one call. */

#include "core.h"

#if !defined(_WIN32)
#include <errno.h>
#include <unistd.h>

EXPORTED void packio_make_slice(Scratch *scratch, Sample *samples, const int32_t *numbers,
                                int count, const uint8_t *points);

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

static int make_one(Scratch *scratch, const Sample *sample, const uint8_t *points) {
    if (sample->length < 0 || sample->offset < 0) return UNREAD;
    START();
    uint8_t *data = packio_reserve(&scratch->bytes, (size_t)sample->length + 1);
    if (!data) return MEMORY;
    int status = read_whole(sample->file, data, sample->length, sample->offset);
    LAP(READ);
    if (status) return status;
    if (sample->is_checked && packio_kernels()->crc32c(data, (size_t)sample->length) != sample->crc32c)
        return UNREAD;
    LAP(CHECK);
    return packio_make(scratch, &sample->request, 1, data, sample->length, points + sample->points,
                       sample->points_size);
}

/* Make the samples of some numbers, and set their statuses. */
void packio_make_slice(Scratch *scratch, Sample *samples, const int32_t *numbers, int count,
                       const uint8_t *points) {
    for (int i = 0; i < count; i++) {
        Sample *sample = samples + numbers[i];
        sample->status = make_one(scratch, sample, points);
    }
}
#endif
