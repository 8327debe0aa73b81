/* ampctl watch: one line a step, as they are decided, until it is interrupted or the server ends. */
#include "client/ampctl/ctl.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/progress.h"
#include "client/ampctl/rows.h"
#include "client/io/methods.h"

#include <stdlib.h>
#include <string.h>

struct watch {
    struct ampctl *ctl;
    struct ampd_msg_watch_steps_request request;
    bool titled;
    struct ampctl_list csv;
    struct ampctl_progress progress;
    int code;
};

enum { KEY_FROM = 256 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct watch *watch = state->input;
    switch (key) {
    case KEY_FROM:
        watch->request.has_from_step = true;
        watch->request.from_step = ampctl_number(state, "--from", arg);
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

/* A stream has no last row to measure widths by, so the columns are fixed. */
static int print_line(struct watch *watch, const struct ampd_msg_watch_steps_response *message)
{
    json_t *row = ampctl_history_row(&message->row);
    if (row == NULL)
        return -1;
    bool ends = watch->progress.last_step > 0;
    if (!watch->titled)
        (void)ampctl_print(stdout, "%6s %8s %-16s %12s %12s %10s %10s %10s%s", "EPOCH", "STEP", "VERDICT", "SCALE",
                           "NEW SCALE", "NORM", "INF+NAN", "LOSS", ends ? "   DONE       LEFT" : "");
    watch->titled = true;
    char epoch[32], step[32], verdict[32], old_scale[32], scale[32], norm[32], loss[32];
    char done[16], left[24], rest[48] = "";
    char *metrics = ampctl_pairs(json_object_get(row, "metrics"), false);
    ampctl_progress_text(&watch->progress, done, left);
    if (ends)
        (void)snprintf(rest, sizeof rest, " %6s %10s", done, left);
    const json_t *kind = json_object_get(row, "verdict");
    const struct ampd_msg_overflow_totals *totals = &message->row.overflow_totals;
    (void)ampctl_print(
        stdout, "%6s %8s %-16s %12s %12s %10s %10llu %10s%s%s%s", ampctl_cell(json_object_get(row, "epoch"), epoch),
        ampctl_cell(json_object_get(row, "step"), step),
        ampctl_cell(json_is_null(kind) ? json_object_get(row, "kind") : kind, verdict),
        ampctl_cell(json_object_get(row, "old_scale"), old_scale), ampctl_cell(json_object_get(row, "scale"), scale),
        ampctl_cell(json_object_get(row, "norm"), norm), (unsigned long long)(totals->inf_count + totals->nan_count),
        ampctl_cell(json_object_get(row, "loss"), loss), rest, metrics != NULL && metrics[0] != 0 ? " " : "",
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
    watch->code = AMPCTL_EXIT_FAILED;
    return -1;
}

/* The last step of the model, if it has one. */
static int find_end(struct watch *watch)
{
    struct ampd_msg_get_model_response about;
    int code = ampctl_get_model(watch->ctl, watch->request.model, &about);
    if (code != 0)
        return code;
    watch->progress.last_step = about.spec.max_steps;
    ampd_msg_get_model_response_free(&about);
    return 0;
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

static const struct argp_option watch_options[] = {
    {"from", KEY_FROM, "STEP", 0, "First show the stored steps from this one on", 0},
    {0},
};

static int run_watch(struct ampctl *ctl, int argc, char **argv)
{
    struct watch watch = {.ctl = ctl};
    ampctl_parse(ctl, &ampctl_watch_verb, &watch, argc, argv);
    int code = ampctl_open(ctl);
    if (code != 0)
        return code;
    /* How far it is has room in a table alone; other forms have the step and its time. */
    code = ctl->json || ctl->csv ? 0 : find_end(&watch);
    if (code == 0)
        code = run(&watch);
    ampctl_close(ctl);
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
