#include "client/io/follow.h"

#include "client/io/methods.h"
#include "proto/msg_admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The deadline of a question, and the least time between two questions. */
#define ASK_DEADLINE_MS 2000
#define ASK_AGAIN_MS    200

/*
 * Longest list of the user's endpoints, with the address that a refusal names before them; with a longer list that
 * address is not tried.
 */
#define ENDPOINTS_MAX 4096

struct question {
    struct ampclient_follow *follow;
    struct amp_buf answer;
};

void ampclient_follow_use(struct ampclient_follow *follow, const struct ampd_msg_shard_list *shards)
{
    struct ampclient_channels *channels = follow->channels;
    for (uint32_t k = 0; shards->count == channels->shards_count && k < channels->shards_count; k++) {
        const char *endpoint = shards->items[k].endpoint;
        if (endpoint[0] != 0 && strcmp(endpoint, channels->endpoints[k]) != 0)
            (void)ampclient_channels_open_shard(channels, k, endpoint, NULL); /* else the next question tries again */
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
    struct ampclient_follow *follow = question->follow;
    struct ampd_msg_get_status_response status;
    follow->asking = false;
    if (result->status == ARPC_STATUS_OK && !follow->channels->closing &&
        ampd_msg_get_status_response_decode(&status, question->answer.data, question->answer.size, NULL) == 0) {
        ampclient_follow_use(follow, &status.shards);
        ampd_msg_get_status_response_free(&status);
    }
    amp_buf_close(&question->answer);
    free(question);
}

static const struct arpc_handler handler = {.message = on_message, .closed = on_closed};

/* Index of a connection to ask: the shards in turn, then the user's endpoints; preferably one that is connected. */
static uint32_t whom(struct ampclient_follow *follow)
{
    const struct ampclient_channels *channels = follow->channels;
    uint32_t count = channels->shards_count + 1, found = count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = (follow->ask_next + i) % count;
        const struct arpc_channel *channel = index < channels->shards_count ? channels->shards[index] : channels->first;
        enum arpc_channel_state state = arpc_channel_state(channel);
        if (state == ARPC_CHANNEL_READY || (found == count && state != ARPC_CHANNEL_BACKOFF))
            found = index;
        if (state == ARPC_CHANNEL_READY)
            break;
    }
    found = found == count ? follow->ask_next % count : found;
    follow->ask_next = found + 1;
    return found;
}

static void ask(struct ampclient_follow *follow)
{
    static const struct arpc_call_options options = {.size = sizeof options,
                                                     .deadline_ms = ASK_DEADLINE_MS,
                                                     .max_message = AMPD_MSG_SIZE_MAX,
                                                     .single_response = true};
    struct arpc_call *call;
    uint64_t now_ms = uv_now(follow->channels->loop);
    if (follow->asking || (follow->asked_ms != 0 && now_ms - follow->asked_ms < ASK_AGAIN_MS))
        return;
    struct question *question = calloc(1, sizeof *question);
    if (question == NULL)
        return;
    question->follow = follow;
    amp_buf_init(&question->answer, AMPD_MSG_SIZE_MAX);
    follow->asked_ms = now_ms;
    if (ampclient_channels_call(follow->channels, whom(follow), AMPCLIENT_ADMIN_SERVICE "GetStatus", &options, &handler,
                                question, &call, NULL) != 0) {
        free(question);
        return;
    }
    follow->asking = true;
    if (arpc_call_send(call, NULL, 0, NULL, 0, NULL, NULL) == 0)
        arpc_call_half_close(call);
    else
        arpc_call_cancel(call, ARPC_STATUS_CANCELLED, "the question cannot be sent");
}

static void on_lost(void *arg)
{
    ask(arg);
}

void ampclient_follow_init(struct ampclient_follow *follow, struct ampclient_channels *channels)
{
    *follow = (struct ampclient_follow){.channels = channels};
    channels->lost_cb = on_lost;
    channels->lost_arg = follow;
}

/* Puts the first of the endpoints that the user gave behind the others. False: there is no other, or no memory. */
static bool rotate(char **target)
{
    const char *comma = strchr(*target, ',');
    if (comma == NULL)
        return false;
    size_t first = (size_t)(comma - *target), size = strlen(*target) + 1;
    char *turned = malloc(size);
    if (turned == NULL)
        return false; /* the next refusal tries again */
    (void)snprintf(turned, size, "%s,%.*s", comma + 1, (int)first, *target);
    free(*target);
    *target = turned;
    return true;
}

/*
 * Connects to the address of shard 0 that a refusal has named, if it may be used; the user's own endpoints come behind
 * it.
 */
static bool go_where_told(struct ampclient_channels *channels, const char *address)
{
    struct arpc_tls *tls = NULL;
    char endpoints[ENDPOINTS_MAX];
    if (address == NULL || address[0] == 0 || strchr(address, ',') != NULL ||
        ampclient_secure_shard(&channels->secure, address, &tls, NULL) != 0 || tls != channels->options.tls)
        return false; /* a channel has one TLS context for all its addresses */
    int size = snprintf(endpoints, sizeof endpoints, "%s,%s", address, channels->secure.target);
    return size > 0 && (size_t)size < sizeof endpoints && ampclient_channels_go_to(channels, endpoints);
}

bool ampclient_follow_elsewhere(const char *reason)
{
    static const char *const reasons[] = {"STANDBY", "SHARD_MOVED", "NOT_COORDINATOR"};
    bool elsewhere = false;
    for (size_t i = 0; reason != NULL && i < sizeof reasons / sizeof reasons[0]; i++)
        elsewhere = elsewhere || strcmp(reason, reasons[i]) == 0;
    return elsewhere;
}

void ampclient_follow_refused(struct ampclient_follow *follow, const struct arpc_details *details)
{
    struct ampclient_channels *channels = follow->channels;
    if (!ampclient_follow_elsewhere(details->reason) || channels->closing)
        return;
    if (channels->shards_count > 0) {
        ask(follow);
        return;
    }
    bool rotated = rotate(&channels->secure.target); /* also if an address is named: the process there may be gone */
    if (!go_where_told(channels, arpc_details_find(details, "coordinator")) && rotated)
        (void)ampclient_channels_go_to(channels, channels->secure.target);
}
