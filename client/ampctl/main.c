/*
 * ampctl: asks an ampd from the command line.
 *
 * Data goes to stdout, talk to stderr. Exit codes: 0; 1 something failed here; 2 usage; 64 + the gRPC status of a call
 * that failed; `ready` has those of pg_isready (ready.c).
 */
#define _DEFAULT_SOURCE /* argp's flags */
#include "base/streams.h"
#include "base/usage.h"
#include "client/ampctl/ctl.h"
#include "client/ampctl/pages.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/verbs.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) const char *argp_program_version = "ampctl " AMPCTL_VERSION;

enum { KEY_USAGE_AS = 256 };

/* For the build alone: what the manual page and the completion are made of. */
static const struct argp_option program_options[] = {
    {"usage-as", KEY_USAGE_AS, "scdoc|bash", OPTION_HIDDEN, "Print the usage in this form", 0},
    {0},
};

struct command {
    struct ampctl *ctl;
    int verb_at; /* index in argv; 0: none */
    const char *usage_as;
};

static error_t parse_command(int key, char *arg, struct argp_state *state)
{
    struct command *command = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = command->ctl;
        return 0;
    case KEY_USAGE_AS:
        command->usage_as = arg;
        return 0;
    case ARGP_KEY_ARG:
        command->verb_at = state->next - 1;
        state->next = state->argc; /* the rest is the verb's */
        return 0;
    case ARGP_KEY_NO_ARGS:
        if (command->usage_as == NULL)
            argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* `ready` promises another code for wrong usage, and a wrong option may come before the verb. */
static int usage_code(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *one = argv[i];
        if (amp_usage_takes_next(ampctl_common_options, one))
            i++;
        else if (one[0] != '-')
            return strcmp(one, "ready") == 0 ? AMPCTL_EXIT_NO_ATTEMPT : AMPCTL_EXIT_USAGE;
    }
    return AMPCTL_EXIT_USAGE;
}

static void check_options(int argc, char **argv)
{
    const struct argp_option *const tables[] = {ampctl_common_options, program_options, NULL};
    char wrong[128];
    if (amp_usage_options_known(argc, argv, tables, false, wrong, sizeof wrong))
        return;
    ampctl_wrong_option("ampctl", wrong);
}

/* Fills *command of the words before the verb. */
static void parse(int argc, char **argv, struct command *command)
{
    char *doc = ampctl_pages_doc();
    const struct argp_child children[] = {{&ampctl_common_argp, 0, "Options of all verbs:", 1}, {0}};
    const struct argp argp = {.options = program_options,
                              .parser = parse_command,
                              .args_doc = "VERB [ARGUMENTS]",
                              .doc = doc,
                              .children = children};
    check_options(argc, argv);
    (void)argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, command);
    free(doc);
}

/* "help" and "help VERB" are what people try first. */
static void take_help(int argc, char **argv, int *at)
{
    static char help[] = "--help";
    if (strcmp(argv[*at], "help") != 0)
        return;
    if (*at + 1 == argc) {
        argv[*at] = help;
        *at = 0;
        return;
    }
    for (int i = *at; i + 1 < argc; i++)
        argv[i] = argv[i + 1];
    argv[argc - 1] = help;
}

static int run(struct command *command, int argc, char **argv)
{
    const char *meant;
    int words;
    const struct ampctl_verb *verb = ampctl_verb_find(argc, argv, &words, &meant);
    if (verb == NULL) {
        (void)ampctl_print(stderr, "ampctl: there is no verb \"%s\"%s%s%s See ampctl --help", argv[0],
                           meant != NULL ? "; did you mean \"" : "", meant != NULL ? meant : "",
                           meant != NULL ? "\"?" : ".");
        return AMPCTL_EXIT_USAGE;
    }
    command->ctl->verb = verb->name;
    int code = verb->run(command->ctl, argc - words + 1, argv + words - 1);
    ampctl_close(command->ctl);
    return code;
}

int main(int argc, char **argv)
{
    amp_streams_hold();
    (void)setlocale(LC_CTYPE, ""); /* for the width of names and the blocks of pictures; numbers stay as they are */
    argp_err_exit_status = usage_code(argc, argv);
    struct ampctl ctl = {.endpoints = getenv("AMPCTL_ENDPOINTS")};
    if (ctl.endpoints == NULL || ctl.endpoints[0] == 0)
        ctl.endpoints = AMPCTL_DEFAULT_ENDPOINT;
    struct command command = {.ctl = &ctl};
    for (const struct ampctl_verb *const *verb = ampctl_verbs; *verb != NULL; verb++)
        if ((*verb)->prepare != NULL)
            (*verb)->prepare();
    parse(argc, argv, &command);
    if (command.verb_at > 0)
        take_help(argc, argv, &command.verb_at);
    if (command.verb_at == 0 && command.usage_as == NULL)
        parse(argc, argv, &command); /* --help, which ends here */
    int code = command.usage_as != NULL ? ampctl_pages_print(command.usage_as)
                                        : run(&command, argc - command.verb_at, argv + command.verb_at);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        (void)ampctl_print(stderr, "ampctl: the output could not be written; is the disk full?");
        return code != 0 ? code : AMPCTL_EXIT_FAILED;
    }
    return code;
}
