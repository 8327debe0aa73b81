/* ampctl drain and log-level. */
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"

#include <stdlib.h>
#include <string.h>

/* ---- drain ---- */

enum { KEY_GRACE = 256 };

#define GRACE_MAX_S 3600

static error_t parse_drain(int key, char *arg, struct argp_state *state)
{
    struct ampd_msg_drain_request *request = state->input;
    switch (key) {
    case KEY_GRACE:
        request->has_grace_ms = true;
        request->grace_ms = ampctl_number(state, "--grace", arg, GRACE_MAX_S) * 1000;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "drain takes no argument, but got \"%.40s\"", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option drain_options[] = {
    {"grace", KEY_GRACE, "SECONDS", 0, "Seconds that open calls have to end (10)", 0},
    {0},
};

static int run_drain(struct ampctl *ctl, int argc, char **argv)
{
    struct ampd_msg_drain_request request = {0};
    ampctl_parse(ctl, &ampctl_drain_verb, &request, argc, argv);
    ctl->here = true;
    int code = ampctl_ask_drain(ctl, &request);
    if (code == 0) {
        if (ctl->json || ctl->csv)
            (void)fputs(ctl->json ? "{\"draining\":true}\n" : "draining\r\ntrue\r\n", stdout);
        else
            (void)puts("draining");
    }
    return code;
}

const struct ampctl_verb ampctl_drain_verb = {
    .name = "drain",
    .summary = "shuts the server down",
    .doc = "Shuts the server down: it writes checkpoints, refuses new work, and ends.",
    .examples = "ampctl drain\n"
                "ampctl drain --grace 60",
    .options = drain_options,
    .parser = parse_drain,
    .run = run_drain,
};

/* ---- log-level ---- */

static const char *const levels[] = {"", "debug", "info", "warn", "error"};
#define LEVELS (sizeof levels / sizeof *levels)

static error_t parse_level(int key, char *arg, struct argp_state *state)
{
    struct ampd_msg_set_log_level_request *request = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        for (size_t i = 1; state->arg_num == 0 && i < LEVELS; i++)
            if (strcmp(arg, levels[i]) == 0)
                request->level = (enum ampd_msg_log_level)i;
        if (state->arg_num > 0 || request->level == AMPD_MSG_LOG_LEVEL_UNSPECIFIED)
            argp_error(state, "\"%.40s\": give one of debug, info, warn, error", arg);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "give the level: debug, info, warn or error");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int run_log_level(struct ampctl *ctl, int argc, char **argv)
{
    struct ampd_msg_set_log_level_request request = {0};
    ampctl_parse(ctl, &ampctl_log_level_verb, &request, argc, argv);
    ctl->here = true;
    static const struct ampctl_column columns[] = {
        {"old_level", NULL, false}, {"level", NULL, false}, {NULL, NULL, false}};
    struct ampd_msg_set_log_level_response answer;
    int code = ampctl_ask_set_log_level(ctl, &request, &answer);
    if (code == 0) {
        const char *old = (size_t)answer.old_level < LEVELS ? levels[answer.old_level] : "unknown";
        const char *now = levels[request.level];
        if (ctl->json || ctl->csv)
            code = ampctl_print_one(ctl, columns, json_pack("{s:s, s:s}", "old_level", old, "level", now));
        else
            (void)ampctl_print(stdout, "was %s, is %s", old, now);
    }
    return code;
}

const struct ampctl_verb ampctl_log_level_verb = {
    .name = "log-level",
    .arguments = "LEVEL",
    .first = "debug|info|warn|error",
    .summary = "changes the level of the server's log",
    .doc = "Changes the level of the server's log (debug, info, warn, error) until it ends.",
    .examples = "ampctl log-level debug",
    .parser = parse_level,
    .run = run_log_level,
};
