#include "client/io/follow.h"

#include "client/io/methods.h"
#include "proto/msg_admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a question, and between two of them: connections fail about as often. */
#define ASK_DEADLINE_MS 2000
#define ASK_AGAIN_MS    200

/*
 * A process that was stopped, or whose machine is gone, is followed by another one after the lease on its place, 5 s if nothing else
 * is said (server/io/cluster.h). Its connection must not be waited on for longer: one that is silent while calls wait is asked
 * whether the other side lives, which servers of several shards allow each second, and given up so much later.
 */
#define SHARD_KEEPALIVE_MS         2000
#define SHARD_KEEPALIVE_TIMEOUT_MS 4000
#define SHARD_CONNECT_MS           3000 /* room for a lost SYN and its answer */

struct question {
    struct ampclient_link *link;
    struct amp_buf answer;
};

static void on_state(struct arpc_channel *channel, enum arpc_channel_state state, const struct amp_error *error,
                     void *arg);

/*
 * What goes on over the connection before ends by itself; it is closed with the link, or when many more have followed. Calls that
 * wait for a connection to where the shard was are not let wait: they end UNAVAILABLE (ampclient_link_code), and are made again.
 */
static void retire(struct ampclient_link *link, struct arpc_channel *channel)
{
    if (arpc_channel_state(channel) != ARPC_CHANNEL_READY) {
        arpc_channel_close(channel, NULL, NULL);
        return;
    }
    uint32_t place = link->retired_next++ % AMPCLIENT_LINK_RETIRED_MAX;
    if (link->retired[place] != NULL)
        arpc_channel_close(link->retired[place], NULL, NULL);
    link->retired[place] = channel;
}

int ampclient_follow_open(struct ampclient_link *link, uint32_t shard, const char *endpoint, struct amp_error *error)
{
    struct arpc_channel *channel;
    struct arpc_channel_options options = link->channel_options;
    options.state_cb = on_state;
    options.arg = link;
    options.keepalive_time_ms = SHARD_KEEPALIVE_MS;
    options.keepalive_timeout_ms = SHARD_KEEPALIVE_TIMEOUT_MS;
    if (options.connect_ms == 0 || options.connect_ms > SHARD_CONNECT_MS)
        options.connect_ms = SHARD_CONNECT_MS;
    int rc = ampclient_secure_shard(&link->secure, endpoint, &options.tls, error);
    if (rc == 0)
        rc = arpc_channel_new(&link->loop, endpoint, &options, &channel, error);
    if (rc != 0)
        return rc;
    if (link->shards[shard] != NULL)
        retire(link, link->shards[shard]);
    link->shards[shard] = channel;
    (void)snprintf(link->endpoints[shard], sizeof link->endpoints[shard], "%s", endpoint);
    return 0;
}

void ampclient_follow_use(struct ampclient_link *link, const struct ampd_msg_shard_list *shards)
{
    for (uint32_t k = 0; shards->count == link->shards_count && k < link->shards_count; k++) {
        const char *endpoint = shards->items[k].endpoint;
        if (endpoint[0] != 0 && strcmp(endpoint, link->endpoints[k]) != 0)
            (void)ampclient_follow_open(link, k, endpoint, NULL); /* else the next question tries again */
    }
}

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct question *question = arpc_call_user(call);
    (void)amp_buf_append(&question->answer, data, size); /* without memory the answer does not parse */
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct question *question = arpc_call_user(call);
    struct ampclient_link *link = question->link;
    struct ampd_msg_get_status_response status;
    link->asking = false;
    if (result->status == ARPC_STATUS_OK && !link->closing &&
        ampd_msg_get_status_response_decode(&status, question->answer.data, question->answer.size, NULL) == 0) {
        ampclient_follow_use(link, &status.shards);
        ampd_msg_get_status_response_free(&status);
    }
    amp_buf_close(&question->answer);
    free(question);
}

static const struct arpc_handler handler = {.message = on_message, .closed = on_closed};

/* One that may answer: the shards in turn, then the endpoints that the user gave; best one that is connected. */
static uint32_t whom(struct ampclient_link *link)
{
    uint32_t count = link->shards_count + 1, found = count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = (link->ask_next + i) % count;
        const struct arpc_channel *channel = index < link->shards_count ? link->shards[index] : link->channel;
        enum arpc_channel_state state = arpc_channel_state(channel);
        if (state == ARPC_CHANNEL_READY || (found == count && state != ARPC_CHANNEL_BACKOFF))
            found = index;
        if (state == ARPC_CHANNEL_READY)
            break;
    }
    found = found == count ? link->ask_next % count : found;
    link->ask_next = found + 1;
    return found;
}

static void ask(struct ampclient_link *link)
{
    static const struct arpc_call_options options = {.size = sizeof options,
                                                     .deadline_ms = ASK_DEADLINE_MS,
                                                     .max_message = AMPD_MSG_SIZE_MAX,
                                                     .single_response = true};
    struct arpc_call *call;
    uint64_t now_ms = uv_now(&link->loop);
    if (link->asking || (link->asked_ms != 0 && now_ms - link->asked_ms < ASK_AGAIN_MS))
        return;
    struct question *question = calloc(1, sizeof *question);
    if (question == NULL)
        return;
    question->link = link;
    amp_buf_init(&question->answer, AMPD_MSG_SIZE_MAX);
    link->asked_ms = now_ms;
    if (ampclient_link_call(link, whom(link), AMPCLIENT_ADMIN_SERVICE "GetStatus", &options, &handler, question, &call,
                            NULL) != 0) {
        free(question);
        return;
    }
    link->asking = true;
    if (arpc_call_send(call, NULL, 0, NULL, 0, NULL, NULL) == 0)
        arpc_call_half_close(call);
    else
        arpc_call_cancel(call, ARPC_STATUS_CANCELLED, "the question cannot be sent");
}

static void on_state(struct arpc_channel *channel, enum arpc_channel_state state, const struct amp_error *error,
                     void *arg)
{
    struct ampclient_link *link = arg;
    bool lost = state == ARPC_CHANNEL_BACKOFF || (state == ARPC_CHANNEL_IDLE && error != NULL);
    if (lost && !link->closing)
        ask(link);
}

/* The next one of the endpoints that the user gave is the first from now on. */
static void go_elsewhere(struct ampclient_link *link)
{
    char *target = link->secure.target, *comma = strchr(target, ',');
    struct arpc_channel *channel;
    if (comma == NULL)
        return;
    size_t first = (size_t)(comma - target), rest = strlen(comma + 1);
    char *turned = malloc(first + rest + 2);
    if (turned == NULL)
        return; /* the next refusal tries again */
    (void)snprintf(turned, first + rest + 2, "%s,%.*s", comma + 1, (int)first, target);
    if (arpc_channel_new(&link->loop, turned, &link->channel_options, &channel, NULL) != 0) {
        free(turned);
        return;
    }
    free(target);
    link->secure.target = turned;
    retire(link, link->channel);
    link->channel = channel;
}

void ampclient_follow_refused(struct ampclient_link *link, const char *reason)
{
    static const char *const reasons[] = {"STANDBY", "SHARD_MOVED", "NOT_COORDINATOR"};
    bool elsewhere = false;
    for (size_t i = 0; reason != NULL && i < sizeof reasons / sizeof reasons[0]; i++)
        elsewhere = elsewhere || strcmp(reason, reasons[i]) == 0;
    if (!elsewhere || link->closing)
        return;
    if (link->shards_count > 0)
        ask(link);
    else
        go_elsewhere(link);
}
