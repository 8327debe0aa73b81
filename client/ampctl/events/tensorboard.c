/*
 * ampctl tensorboard: the history of a model as event files for TensorBoard, also while it is trained.
 *
 * What a run writes goes on behind what the folder has. A round begins at the newest step in the folder that still
 * stands: where a model was rolled back meanwhile, that is one before the newest, and TensorBoard is told to drop those
 * behind it. Each page of rows begins with the step that was written last, or, where that is gone, with the first one
 * behind it that is left: a newer epoch there shows that a rollback may have come between. How far epochs went back is
 * asked of their own rows, which limits of the history never remove.
 */
#include "base/log.h"
#include "client/ampctl/ask.h"
#include "client/ampctl/events/tfevents.h"
#include "client/ampctl/events/tfevents_folder.h"
#include "client/ampctl/parse.h"
#include "client/io/methods.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

enum { KEY_LOGDIR = 256, KEY_FOLLOW };

/* How often --follow looks for new steps. */
#define FOLLOW_MS 1000
/* A server that is not there for so long is not waited for: a failover takes seconds, a restart less than a minute. */
#define FOLLOW_PATIENCE_MS 120000

/* Rows of a page become one write: each is a few hundred bytes, and an explanation. */
#define RECORDS_MAX ((size_t)AMPD_MSG_ROWS_MAX * 4096)

struct writing {
    struct ampctl *ctl;
    char model[128];
    const char *logdir;
    bool follow;
    struct ampctl_tffolder folder;
    struct amp_buf records;
    size_t head; /* of the records: the beginning of a file, which is not made for it alone */
    bool done;   /* the model has no further steps */
    uint64_t written;
};

/* Parts of a step's time. */
#define TIMES 5

/* Of whole microseconds. */
static double seconds_of(int64_t us)
{
    return (double)us / 1e6;
}

static double now(void)
{
    struct timespec at = {0};
    (void)timespec_get(&at, TIME_UTC);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static int failed(const struct writing *x, const struct amp_error *error)
{
    (void)ampctl_print(stderr, "ampctl: %s: %s", x->ctl->verb, error->text);
    return AMPCTL_EXIT_FAILED;
}

static int no_memory(const struct writing *x)
{
    (void)ampctl_print(stderr, "ampctl: %s: there is no memory for a page of events", x->ctl->verb);
    return AMPCTL_EXIT_FAILED;
}

/* ---- rows as events ---- */

/* What happened in a step that was skipped; "": it does not stand any more. An exit code. */
static int explain(struct writing *x, const struct ampd_msg_scale_history_row *row, char text[1024])
{
    struct ampd_msg_explain_step_request request = {.has_epoch = true, .epoch = row->epoch, .step = row->step};
    struct ampd_msg_explain_step_response answer;
    memcpy(request.model, x->model, sizeof request.model);
    int code = ampctl_ask_explain_step(x->ctl, &request, &answer);
    if (code == 0) {
        (void)snprintf(text, 1024, "%s", answer.explanation);
        ampd_msg_explain_step_response_free(&answer);
    }
    return code;
}

#define METRICS_MAX  (sizeof((struct ampd_msg_scale_history_row *)0)->metrics / sizeof(struct ampd_msg_metric))
#define METRIC_TAG   "ampd/metrics/"
#define TAG_SIZE_MAX (sizeof METRIC_TAG + sizeof((struct ampd_msg_metric *)0)->name)

/* What workers have told, of which TensorBoard draws what is not finite as such. How many values. */
static size_t put_told(const struct ampd_msg_scale_history_row *row, char tags[METRICS_MAX][TAG_SIZE_MAX],
                       struct ampctl_tfvalue *values)
{
    size_t count = 0;
    if (row->has_loss)
        values[count++] = (struct ampctl_tfvalue){.tag = "ampd/loss", .number = row->loss};
    for (size_t i = 0; i < row->metrics_count; i++) {
        (void)snprintf(tags[i], TAG_SIZE_MAX, METRIC_TAG "%s", row->metrics[i].name);
        values[count++] = (struct ampctl_tfvalue){.tag = tags[i], .number = row->metrics[i].value};
    }
    return count;
}

/* Where the time of a step went, in seconds. Returns how many values these are. */
static size_t put_times(const struct ampd_msg_scale_history_row *row, struct ampctl_tfvalue *values)
{
    if (!row->has_times)
        return 0;
    const struct ampd_msg_step_times *t = &row->times;
    const struct ampctl_tfvalue all[TIMES] = {
        {.tag = "ampd/time/apply", .number = (float)seconds_of((int64_t)t->apply_us)},
        {.tag = "ampd/time/pull", .number = (float)seconds_of((int64_t)t->pull_us)},
        {.tag = "ampd/time/wait", .number = (float)seconds_of((int64_t)t->wait_us)},
        {.tag = "ampd/time/push", .number = (float)seconds_of((int64_t)t->push_us)},
        {.tag = "ampd/time/vote", .number = (float)seconds_of((int64_t)t->vote_us)},
    };
    memcpy(values, all, sizeof all);
    return TIMES;
}

/* The scalars of a row, by tag; a value that a row of its kind does not have is left out, for 0 would be drawn. */
static int put_row(struct writing *x, const struct ampd_msg_scale_history_row *row)
{
    bool applied = row->verdict == AMPD_MSG_VERDICT_APPLIED;
    char text[1024] = "";
    char tags[METRICS_MAX][TAG_SIZE_MAX];
    struct ampctl_tfvalue values[8 + METRICS_MAX + TIMES];
    size_t count = 0;
    values[count++] = (struct ampctl_tfvalue){.tag = AMPCTL_TFEVENTS_EPOCH, .number = (float)row->epoch};
    values[count++] = (struct ampctl_tfvalue){.tag = "ampd/scale", .number = row->old_scale};
    values[count++] = (struct ampctl_tfvalue){.tag = "ampd/skipped", .number = applied ? 0 : 1};
    if (applied) {
        values[count++] = (struct ampctl_tfvalue){.tag = "ampd/norm", .number = (float)row->norm};
        values[count++] = (struct ampctl_tfvalue){.tag = "ampd/clip", .number = row->clip_coefficient};
        values[count++] = (struct ampctl_tfvalue){.tag = "ampd/learning_rate", .number = (float)row->learning_rate};
    } else {
        int code = explain(x, row, text);
        if (code != 0)
            return code;
        values[count++] = (struct ampctl_tfvalue){.tag = "ampd/explanation", .text = text};
    }
    count += put_told(row, tags, values + count);
    count += put_times(row, values + count);
    if (ampctl_tfevents_values(&x->records, seconds_of(row->decide_time.us), row->step, values, count) != 0)
        return no_memory(x);
    x->folder.epoch = row->epoch;
    x->folder.step = row->step;
    x->written++;
    return 0;
}

/* What has been put together goes to the file. */
static int flush(struct writing *x)
{
    struct amp_error error = {0};
    if (x->records.size <= x->head)
        return 0;
    x->head = 0;
    int rc = ampctl_tffolder_write(&x->folder, &x->records, &error);
    amp_buf_consume(&x->records, x->records.size);
    return rc != 0 ? failed(x, &error) : 0;
}

/* ---- pages ---- */

/* Rows of a history; none, where the first step asked for has not been decided. */
static int ask_rows(struct writing *x, struct ampd_msg_list_scale_history_request *request,
                    struct ampd_msg_list_scale_history_response *page)
{
    struct amp_buf body;
    struct ampclient_reply reply;
    struct amp_error error = {0};
    bool told = !x->ctl->quiet;
    memcpy(request->model, x->model, sizeof request->model);
    *page = (struct ampd_msg_list_scale_history_response){0};
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    x->ctl->quiet = true;
    int code = ampctl_ask(x->ctl, AMPCLIENT_SCALE_SERVICE "ListScaleHistory",
                          ampd_msg_list_scale_history_request_encode(request, &body), &body, &reply);
    x->ctl->quiet = !told;
    amp_buf_close(&body);
    if (code == 0 && ampd_msg_list_scale_history_response_decode(page, reply.body.data, reply.body.size, &error) != 0)
        code = ampctl_bad_answer(&error);
    else if (reply.code == AMP_ERANGE)
        code = 0;
    else if (code != 0 && told)
        ampctl_print_failure(x->ctl, x->ctl->endpoints, &reply);
    ampclient_reply_close(&reply);
    return code;
}

/* Takes into account how far an epoch went back. False: the folder knows of it and of those before it. */
static bool take_epoch(const struct writing *x, const struct ampd_msg_scale_history_row *row, uint64_t *epoch,
                       uint64_t *step)
{
    if (row->epoch <= x->folder.epoch)
        return false;
    if (row->kind == AMPD_MSG_HISTORY_KIND_EPOCH) {
        *epoch = row->epoch > *epoch ? row->epoch : *epoch;
        *step = row->base_step < *step ? row->base_step : *step;
    }
    return true;
}

/* The newest step in the folder that stands: no epoch up to *epoch, the newest one, went back behind it. */
static int find_standing(struct writing *x, uint64_t *epoch, uint64_t *step)
{
    struct ampd_msg_list_scale_history_request request = {.include_superseded = true,
                                                          .newest_first = true,
                                                          .verdicts = {AMPD_MSG_VERDICT_UNSPECIFIED},
                                                          .verdicts_count = 1,
                                                          .page_size = AMPD_MSG_ROWS_MAX};
    struct ampd_msg_list_scale_history_response page;
    bool newer = true;
    int code = 0;
    *epoch = x->folder.epoch;
    *step = x->folder.step;
    do {
        code = ask_rows(x, &request, &page);
        for (size_t i = 0; code == 0 && newer && i < page.rows.count; i++)
            newer = take_epoch(x, &page.rows.items[i], epoch, step);
        memcpy(request.page_token, page.next_page_token, sizeof request.page_token);
        ampd_msg_list_scale_history_response_free(&page);
    } while (code == 0 && newer && request.page_token[0] != 0);
    return code;
}

/* Goes back to the newest step that stands. *moved: the folder has come to an earlier step or to a newer epoch. */
static int go_back(struct writing *x, bool *moved)
{
    uint64_t epoch, step;
    int code = find_standing(x, &epoch, &step);
    *moved = code == 0 && (epoch != x->folder.epoch || step != x->folder.step);
    if (!*moved)
        return code;
    if (step != x->folder.step && ampctl_tfevents_restart(&x->records, now(), step + 1) != 0)
        return no_memory(x);
    x->folder.epoch = epoch;
    x->folder.step = step;
    return flush(x);
}

/* One page of rows behind the newest step in the folder; *more: there may be another one. */
static int write_page(struct writing *x, bool *more)
{
    uint64_t last = x->folder.step;
    struct ampd_msg_list_scale_history_request request = {
        .from_step = last,
        .verdicts = {AMPD_MSG_VERDICT_APPLIED, AMPD_MSG_VERDICT_SKIPPED_OVERFLOW, AMPD_MSG_VERDICT_SKIPPED_EMPTY},
        .verdicts_count = 3,
        .page_size = AMPD_MSG_ROWS_MAX};
    struct ampd_msg_list_scale_history_response page;
    int code = ask_rows(x, &request, &page);
    if (code != 0)
        return code;
    const struct ampd_msg_scale_history_row *rows = page.rows.items;
    /* If an epoch went back behind the newest step, the first row from there on is of that epoch or a newer one. */
    bool stands = last == 0 || (page.rows.count > 0 && rows[0].epoch <= x->folder.epoch);
    for (size_t i = 0; stands && code == 0 && i < page.rows.count; i++)
        if (rows[i].step > last)
            code = put_row(x, &rows[i]);
    *more = page.next_page_token[0] != 0;
    ampd_msg_list_scale_history_response_free(&page);
    /* Also the rows before the one that failed: they need not be asked for again. */
    int written = flush(x);
    code = written != 0 ? written : code;
    return code == 0 && !stands ? go_back(x, more) : code;
}

static int write_all(struct writing *x)
{
    bool more = true;
    int code = 0;
    while (code == 0 && more)
        code = write_page(x, &more);
    return code;
}

/* ---- the verb ---- */

/* Whose history it is: a model that was deleted and made again is another one. */
static void name_whose(const struct writing *x, const struct ampd_msg_get_status_response *status, char *model,
                       size_t size)
{
    char at[32];
    amp_log_time(status->models.count > 0 ? status->models.items[0].create_time.us : 0, at);
    (void)snprintf(model, size, "%s, created %s", x->model, at);
}

static int check_whose(const struct writing *x, const char *model)
{
    if (strcmp(x->folder.model, model) == 0)
        return 0;
    (void)ampctl_print(stderr, "ampctl: %s: %s has the events of %s, not of %s; give another folder", x->ctl->verb,
                       x->logdir, x->folder.model, model);
    return AMPCTL_EXIT_FAILED;
}

static int begin(struct writing *x)
{
    struct ampd_msg_get_status_response status;
    struct amp_error error = {0};
    char model[sizeof x->folder.model];
    int code = ampctl_get_status(x->ctl, x->model, &status);
    if (code != 0)
        return code;
    name_whose(x, &status, model, sizeof model);
    ampd_msg_get_status_response_free(&status);
    if (ampctl_tffolder_open(&x->folder, x->logdir, &error) != 0)
        return failed(x, &error);
    bool is_new = x->folder.model[0] == 0;
    if (is_new)
        memcpy(x->folder.model, model, sizeof model);
    code = check_whose(x, model);
    if (code != 0)
        return code;
    const struct ampctl_tfvalue whose = {.tag = AMPCTL_TFEVENTS_MODEL, .text = model};
    if (ampctl_tfevents_begin(&x->records, now()) != 0)
        return no_memory(x);
    x->head = x->records.size;
    if (is_new && ampctl_tfevents_values(&x->records, now(), 0, &whose, 1) != 0)
        return no_memory(x);
    return flush(x);
}

static bool is_passing(int code)
{
    int status = code - AMPCTL_EXIT_RPC;
    return status == ARPC_STATUS_UNAVAILABLE || status == ARPC_STATUS_DEADLINE_EXCEEDED;
}

/* Whether the model is done, so that no step follows, and is the same still. */
static int look_for_end(struct writing *x)
{
    struct ampd_msg_get_status_response status;
    char model[sizeof x->folder.model];
    int code = ampctl_get_status(x->ctl, x->model, &status);
    if (code != 0)
        return code;
    x->done = status.models.count > 0 && status.models.items[0].state == AMPD_MSG_MODEL_STATE_DONE;
    name_whose(x, &status, model, sizeof model);
    ampd_msg_get_status_response_free(&status);
    return check_whose(x, model);
}

static int follow(struct writing *x)
{
    const struct timespec pause = {.tv_sec = FOLLOW_MS / 1000, .tv_nsec = FOLLOW_MS % 1000 * 1000000L};
    uint64_t away_since_ms = 0; /* 0: it is there */
    int code = 0;
    while (!x->done) {
        (void)nanosleep(&pause, NULL);
        const uint64_t now_ms = ampclient_now_ms();
        const bool quiet = away_since_ms > 0; /* a server that is away is told of once */
        x->ctl->quiet = quiet;
        x->ctl->failure.text[0] = 0;
        code = look_for_end(x); /* first: a step that comes before the end is then written */
        if (code == 0)
            code = write_all(x);
        x->ctl->quiet = false;
        if (code == 0)
            away_since_ms = 0;
        else if (away_since_ms == 0)
            away_since_ms = now_ms;
        if (code != 0 && (!is_passing(code) || ampclient_now_ms() - away_since_ms >= FOLLOW_PATIENCE_MS)) {
            if (quiet && x->ctl->failure.text[0] != 0)
                (void)ampctl_print(stderr, "ampctl: %s: %s", x->ctl->verb, x->ctl->failure.text);
            return code;
        }
        x->done = x->done && code == 0;
    }
    return 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct writing *x = state->input;
    switch (key) {
    case KEY_LOGDIR:
        x->logdir = arg;
        return 0;
    case KEY_FOLLOW:
        x->follow = true;
        return 0;
    case ARGP_KEY_END:
        if (x->logdir == NULL)
            argp_error(state, "--logdir is missing; name the folder that TensorBoard is given");
        return 0;
    default:
        return ampctl_one_model(key, arg, state, x->model);
    }
}

static const struct argp_option tensorboard_options[] = {
    {"logdir", KEY_LOGDIR, "FOLDER", 0, "Folder for the event files; created with its parents", 0},
    {"follow", KEY_FOLLOW, NULL, 0, "Continue with each step that is decided, until the model is done", 0},
    {0},
};

static int run_tensorboard(struct ampctl *ctl, int argc, char **argv)
{
    static const struct ampctl_column columns[] = {
        {"model", "MODEL", false}, {"written", "WRITTEN", true}, {"step", "STEP", true}, {NULL, NULL, false}};
    struct writing x = {.ctl = ctl, .folder = {.lock = -1, .file = -1}};
    ampctl_parse(ctl, &ampctl_tensorboard_verb, &x, argc, argv);
    amp_buf_init(&x.records, RECORDS_MAX);
    int code = begin(&x);
    if (code == 0)
        code = write_all(&x);
    if (code == 0 && x.follow)
        code = follow(&x);
    if (code == 0)
        code = ampctl_print_one(ctl, columns,
                                json_pack("{s:s, s:I, s:I}", "model", x.model, "written", (json_int_t)x.written, "step",
                                          (json_int_t)x.folder.step));
    ampctl_tffolder_close(&x.folder);
    amp_buf_close(&x.records);
    return code;
}

const struct ampctl_verb ampctl_tensorboard_verb = {
    .name = "tensorboard",
    .arguments = "MODEL",
    .summary = "the history as event files for TensorBoard",
    .doc = "Writes the history as event files for TensorBoard. Run again, it continues after what the folder has.",
    .examples = "ampctl tensorboard digits --logdir runs/digits\n"
                "ampctl tensorboard digits --logdir runs/digits --follow",
    .options = tensorboard_options,
    .parser = parse,
    .run = run_tensorboard,
};
