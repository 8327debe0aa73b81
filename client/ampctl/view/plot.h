/*
 * A small picture of the loss scale over the steps, for a terminal: log2 upwards, steps to the right, skipped steps as
 * x. Any number of steps in bounded memory: neighbouring steps share a column.
 */
#ifndef AMPCTL_PLOT_H
#define AMPCTL_PLOT_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

#define AMPCTL_PLOT_COLUMNS 60
#define AMPCTL_PLOT_ROWS    10
/*
 * Most cells, each of which gathers 2^k steps: many more than columns, so that the widths of columns hardly differ.
 */
#define AMPCTL_PLOT_CELLS 4096

/* The scales of a few neighbouring steps, as log2. */
struct ampctl_plot_cell {
    float low, high; /* low > high: no step */
    float skipped;   /* of the skipped step with the highest scale; negative infinity: none was skipped */
};

struct ampctl_plot {
    uint64_t steps; /* number of steps added */
    uint64_t skipped;
    uint64_t first_step, last_step;
    uint64_t width; /* steps per cell */
    size_t cells_count;
    struct ampctl_plot_cell cells[AMPCTL_PLOT_CELLS];
};

struct ampctl_plot_style {
    bool blocks; /* the terminal shows UTF-8 */
    bool colour;
    int columns; /* of the terminal: no line is longer if there are 25 or more; 0: no terminal */
};

void ampctl_plot_init(struct ampctl_plot *plot);

/*
 * Adds a step with the scale that its gradients carried. Leaves out a step that is not above the one before, and a
 * scale that is not a positive number.
 */
void ampctl_plot_add(struct ampctl_plot *plot, uint64_t step, double scale, bool skipped);

/* Appends the picture as lines of text. Without any step: one line that says so. 0 or an error of amp_buf_append. */
int ampctl_plot_render(const struct ampctl_plot *plot, const struct ampctl_plot_style *style, struct amp_buf *out);

/* Appends the picture as an SVG document in UTF-8, as far as the model's name is. 0 or an error of amp_buf_append. */
int ampctl_plot_svg(const struct ampctl_plot *plot, const char *model, struct amp_buf *out);

/* Appends a formatted piece of a picture, cut at 511 bytes; of both forms. 0 or an error of amp_buf_append. */
int ampctl_plot_put(struct amp_buf *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
