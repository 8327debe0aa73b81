/*
 * ampctl scale, set-lr, rollback, evict and delete: what an operator does to a model. Each request has an id, so that
 * it is done once however often it is sent; one whose answer was lost can be sent again with --request-id.
 */
#include "base/text.h"
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/rows.h"
#include "rpc/arpc_token.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_REASON = 256, KEY_REQUEST_ID, KEY_EPOCH, KEY_FORCE, KEY_YES };

/* What these verbs have in common. */
struct operation {
    struct ampctl *ctl;
    char model[128], reason[256], request_id[65];
    bool force, yes, has_epoch;
    float scale;
    double learning_rate;
    uint64_t epoch, step;
    uint32_t rank;
};

#define OPERATION_OPTIONS                                                                                              \
    {"reason", KEY_REASON, "TEXT", 0, "The reason, which the history keeps", 0},                                       \
    {                                                                                                                  \
        "request-id", KEY_REQUEST_ID, "ID", 0,                                                                         \
            "Id of the request: one that is sent again with the same id is done only once", 0                          \
    }

static const struct argp_option operation_options[] = {OPERATION_OPTIONS, {0}};

static bool is_utf8(const char *text)
{
    size_t left = strlen(text), size = 1;
    for (; left > 0 && size > 0; text += size, left -= size)
        size = amp_text_char(text, left);
    return size > 0;
}

static void take_text(struct argp_state *state, const char *option, const char *arg, char *text, size_t size)
{
    if (strlen(arg) >= size)
        argp_error(state, "%s is longer than %zu bytes", option, size - 1);
    if (!is_utf8(arg))
        argp_error(state, "%s is not UTF-8; give it as the terminal of a UTF-8 locale writes it", option);
    (void)snprintf(text, size, "%s", arg);
}

static error_t parse_operation(int key, char *arg, struct argp_state *state)
{
    struct operation *operation = state->input;
    switch (key) {
    case KEY_REASON:
        take_text(state, "--reason", arg, operation->reason, sizeof operation->reason);
        return 0;
    case KEY_REQUEST_ID:
        take_text(state, "--request-id", arg, operation->request_id, sizeof operation->request_id);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* For those that take a model and one word more (ampctl_model_and). */
static error_t parse_with(int key, char *arg, struct argp_state *state, const char **word, const char *what,
                          const char *missing)
{
    struct operation *operation = state->input;
    error_t rc = ampctl_model_and(key, arg, state, operation->model, word, what, missing);
    return rc == ARGP_ERR_UNKNOWN ? parse_operation(key, arg, state) : rc;
}

/* Fills in what all these requests have, with an id that nobody else has where none is given. An exit code. */
static int fill(struct operation *operation, char model[128], char reason[256], char request_id[65])
{
    char token[ARPC_TOKEN_TEXT_SIZE];
    if (operation->request_id[0] == 0) {
        if (arpc_token_new(token) != 0) {
            (void)ampctl_print(stderr, "ampctl: %s: the system gives no random numbers", operation->ctl->verb);
            return AMPCTL_EXIT_FAILED;
        }
        (void)snprintf(operation->request_id, sizeof operation->request_id, "ampctl-%.24s",
                       token + sizeof ARPC_TOKEN_PREFIX - 1);
    }
    memcpy(model, operation->model, sizeof operation->model);
    memcpy(reason, operation->reason, sizeof operation->reason);
    memcpy(request_id, operation->request_id, sizeof operation->request_id);
    return 0;
}

/* Whether a failed call may have been done: its answer is missing. */
static bool is_lost(int code)
{
    int status = code - AMPCTL_EXIT_RPC;
    return status == ARPC_STATUS_UNAVAILABLE || status == ARPC_STATUS_DEADLINE_EXCEEDED ||
           status == ARPC_STATUS_CANCELLED;
}

/* `code` is what a question has ended with: says how it can be asked again. */
static int told(const struct operation *operation, int code)
{
    if (is_lost(code) && !operation->ctl->nobody && operation->request_id[0] != 0)
        (void)ampctl_print(
            stderr,
            "ampctl: %s: it may have been done; run the same with --request-id %s, so that it is done only once",
            operation->ctl->verb, operation->request_id);
    return code;
}

/* ---- scale ---- */

static error_t parse_scale_set(int key, char *arg, struct argp_state *state)
{
    struct operation *operation = state->input;
    const char *word = NULL;
    char *end;
    error_t rc = parse_with(key, arg, state, &word, "scale", "name the model and give the scale");
    if (word == NULL)
        return rc;
    operation->scale = strtof(word, &end);
    if (end == word || *end != 0 || !isfinite(operation->scale))
        argp_error(state, "the scale is \"%.40s\"; give a finite number", word);
    return rc;
}

static error_t parse_scale_reset(int key, char *arg, struct argp_state *state)
{
    struct operation *operation = state->input;
    error_t rc = ampctl_one_model(key, arg, state, operation->model);
    return rc == ARGP_ERR_UNKNOWN ? parse_operation(key, arg, state) : rc;
}

static int print_scale(const struct operation *operation, const struct ampd_msg_scale_record *record,
                       uint64_t from_step)
{
    static const struct ampctl_column columns[] = {{"model", "MODEL", false},
                                                   {"scale", "SCALE", true},
                                                   {"scale_id", "SCALE ID", true},
                                                   {"from_step", "FROM STEP", true},
                                                   {NULL, NULL, false}};
    return ampctl_print_one(operation->ctl, columns,
                            json_pack("{s:s, s:f, s:I, s:I, s:s}", "model", operation->model, "scale",
                                      (double)record->scale, "scale_id", (json_int_t)record->scale_id, "from_step",
                                      (json_int_t)from_step, "request_id", operation->request_id));
}

static int run_scale_set(struct ampctl *ctl, int argc, char **argv)
{
    struct operation operation = {.ctl = ctl};
    ampctl_parse(ctl, &ampctl_scale_set_verb, &operation, argc, argv);
    struct ampd_msg_set_scale_request request = {.scale = operation.scale};
    struct ampd_msg_set_scale_response answer;
    int code = fill(&operation, request.model, request.reason, request.request_id);
    if (code == 0)
        code = told(&operation, ampctl_ask_set_scale(ctl, &request, &answer));
    return code != 0 ? code : print_scale(&operation, &answer.record, answer.from_step);
}

static int run_scale_reset(struct ampctl *ctl, int argc, char **argv)
{
    struct operation operation = {.ctl = ctl};
    ampctl_parse(ctl, &ampctl_scale_reset_verb, &operation, argc, argv);
    struct ampd_msg_reset_scale_request request = {0};
    struct ampd_msg_reset_scale_response answer;
    int code = fill(&operation, request.model, request.reason, request.request_id);
    if (code == 0)
        code = told(&operation, ampctl_ask_reset_scale(ctl, &request, &answer));
    return code != 0 ? code : print_scale(&operation, &answer.record, answer.from_step);
}

const struct ampctl_verb ampctl_scale_set_verb = {
    .name = "scale set",
    .arguments = "MODEL SCALE",
    .summary = "sets the loss scale by hand",
    .doc = "Sets the loss scale by hand, from the next step on. The history says who, when and why.",
    .examples = "ampctl scale set digits 1024 --reason \"it fell too far\"",
    .options = operation_options,
    .parser = parse_scale_set,
    .run = run_scale_set,
};

const struct ampctl_verb ampctl_scale_reset_verb = {
    .name = "scale reset",
    .arguments = "MODEL",
    .summary = "resets the loss scale to its initial value",
    .doc = "Resets the loss scale to its initial value, from the next step on. The history says who, when and why.",
    .examples = "ampctl scale reset digits",
    .options = operation_options,
    .parser = parse_scale_reset,
    .run = run_scale_reset,
};

/* ---- set-lr ---- */

static error_t parse_set_lr(int key, char *arg, struct argp_state *state)
{
    struct operation *operation = state->input;
    const char *word = NULL;
    char *end;
    error_t rc = parse_with(key, arg, state, &word, "learning rate", "name the model and give the learning rate");
    if (word == NULL)
        return rc;
    operation->learning_rate = strtod(word, &end);
    if (end == word || *end != 0 || !isfinite(operation->learning_rate) || operation->learning_rate <= 0)
        argp_error(state, "the learning rate is \"%.40s\"; give a number above 0", word);
    return rc;
}

static int print_lr(const struct operation *operation, const struct ampd_msg_set_learning_rate_response *answer)
{
    static const struct ampctl_column columns[] = {{"model", "MODEL", false},
                                                   {"learning_rate", "LEARNING RATE", true},
                                                   {"from_step", "FROM STEP", true},
                                                   {NULL, NULL, false}};
    return ampctl_print_one(operation->ctl, columns,
                            json_pack("{s:s, s:f, s:I, s:s}", "model", operation->model, "learning_rate",
                                      answer->learning_rate, "from_step", (json_int_t)answer->from_step, "request_id",
                                      operation->request_id));
}

static int run_set_lr(struct ampctl *ctl, int argc, char **argv)
{
    struct operation operation = {.ctl = ctl};
    ampctl_parse(ctl, &ampctl_set_lr_verb, &operation, argc, argv);
    struct ampd_msg_set_learning_rate_request request = {.learning_rate = operation.learning_rate};
    struct ampd_msg_set_learning_rate_response answer;
    int code = fill(&operation, request.model, request.reason, request.request_id);
    if (code == 0)
        code = told(&operation, ampctl_ask_set_learning_rate(ctl, &request, &answer));
    return code != 0 ? code : print_lr(&operation, &answer);
}

const struct ampctl_verb ampctl_set_lr_verb = {
    .name = "set-lr",
    .arguments = "MODEL RATE",
    .summary = "sets the base learning rate by hand",
    .doc =
        "Sets the base learning rate by hand, from the next verdict on; the schedule goes on from it. Checkpoints keep "
        "it, so a rollback brings back the rate of that time. The history says who, when and why.",
    .examples = "ampctl set-lr digits 0.0001 --reason \"the loss does not fall any more\"",
    .options = operation_options,
    .parser = parse_set_lr,
    .run = run_set_lr,
};

/* ---- rollback ---- */

/* Limit of a rollback, for which every shard reads its file of the checkpoint. */
#define ROLLBACK_TIMEOUT_MS 120000

static error_t parse_rollback(int key, char *arg, struct argp_state *state)
{
    struct operation *operation = state->input;
    const char *word = NULL;
    if (key == KEY_EPOCH) {
        operation->has_epoch = true;
        operation->epoch = ampctl_number(state, "--epoch", arg, AMPCTL_NUMBER_MAX);
        return 0;
    }
    error_t rc = parse_with(key, arg, state, &word, "step",
                            "name the model and the step of a checkpoint; ampctl checkpoints lists them");
    if (word != NULL)
        operation->step = ampctl_number(state, "STEP", word, AMPCTL_NUMBER_MAX);
    return rc;
}

static int roll_back(struct operation *operation)
{
    static const struct ampctl_column columns[] = {
        {"model", "MODEL", false}, {"epoch", "EPOCH", true}, {"step", "STEP", true}, {NULL, NULL, false}};
    struct ampd_msg_rollback_request request = {.epoch = operation->epoch, .step = operation->step};
    struct ampd_msg_rollback_response answer;
    int code = fill(operation, request.model, request.reason, request.request_id);
    if (code == 0)
        code = told(operation, ampctl_ask_rollback(operation->ctl, &request, &answer));
    if (code != 0)
        return code;
    return ampctl_print_one(operation->ctl, columns,
                            json_pack("{s:s, s:I, s:I, s:s}", "model", operation->model, "epoch",
                                      (json_int_t)answer.epoch, "step", (json_int_t)answer.step, "request_id",
                                      operation->request_id));
}

static const struct argp_option rollback_options[] = {
    {"epoch", KEY_EPOCH, "EPOCH", 0, "Of the checkpoint (the newest of that step)", 0},
    OPERATION_OPTIONS,
    {0},
};

static int run_rollback(struct ampctl *ctl, int argc, char **argv)
{
    struct operation operation = {.ctl = ctl};
    ampctl_parse(ctl, &ampctl_rollback_verb, &operation, argc, argv);
    struct ampctl_checkpoint_key key = {
        .has_step = true, .step = operation.step, .has_epoch = operation.has_epoch, .epoch = operation.epoch};
    int code = operation.has_epoch ? 0 : ampctl_find_checkpoint(ctl, operation.model, &key);
    operation.epoch = key.epoch;
    return code != 0 ? code : roll_back(&operation);
}

const struct ampctl_verb ampctl_rollback_verb = {
    .name = "rollback",
    .arguments = "MODEL STEP",
    .summary = "rolls a model back to a checkpoint",
    .doc = "Rolls a model back to a checkpoint, under a new epoch. Its workers continue from there; later checkpoints "
           "no longer count.",
    .examples = "ampctl checkpoints digits\n"
                "ampctl rollback digits 1200 --reason \"the loss went up\"",
    .options = rollback_options,
    .parser = parse_rollback,
    .timeout_ms = ROLLBACK_TIMEOUT_MS,
    .run = run_rollback,
};

/* ---- evict ---- */

static error_t parse_evict(int key, char *arg, struct argp_state *state)
{
    struct operation *operation = state->input;
    const char *word = NULL;
    error_t rc =
        parse_with(key, arg, state, &word, "rank", "name the model and the rank; ampctl status MODEL has the ranks");
    if (word != NULL)
        operation->rank = (uint32_t)ampctl_number(state, "RANK", word, UINT32_MAX);
    return rc;
}

static int run_evict(struct ampctl *ctl, int argc, char **argv)
{
    static const struct ampctl_column columns[] = {
        {"model", "MODEL", false}, {"rank", "EVICTED RANK", true}, {NULL, NULL, false}};
    struct operation operation = {.ctl = ctl};
    ampctl_parse(ctl, &ampctl_evict_verb, &operation, argc, argv);
    struct ampd_msg_evict_worker_request request = {.rank = operation.rank};
    struct ampd_msg_evict_worker_response answer;
    int code = fill(&operation, request.model, request.reason, request.request_id);
    if (code == 0)
        code = told(&operation, ampctl_ask_evict_worker(ctl, &request, &answer));
    if (code == 0 && answer.nobody)
        (void)ampctl_print(stderr,
                           "ampctl: evict: nobody held rank %" PRIu32 " of %s; only the history has a row of it",
                           operation.rank, operation.model);
    if (code != 0)
        return code;
    return ampctl_print_one(ctl, columns,
                            json_pack("{s:s, s:I, s:s}", "model", operation.model, "rank", (json_int_t)operation.rank,
                                      "request_id", operation.request_id));
}

const struct ampctl_verb ampctl_evict_verb = {
    .name = "evict",
    .arguments = "MODEL RANK",
    .summary = "ends the lease of a worker",
    .doc =
        "Ends the lease of the worker that holds a rank, now, as if it had left: it is told to stop, and the rank is "
        "free for another. The history says who, when and why. A server that has started since then does not know "
        "the worker any more, and lets it join anew.",
    .examples = "ampctl status digits\n"
                "ampctl evict digits 3 --reason \"its GPU is broken\"",
    .options = operation_options,
    .parser = parse_evict,
    .run = run_evict,
};

/* ---- delete ---- */

static error_t parse_delete(int key, char *arg, struct argp_state *state)
{
    struct operation *operation = state->input;
    switch (key) {
    case KEY_FORCE:
        operation->force = true;
        return 0;
    case KEY_YES:
        operation->yes = true;
        return 0;
    default:
        return ampctl_one_model(key, arg, state, operation->model);
    }
}

/* Somebody at a terminal types the model's name again; a script has nobody to ask. False after a sentence. */
static bool is_meant(const struct operation *operation)
{
    char line[sizeof operation->model + 1] = ""; /* with its newline */
    if (operation->yes || !isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return true;
    (void)ampctl_print(stderr, "This deletes %s with its history and checkpoints, for good. Type its name to go on:",
                       operation->model);
    bool read = fgets(line, sizeof line, stdin) != NULL;
    line[strcspn(line, "\n")] = 0;
    if (read && strcmp(line, operation->model) == 0)
        return true;
    (void)ampctl_print(stderr, "ampctl: %s: that is not its name; nothing was deleted", operation->ctl->verb);
    return false;
}

static const struct argp_option delete_options[] = {
    {"force", KEY_FORCE, NULL, 0, "Also while workers hold a lease", 0},
    {"yes", KEY_YES, NULL, 0, "Do not ask; without this, a terminal asks for the model's name again", 0},
    {0},
};

static int run_delete(struct ampctl *ctl, int argc, char **argv)
{
    struct operation operation = {.ctl = ctl};
    ampctl_parse(ctl, &ampctl_delete_verb, &operation, argc, argv);
    static const struct ampctl_column columns[] = {{"deleted", "DELETED", false}, {NULL, NULL, false}};
    struct ampd_msg_delete_model_request request = {.force = operation.force};
    memcpy(request.model, operation.model, sizeof request.model);
    int code = is_meant(&operation) ? ampctl_ask_delete_model(ctl, &request) : AMPCTL_EXIT_FAILED;
    return code != 0 ? code : ampctl_print_one(ctl, columns, json_pack("{s:s}", "deleted", operation.model));
}

const struct ampctl_verb ampctl_delete_verb = {
    .name = "delete",
    .arguments = "MODEL",
    .summary = "deletes a model, its history and checkpoints",
    .doc = "Deletes a model with its history and checkpoints. This cannot be undone. On a terminal it asks for the "
           "model's name again.",
    .examples = "ampctl delete digits\n"
                "ampctl delete digits --yes",
    .options = delete_options,
    .parser = parse_delete,
    .run = run_delete,
};
