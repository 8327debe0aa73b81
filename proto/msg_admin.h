/* Messages of the administrator. How the functions behave: proto/msg_common.h. */
#ifndef AMPD_PROTO_MSG_ADMIN_H
#define AMPD_PROTO_MSG_ADMIN_H

#include "proto/msg_common.h"
#include "proto/msg_model.h"

enum ampd_msg_log_level {
    AMPD_MSG_LOG_LEVEL_UNSPECIFIED = 0,
    AMPD_MSG_LOG_LEVEL_DEBUG = 1,
    AMPD_MSG_LOG_LEVEL_INFO = 2,
    AMPD_MSG_LOG_LEVEL_WARN = 3,
    AMPD_MSG_LOG_LEVEL_ERROR = 4,
};

/* A checkpoint that all shards hold. */
struct ampd_msg_checkpoint_info {
    char model[128];
    uint64_t epoch;         /* epoch in which it was cut */
    uint64_t step;          /* last step in it; 0: the initial values */
    uint64_t version;       /* of the parameters in it */
    uint64_t applied;       /* applied steps in it */
    float scale;            /* loss scale in it; 0: not known */
    uint64_t size_bytes;    /* of this shard's file */
    char manifest_hash[33]; /* XXH3-128 of the tensors' names, shapes and hashes; 32 hex digits */
    bool has_create_time;
    struct ampd_msg_time create_time; /* when it became complete */
    uint32_t parts;                   /* files, one per shard */
    char path[256];                   /* its folder, relative to the data directory */
};

struct ampd_msg_checkpoint_info_list {
    struct ampd_msg_checkpoint_info *items;
    size_t count;
};

struct ampd_msg_get_status_request {
    char model[128]; /* only this one; default "": all */
};

struct ampd_msg_get_status_response {
    char version[64]; /* of the server, "major.minor.patch" */
    bool has_server_time;
    struct ampd_msg_time server_time; /* now */
    uint64_t uptime_ms;
    uint64_t fence;   /* boot counter, or etcd revision of the shard's lock */
    char boot_id[33]; /* random id of this boot: 32 hex digits */
    uint32_t shard;   /* index of the shard that answers */
    uint32_t shard_count;
    bool draining;
    char isa[16];                             /* kernels in use: "reference", "avx2", "avx512", "neon" */
    struct ampd_msg_model_status_list models; /* by name, up to 1000 */
    struct ampd_msg_shard_list shards;        /* by index; block ranges are those of each model, so 0 here */
    char trouble[512];                        /* one sentence: what keeps it from storing; "": nothing does */
    /* Open in its process (connections, files), at most a second ago as a rule; 0: not known. */
    uint64_t descriptors;
    uint64_t descriptors_max; /* that may be open; 0: no limit, or not known */
};

struct ampd_msg_get_cluster_request {
    char model[128]; /* blocks and steps of this one; default "": the blocks of all, and no step */
    bool local;      /* what the shard that is asked knows itself; default false: it asks shard 0 */
};

struct ampd_msg_cluster_shard {
    uint32_t index;
    char endpoint[256];
    uint64_t fence; /* of its process, the present or the last one; 0: not known */
    bool up;        /* it is the one that answers, or has a session with it */
    bool has_since;
    struct ampd_msg_time since; /* it is up, or down, since then; absent: not known */
    bool leaving;               /* about to end, or gone in order: steps wait until it is back */
    uint64_t block_count;       /* of the model, or of all */
    uint64_t decided_step;      /* with `model`: the last one that shard 0 has decided */
    uint64_t applied_step;      /* with `model`: the last one that this shard has applied */
    uint32_t behind_models;     /* models whose last decided step it has not applied yet */
    uint32_t awaited_models;    /* models whose open step waits for its vote, while another shard has voted */
    bool unknown; /* the one that answers is not shard 0, and has no session with it: `up` is false and means nothing */
    /* One sentence of its own: what keeps it from storing, or that etcd does not answer it; "": nothing, or not up. */
    char trouble[512];
};

struct ampd_msg_cluster_shard_list {
    struct ampd_msg_cluster_shard *items;
    size_t count;
};

/* A process that waits for a place. */
struct ampd_msg_cluster_standby {
    char endpoint[256];
};

struct ampd_msg_cluster_standby_list {
    struct ampd_msg_cluster_standby *items;
    size_t count;
};

struct ampd_msg_get_cluster_response {
    uint32_t shard; /* whose answer it is */
    uint32_t shard_count;
    char trouble[512];                             /* one sentence: the first thing that is wrong; "": nothing is */
    struct ampd_msg_cluster_shard_list shards;     /* by index */
    struct ampd_msg_cluster_standby_list standbys; /* as etcd lists them */
};

struct ampd_msg_checkpoint_request {
    char model[128];
    bool no_wait; /* answer when it is asked for, not when it exists; default false */
};

struct ampd_msg_checkpoint_response {
    bool has_checkpoint;
    struct ampd_msg_checkpoint_info checkpoint; /* absent with no_wait */
};

struct ampd_msg_list_checkpoints_request {
    char model[128];
    bool has_min_scale;
    float min_scale;      /* only those whose scale is at least this, finite; default: all */
    uint32_t page_size;   /* 1 to 1000; default 100 */
    char page_token[192]; /* next_page_token of the page before; default: the first page */
};

struct ampd_msg_list_checkpoints_response {
    struct ampd_msg_checkpoint_info_list checkpoints;
    char next_page_token[192]; /* "": this was the last page */
};

struct ampd_msg_read_checkpoint_request {
    char model[128];
    uint64_t epoch; /* of the checkpoint, as ListCheckpoints has it */
    uint64_t step;  /* of the checkpoint */
};

/* The blocks that follow it: proto/block.h. */
struct ampd_msg_read_checkpoint_header {
    uint64_t size_bytes;    /* of the file; it comes in blocks of 262144 bytes, the last may be shorter */
    char manifest_hash[33]; /* XXH3-128 of this file's tensors' names, shapes and hashes; 32 hex digits */
    uint32_t shard;         /* of the server that answers */
    uint32_t parts;         /* files that make up the checkpoint, one per shard */
};

struct ampd_msg_evict_worker_request {
    char model[128];
    uint32_t rank;
    char reason[256];    /* kept in the history; default "" */
    char request_id[65]; /* the same request sent again is done once; default "": done each time */
};

struct ampd_msg_evict_worker_response {
    bool nobody; /* no worker held the rank */
};

struct ampd_msg_set_learning_rate_request {
    char model[128];
    double learning_rate; /* in place of the specification's: > 0, within the range of fp32 */
    char reason[256];     /* kept in the history; default "" */
    char request_id[65];  /* the same request sent again is done once; default "": done each time */
};

struct ampd_msg_set_learning_rate_response {
    double learning_rate;
    uint64_t from_step; /* first step whose verdict takes it */
};

struct ampd_msg_rollback_request {
    char model[128];
    uint64_t epoch;      /* of the checkpoint */
    uint64_t step;       /* of the checkpoint */
    char reason[256];    /* kept in the history; default "" */
    char request_id[65]; /* the same request sent again is done once; default "": done each time */
};

struct ampd_msg_rollback_response {
    uint64_t epoch; /* the new one */
    uint64_t step;  /* the step that is next */
};

struct ampd_msg_drain_request {
    bool has_grace_ms;
    uint64_t grace_ms; /* time for calls under way; up to 3600000; default 10000 */
};

struct ampd_msg_set_log_level_request {
    enum ampd_msg_log_level level; /* must be given */
};

struct ampd_msg_set_log_level_response {
    enum ampd_msg_log_level old_level;
};

struct ampd_msg_config_value {
    char name[64];    /* of the option, without dashes */
    char value[4097]; /* "": nobody gives one, and there is no default */
    char where[4201]; /* "/etc/ampd/ampd.conf:12", "AMPD_LISTEN", "--listen" or "default" */
    bool reloads;     /* with SIGHUP */
};

struct ampd_msg_config_value_list {
    struct ampd_msg_config_value *items;
    size_t count;
};

struct ampd_msg_get_config_response {
    struct ampd_msg_config_value_list values;
};

int ampd_msg_get_status_request_encode(const struct ampd_msg_get_status_request *message, struct amp_buf *out);
int ampd_msg_get_status_request_decode(struct ampd_msg_get_status_request *message, const void *data, size_t size,
                                       struct amp_error *error);

int ampd_msg_get_status_response_encode(const struct ampd_msg_get_status_response *message, struct amp_buf *out);
int ampd_msg_get_status_response_decode(struct ampd_msg_get_status_response *message, const void *data, size_t size,
                                        struct amp_error *error);
void ampd_msg_get_status_response_free(struct ampd_msg_get_status_response *message);
int ampd_msg_get_cluster_request_encode(const struct ampd_msg_get_cluster_request *message, struct amp_buf *out);
int ampd_msg_get_cluster_request_decode(struct ampd_msg_get_cluster_request *message, const void *data, size_t size,
                                        struct amp_error *error);
int ampd_msg_get_cluster_response_encode(const struct ampd_msg_get_cluster_response *message, struct amp_buf *out);
int ampd_msg_get_cluster_response_decode(struct ampd_msg_get_cluster_response *message, const void *data, size_t size,
                                         struct amp_error *error);
void ampd_msg_get_cluster_response_free(struct ampd_msg_get_cluster_response *message);

int ampd_msg_checkpoint_request_encode(const struct ampd_msg_checkpoint_request *message, struct amp_buf *out);
int ampd_msg_checkpoint_request_decode(struct ampd_msg_checkpoint_request *message, const void *data, size_t size,
                                       struct amp_error *error);

int ampd_msg_checkpoint_response_encode(const struct ampd_msg_checkpoint_response *message, struct amp_buf *out);
int ampd_msg_checkpoint_response_decode(struct ampd_msg_checkpoint_response *message, const void *data, size_t size,
                                        struct amp_error *error);

int ampd_msg_list_checkpoints_request_encode(const struct ampd_msg_list_checkpoints_request *message,
                                             struct amp_buf *out);
int ampd_msg_list_checkpoints_request_decode(struct ampd_msg_list_checkpoints_request *message, const void *data,
                                             size_t size, struct amp_error *error);

int ampd_msg_list_checkpoints_response_encode(const struct ampd_msg_list_checkpoints_response *message,
                                              struct amp_buf *out);
int ampd_msg_list_checkpoints_response_decode(struct ampd_msg_list_checkpoints_response *message, const void *data,
                                              size_t size, struct amp_error *error);
void ampd_msg_list_checkpoints_response_free(struct ampd_msg_list_checkpoints_response *message);

int ampd_msg_read_checkpoint_request_encode(const struct ampd_msg_read_checkpoint_request *message,
                                            struct amp_buf *out);
int ampd_msg_read_checkpoint_request_decode(struct ampd_msg_read_checkpoint_request *message, const void *data,
                                            size_t size, struct amp_error *error);

int ampd_msg_read_checkpoint_header_encode(const struct ampd_msg_read_checkpoint_header *message, struct amp_buf *out);
int ampd_msg_read_checkpoint_header_decode(struct ampd_msg_read_checkpoint_header *message, const void *data,
                                           size_t size, struct amp_error *error);

int ampd_msg_drain_request_encode(const struct ampd_msg_drain_request *message, struct amp_buf *out);
int ampd_msg_drain_request_decode(struct ampd_msg_drain_request *message, const void *data, size_t size,
                                  struct amp_error *error);

int ampd_msg_set_log_level_request_encode(const struct ampd_msg_set_log_level_request *message, struct amp_buf *out);
int ampd_msg_set_log_level_request_decode(struct ampd_msg_set_log_level_request *message, const void *data, size_t size,
                                          struct amp_error *error);

int ampd_msg_set_log_level_response_encode(const struct ampd_msg_set_log_level_response *message, struct amp_buf *out);
int ampd_msg_set_log_level_response_decode(struct ampd_msg_set_log_level_response *message, const void *data,
                                           size_t size, struct amp_error *error);

int ampd_msg_get_config_response_encode(const struct ampd_msg_get_config_response *message, struct amp_buf *out);
int ampd_msg_get_config_response_decode(struct ampd_msg_get_config_response *message, const void *data, size_t size,
                                        struct amp_error *error);
void ampd_msg_get_config_response_free(struct ampd_msg_get_config_response *message);

int ampd_msg_evict_worker_response_encode(const struct ampd_msg_evict_worker_response *message, struct amp_buf *out);
int ampd_msg_evict_worker_response_decode(struct ampd_msg_evict_worker_response *message, const void *data, size_t size,
                                          struct amp_error *error);

int ampd_msg_evict_worker_request_encode(const struct ampd_msg_evict_worker_request *message, struct amp_buf *out);
int ampd_msg_evict_worker_request_decode(struct ampd_msg_evict_worker_request *message, const void *data, size_t size,
                                         struct amp_error *error);

int ampd_msg_set_learning_rate_request_encode(const struct ampd_msg_set_learning_rate_request *message,
                                              struct amp_buf *out);
int ampd_msg_set_learning_rate_request_decode(struct ampd_msg_set_learning_rate_request *message, const void *data,
                                              size_t size, struct amp_error *error);

int ampd_msg_set_learning_rate_response_encode(const struct ampd_msg_set_learning_rate_response *message,
                                               struct amp_buf *out);
int ampd_msg_set_learning_rate_response_decode(struct ampd_msg_set_learning_rate_response *message, const void *data,
                                               size_t size, struct amp_error *error);

int ampd_msg_rollback_request_encode(const struct ampd_msg_rollback_request *message, struct amp_buf *out);
int ampd_msg_rollback_request_decode(struct ampd_msg_rollback_request *message, const void *data, size_t size,
                                     struct amp_error *error);

int ampd_msg_rollback_response_encode(const struct ampd_msg_rollback_response *message, struct amp_buf *out);
int ampd_msg_rollback_response_decode(struct ampd_msg_rollback_response *message, const void *data, size_t size,
                                      struct amp_error *error);

#endif
