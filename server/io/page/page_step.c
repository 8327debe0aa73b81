/*
 * /api/step?model=NAME&step=N[&epoch=E]: what ExplainStep answers about a step, and what each loss-scale policy would
 * have done. The steps before it are replayed through every policy, as by ReplayPolicy, with the numbers of the model's
 * own policy and else their defaults. Of a long history only the newest REPLAY_ROWS steps are replayed; each policy
 * then begins with the scale that the model had there.
 */
#include "amp/scaler.h"
#include "server/io/base/server.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/pages.h"
#include "server/io/history/explain.h"
#include "server/io/history/replay_policy.h"
#include "server/io/page/page_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Several times the default growth_interval, after which the scale of every policy has settled. */
#define REPLAY_ROWS 20000
#define POLICIES    AMP_SCALER_PADDLE

struct policy {
    struct io_replay machine;
    struct ampd_msg_replayed_step last;
    float before;       /* the policy's scale before the step that is asked about */
    uint64_t uncertain; /* replayed steps whose verdict might have been another one */
};

struct step {
    struct io_page_read read;
    uint64_t epoch, step;
    struct ampd_step_row row;
    bool found;                     /* `row` has been read: the replay goes on */
    uint64_t first;                 /* the earliest step from which the replay may begin */
    struct ampd_history_key last;   /* key of the last row that was replayed */
    uint64_t from;                  /* the first step of the replay; 0: it has not begun */
    uint32_t rows;                  /* rows that the present slice has read */
    bool goes_on;                   /* the replay begins with the state `before`, not at the model's beginning */
    struct amp_scaler_state before; /* if goes_on: the model's state before the first step of the replay */
    struct ampd_step_row replayed;
    struct policy policies[POLICIES]; /* indexed by enum amp_scaler_policy, less 1 */
};

/* ---- the replay ---- */

/*
 * Each policy begins with its first state if the replay begins where the model began, and else with the scale that the
 * model had. (The growth counter is then that of the model's own policy, which is as good a guess as zero for others.)
 */
static void begin_policies(struct step *step, const struct ampd_history_point *first)
{
    step->from = first->key.step;
    for (uint32_t i = 0; i < POLICIES; i++) {
        struct amp_scaler_config config = step->read.spec->scaler;
        config.policy = (enum amp_scaler_policy)(i + 1);
        if (config.policy == AMP_SCALER_NONE)
            config = (struct amp_scaler_config){.policy = AMP_SCALER_NONE};
        amp_scaler_config_defaults(&config);
        io_replay_init(&step->policies[i].machine, &config);
        struct amp_scaler_state *state = &step->policies[i].machine.state;
        if (step->goes_on && config.policy != AMP_SCALER_NONE) {
            state->scale = step->before.scale;
            state->growth_tracker = step->before.growth_tracker;
        }
        if (step->goes_on && config.policy == step->read.spec->scaler.policy)
            state->hysteresis_left = step->before.hysteresis_left;
    }
    step->replayed = (struct ampd_step_row){.kind = AMPD_ROW_STEP};
}

static int take_point(void *arg, const struct ampd_history_point *point)
{
    struct step *step = arg;
    step->rows++;
    step->last = point->key;
    if (point->kind != AMPD_ROW_STEP)
        return 0;
    if (step->from == 0)
        begin_policies(step, point);
    step->replayed.epoch = point->key.epoch;
    step->replayed.step = point->key.step;
    step->replayed.verdict = point->verdict;
    step->replayed.scale = point->scale;
    step->replayed.after.scaler.scale = point->after_scale;
    for (uint32_t i = 0; i < POLICIES; i++) {
        struct policy *policy = &step->policies[i];
        policy->before = policy->machine.state.scale;
        io_replay_step(&policy->machine, &step->replayed, &policy->last);
        policy->uncertain += policy->last.uncertain;
    }
    return 0;
}

/* Reads the row, and the state before the replay's first step: from the first row if the rows before were removed. */
static bool find(struct step *step, struct ampd_store *reader)
{
    struct io_history_beginning beginning;
    const struct ampd_model_spec *spec = step->read.spec;
    if (io_explain_read(reader, spec, step->epoch, step->step, &step->row, &step->read.error) != 0)
        return false;
    if (io_history_find_beginning(reader, spec->name, 0, &beginning, &step->read.error) != 0)
        return false;
    step->first = step->step > REPLAY_ROWS ? step->step - REPLAY_ROWS + 1 : 1;
    if (beginning.gone && step->first <= beginning.step)
        step->first = beginning.step + 1;
    step->goes_on = step->first > 1 && io_explain_read(reader, spec, 0, step->first - 1, &step->replayed, NULL) == 0;
    step->before = step->replayed.after.scaler;
    step->found = true;
    return true;
}

static void step_run(struct io_page_read *read)
{
    struct step *step = AMP_CONTAINER(read, struct step, read);
    struct ampd_store *reader = read->page->server->data.reader;
    if (!step->found && !find(step, reader))
        return;
    struct ampd_history_key from = step->last;
    from.sequence += from.epoch != 0;
    step->rows = 0;
    if (!step->row.superseded && ampd_store_page_points(reader, read->spec->name, &from, step->first, step->step,
                                                        IO_PAGE_SLICE_ROWS, step, &read->error, take_point) == 0)
        read->more = step->rows == IO_PAGE_SLICE_ROWS;
}

/* ---- the answer ---- */

/* Writes the parts of the step's time in seconds, as in the curves of the history. */
static void write_times(const struct ampd_msg_step_times *times, struct io_json *json)
{
    io_json_open(json, "times", '{');
    io_json_number(json, "apply", (double)times->apply_us / 1e6);
    io_json_number(json, "pull", (double)times->pull_us / 1e6);
    io_json_number(json, "wait", (double)times->wait_us / 1e6);
    io_json_number(json, "push", (double)times->push_us / 1e6);
    io_json_number(json, "vote", (double)times->vote_us / 1e6);
    io_json_shut(json, '}');
}

static void write_row(const struct ampd_msg_scale_history_row *row, struct io_json *json)
{
    static const char *const verdicts[] = {"", "applied", "overflow", "empty"};
    io_json_count(json, "epoch", row->epoch);
    io_json_count(json, "step", row->step);
    io_json_text(json, "verdict", row->verdict <= AMPD_MSG_VERDICT_SKIPPED_EMPTY ? verdicts[row->verdict] : "");
    io_json_number(json, "old_scale", (double)row->old_scale);
    io_json_number(json, "scale", (double)row->record.scale);
    io_json_count(json, "version", row->version);
    io_json_number(json, "norm", row->norm);
    io_json_number(json, "clip", (double)row->clip_coefficient);
    io_json_number(json, "rate", row->learning_rate);
    io_json_count(json, "consecutive_overflows", row->record.consecutive_overflows);
    io_json_count(json, "at_ms", (uint64_t)row->decide_time.us / 1000);
    io_json_truth(json, "superseded", row->superseded);
    if (row->has_times)
        write_times(&row->times, json);
}

static void write_contributors(const struct ampd_msg_step_contributor_list *list, struct io_json *json)
{
    io_json_open(json, "contributors", '[');
    for (size_t i = 0; i < list->count; i++) {
        io_json_open(json, NULL, '{');
        io_json_count(json, "rank", list->items[i].rank);
        io_json_text(json, "name", list->items[i].worker_name);
        io_json_number(json, "weight", (double)list->items[i].weight);
        io_json_shut(json, '}');
    }
    io_json_shut(json, ']');
}

static void write_overflows(const struct ampd_msg_overflow_row_list *list, struct io_json *json)
{
    static const char *const sources[] = {"", "worker", "sum", "range"};
    io_json_open(json, "overflows", '[');
    for (size_t i = 0; i < list->count; i++) {
        const struct ampd_msg_overflow_row *row = &list->items[i];
        io_json_open(json, NULL, '{');
        io_json_text(json, "source", row->source <= AMPD_MSG_OVERFLOW_SOURCE_RANGE ? sources[row->source] : "");
        if (row->has_rank)
            io_json_count(json, "rank", row->rank);
        io_json_text(json, "worker", row->worker_name);
        io_json_text(json, "parameter", row->parameter);
        io_json_count(json, "inf", row->inf_count);
        io_json_count(json, "nan", row->nan_count);
        io_json_count(json, "first_index", row->first_index);
        io_json_number(json, "largest", (double)row->largest_finite);
        io_json_shut(json, '}');
    }
    io_json_shut(json, ']');
}

static void write_policies(const struct step *step, struct io_json *json)
{
    io_json_count(json, "replayed_from", step->from);
    io_json_open(json, "policies", '[');
    for (uint32_t i = 0; i < POLICIES && step->from != 0; i++) {
        const struct policy *policy = &step->policies[i];
        io_json_open(json, NULL, '{');
        io_json_text(json, "policy", amp_scaler_policy_name((enum amp_scaler_policy)(i + 1)));
        io_json_truth(json, "own", step->read.spec->scaler.policy == (enum amp_scaler_policy)(i + 1));
        io_json_number(json, "before", (double)policy->before);
        io_json_number(json, "after", (double)policy->last.replayed_scale);
        io_json_truth(json, "uncertain", policy->last.uncertain);
        io_json_count(json, "uncertain_steps", policy->uncertain);
        io_json_shut(json, '}');
    }
    io_json_shut(json, ']');
}

static void step_finish(struct io_page_read *read)
{
    struct step *step = AMP_CONTAINER(read, struct step, read);
    struct ampd_msg_explain_step_response response;
    struct io_json *json = &read->json;
    if (io_explain_fill(read->page->server, read->model, read->spec, &step->row, &response) != 0)
        (void)amp_error_set(&read->error, AMP_ENOMEM, "EXHAUSTED", "out of memory for this step: ask again later");
    io_json_open(json, NULL, '{');
    io_json_text(json, "model", read->spec->name);
    io_json_text(json, "explanation", response.explanation);
    write_row(&response.row, json);
    io_page_metrics_write(&step->row.metrics, json);
    io_json_open(json, "totals", '{');
    io_json_count(json, "rows", response.overflow_totals.rows);
    io_json_count(json, "inf", response.overflow_totals.inf_count);
    io_json_count(json, "nan", response.overflow_totals.nan_count);
    io_json_shut(json, '}');
    write_contributors(&response.contributors, json);
    write_overflows(&response.overflows, json);
    write_policies(step, json);
    io_json_shut(json, '}');
    ampd_msg_explain_step_response_free(&response);
}

void io_page_step(struct io_page_ask *ask, const struct io_page_request *request)
{
    struct ampd_model_info info;
    char key[IO_PAGE_KEY_MAX];
    uint64_t number, epoch;
    uint32_t model;
    if (!io_page_model(ask, request->argument_cb(request->arg, "model"), &model, &info) ||
        !io_page_number(ask, request, "step", 0, &number) || !io_page_number(ask, request, "epoch", 0, &epoch))
        return;
    if (number == 0) {
        io_page_answer_refusal(ask, IO_PAGE_BAD, "INVALID_ARGUMENT", "give a step, from 1: &step=N");
        return;
    }
    (void)snprintf(key, sizeof key, "step %s %" PRId64 " %" PRIu64 " %" PRIu64 " %" PRIu64, info.spec->name,
                   info.created_us, info.epoch, epoch, number);
    if (io_page_remembered(ask, key))
        return;
    struct io_page_read *read = io_page_read_of(ask, sizeof(struct step), model, &info);
    if (read == NULL)
        return;
    struct step *step = AMP_CONTAINER(read, struct step, read);
    step->epoch = epoch;
    step->step = number;
    read->run_cb = step_run;
    read->finish_cb = step_finish;
    memcpy(read->key, key, sizeof read->key);
    io_page_read_begin(read);
}
