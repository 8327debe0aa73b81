/*
 * ampctl history and ampctl overflows: pages of rows, followed to the end; each is printed before the next is asked
 * for.
 */
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/rows.h"
#include "client/ampctl/view/history.h"
#include "client/ampctl/view/plot.h"

#include <errno.h>
#include <langinfo.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    KEY_FROM = 256,
    KEY_TO,
    KEY_EPOCH,
    KEY_ALL,
    KEY_NEWEST,
    KEY_LIMIT,
    KEY_SKIPPED,
    KEY_ACTIONS,
    KEY_PLOT,
    KEY_SVG,
    KEY_PARAMETER,
    KEY_RANK
};

/* Both verbs' questions; what one lacks stays zero. */
struct question {
    char model[128];
    bool has_epoch, has_to, has_rank;
    uint64_t epoch, from, to;
    uint32_t rank;
    bool all, newest_first, skipped, actions, plot;
    uint64_t limit; /* rows; 0: all */
    char parameter[128];
    const char *svg; /* a file, or NULL */
};

#define PAGING_OPTIONS                                                                                                 \
    {"from", KEY_FROM, "STEP", 0, "First step", 0}, {"to", KEY_TO, "STEP", 0, "Last step, included", 0},               \
        {"epoch", KEY_EPOCH, "EPOCH", 0, "Only this epoch (the steps that stand, over all epochs)", 0},                \
        {"all", KEY_ALL, NULL, 0, "Also steps that were rolled back", 0},                                              \
        {"newest-first", KEY_NEWEST, NULL, 0, "Newest steps first", 0},                                                \
    {                                                                                                                  \
        "limit", KEY_LIMIT, "ROWS", 0, "At most so many rows (all)", 0                                                 \
    }

static error_t parse_filter(int key, char *arg, struct argp_state *state)
{
    struct question *question = state->input;
    switch (key) {
    case KEY_SKIPPED:
        question->skipped = true;
        return 0;
    case KEY_ACTIONS:
        question->actions = true;
        return 0;
    case KEY_PLOT:
        question->plot = true;
        return 0;
    case KEY_SVG:
        question->svg = arg;
        return 0;
    case KEY_PARAMETER:
        ampctl_name(state, question->parameter, arg);
        return 0;
    case KEY_RANK:
        question->has_rank = true;
        question->rank = (uint32_t)ampctl_number(state, "--rank", arg, UINT32_MAX);
        return 0;
    default:
        return ampctl_one_model(key, arg, state, question->model);
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct question *question = state->input;
    switch (key) {
    case KEY_FROM:
        question->from = ampctl_number(state, "--from", arg, AMPCTL_NUMBER_MAX);
        return 0;
    case KEY_TO:
        question->has_to = true;
        question->to = ampctl_number(state, "--to", arg, AMPCTL_NUMBER_MAX);
        return 0;
    case KEY_EPOCH:
        question->has_epoch = true;
        question->epoch = ampctl_number(state, "--epoch", arg, AMPCTL_NUMBER_MAX);
        return 0;
    case KEY_ALL:
        question->all = true;
        return 0;
    case KEY_NEWEST:
        question->newest_first = true;
        return 0;
    case KEY_LIMIT:
        question->limit = ampctl_number(state, "--limit", arg, AMPCTL_NUMBER_MAX);
        if (question->limit == 0)
            argp_error(state, "--limit is 0; give the number of rows");
        return 0;
    case ARGP_KEY_END:
        return ampctl_from_to(state, question->from, question->has_to, question->to);
    default:
        return parse_filter(key, arg, state);
    }
}

/* ---- pages ---- */

/* A walk over pages. */
struct walk {
    struct ampctl *ctl;
    const struct question *question;
    struct ampctl_list list;
    struct ampctl_plot *plot; /* instead of rows */
    struct amp_buf points;    /* newest first: those of the plot, struct point, until all are there */
    uint64_t rows;            /* seen so far */
    char page_token[192];
};

static uint32_t page_size(const struct walk *walk)
{
    uint64_t left = walk->question->limit > 0 ? walk->question->limit - walk->rows : AMPD_MSG_ROWS_MAX;
    return (uint32_t)(left < AMPD_MSG_ROWS_MAX ? left : AMPD_MSG_ROWS_MAX);
}

/* A server may give more than asked for; nobody is shown more than the limit. */
static bool wanted(struct walk *walk)
{
    if (walk->question->limit > 0 && walk->rows >= walk->question->limit)
        return false;
    walk->rows++;
    return true;
}

static int print_page(struct walk *walk, json_t *rows, bool ok)
{
    int code = ok && ampctl_list_page(&walk->list, rows) == 0 ? 0 : AMPCTL_EXIT_FAILED;
    json_decref(rows);
    return code;
}

/* Eleven million steps. */
#define POINTS_BYTES_MAX ((size_t)256 << 20)

struct point {
    uint64_t step;
    double scale;
    bool skipped;
};

static int plot_page(struct walk *walk, const struct ampd_msg_list_scale_history_response *page)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < page->rows.count && wanted(walk); i++) {
        const struct ampd_msg_scale_history_row *row = &page->rows.items[i];
        const struct point point = {row->step, (double)row->old_scale, row->verdict != AMPD_MSG_VERDICT_APPLIED};
        if (row->kind != AMPD_MSG_HISTORY_KIND_STEP || (row->superseded && !walk->question->has_epoch))
            continue;
        if (walk->question->newest_first)
            rc = amp_buf_append(&walk->points, &point, sizeof point);
        else
            ampctl_plot_add(walk->plot, point.step, point.scale, point.skipped);
    }
    if (rc == 0)
        return 0;
    (void)ampctl_print(stderr,
                       "ampctl: history: there is no room for a picture of so many steps; give a lower --limit");
    return AMPCTL_EXIT_FAILED;
}

/* A picture goes from the oldest step to the newest. */
static void plot_points(struct walk *walk)
{
    for (size_t at = walk->points.size; at > 0; at -= sizeof(struct point)) {
        struct point point;
        memcpy(&point, walk->points.data + at - sizeof point, sizeof point);
        ampctl_plot_add(walk->plot, point.step, point.scale, point.skipped);
    }
}

static int history_page(struct walk *walk)
{
    const struct question *question = walk->question;
    struct ampd_msg_list_scale_history_request request = {.has_epoch = question->has_epoch,
                                                          .epoch = question->epoch,
                                                          .from_step = question->from,
                                                          .has_to_step = question->has_to,
                                                          .to_step = question->to,
                                                          .include_superseded = question->all,
                                                          .newest_first = question->newest_first,
                                                          .page_size = page_size(walk)};
    if (question->skipped) {
        request.verdicts[request.verdicts_count++] = AMPD_MSG_VERDICT_SKIPPED_OVERFLOW;
        request.verdicts[request.verdicts_count++] = AMPD_MSG_VERDICT_SKIPPED_EMPTY;
    }
    if (question->actions)
        request.verdicts[request.verdicts_count++] = AMPD_MSG_VERDICT_UNSPECIFIED;
    memcpy(request.model, question->model, sizeof request.model);
    memcpy(request.page_token, walk->page_token, sizeof request.page_token);
    struct ampd_msg_list_scale_history_response page;
    int code = ampctl_ask_list_scale_history(walk->ctl, &request, &page);
    if (code != 0)
        return code;
    if (walk->plot != NULL) {
        code = plot_page(walk, &page);
    } else {
        json_t *rows = json_array();
        bool ok = rows != NULL;
        for (size_t i = 0; ok && i < page.rows.count && wanted(walk); i++)
            ok = json_array_append_new(rows, ampctl_history_row(&page.rows.items[i])) == 0;
        code = print_page(walk, rows, ok);
    }
    memcpy(walk->page_token, page.next_page_token, sizeof walk->page_token);
    ampd_msg_list_scale_history_response_free(&page);
    return code;
}

static int overflows_page(struct walk *walk)
{
    const struct question *question = walk->question;
    struct ampd_msg_list_overflows_request request = {.has_epoch = question->has_epoch,
                                                      .epoch = question->epoch,
                                                      .from_step = question->from,
                                                      .has_to_step = question->has_to,
                                                      .to_step = question->to,
                                                      .has_rank = question->has_rank,
                                                      .rank = question->rank,
                                                      .include_superseded = question->all,
                                                      .newest_first = question->newest_first,
                                                      .page_size = page_size(walk)};
    memcpy(request.model, question->model, sizeof request.model);
    memcpy(request.parameter, question->parameter, sizeof request.parameter);
    memcpy(request.page_token, walk->page_token, sizeof request.page_token);
    struct ampd_msg_list_overflows_response page;
    int code = ampctl_ask_list_overflows(walk->ctl, &request, &page);
    if (code != 0)
        return code;
    json_t *rows = json_array();
    bool ok = rows != NULL;
    for (size_t i = 0; ok && i < page.rows.count && wanted(walk); i++)
        ok = json_array_append_new(rows, ampctl_overflow_row(&page.rows.items[i])) == 0;
    code = print_page(walk, rows, ok);
    memcpy(walk->page_token, page.next_page_token, sizeof walk->page_token);
    ampd_msg_list_overflows_response_free(&page);
    return code;
}

static int walk_pages(struct walk *walk, int (*page)(struct walk *walk))
{
    int code = 0;
    do {
        code = page(walk);
    } while (code == 0 && walk->page_token[0] != 0 &&
             (walk->question->limit == 0 || walk->rows < walk->question->limit));
    return code;
}

/* ---- verbs ---- */

static int write_text(FILE *out, const struct amp_buf *text)
{
    return fwrite(text->data, 1, text->size, out) == text->size ? 0 : AMP_EIO;
}

/* On the terminal. */
static int draw(const struct ampctl_plot *plot)
{
    const char *no_colour = getenv("NO_COLOR"); /* empty it says nothing (no-color.org) */
    bool colour = no_colour == NULL || no_colour[0] == 0;
    struct winsize size = {0};
    (void)ioctl(fileno(stdout), TIOCGWINSZ, &size); /* a file or pipe has none */
    const struct ampctl_plot_style style = {.blocks = strcmp(nl_langinfo(CODESET), "UTF-8") == 0,
                                            .colour = isatty(fileno(stdout)) && colour,
                                            .columns = size.ws_col};
    struct amp_buf text;
    amp_buf_init(&text, AMPD_MSG_SIZE_MAX);
    int rc = ampctl_plot_render(plot, &style, &text);
    if (rc == 0)
        rc = write_text(stdout, &text);
    amp_buf_close(&text);
    return rc == 0 ? 0 : AMPCTL_EXIT_FAILED;
}

static int write_svg(const struct ampctl *ctl, const struct ampctl_plot *plot, const struct question *question)
{
    struct amp_buf text;
    amp_buf_init(&text, AMPD_MSG_SIZE_MAX);
    char *model = ampctl_text(question->model);
    errno = 0;
    int rc = model == NULL ? AMP_ENOMEM : ampctl_plot_svg(plot, model, &text);
    bool to_stdout = strcmp(question->svg, "-") == 0;
    FILE *out = rc != 0 ? NULL : to_stdout ? stdout : fopen(question->svg, "w");
    if (out == NULL)
        rc = AMP_EIO;
    else
        rc = write_text(out, &text);
    if (out != NULL && !to_stdout && fclose(out) != 0)
        rc = AMP_EIO;
    if (rc != 0)
        (void)ampctl_print(stderr, "ampctl: %s: %s cannot be written: %s", ctl->verb, question->svg,
                           errno != 0 ? strerror(errno) : "there is no memory");
    free(model);
    amp_buf_close(&text);
    return rc == 0 ? 0 : AMPCTL_EXIT_FAILED;
}

static int print_history(struct ampctl *ctl, struct question *question)
{
    struct walk walk = {.ctl = ctl,
                        .question = question,
                        .list = {.out = stdout, .json = ctl->json, .csv = ctl->csv, .columns = ampctl_history_columns}};
    if (question->svg != NULL || (question->plot && !ctl->json && !ctl->csv)) {
        walk.plot = malloc(sizeof *walk.plot);
        if (walk.plot == NULL)
            return AMPCTL_EXIT_FAILED;
        ampctl_plot_init(walk.plot);
        question->newest_first = question->newest_first && question->limit > 0; /* else it is all, in any order */
    }
    amp_buf_init(&walk.points, POINTS_BYTES_MAX);
    int code = walk_pages(&walk, history_page);
    if (walk.plot != NULL)
        plot_points(&walk);
    if (code == 0 && question->svg != NULL)
        code = write_svg(ctl, walk.plot, question);
    else if (code == 0 && walk.plot != NULL)
        code = draw(walk.plot);
    else if (code == 0 && ampctl_list_end(&walk.list) != 0)
        code = AMPCTL_EXIT_FAILED;
    amp_buf_close(&walk.points);
    free(walk.plot);
    return code;
}

int ampctl_history_write(struct ampctl *ctl, const char model[128], uint64_t to_step, bool overflows, FILE *out)
{
    struct question question = {.has_to = true, .to = to_step, .all = true};
    struct walk walk = {.ctl = ctl, .question = &question, .list = {.out = out, .json = true}};
    memcpy(question.model, model, sizeof question.model);
    int code = walk_pages(&walk, overflows ? overflows_page : history_page);
    if (code == 0 && ampctl_list_end(&walk.list) != 0)
        code = AMPCTL_EXIT_FAILED;
    return code;
}

static const struct argp_option history_options[] = {
    PAGING_OPTIONS,
    {"skipped", KEY_SKIPPED, NULL, 0, "Only skipped steps", 0},
    {"actions", KEY_ACTIONS, NULL, 0, "Only what operators did and epochs; with --skipped: both", 0},
    {"plot", KEY_PLOT, NULL, 0, "Draw the scale over the steps; skipped ones are x (with -o json: the rows)", 0},
    {"svg", KEY_SVG, "FILE", 0, "The same picture as an SVG file; -: to stdout", 0},
    {0},
};

static int run_history(struct ampctl *ctl, int argc, char **argv)
{
    struct question question = {0};
    ampctl_parse(ctl, &ampctl_history_verb, &question, argc, argv);
    return print_history(ctl, &question);
}

const struct ampctl_verb ampctl_history_verb = {
    .name = "history",
    .arguments = "MODEL",
    .summary = "the loss scale, step by step, or as a picture",
    .doc = "Shows the loss scale, step by step, and between them what was done by hand, by whom and why. A history may "
           "have millions of rows: --newest-first --limit N shows or draws the newest N.",
    .examples = "ampctl history digits --newest-first --limit 20\n"
                "ampctl history digits --skipped\n"
                "ampctl history digits --actions\n"
                "ampctl history digits --plot\n"
                "ampctl history digits --svg scale.svg",
    .options = history_options,
    .parser = parse,
    .run = run_history,
};

static const struct argp_option overflows_options[] = {
    PAGING_OPTIONS,
    {"parameter", KEY_PARAMETER, "NAME", 0, "Only this parameter", 0},
    {"rank", KEY_RANK, "RANK", 0, "Only this worker", 0},
    {0},
};

static int run_overflows(struct ampctl *ctl, int argc, char **argv)
{
    struct question question = {0};
    ampctl_parse(ctl, &ampctl_overflows_verb, &question, argc, argv);
    struct walk walk = {
        .ctl = ctl,
        .question = &question,
        .list = {.out = stdout, .json = ctl->json, .csv = ctl->csv, .columns = ampctl_overflow_columns}};
    int code = walk_pages(&walk, overflows_page);
    if (code == 0 && ampctl_list_end(&walk.list) != 0)
        code = AMPCTL_EXIT_FAILED;
    return code;
}

const struct ampctl_verb ampctl_overflows_verb = {
    .name = "overflows",
    .arguments = "MODEL",
    .summary = "whose gradients had Inf or NaN, and where",
    .doc = "Shows whose gradients had an Inf or a NaN, in which parameter, and how many.",
    .examples = "ampctl overflows digits --newest-first --limit 20\n"
                "ampctl overflows digits --rank 3",
    .options = overflows_options,
    .parser = parse,
    .run = run_overflows,
};
