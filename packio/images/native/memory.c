/* The memory of a thread. */

#include "core.h"

EXPORTED Scratch *packio_new_scratch(void);
EXPORTED void packio_free_scratch(Scratch *scratch);

enum { MOST_MEMORY = 1 << 30 };

void *packio_reserve(Buffer *buffer, size_t bytes) {
    if (buffer->size < bytes) {
        size_t size = (bytes + bytes / 4 + 4095) & ~(size_t)4095;
        free(buffer->memory);
        buffer->memory = bytes > MOST_MEMORY ? NULL : aligned_alloc(64, size);
        buffer->size = buffer->memory ? size : 0;
        if (buffer->memory) memset(buffer->memory, 0, size);
    }
    return buffer->memory;
}

Scratch *packio_new_scratch(void) { return calloc(1, sizeof(Scratch)); }

void packio_free_scratch(Scratch *s) {
    if (!s) return;
    Buffer *buffers[] = {&s->clean, &s->coefficients, &s->tables, &s->tasks, &s->planes,
                         &s->turned, &s->rows, &s->small, &s->axes, &s->taps};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(buffers[i]->memory);
    packio_drop_tables(s);
    free(s);
}
