/* An image in planes, and room for another one of its size; a kernel that cannot work in place writes
   there, and swaps both. Nothing behind the image may be read or written, as it may be the one that
   was given, which is one of a batch; behind the other one there are BEYOND bytes. */
typedef struct {
    Scratch *scratch;
    uint8_t *image, *other, *third, *given;
    int channels, height, width;  /* 1 or 3 channels: gray, or RGB */
    size_t plane;                 /* pixels of a plane */
} Canvas;

/* The other image becomes the image; the one that was given never becomes the other. */
INLINE void swap(Canvas *canvas) {
    uint8_t *image = canvas->image;
    canvas->image = canvas->other;
    canvas->other = image == canvas->given ? canvas->third : image;
}
