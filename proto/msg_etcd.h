/*
 * Messages of etcd's API as plain structs. How the functions behave: proto/msg_common.h, with ampd_etcd_ in the place
 * of ampd_msg_. What the fields mean: proto/etcd/rpc.proto.
 */
#ifndef AMPD_PROTO_MSG_ETCD_H
#define AMPD_PROTO_MSG_ETCD_H

#include "proto/msg_common.h"

/* A cluster has a key for each shard, each standby and each model's epoch (server/io/cluster/cluster.c). */
#define AMPD_ETCD_KEYS_MAX   8192
#define AMPD_ETCD_EVENTS_MAX 8192
/* Comparisons, and operations, of one transaction. */
#define AMPD_ETCD_OPS_MAX 8

struct ampd_etcd_response_header {
    uint64_t cluster_id;
    uint64_t member_id;
    int64_t revision;
    uint64_t raft_term;
};

struct ampd_etcd_key_value {
    struct ampd_msg_bytes key;
    int64_t create_revision;
    int64_t mod_revision;
    int64_t version;
    struct ampd_msg_bytes value;
    int64_t lease;
};

struct ampd_etcd_key_value_list {
    struct ampd_etcd_key_value *items;
    size_t count;
};

struct ampd_etcd_range_request {
    struct ampd_msg_bytes key;
    struct ampd_msg_bytes range_end;
    int64_t limit;
};

struct ampd_etcd_range_response {
    bool has_header;
    struct ampd_etcd_response_header header;
    struct ampd_etcd_key_value_list kvs;
    bool more;
    int64_t count;
};

struct ampd_etcd_put_request {
    struct ampd_msg_bytes key;
    struct ampd_msg_bytes value;
    int64_t lease;
};

struct ampd_etcd_put_response {
    bool has_header;
    struct ampd_etcd_response_header header;
};

struct ampd_etcd_delete_range_request {
    struct ampd_msg_bytes key;
    struct ampd_msg_bytes range_end;
};

struct ampd_etcd_delete_range_response {
    bool has_header;
    struct ampd_etcd_response_header header;
    int64_t deleted;
};

/* Exactly one of them. */
struct ampd_etcd_request_op {
    bool has_request_range;
    struct ampd_etcd_range_request request_range;
    bool has_request_put;
    struct ampd_etcd_put_request request_put;
    bool has_request_delete_range;
    struct ampd_etcd_delete_range_request request_delete_range;
};

struct ampd_etcd_request_op_list {
    struct ampd_etcd_request_op *items;
    size_t count;
};

struct ampd_etcd_response_op {
    bool has_response_range;
    struct ampd_etcd_range_response response_range;
    bool has_response_put;
    struct ampd_etcd_put_response response_put;
    bool has_response_delete_range;
    struct ampd_etcd_delete_range_response response_delete_range;
};

struct ampd_etcd_response_op_list {
    struct ampd_etcd_response_op *items;
    size_t count;
};

enum ampd_etcd_compare_result { AMPD_ETCD_EQUAL, AMPD_ETCD_GREATER, AMPD_ETCD_LESS, AMPD_ETCD_NOT_EQUAL };
enum ampd_etcd_compare_target { AMPD_ETCD_VERSION, AMPD_ETCD_CREATE, AMPD_ETCD_MOD, AMPD_ETCD_VALUE, AMPD_ETCD_LEASE };

struct ampd_etcd_compare {
    enum ampd_etcd_compare_result result;
    enum ampd_etcd_compare_target target;
    struct ampd_msg_bytes key;
    bool has_version;
    int64_t version;
    bool has_create_revision;
    int64_t create_revision;
    bool has_mod_revision;
    int64_t mod_revision;
};

struct ampd_etcd_compare_list {
    struct ampd_etcd_compare *items;
    size_t count;
};

struct ampd_etcd_txn_request {
    struct ampd_etcd_compare_list compare;
    struct ampd_etcd_request_op_list success;
    struct ampd_etcd_request_op_list failure;
};

struct ampd_etcd_txn_response {
    bool has_header;
    struct ampd_etcd_response_header header;
    bool succeeded;
    struct ampd_etcd_response_op_list responses;
};

struct ampd_etcd_watch_create_request {
    struct ampd_msg_bytes key;
    struct ampd_msg_bytes range_end;
    int64_t start_revision;
};

struct ampd_etcd_watch_request {
    bool has_create_request;
    struct ampd_etcd_watch_create_request create_request;
};

enum ampd_etcd_event_type { AMPD_ETCD_PUT, AMPD_ETCD_DELETE };

struct ampd_etcd_event {
    enum ampd_etcd_event_type type;
    bool has_kv;
    struct ampd_etcd_key_value kv; /* of DELETE: the key, and mod_revision of the deletion */
};

struct ampd_etcd_event_list {
    struct ampd_etcd_event *items;
    size_t count;
};

struct ampd_etcd_watch_response {
    bool has_header;
    struct ampd_etcd_response_header header;
    int64_t watch_id;
    bool created;
    bool canceled;
    int64_t compact_revision;
    struct ampd_msg_bytes cancel_reason;
    struct ampd_etcd_event_list events;
};

struct ampd_etcd_lease_grant_request {
    int64_t ttl;
    int64_t id;
};

struct ampd_etcd_lease_grant_response {
    bool has_header;
    struct ampd_etcd_response_header header;
    int64_t id;
    int64_t ttl;
    struct ampd_msg_bytes error;
};

struct ampd_etcd_lease_revoke_request {
    int64_t id;
};

struct ampd_etcd_lease_keep_alive_request {
    int64_t id;
};

struct ampd_etcd_lease_keep_alive_response {
    bool has_header;
    struct ampd_etcd_response_header header;
    int64_t id;
    int64_t ttl;
};

struct ampd_etcd_authenticate_request {
    struct ampd_msg_bytes name;
    struct ampd_msg_bytes password;
};

struct ampd_etcd_authenticate_response {
    bool has_header;
    struct ampd_etcd_response_header header;
    struct ampd_msg_bytes token;
};

#define AMPD_ETCD_PAIR(S)                                                                                              \
    int S##_encode(const struct S *message, struct amp_buf *out);                                                      \
    int S##_decode(struct S *message, const void *data, size_t size, struct amp_error *error);

AMPD_ETCD_PAIR(ampd_etcd_range_request)
AMPD_ETCD_PAIR(ampd_etcd_range_response)
AMPD_ETCD_PAIR(ampd_etcd_txn_request)
AMPD_ETCD_PAIR(ampd_etcd_txn_response)
AMPD_ETCD_PAIR(ampd_etcd_watch_request)
AMPD_ETCD_PAIR(ampd_etcd_watch_response)
AMPD_ETCD_PAIR(ampd_etcd_lease_grant_request)
AMPD_ETCD_PAIR(ampd_etcd_lease_grant_response)
AMPD_ETCD_PAIR(ampd_etcd_lease_revoke_request)
AMPD_ETCD_PAIR(ampd_etcd_lease_keep_alive_request)
AMPD_ETCD_PAIR(ampd_etcd_lease_keep_alive_response)
AMPD_ETCD_PAIR(ampd_etcd_authenticate_request)
AMPD_ETCD_PAIR(ampd_etcd_authenticate_response)
#undef AMPD_ETCD_PAIR

void ampd_etcd_range_response_free(struct ampd_etcd_range_response *message);
void ampd_etcd_txn_request_free(struct ampd_etcd_txn_request *message);
void ampd_etcd_txn_response_free(struct ampd_etcd_txn_response *message);
void ampd_etcd_watch_response_free(struct ampd_etcd_watch_response *message);
void ampd_etcd_lease_grant_response_free(struct ampd_etcd_lease_grant_response *message);
void ampd_etcd_authenticate_response_free(struct ampd_etcd_authenticate_response *message);

#endif
