/* Affine and perspective transformations, with the pixels of Pillow.

   A pixel of the result lies at a place of the image, which coefficients give: NEAREST takes the
   pixel there; BILINEAR and BICUBIC mix 2 x 2 or 4 x 4 pixels around it. What lies outside of the
   image gets the fill colour, and pixels next to the border see it repeated.

   AFFINE: six coefficients, then the fill of three channels; PERSPECTIVE: eight, then the fill. All
   are finite, and the fill is 0..255.

   Source: Pillow 13.0.0, src/libImaging/Geometry.c: which arithmetic each case has, and in which
   order, as the last bits of a double decide where a pixel goes and what it is rounded to. Affine
   and nearest is one of three: sums of doubles without shear, 16.16 fixed point, or sums of doubles
   again where that overflows. All others compute the place of each pixel for itself. Mixing is done
   in doubles, and cuts off the fraction. */

/* Whether every place is the middle of a pixel, exactly, as where an image is moved by whole pixels
   or turned by a right angle: then there is nothing to mix. */
static int moves_whole(const double *a) {
    for (int i = 0; i < 6; i++)
        if (!(a[i] >= -65536.0 && a[i] <= 65536.0)) return 0;
    for (int i = 0; i < 6; i += 3) {
        const double halves = a[i + 2] * 2.0;
        const int x = (int)a[i], y = (int)a[i + 1], shift = (int)halves;
        if (a[i] != x || a[i + 1] != y || halves != shift || !((x + y + shift) & 1)) return 0;
    }
    return 1;
}

/* A status. */
static int warp(Canvas *canvas, const Operation *operation) {
    const int is_perspective = operation->operator == PERSPECTIVE;
    const double *fill = operation->values + (is_perspective ? 8 : 6);
    Warp plan = {.values = operation->values, .channels = canvas->channels,
                 .height = canvas->height, .width = canvas->width, .is_perspective = is_perspective,
                 .is_bicubic = operation->interpolation == BICUBIC, .plane = canvas->plane,
                 .image = canvas->image};
    if (operation->operator != AFFINE && !is_perspective) return REQUEST;
    for (int i = 0; i < (is_perspective ? 8 : 6); i++)
        if (!(operation->values[i] >= -1e300 && operation->values[i] <= 1e300)) return REQUEST;
    for (int c = 0; c < canvas->channels; c++) {
        if (!(fill[c] >= 0.0 && fill[c] <= 255.0)) return REQUEST;
        plan.fill[c] = (uint8_t)fill[c];
    }
    if (operation->interpolation == NEAREST) return warp_nearest(canvas, &plan);
    if (operation->interpolation != BILINEAR && !plan.is_bicubic) return REQUEST;
    if (!is_perspective && moves_whole(operation->values)) return warp_nearest(canvas, &plan);
    int status = reserve_warp(canvas, &plan, BORDER);
    if (status) return status;
    lay_pixels(canvas, plan.pixels, plan.stride, BORDER);
    mix_rows(&plan);
    return MADE;
}
