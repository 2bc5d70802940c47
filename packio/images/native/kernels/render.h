/* The output of an image: rows of its pixels, turned, resized, mirrored, put into planes. */

/* Where rows of pixels come from: the samples of an upright image, or pixels that were turned. */
typedef struct {
    const Jpeg *jpeg;
    const Region *region;
    Rows rows;
    uint8_t *turned[3];  /* NULL: upright */
    size_t stride;
} Source;

/* Pointers to the first needed pixel of row y of the box, in each plane. */
static void source_row(Source *source, int y, int left, const uint8_t **out) {
    if (source->turned[0]) {
        for (int p = 0; p < 3; p++) out[p] = source->turned[p] + (size_t)y * source->stride + left;
        return;
    }
    row_of(source->jpeg, source->region, &source->rows, y + source->region->box_top, out);
}

/* Turn the box upright into planes of its own. Source: Exif 2.32, tag 0112. */
static int turn(Scratch *scratch, Source *source, const Request *request, int planes) {
    int high = source->region->box_height, broad = source->region->box_width;
    int orientation = request->orientation, swapped = orientation >= 5;
    int width = swapped ? high : broad, height = swapped ? broad : high;
    int across = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    int upside_down = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    source->stride = (size_t)width + SPARE;
    size_t plane = source->stride * (size_t)height + SPARE;
    uint8_t *memory = packio_reserve(&scratch->turned, plane * (size_t)planes);
    if (!memory) return MEMORY;
    uint8_t *turned[3];
    for (int p = 0; p < 3; p++) turned[p] = memory + (p < planes ? (size_t)p * plane : 0);
    for (int y = 0; y < high; y++) {
        const uint8_t *row[3];
        source_row(source, y, 0, row);
        for (int p = 0; p < planes; p++)
            for (int x = 0; x < broad; x++) {
                int to_y = swapped ? x : y, to_x = swapped ? y : x;
                if (across) to_x = width - 1 - to_x;
                if (upside_down) to_y = height - 1 - to_y;
                turned[p][(size_t)to_y * source->stride + (size_t)to_x] = row[p][x];
            }
    }
    memcpy(source->turned, turned, sizeof turned);
    return MADE;
}

static int render(Scratch *scratch, const Jpeg *jpeg, const Region *region, const Request *request,
                  const Axis *down, const Axis *across) {
    const int out_height = request->out_height, out_width = request->out_width;
    Source source = {.jpeg = jpeg, .region = region, .turned = {NULL, NULL, NULL}};
    int planes = jpeg->components, h_mirrored = request->flips & 1, v_mirrored = request->flips & 2;
    if (planes == 3) extend(jpeg, region);

    size_t wide = (size_t)(region->right - region->left) + 4 * SPARE;
    wide += (size_t)across->count; /* the buffer has resized rows' room, too */
    uint8_t *memory = packio_reserve(&scratch->rows, 8 * wide);
    if (!memory) return MEMORY;
    source.rows.mixed = (int16_t *)(void *)memory + SPARE;
    for (int c = 0; c < 2; c++) source.rows.chroma[c] = memory + (size_t)(3 + c) * wide;
    for (int p = 0; p < 3; p++) source.rows.rgb[p] = memory + (size_t)(5 + p) * wide;
    if (request->orientation != 1) {
        int status = turn(scratch, &source, request, planes);
        if (status) return status;
    }

    Across plan = {0};
    int shown = across->count, resizes_across = across->taps > 0, resizes_down = down->taps > 0;
    int is_mean = across->is_mean;
    uint32_t *sums = NULL;
    if (is_mean) {
        sums = packio_reserve(&scratch->taps, (size_t)(across->end - across->begin) * sizeof *sums);
        if (!sums) return MEMORY;
    } else if (resizes_across) {
        int status = plan_across(&scratch->taps, across, h_mirrored, &plan);
        if (status) return status;
    }
    int kept_columns = is_mean ? across->end - across->begin : shown;
    size_t stride = ((size_t)kept_columns + SPARE) & ~(size_t)31, plane = 0;
    size_t kept = resizes_down ? (size_t)(down->end - down->begin) : 1;
    plane = stride * kept + SPARE;
    uint8_t *small = packio_reserve(&scratch->small, plane * (size_t)planes);
    if (!small) return MEMORY;

    size_t out_plane = (size_t)out_height * (size_t)out_width;
    int first_row = request->out_top < 0 ? -request->out_top : 0;
    int first_column = request->out_left < 0 ? -request->out_left : 0;
    if (h_mirrored) first_column = out_width - first_column - shown;
    if (shown < out_width || down->count < out_height)
        memset(request->out, 0, out_plane * (size_t)request->channels);
    for (int y = down->begin, made = 0; y < down->end; y++) {
        const uint8_t *row[3];
        uint8_t *to[3];
        if (resizes_down && y < down->start[made]) continue; /* a row of no output */
        source_row(&source, y, across->begin, row);
        LAP(COLOUR);
        for (int p = 0; p < planes; p++) {
            to[p] = small + (size_t)p * plane;
            if (resizes_down) to[p] += (size_t)(y - down->begin) * stride;
            if (is_mean)
                memcpy(to[p], row[p], (size_t)kept_columns);
            else if (!resizes_across)
                copy_row(row[p], to[p], shown, h_mirrored);
        }
        if (!is_mean && resizes_across) resize_rows(&plan, row, to, planes);
        LAP(ACROSS);
        /* make the outputs whose last row this was, while the rows are near */
        while (made < down->count &&
               (resizes_down ? down->start[made] + down->size[made] - 1 : down->begin + made) <= y) {
            int out_y = first_row + made;
            if (v_mirrored) out_y = out_height - 1 - out_y;
            for (int p = 0; p < planes; p++) {
                uint8_t *out = request->out + (size_t)p * out_plane +
                               (size_t)out_y * (size_t)out_width + first_column;
                if (is_mean)
                    average(down, across, made, h_mirrored, small + (size_t)p * plane, stride, sums, out);
                else if (resizes_down)
                    resize_down(down, made, small + (size_t)p * plane, stride, out, shown);
                else
                    memcpy(out, to[p], (size_t)shown);
            }
            made++;
        }
        LAP(DOWN);
    }
    for (int p = planes; p < request->channels; p++) /* gray as RGB */
        memcpy(request->out + (size_t)p * out_plane, request->out, out_plane);
    return MADE;
}
