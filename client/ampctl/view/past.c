/* ampctl explain, replay and checkpoints: what the server tells of its past. */
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_EPOCH = 256,
    KEY_FROM,
    KEY_TO,
    KEY_CHANGES,
    KEY_MIN_SCALE,
    KEY_LATEST,
    KEY_POLICY,
    KEY_INIT,
    KEY_GROWTH,
    KEY_BACKOFF,
    KEY_INTERVAL,
    KEY_HYSTERESIS,
    KEY_MIN,
    KEY_MAX
};

static float real_argument(struct argp_state *state, const char *option, const char *value)
{
    char *end;
    float number = strtof(value, &end);
    if (end == value || *end != 0 || !isfinite(number))
        argp_error(state, "%s is \"%.40s\"; give a finite number", option, value);
    return number;
}

/* ---- explain ---- */

struct explain {
    struct ampd_msg_explain_step_request request;
    bool has_step;
};

static error_t parse_explain(int key, char *arg, struct argp_state *state)
{
    struct explain *explain = state->input;
    struct ampd_msg_explain_step_request *request = &explain->request;
    switch (key) {
    case KEY_EPOCH:
        request->has_epoch = true;
        request->epoch = ampctl_number(state, "--epoch", arg, AMPCTL_NUMBER_MAX);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 1) {
            explain->has_step = true;
            request->step = ampctl_number(state, "STEP", arg, AMPCTL_NUMBER_MAX);
            return 0;
        }
        if (state->arg_num > 1)
            argp_error(state, "a model and a step are enough; \"%.40s\" is too much", arg);
        return ampctl_one_model(key, arg, state, request->model);
    default:
        return ampctl_one_model(key, arg, state, request->model);
    }
}

static json_t *contributors_of(const struct ampd_msg_explain_step_response *answer)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < answer->contributors.count; i++) {
        const struct ampd_msg_step_contributor *one = &answer->contributors.items[i];
        (void)json_array_append_new(rows, json_pack("{s:i, s:s, s:f}", "rank", (int)one->rank, "worker",
                                                    one->worker_name, "weight", (double)one->weight));
    }
    return rows;
}

static int print_explained(const struct ampctl *ctl, const struct ampd_msg_explain_step_response *answer)
{
    json_t *overflows = json_array();
    int rc = overflows != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < answer->overflows.count; i++)
        rc = json_array_append_new(overflows, ampctl_overflow_row(&answer->overflows.items[i]));
    if (rc == 0 && ctl->json) {
        json_t *all = json_pack("{s:o, s:o, s:O, s:s}", "row", ampctl_history_row(&answer->row), "contributors",
                                contributors_of(answer), "overflows", overflows, "explanation", answer->explanation);
        rc = ampctl_print_json(stdout, all);
        json_decref(all);
    } else if (rc == 0) {
        struct ampctl_list list = {.out = stdout, .csv = ctl->csv, .columns = ampctl_overflow_columns};
        (void)ampctl_print(ctl->csv ? stderr : stdout, "%s", answer->explanation);
        rc = ampctl_list_page(&list, overflows);
    }
    json_decref(overflows);
    return rc == 0 ? 0 : AMPCTL_EXIT_FAILED;
}

/* Finds the newest skipped step, of the given epoch or of the steps that stand. 0, or an exit code after a sentence. */
static int find_skipped(struct ampctl *ctl, struct ampd_msg_explain_step_request *request)
{
    struct ampd_msg_list_scale_history_request list = {
        .has_epoch = request->has_epoch,
        .epoch = request->epoch,
        .newest_first = true,
        .verdicts = {AMPD_MSG_VERDICT_SKIPPED_OVERFLOW, AMPD_MSG_VERDICT_SKIPPED_EMPTY},
        .verdicts_count = 2,
        .page_size = 1};
    memcpy(list.model, request->model, sizeof list.model);
    do {
        struct ampd_msg_list_scale_history_response page;
        int code = ampctl_ask_list_scale_history(ctl, &list, &page);
        if (code != 0)
            return code;
        request->step = page.rows.count > 0 ? page.rows.items[0].step : 0;
        memcpy(list.page_token, page.next_page_token, sizeof list.page_token);
        ampd_msg_list_scale_history_response_free(&page);
    } while (request->step == 0 && list.page_token[0] != 0);
    if (request->step != 0)
        return 0;
    (void)ampctl_print(stderr, "ampctl: explain: the history of %s has no skipped step; name the step to explain",
                       request->model);
    return AMPCTL_EXIT_RPC + ARPC_STATUS_NOT_FOUND;
}

static const struct argp_option explain_options[] = {
    {"epoch", KEY_EPOCH, "EPOCH", 0, "In this epoch (the one in which the step counts)", 0},
    {0},
};

static int run_explain(struct ampctl *ctl, int argc, char **argv)
{
    struct explain explain = {0};
    ampctl_parse(ctl, &ampctl_explain_verb, &explain, argc, argv);
    struct ampd_msg_explain_step_response answer;
    int code = explain.has_step ? 0 : find_skipped(ctl, &explain.request);
    if (code == 0)
        code = ampctl_ask_explain_step(ctl, &explain.request, &answer);
    if (code == 0) {
        code = print_explained(ctl, &answer);
        ampd_msg_explain_step_response_free(&answer);
    }
    return code;
}

const struct ampctl_verb ampctl_explain_verb = {
    .name = "explain",
    .arguments = "MODEL [STEP]",
    .summary = "what happened in a step, in words",
    .doc = "Tells what happened in a step: whose gradient had an Inf or a NaN, in which parameter, "
           "and why the scale shrank, grew or stayed. Without STEP: in the newest step that was skipped.",
    .examples = "ampctl explain digits\n"
                "ampctl explain digits 1042",
    .options = explain_options,
    .parser = parse_explain,
    .run = run_explain,
};

/* ---- replay ---- */

struct replay {
    struct ampd_msg_replay_policy_request request;
    struct ampctl_list list;
    bool only_changes;
    uint64_t steps, differing, uncertain;
    char note[256];
};

static error_t parse_scaler(int key, char *arg, struct argp_state *state, struct ampd_msg_scaler_spec *scaler)
{
    switch (key) {
    case KEY_POLICY:
        scaler->policy = ampctl_policy(arg);
        if (scaler->policy == AMPD_MSG_SCALER_POLICY_UNSPECIFIED)
            argp_error(state,
                       "--policy is \"%.40s\"; give dynamic, static, none, megatron, deepspeed, "
                       "deepspeed_consecutive, apex_hysteresis or paddle",
                       arg);
        return 0;
    case KEY_INIT:
        scaler->has_init_scale = true;
        scaler->init_scale = real_argument(state, "--init-scale", arg);
        return 0;
    case KEY_GROWTH:
        scaler->has_growth_factor = true;
        scaler->growth_factor = real_argument(state, "--growth-factor", arg);
        return 0;
    case KEY_BACKOFF:
        scaler->has_backoff_factor = true;
        scaler->backoff_factor = real_argument(state, "--backoff-factor", arg);
        return 0;
    case KEY_INTERVAL:
        scaler->has_growth_interval = true;
        scaler->growth_interval = (uint32_t)ampctl_number(state, "--growth-interval", arg, UINT32_MAX);
        return 0;
    case KEY_HYSTERESIS:
        scaler->has_hysteresis = true;
        scaler->hysteresis = (uint32_t)ampctl_number(state, "--hysteresis", arg, UINT32_MAX);
        return 0;
    case KEY_MIN:
        scaler->has_min_scale = true;
        scaler->min_scale = real_argument(state, "--min-scale", arg);
        return 0;
    case KEY_MAX:
        scaler->has_max_scale = true;
        scaler->max_scale = real_argument(state, "--max-scale", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_replay(int key, char *arg, struct argp_state *state)
{
    struct replay *replay = state->input;
    struct ampd_msg_replay_policy_request *request = &replay->request;
    switch (key) {
    case KEY_EPOCH:
        request->has_epoch = true;
        request->epoch = ampctl_number(state, "--epoch", arg, AMPCTL_NUMBER_MAX);
        return 0;
    case KEY_FROM:
        request->from_step = ampctl_number(state, "--from", arg, AMPCTL_NUMBER_MAX);
        return 0;
    case KEY_TO:
        request->has_to_step = true;
        request->to_step = ampctl_number(state, "--to", arg, AMPCTL_NUMBER_MAX);
        return 0;
    case KEY_CHANGES:
        replay->only_changes = true;
        return 0;
    case ARGP_KEY_ARG:
    case ARGP_KEY_NO_ARGS:
        return ampctl_one_model(key, arg, state, request->model);
    case ARGP_KEY_END:
        return ampctl_from_to(state, request->from_step, request->has_to_step, request->to_step);
    default:
        return parse_scaler(key, arg, state, &request->scaler);
    }
}

static int replay_page(struct ampctl *ctl, struct replay *replay)
{
    struct ampd_msg_replay_policy_response page;
    int code = ampctl_ask_replay_policy(ctl, &replay->request, &page);
    if (code != 0)
        return code;
    json_t *rows = json_array();
    int rc = rows != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < page.rows.count; i++) {
        const struct ampd_msg_replayed_step *step = &page.rows.items[i];
        if (!replay->only_changes || step->stored_scale < step->replayed_scale ||
            step->stored_scale > step->replayed_scale)
            rc = json_array_append_new(rows, ampctl_replayed_row(step));
    }
    if (rc == 0)
        rc = ampctl_list_page(&replay->list, rows);
    json_decref(rows);
    replay->steps += page.rows.count;
    replay->differing += page.differing_steps;
    replay->uncertain += page.uncertain_steps;
    memcpy(replay->note, page.note, sizeof replay->note);
    memcpy(replay->request.page_token, page.next_page_token, sizeof replay->request.page_token);
    ampd_msg_replay_policy_response_free(&page);
    return rc == 0 ? 0 : AMPCTL_EXIT_FAILED;
}

static int replay_pages(struct ampctl *ctl, struct replay *replay)
{
    int code = 0;
    do {
        code = replay_page(ctl, replay);
    } while (code == 0 && replay->request.page_token[0] != 0);
    if (code == 0 && ampctl_list_end(&replay->list) != 0)
        code = AMPCTL_EXIT_FAILED;
    if (code == 0)
        (void)ampctl_print(stderr, "%llu steps, after %llu the scales differ, %llu uncertain. %s",
                           (unsigned long long)replay->steps, (unsigned long long)replay->differing,
                           (unsigned long long)replay->uncertain, replay->note);
    return code;
}

static const struct argp_option replay_options[] = {
    {"policy", KEY_POLICY, "POLICY", 0, "The policy to try (dynamic); --scaler is the same", 0},
    {"scaler", KEY_POLICY, "POLICY", OPTION_HIDDEN, NULL, 0},
    {"init-scale", KEY_INIT, "SCALE", 0, "Its first scale (65536)", 0},
    {"growth-factor", KEY_GROWTH, "FACTOR", 0, "Above 1 (2)", 0},
    {"backoff-factor", KEY_BACKOFF, "FACTOR", 0, "Between 0 and 1 (0.5)", 0},
    {"growth-interval", KEY_INTERVAL, "STEPS", 0, "Clean steps before it grows (2000)", 0},
    {"hysteresis", KEY_HYSTERESIS, "OVERFLOWS", 0, "Overflows that it takes to shrink the scale (2)", 0},
    {"min-scale", KEY_MIN, "SCALE", 0, "Its floor (1)", 0},
    {"max-scale", KEY_MAX, "SCALE", 0, "Its cap (16777216)", 0},
    {"from", KEY_FROM, "STEP", 0, "First step", 0},
    {"to", KEY_TO, "STEP", 0, "Last step, included", 0},
    {"epoch", KEY_EPOCH, "EPOCH", 0, "Only this epoch (the steps that stand, over all epochs)", 0},
    {"changes", KEY_CHANGES, NULL, 0, "Only steps after which the scales differ", 0},
    {0},
};

static int run_replay(struct ampctl *ctl, int argc, char **argv)
{
    struct replay replay = {.request = {.has_scaler = true, .page_size = AMPD_MSG_ROWS_MAX}};
    replay.request.scaler.policy = AMPD_MSG_SCALER_POLICY_DYNAMIC;
    ampctl_parse(ctl, &ampctl_replay_verb, &replay, argc, argv);
    replay.list =
        (struct ampctl_list){.out = stdout, .json = ctl->json, .csv = ctl->csv, .columns = ampctl_replay_columns};
    return replay_pages(ctl, &replay);
}

const struct ampctl_verb ampctl_replay_verb = {
    .name = "replay",
    .arguments = "MODEL",
    .summary = "the stored verdicts under another policy",
    .doc = "Runs the stored verdicts through another policy: what the scale would have been. How "
           "many steps would have overflowed under it cannot be known.",
    .examples = "ampctl replay digits --policy megatron --hysteresis 2 --changes",
    .options = replay_options,
    .parser = parse_replay,
    .run = run_replay,
};

/* ---- checkpoints ---- */

struct checkpoints {
    struct ampd_msg_list_checkpoints_request request;
    struct ampctl_list list;
    bool latest;
};

static error_t parse_checkpoints(int key, char *arg, struct argp_state *state)
{
    struct checkpoints *checkpoints = state->input;
    switch (key) {
    case KEY_MIN_SCALE:
        checkpoints->request.has_min_scale = true;
        checkpoints->request.min_scale = real_argument(state, "--min-scale", arg);
        return 0;
    case KEY_LATEST:
        checkpoints->latest = true;
        return 0;
    default:
        return ampctl_one_model(key, arg, state, checkpoints->request.model);
    }
}

static int checkpoints_page(struct ampctl *ctl, struct checkpoints *checkpoints)
{
    struct ampd_msg_list_checkpoints_response page;
    int code = ampctl_ask_list_checkpoints(ctl, &checkpoints->request, &page);
    if (code != 0)
        return code;
    json_t *rows = json_array();
    int rc = rows != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < page.checkpoints.count; i++)
        rc = json_array_append_new(rows, ampctl_checkpoint_row(&page.checkpoints.items[i]));
    if (rc == 0)
        rc = ampctl_list_page(&checkpoints->list, rows);
    json_decref(rows);
    memcpy(checkpoints->request.page_token, page.next_page_token, sizeof checkpoints->request.page_token);
    ampd_msg_list_checkpoints_response_free(&page);
    return rc == 0 ? 0 : AMPCTL_EXIT_FAILED;
}

static const struct argp_option checkpoints_options[] = {
    {"min-scale", KEY_MIN_SCALE, "SCALE", 0, "Only those whose scale was at least this", 0},
    {"latest", KEY_LATEST, NULL, 0, "Only the latest of them", 0},
    {0},
};

static int run_checkpoints(struct ampctl *ctl, int argc, char **argv)
{
    struct checkpoints checkpoints = {.request = {.page_size = AMPD_MSG_ROWS_MAX}};
    ampctl_parse(ctl, &ampctl_checkpoints_verb, &checkpoints, argc, argv);
    if (checkpoints.latest)
        checkpoints.request.page_size = 1;
    checkpoints.list =
        (struct ampctl_list){.out = stdout, .json = ctl->json, .csv = ctl->csv, .columns = ampctl_checkpoint_columns};
    int code;
    do {
        code = checkpoints_page(ctl, &checkpoints);
    } while (code == 0 && !checkpoints.latest && checkpoints.request.page_token[0] != 0);
    if (code == 0 && ampctl_list_end(&checkpoints.list) != 0)
        code = AMPCTL_EXIT_FAILED;
    return code;
}

const struct ampctl_verb ampctl_checkpoints_verb = {
    .name = "checkpoints",
    .arguments = "MODEL",
    .summary = "lists checkpoints",
    .doc = "Lists checkpoints, newest first. BYTES is the size of the file of the shard that answers; with several "
           "shards each has one.",
    .examples = "ampctl checkpoints digits\n"
                "ampctl checkpoints digits --latest --min-scale 1024",
    .options = checkpoints_options,
    .parser = parse_checkpoints,
    .run = run_checkpoints,
};
