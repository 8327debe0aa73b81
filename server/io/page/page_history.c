/*
 * /api/history?model=NAME[&from=STEP][&to=STEP][&pixels=N]: the steps that were not rolled back, thinned while they are
 * read, and the epochs and operators' acts between them.
 */
#include "server/io/base/server.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/pages.h"
#include "server/io/page/page_read.h"
#include "server/io/page/thin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIXELS_DEFAULT 800

struct history {
    struct io_page_read read;
    struct io_thin thin;
    uint64_t from, to; /* the steps of the request, within those that there are */
    uint32_t pixels;
    uint64_t decided, epoch; /* last decided step, and epoch, of the model when the request came */
    uint64_t created_ms;     /* when the model was created: one of the same name may have existed before */
    uint64_t first;          /* the first step that has a row; `from`, if none has */
};

/* Takes the rows of one slice. */
struct slice {
    struct io_thin *thin;
    uint32_t rows;
};

static int take_point(void *arg, const struct ampd_history_point *point)
{
    struct slice *slice = arg;
    slice->rows++;
    io_thin_add(slice->thin, point);
    return 0;
}

/* ---- acts of operators: there are few, so the whole row of each is read ---- */

static void write_act(const struct ampd_model_spec *spec, const struct ampd_step_row *row,
                      const struct ampd_epoch_record *epoch, struct io_json *json)
{
    struct ampd_msg_scale_history_row message;
    static const char *const kinds[] = {"", "step", "epoch", "set", "reset", "evict", "rate"};
    io_history_row(spec, row, epoch, &message);
    io_json_open(json, NULL, '{');
    io_json_text(json, "kind", kinds[message.kind <= AMPD_MSG_HISTORY_KIND_LEARNING_RATE_SET ? message.kind : 0]);
    io_json_count(json, "epoch", message.epoch);
    io_json_count(json, "step", message.step);
    io_json_count(json, "rank", message.rank);
    io_json_number(json, "old_scale", (double)message.old_scale);
    io_json_number(json, "scale", (double)message.record.scale);
    io_json_number(json, "learning_rate", message.learning_rate);
    io_json_number(json, "old_learning_rate", message.old_learning_rate);
    io_json_text(json, "actor", message.actor);
    io_json_text(json, "reason", message.reason);
    io_json_count(json, "at_ms", (uint64_t)message.decide_time.us / 1000);
    io_json_shut(json, '}');
}

struct act {
    const struct ampd_model_spec *spec;
    struct io_json *json;
};

static int take_act(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                    const struct ampd_epoch_record *epoch)
{
    const struct act *act = arg;
    if (row->kind != AMPD_ROW_STEP) /* else the row has been superseded meanwhile */
        write_act(act->spec, row, epoch, act->json);
    return 0;
}

/* Reads the acts that thin.h has kept, newest first. */
static void write_acts(struct history *history)
{
    struct io_page_read *read = &history->read;
    const struct io_thin *thin = &history->thin;
    struct act act = {read->spec, &read->json};
    uint32_t kept = thin->acts_count < IO_THIN_ACTS_MAX ? thin->acts_count : IO_THIN_ACTS_MAX;
    io_json_open(&read->json, "acts", '[');
    for (uint32_t i = 0; i < kept && read->error.code == 0; i++) {
        const struct ampd_history_key *key = &thin->acts[(thin->acts_count - 1 - i) % IO_THIN_ACTS_MAX].key;
        const struct ampd_history_filter filter = {.epoch = key->epoch, .from = *key, .step_max = key->step};
        (void)ampd_store_page_history(read->page->server->data.reader, read->spec->name, &filter, 1, &act, &read->error,
                                      take_act);
    }
    io_json_shut(&read->json, ']');
}

/* ---- the read ---- */

static void write_answer(struct history *history)
{
    struct io_json *json = &history->read.json;
    io_json_open(json, NULL, '{');
    io_json_text(json, "model", history->read.spec->name);
    io_json_count(json, "decided", history->decided);
    io_json_count(json, "epoch", history->epoch);
    io_json_count(json, "created_ms", history->created_ms);
    io_json_count(json, "first", history->first);
    io_thin_write(&history->thin, json);
    write_acts(history);
    io_json_shut(json, '}');
}

/* Moves the plot's beginning to the first step that has a row: removed steps could else be most of the plot. */
static void begin_plot(struct history *history)
{
    struct io_page_read *read = &history->read;
    struct io_history_beginning beginning;
    uint64_t from = history->from;
    if (io_history_find_beginning(read->page->server->data.reader, read->spec->name, 0, &beginning, &read->error) != 0)
        return;
    history->first = beginning.step > 0 ? beginning.step : from;
    if (beginning.step > from && beginning.step <= history->to)
        from = beginning.step;
    if (io_thin_init(&history->thin, from, history->to, history->pixels) != 0)
        (void)amp_error_set(&read->error, AMP_ENOMEM, "EXHAUSTED", "out of memory for a plot: ask again later");
    history->thin.acts_from = history->from; /* rows that begin an epoch are never removed */
}

static void history_run(struct io_page_read *read)
{
    struct history *history = AMP_CONTAINER(read, struct history, read);
    if (history->thin.buckets == NULL)
        begin_plot(history);
    if (read->error.code != 0)
        return;
    struct ampd_history_key from = history->thin.last;
    struct slice slice = {&history->thin, 0};
    from.sequence += from.epoch != 0;
    if (ampd_store_page_points(read->page->server->data.reader, read->spec->name, &from, history->from - 1, history->to,
                               IO_PAGE_SLICE_ROWS, &slice, &read->error, take_point) != 0)
        return;
    /* The range bounds the number of steps, and operators can only do so much that slices are full of other rows. */
    read->more = slice.rows == IO_PAGE_SLICE_ROWS;
    if (!read->more)
        write_answer(history);
}

static void history_free(struct io_page_read *read)
{
    io_thin_close(&AMP_CONTAINER(read, struct history, read)->thin);
}

/* Reads from and to of the request, and limits them to the decided steps and to what one answer may read. */
static void bound(uint64_t *from, uint64_t *to, uint64_t decided)
{
    *to = *to > decided ? decided : *to;
    *to = *to < 1 ? 1 : *to;
    *from = *from > *to ? *to : *from;
    *from = *from < 1 ? 1 : *from;
    if (*to - *from >= IO_PAGE_ROWS_MAX)
        *from = *to - IO_PAGE_ROWS_MAX + 1;
}

void io_page_history(struct io_page_ask *ask, const struct io_page_request *request)
{
    struct ampd_model_info info;
    char key[IO_PAGE_KEY_MAX];
    uint64_t from, to, pixels;
    uint32_t model;
    if (!io_page_model(ask, request->argument_cb(request->arg, "model"), &model, &info) ||
        !io_page_number(ask, request, "from", 1, &from) || !io_page_number(ask, request, "to", INT64_MAX, &to) ||
        !io_page_number(ask, request, "pixels", PIXELS_DEFAULT, &pixels))
        return;
    pixels = pixels < 1 ? 1 : pixels > IO_THIN_PIXELS_MAX ? IO_THIN_PIXELS_MAX : pixels;
    bound(&from, &to, info.decided_step);
    (void)snprintf(key, sizeof key, "history %s %" PRId64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64,
                   info.spec->name, info.created_us, from, to, pixels, info.epoch, ask->page->news);
    if (io_page_remembered(ask, key))
        return;
    struct io_page_read *read = io_page_read_of(ask, sizeof(struct history), model, &info);
    if (read == NULL)
        return;
    struct history *history = AMP_CONTAINER(read, struct history, read);
    history->from = from;
    history->to = to;
    history->pixels = (uint32_t)pixels;
    history->decided = info.decided_step;
    history->epoch = info.epoch;
    history->created_ms = (uint64_t)info.created_us / 1000;
    read->run_cb = history_run;
    read->free_cb = history_free;
    memcpy(read->key, key, sizeof read->key);
    io_page_read_begin(read);
}
