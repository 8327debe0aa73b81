/*
 * Bytes that are read straight into the memory of whoever takes them: what arpc_link_receive_buffer offers, and that a
 * message is the same whichever way its bytes come. Frames by hand, to our server's link.
 */
#include "tests/unit/rpc_raw.h"

#include "rpc/wire/frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(a)    (sizeof a / sizeof *(a))
#define MESSAGE_MAX 40000
#define STREAM_MAX  100000
#define FRAME_HEAD  9
#define FLAG_PADDED 0x8

/* What the handler does and saw. */
static struct {
    uint8_t memory[MESSAGE_MAX]; /* of the message under way */
    size_t size, got;
    size_t placed; /* bytes that lay in their place when they were given */
    uint8_t taken[STREAM_MAX];
    size_t taken_size;
    bool homeless; /* offers no place */
    struct arpc_call *call;
} user;

static void on_started(struct arpc_call *call)
{
    user.call = call;
    rpc_noting.started(call);
}

static void on_begin(struct arpc_call *call, size_t size)
{
    user.size = size;
    user.got = 0;
    rpc_noting.message_begin(call, size);
}

static uint8_t *on_message_buffer(struct arpc_call *call, size_t *size)
{
    assert_ptr_equal(call, user.call);
    *size = sizeof user.memory - user.got; /* more than the message may have left */
    return user.homeless ? NULL : user.memory + user.got;
}

static void on_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    assert_true(size <= user.size - user.got);
    if (data == user.memory + user.got)
        user.placed += size;
    else
        memcpy(user.memory + user.got, data, size);
    user.got += size;
    rpc_noting.message_bytes(call, data, size);
}

static void on_end(struct arpc_call *call)
{
    assert_int_equal(user.got, user.size);
    memcpy(user.taken + user.taken_size, user.memory, user.size);
    user.taken_size += user.size;
    rpc_noting.message_end(call);
}

static struct arpc_handler direct;
static struct arpc_method rows[1];

static int setup(void **state)
{
    memset(&user, 0, sizeof user);
    direct = rpc_noting;
    direct.started = on_started;
    direct.message_begin = on_begin;
    direct.message_buffer = on_message_buffer;
    direct.message_bytes = on_bytes;
    direct.message_end = on_end;
    rows[0] = (struct arpc_method){
        .service = "t.T", .name = "Stream", .kind = ARPC_BIDI, .max_message = MESSAGE_MAX, .handler = &direct};
    rpc_raw_open(rows, COUNT(rows), NULL);
    return 0;
}

static int teardown(void **state)
{
    rpc_raw_close();
    return 0;
}

/* ---- frames ---- */

struct bytes {
    uint8_t data[2 * STREAM_MAX];
    size_t size;
};

static struct bytes body, frames;

static void add_message(struct bytes *out, size_t size, uint8_t seed)
{
    arpc_prefix_write(out->data + out->size, 0, (uint32_t)size);
    out->size += ARPC_PREFIX_SIZE;
    for (size_t i = 0; i < size; i++)
        out->data[out->size++] = (uint8_t)(i * 31 + i / 251 + seed);
}

static void add_head(struct bytes *out, size_t size, uint8_t flags, int32_t stream)
{
    const uint8_t head[FRAME_HEAD] = {(uint8_t)(size >> 16),  (uint8_t)(size >> 8), (uint8_t)size, 0, flags, 0, 0,
                                      (uint8_t)(stream >> 8), (uint8_t)stream};
    memcpy(out->data + out->size, head, sizeof head);
    out->size += sizeof head;
}

/* The body in DATA frames of this size. */
static void cut_into_frames(size_t each, int32_t stream)
{
    frames.size = 0;
    for (size_t at = 0; at < body.size; at += each) {
        size_t size = body.size - at < each ? body.size - at : each;
        add_head(&frames, size, 0, stream);
        memcpy(frames.data + frames.size, body.data + at, size);
        frames.size += size;
    }
}

/* As a connection reads: into the place if there is one, else at most `piece` bytes; 0: all. */
static void feed(const uint8_t *data, size_t size, size_t piece)
{
    while (size > 0 && raw.server.link.error == 0) {
        size_t room;
        uint8_t *buffer = arpc_link_receive_buffer(&raw.server.link, &room);
        size_t part = buffer != NULL ? room : piece != 0 ? piece : size;
        part = part < size ? part : size;
        if (buffer != NULL)
            memcpy(buffer, data, part);
        rpc_raw_feed(buffer != NULL ? buffer : data, part);
        data += part;
        size -= part;
    }
}

static bool has_buffer(void)
{
    size_t size;
    return arpc_link_receive_buffer(&raw.server.link, &size) != NULL;
}

static int32_t open_stream(void)
{
    int32_t stream = rpc_raw_request("/t.T/Stream", NULL, NULL, "", 0, false);
    assert_int_equal(rpc_seen_of_server.started, 1);
    return stream;
}

/* ---- tests ---- */

static void messages_are_the_same_by_place_and_by_buffer(void **state)
{
    static const size_t pieces[] = {1, 5, 9, 14, 15, 100, 4096, 0};
    static const size_t cuts[] = {700, 9000, 16384};
    size_t placed = 0;
    body.size = 0;
    add_message(&body, 30000, 1);
    add_message(&body, 0, 2);
    add_message(&body, 1, 3);
    add_message(&body, MESSAGE_MAX, 4);
    int32_t stream = open_stream();
    for (size_t c = 0; c < COUNT(cuts); c++)
        for (size_t p = 0; p < COUNT(pieces); p++) {
            user.taken_size = 0;
            user.homeless = p + 1 == COUNT(pieces);
            cut_into_frames(cuts[c], stream);
            feed(frames.data, frames.size, pieces[p]);
            rpc_raw_run();
            assert_int_equal(raw.server.link.error, 0);
            assert_int_equal(user.taken_size, 30001 + MESSAGE_MAX);
            for (size_t i = 0; i < 30000; i++)
                assert_int_equal(user.taken[i], (uint8_t)(i * 31 + i / 251 + 1));
            for (size_t i = 0; i < MESSAGE_MAX; i++)
                assert_int_equal(user.taken[30001 + i], (uint8_t)(i * 31 + i / 251 + 4));
            assert_true(user.homeless ? user.placed == placed : user.placed > placed);
            placed = user.placed;
        }
}

static void a_place_ends_with_its_message_and_its_frame(void **state)
{
    int32_t stream = open_stream();
    size_t size;
    body.size = frames.size = 0;
    add_message(&body, 1000, 1);
    add_head(&frames, 405, 0, stream); /* of a message of 1000 behind its prefix, 400 are in this frame */
    rpc_raw_feed(frames.data, FRAME_HEAD);
    assert_false(has_buffer()); /* no message is under way */
    rpc_raw_feed(body.data, ARPC_PREFIX_SIZE);
    assert_ptr_equal(arpc_link_receive_buffer(&raw.server.link, &size), user.memory);
    assert_int_equal(size, 400);
    rpc_raw_feed(body.data + ARPC_PREFIX_SIZE, 400);
    assert_false(has_buffer()); /* between two frames */
    add_head(&frames, 2000, 0, stream);
    rpc_raw_feed(frames.data + FRAME_HEAD, 5);
    assert_false(has_buffer()); /* in a frame's head */
    rpc_raw_feed(frames.data + FRAME_HEAD + 5, FRAME_HEAD - 5);
    assert_ptr_equal(arpc_link_receive_buffer(&raw.server.link, &size), user.memory + 400);
    assert_int_equal(size, 600);
}

/* One frame's head with these flags, and the prefix of a message. */
static void begin_message(int32_t stream, uint8_t flags, uint8_t padding)
{
    body.size = frames.size = 0;
    add_message(&body, 10000, 1);
    add_head(&frames, 9000, flags, stream);
    if ((flags & FLAG_PADDED) != 0)
        frames.data[frames.size++] = padding;
    memcpy(frames.data + frames.size, body.data, ARPC_PREFIX_SIZE + 10);
    rpc_raw_feed(frames.data, frames.size + ARPC_PREFIX_SIZE + 10);
}

static void a_padded_frame_has_no_place(void **state)
{
    begin_message(open_stream(), FLAG_PADDED, 200);
    assert_int_equal(user.got, 10);
    assert_false(has_buffer());
}

static void a_paused_call_has_no_place_until_it_goes_on(void **state)
{
    begin_message(open_stream(), 0, 0);
    assert_true(has_buffer());
    arpc_call_pause(user.call);
    assert_false(has_buffer());
    rpc_raw_feed(body.data, 100); /* buffered */
    arpc_call_resume(user.call);
    assert_false(has_buffer()); /* what is buffered comes first */
    rpc_raw_run();
    assert_int_equal(user.got, 110);
    assert_true(has_buffer());
}

static void a_call_that_is_over_has_no_place(void **state)
{
    begin_message(open_stream(), 0, 0);
    assert_true(has_buffer());
    arpc_call_finish(user.call, ARPC_STATUS_ABORTED, "enough", NULL);
    assert_false(has_buffer());
    rpc_raw_run();
    assert_false(has_buffer());
}

static void a_handler_need_not_have_places(void **state)
{
    direct.message_buffer = NULL;
    begin_message(open_stream(), 0, 0);
    assert_false(has_buffer());
}

static void a_link_at_fault_has_no_place(void **state)
{
    begin_message(open_stream(), 0, 0);
    assert_true(has_buffer());
    arpc_link_fail(&raw.server.link, AMP_EINVAL, "for the test");
    assert_false(has_buffer());
}

int main(void)
{
#define WITH_RAW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_RAW(messages_are_the_same_by_place_and_by_buffer),
        WITH_RAW(a_place_ends_with_its_message_and_its_frame),
        WITH_RAW(a_padded_frame_has_no_place),
        WITH_RAW(a_paused_call_has_no_place_until_it_goes_on),
        WITH_RAW(a_call_that_is_over_has_no_place),
        WITH_RAW(a_handler_need_not_have_places),
        WITH_RAW(a_link_at_fault_has_no_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
