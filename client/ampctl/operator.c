/*
 * ampctl scale, rollback and delete: what an operator does to a model. Each request has an id, so that it is done once
 * however often it is sent; one whose answer was lost can be sent again with --request-id.
 */
#include "client/ampctl/ctl.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/rows.h"
#include "client/io/methods.h"
#include "rpc/arpc_token.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_REASON = 256, KEY_REQUEST_ID, KEY_EPOCH, KEY_FORCE };

/* What these verbs have in common. */
struct operation {
    struct ampctl *ctl;
    char model[128], reason[256], request_id[65];
    bool reset, force, has_epoch;
    float scale;
    uint64_t epoch, step;
};

static const struct argp_option operation_options[] = {
    {"reason", KEY_REASON, "TEXT", 0, "Why; kept in the history", 0},
    {"request-id", KEY_REQUEST_ID, "ID", 0, "The id of a request whose answer was lost: it is done once", 0},
    {0},
};

static void take_text(struct argp_state *state, const char *option, const char *arg, char *text, size_t size)
{
    if (strlen(arg) >= size)
        argp_error(state, "%s is longer than %zu bytes", option, size - 1);
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

/* An id that nobody else has; false after a sentence. */
static bool make_id(struct operation *operation)
{
    char token[ARPC_TOKEN_TEXT_SIZE];
    if (operation->request_id[0] != 0)
        return true;
    if (arpc_token_new(token) != 0) {
        (void)ampctl_print(stderr, "ampctl: %s: the system gives no random numbers", operation->ctl->verb);
        return false;
    }
    (void)snprintf(operation->request_id, sizeof operation->request_id, "ampctl-%.24s",
                   token + sizeof ARPC_TOKEN_PREFIX - 1);
    return true;
}

/* Whether a failed call may have been done: its answer is missing. */
static bool is_lost(int code)
{
    return code == AMPCTL_EXIT_RPC + 14 || code == AMPCTL_EXIT_RPC + 4 || code == AMPCTL_EXIT_RPC + 1;
}

static int ask(const struct operation *operation, const char *path, int encoded, struct amp_buf *body,
               struct ampclient_reply *reply)
{
    int code = ampctl_ask(operation->ctl, path, encoded, body, reply);
    amp_buf_close(body);
    if (is_lost(code) && !ampctl_nobody(reply) && operation->request_id[0] != 0)
        (void)ampctl_print(stderr, "ampctl: %s: it may have been done; the same with --request-id %s is done once",
                           operation->ctl->verb, operation->request_id);
    return code;
}

/* ---- scale ---- */

static error_t parse_scale(int key, char *arg, struct argp_state *state)
{
    struct operation *operation = state->input;
    char *end;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = operation;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0 && strcmp(arg, "set") != 0 && strcmp(arg, "reset") != 0)
            argp_error(state, "\"%.40s\": give set or reset", arg);
        if (state->arg_num == 0) {
            operation->reset = strcmp(arg, "reset") == 0;
        } else if (state->arg_num == 1) {
            ampctl_name(state, operation->model, arg);
        } else if (state->arg_num == 2 && !operation->reset) {
            operation->scale = strtof(arg, &end);
            if (end == arg || *end != 0 || !isfinite(operation->scale))
                argp_error(state, "the scale is \"%.40s\"; give a finite number", arg);
        } else {
            argp_error(state, "\"%.40s\" is too much", arg);
        }
        return 0;
    case ARGP_KEY_END:
        if (state->arg_num < (operation->reset ? 2u : 3u))
            argp_error(state, "give: set MODEL SCALE, or reset MODEL");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int ask_scale(const struct operation *operation, struct ampclient_reply *reply)
{
    struct amp_buf body;
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    if (operation->reset) {
        struct ampd_msg_reset_scale_request request = {0};
        memcpy(request.model, operation->model, sizeof request.model);
        memcpy(request.reason, operation->reason, sizeof request.reason);
        memcpy(request.request_id, operation->request_id, sizeof request.request_id);
        return ask(operation, AMPCLIENT_SCALE_SERVICE "ResetScale",
                   ampd_msg_reset_scale_request_encode(&request, &body), &body, reply);
    }
    struct ampd_msg_set_scale_request request = {.scale = operation->scale};
    memcpy(request.model, operation->model, sizeof request.model);
    memcpy(request.reason, operation->reason, sizeof request.reason);
    memcpy(request.request_id, operation->request_id, sizeof request.request_id);
    return ask(operation, AMPCLIENT_SCALE_SERVICE "SetScale", ampd_msg_set_scale_request_encode(&request, &body), &body,
               reply);
}

static int print_scale(const struct operation *operation, const struct ampd_msg_set_scale_response *answer)
{
    static const struct ampctl_column columns[] = {{"model", "MODEL", false},
                                                   {"scale", "SCALE", true},
                                                   {"scale_id", "SCALE ID", true},
                                                   {"from_step", "FROM STEP", true},
                                                   {NULL, NULL, false}};
    return ampctl_print_one(operation->ctl, columns,
                            json_pack("{s:s, s:f, s:I, s:I, s:s}", "model", operation->model, "scale",
                                      (double)answer->record.scale, "scale_id", (json_int_t)answer->record.scale_id,
                                      "from_step", (json_int_t)answer->from_step, "request_id", operation->request_id));
}

int ampctl_scale(struct ampctl *ctl, int argc, char **argv)
{
    static const struct argp common = {.options = operation_options, .parser = parse_operation};
    static const struct argp_child children[] = {{&common, 0, NULL, 0}, {0}};
    const struct argp own = {.parser = parse_scale,
                             .args_doc = "set MODEL SCALE | reset MODEL",
                             .doc = "Sets the loss scale by hand, or puts it back to the start of its policy, from the "
                                    "next step on. The history says who, when and why.",
                             .children = children};
    struct operation operation = {.ctl = ctl};
    ampctl_parse(ctl, &own, &operation, argc, argv);
    int code = make_id(&operation) ? ampctl_open(ctl) : AMPCTL_EXIT_FAILED;
    if (code != 0)
        return code;
    struct ampclient_reply reply;
    struct ampd_msg_set_scale_response answer; /* that of a reset has the same fields */
    struct amp_error error = {0};
    code = ask_scale(&operation, &reply);
    if (code == 0 && ampd_msg_set_scale_response_decode(&answer, reply.body.data, reply.body.size, &error) != 0)
        code = ampctl_bad_answer(&error);
    else if (code == 0)
        code = print_scale(&operation, &answer);
    ampclient_reply_close(&reply);
    ampctl_close(ctl);
    return code;
}

/* ---- rollback ---- */

/* Files of every shard are read anew. */
#define ROLLBACK_TIMEOUT_MS 120000

static error_t parse_rollback(int key, char *arg, struct argp_state *state)
{
    struct operation *operation = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = operation;
        return 0;
    case KEY_EPOCH:
        operation->has_epoch = true;
        operation->epoch = ampctl_number(state, "--epoch", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            ampctl_name(state, operation->model, arg);
        else if (state->arg_num == 1)
            operation->step = ampctl_number(state, "STEP", arg);
        else
            argp_error(state, "a model and a step are enough; \"%.40s\" is too much", arg);
        return 0;
    case ARGP_KEY_END:
        if (state->arg_num < 2)
            argp_error(state, "name the model and the step of a checkpoint; ampctl checkpoints lists them");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int roll_back(const struct operation *operation)
{
    static const struct ampctl_column columns[] = {
        {"model", "MODEL", false}, {"epoch", "EPOCH", true}, {"step", "STEP", true}, {NULL, NULL, false}};
    struct ampd_msg_rollback_request request = {.epoch = operation->epoch, .step = operation->step};
    memcpy(request.model, operation->model, sizeof request.model);
    memcpy(request.reason, operation->reason, sizeof request.reason);
    memcpy(request.request_id, operation->request_id, sizeof request.request_id);
    struct amp_buf body;
    struct ampclient_reply reply;
    struct ampd_msg_rollback_response answer;
    struct amp_error error = {0};
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    int code = ask(operation, AMPCLIENT_ADMIN_SERVICE "Rollback", ampd_msg_rollback_request_encode(&request, &body),
                   &body, &reply);
    if (code == 0 && ampd_msg_rollback_response_decode(&answer, reply.body.data, reply.body.size, &error) != 0)
        code = ampctl_bad_answer(&error);
    else if (code == 0)
        code = ampctl_print_one(operation->ctl, columns,
                                json_pack("{s:s, s:I, s:I, s:s}", "model", operation->model, "epoch",
                                          (json_int_t)answer.epoch, "step", (json_int_t)answer.step, "request_id",
                                          operation->request_id));
    ampclient_reply_close(&reply);
    return code;
}

int ampctl_rollback(struct ampctl *ctl, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"epoch", KEY_EPOCH, "EPOCH", 0, "Of the checkpoint (the newest of that step)", 0},
        {0},
    };
    static const struct argp common = {.options = operation_options, .parser = parse_operation};
    static const struct argp_child children[] = {{&common, 0, NULL, 0}, {0}};
    const struct argp own = {.options = options,
                             .parser = parse_rollback,
                             .args_doc = "MODEL STEP",
                             .doc =
                                 "Puts a model back to a checkpoint, under a new epoch. Its workers go on from there; "
                                 "later checkpoints are given up.",
                             .children = children};
    struct operation operation = {.ctl = ctl};
    ampctl_parse(ctl, &own, &operation, argc, argv);
    if (ctl->timeout_ms == 0)
        ctl->timeout_ms = ROLLBACK_TIMEOUT_MS;
    int code = make_id(&operation) ? ampctl_open(ctl) : AMPCTL_EXIT_FAILED;
    struct ampctl_checkpoint_key key = {
        .has_step = true, .step = operation.step, .has_epoch = operation.has_epoch, .epoch = operation.epoch};
    if (code == 0 && !operation.has_epoch)
        code = ampctl_find_checkpoint(ctl, operation.model, &key);
    operation.epoch = key.epoch;
    if (code == 0)
        code = roll_back(&operation);
    ampctl_close(ctl);
    return code;
}

/* ---- delete ---- */

static error_t parse_delete(int key, char *arg, struct argp_state *state)
{
    struct operation *operation = state->input;
    switch (key) {
    case KEY_FORCE:
        operation->force = true;
        return 0;
    default:
        return ampctl_one_model(key, arg, state, operation->model);
    }
}

int ampctl_delete(struct ampctl *ctl, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"force", KEY_FORCE, NULL, 0, "Also while workers hold a lease", 0},
        {0},
    };
    const struct argp own = {.options = options,
                             .parser = parse_delete,
                             .args_doc = "MODEL",
                             .doc = "Deletes a model with its history and checkpoints. There is no way back."};
    struct operation operation = {.ctl = ctl};
    ampctl_parse(ctl, &own, &operation, argc, argv);
    int code = ampctl_open(ctl);
    if (code != 0)
        return code;
    static const struct ampctl_column columns[] = {{"deleted", "DELETED", false}, {NULL, NULL, false}};
    struct ampd_msg_delete_model_request request = {.force = operation.force};
    memcpy(request.model, operation.model, sizeof request.model);
    struct amp_buf body;
    struct ampclient_reply reply;
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    code = ask(&operation, AMPCLIENT_PARAMETER_SERVICE "DeleteModel",
               ampd_msg_delete_model_request_encode(&request, &body), &body, &reply);
    if (code == 0)
        code = ampctl_print_one(ctl, columns, json_pack("{s:s}", "deleted", operation.model));
    ampclient_reply_close(&reply);
    ampctl_close(ctl);
    return code;
}
