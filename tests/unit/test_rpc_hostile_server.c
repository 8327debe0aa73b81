/*
 * A client whose server is the attacker: rows 14 and 15 of the attack table. In memory; the asan preset looks for what
 * leaks and for what is read beyond its end.
 */
#include "tests/conformance/attacks/bytes.h"
#include "tests/unit/rpc_script.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define CALLS 8
#define LIVES 640

static int say(struct script_conn *conn, struct bytes *bytes)
{
    int rc = arpc_link_receive(&conn->link, bytes->data, bytes->size);
    script_run(conn);
    bytes->size = 0;
    return rc;
}

/* ---- row 14: RST_STREAM and GOAWAY in every order (CVE-2023-35945) ---- */

static void goaway(struct bytes *bytes, uint32_t last, uint32_t code)
{
    bytes_head(bytes, 8, H2_GOAWAY, 0, 0);
    bytes_u32(bytes, last);
    bytes_u32(bytes, code);
}

/*
 * One client and its connections, each of which ends its calls by resets and GOAWAY, in the order that the number says.
 */
static void one_life(unsigned order)
{
    void *state;
    assert_int_equal(script_setup(&state), 0);
    struct script *script = state;
    struct rpc_seen *seen = calloc(SCRIPT_CONNS_MAX * CALLS, sizeof *seen);
    assert_non_null(seen);
    for (unsigned i = 0; i < SCRIPT_CONNS_MAX; i++) {
        struct script_conn *conn = script_connect(script);
        struct bytes bytes = {0};
        for (unsigned k = 0; k < CALLS; k++)
            (void)script_begin_whole(script, &conn->link, NULL, &seen[i * CALLS + k]);
        if ((order & 1) != 0)
            script_run(conn); /* else the requests are still with nghttp2 */
        if ((order & 2) != 0)
            goaway(&bytes, (order & 4) != 0 ? 0x7fffffff : 5, 0);
        for (uint32_t stream = 1; stream < 2 * CALLS && (order & 1) != 0; stream += 2)
            bytes_u32_frame(&bytes, H2_RST_STREAM, stream, (order & 8) != 0 ? 7 : 8);
        if ((order & 16) != 0)
            goaway(&bytes, 0, 11);
        (void)say(conn, &bytes);
        script_lose(conn);
        bytes_free(&bytes);
    }
    assert_int_equal(script_teardown(&state), 0);
    for (unsigned i = 0; i < SCRIPT_CONNS_MAX * CALLS; i++) {
        assert_int_equal(seen[i].closed, 1);
        assert_int_equal(seen[i].after_closed, 0);
    }
    free(seen);
}

static void resets_and_goaways_in_any_order_end_every_call_once_and_leave_no_memory(void **state)
{
    (void)state;
    for (unsigned order = 0; order < 32; order++)
        one_life(order);
    size_t before = mallinfo2().uordblks;
    for (unsigned life = 0; life < LIVES; life++)
        one_life(life % 32);
    /* malloc counts the freed pieces that it keeps for each size; 32 bytes of each call would be ten times as much. */
    assert_in_range(mallinfo2().uordblks, 0, before + ((size_t)128 << 10));
}

/* ---- row 15: header blocks (CVE-2023-33953, CVE-2023-32731) ---- */

static struct script_conn *with_call(struct script *script, struct rpc_seen *seen)
{
    struct script_conn *conn = script_connect(script);
    (void)script_begin_whole(script, &conn->link, NULL, seen);
    script_run(conn);
    return conn;
}

/* The head of an answer: ":status 200" and the content type. */
static void head_block(struct bytes *block)
{
    bytes_text(block, "\x88");
    bytes_field(block, "content-type", "application/grpc");
}

/* Such a block as the head of an answer ends connection and call. */
static void ends_the_connection(struct script *script, const struct bytes *block)
{
    struct rpc_seen seen = {0};
    struct script_conn *conn = with_call(script, &seen);
    struct bytes bytes = {0};
    bytes_frame(&bytes, H2_HEADERS, H2_END_HEADERS, 1, block->data, block->size);
    (void)say(conn, &bytes);
    assert_false(arpc_link_takes_calls(&conn->link));
    script_lose(conn);
    assert_int_equal(seen.closed, 1);
    bytes_free(&bytes);
}

static void a_number_without_end_is_no_endless_work(void **state)
{
    struct bytes block = {0};
    bytes_text(&block, "\xff");
    for (int i = 0; i < 16000; i++)
        bytes_add(&block, "\x80", 1);
    ends_the_connection(*state, &block);
    bytes_free(&block);
}

static void a_table_larger_than_was_allowed_ends_the_connection(void **state)
{
    struct bytes block = {0};
    bytes_text(&block, "\x3f\xe1\xff\x03"); /* 65,536 */
    head_block(&block);
    ends_the_connection(*state, &block);
    bytes_free(&block);
}

/* A field of 4,000 bytes in the table and many references to it, spread over frames none of which is over a limit. */
static void the_limit_is_for_the_whole_block_not_for_each_frame(void **state)
{
    struct rpc_seen seen = {0};
    struct script_conn *conn = with_call(*state, &seen);
    struct bytes bytes = {0};
    struct bytes block = {0};
    head_block(&block);
    bytes_text(&block, "\x40\x01"
                       "a\x7f\x81\x1e"); /* a value of 127 + 3,841 bytes */
    for (int i = 0; i < 3968; i++)
        bytes_add(&block, "v", 1);
    bytes_frame(&bytes, H2_HEADERS, 0, 1, block.data, block.size);
    for (int i = 0; i < 6; i++)
        bytes_frame(&bytes, H2_CONTINUATION, 0, 1, "\xbe", 1);
    bytes_frame(&bytes, H2_CONTINUATION, H2_END_HEADERS, 1, "\xbe", 1);
    (void)say(conn, &bytes);
    script_run(conn);
    script_lose(conn);
    assert_int_equal(seen.closed, 1);
    assert_int_not_equal(seen.status, ARPC_STATUS_OK);
    bytes_free(&block);
    bytes_free(&bytes);
}

/* A block that is refused has changed HPACK's table all the same: the next answer may refer to it. */
static void a_refused_block_is_decoded_so_that_the_next_one_is_right(void **state)
{
    struct script *script = *state;
    struct rpc_seen refused = {0};
    struct rpc_seen seen = {0};
    struct bytes bytes = {0};
    struct bytes block = {0};
    struct script_conn *conn = with_call(script, &refused);
    (void)script_begin_whole(script, &conn->link, NULL, &seen);
    script_run(conn);
    head_block(&block);
    for (int i = 0; i < 70; i++)
        bytes_field(&block, "x", "y"); /* more fields than are allowed */
    bytes_text(&block, "\x40\x0bgrpc-status\x01"
                       "0"); /* into the table */
    bytes_frame(&bytes, H2_HEADERS, H2_END_HEADERS, 1, block.data, block.size);
    block.size = 0;
    head_block(&block);
    bytes_frame(&bytes, H2_HEADERS, H2_END_HEADERS, 3, block.data, block.size);
    bytes_message(&bytes, 3, "well", 4, 0);
    bytes_frame(&bytes, H2_HEADERS, H2_END_HEADERS | H2_END_STREAM, 3, "\xbe", 1);
    assert_int_equal(say(conn, &bytes), 0);
    assert_int_equal(refused.closed, 1);
    assert_int_equal(refused.status, ARPC_STATUS_RESOURCE_EXHAUSTED);
    script_expect_ok(&seen);
    bytes_free(&block);
    bytes_free(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resets_and_goaways_in_any_order_end_every_call_once_and_leave_no_memory),
        cmocka_unit_test_setup_teardown(a_number_without_end_is_no_endless_work, script_setup, script_teardown),
        cmocka_unit_test_setup_teardown(a_table_larger_than_was_allowed_ends_the_connection, script_setup,
                                        script_teardown),
        cmocka_unit_test_setup_teardown(the_limit_is_for_the_whole_block_not_for_each_frame, script_setup,
                                        script_teardown),
        cmocka_unit_test_setup_teardown(a_refused_block_is_decoded_so_that_the_next_one_is_right, script_setup,
                                        script_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
