/* What shards say to each other. How the functions behave: proto/msg_common.h. */
#ifndef AMPD_PROTO_MSG_PEER_H
#define AMPD_PROTO_MSG_PEER_H

#include "proto/msg_common.h"

struct ampd_msg_fence {
    uint64_t number;      /* from 1; 0: not known */
    uint64_t boot_id_low; /* random id of that boot: its first 8 bytes, little-endian; 0 when a lock gives the number */
    uint64_t boot_id_high; /* its last 8 bytes */
};

/* One message of a session, or a part of it. */
struct ampd_msg_envelope {
    uint32_t format; /* of the body; shards speak with each other only if they have the same */
    uint32_t sender; /* index of the sending shard */
    bool has_sender_fence;
    struct ampd_msg_fence sender_fence;
    uint32_t receiver; /* index of the shard that is meant */
    bool has_receiver_fence;
    struct ampd_msg_fence receiver_fence; /* what the sender believes; number 0: it does not know */
    char model[128];                      /* "": of no model */
    uint64_t epoch;
    uint64_t round;              /* of SYNC: RESTORE, EPOCH and the answers to all three belong to one */
    uint32_t message;            /* a PeerMessage: the number of the core's message */
    uint32_t part;               /* from 0 */
    uint32_t part_count;         /* default 0: the message is whole */
    uint32_t shard_count;        /* of the cluster, as the sender has it */
    struct ampd_msg_bytes body;  /* what the message carries; up to 65536 bytes */
};

/* What the sender reports of itself to operators. */
struct ampd_msg_shard_trouble {
    char text[512]; /* "": nothing is wrong */
};

/* Exactly one of the two. */
struct ampd_msg_session_request {
    bool has_envelope;
    struct ampd_msg_envelope envelope;
    bool has_trouble;
    struct ampd_msg_shard_trouble trouble; /* to shard 0 */
};

int ampd_msg_session_request_encode(const struct ampd_msg_session_request *message, struct amp_buf *out);
int ampd_msg_session_request_decode(struct ampd_msg_session_request *message, const void *data, size_t size,
                                    struct amp_error *error);
void ampd_msg_session_request_free(struct ampd_msg_session_request *message);

#endif
