/*
 * Our side of the rows rpc_unary_: calls of ampd.test.v1.Echo.Unary one after another, on one connection of our
 * channel.
 *
 *     rpc_unary TARGET CALLS    for each line on stdin makes CALLS calls of 64 bytes and prints their median and their
 *                               99th percentile in seconds
 *
 * The line is read by plain stdio, so that the event loop does not run between rounds; no call is open then, and the
 * rounds follow each other at once. The time of a call is from before it is made until its status has arrived, as in
 * the peer (grpcpp_peer.cc).
 */
#include "rpc/arpc_client.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define REQUEST_BYTES 64
#define DEADLINE_MS   60000

struct answer {
    size_t size;
    bool over;
};

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    ((struct answer *)arpc_call_user(call))->size = size;
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    if (result->status != ARPC_STATUS_OK) {
        (void)fprintf(stderr, "rpc_unary: status %d: %s\n", result->status, result->message);
        exit(1);
    }
    ((struct answer *)arpc_call_user(call))->over = true;
}

static const struct arpc_handler handler = {.message = on_message, .closed = on_closed};

static uint64_t call_once(struct arpc_channel *channel, const uint8_t *request)
{
    static const struct arpc_call_options options = {
        .size = sizeof options, .deadline_ms = DEADLINE_MS, .single_response = true};
    struct answer answer = {0};
    struct arpc_call *call;
    uint64_t begin_ns = uv_hrtime();
    if (arpc_channel_call(channel, "/ampd.test.v1.Echo/Unary", &options, &handler, &answer, &call, NULL) != 0 ||
        arpc_call_send(call, request, REQUEST_BYTES, NULL, 0, NULL, NULL) != 0) {
        (void)fprintf(stderr, "rpc_unary: no call could be made\n");
        exit(1);
    }
    arpc_call_half_close(call);
    while (!answer.over)
        (void)uv_run(uv_default_loop(), UV_RUN_ONCE);
    uint64_t ns = uv_hrtime() - begin_ns;
    if (answer.size != REQUEST_BYTES) {
        (void)fprintf(stderr, "rpc_unary: the answer is not the request\n");
        exit(1);
    }
    return ns;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void run_round(struct arpc_channel *channel, uint64_t *times_ns, size_t calls)
{
    uint8_t request[REQUEST_BYTES];
    for (size_t i = 0; i < sizeof request; i++)
        request[i] = (uint8_t)i;
    for (size_t i = 0; i < calls; i++)
        times_ns[i] = call_once(channel, request);
    qsort(times_ns, calls, sizeof *times_ns, by_value);
    (void)printf("%.9f %.9f\n", (double)times_ns[calls / 2] * 1e-9, (double)times_ns[calls * 99 / 100] * 1e-9);
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    size_t calls = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (calls == 0) {
        (void)fprintf(stderr, "usage: rpc_unary TARGET CALLS\n");
        return 2;
    }
    struct arpc_channel_options options = {.size = sizeof options};
    struct arpc_channel *channel;
    struct amp_error error;
    (void)signal(SIGPIPE, SIG_IGN);
    uint64_t *times_ns = calloc(calls, sizeof *times_ns);
    if (times_ns == NULL || arpc_channel_new(uv_default_loop(), argv[1], &options, &channel, &error) != 0) {
        (void)fprintf(stderr, "rpc_unary: %s\n", times_ns == NULL ? "no memory" : error.text);
        return 1;
    }
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL)
        run_round(channel, times_ns, calls);
    arpc_channel_close(channel, NULL, NULL);
    (void)uv_run(uv_default_loop(), UV_RUN_DEFAULT);
    free(times_ns);
    return 0;
}
