/*
 * ampctl: asks an ampd from the command line.
 *
 * Data goes to stdout, talk to stderr. Exit codes: 0; 1 something failed here; 2 usage; 64 + the gRPC status of a call
 * that failed; `ready` has those of pg_isready (ready.c).
 */
#include "client/ampctl/ctl.h"
#include "client/ampctl/parse.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) const char *argp_program_version = "ampctl 0.1.0";

struct verb {
    const char *name;
    int (*run)(struct ampctl *ctl, int argc, char **argv);
};

static const struct verb verbs[] = {
    {"ready", ampctl_ready},
    {"status", ampctl_status},
    {"models", ampctl_models},
    {"cluster", ampctl_cluster},
    {"history", ampctl_history},
    {"overflows", ampctl_overflows},
    {"watch", ampctl_watch},
    {"checkpoint", ampctl_checkpoint},
    {"token", ampctl_token},
    {"explain", ampctl_explain},
    {"replay", ampctl_replay},
    {"checkpoints", ampctl_checkpoints},
    {"scale", ampctl_scale},
    {"rollback", ampctl_rollback},
    {"create", ampctl_create},
    {"delete", ampctl_delete},
    {"drain", ampctl_drain},
    {"log-level", ampctl_log_level},
    {"tensorboard", ampctl_tensorboard},
};

/* ---- the program ---- */

struct command {
    struct ampctl *ctl;
    int verb_at; /* index in argv; 0: none */
};

static error_t parse_command(int key, char *arg, struct argp_state *state)
{
    struct command *command = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = command->ctl;
        return 0;
    case ARGP_KEY_ARG:
        command->verb_at = state->next - 1;
        state->next = state->argc; /* the rest is the verb's */
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const char program_doc[] = "Asks an ampd server.\v"
                                  "Verbs (ampctl VERB --help tells more):\n"
                                  "  ready                 whether the server accepts work\n"
                                  "  status [MODEL]        the server, its models and their workers\n"
                                  "  models                all models\n"
                                  "  cluster [MODEL]       the shards: where each is, and how far\n"
                                  "  history MODEL         the loss scale, step by step, or --plot\n"
                                  "  overflows MODEL       whose gradients had Inf or NaN, and where\n"
                                  "  watch MODEL           steps as they are decided\n"
                                  "  tensorboard MODEL     the history as event files for TensorBoard\n"
                                  "  explain MODEL STEP    what happened in a step, in words\n"
                                  "  replay MODEL          the stored verdicts under another policy\n"
                                  "  checkpoint MODEL      writes a checkpoint now\n"
                                  "  checkpoint export MODEL FILE  fetches a checkpoint as one safetensors file\n"
                                  "  checkpoint import MODEL FILE  loads first values from a safetensors file\n"
                                  "  checkpoints MODEL     lists checkpoints, or finds one by the loss scale\n"
                                  "  scale set MODEL SCALE sets the loss scale by hand\n"
                                  "  scale reset MODEL     puts it back to the start of its policy\n"
                                  "  rollback MODEL STEP   puts a model back to a checkpoint\n"
                                  "  create MODEL FILE     creates a model from a safetensors file\n"
                                  "  delete MODEL          deletes a model with its history and checkpoints\n"
                                  "  drain                 ends the server in order\n"
                                  "  log-level LEVEL       changes the level of the server's log\n"
                                  "  token new ROLE NAME   makes a token and its line for ampd --token-file\n";

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    return NULL;
}

/* `ready` promises another code for wrong usage, and a wrong option may come before the verb. */
static int usage_code(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *one = argv[i];
        if (ampctl_takes_next(one))
            i++;
        else if (one[0] != '-')
            return strcmp(one, "ready") == 0 ? AMPCTL_EXIT_NO_ATTEMPT : AMPCTL_EXIT_USAGE;
    }
    return AMPCTL_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    (void)setlocale(LC_CTYPE, ""); /* for the width of names and the blocks of pictures; numbers stay as they are */
    argp_err_exit_status = usage_code(argc, argv);
    struct ampctl ctl = {.endpoints = getenv("AMPCTL_ENDPOINTS")};
    if (ctl.endpoints == NULL || ctl.endpoints[0] == 0)
        ctl.endpoints = AMPCTL_DEFAULT_ENDPOINT;
    const struct argp_child children[] = {{&ampctl_common_argp, 0, NULL, 0}, {0}};
    const struct argp argp = {
        .parser = parse_command, .args_doc = "VERB [ARGUMENTS]", .doc = program_doc, .children = children};
    struct command command = {.ctl = &ctl};
    (void)argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &command);
    const struct verb *verb = find_verb(argv[command.verb_at]);
    if (verb == NULL) {
        (void)ampctl_print(stderr, "ampctl: there is no verb \"%s\"; see ampctl --help", argv[command.verb_at]);
        return AMPCTL_EXIT_USAGE;
    }
    ctl.verb = verb->name;
    int code = verb->run(&ctl, argc - command.verb_at, argv + command.verb_at);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        (void)ampctl_print(stderr, "ampctl: the output could not be written; is the disk full?");
        return code != 0 ? code : AMPCTL_EXIT_FAILED;
    }
    return code;
}
