#define _XOPEN_SOURCE 700 /* wcwidth */
#include "client/ampctl/view/top_view.h"

#include "base/err.h"
#include "client/ampctl/print.h"
#include "client/ampctl/rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

/*
 * Columns of the fields; what is left of a line is for who is waited for. Names take what the longest of them needs, up
 * to NAME_WIDTH; the bars are there as far as the rest leaves room.
 */
enum {
    NAME_WIDTH = 20,
    NAME_LEAST = 5, /* the heading's */
    STATE_WIDTH = 8,
    STEP_WIDTH = 10,
    RATE_WIDTH = 8,
    SPARK_WIDTH = 12,
    SCALE_WIDTH = 10,
    SKIPPED_WIDTH = 7,
    WORKERS_WIDTH = 7,
    /* all of these but names and bars, with the gaps */
    NUMBERS_WIDTH = 1 + STATE_WIDTH + STEP_WIDTH + RATE_WIDTH + SCALE_WIDTH + SKIPPED_WIDTH + WORKERS_WIDTH + 2,
    WAITS_LEAST = 9 /* the heading's */
};

struct layout {
    int name, bars; /* columns of names; how many bars: those of the scale go first */
    int waits;      /* columns for who is waited for */
};

static const char *const sort_names[AMPCTL_TOP_SORTS] = {"name", "steps a second", "scale", "skipped"};

/* ---- polls ---- */

void ampctl_top_close(struct ampctl_top *top)
{
    free(top->models);
    top->models = NULL;
    top->count = 0;
}

static struct ampctl_top_model *find(const struct ampctl_top *top, const char *name)
{
    for (size_t i = 0; i < top->count; i++)
        if (strcmp(top->models[i].name, name) == 0)
            return &top->models[i];
    return NULL;
}

/* Who holds the step up: what the server says, else who straggles, else whose blocks are missing. */
static void describe_waiting(const struct ampd_msg_model_status *status, char text[AMPCTL_TOP_WAITING_SIZE])
{
    const struct ampd_msg_worker_status *missing = NULL;
    size_t behind = 0;
    text[0] = 0;
    if (status->waiting_for[0] != 0) {
        (void)snprintf(text, AMPCTL_TOP_WAITING_SIZE, "%s", status->waiting_for);
        return;
    }
    for (size_t i = 0; i < status->workers.count; i++) {
        const struct ampd_msg_worker_status *worker = &status->workers.items[i];
        if (worker->live && worker->straggles && text[0] == 0)
            (void)snprintf(text, AMPCTL_TOP_WAITING_SIZE, "rank %" PRIu32 " (%s) straggles", worker->rank,
                           worker->name);
        if (worker->live && worker->blocks_present < worker->blocks_wanted) {
            missing = behind == 0 ? worker : missing;
            behind++;
        }
    }
    if (text[0] == 0 && behind == 1 && status->workers.count > 1)
        (void)snprintf(text, AMPCTL_TOP_WAITING_SIZE, "rank %" PRIu32 " (%s): %" PRIu32 " of %" PRIu32 " blocks",
                       missing->rank, missing->name, missing->blocks_present, missing->blocks_wanted);
}

static void push_value(float values[AMPCTL_TOP_POLLS], double value)
{
    memmove(values, values + 1, (AMPCTL_TOP_POLLS - 1) * sizeof *values);
    values[AMPCTL_TOP_POLLS - 1] = (float)value;
}

static void begin_model(struct ampctl_top_model *model, const char *name)
{
    *model = (struct ampctl_top_model){.rate = (double)NAN};
    (void)snprintf(model->name, sizeof model->name, "%s", name);
    for (size_t i = 0; i < AMPCTL_TOP_POLLS; i++)
        model->scales[i] = model->rates[i] = NAN;
}

/* `ms` since the poll before, 0: another process has answered it; `known`: the model was there then. */
static void take_model(struct ampctl_top_model *model, const struct ampd_msg_model_status *status, bool known,
                       uint64_t ms)
{
    uint64_t attempted = status->scale.attempted;
    /* A model that was rolled back, or a server that was replaced, counts from before. */
    bool forward = known && ms > 0 && attempted >= model->attempted && status->epoch == model->epoch;
    model->rate = forward ? (double)(attempted - model->attempted) * 1000 / (double)ms : (double)NAN;
    model->state = status->state;
    model->epoch = status->epoch;
    model->step = status->step;
    model->attempted = attempted;
    model->skipped = status->scale.skipped;
    model->scale = status->has_scale ? (double)status->scale.scale : (double)NAN;
    model->world = status->world_size;
    model->live = 0;
    for (size_t i = 0; i < status->workers.count; i++)
        model->live += status->workers.items[i].live;
    describe_waiting(status, model->waiting);
    model->waiting_ms = status->waiting_ms;
    model->seen = true;
    push_value(model->scales, model->scale > 0 ? log2(model->scale) : (double)NAN);
    push_value(model->rates, model->rate);
}

/* Whether the answer has the models' workers: that of another shard than 0 has none, nor has one that is very large. */
static bool has_workers(const struct ampd_msg_get_status_response *status)
{
    bool any = false, trains = false;
    for (size_t i = 0; i < status->models.count; i++) {
        any = any || status->models.items[i].workers.count > 0;
        trains = trains || status->models.items[i].state == AMPD_MSG_MODEL_STATE_RUNNING;
    }
    return status->shard == 0 && (any || !trains);
}

int ampctl_top_take(struct ampctl_top *top, const struct ampd_msg_get_status_response *status)
{
    struct ampctl_top_model *models = calloc(status->models.count + 1, sizeof *models);
    bool same = strcmp(top->boot_id, status->boot_id) == 0 && status->uptime_ms > top->uptime_ms;
    bool known = has_workers(status);
    if (models == NULL)
        return AMP_ENOMEM;
    for (size_t i = 0; i < status->models.count; i++) {
        const struct ampd_msg_model_status *from = &status->models.items[i];
        const struct ampctl_top_model *before = find(top, from->name);
        if (before != NULL)
            models[i] = *before;
        else
            begin_model(&models[i], from->name);
        take_model(&models[i], from, before != NULL, same ? status->uptime_ms - top->uptime_ms : 0);
        models[i].live_known = known;
    }
    free(top->models);
    top->models = models;
    top->count = status->models.count;
    top->uptime_ms = status->uptime_ms;
    top->shard_count = status->shard_count;
    (void)snprintf(top->version, sizeof top->version, "%s", status->version);
    (void)snprintf(top->boot_id, sizeof top->boot_id, "%s", status->boot_id);
    (void)snprintf(top->trouble, sizeof top->trouble, "%s", status->trouble);
    top->failure[0] = 0;
    return 0;
}

/* ---- keys ---- */

static void type_filter(struct ampctl_top *top, int key)
{
    size_t size = strlen(top->filter);
    if (key == AMPCTL_TOP_KEY_ENTER) {
        top->typing = false;
    } else if (key == AMPCTL_TOP_KEY_ESCAPE) {
        top->typing = false;
        top->filter[0] = 0;
    } else if (key == AMPCTL_TOP_KEY_ERASE && size > 0) {
        top->filter[size - 1] = 0;
    } else if (key >= ' ' && key < 0x7f && size + 1 < sizeof top->filter) {
        top->filter[size] = (char)key;
        top->filter[size + 1] = 0;
    }
}

/* Lines above the models. */
enum { TITLE_LINE, STATE_LINE, HEADING_LINE, FIRST_LINE };

/* For how many models there is room. */
static size_t room_of(int lines)
{
    return lines > FIRST_LINE ? (size_t)(lines - FIRST_LINE) : 0;
}

/* The first of `count` models that is shown: the last page is full. */
static size_t first_of(const struct ampctl_top *top, size_t count, int lines)
{
    size_t most = count > room_of(lines) ? count - room_of(lines) : 0;
    return top->first < most ? top->first : most;
}

static void turn(struct ampctl_top *top, int key)
{
    bool page = key == AMPCTL_TOP_KEY_PAGE_UP || key == AMPCTL_TOP_KEY_PAGE_DOWN;
    size_t by = page ? room_of(top->lines) : 1;
    if (key == AMPCTL_TOP_KEY_DOWN || key == AMPCTL_TOP_KEY_PAGE_DOWN)
        top->first += by;
    else
        top->first -= by < top->first ? by : top->first;
    top->first = first_of(top, top->count, top->lines);
}

bool ampctl_top_key(struct ampctl_top *top, int key)
{
    if (top->typing) {
        type_filter(top, key);
        return true;
    }
    if (top->help) { /* any key leaves it */
        top->help = false;
        return true;
    }
    switch (key) {
    case 'q':
        return false;
    case 's':
        top->sort = (enum ampctl_top_sort)((top->sort + 1) % AMPCTL_TOP_SORTS);
        return true;
    case 'r':
        top->reverse = !top->reverse;
        return true;
    case '/':
        top->typing = true;
        top->filter[0] = 0;
        top->first = 0;
        return true;
    case AMPCTL_TOP_KEY_UP:
    case AMPCTL_TOP_KEY_DOWN:
    case AMPCTL_TOP_KEY_PAGE_UP:
    case AMPCTL_TOP_KEY_PAGE_DOWN:
        turn(top, key);
        return true;
    case '?':
    case 'h':
        top->help = true;
        return true;
    case AMPCTL_TOP_KEY_ESCAPE:
        top->filter[0] = 0;
        return true;
    default:
        return true;
    }
}

/* ---- which models, in which order ---- */

static double skipped_share(const struct ampctl_top_model *model)
{
    return model->attempted > 0 ? (double)model->skipped / (double)model->attempted : 0;
}

/* By a number the largest are first, and those without one last. */
static int compare_numbers(double left, double right)
{
    if (isnan(left) || isnan(right))
        return (int)isnan(left) - (int)isnan(right);
    return left < right ? 1 : left > right ? -1 : 0;
}

static int compare(const struct ampctl_top *top, const struct ampctl_top_model *left,
                   const struct ampctl_top_model *right)
{
    int order = 0;
    if (top->sort == AMPCTL_TOP_BY_RATE)
        order = compare_numbers(left->rate, right->rate);
    else if (top->sort == AMPCTL_TOP_BY_SCALE)
        order = compare_numbers(left->scale, right->scale);
    else if (top->sort == AMPCTL_TOP_BY_SKIPPED)
        order = compare_numbers(skipped_share(left), skipped_share(right));
    if (order == 0)
        order = strcmp(left->name, right->name);
    return top->reverse ? -order : order;
}

/* Pointers to the models that pass, sorted; *count of them. The caller frees it; NULL: no memory. */
static const struct ampctl_top_model **choose(const struct ampctl_top *top, size_t *count)
{
    const struct ampctl_top_model **chosen = calloc(top->count + 1, sizeof *chosen);
    *count = 0;
    for (size_t i = 0; chosen != NULL && i < top->count; i++) {
        if (strstr(top->models[i].name, top->filter) == NULL)
            continue;
        size_t at = (*count)++;
        /* By insertion: 1000 models at most, and nearly in order as a rule. */
        for (; at > 0 && compare(top, chosen[at - 1], &top->models[i]) > 0; at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = &top->models[i];
    }
    return chosen;
}

static json_t *row_of(const struct ampctl_top_model *model)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:I, s:I, s:o, s:i, s:s}", "name", model->name, "state",
                     ampctl_state_name(model->state), "epoch", (json_int_t)model->epoch, "step",
                     (json_int_t)model->step, "steps_per_second", ampctl_real(model->rate), "scale",
                     ampctl_real(model->scale), "attempted", (json_int_t)model->attempted, "skipped",
                     (json_int_t)model->skipped, "workers",
                     model->live_known ? json_integer((json_int_t)model->live) : json_null(), "world_size",
                     (int)model->world, "waiting_for", model->waiting);
}

json_t *ampctl_top_rows(const struct ampctl_top *top)
{
    size_t count;
    const struct ampctl_top_model **chosen = choose(top, &count);
    json_t *rows = chosen != NULL ? json_array() : NULL;
    for (size_t i = 0; rows != NULL && i < count; i++)
        if (json_array_append_new(rows, row_of(chosen[i])) != 0) {
            json_decref(rows);
            rows = NULL;
        }
    free(chosen);
    return rows;
}

/* ---- the screen ---- */

/* A line as it grows: its bytes, and the columns that are left of it. */
struct line {
    struct amp_buf *out;
    int left;
    int rc;
};

/* A text in a field: cut to `width` columns, or filled up with spaces, on the left of it if `right`. */
static void put(struct line *line, const char *text, int width, bool right)
{
    char *shown = ampctl_text(text);
    int used = 0;
    size_t size = 0;
    mbstate_t state = {0};
    width = width < line->left ? width : line->left;
    for (size_t length = shown != NULL ? strlen(shown) : 0; size < length;) {
        wchar_t letter;
        size_t bytes = mbrtowc(&letter, shown + size, length - size, &state);
        int columns = bytes == 0 || bytes > length ? -1 : wcwidth(letter);
        if (columns < 0) { /* no letter of this locale: a byte, a column */
            state = (mbstate_t){0};
            bytes = 1;
            columns = 1;
        }
        if (used + columns > width)
            break;
        used += columns;
        size += bytes;
    }
    for (int i = used; right && line->rc == 0 && i < width; i++)
        line->rc = amp_buf_append(line->out, " ", 1);
    if (line->rc == 0)
        line->rc = amp_buf_append(line->out, shown, size);
    for (int i = used; !right && line->rc == 0 && i < width; i++)
        line->rc = amp_buf_append(line->out, " ", 1);
    line->left -= width;
    free(shown);
}

static void put_gap(struct line *line)
{
    put(line, "", 1, false);
}

static void end(struct line *line)
{
    if (line->rc == 0)
        line->rc = amp_buf_append(line->out, "\n", 1);
}

/* A number is never cut: it takes more than its field, and is left out where the line ends before. */
static void put_number(struct line *line, const char *text, int width)
{
    int size = (int)strlen(text);
    put(line, size <= line->left ? text : "", size > width ? size : width, true);
}

static void format_rate(char text[32], double rate)
{
    (void)snprintf(text, 32, isnan(rate) ? "-" : "%.1f", rate);
}

/* In its field with a gap before it: large and small powers of two as such, others in the digits that fit. */
static void format_scale(char text[32], double scale)
{
    int exponent;
    (void)snprintf(text, 32, isnan(scale) ? "-" : "%.6g", scale);
    if (strlen(text) < SCALE_WIDTH && strchr(text, 'e') == NULL)
        return;
    if (frexp(scale, &exponent) == 0.5)
        (void)snprintf(text, 32, "2^%d", exponent - 1);
    for (int digits = 5; strlen(text) >= SCALE_WIDTH && digits > 0; digits--)
        (void)snprintf(text, 32, "%.*g", digits, scale);
}

/* Who is waited for; the time that the server ends its sentence with goes to the front, where no line is cut. */
static void format_waiting(const struct ampctl_top_model *model, char text[AMPCTL_TOP_WAITING_SIZE])
{
    char end[40];
    unsigned long long seconds = model->waiting_ms / 1000;
    int size = snprintf(end, sizeof end, ", for %llu s", seconds), length = (int)strlen(model->waiting);
    bool told = length >= size && strcmp(model->waiting + length - size, end) == 0;
    if (model->waiting_ms != 0 && told)
        (void)snprintf(text, AMPCTL_TOP_WAITING_SIZE, "%llu s, %.*s", seconds, length - size, model->waiting);
    else
        (void)snprintf(text, AMPCTL_TOP_WAITING_SIZE, "%s", model->waiting);
}

/* Columns of a text, or somewhat more. */
static int columns_of(const char *text)
{
    char *shown = ampctl_text(text);
    int columns = shown != NULL ? (int)strlen(shown) : 0;
    free(shown);
    return columns;
}

/* Bars give way to who is waited for. */
static struct layout lay_out(const struct ampctl_top_model *const *chosen, size_t count, int columns)
{
    struct layout layout = {.name = NAME_LEAST};
    int wanted = WAITS_LEAST;
    for (size_t i = 0; i < count; i++) {
        int name = columns_of(chosen[i]->name), waits = columns_of(chosen[i]->waiting);
        layout.name = name > layout.name ? name : layout.name;
        wanted = waits > wanted ? waits : wanted;
    }
    layout.name = layout.name < NAME_WIDTH ? layout.name : NAME_WIDTH;
    layout.waits = columns - layout.name - NUMBERS_WIDTH;
    for (; layout.bars < 2 && layout.waits >= wanted + SPARK_WIDTH + 1; layout.bars++)
        layout.waits -= SPARK_WIDTH + 1;
    return layout;
}

/* The last values as bars between their lowest and highest; of what is the same in all of them a line in the middle. */
static void put_spark(struct line *line, const float *values, bool blocks)
{
    static const char *const bars[] = {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
    static const char *const plain[] = {"_", ".", ":", "-", "=", "+", "*", "#"};
    char text[SPARK_WIDTH * 4 + 1] = "";
    float low = INFINITY, high = -INFINITY;
    const float *first = values + AMPCTL_TOP_POLLS - SPARK_WIDTH;
    for (size_t i = 0; i < SPARK_WIDTH; i++) {
        low = fminf(low, first[i]); /* fminf passes over NAN */
        high = fmaxf(high, first[i]);
    }
    for (size_t i = 0; i < SPARK_WIDTH; i++) {
        size_t size = strlen(text);
        int height = high > low ? (int)lroundf((first[i] - low) / (high - low) * 7) : 3;
        const char *bar = isnan(first[i]) ? " " : (blocks ? bars : plain)[height];
        (void)snprintf(text + size, sizeof text - size, "%s", bar);
    }
    put(line, text, SPARK_WIDTH, false);
}

static void put_model(const struct ampctl_top *top, const struct ampctl_top_model *model, const struct layout *layout,
                      struct line *line)
{
    char text[64], waiting[AMPCTL_TOP_WAITING_SIZE];
    put(line, model->name, layout->name, false);
    put_gap(line);
    put(line, ampctl_state_name(model->state), STATE_WIDTH, false);
    (void)snprintf(text, sizeof text, "%" PRIu64, model->step);
    put_number(line, text, STEP_WIDTH);
    format_rate(text, model->rate);
    put_number(line, text, RATE_WIDTH);
    if (layout->bars > 0) {
        put_gap(line);
        put_spark(line, model->rates, top->blocks);
    }
    format_scale(text, model->scale);
    put_number(line, text, SCALE_WIDTH);
    if (layout->bars > 1) {
        put_gap(line);
        put_spark(line, model->scales, top->blocks);
    }
    (void)snprintf(text, sizeof text, "%.1f%%", skipped_share(model) * 100);
    put_number(line, text, SKIPPED_WIDTH);
    if (model->live_known)
        (void)snprintf(text, sizeof text, "%" PRIu32 "/%" PRIu32, model->live, model->world);
    else
        (void)snprintf(text, sizeof text, "-/%" PRIu32, model->world);
    put_number(line, text, WORKERS_WIDTH);
    put_gap(line);
    put_gap(line);
    format_waiting(model, waiting);
    put(line, waiting, line->left, false);
}

static void put_heading(const struct layout *layout, struct line *line)
{
    const int bar = SPARK_WIDTH + 1;
    put(line, "MODEL", layout->name, false);
    put_gap(line);
    put(line, "STATE", STATE_WIDTH, false);
    put(line, "STEP", STEP_WIDTH, true);
    put(line, "STEPS/S", RATE_WIDTH, true);
    put(line, "", layout->bars > 0 ? bar : 0, false);
    put(line, "SCALE", SCALE_WIDTH, true);
    put(line, "", layout->bars > 1 ? bar : 0, false);
    put(line, "SKIPPED", SKIPPED_WIDTH, true);
    put(line, "WORKERS", WORKERS_WIDTH + 1, true);
    put_gap(line);
    put(line, "WAITS FOR", line->left, false);
}

static const char long_help[] = "   ? for help", short_help[] = "  ? help";

static void put_title(const struct ampctl_top *top, size_t shown, struct line *line)
{
    char text[256], filter[AMPCTL_TOP_FILTER_SIZE + 32] = "";
    if (top->filter[0] != 0)
        (void)snprintf(filter, sizeof filter, " with \"%s\"", top->filter);
    (void)snprintf(text, sizeof text,
                   "ampd %s at %s, up %" PRIu64 " s, %" PRIu32 " shard%s; %zu of %zu models%s, by %s%s", top->version,
                   top->endpoint != NULL ? top->endpoint : "", top->uptime_ms / 1000, top->shard_count,
                   top->shard_count == 1 ? "" : "s", shown, top->count, filter, sort_names[top->sort],
                   top->reverse ? ", reversed" : "");
    /* How to get help is the last that gives way. */
    int size = columns_of(text), room = line->left - (int)sizeof short_help + 1;
    bool fits = size + (int)sizeof long_help - 1 <= line->left;
    put(line, text, fits ? size : room > 0 ? room : line->left, false);
    put(line, fits ? long_help : short_help, line->left, false);
}

/* What there is no room for behind a model. */
static void describe_cut(const struct ampctl_top_model *const *chosen, size_t count, const struct layout *layout,
                         char text[600])
{
    for (size_t i = 0; i < count && text[0] == 0; i++)
        if (chosen[i]->waiting_ms != 0 && columns_of(chosen[i]->waiting) > layout->waits)
            (void)snprintf(text, 600, "%.60s waits for %.500s", chosen[i]->name, chosen[i]->waiting);
}

/* `lines`: of the screen. */
static void put_state(const struct ampctl_top *top, const struct ampctl_top_model *const *chosen, size_t count,
                      int lines, const struct layout *layout, struct line *line)
{
    size_t first = first_of(top, count, lines), room = room_of(lines);
    char text[600] = "";
    if (top->typing)
        (void)snprintf(text, sizeof text, "models with: %s_", top->filter);
    else if (top->failure[0] != 0)
        (void)snprintf(text, sizeof text, "no answer: %s", top->failure);
    else if (top->trouble[0] != 0)
        (void)snprintf(text, sizeof text, "trouble: %s", top->trouble);
    else
        describe_cut(chosen, count, layout, text);
    if (text[0] == 0 && count > room)
        (void)snprintf(text, sizeof text, "models %zu to %zu of %zu: arrows and page keys have the others", first + 1,
                       first + room, count);
    put(line, text, line->left, false);
}

static const char *const help_lines[] = {
    "s      the next order: by name, steps a second, scale, share of skipped steps",
    "r      reverse the order",
    "/      only models whose name has a text: type it, then Enter; Esc: all models",
    "arrows and Page Up, Page Down: the models for which there is no room",
    "?      this help; any key leaves it",
    "q      ends",
    "",
    "STEPS/S is of attempted steps, between the last two updates; the bars are the last updates, from their",
    "lowest to their highest. The second bars are the logarithm of the loss scale.",
};

int ampctl_top_heading(const struct ampctl_top *top)
{
    return top->help ? -1 : HEADING_LINE;
}

int ampctl_top_render(const struct ampctl_top *top, int columns, int lines, struct amp_buf *out)
{
    size_t count;
    const struct ampctl_top_model **chosen = choose(top, &count);
    int rc = chosen != NULL ? 0 : AMP_ENOMEM;
    const struct layout layout = lay_out(chosen, count, columns);
    size_t first = first_of(top, count, lines);
    for (int i = 0; rc == 0 && i < lines; i++) {
        struct line line = {.out = out, .left = columns};
        size_t at = i >= FIRST_LINE ? (size_t)(i - FIRST_LINE) : 0, model = first + at;
        if (i == TITLE_LINE)
            put_title(top, count, &line);
        else if (i == STATE_LINE)
            put_state(top, chosen, count, lines, &layout, &line);
        else if (top->help)
            put(&line, i >= FIRST_LINE && at < sizeof help_lines / sizeof *help_lines ? help_lines[at] : "", columns,
                false);
        else if (i == HEADING_LINE)
            put_heading(&layout, &line);
        else if (model < count)
            put_model(top, chosen[model], &layout, &line);
        end(&line);
        rc = line.rc;
    }
    free(chosen);
    return rc;
}
