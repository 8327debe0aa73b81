/* Hostile peers: the scanner of frames and the admission by themselves, and what a link makes of both. */
#include "tests/unit/rpc_raw.h"

#include "rpc/h2/watch.h"
#include "rpc/io/admission.h"
#include "tests/conformance/attacks/bytes.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof array / sizeof *(array))

static struct arpc_handler handler, unary_handler;

static const struct arpc_method methods[] = {
    {"t.T", "Stream", ARPC_BIDI, false, 0, 1 << 20, &handler},
    {"t.T", "Unary", ARPC_UNARY, false, 0, 1 << 20, &unary_handler},
};

static struct arpc_limits small;

static void use_small_limits(struct arpc_link_config *config)
{
    static const char *const keep[] = {"kept", NULL};
    config->limits = &small;
    config->keep_metadata = keep;
}

static void reply(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)arpc_call_reply(call, data, size);
}

static int setup(void **state)
{
    (void)state;
    small = arpc_limits_default;
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    handler = unary_handler = rpc_noting;
    unary_handler.message = reply;
    rpc_raw_open(methods, COUNT(methods), use_small_limits);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rpc_raw_close();
    return 0;
}

static struct bytes out;

static int free_bytes(void **state)
{
    (void)state;
    bytes_free(&out);
    return 0;
}

static int teardown_both(void **state)
{
    (void)free_bytes(state);
    return teardown(state);
}

/* Scans what is in `out`, all at once or byte by byte. */
static enum arpc_abuse scan(bool by_byte)
{
    struct arpc_watch watch;
    enum arpc_abuse cause = ARPC_ABUSE_NONE;
    arpc_watch_init(&watch, &arpc_limits_default, false, 0);
    if (!by_byte)
        return arpc_watch_scan(&watch, out.data, out.size, 0);
    for (size_t i = 0; i < out.size && cause == ARPC_ABUSE_NONE; i++)
        cause = arpc_watch_scan(&watch, out.data + i, 1, 0);
    return cause;
}

static void expect_limit(int frames, enum arpc_abuse cause, void (*add)(void))
{
    for (int by_byte = 0; by_byte < 2; by_byte++) {
        out.size = 0;
        for (int i = 0; i < frames; i++)
            add();
        assert_int_equal(scan(by_byte), ARPC_ABUSE_NONE);
        add();
        assert_int_equal(scan(by_byte), cause);
    }
}

static void add_ping(void)
{
    bytes_frame(&out, H2_PING, 0, 0, "12345678", 8);
}

static void add_settings(void)
{
    bytes_head(&out, 0, H2_SETTINGS, 0, 0);
}

static void add_priority(void)
{
    bytes_frame(&out, H2_PRIORITY, 0, 3, "\0\0\0\0\0", 5);
}

static void add_empty_data(void)
{
    bytes_head(&out, 0, H2_DATA, 0, 1);
}

static void add_small_data(void)
{
    bytes_frame(&out, H2_DATA, 0, 1, "x", 1);
}

static void add_continuation(void)
{
    bytes_frame(&out, H2_CONTINUATION, 0, 1, "x", 1);
}

static void add_window_update(void)
{
    bytes_u32_frame(&out, H2_WINDOW_UPDATE, 0, 1);
}

static void add_unknown(void)
{
    bytes_head(&out, 0, H2_UNKNOWN, 0, 0);
}

static void add_answer_to_nothing(void)
{
    bytes_frame(&out, H2_PING, H2_ACK, 0, "12345678", 8);
}

static void each_kind_of_frame_has_its_limit_however_the_bytes_are_cut(void **state)
{
    (void)state;
    const struct arpc_limits *limits = &arpc_limits_default;
    expect_limit((int)limits->pings_burst, ARPC_ABUSE_PINGS, add_ping);
    expect_limit((int)limits->settings_burst, ARPC_ABUSE_SETTINGS, add_settings);
    expect_limit((int)limits->priorities_burst, ARPC_ABUSE_PRIORITIES, add_priority);
    expect_limit((int)limits->empty_frames, ARPC_ABUSE_EMPTY_FRAMES, add_empty_data);
    expect_limit((int)limits->continuations, ARPC_ABUSE_CONTINUATIONS, add_continuation);
    expect_limit((int)limits->frames_burst, ARPC_ABUSE_FRAMES, add_small_data);
    expect_limit((int)limits->frames_burst, ARPC_ABUSE_FRAMES, add_window_update);
    expect_limit((int)limits->frames_burst, ARPC_ABUSE_FRAMES, add_unknown);
    expect_limit((int)limits->frames_burst, ARPC_ABUSE_FRAMES, add_answer_to_nothing);
}

static void a_header_block_has_a_limit_of_bytes_over_all_its_frames(void **state)
{
    (void)state;
    bytes_head(&out, 40000, H2_HEADERS, 0, 1);
    bytes_zeros(&out, 40000);
    bytes_head(&out, 25536, H2_CONTINUATION, H2_END_HEADERS, 1);
    assert_int_equal(scan(false), ARPC_ABUSE_NONE);
    out.size = 0;
    bytes_head(&out, 40000, H2_HEADERS, 0, 1);
    bytes_zeros(&out, 40000);
    bytes_head(&out, 25537, H2_CONTINUATION, H2_END_HEADERS, 1);
    assert_int_equal(scan(false), ARPC_ABUSE_HEADER_BLOCK);
}

static void frames_that_answer_ours_are_earned_and_others_come_back_with_time(void **state)
{
    (void)state;
    struct arpc_watch watch;
    arpc_watch_init(&watch, &arpc_limits_default, false, 0);
    add_ping();
    /* A client that measures bandwidth sends a PING for each answer. */
    for (int i = 0; i < 100000; i++) {
        arpc_watch_sent(&watch, 100);
        assert_int_equal(arpc_watch_scan(&watch, out.data, out.size, 0), ARPC_ABUSE_NONE);
    }
    out.size = 0;
    add_window_update();
    add_window_update();
    for (int i = 0; i < 100000; i++) {
        arpc_watch_sent(&watch, 100);
        assert_int_equal(arpc_watch_scan(&watch, out.data, out.size, 0), ARPC_ABUSE_NONE);
    }
    /* Without any: 330 a second. */
    out.size = 0;
    add_unknown();
    int64_t now_ms = 0;
    while (arpc_watch_scan(&watch, out.data, out.size, now_ms) == ARPC_ABUSE_NONE)
        ;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(arpc_watch_scan(&watch, out.data, out.size, now_ms += 4), ARPC_ABUSE_NONE);
    for (int i = 0; i < 330; i++)
        (void)arpc_watch_scan(&watch, out.data, out.size, now_ms);
    assert_int_equal(arpc_watch_scan(&watch, out.data, out.size, now_ms), ARPC_ABUSE_FRAMES);
}

static void small_messages_and_large_ones_cost_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 30000; i++)
        bytes_message(&out, 1, "", 0, 0);
    bytes_head(&out, 1 << 20, H2_DATA, 0, 1);
    bytes_zeros(&out, 1 << 20);
    assert_int_equal(scan(false), ARPC_ABUSE_NONE);
}

static void a_bucket_never_holds_more_than_its_burst_and_0_is_no_limit(void **state)
{
    (void)state;
    struct arpc_bucket bucket;
    arpc_bucket_init(&bucket, 2, 0);
    arpc_bucket_fill(&bucket, 2, 1, INT64_MAX);
    arpc_bucket_earn(&bucket, 2, 100);
    assert_true(arpc_bucket_take(&bucket, 2) && arpc_bucket_take(&bucket, 2));
    assert_false(arpc_bucket_take(&bucket, 2));
    assert_true(arpc_bucket_take(&bucket, 0));
    struct arpc_limits limits = arpc_limits_default;
    assert_true(arpc_limits_set(&limits, "pings_burst", 7));
    assert_int_equal(limits.pings_burst, 7);
    assert_false(arpc_limits_set(&limits, "pings", 7));
    assert_false(arpc_limits_set(&limits, "pings_burst", -1));
    assert_false(arpc_limits_set(&limits, "pings_burst", INT64_MAX)); /* in thousandths it would be below 0 */
    assert_int_equal(limits.pings_burst, 7);
    assert_string_equal(arpc_abuse_name(ARPC_ABUSE_NONE), "none");
    assert_string_equal(arpc_abuse_name(ARPC_ABUSE_DESCRIPTORS), "descriptors");
}

static struct arpc_admission admission;

static struct arpc_admission_key ipv4(uint32_t address)
{
    struct sockaddr_in four = {.sin_family = AF_INET};
    four.sin_addr.s_addr = htonl(address);
    return arpc_admission_key_of_address((const struct sockaddr *)&four);
}

static enum arpc_abuse enter(const struct arpc_admission_key *key, int64_t now_ms, struct arpc_admission_conn *one)
{
    struct arpc_admission_conn *leaves;
    enum arpc_abuse cause = arpc_admission_enter(&admission, key, now_ms, one, &leaves);
    assert_null(leaves);
    return cause;
}

static void an_address_has_its_own_limit_of_connections(void **state)
{
    (void)state;
    static struct arpc_admission_conn admitted[1000];
    struct arpc_admission_conn other;
    struct arpc_admission_key key = ipv4(0x7f000002);
    struct arpc_admission_key next = ipv4(0x7f000003);
    arpc_admission_init(&admission, &arpc_limits_default, 1024);
    for (size_t i = 0; i < COUNT(admitted); i++) {
        assert_int_equal(enter(&key, 0, &admitted[i]), ARPC_ABUSE_NONE);
        arpc_admission_admit(&admission, &admitted[i]);
    }
    assert_int_equal(enter(&key, 0, &other), ARPC_ABUSE_ADDRESS);
    assert_int_equal(enter(&next, 0, &other), ARPC_ABUSE_NONE);
    arpc_admission_leave(&admission, &admitted[0], 0);
    assert_int_equal(enter(&key, 0, &admitted[0]), ARPC_ABUSE_NONE);
    for (size_t i = 0; i < COUNT(admitted); i++)
        arpc_admission_leave(&admission, &admitted[i], 0);
    arpc_admission_leave(&admission, &other, 0);
    assert_int_equal(admission.idle_count, 0); /* nothing is remembered of who did nothing */
    arpc_admission_close(&admission);
}

static void abuse_is_remembered_and_forgiven_at_one_a_second(void **state)
{
    (void)state;
    struct arpc_admission_conn one;
    struct arpc_admission_key key = ipv4(0x7f000002);
    arpc_admission_init(&admission, &arpc_limits_default, 1024);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(enter(&key, 0, &one), ARPC_ABUSE_NONE);
        arpc_admission_strike(&admission, one.source, 0);
        arpc_admission_leave(&admission, &one, 0);
    }
    assert_int_equal(enter(&key, 999, &one), ARPC_ABUSE_STRIKES);
    assert_int_equal(enter(&key, 1000, &one), ARPC_ABUSE_NONE);
    arpc_admission_strike(&admission, one.source, 1000);
    arpc_admission_leave(&admission, &one, 1000);
    assert_int_equal(enter(&key, 1001, &one), ARPC_ABUSE_STRIKES);
    assert_int_equal(enter(&key, 100000, &one), ARPC_ABUSE_NONE);
    arpc_admission_leave(&admission, &one, 100000);
    assert_int_equal(admission.idle_count, 0);
    arpc_admission_close(&admission);
}

static void a_hundred_thousand_addresses_take_no_more_memory_than_a_thousand(void **state)
{
    (void)state;
    struct arpc_admission_conn one;
    arpc_admission_init(&admission, &arpc_limits_default, 1024);
    for (uint32_t i = 0; i < 100000; i++) {
        struct arpc_admission_key key = ipv4(0x0a000000 + i);
        assert_int_equal(enter(&key, 0, &one), ARPC_ABUSE_NONE);
        arpc_admission_strike(&admission, one.source, 0);
        arpc_admission_leave(&admission, &one, 0);
    }
    assert_int_equal(admission.idle_count, 1024);
    arpc_admission_close(&admission);
}

static void abuse_counts_while_the_connection_is_still_there(void **state)
{
    (void)state;
    struct arpc_admission_conn admitted[16];
    struct arpc_admission_conn other;
    struct arpc_admission_key key = ipv4(0x7f000002);
    arpc_admission_init(&admission, &arpc_limits_default, 1024);
    for (size_t i = 0; i < COUNT(admitted); i++) {
        assert_int_equal(enter(&key, 0, &admitted[i]), ARPC_ABUSE_NONE);
        arpc_admission_strike(&admission, admitted[i].source, 0);
    }
    assert_int_equal(enter(&key, 0, &other), ARPC_ABUSE_STRIKES);
    for (size_t i = 0; i < COUNT(admitted); i++)
        arpc_admission_leave(&admission, &admitted[i], 0);
    assert_int_equal(enter(&key, 0, &other), ARPC_ABUSE_STRIKES);
    arpc_admission_close(&admission);
}

static void one_host_of_ipv6_is_one_source_and_users_are_each_one(void **state)
{
    (void)state;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    six.sin6_addr.s6_addr[0] = 0x20;
    struct arpc_admission_key first = arpc_admission_key_of_address((const struct sockaddr *)&six);
    six.sin6_addr.s6_addr[15] = 1;
    struct arpc_admission_key same = arpc_admission_key_of_address((const struct sockaddr *)&six);
    six.sin6_addr.s6_addr[7] = 1;
    struct arpc_admission_key other = arpc_admission_key_of_address((const struct sockaddr *)&six);
    assert_memory_equal(&first, &same, sizeof first);
    assert_memory_not_equal(&first, &other, sizeof first);
    memset(&six.sin6_addr, 0, sizeof six.sin6_addr);
    six.sin6_addr.s6_addr[10] = six.sin6_addr.s6_addr[11] = 0xff;
    six.sin6_addr.s6_addr[12] = 127;
    six.sin6_addr.s6_addr[15] = 2;
    struct arpc_admission_key mapped = arpc_admission_key_of_address((const struct sockaddr *)&six);
    struct arpc_admission_key four = ipv4(0x7f000002);
    assert_memory_equal(&mapped, &four, sizeof four);
    struct arpc_admission_key root = arpc_admission_key_of_user(0);
    struct arpc_admission_key user = arpc_admission_key_of_user(1000);
    assert_memory_not_equal(&root, &user, sizeof root);
}

static void an_attack_is_answered_by_a_calm_goaway_and_not_read_any_more(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    raw.server.config.min_ping_interval_ms = 0;
    (void)rpc_raw_request("/t.T/Stream", NULL, NULL, "\0\0\0\0\1x", 6, false);
    assert_int_equal(rpc_seen_of_server.ended, 1);
    for (int i = 0; i < 200; i++)
        add_unknown();
    small.frames_burst = 100;
    rpc_raw_feed(out.data, out.size);
    assert_int_equal(link->abuse, ARPC_ABUSE_NONE); /* the bucket was filled before */
    link->watch.frames.level = 100 * 1000;
    rpc_raw_feed(out.data, out.size);
    assert_int_equal(link->abuse, ARPC_ABUSE_FRAMES);
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_FRAMES], 1);
    uint64_t bytes = link->watch.byte_count;
    rpc_raw_feed(out.data, out.size);
    assert_int_equal(link->watch.byte_count, bytes);
    rpc_raw_run();
    assert_int_equal(raw.goaway_code, NGHTTP2_ENHANCE_YOUR_CALM);
    assert_string_equal(raw.goaway_debug, "too many frames without payload");
    assert_true(arpc_link_is_over(link));
}

static void a_peer_that_does_not_take_its_goaway_is_dropped(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    rpc_raw_run();
    arpc_link_expel(link, NGHTTP2_ENHANCE_YOUR_CALM, "x");
    link->goaway.goodbye_due_ms = raw.now_ms + small.goodbye_ms; /* as what ends it by a limit sets it */
    arpc_link_due(link, link->goaway.goodbye_due_ms);
    raw.now_ms += small.goodbye_ms;
    arpc_link_tick(link);
    assert_int_equal(link->error, AMP_EDEADLINE);
}

static void resets_after_the_answer_are_not_counted(void **state)
{
    (void)state;
    for (int i = 0; i < 3000; i++) {
        memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
        int32_t id = rpc_raw_request("/t.T/Unary", NULL, NULL, "\0\0\0\0\1x", 6, true);
        assert_string_equal(raw.grpc_status, "0");
        out.size = 0;
        bytes_u32_frame(&out, H2_RST_STREAM, (uint32_t)id, NGHTTP2_CANCEL);
        rpc_raw_feed(out.data, out.size);
    }
    assert_int_equal(raw.server.link.abuse, ARPC_ABUSE_NONE);
    assert_int_equal(raw.server.link.error, 0);
}

/* As grpc-go says good-bye: the last stream that it names is its own. */
static void a_goaway_that_names_the_wrong_stream_is_no_attack(void **state)
{
    (void)state;
    (void)rpc_raw_request("/t.T/Unary", NULL, NULL, "\0\0\0\0\1x", 6, true);
    bytes_frame(&out, H2_GOAWAY, 0, 0, "\0\0\0\1\0\0\0\0", 8);
    rpc_raw_feed(out.data, out.size);
    rpc_raw_run();
    assert_true(arpc_link_is_over(&raw.server.link));
    assert_int_equal(raw.server.link.abuse, ARPC_ABUSE_NONE);
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_PROTOCOL], 0);
}

/* A peer that does not read does not let its stream end. */
static void the_metadata_of_a_call_that_is_over_goes_before_its_stream(void **state)
{
    (void)state;
    (void)rpc_raw_request("/t.T/Stream", "kept", "value", "", 0, false);
    struct arpc_call *call = rpc_seen_of_server.call;
    assert_true(call->kept.bytes.capacity > 0);
    arpc_call_cancel(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "a test");
    (void)arpc_link_flush(&raw.server.link);
    assert_non_null(call->link);
    assert_int_equal(call->kept.bytes.capacity, 0);
}

/* Nobody has so much to say, and nghttp2 would keep all of it until its end, which need not come. */
static void a_goaway_of_a_megabyte_ends_the_connection_before_it_is_taken(void **state)
{
    (void)state;
    static const uint8_t begin[] = {0x10, 0, 0, H2_GOAWAY, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 'b', 'y', 'e'};
    rpc_raw_run();
    rpc_raw_feed(begin, sizeof begin);
    assert_int_equal(raw.server.link.abuse, ARPC_ABUSE_HEADER_BLOCK);
    assert_true(raw.server.link.goaway.expelled);
}

static void a_block_of_continuations_that_comes_byte_by_byte_is_a_request(void **state)
{
    (void)state;
    struct bytes block = {0};
    rpc_raw_run();
    bytes_block(&block, "/t.T/Stream", NULL);
    size_t part = block.size / 8;
    bytes_frame(&out, H2_HEADERS, 0, 1, block.data, part);
    for (size_t i = 1; i < 7; i++)
        bytes_frame(&out, H2_CONTINUATION, 0, 1, block.data + i * part, part);
    bytes_frame(&out, H2_CONTINUATION, H2_END_HEADERS, 1, block.data + 7 * part, block.size - 7 * part);
    bytes_free(&block);
    for (size_t i = 0; i < out.size; i++)
        rpc_raw_feed(out.data + i, 1);
    assert_int_equal(raw.server.link.error, 0);
    assert_int_equal(rpc_seen_of_server.started, 1);
}

static void a_message_that_comes_too_slowly_ends_its_call_unavailable_and_no_other(void **state)
{
    (void)state;
    int32_t id = rpc_raw_request("/t.T/Unary", NULL, NULL, "\0\0\1\0\0", 5, false);
    for (int i = 0; i < 9; i++) {
        rpc_raw_pass(1000);
        add_small_data();
        out.data[out.size - 2] = (uint8_t)id;
        rpc_raw_feed(out.data + out.size - 10, 10);
    }
    assert_string_equal(raw.grpc_status, "");
    rpc_raw_pass(1000);
    assert_string_equal(raw.grpc_status, "14");
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_SLOW_MESSAGE], 1);
    assert_int_equal(raw.server.link.error, 0);
}

static void a_stream_may_wait_between_messages_and_a_message_may_take_long(void **state)
{
    (void)state;
    static uint8_t kib[1024];
    int32_t id = rpc_raw_request("/t.T/Stream", NULL, NULL, "\0\0\0\0\1x", 6, false);
    rpc_raw_pass(100000);
    bytes_frame(&out, H2_DATA, 0, (uint32_t)id, "\0\0\4\0\0", 5);
    rpc_raw_feed(out.data, out.size);
    out.size = 0;
    bytes_frame(&out, H2_DATA, 0, (uint32_t)id, kib, sizeof kib);
    for (int i = 0; i < 120; i++) {
        rpc_raw_pass(990);
        rpc_raw_feed(out.data, out.size);
    }
    assert_int_equal(rpc_seen_of_server.closed, 0);
    assert_int_equal(raw.server.link.error, 0);
}

static void a_paused_call_is_not_slow(void **state)
{
    (void)state;
    (void)rpc_raw_request("/t.T/Stream", NULL, NULL, "\0\0\1\0\0xyz", 8, false);
    arpc_call_pause(rpc_seen_of_server.call);
    for (int i = 0; i < 10; i++)
        rpc_raw_pass(20000);
    assert_int_equal(rpc_seen_of_server.closed, 0);
    arpc_call_resume(rpc_seen_of_server.call);
    rpc_raw_pass(20001);
    assert_string_equal(raw.grpc_status, "14");
}

/* Its next bytes need a round trip. */
static void a_call_that_is_resumed_has_a_whole_time_for_its_message(void **state)
{
    (void)state;
    int64_t window_ms = raw.server.link.watch.limits->message_window_ms;
    (void)rpc_raw_request("/t.T/Stream", NULL, NULL, "\0\0\1\0\0xyz", 8, false);
    arpc_call_pause(rpc_seen_of_server.call);
    rpc_raw_pass(window_ms);
    rpc_raw_pass(window_ms - 1);
    arpc_call_resume(rpc_seen_of_server.call);
    rpc_raw_pass(1);
    assert_int_equal(rpc_seen_of_server.closed, 0);
    rpc_raw_pass(window_ms);
    assert_string_equal(raw.grpc_status, "14");
}

static void a_peer_that_never_acknowledges_our_settings_is_dropped(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    rpc_raw_feed(NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
    add_settings();
    rpc_raw_feed(out.data, out.size);
    raw.now_ms += small.settings_ack_ms - 1;
    arpc_link_tick(link);
    assert_int_equal(link->error, 0);
    raw.now_ms += 1;
    arpc_link_tick(link);
    assert_int_equal(link->error, AMP_EDEADLINE);
    assert_int_equal(link->abuse, ARPC_ABUSE_SLOW_PREFACE);
}

static void faults_and_refusals_have_their_limits(void **state)
{
    (void)state;
    struct arpc_watch watch;
    arpc_watch_init(&watch, &arpc_limits_default, true, 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(arpc_watch_fault(&watch, 0), ARPC_ABUSE_NONE);
    assert_int_equal(arpc_watch_fault(&watch, 99), ARPC_ABUSE_FAULTS);
    assert_int_equal(arpc_watch_fault(&watch, 100), ARPC_ABUSE_NONE);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(arpc_watch_refusal(&watch, 0), ARPC_ABUSE_NONE);
    assert_int_equal(arpc_watch_refusal(&watch, 0), ARPC_ABUSE_REFUSALS);
    for (int i = 0; i < 512; i++)
        assert_int_equal(arpc_watch_reset(&watch, 0), ARPC_ABUSE_NONE);
    assert_int_equal(arpc_watch_reset(&watch, 0), ARPC_ABUSE_RESETS);
    for (int i = 0; i < 200; i++)
        assert_int_equal(arpc_watch_bad_request(&watch, 0), ARPC_ABUSE_NONE);
    assert_int_equal(arpc_watch_bad_request(&watch, 0), ARPC_ABUSE_BAD_REQUESTS);
}

static void streams_that_the_server_is_made_to_reset_end_the_connection(void **state)
{
    (void)state;
    rpc_raw_run();
    for (uint32_t i = 0; i < 200; i++) {
        out.size = 0;
        bytes_request(&out, 2 * i + 1, "/t.T/Stream", 0);
        bytes_u32_frame(&out, H2_WINDOW_UPDATE, 2 * i + 1, 0x7fffffff);
        rpc_raw_feed(out.data, out.size);
        assert_int_equal(arpc_link_produce(&raw.server.link, &raw.server.batch), 0);
        arpc_batch_done(&raw.server.link, &raw.server.batch);
        while (arpc_link_flush(&raw.server.link))
            ;
        assert_true(raw.server.config.calls <= 1); /* the handler has heard of it */
        memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    }
    assert_int_equal(raw.server.link.abuse, ARPC_ABUSE_FAULTS);
}

static void a_header_bomb_ends_the_connection_before_it_is_decoded(void **state)
{
    (void)state;
    rpc_raw_run();
    struct bytes block = {0};
    bytes_block(&block, "/t.T/Unary", NULL);
    for (int i = 0; i < 12000; i++)
        bytes_text(&block, "\xa0"); /* a crumb of a cookie */
    bytes_frame(&out, H2_HEADERS, H2_END_HEADERS, 1, block.data, block.size);
    bytes_free(&block);
    rpc_raw_feed(out.data, out.size);
    assert_int_equal(raw.server.link.abuse, ARPC_ABUSE_METADATA);
    assert_int_equal(rpc_seen_of_server.started, 0);
    rpc_raw_run();
    assert_int_equal(raw.goaway_code, NGHTTP2_ENHANCE_YOUR_CALM);
}

static void requests_that_cannot_be_served_have_a_limit(void **state)
{
    (void)state;
    for (int i = 0; i <= 200; i++) {
        assert_int_equal(raw.server.link.abuse, ARPC_ABUSE_NONE);
        (void)rpc_raw_request("/t.T/None", NULL, NULL, "", 0, true);
    }
    assert_int_equal(raw.server.link.abuse, ARPC_ABUSE_BAD_REQUESTS);
}

static int reports;
static uint64_t untold;

static void count_report(const char *peer, enum arpc_abuse cause, uint64_t unreported, void *arg)
{
    (void)peer;
    (void)cause;
    (void)arg;
    reports++;
    untold += unreported;
}

static void reports_are_few_and_say_how_many_there_were(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    raw.server.config.abuse_cb = count_report;
    arpc_bucket_init(&raw.server.config.reports, small.reports_burst, raw.now_ms);
    reports = 0;
    untold = 0;
    for (int i = 0; i < 1000; i++)
        arpc_link_count(link, ARPC_ABUSE_STALLED);
    assert_int_equal(reports, 10);
    raw.now_ms += 1000;
    arpc_link_count(link, ARPC_ABUSE_STALLED);
    assert_int_equal(reports, 11);
    assert_int_equal(untold, 990);
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_STALLED], 1001);
}

int main(void)
{
#define ALONE(test)    cmocka_unit_test_setup_teardown(test, free_bytes, free_bytes)
#define WITH_RAW(test) cmocka_unit_test_setup_teardown(test, setup, teardown_both)
    const struct CMUnitTest tests[] = {
        ALONE(each_kind_of_frame_has_its_limit_however_the_bytes_are_cut),
        ALONE(a_header_block_has_a_limit_of_bytes_over_all_its_frames),
        ALONE(frames_that_answer_ours_are_earned_and_others_come_back_with_time),
        ALONE(small_messages_and_large_ones_cost_nothing),
        ALONE(a_bucket_never_holds_more_than_its_burst_and_0_is_no_limit),
        ALONE(an_address_has_its_own_limit_of_connections),
        ALONE(abuse_is_remembered_and_forgiven_at_one_a_second),
        ALONE(abuse_counts_while_the_connection_is_still_there),
        ALONE(a_hundred_thousand_addresses_take_no_more_memory_than_a_thousand),
        ALONE(one_host_of_ipv6_is_one_source_and_users_are_each_one),
        ALONE(faults_and_refusals_have_their_limits),
        WITH_RAW(an_attack_is_answered_by_a_calm_goaway_and_not_read_any_more),
        WITH_RAW(a_peer_that_does_not_take_its_goaway_is_dropped),
        WITH_RAW(resets_after_the_answer_are_not_counted),
        WITH_RAW(a_goaway_that_names_the_wrong_stream_is_no_attack),
        WITH_RAW(the_metadata_of_a_call_that_is_over_goes_before_its_stream),
        WITH_RAW(a_goaway_of_a_megabyte_ends_the_connection_before_it_is_taken),
        WITH_RAW(a_block_of_continuations_that_comes_byte_by_byte_is_a_request),
        WITH_RAW(a_message_that_comes_too_slowly_ends_its_call_unavailable_and_no_other),
        WITH_RAW(a_stream_may_wait_between_messages_and_a_message_may_take_long),
        WITH_RAW(a_paused_call_is_not_slow),
        WITH_RAW(a_call_that_is_resumed_has_a_whole_time_for_its_message),
        WITH_RAW(a_peer_that_never_acknowledges_our_settings_is_dropped),
        WITH_RAW(streams_that_the_server_is_made_to_reset_end_the_connection),
        WITH_RAW(a_header_bomb_ends_the_connection_before_it_is_decoded),
        WITH_RAW(requests_that_cannot_be_served_have_a_limit),
        WITH_RAW(reports_are_few_and_say_how_many_there_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
