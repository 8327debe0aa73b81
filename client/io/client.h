/* The client handle: a link, its models, and the last error. Internal to client/io. */
#ifndef AMPCLIENT_CLIENT_H
#define AMPCLIENT_CLIENT_H

#include "client/ampclient.h"
#include "client/io/link.h"
#include "client/io/rpc.h"
#include "proto/msg.h"

struct ampclient {
    struct ampclient_link *link;
    struct ampclient_options options; /* with all defaults filled in */
    struct amp_list models;           /* of struct ampclient_model; changed by the loop's thread alone */
    struct amp_error error;           /* of the last call; the user's thread */
    struct amp_buf answer;            /* the answer that ampclient_call has given a view of; the user's thread */
    bool shards_known;                /* ampclient_find_shards has succeeded; the user's thread */
};

/* All functions are for the user's thread. "The error is the client's": a failure is put into client->error. */

/* Begins a public function: clears the last error and the interrupt. */
void ampclient_begin(struct ampclient *client);

/*
 * Copies a struct of the caller, which begins with its size, over one that holds the defaults. 0; AMP_EINVAL: as
 * ampclient_check_struct, or there are bytes beyond what this version knows that are not zero. `what` names the struct
 * in the text.
 */
int ampclient_take_struct(void *to, size_t to_size, const void *from, const char *what, struct amp_error *error);
/*
 * Whether a struct of the caller begins with a size that can be. 0; AMP_EINVAL: it is too small to hold `size`, or
 * larger than any version's. `what` names the struct in the text.
 */
int ampclient_check_struct(const void *given, const char *what, struct amp_error *error);
/*
 * Copies as much of a result into the caller's struct as its size has room for; the size stays. 0; AMP_EINVAL: as
 * ampclient_check_struct. `what` names the struct in the text.
 */
int ampclient_give_struct(void *to, const void *from, size_t from_size, const char *what, struct amp_error *error);

/*
 * Makes a unary call with an encoded request (NULL: an empty one) at shard 0. If ampclient_may_repeat says so, it is
 * tried again as ampclient_rpc_retry does, each time for call_timeout_ms. *reply is the caller's to close in every
 * case. The error is the client's.
 */
int ampclient_ask(struct ampclient *client, const char *path, const struct amp_buf *request,
                  struct ampclient_reply *reply);

/*
 * Asks the server whether it is one of several shards, unless that is known, and makes a connection to each of them. To
 * be called before anything that needs all shards. While the address of a shard is not known, it asks again, for
 * reconnect_timeout_ms; then AMP_EUNAVAILABLE with the reason SHARD_AWAY. Other codes: those of ampclient_rpc_retry.
 * The error is the client's.
 */
int ampclient_find_shards(struct ampclient *client);

/* The number of shards, at least 1. After ampclient_find_shards has succeeded. */
uint32_t ampclient_shards(const struct ampclient *client);

/* What a load sends. All of it is borrowed during the load. */
struct ampclient_load_source {
    const float *const *planes[3]; /* values, m and v: `count` arrays each; m and v NULL: none */
    uint32_t count;                /* number of parameters */
    const uint64_t *elements; /* sizes of the arrays, which were made from an earlier GetModel; NULL: not checked */
    const struct ampclient_full *full; /* the rest of a full load; NULL: first values, planes[0] alone */
};

/*
 * Does what ampclient_load and ampclient_load_full say, and AMP_ESTATE: the model's sizes are not `elements` any more.
 * The error is the client's.
 */
int ampclient_load_from(struct ampclient *client, const char *model_name, const struct ampclient_load_source *source,
                        bool *already);

/*
 * The code for a decoder's `rc` of an answer of the server's, 0 included: AMP_EINVAL becomes AMP_EINTERNAL with a text,
 * since it is no fault of the caller.
 */
int ampclient_bad_answer(struct amp_error *error, int rc, const char *method);

/* Calls GetModel. On success *response is the caller's to free. The error is the client's. */
int ampclient_get_model(struct ampclient *client, const char *name, struct ampd_msg_get_model_response *response);

#endif
