/* Messages of etcd's API against bytes that were written by hand from its .proto files. */
#include "proto/msg_etcd.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define MAX 4096

static struct ampd_msg_bytes bytes(const char *text)
{
    return (struct ampd_msg_bytes){(uint8_t *)(uintptr_t)text, strlen(text)};
}

/* Frees out. */
static void assert_bytes(struct amp_buf *out, const char *expected, size_t size)
{
    assert_int_equal(out->size, size);
    assert_memory_equal(out->data, expected, size);
    amp_buf_close(out);
}

static void a_claim(void **state)
{
    struct ampd_etcd_compare compare = {
        .target = AMPD_ETCD_CREATE, .key = bytes("k"), .has_create_revision = true, .create_revision = 0};
    struct ampd_etcd_request_op put = {.has_request_put = true};
    put.request_put.key = bytes("k");
    put.request_put.value = bytes("v");
    put.request_put.lease = 300;
    struct ampd_etcd_request_op range = {.has_request_range = true};
    range.request_range.key = bytes("a");
    range.request_range.range_end = bytes("b");
    struct ampd_etcd_request_op forget = {.has_request_delete_range = true};
    forget.request_delete_range.key = bytes("s");
    struct ampd_etcd_request_op success[] = {put, forget};
    struct ampd_etcd_txn_request request = {.compare = {&compare, 1}, .success = {success, 2}, .failure = {&range, 1}};
    struct amp_buf out;
    amp_buf_init(&out, MAX);
    assert_int_equal(ampd_etcd_txn_request_encode(&request, &out), 0);
    /* Compare: target 2 = CREATE (1), key 3, create_revision 5, said although it is 0. */
    static const char expected[] = "\x0a\x07\x10\x01\x1a\x01k\x28\x00"
                                   /* success: request_put 2: key 1, value 2, lease 3 */
                                   "\x12\x0b\x12\x09\x0a\x01k\x12\x01v\x18\xac\x02"
                                   /* success: request_delete_range 3: key 1 */
                                   "\x12\x05\x1a\x03\x0a\x01s"
                                   /* failure: request_range 1: key 1, range_end 2 */
                                   "\x1a\x08\x0a\x06\x0a\x01"
                                   "a\x12\x01"
                                   "b";
    assert_bytes(&out, expected, sizeof expected - 1);
}

static void small_requests(void **state)
{
    struct amp_buf out;
    amp_buf_init(&out, MAX);
    assert_int_equal(ampd_etcd_lease_grant_request_encode(&(struct ampd_etcd_lease_grant_request){.ttl = 5}, &out), 0);
    assert_bytes(&out, "\x08\x05", 2);
    assert_int_equal(
        ampd_etcd_lease_keep_alive_request_encode(&(struct ampd_etcd_lease_keep_alive_request){.id = 300}, &out), 0);
    assert_bytes(&out, "\x08\xac\x02", 3);
    assert_int_equal(ampd_etcd_lease_revoke_request_encode(&(struct ampd_etcd_lease_revoke_request){.id = 1}, &out), 0);
    assert_bytes(&out, "\x08\x01", 2);
    struct ampd_etcd_watch_request watch = {.has_create_request = true};
    watch.create_request.key = bytes("a");
    watch.create_request.range_end = bytes("b");
    watch.create_request.start_revision = 7;
    assert_int_equal(ampd_etcd_watch_request_encode(&watch, &out), 0);
    assert_bytes(&out,
                 "\x0a\x08\x0a\x01"
                 "a\x12\x01"
                 "b\x18\x07",
                 10);
}

static void the_answer_of_a_claim(void **state)
{
    /*
     * header 1: revision 3 = 300; succeeded 2; responses 3: response_put 2 (header 1), and response_range 1: kvs 2 (key
     * 1, create_revision 2, mod_revision 3, version 4, value 5, lease 6), count 4; and field 99, which is not known
     */
    static const char said[] = "\x0a\x03\x18\xac\x02\x10\x01"
                               "\x1a\x04\x12\x02\x0a\x00"
                               "\x1a\x15\x0a\x13\x12\x0f\x0a\x01k\x10\x07\x18\x08\x20\x02\x2a\x01v\x30\xac\x02\x20\x01"
                               "\x98\x06\x01";
    struct ampd_etcd_txn_response answer;
    struct amp_error error = {0};
    assert_int_equal(ampd_etcd_txn_response_decode(&answer, said, sizeof said - 1, &error), 0);
    assert_true(answer.succeeded);
    assert_int_equal(answer.header.revision, 300);
    assert_int_equal(answer.responses.count, 2);
    assert_true(answer.responses.items[0].has_response_put);
    assert_true(answer.responses.items[1].has_response_range);
    const struct ampd_etcd_range_response *range = &answer.responses.items[1].response_range;
    assert_int_equal(range->kvs.count, 1);
    const struct ampd_etcd_key_value *kv = &range->kvs.items[0];
    assert_int_equal(kv->key.size, 1);
    assert_int_equal(kv->create_revision, 7);
    assert_int_equal(kv->mod_revision, 8);
    assert_int_equal(kv->version, 2);
    assert_memory_equal(kv->value.data, "v", 1);
    assert_int_equal(kv->lease, 300);
    ampd_etcd_txn_response_free(&answer);
}

static void what_a_watch_tells(void **state)
{
    /* created 3; events 11: a put (kv 2), a DELETE (type 1 = 1) */
    static const char said[] = "\x18\x01\x5a\x07\x12\x05\x0a\x01k\x18\x09\x5a\x09\x08\x01\x12\x05\x0a\x01k\x18\x0a";
    struct ampd_etcd_watch_response answer;
    struct amp_error error = {0};
    assert_int_equal(ampd_etcd_watch_response_decode(&answer, said, sizeof said - 1, &error), 0);
    assert_true(answer.created);
    assert_false(answer.canceled);
    assert_int_equal(answer.events.count, 2);
    assert_int_equal(answer.events.items[0].type, AMPD_ETCD_PUT);
    assert_int_equal(answer.events.items[1].type, AMPD_ETCD_DELETE);
    assert_int_equal(answer.events.items[1].kv.mod_revision, 10);
    ampd_etcd_watch_response_free(&answer);
}

static void a_user_and_his_token(void **state)
{
    struct amp_buf out;
    amp_buf_init(&out, MAX);
    struct ampd_etcd_authenticate_request request = {.name = bytes("root"), .password = bytes("pw")};
    assert_int_equal(ampd_etcd_authenticate_request_encode(&request, &out), 0);
    assert_bytes(&out,
                 "\x0a\x04root"
                 "\x12\x02pw",
                 10);
    /* header 1: revision 3 = 300; token 2 */
    static const char said[] = "\x0a\x03\x18\xac\x02\x12\x05x.123";
    struct ampd_etcd_authenticate_response answer;
    struct amp_error error = {0};
    assert_int_equal(ampd_etcd_authenticate_response_decode(&answer, said, sizeof said - 1, &error), 0);
    assert_int_equal(answer.token.size, 5);
    assert_memory_equal(answer.token.data, "x.123", 5);
    ampd_etcd_authenticate_response_free(&answer);
}

static void bytes_that_are_no_answer(void **state)
{
    static const char said[] = "\x0a\x03\x18\xac\x02\x10\x01\x1a\x04\x12\x02\x0a\x00";
    struct ampd_etcd_txn_response answer;
    struct amp_error error;
    for (size_t size = 1; size < sizeof said - 1; size++) { /* whatever is cut off */
        int rc = ampd_etcd_txn_response_decode(&answer, said, size, &error);
        assert_true(rc == 0 || rc == AMP_EINVAL);
        ampd_etcd_txn_response_free(&answer);
    }
    uint8_t many[2 * (AMPD_ETCD_OPS_MAX + 1)];
    for (size_t i = 0; i < sizeof many; i += 2)
        memcpy(many + i, "\x1a\x00", 2);
    assert_int_equal(ampd_etcd_txn_response_decode(&answer, many, sizeof many, &error), AMP_EINVAL);
    assert_int_equal(ampd_etcd_txn_response_decode(&answer, many, sizeof many - 2, &error), 0);
    ampd_etcd_txn_response_free(&answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_claim),
        cmocka_unit_test(small_requests),
        cmocka_unit_test(the_answer_of_a_claim),
        cmocka_unit_test(what_a_watch_tells),
        cmocka_unit_test(a_user_and_his_token),
        cmocka_unit_test(bytes_that_are_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
