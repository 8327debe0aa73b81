/* ampctl checkpoint: writes a checkpoint now. */
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/rows.h"

/* A checkpoint waits for the next verdict and for the disk. */
#define CHECKPOINT_TIMEOUT_MS 60000

enum { KEY_NO_WAIT = 256 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct ampd_msg_checkpoint_request *request = state->input;
    switch (key) {
    case KEY_NO_WAIT:
        request->no_wait = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 1) /* as for export and import, whose name was another one */
            argp_error(
                state,
                "checkpoint takes one model, but got \"%.40s\" too; did you mean export or import, and not \"%.40s\"?",
                arg, request->model);
        return ampctl_one_model(key, arg, state, request->model);
    default:
        return ampctl_one_model(key, arg, state, request->model);
    }
}

static int print(const struct ampctl *ctl, const struct ampd_msg_checkpoint_response *response)
{
    if (!response->has_checkpoint) {
        if (ctl->json)
            (void)ampctl_print(stdout, "{\"rows\":[]}");
        (void)ampctl_print(stderr, "The checkpoint has been requested.");
        return 0;
    }
    return ampctl_print_rows(ctl, ampctl_checkpoint_columns,
                             json_pack("[o]", ampctl_checkpoint_row(&response->checkpoint)));
}

static const struct argp_option checkpoint_options[] = {
    {"no-wait", KEY_NO_WAIT, NULL, 0, "Do not wait until it exists", 0},
    {0},
};

static int run_checkpoint(struct ampctl *ctl, int argc, char **argv)
{
    struct ampd_msg_checkpoint_request request = {0};
    ampctl_parse(ctl, &ampctl_checkpoint_verb, &request, argc, argv);
    struct ampd_msg_checkpoint_response response;
    int code = ampctl_ask_checkpoint(ctl, &request, &response);
    return code != 0 ? code : print(ctl, &response);
}

const struct ampctl_verb ampctl_checkpoint_verb = {
    .name = "checkpoint",
    .arguments = "MODEL",
    .summary = "writes a checkpoint",
    .doc = "Writes a checkpoint of the next decided step; if all workers are away, of the last decided step, at once.",
    .examples = "ampctl checkpoint digits",
    .options = checkpoint_options,
    .parser = parse,
    .timeout_ms = CHECKPOINT_TIMEOUT_MS,
    .run = run_checkpoint,
};
