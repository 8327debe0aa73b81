/* How ampctl reads its command line: the options that all verbs have, and the arguments that several take. */
#define _DEFAULT_SOURCE /* argp's flags */
#include "client/ampctl/parse.h"

#include "base/usage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

const struct argp_option ampctl_common_options[] = {
    {"endpoint", KEY_ENDPOINT, "HOST:PORT", 0,
     "Server: HOST:PORT, tls://HOST:PORT or unix:PATH; several, separated by commas, are tried in turn "
     "(AMPCTL_ENDPOINTS, else " AMPCTL_DEFAULT_ENDPOINT ")",
     0},
    {"output", KEY_OUTPUT, "table|json|csv", 0, "Form of the output (table); csv is for lists, by RFC 4180", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "Seconds that a call may take (10)", 0},
    {"cacert", KEY_CACERT, "FILE", 0,
     "Use TLS, and check the server's certificate with these authorities (AMPD_CACERT)", 0},
    {"cert", KEY_CERT, "FILE", 0, "Use TLS, with this client certificate (AMPD_CERT)", 0},
    {"key", KEY_KEY, "FILE", 0, "The private key of --cert (AMPD_KEY)", 0},
    {"server-name", KEY_SERVER_NAME, "NAME", 0,
     "Use TLS, and expect this name in the server's certificate instead of the endpoint's (AMPD_SERVER_NAME)", 0},
    {"token-file", KEY_TOKEN_FILE, "FILE", 0, "Send the token in this file (AMPD_TOKEN_FILE)", 0},
    {"token-over-plaintext", KEY_TOKEN_OVER_PLAINTEXT, NULL, 0, "Send the token to other machines even without TLS", 0},
    {0},
};

#define COMMON_OPTIONS (sizeof ampctl_common_options / sizeof *ampctl_common_options)

/* What a verb does, and its examples. */
#define DOC_SIZE 2048

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

const struct argp ampctl_common_argp = {.options = ampctl_common_options, .parser = parse_common};

/* ---- a verb's own ---- */

struct verb_input {
    struct ampctl *ctl;
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

/* A verb's --help has its own options alone: the others are in that of ampctl. */
static void hide_common(struct argp_option hidden[COMMON_OPTIONS])
{
    memcpy(hidden, ampctl_common_options, sizeof ampctl_common_options);
    for (struct argp_option *option = hidden; option->name != NULL; option++)
        option->flags |= OPTION_HIDDEN;
}

/* What stands above the options in --help: what the verb does, then examples. */
static void write_doc(const struct ampctl_verb *verb, char *text, size_t capacity)
{
    size_t size = (size_t)snprintf(text, capacity, "%s\n\nExamples:\n", verb->doc);
    for (const char *line = verb->examples; *line != 0 && size < capacity;) {
        size_t length = strcspn(line, "\n");
        size += (size_t)snprintf(text + size, capacity - size, "  %.*s\n", (int)length, line);
        line += length + (line[length] != 0);
    }
    if (size < capacity)
        (void)snprintf(text + size, capacity - size,
                       "\vOptions of all verbs, as --endpoint and --output: ampctl --help");
}

void ampctl_wrong_option(const char *program, const char *wrong)
{
    (void)ampctl_print(stderr, "%s: %s%s See %s --help", program, wrong, strchr(wrong, '?') != NULL ? "" : ".",
                       program);
    exit(argp_err_exit_status);
}

/* Whether argv[i] is an option that takes argv[i + 1]. */
static bool takes_next(char **argv, int i, const struct argp_option *const *tables)
{
    for (; *tables != NULL; tables++)
        if (amp_usage_takes_next(*tables, argv[i]))
            return true;
    return false;
}

static bool is_negative(const char *word)
{
    return word[0] == '-' && word[1] >= '0' && word[1] <= '9';
}

/*
 * A negative number is an argument, where getopt would see an option: if there is one, all arguments come last, behind
 * "--". No option is a digit. Returns argv, or a copy, which the caller frees, of *argc_at words.
 */
static char **set_apart(int *argc_at, char **argv, const struct argp_option *const *tables)
{
    static char separator[] = "--";
    int argc = *argc_at, used = 1, negative = 0, end = argc;
    for (int i = 1; i < end; i++)
        if (strcmp(argv[i], "--") == 0)
            end = i;
        else if (is_negative(argv[i]))
            negative++;
        else
            i += takes_next(argv, i, tables);
    char **words = negative > 0 ? calloc((size_t)argc + 2, sizeof *words) : NULL;
    if (words == NULL)
        return argv;
    words[0] = argv[0];
    for (int i = 1; i < end; i++) {
        bool next = takes_next(argv, i, tables) && i + 1 < argc;
        if (argv[i][0] != '-' || argv[i][1] == 0 || is_negative(argv[i]))
            continue;
        words[used++] = argv[i];
        if (next)
            words[used++] = argv[++i];
    }
    words[used++] = separator;
    for (int i = 1; i < argc; i++)
        if (i > end || argv[i][0] != '-' || argv[i][1] == 0 || is_negative(argv[i]))
            words[used++] = argv[i];
        else if (i < end)
            i += takes_next(argv, i, tables);
    *argc_at = used;
    return words;
}

void ampctl_parse(struct ampctl *ctl, const struct ampctl_verb *verb, void *input, int argc, char **argv)
{
    static const struct argp_option none[] = {{0}};
    struct argp_option hidden[COMMON_OPTIONS];
    char name[64], doc[DOC_SIZE], wrong[128];
    hide_common(hidden);
    write_doc(verb, doc, sizeof doc);
    (void)snprintf(name, sizeof name, "ampctl %s", verb->name);
    const struct argp own = {.options = verb->options, .parser = verb->parser, .args_doc = verb->arguments};
    const struct argp common = {.options = hidden, .parser = parse_common};
    const struct argp_child children[] = {{&own, 0, NULL, 0}, {&common, 0, NULL, 0}, {0}};
    const struct argp argp = {.parser = parse_verb, .doc = doc, .children = children};
    const struct argp_option *const tables[] = {verb->options != NULL ? verb->options : none, ampctl_common_options,
                                                NULL};
    struct verb_input all = {.ctl = ctl, .input = input};
    if (!amp_usage_options_known(argc, argv, tables, true, wrong, sizeof wrong))
        ampctl_wrong_option(name, wrong);
    argv[0] = name;
    char **words = set_apart(&argc, argv, tables);
    /* Errors, --help and --version end the program inside. */
    (void)argp_parse(&argp, argc, words, 0, NULL, &all);
    if (words != argv)
        free(words);
    if (ctl->timeout_ms == 0)
        ctl->timeout_ms = verb->timeout_ms != 0 ? verb->timeout_ms : AMPCTL_TIMEOUT_MS;
}

void ampctl_name(struct argp_state *state, char field[128], const char *value)
{
    if (value[0] == 0 || strlen(value) > 127)
        argp_error(state, "\"%.40s\" is not a name; names have 1 to 127 bytes", value);
    (void)snprintf(field, 128, "%s", value);
}

error_t ampctl_from_to(struct argp_state *state, uint64_t from, bool has_to, uint64_t to)
{
    if (has_to && to < from)
        argp_error(state, "--to %llu is before --from %llu; give the first step as --from", (unsigned long long)to,
                   (unsigned long long)from);
    return 0;
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

error_t ampctl_model_and(int key, char *arg, struct argp_state *state, char field[128], const char **word,
                         const char *what, const char *missing)
{
    switch (key) {
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            ampctl_name(state, field, arg);
        else if (state->arg_num == 1)
            *word = arg;
        else
            argp_error(state, "a model and a %s are enough; \"%.40s\" is too much", what, arg);
        return 0;
    case ARGP_KEY_END:
        if (state->arg_num < 2)
            argp_error(state, "%s", missing);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

error_t ampctl_model_and_file(int key, char *arg, struct argp_state *state, char field[128], const char **file)
{
    return ampctl_model_and(key, arg, state, field, file, "file", "name the model and the file");
}

uint64_t ampctl_number(struct argp_state *state, const char *option, const char *value, uint64_t max)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end != 0 || errno != 0 || number > max)
        argp_error(state, "%s is \"%.40s\"; give a number from 0 to %" PRIu64, option, value, max);
    return number;
}
