#include "tests/unit/rpc_pair.h"

#include "base/assert.h"
#include "rpc/h2/request.h"

#include <stdio.h>
#include <string.h>

/* Rounds after which two sides that still talk are held to talk for ever. */
#define ROUNDS_MAX 100000

struct rpc_seen rpc_seen_of_server;

static void wake(struct arpc_link *link)
{
    struct rpc_side *side = AMP_CONTAINER(link, struct rpc_side, link);
    side->woken++;
}

static int64_t read_clock(void *clock)
{
    return *(int64_t *)clock;
}

void rpc_side_config(struct rpc_side *side, bool server, int64_t *clock_ms)
{
    side->config = (struct arpc_link_config){.server = server,
                                             .now_cb = read_clock,
                                             .clock = clock_ms,
                                             .max_streams = server ? 256 : 1024,
                                             .max_metadata_bytes = 8192,
                                             .max_metadata_count = 64,
                                             .max_queued = (size_t)64 << 20,
                                             .stream_window = (size_t)16 << 20,
                                             .idle_ms = server ? 300000 : 0,
                                             .keepalive_ms = server ? 7200000 : 30000,
                                             .min_ping_interval_ms = server ? 300000 : 0,
                                             .write_stall_ms = 30000};
}

void rpc_pair_prepare(struct rpc_pair *pair, const struct arpc_method *methods, size_t count)
{
    memset(pair, 0, sizeof *pair);
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    pair->now_ms = 1000;
    rpc_side_config(&pair->client, false, &pair->now_ms);
    rpc_side_config(&pair->server, true, &pair->now_ms);
    AMP_ASSERT(arpc_method_table_add(&pair->server.config.methods, methods, count, NULL) == 0);
}

int rpc_side_open(struct rpc_side *side)
{
    int rc = arpc_link_init(&side->link, &side->config, wake, true);
    (void)snprintf(side->link.peer, sizeof side->link.peer, "test");
    return rc;
}

void rpc_pair_connect(struct rpc_pair *pair)
{
    AMP_ASSERT(rpc_side_open(&pair->client) == 0);
    AMP_ASSERT(rpc_side_open(&pair->server) == 0);
}

void rpc_pair_open(struct rpc_pair *pair, const struct arpc_method *methods, size_t count)
{
    rpc_pair_prepare(pair, methods, count);
    rpc_pair_connect(pair);
}

static void deliver(struct rpc_pair *pair, struct rpc_side *to, const uint8_t *data, size_t size)
{
    while (size > 0 && to->link.error == 0 && !pair->cut) {
        size_t chunk = pair->chunk != 0 && pair->chunk < size ? pair->chunk : size;
        (void)arpc_link_receive(&to->link, data, chunk); /* its error is the link's, which tests look at */
        while (arpc_link_flush(&to->link))
            ;
        data += chunk;
        size -= chunk;
    }
}

bool rpc_pair_carry(struct rpc_pair *pair, struct rpc_side *from, struct rpc_side *to)
{
    (void)arpc_link_produce(&from->link, &from->batch); /* its error is the link's */
    bool moved = from->batch.bytes > 0;
    for (size_t i = 0; i < from->batch.count; i++)
        deliver(pair, to, from->batch.slots[i].iov_base, from->batch.slots[i].iov_len);
    arpc_batch_done(&from->link, &from->batch);
    return moved;
}

/* True if anything was done. */
static bool step(struct rpc_pair *pair, struct rpc_side *from, struct rpc_side *to)
{
    size_t woken = from->woken;
    while (arpc_link_flush(&from->link))
        ;
    if (from->link.error != 0)
        return false;
    bool moved = rpc_pair_carry(pair, from, to);
    return moved || from->woken != woken || !amp_list_empty(&from->link.events) || !amp_list_empty(&from->link.dirty);
}

void rpc_pair_run(struct rpc_pair *pair)
{
    for (int round = 0;; round++) {
        AMP_ASSERT(round < ROUNDS_MAX);
        bool client = step(pair, &pair->client, &pair->server);
        bool server = step(pair, &pair->server, &pair->client);
        if (!client && !server)
            return;
    }
}

void rpc_pair_pass(struct rpc_pair *pair, int64_t ms)
{
    pair->now_ms += ms;
    arpc_link_tick(&pair->client.link);
    arpc_link_tick(&pair->server.link);
    rpc_pair_run(pair);
}

void rpc_side_close(struct rpc_side *side)
{
    if (side->link.error == 0)
        arpc_link_fail(&side->link, AMP_EUNAVAILABLE, "over");
    arpc_link_abort(&side->link, ARPC_STATUS_UNAVAILABLE, "the test is over");
    while (arpc_link_flush(&side->link))
        ;
    arpc_link_close(&side->link);
    arpc_method_table_close(&side->config.methods);
}

void rpc_pair_close(struct rpc_pair *pair)
{
    rpc_side_close(&pair->client);
    rpc_side_close(&pair->server);
    AMP_ASSERT(pair->client.config.calls == 0 && pair->server.config.calls == 0);
}

struct arpc_call *rpc_pair_call(struct rpc_pair *pair, const char *method, const struct arpc_handler *handler,
                                void *user)
{
    char path[128];
    struct arpc_call *call;
    (void)snprintf(path, sizeof path, "/t.T/%s", method);
    AMP_ASSERT(arpc_request_new(&pair->client.link, path, NULL, 0, handler, &call, NULL) == 0);
    call->in.max_message = (size_t)4 << 20;
    arpc_call_set_user(call, user);
    return call;
}

static struct rpc_seen *seen_of(struct arpc_call *call)
{
    struct rpc_seen *seen = arpc_call_user(call);
    AMP_ASSERT(seen != NULL);
    seen->after_closed += seen->closed;
    return seen;
}

static void on_started(struct arpc_call *call)
{
    if (arpc_call_user(call) == NULL)
        arpc_call_set_user(call, &rpc_seen_of_server);
    struct rpc_seen *seen = seen_of(call);
    seen->call = call;
    seen->started++;
}

static void on_begin(struct arpc_call *call, size_t size)
{
    struct rpc_seen *seen = seen_of(call);
    seen->begun++;
    seen->last_begin = size;
}

static void on_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct rpc_seen *seen = seen_of(call);
    for (size_t i = 0; i < size && seen->bytes + i < sizeof seen->data; i++)
        seen->data[seen->bytes + i] = data[i];
    seen->bytes += size;
}

static void on_end(struct arpc_call *call)
{
    seen_of(call)->ended++;
}

static void on_half_close(struct arpc_call *call)
{
    seen_of(call)->half_closed++;
}

static void on_writable(struct arpc_call *call)
{
    seen_of(call)->writable++;
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct rpc_seen *seen = seen_of(call);
    seen->closed++;
    seen->status = result->status;
    seen->from_peer = result->from_peer;
    (void)snprintf(seen->message, sizeof seen->message, "%s", result->message);
}

const struct arpc_handler rpc_noting = {.started = on_started,
                                        .message_begin = on_begin,
                                        .message_bytes = on_bytes,
                                        .message_end = on_end,
                                        .half_close = on_half_close,
                                        .writable = on_writable,
                                        .closed = on_closed};
