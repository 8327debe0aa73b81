#include "server/io/etcd/etcd_lease.h"

#include "base/assert.h"
#include "proto/msg_etcd.h"
#include "rpc/arpc_client.h"
#include "server/io/etcd/etcd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

/* Keepalives in a lease's time: an outage of nine tenths of it is harmless. etcd answers them from memory. */
#define KEEPALIVES 10

/*
 * Most streams to one endpoint. A member of etcd passes keepalives on to the leader, those of one stream one after the
 * other. If the leader's machine has just died, a keepalive waits there for longer than most leases last (7 s, etcd's
 * own time for a request), though the others elect a new leader within 2 s. So no keepalive is sent behind an
 * unanswered one on the same stream; another stream is used. With as many streams as keepalives in a lease's time, the
 * answers to any more would come too late.
 */
#define STREAMS_MAX KEEPALIVES

/* Longest time of a lease, in seconds, that etcd allows. */
#define TTL_MAX 9000000000

enum lease_state { LEASE_NONE, LEASE_GRANTING, LEASE_LIVE };

/* A stream to one endpoint. */
struct keeper {
    struct io_etcd_lease *lease; /* NULL: the lease does not use it any more; the stream is being cancelled */
    uint32_t endpoint, index;
    struct arpc_call *call;
    bool waiting;    /* for the answer to the keepalive that was sent at sent_ms */
    int64_t sent_ms; /* by io_etcd_now_ms */
};

struct io_etcd_lease {
    struct io_etcd *etcd;
    const struct io_etcd_lease_events *events;
    void *arg;
    int64_t ttl_ms; /* its time, as it is requested */
    enum lease_state state;
    int64_t id;                       /* etcd's number; 0 unless LIVE */
    int64_t granted_ms;               /* its time, as etcd has granted it */
    int64_t due_ms;                   /* when it is lost unless a keepalive is answered, by io_etcd_now_ms */
    int64_t asked_ms;                 /* when the last grant was requested, by io_etcd_now_ms */
    bool asking;                      /* a request for a grant is under way */
    uint32_t refused;                 /* such requests in a row that have failed */
    char failing[AMP_ERROR_TEXT_MAX]; /* GRANTING: why the last one has, in a sentence; "": it has not */
    struct keeper *keepers[IO_ETCD_ENDPOINTS_MAX][STREAMS_MAX];
    uv_timer_t tick, due; /* tick: the next request (GRANTING) or keepalives (LIVE). due: at due_ms */
    uint32_t open;        /* handles that are not closed yet */
    bool closing;
    uint32_t calls; /* under way: the lease is freed after them */
};

struct revocation {
    struct io_etcd_lease *lease;
    void (*done_cb)(void *arg);
    void *arg;
};

static void free_if_closed(struct io_etcd_lease *lease)
{
    if (lease->closing && lease->open == 0 && lease->calls == 0)
        free(lease);
}

static void lost(struct io_etcd_lease *lease, const char *why);

/* ---- keepalives ---- */

static void drop_keepers(struct io_etcd_lease *lease)
{
    for (uint32_t i = 0; i < IO_ETCD_ENDPOINTS_MAX * STREAMS_MAX; i++) {
        struct keeper **place = &lease->keepers[i / STREAMS_MAX][i % STREAMS_MAX], *keeper = *place;
        *place = NULL;
        if (keeper == NULL)
            continue;
        keeper->lease = NULL;
        arpc_call_cancel(keeper->call, ARPC_STATUS_CANCELLED, "the lease is over");
    }
}

static void on_due(uv_timer_t *timer)
{
    struct io_etcd_lease *lease = timer->data;
    lost(lease, "etcd has not answered a keepalive within the lease's time");
}

/* Starts the timer for due_ms. The loop's own time may be old, so it is updated first. */
static void arm(struct io_etcd_lease *lease)
{
    int64_t left = lease->due_ms - io_etcd_now_ms();
    uv_update_time(io_etcd_loop(lease->etcd));
    (void)uv_timer_start(&lease->due, on_due, left > 0 ? (uint64_t)left : 0, 0); /* cannot fail: it is open */
}

static void answered(struct keeper *keeper, const struct ampd_etcd_lease_keep_alive_response *answer)
{
    struct io_etcd_lease *lease = keeper->lease;
    if (!keeper->waiting || answer->id != lease->id)
        return;
    keeper->waiting = false;
    if (answer->ttl <= 0) {
        lost(lease, "etcd does not know the lease any more");
        return;
    }
    if (!io_etcd_lease_holds(lease)) {
        lost(lease, "the lease's time has passed before etcd's answer was read");
        return;
    }
    if (keeper->sent_ms + lease->granted_ms <= lease->due_ms)
        return;
    lease->due_ms = keeper->sent_ms + lease->granted_ms;
    arm(lease);
}

static void on_keeper_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct keeper *keeper = arpc_call_user(call);
    struct ampd_etcd_lease_keep_alive_response answer;
    struct amp_error error = {0};
    if (keeper->lease == NULL)
        return;
    if (ampd_etcd_lease_keep_alive_response_decode(&answer, data, size, &error) == 0)
        answered(keeper, &answer);
    else
        arpc_call_cancel(call, ARPC_STATUS_INTERNAL, error.text);
}

static void on_keeper_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct keeper *keeper = arpc_call_user(call);
    if (keeper->lease != NULL)
        keeper->lease->keepers[keeper->endpoint][keeper->index] = NULL;
    free(keeper);
}

static const struct arpc_handler keeper_handler = {.message = on_keeper_message, .closed = on_keeper_closed};

static struct keeper *open_keeper(struct io_etcd_lease *lease, uint32_t endpoint, uint32_t index)
{
    struct arpc_channel *channel = io_etcd_channel(lease->etcd, endpoint);
    if (channel == NULL || arpc_channel_state(channel) == ARPC_CHANNEL_BACKOFF)
        return NULL;
    struct keeper *keeper = calloc(1, sizeof *keeper);
    if (keeper == NULL)
        return NULL;
    keeper->lease = lease;
    keeper->endpoint = endpoint;
    keeper->index = index;
    if (io_etcd_stream(lease->etcd, endpoint, IO_ETCD_KEEP_ALIVE, &keeper_handler, keeper, &keeper->call) != 0) {
        free(keeper);
        return NULL;
    }
    lease->keepers[endpoint][index] = keeper;
    return keeper;
}

/*
 * A stream on which no keepalive waits. NULL: there is none, and *index is a free entry for another stream, or
 * STREAMS_MAX if there is none either.
 */
static struct keeper *free_keeper(struct io_etcd_lease *lease, uint32_t endpoint, uint32_t *index)
{
    *index = STREAMS_MAX;
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        struct keeper *keeper = lease->keepers[endpoint][i];
        if (keeper != NULL && !keeper->waiting)
            return keeper;
        if (keeper == NULL && *index == STREAMS_MAX)
            *index = i;
    }
    return NULL;
}

/* Cancels the streams whose keepalive has waited so long that an answer would come too late. Returns how many. */
static uint32_t drop_silent(struct io_etcd_lease *lease, uint32_t endpoint, int64_t now_ms)
{
    uint32_t dropped = 0;
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        struct keeper *keeper = lease->keepers[endpoint][i];
        if (keeper == NULL || !keeper->waiting || now_ms - keeper->sent_ms < lease->granted_ms)
            continue;
        lease->keepers[endpoint][i] = NULL;
        keeper->lease = NULL;
        arpc_call_cancel(keeper->call, ARPC_STATUS_CANCELLED, "no answer within the lease's time");
        dropped++;
    }
    return dropped;
}

static void keep_alive(struct io_etcd_lease *lease, uint32_t endpoint)
{
    int64_t now_ms = io_etcd_now_ms();
    uint32_t index;
    bool silent = drop_silent(lease, endpoint, now_ms) > 0;
    struct keeper *keeper = free_keeper(lease, endpoint, &index);
    if (silent && keeper == NULL) {
        io_etcd_failed(lease->etcd, endpoint);
        io_etcd_reconnect(lease->etcd,
                          endpoint); /* the connection may be lost without an error; ends all of its streams */
        return;
    }
    if (keeper == NULL && index < STREAMS_MAX)
        keeper = open_keeper(lease, endpoint, index);
    if (keeper == NULL)
        return;
    struct ampd_etcd_lease_keep_alive_request request = {.id = lease->id};
    struct amp_buf buf;
    amp_buf_init(&buf, IO_ETCD_MESSAGE_MAX);
    if (ampd_etcd_lease_keep_alive_request_encode(&request, &buf) == 0 &&
        arpc_call_send(keeper->call, buf.data, buf.size, NULL, 0, NULL, NULL) == 0) {
        keeper->waiting = true;
        keeper->sent_ms = now_ms;
    }
    amp_buf_close(&buf);
}

/* ---- the grant ---- */

static void ask(struct io_etcd_lease *lease);

static void on_tick(uv_timer_t *timer)
{
    struct io_etcd_lease *lease = timer->data;
    if (lease->state == LEASE_GRANTING && !lease->asking)
        ask(lease);
    for (uint32_t i = 0; lease->state == LEASE_LIVE && i < io_etcd_count(lease->etcd); i++)
        keep_alive(lease, i);
}

static void granted(struct io_etcd_lease *lease, const struct ampd_etcd_lease_grant_response *answer)
{
    lease->refused = 0;
    lease->failing[0] = 0;
    lease->id = answer->id;
    lease->granted_ms = answer->ttl * 1000;
    lease->due_ms = lease->asked_ms + lease->granted_ms;
    lease->state = LEASE_LIVE;
    arm(lease);
    uint64_t every_ms = (uint64_t)(lease->granted_ms / KEEPALIVES);
    /* The first ones at once: if the grant took long, little of the lease's time is left. */
    (void)uv_timer_start(&lease->tick, on_tick, 0, every_ms);
    lease->events->granted_cb(lease->arg);
}

/* Notes why a request for a grant has failed, and logs it now and then. */
static void not_granted(struct io_etcd_lease *lease, const char *why)
{
    (void)snprintf(lease->failing, sizeof lease->failing, "etcd grants no lease: %.400s", why);
    if (lease->refused++ % IO_ETCD_LOG_EVERY == 0)
        amp_log(io_etcd_log(lease->etcd), AMP_LOG_WARN, "etcd", "msg=\"no lease, trying again\" err=\"%s\"", why);
}

static void on_granted(void *arg, const struct amp_error *error, const uint8_t *data, size_t size)
{
    struct io_etcd_lease *lease = arg;
    struct ampd_etcd_lease_grant_response answer = {0};
    struct amp_error wrong = *error;
    lease->calls--;
    lease->asking = false;
    int rc = error->code;
    if (rc == 0)
        rc = ampd_etcd_lease_grant_response_decode(&answer, data, size, &wrong);
    bool usable = rc == 0 && answer.id != 0 && answer.ttl > 0 && answer.ttl <= TTL_MAX;
    if (lease->closing)
        free_if_closed(lease);
    else if (lease->state == LEASE_GRANTING && usable)
        granted(lease, &answer);
    else if (lease->state == LEASE_GRANTING)
        not_granted(lease, rc != 0 ? wrong.text : "the answer has no number or no time");
    ampd_etcd_lease_grant_response_free(&answer);
}

static void ask(struct io_etcd_lease *lease)
{
    struct ampd_etcd_lease_grant_request request = {.ttl = (lease->ttl_ms + 999) / 1000};
    struct amp_buf buf;
    amp_buf_init(&buf, IO_ETCD_MESSAGE_MAX);
    lease->asked_ms = io_etcd_now_ms();
    lease->asking = ampd_etcd_lease_grant_request_encode(&request, &buf) == 0 &&
                    io_etcd_call(lease->etcd, IO_ETCD_LEASE_GRANT, &buf, on_granted, lease) == 0;
    if (lease->asking)
        lease->calls++;
    amp_buf_close(&buf);
}

/* ---- the end ---- */

static void stop(struct io_etcd_lease *lease)
{
    lease->state = LEASE_NONE;
    lease->id = 0;
    lease->failing[0] = 0;
    (void)uv_timer_stop(&lease->tick);
    (void)uv_timer_stop(&lease->due);
    drop_keepers(lease);
}

static void lost(struct io_etcd_lease *lease, const char *why)
{
    struct amp_error error;
    (void)amp_error_set(&error, AMP_EUNAVAILABLE, "LEASE_LOST", "%s (%" PRId64 " ms)", why, lease->granted_ms);
    stop(lease);
    lease->events->lost_cb(lease->arg, &error);
}

static void on_revoked(void *arg, const struct amp_error *error, const uint8_t *data, size_t size)
{
    struct revocation *revocation = arg;
    struct io_etcd_lease *lease = revocation->lease;
    if (error->code != 0)
        amp_log(io_etcd_log(lease->etcd), AMP_LOG_INFO, "etcd",
                "msg=\"the lease could not be given back; it ends by itself\" err=\"%s\"", error->text);
    if (revocation->done_cb != NULL)
        revocation->done_cb(revocation->arg);
    free(revocation);
    lease->calls--;
    free_if_closed(lease);
}

void io_etcd_lease_revoke(struct io_etcd_lease *lease, void (*done_cb)(void *arg), void *arg)
{
    struct ampd_etcd_lease_revoke_request request = {.id = lease->id};
    struct revocation *revocation = request.id != 0 ? malloc(sizeof *revocation) : NULL;
    struct amp_buf buf;
    amp_buf_init(&buf, IO_ETCD_MESSAGE_MAX);
    stop(lease);
    if (revocation != NULL)
        *revocation = (struct revocation){lease, done_cb, arg};
    if (revocation != NULL && ampd_etcd_lease_revoke_request_encode(&request, &buf) == 0 &&
        io_etcd_call(lease->etcd, IO_ETCD_LEASE_REVOKE, &buf, on_revoked, revocation) == 0) {
        lease->calls++;
    } else {
        free(revocation);
        if (done_cb != NULL)
            done_cb(arg);
    }
    amp_buf_close(&buf);
}

/* ---- life ---- */

int io_etcd_lease_new(struct io_etcd *etcd, int64_t ttl_ms, const struct io_etcd_lease_events *events, void *arg,
                      struct io_etcd_lease **out)
{
    struct io_etcd_lease *lease = calloc(1, sizeof *lease);
    if (lease == NULL)
        return AMP_ENOMEM;
    lease->etcd = etcd;
    lease->ttl_ms = ttl_ms;
    lease->events = events;
    lease->arg = arg;
    /* Timers cannot fail to be made. */
    (void)uv_timer_init(io_etcd_loop(etcd), &lease->tick);
    (void)uv_timer_init(io_etcd_loop(etcd), &lease->due);
    lease->tick.data = lease;
    lease->due.data = lease;
    lease->open = 2;
    *out = lease;
    return 0;
}

void io_etcd_lease_start(struct io_etcd_lease *lease)
{
    if (lease->state != LEASE_NONE || lease->closing)
        return;
    lease->state = LEASE_GRANTING;
    /*
     * A grant that was requested for an earlier start and is still under way is accepted. If the last request was less
     * than IO_ETCD_AGAIN_MS ago, the timer makes the next one: this happens where etcd refuses what the lease is for,
     * so that each lease is revoked as soon as it is granted.
     */
    if (!lease->asking && io_etcd_now_ms() - lease->asked_ms >= IO_ETCD_AGAIN_MS)
        ask(lease);
    (void)uv_timer_start(&lease->tick, on_tick, IO_ETCD_AGAIN_MS, IO_ETCD_AGAIN_MS);
}

int64_t io_etcd_lease_id(const struct io_etcd_lease *lease)
{
    return lease->state == LEASE_LIVE ? lease->id : 0;
}

const char *io_etcd_lease_failing(const struct io_etcd_lease *lease)
{
    return lease->failing;
}

bool io_etcd_lease_holds(const struct io_etcd_lease *lease)
{
    return lease->state == LEASE_LIVE && io_etcd_now_ms() < lease->due_ms;
}

int64_t io_etcd_lease_left_ms(const struct io_etcd_lease *lease)
{
    int64_t left_ms = lease->state == LEASE_LIVE ? lease->due_ms - io_etcd_now_ms() : 0;
    return left_ms > 0 ? left_ms : 0;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct io_etcd_lease *lease = handle->data;
    lease->open--;
    free_if_closed(lease);
}

void io_etcd_lease_close(struct io_etcd_lease *lease)
{
    AMP_ASSERT(!lease->closing);
    stop(lease);
    lease->closing = true;
    uv_close((uv_handle_t *)&lease->tick, on_handle_closed);
    uv_close((uv_handle_t *)&lease->due, on_handle_closed);
}
