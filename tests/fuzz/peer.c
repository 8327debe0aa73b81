/*
 * What comes from other shards and from etcd, chosen by the first byte: the content of each message of a session, the
 * records of FetchRows, etcd's answers and the values that a cluster keeps there. What is taken can be written again,
 * and reads the same; what is refused says why.
 */
#include "tests/fuzz/fuzz.h"

#include "base/err.h"
#include "proto/msg_etcd.h"
#include "server/io/base/peer_bytes.h"
#include "server/io/cluster/cluster_impl.h"
#include "storage/store.h"

#include <stdlib.h>
#include <string.h>

/* First bytes from here on are no types of messages, of which there are fewer (AMPD_MESSAGE_ALIVE is the last). */
enum {
    CHOICE_ITEMS = 64,
    CHOICE_RANGE,
    CHOICE_TXN,
    CHOICE_WATCH,
    CHOICE_GRANT,
    CHOICE_KEEP_ALIVE,
    CHOICE_ENTRY,
    CHOICE_NUMBER
};

/* ---- between shards ---- */

static void run_body(unsigned type, struct fuzz_input input)
{
    struct amp_error error = {.text = ""};
    struct ampd_message *message = ampd_message_new((enum ampd_message_type)type);
    struct ampd_message *again = ampd_message_new((enum ampd_message_type)type);
    AMP_ASSERT(message != NULL && again != NULL);
    struct amp_buf out;
    struct amp_buf same;
    amp_buf_init(&out, AMPD_PEER_BODY_MAX);
    amp_buf_init(&same, AMPD_PEER_BODY_MAX);
    int rc = io_peer_body_decode(message, input.data, input.size, &error);
    if (rc == 0) {
        AMP_ASSERT(io_peer_body_encode(message, &out) == 0);
        AMP_ASSERT(io_peer_body_decode(again, out.data, out.size, NULL) == 0);
        AMP_ASSERT(io_peer_body_encode(again, &same) == 0);
        AMP_ASSERT(same.size == out.size && (out.size == 0 || memcmp(same.data, out.data, out.size) == 0));
    } else {
        AMP_ASSERT(rc == AMP_EINVAL && error.text[0] != 0);
    }
    amp_buf_close(&out);
    amp_buf_close(&same);
    ampd_message_free(message);
    ampd_message_free(again);
}

static void write_again(const struct io_peer_item *item)
{
    struct io_peer_item *again = malloc(sizeof *again);
    AMP_ASSERT(again != NULL);
    struct amp_buf out;
    struct amp_buf same;
    size_t used;
    amp_buf_init(&out, 2 * AMPD_PEER_BODY_MAX);
    amp_buf_init(&same, 2 * AMPD_PEER_BODY_MAX);
    AMP_ASSERT(io_peer_item_encode(item, &out) == 0);
    AMP_ASSERT(io_peer_item_decode(again, out.data, out.size, &used, NULL) == 0 && used == out.size);
    AMP_ASSERT(io_peer_item_encode(again, &same) == 0);
    AMP_ASSERT(same.size == out.size && memcmp(same.data, out.data, out.size) == 0);
    ampd_model_spec_clear(&again->spec);
    amp_buf_close(&out);
    amp_buf_close(&same);
    free(again);
}

/* As a shard that joins reads them: one after the other, until one is not whole, or wrong. */
static void run_items(struct fuzz_input input)
{
    struct amp_error error = {.text = ""};
    struct io_peer_item *item = malloc(sizeof *item);
    AMP_ASSERT(item != NULL);
    size_t used = 1;
    for (size_t at = 0; used > 0; at += used) {
        AMP_ASSERT(at <= input.size);
        int rc = io_peer_item_decode(item, input.data + at, input.size - at, &used, &error);
        AMP_ASSERT(rc == 0 || (rc == AMP_EINVAL && used == 0 && error.text[0] != 0));
        if (used == 0)
            break;
        write_again(item);
        ampd_model_spec_clear(&item->spec);
    }
    free(item);
}

/* ---- etcd ---- */

static void run_range(struct fuzz_input input)
{
    struct ampd_etcd_range_response answer;
    if (ampd_etcd_range_response_decode(&answer, input.data, input.size, NULL) == 0)
        for (size_t i = 0; i < answer.kvs.count; i++)
            AMP_ASSERT(answer.kvs.items[i].key.size <= input.size && answer.kvs.items[i].value.size <= input.size);
    ampd_etcd_range_response_free(&answer);
}

static void run_txn(struct fuzz_input input)
{
    struct ampd_etcd_txn_response answer;
    (void)ampd_etcd_txn_response_decode(&answer, input.data, input.size, NULL);
    ampd_etcd_txn_response_free(&answer);
}

static void run_watch(struct fuzz_input input)
{
    struct ampd_etcd_watch_response answer;
    (void)ampd_etcd_watch_response_decode(&answer, input.data, input.size, NULL);
    ampd_etcd_watch_response_free(&answer);
}

static void run_grant(struct fuzz_input input)
{
    struct ampd_etcd_lease_grant_response answer;
    (void)ampd_etcd_lease_grant_response_decode(&answer, input.data, input.size, NULL);
    ampd_etcd_lease_grant_response_free(&answer);
}

static void run_keep_alive(struct fuzz_input input)
{
    struct ampd_etcd_lease_keep_alive_response answer;
    (void)ampd_etcd_lease_keep_alive_response_decode(&answer, input.data, input.size, NULL);
}

static void run_entry(struct fuzz_input input)
{
    struct ampd_msg_bytes value = {fuzz_exact(input.data, input.size), input.size};
    struct cluster_entry entry;
    if (cluster_entry_parse(&value, &entry))
        AMP_ASSERT(strlen(entry.address) < input.size);
    free(value.data);
}

static void run_number(struct fuzz_input input)
{
    struct ampd_msg_bytes value = {fuzz_exact(input.data, input.size), input.size};
    uint64_t number;
    if (cluster_number_parse(&value, &number))
        AMP_ASSERT(number <= INT64_MAX && input.size < 20);
    free(value.data);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size};
    unsigned choice = fuzz_byte(&input);
    uint8_t *exact = fuzz_exact(input.data, input.size);
    input.data = exact;
    switch (choice) {
    case CHOICE_ITEMS:
        run_items(input);
        break;
    case CHOICE_RANGE:
        run_range(input);
        break;
    case CHOICE_TXN:
        run_txn(input);
        break;
    case CHOICE_WATCH:
        run_watch(input);
        break;
    case CHOICE_GRANT:
        run_grant(input);
        break;
    case CHOICE_KEEP_ALIVE:
        run_keep_alive(input);
        break;
    case CHOICE_ENTRY:
        run_entry(input);
        break;
    case CHOICE_NUMBER:
        run_number(input);
        break;
    default:
        run_body(choice, input);
        break;
    }
    free(exact);
}
