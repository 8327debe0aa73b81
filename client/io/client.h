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
    struct amp_buf answer;            /* what ampclient_call has given a view of; the user's thread */
    bool shards_known;                /* the user's thread */
    uint64_t instance;                /* random: tells this process's Joins from those of another; constant */
};

/* Clears the last error; each public function begins with it. */
void ampclient_begin(struct ampclient *client);

/*
 * Copies a struct of the caller that begins with its size over one with the defaults. AMP_EINVAL: the size is too small
 * to hold `size`, or there are bytes beyond what this version knows that are not zero.
 */
int ampclient_take_struct(void *to, size_t to_size, const void *from, const char *what, struct amp_error *error);
/* Whether a result can be copied into the caller's struct. AMP_EINVAL: its size is too small to hold `size`. */
int ampclient_check_struct(const void *to, const char *what, struct amp_error *error);
/* Copies a result into it, as much as fits its size. AMP_EINVAL as above. */
int ampclient_give_struct(void *to, const void *from, size_t from_size, const char *what, struct amp_error *error);

/* RPC with a message as request: tries again as ampclient_rpc_retry does. The error is the client's. */
int ampclient_ask(struct ampclient *client, const char *path, const struct amp_buf *request,
                  struct ampclient_reply *reply);

/*
 * Finds out, until that is known, whether the server is one of several shards, and makes a connection to each of them.
 * Where the address of one is not known yet it asks again until reconnect_timeout_ms is over: then AMP_EUNAVAILABLE
 * with the reason SHARD_AWAY. Before anything that a shard alone cannot do. The error is the client's.
 */
int ampclient_find_shards(struct ampclient *client);

/* How many there are, at least 1. After ampclient_find_shards. */
uint32_t ampclient_shards(const struct ampclient *client);

/* What a load brings. All borrowed. */
struct ampclient_load_source {
    const float *const *planes[3]; /* values, m, v: [count] arrays each */
    uint32_t count;                /* of parameters */
    const uint64_t *elements;      /* their sizes, for one who has made his arrays after an earlier answer, or NULL */
    const struct ampclient_full *full; /* the rest of a full load; NULL: first values, planes[0] alone */
};

/* ampclient_load and ampclient_load_full. AMP_ESTATE: the model has other sizes now than `elements`. */
int ampclient_load_from(struct ampclient *client, const char *model_name, const struct ampclient_load_source *source,
                        bool *already);

/* GetModel. On success *response is the caller's to free. The error is the client's. */
int ampclient_get_model(struct ampclient *client, const char *name, struct ampd_msg_get_model_response *response);

#endif
