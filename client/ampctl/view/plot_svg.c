/* The same picture as an SVG file (SVG 1.1): one path of the scale, one of the skipped steps. */
#include "client/ampctl/view/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* In pixels of the picture. */
#define WIDTH     800.0
#define HEIGHT    320.0
#define LEFT      56.0
#define RIGHT     16.0
#define TOP       40.0
#define BOTTOM    40.0
#define MARK_SIZE 3.0

/* Lines across the picture, one for a power of two: more cannot be read. */
#define LINES_MAX 12

#define AXIS_STYLE "stroke=\"#ccc\" stroke-width=\"1\""

struct frame {
    double low, high; /* of the picture, as log2 of the scale */
    double per_cell;
};

static struct frame frame_of(const struct ampctl_plot *plot)
{
    struct frame frame = {.low = INFINITY, .high = -INFINITY};
    for (size_t i = 0; i < plot->cells_count; i++) {
        frame.low = fmin(frame.low, (double)plot->cells[i].low);
        frame.high = fmax(frame.high, (double)plot->cells[i].high);
    }
    frame.low = floor(frame.low) - 0.5; /* so that no line lies on the edge */
    frame.high = ceil(frame.high) + 0.5;
    frame.per_cell = (WIDTH - LEFT - RIGHT) / (double)plot->cells_count;
    return frame;
}

static double x_of(const struct frame *frame, double cell)
{
    return LEFT + cell * frame->per_cell;
}

static double y_of(const struct frame *frame, double height)
{
    return HEIGHT - BOTTOM - (height - frame->low) / (frame->high - frame->low) * (HEIGHT - TOP - BOTTOM);
}

/* What XML has a meaning for, and what it has no place for (XML 1.0 section 2.2): names are anybody's. */
static int put_text(struct amp_buf *out, const char *text)
{
    int rc = 0;
    for (; *text != 0 && rc == 0; text++) {
        if (*text == '<' || *text == '&')
            rc = ampctl_plot_put(out, "&#%d;", *text);
        else
            rc = amp_buf_append(out, (unsigned char)*text < ' ' ? "?" : text, 1);
    }
    return rc;
}

static int draw_lines(const struct frame *frame, struct amp_buf *out)
{
    int first = (int)ceil(frame->low), last = (int)floor(frame->high), rc = 0;
    int by = (last - first) / LINES_MAX + 1;
    for (int power = first; rc == 0 && power <= last; power += by) {
        double y = y_of(frame, power);
        rc = ampctl_plot_put(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" " AXIS_STYLE "/>\n", LEFT, y,
                             WIDTH - RIGHT, y);
        if (rc == 0)
            rc = ampctl_plot_put(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">2^%d</text>\n", LEFT - 6, y + 4,
                                 power);
    }
    return rc;
}

/* Stairs: each cell from its lowest to its highest scale, then as wide as it is. */
static int draw_scale(const struct ampctl_plot *plot, const struct frame *frame, struct amp_buf *out)
{
    int rc = ampctl_plot_put(out, "<path class=\"scale\" fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"1.5\" d=\"");
    char go = 'M';
    for (size_t i = 0; rc == 0 && i < plot->cells_count; i++) {
        const struct ampctl_plot_cell *cell = &plot->cells[i];
        if (cell->low > cell->high)
            continue;
        rc = ampctl_plot_put(out, "%c%.2f %.2fV%.2fH%.2f", go, x_of(frame, (double)i), y_of(frame, (double)cell->low),
                             y_of(frame, (double)cell->high), x_of(frame, (double)i + 1));
        go = 'L';
    }
    return rc == 0 ? ampctl_plot_put(out, "\"/>\n") : rc;
}

static int draw_skipped(const struct ampctl_plot *plot, const struct frame *frame, struct amp_buf *out)
{
    int rc = ampctl_plot_put(out, "<path class=\"skipped\" fill=\"none\" stroke=\"#d62728\" stroke-width=\"1.5\" d=\"");
    for (size_t i = 0; rc == 0 && i < plot->cells_count; i++) {
        double skipped = (double)plot->cells[i].skipped;
        if (isfinite(skipped))
            rc = ampctl_plot_put(out, "M%.2f %.2fl%.0f %.0fm0 -%.0fl-%.0f %.0f",
                                 x_of(frame, (double)i + 0.5) - MARK_SIZE, y_of(frame, skipped) - MARK_SIZE,
                                 2 * MARK_SIZE, 2 * MARK_SIZE, 2 * MARK_SIZE, 2 * MARK_SIZE, 2 * MARK_SIZE);
    }
    return rc == 0 ? ampctl_plot_put(out, "\"/>\n") : rc;
}

int ampctl_plot_svg(const struct ampctl_plot *plot, const char *model, struct amp_buf *out)
{
    int rc = ampctl_plot_put(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%.0f\" "
        "y=\"22\" font-size=\"14\">",
        WIDTH, HEIGHT, LEFT);
    if (rc == 0)
        rc = put_text(out, model);
    if (rc == 0)
        rc = ampctl_plot_put(out, ": loss scale over %" PRIu64 " step%s, %" PRIu64 " skipped</text>\n", plot->steps,
                             plot->steps == 1 ? "" : "s", plot->skipped);
    if (rc == 0 && plot->steps > 0) {
        struct frame frame = frame_of(plot);
        rc = draw_lines(&frame, out);
        if (rc == 0)
            rc = draw_scale(plot, &frame, out);
        if (rc == 0)
            rc = draw_skipped(plot, &frame, out);
        if (rc == 0)
            rc = ampctl_plot_put(out,
                                 "<text x=\"%.0f\" y=\"%.0f\">%" PRIu64 "</text>\n<text x=\"%.0f\" y=\"%.0f\" "
                                 "text-anchor=\"end\">step %" PRIu64 "</text>\n",
                                 LEFT, HEIGHT - 14, plot->first_step, WIDTH - RIGHT, HEIGHT - 14, plot->last_step);
    }
    return rc == 0 ? ampctl_plot_put(out, "</svg>\n") : rc;
}
