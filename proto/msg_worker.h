/* Calls that make and find models, and that give a worker its rank. How the functions behave: proto/msg_common.h. */
#ifndef AMPD_PROTO_MSG_WORKER_H
#define AMPD_PROTO_MSG_WORKER_H

#include "proto/msg_common.h"
#include "proto/msg_model.h"

struct ampd_msg_create_model_request {
    bool has_spec;
    struct ampd_msg_model_spec spec; /* must be given */
};

struct ampd_msg_create_model_response {
    bool has_spec;
    struct ampd_msg_model_spec spec; /* with all defaults filled in */
    bool created;                    /* false: the model was there, with the same specification */
    enum ampd_msg_model_state state;
};

struct ampd_msg_get_model_request {
    char model[128]; /* its name */
};

struct ampd_msg_get_model_response {
    bool has_spec;
    struct ampd_msg_model_spec spec; /* with all defaults filled in */
    bool has_status;
    struct ampd_msg_model_status status;
    uint32_t block_elements;           /* elements of a block: 65536 */
    struct ampd_msg_shard_list shards; /* by index, up to 1024 */
};

struct ampd_msg_list_models_request {
    uint32_t page_size;   /* 1 to 1000 models; default 100 */
    char page_token[192]; /* next_page_token of the page before; default: the first page */
};

struct ampd_msg_list_models_response {
    struct ampd_msg_model_status_list models; /* by name; `workers` is left empty */
    char next_page_token[192];                /* "": this was the last page */
};

struct ampd_msg_delete_model_request {
    char model[128];
    bool force; /* also while workers hold a lease; default false */
};

struct ampd_msg_join_request {
    char model[128];
    char worker_name[128]; /* a known name gets its rank back; default "rank-<rank>", if rank is given */
    bool has_rank;
    uint32_t rank; /* wanted by a new name; 0 to world_size - 1; default: the lowest free one */
    bool has_world_size;
    uint32_t world_size; /* must equal the model's if given */
    bool replace;        /* a new name may take a rank whose lease has ended; default false */
    uint64_t instance;   /* random number of the process, the same in all its Joins; default 0: not given */
};

struct ampd_msg_join_response {
    uint32_t rank;
    uint32_t world_size;
    bool has_incarnation;
    struct ampd_msg_incarnation incarnation;
    uint64_t lease_ms; /* length of the lease; renewed by every call and by the data of a push */
    uint64_t epoch;
    uint64_t step;    /* the open step, or the next one */
    uint64_t version; /* newest complete version of the parameters */
    enum ampd_msg_model_state state;
    uint32_t block_elements;           /* elements of a block: 65536 */
    struct ampd_msg_shard_list shards; /* by index, up to 1024 */
    bool has_spec;
    struct ampd_msg_model_spec spec; /* with all defaults filled in */
    uint64_t restored_step;          /* last step of what the epoch began from: a checkpoint, a full load */
    struct ampd_msg_bytes
        user_state; /* what the last push of this rank in that checkpoint carried; up to 65536 bytes; default: empty */
};

struct ampd_msg_keep_alive_request {
    char model[128];
    uint32_t rank;
    bool has_incarnation;
    struct ampd_msg_incarnation incarnation;
};

struct ampd_msg_keep_alive_response {
    uint64_t epoch; /* higher than the caller's: the model was rolled back, join again */
    uint64_t step;  /* the open step, or the next one */
    enum ampd_msg_model_state state;
    bool incarnation_valid; /* false: the lease has ended, or a newer Join holds the rank */
    uint64_t lease_ms;      /* time that is left now; 0 when not valid */
    char taken_by[512];     /* who holds the rank, if another process has taken it; default "" */
    char waiting_for[256];  /* one sentence: what the model waits for, as in ModelStatus, but cut; "" when it runs */
};

struct ampd_msg_leave_request {
    char model[128];
    uint32_t rank;
    bool has_incarnation;
    struct ampd_msg_incarnation incarnation;
};

int ampd_msg_create_model_request_encode(const struct ampd_msg_create_model_request *message, struct amp_buf *out);
int ampd_msg_create_model_request_decode(struct ampd_msg_create_model_request *message, const void *data, size_t size,
                                         struct amp_error *error);
void ampd_msg_create_model_request_free(struct ampd_msg_create_model_request *message);

int ampd_msg_create_model_response_encode(const struct ampd_msg_create_model_response *message, struct amp_buf *out);
int ampd_msg_create_model_response_decode(struct ampd_msg_create_model_response *message, const void *data, size_t size,
                                          struct amp_error *error);
void ampd_msg_create_model_response_free(struct ampd_msg_create_model_response *message);

int ampd_msg_get_model_request_encode(const struct ampd_msg_get_model_request *message, struct amp_buf *out);
int ampd_msg_get_model_request_decode(struct ampd_msg_get_model_request *message, const void *data, size_t size,
                                      struct amp_error *error);

int ampd_msg_get_model_response_encode(const struct ampd_msg_get_model_response *message, struct amp_buf *out);
int ampd_msg_get_model_response_decode(struct ampd_msg_get_model_response *message, const void *data, size_t size,
                                       struct amp_error *error);
void ampd_msg_get_model_response_free(struct ampd_msg_get_model_response *message);

int ampd_msg_list_models_request_encode(const struct ampd_msg_list_models_request *message, struct amp_buf *out);
int ampd_msg_list_models_request_decode(struct ampd_msg_list_models_request *message, const void *data, size_t size,
                                        struct amp_error *error);

int ampd_msg_list_models_response_encode(const struct ampd_msg_list_models_response *message, struct amp_buf *out);
int ampd_msg_list_models_response_decode(struct ampd_msg_list_models_response *message, const void *data, size_t size,
                                         struct amp_error *error);
void ampd_msg_list_models_response_free(struct ampd_msg_list_models_response *message);

int ampd_msg_join_request_encode(const struct ampd_msg_join_request *message, struct amp_buf *out);
int ampd_msg_join_request_decode(struct ampd_msg_join_request *message, const void *data, size_t size,
                                 struct amp_error *error);

int ampd_msg_join_response_encode(const struct ampd_msg_join_response *message, struct amp_buf *out);
int ampd_msg_join_response_decode(struct ampd_msg_join_response *message, const void *data, size_t size,
                                  struct amp_error *error);
void ampd_msg_join_response_free(struct ampd_msg_join_response *message);

int ampd_msg_keep_alive_request_encode(const struct ampd_msg_keep_alive_request *message, struct amp_buf *out);
int ampd_msg_keep_alive_request_decode(struct ampd_msg_keep_alive_request *message, const void *data, size_t size,
                                       struct amp_error *error);

int ampd_msg_keep_alive_response_encode(const struct ampd_msg_keep_alive_response *message, struct amp_buf *out);
int ampd_msg_keep_alive_response_decode(struct ampd_msg_keep_alive_response *message, const void *data, size_t size,
                                        struct amp_error *error);

int ampd_msg_leave_request_encode(const struct ampd_msg_leave_request *message, struct amp_buf *out);
int ampd_msg_leave_request_decode(struct ampd_msg_leave_request *message, const void *data, size_t size,
                                  struct amp_error *error);

int ampd_msg_delete_model_request_encode(const struct ampd_msg_delete_model_request *message, struct amp_buf *out);
int ampd_msg_delete_model_request_decode(struct ampd_msg_delete_model_request *message, const void *data, size_t size,
                                         struct amp_error *error);

#endif
