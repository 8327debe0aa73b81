#include "tests/conformance/attacks/rows.h"

#include <string.h>

#define ECHO      "/ampd.test.v1.Echo/"
#define PARAMETER "/ampd.v1.ParameterService/"
#define SCALE     "/ampd.v1.ScaleService/"
#define FRAMES    1000 /* of one batch */
#define CALLS     64

/* RFC 9113 6.5.2. */
#define MAX_FRAME_SIZE      5
#define INITIAL_WINDOW_SIZE 4

static const struct target echo = {
    .unary = ECHO "Unary",
    .sleep = ECHO "Sleep",
    .sleep_message = {"\x08\xff\x7f", 3},
    .repeat = ECHO "Repeat",
    .repeat_message = {"\x08\xe8\x07\x10\x80\x80\x40", 7}, /* 1,000 messages of 1 MiB */
    .collect = ECHO "Collect",
    .confusing = {"ampd.test.v1.Echo/Unary", "//ampd.test.v1.Echo/Unary", "/ampd.test.v1.Echo%2fUnary",
                  "/AMPD.test.v1.Echo/Unary"},
};

static const struct target ampd = {
    .unary = PARAMETER "ListModels",
    .sleep = SCALE "WatchSteps",
    .sleep_message = {"\x0a\x08"
                      "attacked",
                      10},
    .repeat = PARAMETER "Pull",
    .repeat_message = {"\x0a\x08"
                       "attacked\x30\x01", /* the newest version */
                       12},
    .collect = PARAMETER "Push",
    .confusing = {"ampd.v1.ParameterService/ListModels", "/" PARAMETER "ListModels",
                  "/ampd.v1.ParameterService%2fListModels", "/AMPD.v1.ParameterService/ListModels"},
};

const struct target *target = &echo;

bool target_set(const char *name)
{
    target = strcmp(name, "ampd") == 0 ? &ampd : &echo;
    return target == &ampd || strcmp(name, "echo") == 0;
}

/* Many large answers, of which nothing can be sent. */
static void zero_window(struct bytes *first, struct bytes *again)
{
    bytes_setting(first, INITIAL_WINDOW_SIZE, 0);
    for (unsigned i = 0; i < CALLS; i++) {
        bytes_request(first, 2 * i + 1, target->repeat, 0);
        bytes_message(first, 2 * i + 1, target->repeat_message.bytes, target->repeat_message.size, H2_END_STREAM);
    }
    (void)again;
}

static void slow_read(struct bytes *first, struct bytes *again)
{
    bytes_setting(first, INITIAL_WINDOW_SIZE, 0x7fffffff);
    bytes_u32_frame(first, H2_WINDOW_UPDATE, 0, 0x7fff0000);
    for (unsigned i = 0; i < CALLS; i++) {
        bytes_request(first, 2 * i + 1, target->repeat, 0);
        bytes_message(first, 2 * i + 1, target->repeat_message.bytes, target->repeat_message.size, H2_END_STREAM);
    }
    (void)again;
}

static void data_dribble(struct bytes *first, struct bytes *again)
{
    zero_window(first, again);
    for (unsigned i = 0; i < CALLS; i++)
        bytes_u32_frame(again, H2_WINDOW_UPDATE, 2 * i + 1, 1);
}

/* A field of 4,000 bytes into the table, then references to it, one byte each. */
static void hpack_bomb(struct bytes *first, struct bytes *again)
{
    (void)first;
    struct bytes block = {0};
    bytes_block(&block, target->unary, NULL);
    bytes_text(&block, "\x40\x01"
                       "a\x7f\xa1\x1e"); /* a value of 127 + 3,873 bytes */
    bytes_zeros(&block, 4000);
    memset(block.data + block.size - 4000, 'v', 4000);
    for (int i = 0; i < 8000; i++)
        bytes_text(&block, "\xbe");
    bytes_frame(again, H2_HEADERS, H2_END_HEADERS, ROUND_STREAM(0), block.data, block.size);
    bytes_free(&block);
}

/* Cookie crumbs of one byte each on many streams, whose answers wait for a window. */
static void http2_bomb(struct bytes *first, struct bytes *again)
{
    bytes_setting(first, INITIAL_WINDOW_SIZE, 0);
    struct bytes block = {0};
    bytes_block(&block, target->unary, NULL);
    for (int i = 0; i < 12000; i++)
        bytes_text(&block, "\xa0");
    bytes_frame(again, H2_HEADERS, H2_END_HEADERS, ROUND_STREAM(0), block.data, block.size);
    bytes_free(&block);
}

static void priority_flood(struct bytes *first, struct bytes *again)
{
    (void)first;
    for (unsigned i = 0; i < FRAMES; i++) {
        bytes_head(again, 5, H2_PRIORITY, 0, 2 * (i % 500) + 3);
        bytes_u32(again, 2 * ((i * 7 + 1) % 500) + 1);
        bytes_add(again, "\x10", 1);
    }
}

static void ping_flood(struct bytes *first, struct bytes *again)
{
    (void)first;
    for (unsigned i = 0; i < FRAMES; i++)
        bytes_frame(again, H2_PING, 0, 0, "12345678", 8);
}

static void settings_flood(struct bytes *first, struct bytes *again)
{
    (void)first;
    for (unsigned i = 0; i < FRAMES; i++)
        bytes_head(again, 0, H2_SETTINGS, 0, 0);
}

static void rapid_reset(struct bytes *first, struct bytes *again)
{
    (void)first;
    for (unsigned i = 0; i < CALLS; i++) {
        bytes_request(again, ROUND_STREAM(i), target->sleep, 0);
        bytes_message(again, ROUND_STREAM(i), target->sleep_message.bytes, target->sleep_message.size, H2_END_STREAM);
        bytes_u32_frame(again, H2_RST_STREAM, ROUND_STREAM(i), 8);
    }
}

/* Calls that the server has to reset: their window overflows. */
static void made_you_reset(struct bytes *first, struct bytes *again)
{
    (void)first;
    for (unsigned i = 0; i < CALLS; i++) {
        bytes_request(again, ROUND_STREAM(i), target->sleep, 0);
        bytes_message(again, ROUND_STREAM(i), target->sleep_message.bytes, target->sleep_message.size, H2_END_STREAM);
        bytes_u32_frame(again, H2_WINDOW_UPDATE, ROUND_STREAM(i), 0x7fffffff);
    }
}

static void empty_names(struct bytes *first, struct bytes *again)
{
    (void)first;
    struct bytes block = {0};
    bytes_block(&block, target->unary, NULL);
    for (int i = 0; i < 50; i++)
        bytes_field(&block, "", "");
    for (unsigned i = 0; i < CALLS; i++)
        bytes_frame(again, H2_HEADERS, H2_END_HEADERS, ROUND_STREAM(i), block.data, block.size);
    bytes_free(&block);
}

static void empty_data(struct bytes *first, struct bytes *again)
{
    bytes_request(first, 1, target->collect, 0);
    for (unsigned i = 0; i < FRAMES; i++)
        bytes_head(again, 0, H2_DATA, 0, 1);
}

static void empty_headers(struct bytes *first, struct bytes *again)
{
    bytes_head(first, 0, H2_HEADERS, 0, 1);
    for (unsigned i = 0; i < FRAMES; i++)
        bytes_head(again, 0, H2_CONTINUATION, 0, 1);
}

/* DATA of one byte, four to a prefix. */
static void crumbs(struct bytes *first, struct bytes *again)
{
    bytes_request(first, 1, target->collect, 0);
    for (unsigned i = 0; i < FRAMES; i++)
        bytes_frame(again, H2_DATA, 0, 1, "", 1);
}

static void continuation_flood(struct bytes *first, struct bytes *again)
{
    struct bytes block = {0};
    bytes_block(&block, target->unary, NULL);
    bytes_frame(first, H2_HEADERS, 0, 1, block.data, block.size);
    bytes_free(&block);
    for (unsigned i = 0; i < FRAMES; i++)
        bytes_frame(again, H2_CONTINUATION, 0, 1, "\x90\x90\x90\x90", 4);
}

static void large_settings(struct bytes *first, struct bytes *again)
{
    (void)first;
    bytes_head(again, 16380, H2_SETTINGS, 0, 0);
    bytes_zeros(again, 16380);
}

static void frame_size_zero(struct bytes *first, struct bytes *again)
{
    (void)first;
    bytes_setting(again, MAX_FRAME_SIZE, 0);
}

static void window_flips(struct bytes *first, struct bytes *again)
{
    for (unsigned i = 0; i < 250; i++)
        bytes_request(first, 2 * i + 1, target->collect, 0);
    for (unsigned i = 0; i < FRAMES; i++)
        bytes_setting(again, INITIAL_WINDOW_SIZE, i % 2 == 0 ? 0 : 0x7fffffff);
}

/* After the server has given up: frames of a wrong size, of types with and without handlers. */
static void after_goaway(struct bytes *first, struct bytes *again)
{
    bytes_frame(first, H2_DATA, 0, 0, "x", 1);
    for (unsigned type = 0; type < 20; type++) {
        bytes_frame(again, type, 0, 1, "xyz", 3);
        bytes_frame(again, type, 0, 0, "xyz", 3);
    }
}

/* An HPACK number that goes on with zeros. */
static void endless_varint(struct bytes *first, struct bytes *again)
{
    (void)first;
    struct bytes block = {0};
    bytes_text(&block, "\xff");
    for (int i = 0; i < 4000; i++)
        bytes_text(&block, "\x80");
    bytes_frame(again, H2_HEADERS, H2_END_HEADERS, ROUND_STREAM(0), block.data, block.size);
    bytes_free(&block);
}

static void bad_metadata(struct bytes *first, struct bytes *again)
{
    (void)first;
    struct bytes block = {0};
    bytes_block(&block, target->unary, NULL);
    bytes_field(&block, "te", "\x01\x02");
    bytes_field(&block, "x-echo-trailing-bin", "***");
    for (unsigned i = 0; i < CALLS; i++)
        bytes_frame(again, H2_HEADERS, H2_END_HEADERS | H2_END_STREAM, ROUND_STREAM(i), block.data, block.size);
    bytes_free(&block);
}

static void prefix_lie(struct bytes *first, struct bytes *again)
{
    (void)first;
    for (unsigned i = 0; i < CALLS; i++) {
        bytes_request(again, ROUND_STREAM(i), target->unary, 0);
        bytes_frame(again, H2_DATA, H2_END_STREAM, ROUND_STREAM(i), "\0\xff\xff\xff\xffx", 6);
    }
}

/* 4 MiB are allowed, and never come. */
static void prefix_hold(struct bytes *first, struct bytes *again)
{
    for (unsigned i = 0; i < 200; i++) {
        bytes_request(first, 2 * i + 1, target->unary, 0);
        bytes_frame(first, H2_DATA, 0, 2 * i + 1, "\0\0\x40\0\0x", 6);
    }
    (void)again;
}

static void path_confusion(struct bytes *first, struct bytes *again)
{
    (void)first;
    for (unsigned i = 0; i < CALLS; i++) {
        bytes_request(again, ROUND_STREAM(i), target->confusing[i % 4], 0);
        bytes_message(again, ROUND_STREAM(i), "", 0, H2_END_STREAM);
    }
}

static void slow_preface(struct bytes *first, struct bytes *again)
{
    first->size = 0;
    bytes_text(again, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r");
}

static void slow_headers(struct bytes *first, struct bytes *again)
{
    (void)first;
    struct bytes block = {0};
    bytes_block(&block, target->unary, NULL);
    bytes_zeros(&block, 16000);
    bytes_frame(again, H2_HEADERS, H2_END_HEADERS, 1, block.data, block.size);
    bytes_free(&block);
}

static void slow_body(struct bytes *first, struct bytes *again)
{
    bytes_request(first, 1, target->unary, 0);
    bytes_head(first, 16000, H2_DATA, 0, 1);
    bytes_add(first, "\0\0\0\x40", 4);
    bytes_zeros(again, 16000 - 4);
}

static void nothing(struct bytes *first, struct bytes *again)
{
    (void)first;
    (void)again;
}

static void window_update_flood(struct bytes *first, struct bytes *again)
{
    (void)first;
    for (unsigned i = 0; i < FRAMES; i++)
        bytes_u32_frame(again, H2_WINDOW_UPDATE, 0, 1);
}

static void frames_of(struct bytes *again, unsigned type, const char *payload, size_t size)
{
    for (unsigned i = 0; i < FRAMES; i++)
        bytes_frame(again, type, 0, 0, payload, size);
}

static void unknown_flood(struct bytes *first, struct bytes *again)
{
    (void)first;
    frames_of(again, H2_UNKNOWN, "", 0);
}

static void altsvc_flood(struct bytes *first, struct bytes *again)
{
    (void)first;
    frames_of(again, H2_ALTSVC, "\0\1xy", 4);
}

static void priority_update_flood(struct bytes *first, struct bytes *again)
{
    (void)first;
    frames_of(again, H2_PRIORITY_UPDATE, "\0\0\0\3u=1", 7);
}

static void too_many_streams(struct bytes *first, struct bytes *again)
{
    (void)first;
    for (unsigned i = 0; i < 1000; i++)
        bytes_request(again, ROUND_STREAM(i), target->collect, 0);
}

/*
 * What a client does wrong without wanting to: half a frame, another method, no message, two messages, odd deadlines.
 */
static void bad_calls(struct bytes *first, struct bytes *again)
{
    (void)first;
    struct bytes block = {0};
    bytes_block(&block, target->unary, "text/html");
    bytes_frame(again, H2_HEADERS, H2_END_HEADERS, ROUND_STREAM(0), block.data, block.size);
    block.data[0] = 0x82; /* GET */
    bytes_frame(again, H2_HEADERS, H2_END_HEADERS, ROUND_STREAM(1), block.data, block.size);
    block.size = 0;
    bytes_block(&block, target->sleep, NULL);
    bytes_field(&block, "grpc-timeout", "0S");
    bytes_frame(again, H2_HEADERS, H2_END_HEADERS, ROUND_STREAM(2), block.data, block.size);
    block.size = 0;
    bytes_block(&block, target->sleep, NULL);
    bytes_field(&block, "grpc-timeout", "99999999H");
    bytes_frame(again, H2_HEADERS, H2_END_HEADERS, ROUND_STREAM(3), block.data, block.size);
    bytes_free(&block);
    bytes_request(again, ROUND_STREAM(4), target->unary, H2_END_STREAM);
    bytes_request(again, ROUND_STREAM(5), target->unary, 0);
    bytes_message(again, ROUND_STREAM(5), "", 0, 0);
    bytes_message(again, ROUND_STREAM(5), "", 0, H2_END_STREAM);
    bytes_request(again, ROUND_STREAM(6), target->unary, 0);
    bytes_frame(again, H2_DATA, H2_END_STREAM, ROUND_STREAM(6), "\1\0\0\0\1x", 6);
    bytes_head(again, 1000, H2_HEADERS, H2_END_HEADERS, ROUND_STREAM(7));
    bytes_zeros(again, 10);
}

const struct row rows[] = {
    {"zero_window", 0, zero_window, 0},
    {"slow_read", ROW_UNREAD, slow_read, 0},
    {"data_dribble", ROW_SLOW, data_dribble, 0},
    {"hpack_bomb", 0, hpack_bomb, 1},
    {"http2_bomb", 0, http2_bomb, 1},
    {"priority_flood", 0, priority_flood, 0},
    {"ping_flood", 0, ping_flood, 0},
    {"ping_flood_unread", ROW_UNREAD, ping_flood, 0},
    {"settings_flood", 0, settings_flood, 0},
    {"settings_flood_unread", ROW_UNREAD, settings_flood, 0},
    {"rapid_reset", 0, rapid_reset, CALLS},
    {"made_you_reset", 0, made_you_reset, CALLS},
    {"empty_names", 0, empty_names, CALLS},
    {"empty_data", 0, empty_data, 0},
    {"empty_headers", 0, empty_headers, 0},
    {"crumbs", 0, crumbs, 0},
    {"continuation_flood", 0, continuation_flood, 0},
    {"large_settings", 0, large_settings, 0},
    {"frame_size_zero", 0, frame_size_zero, 0},
    {"window_flips", 0, window_flips, 0},
    {"after_goaway", 0, after_goaway, 0},
    {"endless_varint", 0, endless_varint, 1},
    {"connections", ROW_ONCE, nothing, 0},
    {"bad_metadata", 0, bad_metadata, CALLS},
    {"prefix_lie", 0, prefix_lie, CALLS},
    {"prefix_hold", 0, prefix_hold, 0},
    {"path_confusion", 0, path_confusion, CALLS},
    {"slow_preface", ROW_SLOW, slow_preface, 0},
    {"slow_headers", ROW_SLOW, slow_headers, 0},
    {"slow_body", ROW_SLOW, slow_body, 0},
    {"idle", 0, nothing, 0},
    {"window_update_flood", 0, window_update_flood, 0},
    {"unknown_flood", 0, unknown_flood, 0},
    {"altsvc_flood", 0, altsvc_flood, 0},
    {"priority_update_flood", 0, priority_update_flood, 0},
    {"too_many_streams", 0, too_many_streams, 1000},
    {"bad_calls", ROW_ONCE, bad_calls, 8},
};
const size_t row_count = sizeof rows / sizeof *rows;
