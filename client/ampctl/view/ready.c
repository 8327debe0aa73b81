/*
 * ampctl ready: exit codes as pg_isready has them: 0 the server accepts work, 1 it is there and does not (it starts or
 * drains), 2 no answer, 3 no attempt was made (usage).
 */
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"
#include "client/io/methods.h"

#include <stdio.h>

enum { ACCEPTING = 0, REJECTING = 1, NO_RESPONSE = 2, NO_ATTEMPT = AMPCTL_EXIT_NO_ATTEMPT };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    if (key == ARGP_KEY_ARG)
        argp_error(state, "ready takes no argument, but got \"%.40s\"", arg);
    return ARGP_ERR_UNKNOWN;
}

static int check(struct ampctl *ctl)
{
    const struct ampclient_request request = {.path = AMPCLIENT_HEALTH_CHECK, .timeout_ms = ctl->timeout_ms};
    struct ampclient_reply reply = {0};
    int code = NO_RESPONSE;
    (void)ampclient_rpc(ctl->link, &request, &reply);
    if (reply.code == 0)
        code = ampctl_is_serving(&reply.body) ? ACCEPTING : REJECTING;
    else if (reply.from_peer)
        code = REJECTING;
    static const char *const words[] = {"accepting", "rejecting", "no response"};
    if (ctl->json)
        (void)ampctl_print(stdout, "{\"ready\":%s,\"status\":\"%s\"}", code == ACCEPTING ? "true" : "false",
                           words[code]);
    else
        (void)ampctl_print(stdout, "%s: %s", ctl->endpoints, words[code]);
    if (code == NO_RESPONSE)
        ampctl_print_failure(ctl, ctl->endpoints, &reply);
    ampclient_reply_close(&reply);
    return code;
}

static int run_ready(struct ampctl *ctl, int argc, char **argv)
{
    ampctl_parse(ctl, &ampctl_ready_verb, NULL, argc, argv);
    return ampctl_open(ctl) != 0 ? NO_ATTEMPT : check(ctl);
}

const struct ampctl_verb ampctl_ready_verb = {
    .name = "ready",
    .summary = "whether the server accepts work",
    .doc = "Tells whether the server accepts work. Ends with 0 if it does, 1 if it is there but "
           "does not, 2 without an answer, 3 after wrong usage. A standby does not: give one address.",
    .examples = "ampctl ready\n"
                "ampctl -e 10.0.0.7:7420 -t 1 ready && start-workers",
    .parser = parse,
    .run = run_ready,
};
