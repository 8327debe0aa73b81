#include "client/ampctl/view/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LABEL_WIDTH 7 /* "2^24 |" and a space */
/* Columns of a line beside the picture's own: the label, the frame, and "  step" behind the last step. */
#define FRAME_WIDTH (LABEL_WIDTH + 2 + 6)
#define WIDTH_LEAST 10

static const struct ampctl_plot_cell empty_cell = {.low = INFINITY, .high = -INFINITY, .skipped = -INFINITY};

void ampctl_plot_init(struct ampctl_plot *plot)
{
    plot->steps = 0;
    plot->skipped = 0;
    plot->first_step = 0;
    plot->last_step = 0;
    plot->width = 1;
    plot->cells_count = 0;
}

static void merge(struct ampctl_plot_cell *into, const struct ampctl_plot_cell *from)
{
    into->low = fminf(into->low, from->low);
    into->high = fmaxf(into->high, from->high);
    into->skipped = fmaxf(into->skipped, from->skipped);
}

/* Each cell takes twice the steps. */
static void halve(struct ampctl_plot *plot)
{
    size_t count = 0;
    for (size_t i = 0; i < plot->cells_count; i += 2) {
        struct ampctl_plot_cell cell = plot->cells[i];
        if (i + 1 < plot->cells_count)
            merge(&cell, &plot->cells[i + 1]);
        plot->cells[count++] = cell;
    }
    plot->cells_count = count;
    plot->width *= 2;
}

void ampctl_plot_add(struct ampctl_plot *plot, uint64_t step, double scale, bool skipped)
{
    if (!isfinite(scale) || scale <= 0 || (plot->steps > 0 && step <= plot->last_step))
        return;
    if (plot->steps == 0)
        plot->first_step = step;
    while ((step - plot->first_step) / plot->width >= AMPCTL_PLOT_CELLS)
        halve(plot);
    size_t index = (size_t)((step - plot->first_step) / plot->width);
    while (plot->cells_count <= index)
        plot->cells[plot->cells_count++] = empty_cell;
    float height = (float)log2(scale);
    struct ampctl_plot_cell cell = {.low = height, .high = height, .skipped = skipped ? height : -INFINITY};
    merge(&plot->cells[index], &cell);
    plot->steps++;
    plot->skipped += skipped;
    plot->last_step = step;
}

/* ---- drawing ---- */

/* The picture without its frame. Row 0 is the lowest. */
struct canvas {
    struct ampctl_plot_cell columns[AMPCTL_PLOT_COLUMNS];
    size_t width;
    int rows;
    float low, high; /* of the rows' heights */
};

static void fill_canvas(const struct ampctl_plot *plot, int columns, struct canvas *canvas)
{
    size_t most = AMPCTL_PLOT_COLUMNS;
    if (columns > 0 && columns < AMPCTL_PLOT_COLUMNS + FRAME_WIDTH)
        most = columns > WIDTH_LEAST + FRAME_WIDTH ? (size_t)(columns - FRAME_WIDTH) : WIDTH_LEAST;
    canvas->width = plot->cells_count < most ? plot->cells_count : most;
    canvas->low = INFINITY;
    canvas->high = -INFINITY;
    for (size_t c = 0; c < canvas->width; c++) {
        struct ampctl_plot_cell column = empty_cell;
        for (size_t i = c * plot->cells_count / canvas->width; i < (c + 1) * plot->cells_count / canvas->width; i++)
            merge(&column, &plot->cells[i]);
        canvas->columns[c] = column;
        canvas->low = fminf(canvas->low, column.low);
        canvas->high = fmaxf(canvas->high, column.high);
    }
    canvas->low = floorf(canvas->low);
    canvas->high = ceilf(canvas->high);
    float span = canvas->high - canvas->low;
    canvas->rows = span < AMPCTL_PLOT_ROWS - 1 ? (int)span + 1 : AMPCTL_PLOT_ROWS;
}

static int row_of(const struct canvas *canvas, float height)
{
    if (canvas->rows == 1)
        return 0;
    return (int)lroundf((height - canvas->low) / (canvas->high - canvas->low) * (float)(canvas->rows - 1));
}

static float height_of(const struct canvas *canvas, int row)
{
    if (canvas->rows == 1)
        return canvas->low;
    return canvas->low + (float)row * (canvas->high - canvas->low) / (float)(canvas->rows - 1);
}

int ampctl_plot_put(struct amp_buf *out, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return amp_buf_append(out, text, size < (int)sizeof text ? (size_t)size : sizeof text - 1);
}

static const char *mark_of(const struct canvas *canvas, size_t column, int row, const struct ampctl_plot_style *style)
{
    const struct ampctl_plot_cell *cell = &canvas->columns[column];
    if (cell->low > cell->high)
        return " ";
    if (cell->skipped > -INFINITY && row_of(canvas, cell->skipped) == row)
        return style->colour ? "\x1b[31mx\x1b[0m" : "x";
    if (row < row_of(canvas, cell->low) || row > row_of(canvas, cell->high))
        return " ";
    return style->blocks ? "\xe2\x96\x84" : "-"; /* U+2584, lower half block: level parts make a line */
}

static int draw_row(const struct canvas *canvas, int row, const struct ampctl_plot_style *style, struct amp_buf *out)
{
    char label[24];
    (void)snprintf(label, sizeof label, "2^%.3g", (double)height_of(canvas, row));
    int rc = ampctl_plot_put(out, "%*s |", LABEL_WIDTH, label);
    size_t width = canvas->width;
    while (width > 0 && strcmp(mark_of(canvas, width - 1, row, style), " ") == 0)
        width--; /* no blanks at the ends of lines */
    for (size_t c = 0; rc == 0 && c < width; c++)
        rc = ampctl_plot_put(out, "%s", mark_of(canvas, c, row, style));
    return rc == 0 ? ampctl_plot_put(out, "\n") : rc;
}

static int draw_axis(const struct ampctl_plot *plot, const struct canvas *canvas, struct amp_buf *out)
{
    char line[AMPCTL_PLOT_COLUMNS + 1];
    memset(line, '-', canvas->width);
    line[canvas->width] = 0;
    int rc = ampctl_plot_put(out, "%*s +%s\n", LABEL_WIDTH, "", line);
    char first[24], last[24];
    (void)snprintf(first, sizeof first, "%" PRIu64, plot->first_step);
    (void)snprintf(last, sizeof last, "%" PRIu64, plot->last_step);
    size_t used = strlen(first) + strlen(last);
    if (rc != 0)
        return rc;
    if (plot->steps == 1 || used + 1 > canvas->width)
        return ampctl_plot_put(out, "%*s  %s%s%s  step\n", LABEL_WIDTH, "", first, plot->steps > 1 ? " to " : "",
                               plot->steps > 1 ? last : "");
    return ampctl_plot_put(out, "%*s  %s%*s  step\n", LABEL_WIDTH, "", first, (int)(canvas->width - strlen(first)),
                           last);
}

int ampctl_plot_render(const struct ampctl_plot *plot, const struct ampctl_plot_style *style, struct amp_buf *out)
{
    if (plot->steps == 0)
        return ampctl_plot_put(out, "No step has been decided yet.\n");
    struct canvas canvas;
    fill_canvas(plot, style->columns, &canvas);
    int rc = ampctl_plot_put(out, "loss scale over %" PRIu64 " step%s, %" PRIu64 " skipped%s\n", plot->steps,
                             plot->steps > 1 ? "s" : "", plot->skipped, plot->skipped > 0 ? " (x)" : "");
    for (int row = canvas.rows - 1; rc == 0 && row >= 0; row--)
        rc = draw_row(&canvas, row, style, out);
    return rc == 0 ? draw_axis(plot, &canvas, out) : rc;
}
