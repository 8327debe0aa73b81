#include "tests/fuzz/h2.h"

#include "base/err.h"

#include <nghttp2/nghttp2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sent by reference: more than one window of the protocol's initial size. */
#define BODY_SIZE 70000
/* Flushes after which a link that still has work is held to go on for ever. */
#define ROUNDS_MAX 1000

struct fuzz_h2 fuzz_h2;

static uint8_t body[BODY_SIZE];

/* ---- the configuration ---- */

static int64_t read_clock(void *clock)
{
    return *(int64_t *)clock;
}

static bool may_allocate(void)
{
    return fuzz_h2.allocations < 0 || fuzz_h2.allocations-- > 0;
}

static void *mem_malloc(size_t size, void *arg)
{
    (void)arg;
    return may_allocate() ? malloc(size) : NULL;
}

static void *mem_calloc(size_t count, size_t size, void *arg)
{
    (void)arg;
    return may_allocate() ? calloc(count, size) : NULL;
}

static void *mem_realloc(void *block, size_t size, void *arg)
{
    (void)arg;
    return may_allocate() ? realloc(block, size) : NULL;
}

static void mem_free(void *block, void *arg)
{
    (void)arg;
    free(block);
}

static nghttp2_mem memory = {NULL, mem_malloc, mem_free, mem_calloc, mem_realloc};

static int admit(struct arpc_call *call, void *arg, struct amp_error *error)
{
    const uint8_t *value;
    size_t size;
    (void)arg;
    if (!arpc_call_metadata(call, "x-refuse", 0, &value, &size))
        return 0;
    return amp_error_set(error, AMP_EDENIED, "REFUSED", "%.*s", (int)(size < 100 ? size : 100), (const char *)value);
}

static void on_abuse(const char *peer, enum arpc_abuse cause, uint64_t unreported, void *arg)
{
    (void)unreported;
    (void)arg;
    AMP_ASSERT(peer != NULL && cause > ARPC_ABUSE_NONE && cause < ARPC_ABUSE_COUNT);
}

/* So small that an input of some kilobytes can break each of them. */
static void small_limits(struct arpc_limits *limits)
{
    static const struct {
        const char *name;
        int64_t value;
    } small[] = {{"stream_queued", 1 << 16}, {"buffered", 1 << 11},  {"metadata_bytes", 1024},
                 {"metadata_count", 16},     {"header_block", 2048}, {"continuations", 3},
                 {"settings_entries", 8},    {"empty_frames", 3},    {"frames_burst", 40},
                 {"pings_burst", 6},         {"settings_burst", 6},  {"priorities_burst", 6},
                 {"resets_burst", 6},        {"faults_burst", 6},    {"refusals_burst", 6},
                 {"outbound_frames", 40},    {"outbound_acks", 8},   {"message_min_rate", 64},
                 {"hpack_table", 256},       {"reports_burst", 2},   {"inflated_burst", 1 << 16}};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        AMP_ASSERT(arpc_limits_set(limits, small[i].name, small[i].value));
}

static const char *const keep[] = {"x-text", "x-data-bin", "x-refuse", NULL};

void fuzz_h2_open(bool server, unsigned choices)
{
    fuzz_h2 = (struct fuzz_h2){.now_ms = 1000, .limits = arpc_limits_default, .allocations = -1};
    amp_list_init(&fuzz_h2.open);
    if ((choices & 1) == 0)
        small_limits(&fuzz_h2.limits);
    fuzz_h2.config = (struct arpc_link_config){.server = server,
                                               .now_cb = read_clock,
                                               .clock = &fuzz_h2.now_ms,
                                               .admit_cb = server ? admit : NULL,
                                               .keep_metadata = keep,
                                               .max_streams = (choices & 2) != 0 ? 4 : 32,
                                               .max_metadata_bytes = (size_t)fuzz_h2.limits.metadata_bytes,
                                               .max_metadata_count = (size_t)fuzz_h2.limits.metadata_count,
                                               .max_queued = (choices & 4) != 0 ? (size_t)1 << 14 : (size_t)1 << 18,
                                               .stream_window = (choices & 8) != 0 ? (size_t)1 << 12 : (size_t)1 << 20,
                                               .compress = (choices & 16) != 0,
                                               .idle_ms = (choices & 32) != 0 ? 10000 : 0,
                                               .keepalive_ms = 20000,
                                               .min_ping_interval_ms = server && (choices & 64) != 0 ? 5000 : 0,
                                               .max_age_ms = server && (choices & 128) != 0 ? 60000 : 0,
                                               .max_age_grace_ms = 5000,
                                               .write_stall_ms = 10000,
                                               .memory = &memory,
                                               .limits = &fuzz_h2.limits,
                                               .abuse_cb = on_abuse};
}

/* ---- calls ---- */

struct fuzz_call *fuzz_call_new(void)
{
    if (fuzz_h2.open_count >= FUZZ_CALLS_MAX)
        return NULL;
    struct fuzz_call *call = calloc(1, sizeof *call);
    AMP_ASSERT(call != NULL);
    amp_list_push(&fuzz_h2.open, &call->node);
    fuzz_h2.open_count++;
    return call;
}

/* Of the call's user. Nothing but `closed` may come when that has ended the call. */
static struct fuzz_call *user_of(struct arpc_call *call)
{
    struct fuzz_call *user = arpc_call_user(call);
    AMP_ASSERT(user != NULL && user->call == call && !user->finished && !arpc_call_is_closed(call));
    return user;
}

static void on_release(void *arg)
{
    AMP_ASSERT(arg == &fuzz_h2);
    fuzz_h2.released++;
    AMP_ASSERT(fuzz_h2.released <= fuzz_h2.borrowed);
}

void fuzz_call_send(struct fuzz_call *user, size_t size, bool by_reference)
{
    static const char head[] = "head";
    AMP_ASSERT(size <= sizeof body);
    fuzz_h2.borrowed += by_reference; /* the callback may come from inside */
    int rc = arpc_call_send(user->call, head, sizeof head, body, size, by_reference ? on_release : NULL, &fuzz_h2);
    AMP_ASSERT(rc == 0 || rc == AMP_EEXHAUSTED || rc == AMP_ESTATE);
    AMP_ASSERT(arpc_call_queued(user->call) == user->call->out.queued);
    if (rc != 0)
        fuzz_h2.borrowed -= by_reference;
}

static void flood(struct fuzz_call *user)
{
    for (int i = 0; i < 8 && arpc_call_queued(user->call) < ARPC_HIGH_WATER; i++)
        fuzz_call_send(user, i % 2 == 0 ? 9000 : 300, i % 4 == 0);
}

static void finish(struct fuzz_call *user, int status)
{
    static const struct arpc_pair pairs[] = {{"key", "value"}};
    const struct arpc_details details = {.reason = "REASON",
                                         .pairs = pairs,
                                         .pair_count = 1,
                                         .retry_ms = status * 100,
                                         .field = "a.b",
                                         .field_text = "what is wrong"};
    if (user->finished)
        return;
    if (user->server) {
        arpc_call_finish(user->call, status, status == 0 ? NULL : "a text: \xc3\xa4 %", status == 0 ? NULL : &details);
        user->finished = true;
    } else {
        arpc_call_half_close(user->call);
    }
}

static void cancel(struct fuzz_call *user)
{
    arpc_call_cancel(user->call, ARPC_STATUS_CANCELLED, "cancelled by its user");
    user->finished = true;
}

static void add_metadata(struct fuzz_call *user, const uint8_t *data, size_t size)
{
    if (!user->server)
        return;
    (void)arpc_call_add_initial(user->call, "x-text", data, size);
    (void)arpc_call_add_trailing(user->call, "x-data-bin", data, size);
    (void)arpc_call_add_trailing(user->call, "grpc-status", "1", 1); /* refused: it is reserved */
}

static void keep_reference(struct fuzz_call *user)
{
    if (fuzz_h2.kept_count < sizeof fuzz_h2.kept / sizeof *fuzz_h2.kept)
        fuzz_h2.kept[fuzz_h2.kept_count++] = arpc_call_ref(user->call);
}

/* What the user of a call does when bytes come: the first of them says it. */
static void react(struct fuzz_call *user, const uint8_t *data, size_t size)
{
    switch (size > 0 ? data[0] % 16 : 0) {
    case 1:
        user->echo = true;
        break;
    case 2:
        finish(user, size > 1 ? data[1] % 18 : 0);
        break;
    case 3:
        cancel(user);
        break;
    case 4:
        arpc_call_pause(user->call);
        break;
    case 5:
        fuzz_call_send(user, BODY_SIZE, true);
        break;
    case 6:
        fuzz_call_send(user, 5000, false);
        break;
    case 7:
        user->flood = true;
        flood(user);
        break;
    case 8:
        fuzz_call_send(user, 1000, true);
        arpc_call_blank(user->call);
        break;
    case 9:
        add_metadata(user, data, size);
        break;
    case 10:
        keep_reference(user);
        break;
    default:
        break;
    }
    if (user->echo && !user->finished)
        (void)arpc_call_send(user->call, data, size, NULL, 0, NULL, NULL);
}

static void on_started(struct arpc_call *call)
{
    if (arpc_call_user(call) == NULL) {
        struct fuzz_call *made = fuzz_call_new();
        AMP_ASSERT(made != NULL); /* the limits allow no more */
        made->call = call;
        made->server = true;
        arpc_call_set_user(call, made);
        AMP_ASSERT(arpc_call_method(call) != NULL && arpc_call_peer(call)[0] != 0);
    }
    struct fuzz_call *user = user_of(call);
    AMP_ASSERT(!user->started && user->messages == 0);
    user->started = true;
    const uint8_t *value;
    size_t size;
    for (size_t i = 0; arpc_call_metadata(call, "x-data-bin", i, &value, &size); i++)
        add_metadata(user, value, size);
    if (arpc_call_metadata(call, "x-text", 0, &value, &size))
        react(user, value, size);
}

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fuzz_call *user = user_of(call);
    AMP_ASSERT(size <= call->in.max_message && !user->half_closed && (data != NULL || size == 0));
    user->messages++;
    uint8_t *copy = fuzz_exact(data, size); /* reads every byte */
    react(user, copy, size);
    free(copy);
}

static void on_begin(struct arpc_call *call, size_t size)
{
    struct fuzz_call *user = user_of(call);
    AMP_ASSERT(!user->in_message && !user->half_closed && size <= call->in.max_message);
    user->in_message = true;
    user->announced = size;
    user->got = 0;
    user->messages++;
}

static void on_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fuzz_call *user = user_of(call);
    AMP_ASSERT(user->in_message && size > 0 && size <= user->announced - user->got);
    bool first = user->got == 0;
    user->got += size;
    uint8_t *copy = fuzz_exact(data, size);
    if (first)
        react(user, copy, size);
    free(copy);
}

/* Half of what is left of the message, so that some of it comes another way. */
static uint8_t *on_message_buffer(struct arpc_call *call, size_t *size)
{
    static uint8_t buffer[1 << 16];
    const struct fuzz_call *user = user_of(call);
    AMP_ASSERT(user->in_message && user->got < user->announced && !user->finished);
    size_t half = (user->announced - user->got + 1) / 2;
    *size = half < sizeof buffer ? half : sizeof buffer;
    return user->announced % 3 != 0 ? buffer : NULL;
}

static void on_end(struct arpc_call *call)
{
    struct fuzz_call *user = user_of(call);
    AMP_ASSERT(user->in_message && user->got == user->announced);
    user->in_message = false;
}

static void on_half_close(struct arpc_call *call)
{
    struct fuzz_call *user = user_of(call);
    AMP_ASSERT(user->server && !user->half_closed && !user->in_message);
    AMP_ASSERT(!call->in.single_inbound || user->messages == 1);
    user->half_closed = true;
    if (!user->flood)
        (void)arpc_call_reply(call, "an answer", 9);
    user->finished = !user->flood;
}

static void on_writable(struct arpc_call *call)
{
    struct fuzz_call *user = user_of(call);
    if (user->flood)
        flood(user);
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct fuzz_call *user = arpc_call_user(call);
    AMP_ASSERT(user != NULL && user->call == call && arpc_call_is_closed(call));
    AMP_ASSERT(result->status >= 0 && result->status <= ARPC_STATUS_UNAUTHENTICATED && result->message != NULL);
    AMP_ASSERT(result->details.pair_count <= ARPC_DETAIL_PAIRS_MAX && strlen(result->message) < ARPC_STATUS_TEXT_MAX);
    for (size_t i = 0; i < result->details.pair_count; i++)
        AMP_ASSERT(arpc_details_find(&result->details, result->details.pairs[i].key) != NULL);
    AMP_ASSERT(user->server || !call->in.single_inbound || result->status != 0 || user->messages == 1);
    AMP_ASSERT(arpc_call_send(call, "x", 1, NULL, 0, NULL, NULL) == AMP_ESTATE);
    amp_list_remove(&user->node);
    fuzz_h2.open_count--;
    free(user);
    arpc_call_set_user(call, NULL);
}

const struct arpc_handler fuzz_collecting = {.started = on_started,
                                             .message = on_message,
                                             .half_close = on_half_close,
                                             .writable = on_writable,
                                             .closed = on_closed};
const struct arpc_handler fuzz_taking = {.started = on_started,
                                         .message_begin = on_begin,
                                         .message_bytes = on_bytes,
                                         .message_buffer = on_message_buffer,
                                         .message_end = on_end,
                                         .half_close = on_half_close,
                                         .writable = on_writable,
                                         .closed = on_closed};

/* ---- acts ---- */

int64_t fuzz_h2_wait_ms(unsigned act)
{
    static const int64_t waits_ms[] = {1, 100, 1000, 5000, 20000, 400000};
    return act >= 3 && act < 9 ? waits_ms[act - 3] : 0;
}

static void act_on(struct fuzz_call *user, unsigned act)
{
    if (user->finished && act != 12)
        return;
    switch (act) {
    case 10:
        finish(user, 0);
        break;
    case 11:
        cancel(user);
        break;
    case 12:
        arpc_call_blank(user->call);
        break;
    case 13:
        arpc_call_pause(user->call);
        break;
    case 14:
        fuzz_call_send(user, 3000, true);
        break;
    case 15:
        finish(user, 14);
        break;
    default:
        break;
    }
}

void fuzz_h2_act(unsigned act)
{
    if (act == 18)
        fuzz_h2.allocations = 3;
    if (act == 19)
        fuzz_h2.allocations = -1;
    if (act == 9) {
        AMP_LIST_EACH(it, safe, &fuzz_h2.open)
        {
            arpc_call_resume(AMP_CONTAINER(it, struct fuzz_call, node)->call);
        }
    }
    if (!amp_list_empty(&fuzz_h2.open))
        act_on(AMP_CONTAINER(act == 13 ? fuzz_h2.open.prev : fuzz_h2.open.next, struct fuzz_call, node), act);
}

/* ---- connections ---- */

void fuzz_link_receive(struct arpc_link *link, const uint8_t *data, size_t size)
{
    while (size > 0 && link->error == 0) {
        size_t room = size;
        uint8_t *buffer = arpc_link_receive_buffer(link, &room);
        size_t part = room < size ? room : size;
        AMP_ASSERT(part > 0);
        if (buffer != NULL)
            memcpy(buffer, data, part);
        (void)arpc_link_receive(link, buffer != NULL ? buffer : data, part); /* its error is the link's */
        data += part;
        size -= part;
    }
}

static void wake(struct arpc_link *link)
{
    (void)link;
}

void fuzz_conn_open(struct fuzz_conn *conn)
{
    AMP_ASSERT(conn->batch.count == 0 && conn->batch.pin_count == 0);
    conn->batch_out = false;
    conn->batch.most = 0;
    long allocations = fuzz_h2.allocations;
    fuzz_h2.allocations = -1;
    AMP_ASSERT(arpc_link_init(&conn->link, &fuzz_h2.config, wake, true) == 0);
    fuzz_h2.allocations = allocations;
    (void)snprintf(conn->link.peer, sizeof conn->link.peer, "fuzz");
    conn->open = true;
}

static void flush(struct arpc_link *link)
{
    int rounds = 0;
    while (arpc_link_flush(link))
        AMP_ASSERT(++rounds < ROUNDS_MAX);
}

static void batch_left(struct fuzz_conn *conn)
{
    if (conn->batch_out)
        arpc_batch_done(&conn->link, &conn->batch);
    conn->batch_out = false;
}

void fuzz_conn_pump(struct fuzz_conn *conn, bool stuck, bool late)
{
    struct arpc_link *link = &conn->link;
    if (!stuck)
        batch_left(conn);
    flush(link);
    for (int round = 0; round < 4 && !stuck && !conn->batch_out && link->error == 0; round++) {
        (void)arpc_link_produce(link, &conn->batch); /* its error is the link's */
        size_t bytes = 0;
        for (size_t i = 0; i < conn->batch.count; i++)
            bytes += conn->batch.slots[i].iov_len;
        AMP_ASSERT(bytes == conn->batch.bytes && conn->batch.count <= ARPC_BATCH_SLOTS);
        conn->batch_out = true;
        fuzz_link_check(link, true);
        if (!late)
            batch_left(conn);
        flush(link);
    }
    fuzz_link_check(link, conn->batch_out);
}

void fuzz_conn_close(struct fuzz_conn *conn)
{
    struct arpc_link *link = &conn->link;
    if (!conn->open)
        return;
    arpc_link_fail(link, AMP_EUNAVAILABLE, "the input is over");
    if (link->config->server)
        arpc_link_abort(link, ARPC_STATUS_UNAVAILABLE, "the input is over");
    else
        arpc_link_lost(link, "the connection was lost");
    flush(link);
    batch_left(conn);
    flush(link);
    AMP_ASSERT(link->call_count == 0 && link->buffered == 0 && link->uncredited == 0);
    arpc_link_close(link);
    conn->open = false;
}

FUZZ_NO_COVERAGE static bool has_stream(const struct arpc_call *call)
{
    return call->stream_id != 0 && !call->stream_over;
}

FUZZ_NO_COVERAGE void fuzz_link_check(const struct arpc_link *link, bool batch_out)
{
    const struct arpc_link_config *config = link->config;
    size_t calls = 0, queued = 0, buffered = 0, streams = 0;
    for (struct amp_list *it = link->calls.next; it != &link->calls; it = it->next) {
        const struct arpc_call *call = AMP_CONTAINER(it, struct arpc_call, in_link);
        AMP_ASSERT(call->link == link && call->refs > 0 && call->state < ARPC_CALL_GONE &&
                   call->out.unsent <= call->out.queued);
        AMP_ASSERT(call->in.buffered.size <= config->stream_window + ARPC_INITIAL_WINDOW);
        AMP_ASSERT(call->in.message.size <= call->in.max_message);
        AMP_ASSERT(call->kept.count <= ARPC_FIELDS_MAX);
        calls++;
        queued += call->out.queued;
        buffered += call->in.buffered.size;
        streams += has_stream(call);
    }
    AMP_ASSERT(calls == link->call_count && buffered == link->buffered && link->uncredited <= link->buffered);
    AMP_ASSERT(batch_out ? queued <= link->queued : queued == link->queued);
    AMP_ASSERT(config->server || streams == link->stream_count);
    AMP_ASSERT(!config->server || calls <= (size_t)link->watch.limits->calls_factor * config->max_streams);
    AMP_ASSERT(config->retained <= config->max_retained);
    /*
     * A message goes alone however large it is. A client's calls may come from the parking link, with what they kept.
     */
    size_t most = config->max_queued + 2 * BODY_SIZE;
    AMP_ASSERT(link->queued <= (config->server ? most : 3 * most + config->max_retained));
}

void fuzz_h2_close(void)
{
    while (fuzz_h2.kept_count > 0)
        arpc_call_unref(fuzz_h2.kept[--fuzz_h2.kept_count]);
    AMP_ASSERT(amp_list_empty(&fuzz_h2.open) && fuzz_h2.open_count == 0);
    AMP_ASSERT(fuzz_h2.released == fuzz_h2.borrowed);
    AMP_ASSERT(fuzz_h2.config.calls == 0 && fuzz_h2.config.retained == 0);
}
