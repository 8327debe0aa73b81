/*
 * ampctl: asks an ampd from the command line.
 *
 * Data goes to stdout, talk to stderr. Exit codes: 0; 1 something failed here; 2 usage; 64 + the gRPC status of a call that
 * failed; `ready` has those of pg_isready (ready.c).
 */
#include "client/ampctl/ctl.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_ENDPOINT "127.0.0.1:7420"

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
};

/* ---- options that all verbs have ---- */

enum {
    KEY_ENDPOINT = 'e',
    KEY_OUTPUT = 'o',
    KEY_TIMEOUT = 't',
    KEY_CACERT = 512, /* above the verbs' own keys */
    KEY_CERT,
    KEY_KEY,
    KEY_SERVER_NAME,
    KEY_TOKEN_FILE,
    KEY_TOKEN_OVER_PLAINTEXT
};

static const struct argp_option common_options[] = {
    {"endpoint", KEY_ENDPOINT, "HOST:PORT", 0,
     "Server, also tls://HOST:PORT or unix:PATH; several with commas are tried in turn (AMPCTL_ENDPOINTS, "
     "else " DEFAULT_ENDPOINT ")",
     0},
    {"output", KEY_OUTPUT, "table|json|csv", 0, "Form of the data (table); csv by RFC 4180, for lists", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "How long a call may take (10)", 0},
    {"cacert", KEY_CACERT, "FILE", 0, "TLS, with a server certificate by these authorities (AMPD_CACERT)", 0},
    {"cert", KEY_CERT, "FILE", 0, "TLS, with this client certificate (AMPD_CERT)", 0},
    {"key", KEY_KEY, "FILE", 0, "The private key of --cert (AMPD_KEY)", 0},
    {"server-name", KEY_SERVER_NAME, "NAME", 0,
     "TLS, with a server certificate for this name, not the endpoint's (AMPD_SERVER_NAME)", 0},
    {"token-file", KEY_TOKEN_FILE, "FILE", 0, "Send the token in this file (AMPD_TOKEN_FILE)", 0},
    {"token-over-plaintext", KEY_TOKEN_OVER_PLAINTEXT, NULL, 0, "Send it to other machines without TLS too", 0},
    {0},
};

/* Above a year a timeout is a mistake. */
#define TIMEOUT_MAX_S 31536000.0

/* False: the key is none of these. */
static bool parse_secure(int key, const char *arg, struct ampclient_secure_options *secure)
{
    switch (key) {
    case KEY_CACERT:
        secure->cacert = arg;
        return true;
    case KEY_CERT:
        secure->cert = arg;
        return true;
    case KEY_KEY:
        secure->key = arg;
        return true;
    case KEY_SERVER_NAME:
        secure->server_name = arg;
        return true;
    case KEY_TOKEN_FILE:
        secure->token_file = arg;
        return true;
    case KEY_TOKEN_OVER_PLAINTEXT:
        secure->token_over_plaintext = true;
        return true;
    default:
        return false;
    }
}

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
    struct ampctl *ctl = state->input;
    char *end;
    double seconds;
    switch (key) {
    case KEY_ENDPOINT:
        ctl->endpoints = arg;
        return 0;
    case KEY_OUTPUT:
        if (strcmp(arg, "json") != 0 && strcmp(arg, "table") != 0 && strcmp(arg, "csv") != 0)
            argp_error(state, "--output is \"%s\"; give table, json or csv", arg);
        ctl->csv = strcmp(arg, "csv") == 0;
        ctl->json = strcmp(arg, "json") == 0;
        return 0;
    case KEY_TIMEOUT:
        seconds = strtod(arg, &end);
        if (end == arg || *end != 0 || !(seconds >= 0.001 && seconds <= TIMEOUT_MAX_S))
            argp_error(state, "--timeout is \"%s\"; give seconds, 0.001 or more", arg);
        ctl->timeout_ms = (uint64_t)(seconds * 1000);
        return 0;
    default:
        return parse_secure(key, arg, &ctl->secure) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static const struct argp common_argp = {.options = common_options, .parser = parse_common};

/* ---- a verb's own ---- */

struct verb_input {
    struct ampctl *ctl;
    const struct argp *own;
    void *input;
};

static error_t parse_verb(int key, char *arg, struct argp_state *state)
{
    struct verb_input *input = state->input;
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = input->input;
        state->child_inputs[1] = input->ctl;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

void ampctl_parse(struct ampctl *ctl, const struct argp *own, void *input, int argc, char **argv)
{
    const struct argp_child children[] = {{own, 0, NULL, 0}, {&common_argp, 0, "Options of all verbs:", 1}, {0}};
    const struct argp argp = {.parser = parse_verb, .doc = own->doc, .children = children};
    struct verb_input all = {.ctl = ctl, .own = own, .input = input};
    char name[64];
    (void)snprintf(name, sizeof name, "ampctl %s", argv[0]);
    argv[0] = name;
    /* Errors, --help and --version end the program inside. */
    (void)argp_parse(&argp, argc, argv, 0, NULL, &all);
}

void ampctl_name(struct argp_state *state, char field[128], const char *value)
{
    if (value[0] == 0 || strlen(value) > 127)
        argp_error(state, "\"%.40s\" is no name; names have 1 to 127 bytes", value);
    (void)snprintf(field, 128, "%s", value);
}

error_t ampctl_one_model(int key, char *arg, struct argp_state *state, char field[128])
{
    switch (key) {
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "one model is enough; \"%.40s\" is too much", arg);
        ampctl_name(state, field, arg);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "name the model; ampctl models lists them");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

error_t ampctl_model_and_file(int key, char *arg, struct argp_state *state, char field[128], const char **file)
{
    switch (key) {
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            ampctl_name(state, field, arg);
        else if (state->arg_num == 1)
            *file = arg;
        else
            argp_error(state, "a model and a file are enough; \"%.40s\" is too much", arg);
        return 0;
    case ARGP_KEY_END:
        if (state->arg_num < 2)
            argp_error(state, "name the model and the file");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

uint64_t ampctl_number(struct argp_state *state, const char *option, const char *value)
{
    char *end;
    long long number = strtoll(value, &end, 10);
    if (end == value || *end != 0 || number < 0)
        argp_error(state, "%s is \"%.40s\"; give a number that is not negative", option, value);
    return (uint64_t)number;
}

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

/* Whether an argument is a common option whose value is the next argument. */
static bool takes_next(const char *argument)
{
    for (const struct argp_option *option = common_options; option->name != NULL; option++) {
        if (option->arg == NULL)
            continue;
        if (argument[0] == '-' && argument[1] == option->key && argument[2] == 0)
            return true;
        if (strncmp(argument, "--", 2) == 0 && strcmp(argument + 2, option->name) == 0)
            return true;
    }
    return false;
}

/* `ready` promises another code for wrong usage, and a wrong option may come before the verb. */
static int usage_code(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *one = argv[i];
        if (takes_next(one))
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
        ctl.endpoints = DEFAULT_ENDPOINT;
    const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    const struct argp argp = {
        .parser = parse_command, .args_doc = "VERB [ARGUMENTS]", .doc = program_doc, .children = children};
    struct command command = {.ctl = &ctl};
    (void)argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &command);
    const struct verb *verb = find_verb(argv[command.verb_at]);
    if (verb == NULL) {
        (void)fprintf(stderr, "ampctl: there is no verb \"%s\"; see ampctl --help\n", argv[command.verb_at]);
        return AMPCTL_EXIT_USAGE;
    }
    ctl.verb = verb->name;
    int code = verb->run(&ctl, argc - command.verb_at, argv + command.verb_at);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        (void)fprintf(stderr, "ampctl: the output could not be written; is the disk full?\n");
        return code != 0 ? code : AMPCTL_EXIT_FAILED;
    }
    return code;
}
