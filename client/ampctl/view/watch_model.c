/* ampctl watch: one line a step, as they are decided, until it is interrupted or the server ends. */
#include "base/thread.h"
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/view/progress.h"
#include "client/ampctl/rows.h"
#include "client/io/methods.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Without a step for so long somebody may be waited for: as long as the server takes to say who it is. */
#define QUIET_S 10
/* Of the question whom the model waits for. */
#define ASK_TIMEOUT_MS 2000

struct watch {
    struct ampctl *ctl;
    struct ampd_msg_watch_steps_request request;
    struct ampctl_list csv;
    struct ampctl_progress progress;
    int code;
    bool unread; /* the reader of the pipe has gone */
    /* For the thread that says when nothing comes. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t messages;
    bool ended;
};

enum { KEY_FROM = 256 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct watch *watch = state->input;
    switch (key) {
    case KEY_FROM:
        watch->request.has_from_step = true;
        watch->request.from_step = ampctl_number(state, "--from", arg, AMPCTL_NUMBER_MAX);
        return 0;
    default:
        return ampctl_one_model(key, arg, state, watch->request.model);
    }
}

/* One JSON object a line, with the rows of its overflows. */
static int print_object(const struct ampd_msg_watch_steps_response *message)
{
    json_t *row = ampctl_history_row(&message->row), *overflows = json_array();
    int rc = row != NULL && overflows != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < message->overflows.count; i++)
        rc = json_array_append_new(overflows, ampctl_overflow_row(&message->overflows.items[i]));
    if (rc == 0)
        rc = json_object_set(row, "overflows", overflows);
    if (rc == 0)
        rc = ampctl_print_json(stdout, row);
    json_decref(row);
    json_decref(overflows);
    return rc;
}

/* At once, so that a watch of a model that stands still does not look as one that hangs. */
static void print_heading(const struct watch *watch)
{
    (void)ampctl_print(stdout, "%6s %8s %-16s %12s %12s %10s %10s %10s%s", "EPOCH", "STEP", "VERDICT", "SCALE",
                       "NEW SCALE", "NORM", "INF+NAN", "LOSS",
                       watch->progress.last_step > 0 ? "   DONE       LEFT" : "");
    (void)fflush(stdout);
}

/* A stream has no last row to measure widths by, so the columns are fixed. */
static int print_line(struct watch *watch, const struct ampd_msg_watch_steps_response *message)
{
    json_t *row = ampctl_history_row(&message->row);
    if (row == NULL)
        return -1;
    bool ends = watch->progress.last_step > 0;
    char epoch[32], step[32], verdict[32], old_scale[32], scale[32], norm[32], loss[32];
    char done[16], left[24], rest[48] = "", rate[72], set[96] = "";
    char *metrics = ampctl_pairs(json_object_get(row, "metrics"), false);
    ampctl_progress_text(&watch->progress, done, left);
    if (ends)
        (void)snprintf(rest, sizeof rest, " %6s %10s", done, left);
    /* What has no column. */
    if (message->row.kind == AMPD_MSG_HISTORY_KIND_LEARNING_RATE_SET)
        (void)snprintf(set, sizeof set, " learning rate %s", ampctl_rate(row, rate));
    else if (message->row.kind == AMPD_MSG_HISTORY_KIND_EVICTED)
        (void)snprintf(set, sizeof set, " rank %" PRIu32, message->row.rank);
    const json_t *kind = json_object_get(row, "verdict");
    const struct ampd_msg_overflow_totals *totals = &message->row.overflow_totals;
    (void)ampctl_print(
        stdout, "%6s %8s %-16s %12s %12s %10s %10llu %10s%s%s%s%s", ampctl_cell(json_object_get(row, "epoch"), epoch),
        ampctl_cell(json_object_get(row, "step"), step),
        ampctl_cell(json_is_null(kind) ? json_object_get(row, "kind") : kind, verdict),
        ampctl_cell(json_object_get(row, "old_scale"), old_scale), ampctl_cell(json_object_get(row, "scale"), scale),
        ampctl_measured(json_object_get(row, "norm"), norm),
        (unsigned long long)(totals->inf_count + totals->nan_count),
        ampctl_measured(json_object_get(row, "loss"), loss), rest, set, metrics != NULL && metrics[0] != 0 ? " " : "",
        metrics != NULL ? metrics : "");
    free(metrics);
    json_decref(row);
    return 0;
}

static int print_csv(struct watch *watch, const struct ampd_msg_watch_steps_response *message)
{
    json_t *rows = json_pack("[o]", ampctl_history_row(&message->row));
    watch->csv = (struct ampctl_list){
        .out = stdout, .csv = true, .columns = ampctl_history_columns, .opened = watch->csv.opened};
    int rc = rows != NULL ? ampctl_list_page(&watch->csv, rows) : -1;
    json_decref(rows);
    return rc;
}

/* ---- when nothing comes ---- */

static struct timespec quiet_until(void)
{
    struct timespec at = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += QUIET_S;
    return at;
}

/* By a connection of its own: that of the watch is another thread's. */
static void say_wait(const struct watch *watch)
{
    struct ampctl own = *watch->ctl;
    struct ampd_msg_get_status_response status;
    own.link = NULL;
    own.quiet = true;
    own.timeout_ms = ASK_TIMEOUT_MS;
    if (ampctl_get_status(&own, watch->request.model, &status) == 0) {
        const char *who = status.models.count > 0 ? status.models.items[0].waiting_for : "";
        (void)ampctl_print(stderr, "ampctl: watch: no step has been decided for %d s%s%s", QUIET_S,
                           who[0] != 0 ? "; the model waits for " : "", who);
        ampd_msg_get_status_response_free(&status);
    }
    ampctl_close(&own);
}

/* Says once in each wait that there is one. */
static void *mind_waits(void *arg)
{
    struct watch *watch = arg;
    uint64_t seen = 0;
    bool told = false;
    struct timespec until = quiet_until();
    (void)pthread_mutex_lock(&watch->lock);
    while (!watch->ended) {
        int rc = pthread_cond_timedwait(&watch->changed, &watch->lock, &until);
        if (watch->messages != seen || rc == ETIMEDOUT)
            until = quiet_until();
        if (watch->messages != seen) {
            seen = watch->messages;
            told = false;
        } else if (rc == ETIMEDOUT && !told) {
            told = true;
            (void)pthread_mutex_unlock(&watch->lock);
            say_wait(watch);
            (void)pthread_mutex_lock(&watch->lock);
        }
    }
    (void)pthread_mutex_unlock(&watch->lock);
    return NULL;
}

static void note(struct watch *watch, bool ended)
{
    (void)pthread_mutex_lock(&watch->lock);
    watch->messages++;
    watch->ended = ended;
    (void)pthread_cond_signal(&watch->changed);
    (void)pthread_mutex_unlock(&watch->lock);
}

/* On the client's thread, while the main thread waits for the end of the call. */
static int on_message(void *arg, const uint8_t *data, size_t size)
{
    struct watch *watch = arg;
    struct ampd_msg_watch_steps_response message;
    struct amp_error error = {0};
    if (ampd_msg_watch_steps_response_decode(&message, data, size, &error) != 0) {
        watch->code = ampctl_bad_answer(&error);
        return -1;
    }
    int rc = 0;
    note(watch, false);
    if (message.has_row && message.row.kind == AMPD_MSG_HISTORY_KIND_STEP)
        ampctl_progress_add(&watch->progress, message.row.step, message.row.decide_time.us);
    if (message.has_row)
        rc = watch->ctl->json  ? print_object(&message)
             : watch->ctl->csv ? print_csv(watch, &message)
                               : print_line(watch, &message);
    ampd_msg_watch_steps_response_free(&message);
    /* A reader of the pipe sees each step at once. */
    if (rc == 0 && fflush(stdout) == 0)
        return 0;
    watch->unread = errno == EPIPE;
    watch->code = AMPCTL_EXIT_FAILED;
    return -1;
}

/* The last step of the model, if it has one; refuses steps behind it, for which the stream would wait in vain. */
static int find_end(struct watch *watch)
{
    struct ampd_msg_get_model_response about;
    int code = ampctl_get_model(watch->ctl, watch->request.model, &about);
    if (code != 0)
        return code;
    watch->progress.last_step = about.spec.max_steps;
    ampd_msg_get_model_response_free(&about);
    if (watch->progress.last_step == 0 || watch->request.from_step <= watch->progress.last_step)
        return 0;
    (void)ampctl_print(stderr, "ampctl: watch: --from: there will be no step %" PRIu64 "; %s ends with step %" PRIu64,
                       watch->request.from_step, watch->request.model, watch->progress.last_step);
    return AMPCTL_EXIT_RPC + ARPC_STATUS_OUT_OF_RANGE; /* as history */
}

static int run(struct watch *watch)
{
    struct amp_buf body;
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    int code = AMPCTL_EXIT_FAILED;
    if (ampd_msg_watch_steps_request_encode(&watch->request, &body) == 0) {
        /* Without a deadline: the user ends it; a lost server is noticed by the connection's own pings. */
        const struct ampclient_request request = {.path = AMPCLIENT_SCALE_SERVICE "WatchSteps",
                                                  .body = &body,
                                                  .idempotent = true,
                                                  .message_cb = on_message,
                                                  .arg = watch};
        struct ampclient_reply reply;
        code = ampctl_call(watch->ctl, &request, &reply);
        ampclient_reply_close(&reply);
    }
    amp_buf_close(&body);
    return watch->code != 0 ? watch->code : code;
}

/* The stream, with a thread that minds the waits; without it where there is none to be had. */
static int run_minded(struct watch *watch)
{
    pthread_t thread;
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&watch->lock, NULL);
    (void)pthread_cond_init(&watch->changed, &attributes);
    bool minded = amp_thread_start(&thread, NULL, mind_waits, watch) == 0;
    int code = run(watch);
    note(watch, true);
    if (minded)
        (void)pthread_join(thread, NULL);
    (void)pthread_cond_destroy(&watch->changed);
    (void)pthread_mutex_destroy(&watch->lock);
    (void)pthread_condattr_destroy(&attributes);
    return code;
}

static const struct argp_option watch_options[] = {
    {"from", KEY_FROM, "STEP", 0, "First show the stored steps from this one on", 0},
    {0},
};

static int run_watch(struct ampctl *ctl, int argc, char **argv)
{
    struct watch watch = {.ctl = ctl};
    ampctl_parse(ctl, &ampctl_watch_verb, &watch, argc, argv);
    int code = find_end(&watch);
    if (code == 0 && !ctl->json && !ctl->csv)
        print_heading(&watch);
    if (code == 0)
        code = run_minded(&watch);
    if (watch.unread)
        (void)raise(SIGPIPE); /* the thread that has written to it takes no signal */
    return code;
}

const struct ampctl_verb ampctl_watch_verb = {
    .name = "watch",
    .arguments = "MODEL",
    .summary = "steps as they are decided",
    .doc = "Shows steps as they are decided, and how long the rest will take where the model has a last step: one line "
           "each (with -o json one object a line). "
           "Ends when the model is done.",
    .examples = "ampctl watch digits\n"
                "ampctl -o json watch digits --from 1",
    .options = watch_options,
    .parser = parse,
    .run = run_watch,
};
