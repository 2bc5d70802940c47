/* Operations on an image, one after the other, while it is in the cache. */

/* Mirror the image: left-right, or top-bottom. */
static void flip(Canvas *canvas, int down) {
    const size_t width = (size_t)canvas->width, rows = (size_t)(canvas->height * canvas->channels);
    const size_t height = (size_t)canvas->height;
    for (size_t y = 0; y < rows; y++) {
        const uint8_t *in = canvas->image + y * width;
        uint8_t *out = canvas->other + y * width;
        if (down) memcpy(canvas->other + (y / height * height + height - 1 - y % height) * width, in, width);
        else
            for (size_t x = 0; x < width; x++) out[x] = in[width - 1 - x];
    }
    swap(canvas);
}

static int operate(Scratch *scratch, uint8_t *image, int channels, int height, int width,
                   const Operation *operations, int count) {
    Canvas canvas = {.scratch = scratch, .image = image, .given = image, .channels = channels,
                     .height = height, .width = width, .plane = (size_t)height * (size_t)width};
    size_t bytes = canvas.plane * (size_t)channels, room = bytes + BEYOND;
    int status = MADE;
    if (channels != 1 && channels != 3) return REQUEST;
    if (height < 1 || width < 1 || height > 1 << 15 || width > 1 << 15) return REQUEST;
    for (int i = 0; i < count && !status; i++) {
        const Operation *operation = operations + i;
        if (operation->operator == NOTHING) continue;
        if (!canvas.other) canvas.other = packio_reserve(&scratch->second, 2 * room);
        if (!canvas.other) return MEMORY;
        canvas.third = (uint8_t *)scratch->second.memory + room;
        if (operation->operator == FLIP_ACROSS || operation->operator == FLIP_DOWN)
            flip(&canvas, operation->operator == FLIP_DOWN);
        else if (operation->operator < AFFINE) status = change_tones(&canvas, operation);
        else if (operation->operator < GAUSSIAN_BLUR) status = warp(&canvas, operation);
        else status = blur(&canvas, operation);
    }
    if (canvas.image != image) memcpy(image, canvas.image, bytes);
    return status;
}
