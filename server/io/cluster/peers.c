#include "server/io/cluster/peers.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "base/text.h"
#include "rpc/arpc_client.h"
#include "rpc/arpc_server.h"
#include "server/io/base/clock.h"
#include "server/io/base/core_event.h"
#include "server/io/base/handlers.h"
#include "server/io/base/peer_bytes.h"
#include "server/io/base/server.h"
#include "server/io/base/storage_alert.h"
#include "server/io/cluster/cluster.h"
#include "server/io/cluster/cluster_address.h"
#include "server/io/cluster/membership.h"
#include "server/io/cluster/peer_envelope.h"
#include "server/io/cluster/peer_secure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SESSION_PATH "/ampd.v1.PeerService/Session"

/* Most bytes of a body in one envelope, which is the bound in the schema; a longer body travels in parts. */
#define PART_BYTES 65536u
#define PARTS_MAX  ((uint32_t)(AMPD_PEER_BODY_MAX / PART_BYTES))

/* A session on which more bytes wait to be sent has lost its peer: it is ended, and another one begins. */
#define QUEUED_MAX ((size_t)32 << 20)

/* From the end of a session to the next attempt; a shard that is restarted takes about as long. */
#define AGAIN_MS 100

/* The same after shard 0 has refused the session: an operator must correct a token or a version, which takes longer. */
#define REFUSED_AGAIN_MS 1000

/* From one line of the log that shard 0 cannot be reached to the next: with the same reason, and with another one. */
#define COMPLAIN_MS       10000
#define COMPLAIN_OTHER_MS 1000

/* How long shard k waits for the answer to a PING, after which the session is over. */
#define KEEPALIVE_TIMEOUT_MS 3000

/*
 * The same of shard 0, a second longer than that of shard k: a shard that was stopped for three seconds can go on, and
 * one that is given up has been silent for six seconds at most.
 */
#define SILENT_MAX_MS 4000

/* How often a shard checks whether the problem that it reports to shard 0 has changed. */
#define TROUBLE_MS 1000

/* One session, on either side of it. */
struct link {
    struct ampd_server *server;
    struct arpc_call *call;
    uint32_t shard;                   /* of the other side, once it is known */
    bool known;                       /* shard is set, and the link is in links[shard] */
    bool heard;                       /* the other side has sent an envelope */
    struct amp_buf body;              /* parts of a message that is not complete yet */
    uint32_t parts;                   /* how many parts are in body */
    size_t excused;                   /* bytes that wait to be sent and do not count, see too_much_waits */
    char trouble[AMP_ERROR_TEXT_MAX]; /* the problem that shard k has last reported on this session; "": none */
};

struct io_peers {
    /* --peers, by shard; not used without --peers. */
    char listed[IO_PEERS_MAX][IO_CLUSTER_ADDRESS_MAX];
    uint32_t count;                       /* of shards */
    struct link *links[IO_PEERS_MAX];     /* by shard: the session with it, or NULL */
    int64_t changed_us[IO_PEERS_MAX];     /* by shard: when its session began or ended last, UTC; 0: never */
    struct arpc_channel *channel;         /* to shard 0; NULL on shard 0, and while its address is not known */
    char address[IO_CLUSTER_ADDRESS_MAX]; /* of the channel */
    struct io_peer_secure secure;         /* credentials of the channel */
    /* Why there is no session with shard 0 where it is now, as last logged; "": not logged since the last session. */
    char trouble[AMP_ERROR_TEXT_MAX];
    uint64_t complained_ms;   /* when that was, by the loop's clock; 0: never */
    uv_timer_t again, report; /* the next session is due; the problem to report may have changed */
    bool timers_open, closing;
};

/* ---- addresses ---- */

uint32_t io_peers_shards(const struct ampd_server *server)
{
    return server->peers != NULL ? server->peers->count : 1;
}

const char *io_peers_address(const struct ampd_server *server, uint32_t shard)
{
    if (server->options->peers != NULL)
        return shard < server->peers->count ? server->peers->listed[shard] : "";
    const char *own = io_membership_address(server);
    if (server->cluster == NULL)
        return shard == 0 ? own : "";
    const char *known = shard < io_peers_shards(server) ? io_cluster_member(server->cluster, shard)->address : "";
    return known[0] == 0 && shard == server->options->shard ? own : known;
}

bool io_peers_session_up(const struct ampd_server *server, uint32_t shard)
{
    const struct io_peers *peers = server->peers;
    const struct link *link = peers != NULL && shard < peers->count ? peers->links[shard] : NULL;
    return link != NULL && link->heard;
}

/* ---- sending ---- */

static int send_part(struct link *link, const struct ampd_msg_session_request *request)
{
    struct amp_buf buf;
    amp_buf_init(&buf, AMPD_MSG_SIZE_MAX);
    int rc = ampd_msg_session_request_encode(request, &buf);
    if (rc == 0)
        rc = arpc_call_send(link->call, buf.data, buf.size, NULL, 0, NULL, NULL);
    amp_buf_close(&buf);
    return rc;
}

static int send_parts(struct link *link, const struct ampd_message *message, const struct amp_buf *body)
{
    struct ampd_msg_session_request request = io_peer_envelope(message, link->server->peers->count);
    uint32_t count = (uint32_t)((body->size + PART_BYTES - 1) / PART_BYTES);
    if (count <= 1) {
        request.envelope.body = (struct ampd_msg_bytes){body->data, body->size};
        return send_part(link, &request);
    }
    int rc = 0;
    request.envelope.part_count = count;
    for (uint32_t part = 0; rc == 0 && part < count; part++) {
        size_t at = (size_t)part * PART_BYTES, left = body->size - at;
        request.envelope.part = part;
        request.envelope.body = (struct ampd_msg_bytes){body->data + at, left < PART_BYTES ? left : PART_BYTES};
        rc = send_part(link, &request);
    }
    return rc;
}

/* The failpoint before a message is sent; those that decide about a step have one of their own. */
static const char *place_of(enum ampd_message_type type)
{
    switch (type) {
    case AMPD_MESSAGE_VOTE:
        return "peer.vote";
    case AMPD_MESSAGE_VERDICT:
        return "peer.verdict";
    case AMPD_MESSAGE_APPLIED:
        return "peer.applied";
    case AMPD_MESSAGE_PART_DONE:
        return "peer.part_done";
    default:
        return "peer.other";
    }
}

/*
 * Whether so many bytes wait to be sent that the peer must be lost; `before` is how many waited before this message.
 * The bytes of SYNCED are excused until no more than QUEUED_MAX wait again: it comes for all models at once, but once
 * for each SYNC, and is not more than this process holds of its models anyway.
 */
static bool too_much_waits(struct link *link, enum ampd_message_type type, size_t before)
{
    size_t queued = arpc_call_queued(link->call);
    if (queued <= QUEUED_MAX)
        link->excused = 0;
    else if (type == AMPD_MESSAGE_SYNCED && queued > before)
        link->excused += queued - before;
    return queued > QUEUED_MAX && queued - QUEUED_MAX > link->excused;
}

void io_peers_send(struct ampd_server *server, const struct ampd_message *message)
{
    AMP_FAILPOINT(place_of(message->type));
    struct link *link =
        server->peers != NULL && message->to < server->peers->count ? server->peers->links[message->to] : NULL;
    if (link == NULL)
        return;
    struct amp_buf body;
    amp_buf_init(&body, AMPD_PEER_BODY_MAX);
    size_t before = arpc_call_queued(link->call);
    int rc = io_peer_body_encode(message, &body);
    if (rc == 0)
        rc = send_parts(link, message, &body);
    amp_buf_close(&body);
    AMP_FAILPOINT("peer.sent");
    if (rc == 0 && !too_much_waits(link, message->type, before))
        return;
    const char *why = rc != 0 ? amp_strerror(rc) : "too many bytes wait to be sent";
    amp_log(server->log, AMP_LOG_WARN, "peer",
            "msg=\"a message cannot be sent, so the session starts again\" shard=%u err=\"%s\"", message->to, why);
    arpc_call_cancel(link->call, ARPC_STATUS_UNAVAILABLE, why);
}

/* ---- receiving ---- */

/* 0, or why an envelope cannot be accepted. */
static int check_envelope(const struct link *link, const struct ampd_msg_envelope *envelope, struct amp_error *error)
{
    const struct ampd_server *server = link->server;
    uint32_t mine = server->options->shard, count = server->peers->count;
    if (envelope->format != AMPD_PEER_FORMAT)
        return amp_error_set(error, AMP_ESTATE, "PEER_FORMAT",
                             "format: shard %u speaks format %u, this one %d; run the same ampd on all shards",
                             envelope->sender, envelope->format, AMPD_PEER_FORMAT);
    if (envelope->shard_count != count)
        return amp_error_set(error, AMP_ESTATE, "SHARD_COUNT",
                             "shard_count: shard %u has a list of %u shards, this one of %u; give all the same --peers",
                             envelope->sender, envelope->shard_count, count);
    bool star = mine == 0 ? envelope->sender > 0 && envelope->sender < count : envelope->sender == 0;
    if (!star || envelope->receiver != mine || (link->known && envelope->sender != link->shard))
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                             "sender: %u to %u; this is shard %u of %u, and each shard speaks with shard 0",
                             envelope->sender, envelope->receiver, mine, count);
    uint32_t parts = envelope->part_count > 1 ? envelope->part_count : 1;
    if (parts > PARTS_MAX || envelope->part != link->parts || envelope->part >= parts)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "part: %u of %u, where part %u comes next",
                             envelope->part, parts, link->parts);
    return 0;
}

/*
 * This link is the session with that shard from now on; an older one is ended. Gives the core PEER_UP, as the last act.
 */
static void become_known(struct link *link, uint32_t shard)
{
    struct ampd_server *server = link->server;
    struct link *before = server->peers->links[shard];
    link->known = true;
    link->shard = shard;
    server->peers->links[shard] = link;
    if (before == NULL)
        server->peers->changed_us[shard] = io_clock_utc_us();
    else
        arpc_call_cancel(before->call, ARPC_STATUS_ABORTED, "a newer session of this shard has begun");
    struct ampd_event event = {.type = AMPD_EVENT_PEER_UP, .u.shard = shard};
    io_core_event(server, &event);
}

/* Gives the core a message that is complete, as the last act. */
static int deliver(struct link *link, const struct ampd_msg_envelope *envelope, const uint8_t *body, size_t size,
                   struct amp_error *error)
{
    struct ampd_message *message = ampd_message_new((enum ampd_message_type)envelope->message);
    if (message == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a message of another shard");
    message->from = envelope->sender;
    message->to = envelope->receiver;
    message->from_fence = io_peer_fence(&envelope->sender_fence);
    message->to_fence = io_peer_fence(&envelope->receiver_fence);
    memcpy(message->model, envelope->model, sizeof message->model);
    message->epoch = envelope->epoch;
    message->round = envelope->round;
    int rc = io_peer_body_decode(message, body, size, error);
    if (rc == 0) {
        AMP_FAILPOINT("peer.told");
        struct ampd_event event = {.type = AMPD_EVENT_PEER, .u.message = message};
        io_core_event(link->server, &event);
    }
    ampd_message_free(message);
    return rc;
}

static int take_envelope(struct link *link, const struct ampd_msg_envelope *envelope, struct amp_error *error)
{
    int rc = check_envelope(link, envelope, error);
    if (rc != 0)
        return rc;
    link->heard = true;
    link->server->peers->trouble[0] = 0;
    if (!link->known)
        become_known(link, envelope->sender);
    if (envelope->part_count <= 1)
        return deliver(link, envelope, envelope->body.data, envelope->body.size, error);
    rc = amp_buf_append(&link->body, envelope->body.data, envelope->body.size);
    if (rc != 0)
        return amp_error_set(error, rc, NULL, "out of memory for a message of another shard");
    link->parts++;
    if (link->parts < envelope->part_count)
        return 0;
    rc = deliver(link, envelope, link->body.data, link->body.size, error);
    link->parts = 0;
    amp_buf_close(&link->body);
    return rc;
}

/* On shard 0: notes the problem that another shard reports. */
static int take_trouble(struct link *link, const char *text, struct amp_error *error)
{
    const struct ampd_server *server = link->server;
    if (server->options->shard != 0 || !link->known)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                             "trouble: only shard 0 takes it, after a first envelope");
    (void)snprintf(link->trouble, sizeof link->trouble, "%s", text);
    if (text[0] != 0)
        amp_log(server->log, AMP_LOG_WARN, "peer", "msg=\"another shard reports a problem\" shard=%u err=\"%s\"",
                link->shard, text);
    else
        amp_log(server->log, AMP_LOG_INFO, "peer", "msg=\"the trouble of another shard is over\" shard=%u",
                link->shard);
    return 0;
}

/* Handles one message of a session. 0, or why the session has to end. */
static int take_message(struct link *link, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct ampd_msg_session_request request;
    int rc = ampd_msg_session_request_decode(&request, data, size, error);
    if (rc != 0)
        return rc;
    rc = request.has_envelope  ? take_envelope(link, &request.envelope, error)
         : request.has_trouble ? take_trouble(link, request.trouble.text, error)
                               : amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "envelope: must be given");
    ampd_msg_session_request_free(&request);
    if (rc != 0)
        amp_log(link->server->log, AMP_LOG_ERROR, "peer", "msg=\"a message of another shard is refused\" err=\"%s\"",
                error->text);
    return rc;
}

static struct link *new_link(struct ampd_server *server, struct arpc_call *call)
{
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return NULL;
    link->server = server;
    link->call = call;
    amp_buf_init(&link->body, AMPD_PEER_BODY_MAX);
    return link;
}

/*
 * Frees the link of a session that has ended; gives the core PEER_DOWN if it was the one with that shard. One on which
 * nothing was heard was none yet: own_closed and on_channel tell why, and not each time.
 */
static void drop_link(struct link *link, const struct arpc_result *result)
{
    struct io_peers *peers = link->server->peers;
    if (link->known && peers->links[link->shard] == link) {
        peers->links[link->shard] = NULL;
        peers->changed_us[link->shard] = io_clock_utc_us();
        if (link->heard)
            amp_log(link->server->log, AMP_LOG_WARN, "peer", "msg=\"the session is over\" shard=%u err=\"%s\"",
                    link->shard, result->message);
        if (!peers->closing) {
            struct ampd_event event = {.type = AMPD_EVENT_PEER_DOWN, .u.shard = link->shard};
            io_core_event(link->server, &event);
        }
    }
    amp_buf_close(&link->body);
    free(link);
}

/* ---- shard 0: sessions of the others ---- */

static void session_started(struct arpc_call *call)
{
    struct ampd_server *server = arpc_call_server_arg(call);
    struct amp_error error;
    bool lives =
        server->life.state == SERVER_RUNNING || (server->life.state == SERVER_DRAINING && !server->life.core_drained);
    if (server->peers == NULL || server->options->shard != 0 || !lives) {
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, "NO_COORDINATOR",
                            "this is not shard 0 of several shards, or it is about to end: sessions are with shard 0");
        arpc_call_fail(call, &error);
        return;
    }
    struct link *link = new_link(server, call);
    if (link == NULL) {
        (void)amp_error_set(&error, AMP_ENOMEM, NULL, "out of memory for a session");
        arpc_call_fail(call, &error);
        return;
    }
    arpc_call_set_user(call, link);
    arpc_call_keepalive(call, IO_PEERS_KEEPALIVE_MS, SILENT_MAX_MS);
}

static void session_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct link *link = arpc_call_user(call);
    struct amp_error error = {0};
    if (link != NULL && take_message(link, data, size, &error) != 0)
        arpc_call_fail(call, &error);
}

static void session_half_close(struct arpc_call *call)
{
    arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void session_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct link *link = arpc_call_user(call);
    if (link != NULL)
        drop_link(link, result);
}

const struct arpc_handler ampd_handle_session = {
    .started = session_started, .message = session_message, .half_close = session_half_close, .closed = session_closed};

/* ---- the others: a session with shard 0 ---- */

/* Reports a changed problem to shard 0, once shard 0 has sent something: by then it knows whose session this is. */
static void on_report(uv_timer_t *timer)
{
    const struct ampd_server *server = timer->data;
    struct link *link = server->peers->links[0];
    struct ampd_msg_session_request request = {.has_trouble = true};
    if (link == NULL || !link->heard)
        return;
    io_peers_shard_trouble(server, server->options->shard, request.trouble.text, sizeof request.trouble.text);
    if (strcmp(link->trouble, request.trouble.text) != 0 && send_part(link, &request) == 0)
        memcpy(link->trouble, request.trouble.text, sizeof link->trouble);
}

static void begin_session(struct ampd_server *server);

static void on_again(uv_timer_t *timer)
{
    begin_session(timer->data);
}

static void again_later(struct ampd_server *server, uint64_t ms)
{
    struct io_peers *peers = server->peers;
    if (!peers->closing)
        (void)uv_timer_start(&peers->again, on_again, ms, 0); /* cannot fail: it is open and has a callback */
}

/* Logs why there is no session with shard 0; not each time, as it is tried again and again. */
static void complain(struct ampd_server *server, const char *text)
{
    struct io_peers *peers = server->peers;
    uint64_t now_ms = uv_now(&server->loop);
    uint64_t pause_ms = strcmp(text, peers->trouble) == 0 ? COMPLAIN_MS : COMPLAIN_OTHER_MS;
    if (peers->closing || (peers->complained_ms != 0 && now_ms - peers->complained_ms < pause_ms))
        return;
    (void)snprintf(peers->trouble, sizeof peers->trouble, "%s", text);
    peers->complained_ms = now_ms;
    amp_log(server->log, AMP_LOG_WARN, "peer", "msg=\"no session with shard 0\" address=%s err=\"%s\"", peers->address,
            text);
}

static void on_channel(struct arpc_channel *channel, enum arpc_channel_state state, const struct amp_error *error,
                       void *arg)
{
    /* IDLE: the other side has closed the connection, because it ends or because it refuses a certificate. */
    if ((state == ARPC_CHANNEL_BACKOFF || state == ARPC_CHANNEL_IDLE) && error != NULL)
        complain(arg, error->text);
}

static void own_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct amp_error error = {0};
    if (take_message(arpc_call_user(call), data, size, &error) != 0)
        arpc_call_cancel(call, ARPC_STATUS_INVALID_ARGUMENT, error.text);
}

static void own_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct link *link = arpc_call_user(call);
    struct ampd_server *server = link->server;
    bool moved = result->status == ARPC_STATUS_CANCELLED && !result->from_peer;
    bool passes = result->status == ARPC_STATUS_UNAVAILABLE || result->status == ARPC_STATUS_ABORTED;
    bool refused = !moved && !passes;
    if (refused || (result->from_peer && !link->heard)) {
        char text[AMP_ERROR_TEXT_MAX];
        (void)snprintf(text, sizeof text, "%s %s: %s", result->from_peer ? "shard 0 says" : "ended by this shard",
                       arpc_status_name(result->status), result->message);
        complain(server, text);
    }
    drop_link(link, result);
    again_later(server, refused ? REFUSED_AGAIN_MS : AGAIN_MS);
}

static const struct arpc_handler own_session = {.message = own_message, .closed = own_closed};

static struct arpc_channel_options channel_options(const struct ampd_server *server)
{
    return (struct arpc_channel_options){.size = sizeof(struct arpc_channel_options),
                                         .tls = server->peers->secure.tls,
                                         .keepalive_time_ms = IO_PEERS_KEEPALIVE_MS,
                                         .keepalive_timeout_ms = KEEPALIVE_TIMEOUT_MS,
                                         .initial_backoff_ms = AGAIN_MS,
                                         .max_backoff_ms = 1000};
}

static int open_channel(struct ampd_server *server, struct amp_error *error)
{
    struct io_peers *peers = server->peers;
    const char *address = io_peers_address(server, 0);
    struct arpc_channel_options options = channel_options(server);
    options.arg = server;
    options.state_cb = on_channel;
    (void)snprintf(peers->address, sizeof peers->address, "%s", address);
    if (address[0] == 0)
        return 0;
    return arpc_channel_new(&server->loop, address, &options, &peers->channel, error);
}

/* Whether there is a channel to shard 0; makes one if its address is known now, or if that has failed before. */
static bool has_channel(struct ampd_server *server)
{
    struct io_peers *peers = server->peers;
    struct amp_error error = {0};
    if (peers->channel == NULL && !peers->closing && open_channel(server, &error) != 0) {
        complain(server, error.text);
        again_later(server, AGAIN_MS);
    }
    return peers->channel != NULL;
}

/* The core gets PEER_UP at once: what it sends before there is a connection waits in the call. */
static void begin_session(struct ampd_server *server)
{
    struct io_peers *peers = server->peers;
    const struct arpc_pair pair = {"authorization", io_peer_secure_authorization(&peers->secure)};
    struct arpc_call_options options = {.size = sizeof options,
                                        .wait_for_ready = true,
                                        .max_message = AMPD_MSG_SIZE_MAX,
                                        .metadata = &pair,
                                        .metadata_count = pair.value != NULL ? 1 : 0};
    struct amp_error error = {0};
    if (peers->links[0] != NULL || !has_channel(server))
        return;
    struct link *link = new_link(server, NULL);
    int rc = link == NULL
                 ? AMP_ENOMEM
                 : arpc_channel_call(peers->channel, SESSION_PATH, &options, &own_session, link, &link->call, &error);
    if (rc != 0) {
        free(link);
        again_later(server, AGAIN_MS);
        return;
    }
    become_known(link, 0);
}

int io_peers_channel(struct ampd_server *server, uint32_t shard, struct arpc_channel **channel, struct amp_error *error)
{
    struct arpc_channel_options options = channel_options(server);
    const char *address = io_peers_address(server, shard);
    if (address[0] == 0)
        return amp_error_set(error, AMP_EUNAVAILABLE, NULL, "no process holds shard %u", shard);
    return arpc_channel_new(&server->loop, address, &options, channel, error);
}

const char *io_peers_authorization(const struct ampd_server *server)
{
    return io_peer_secure_authorization(&server->peers->secure);
}

void io_peers_moved(struct ampd_server *server, uint32_t shard)
{
    struct io_peers *peers = server->peers;
    if (peers == NULL || !peers->timers_open || peers->closing || shard != 0 || server->options->shard == 0 ||
        strcmp(peers->address, io_peers_address(server, 0)) == 0)
        return;
    amp_log(server->log, AMP_LOG_INFO, "peer", "msg=\"shard 0 is another process now\" before=%s now=%s",
            peers->address, io_peers_address(server, 0));
    peers->trouble[0] = 0;
    if (peers->channel != NULL)
        arpc_channel_close(peers->channel, NULL, NULL); /* ends the session; own_closed begins the next one */
    peers->channel = NULL;
    (void)has_channel(server); /* if it fails, a timer tries again */
    begin_session(server);
}

/* ---- how the other shards are ---- */

bool io_peers_up(const struct ampd_server *server, uint32_t shard, int64_t *since_us)
{
    const struct io_peers *peers = server->peers;
    if (peers == NULL || shard == server->options->shard) {
        *since_us = io_clock_utc_us() - (int64_t)(uv_now(&server->loop) - server->life.taken_ms) * 1000;
        return true;
    }
    *since_us = peers->changed_us[shard];
    bool connected = shard != 0 || peers->channel == NULL || arpc_channel_state(peers->channel) == ARPC_CHANNEL_READY;
    return peers->links[shard] != NULL && connected;
}

bool io_peers_knows(const struct ampd_server *server, uint32_t shard)
{
    uint32_t own = server->options->shard;
    return own == 0 || shard == 0 || shard == own;
}

void io_peers_shard_trouble(const struct ampd_server *server, uint32_t shard, char *text, size_t size)
{
    text[0] = 0;
    if (shard == server->options->shard) {
        io_storage_alert_text(server->storage_alert, text, size);
        if (text[0] == 0 && server->cluster != NULL)
            (void)snprintf(text, size, "%s", io_cluster_trouble(server->cluster));
        /* Of a directory that all share shard 0 tells: else this would hide the trouble of a third shard. */
        if (text[0] == 0 && (shard == 0 || server->options->checkpoint_dir == NULL))
            io_storage_alert_share_text(server->storage_alert, text, size);
    } else if (server->options->shard == 0 && io_peers_session_up(server, shard)) {
        (void)snprintf(text, size, "%s", server->peers->links[shard]->trouble);
    }
    amp_text_repair(text); /* paths may be cut, and need not be UTF-8 */
}

uint32_t io_peers_missing(const struct ampd_server *server)
{
    int64_t since_us;
    for (uint32_t k = 0; k < io_peers_shards(server); k++)
        if (io_peers_knows(server, k) && !io_peers_up(server, k, &since_us))
            return k;
    return UINT32_MAX;
}

/* The sentence about a shard that is missing. */
static void missing_shard(const struct ampd_server *server, uint32_t k, char *text, size_t size)
{
    const struct io_peers *peers = server->peers;
    const char *address = io_peers_address(server, k);
    if (address[0] == 0)
        (void)snprintf(text, size, "no process holds shard %u; no step is decided without it", k);
    else if (peers->trouble[0] != 0)
        (void)snprintf(text, size, "no session with shard %u at %s: %s", k, address, peers->trouble);
    else
        (void)snprintf(text, size, "no session with shard %u at %s; no step is decided without it", k, address);
}

void io_peers_cluster_trouble(const struct ampd_server *server, char *text, size_t size)
{
    uint32_t missing = io_peers_missing(server);
    (void)snprintf(text, size, "%s", server->cluster != NULL ? io_cluster_trouble(server->cluster) : "");
    if (text[0] == 0 && missing != UINT32_MAX)
        missing_shard(server, missing, text, size);
    for (uint32_t k = 0; k < io_peers_shards(server) && text[0] == 0; k++) {
        char own[AMP_ERROR_TEXT_MAX] = "";
        if (k != server->options->shard)
            io_peers_shard_trouble(server, k, own, sizeof own);
        if (own[0] != 0)
            (void)snprintf(text, size, "shard %u: %s", k, own);
    }
}

void io_peers_trouble(const struct ampd_server *server, char *text, size_t size)
{
    io_storage_alert_text(server->storage_alert, text, size);
    if (text[0] == 0)
        io_peers_cluster_trouble(server, text, size);
    if (text[0] == 0)
        io_storage_alert_share_text(server->storage_alert, text, size);
    amp_text_repair(text);
}

struct arpc_channel *io_peers_coordinator(const struct ampd_server *server, const char **authorization)
{
    const struct io_peers *peers = server->peers;
    *authorization = peers != NULL ? io_peer_secure_authorization(&peers->secure) : NULL;
    return peers != NULL && !peers->closing ? peers->channel : NULL;
}

/* ---- life ---- */

int io_peers_new(struct ampd_server *server, struct amp_error *error)
{
    if (server->options->peers == NULL && server->options->cluster == NULL)
        return 0;
    struct io_peers *peers = calloc(1, sizeof *peers);
    if (peers == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the other shards");
    server->peers = peers;
    peers->count = server->options->shards;
    AMP_ASSERT(peers->count > 0 && peers->count <= IO_PEERS_MAX); /* checked with the options, as is the list */
    for (uint32_t k = 0; server->options->peers != NULL && k < peers->count; k++)
        (void)io_cluster_list_address(server->options->peers, k, peers->listed[k]);
    return io_peer_secure_open(&peers->secure, server->options->auth, server->log, error);
}

void io_peers_reload(struct ampd_server *server)
{
    if (server->peers != NULL)
        io_peer_secure_reload(&server->peers->secure);
}

int io_peers_start(struct ampd_server *server, struct amp_error *error)
{
    struct io_peers *peers = server->peers;
    if (peers == NULL || server->options->shard == 0)
        return 0;
    (void)uv_timer_init(&server->loop, &peers->again); /* these cannot fail */
    (void)uv_timer_init(&server->loop, &peers->report);
    peers->again.data = server;
    peers->report.data = server;
    peers->timers_open = true;
    (void)uv_timer_start(&peers->report, on_report, TROUBLE_MS, TROUBLE_MS);
    uv_unref((uv_handle_t *)&peers->report); /* it does not keep the loop running */
    int rc = open_channel(server, error);
    if (rc == 0)
        begin_session(server);
    return rc;
}

void io_peers_close(struct ampd_server *server)
{
    struct io_peers *peers = server->peers;
    if (peers == NULL || peers->closing)
        return;
    peers->closing = true;
    for (uint32_t k = 0; k < peers->count; k++) {
        const struct link *link = peers->links[k];
        if (link != NULL && server->options->shard == 0 && server->life.state != SERVER_CLOSING)
            arpc_call_finish(link->call, ARPC_STATUS_UNAVAILABLE, "this shard is about to end",
                             NULL); /* after what is queued */
        else if (link != NULL)
            arpc_call_cancel(link->call, ARPC_STATUS_UNAVAILABLE, "this shard is about to end");
    }
    if (peers->channel != NULL)
        arpc_channel_close(peers->channel, NULL, NULL);
    peers->channel = NULL;
    if (peers->timers_open) {
        uv_close((uv_handle_t *)&peers->again, NULL);
        uv_close((uv_handle_t *)&peers->report, NULL);
    }
    peers->timers_open = false;
}

void io_peers_free(struct ampd_server *server)
{
    if (server->peers != NULL)
        io_peer_secure_close(&server->peers->secure);
    free(server->peers);
    server->peers = NULL;
}
