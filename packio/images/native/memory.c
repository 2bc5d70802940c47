/* The memory of a thread. */

#include "core.h"

EXPORTED Scratch *packio_new_scratch(void);
EXPORTED void packio_free_scratch(Scratch *scratch);

enum { MOST_MEMORY = 1 << 30 };

enum { LATELY = 64, SMALL = 1 << 20 }; /* images; bytes that are kept in any case */

void *packio_reserve(Buffer *buffer, size_t bytes) {
    if (buffer->needed < bytes) buffer->needed = bytes;
    if (buffer->size < bytes) {
        size_t size = (bytes + bytes / 4 + 4095) & ~(size_t)4095;
        free(buffer->memory);
        buffer->memory = bytes > MOST_MEMORY ? NULL : aligned_alloc(64, size);
        buffer->size = buffer->memory ? size : 0;
        if (buffer->memory) memset(buffer->memory, 0, size);
    }
    return buffer->memory;
}

void packio_trim(Scratch *s) {
    if (++s->images % LATELY) return;
    Buffer *buffers[] = {&s->clean, &s->coefficients, &s->tables, &s->tasks, &s->planes, &s->turned,
                         &s->rows, &s->small, &s->axes, &s->taps, &s->walked, &s->logs,
                         &s->second, &s->work};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        Buffer *buffer = buffers[i];
        if (buffer->size > SMALL && buffer->needed < buffer->size / 4) {
            free(buffer->memory);
            *buffer = (Buffer){0};
        }
        buffer->needed = 0;
    }
}

int packio_room(Scratch *scratch, size_t bytes, size_t blocks, size_t segments, Walked *walked) {
    size_t places = blocks + segments;
    if ((bytes + CLEAN_MORE * (segments + 1)) >> 29) return KIND; /* more bits than 32 bits count */
    walked->places = packio_reserve(&scratch->walked, places * (sizeof(uint32_t) + sizeof(int16_t)));
    if (!walked->places || !packio_reserve(&scratch->clean, bytes + CLEAN_MORE * (segments + 1)))
        return MEMORY;
    walked->dc = (int16_t *)(walked->places + places);
    return MADE;
}

Scratch *packio_new_scratch(void) { return calloc(1, sizeof(Scratch)); }

void packio_free_scratch(Scratch *s) {
    if (!s) return;
    Buffer *buffers[] = {&s->bytes, &s->clean, &s->coefficients, &s->tables, &s->tasks, &s->planes,
                         &s->turned, &s->rows, &s->small, &s->axes, &s->taps,
                         &s->walked, &s->logs, &s->second,
                         &s->work};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(buffers[i]->memory);
    packio_drop_tables(s);
    free(s);
}
