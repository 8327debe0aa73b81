/* Messages about the loss scale and its history. How the functions behave: proto/msg_common.h. */
#ifndef AMPD_PROTO_MSG_SCALE_H
#define AMPD_PROTO_MSG_SCALE_H

#include "proto/msg_common.h"
#include "proto/msg_model.h"

enum ampd_msg_history_kind {
    AMPD_MSG_HISTORY_KIND_UNSPECIFIED = 0,
    AMPD_MSG_HISTORY_KIND_STEP = 1,              /* a decided step */
    AMPD_MSG_HISTORY_KIND_EPOCH = 2,             /* a new epoch: parent, base and reason are given */
    AMPD_MSG_HISTORY_KIND_SCALE_SET = 3,         /* SetScale: actor and reason are given */
    AMPD_MSG_HISTORY_KIND_SCALE_RESET = 4,       /* ResetScale: actor and reason are given */
    AMPD_MSG_HISTORY_KIND_EVICTED = 5,           /* EvictWorker: rank, actor and reason are given */
    AMPD_MSG_HISTORY_KIND_LEARNING_RATE_SET = 6, /* SetLearningRate: learning_rate, actor and reason are given */
};

/* Where the time between two decisions went, one part after the other; they add up to that time. */
struct ampd_msg_step_times {
    uint64_t apply_us; /* from the decision before until the new version can be pulled: it is stored, and applied */
    uint64_t pull_us;  /* until the last worker of the step has pulled */
    uint64_t wait_us;  /* until the first push begins: the workers compute */
    uint64_t push_us;  /* until the last push that counts is whole on all shards */
    uint64_t vote_us;  /* until the step is decided */
};

/* A row of the history. Per epoch there is one STEP row for each decided step, with no gap. */
struct ampd_msg_scale_history_row {
    uint64_t epoch;
    uint64_t step; /* other kinds than STEP: the step that follows */
    enum ampd_msg_history_kind kind;
    enum ampd_msg_verdict verdict; /* STEP: APPLIED, SKIPPED_OVERFLOW or SKIPPED_EMPTY */
    float old_scale;               /* before */
    uint64_t old_scale_id;
    bool has_record;
    struct ampd_msg_scale_record record; /* after */
    uint64_t version;                    /* of the parameters, after */
    double norm;                         /* 2-norm of the unscaled mean gradient before clipping; 0 when skipped */
    double learning_rate;                /* base learning rate used; 0 when skipped */
    float clip_coefficient;              /* the smallest over the groups; (0, 1]; 0 when skipped */
    uint32_t contributors;               /* workers whose gradients counted */
    bool has_overflow_totals;
    struct ampd_msg_overflow_totals overflow_totals; /* absent: none */
    bool has_decide_time;
    struct ampd_msg_time decide_time;
    bool superseded;       /* rolled back later */
    uint64_t parent_epoch; /* EPOCH: the one before; 0 for the first */
    uint64_t base_epoch;   /* EPOCH: epoch of the checkpoint that it began from */
    uint64_t base_step;    /* EPOCH: last step in that checkpoint; 0: the initial values */
    char actor[128];       /* who asked, or "server" */
    char reason[256];      /* one sentence, or one word of the server's */
    uint64_t parent_step;  /* EPOCH: last step that was decided in parent_epoch; 0: none */
    uint64_t from_step;    /* SCALE_SET, SCALE_RESET: first step that uses the scale; EVICTED: that opens behind it */
    bool has_loss;
    float loss;            /* STEP: mean over the contributors that sent one, weighted as their gradients */
    uint32_t loss_workers; /* how many sent one; their weight is not 0 */
    uint32_t metrics_count;
    struct ampd_msg_metric metrics[AMPD_MSG_METRICS_MAX]; /* STEP: likewise; the first 8 names, by rank */
    uint32_t rank;                                        /* EVICTED: whose worker */
    bool has_times;
    struct ampd_msg_step_times times; /* STEP; absent: not known, as of the first step of an epoch or after a start */
    double old_learning_rate;         /* LEARNING_RATE_SET: the base learning rate before; 0: not known */
};

struct ampd_msg_scale_history_row_list {
    struct ampd_msg_scale_history_row *items;
    size_t count;
};

struct ampd_msg_set_scale_request {
    char model[128];
    float scale;         /* finite, within [min_scale, max_scale]; must be given */
    char reason[256];    /* kept in the history; default "" */
    char request_id[65]; /* the same request sent again is done once; default "": done each time */
};

struct ampd_msg_set_scale_response {
    bool has_record;
    struct ampd_msg_scale_record record;
    uint64_t from_step; /* first step that uses it */
};

struct ampd_msg_reset_scale_request {
    char model[128];
    char reason[256];    /* kept in the history; default "" */
    char request_id[65]; /* the same request sent again is done once; default "": done each time */
};

struct ampd_msg_reset_scale_response {
    bool has_record;
    struct ampd_msg_scale_record record;
    uint64_t from_step; /* first step that uses it */
};

struct ampd_msg_get_scale_request {
    char model[128];
};

struct ampd_msg_get_scale_response {
    bool has_record;
    struct ampd_msg_scale_record record;
    uint64_t epoch;
    uint64_t step; /* the open step, or the next one */
    bool unstable; /* max_consecutive_overflows in a row are reached */
    bool frozen;   /* floor_policy freeze has stopped the model */
};

struct ampd_msg_list_scale_history_request {
    char model[128];
    bool has_epoch;
    uint64_t epoch;     /* only this one; default: the steps that stand, over all epochs */
    uint64_t from_step; /* first step; default: from the beginning */
    bool has_to_step;
    uint64_t to_step; /* last step, included; default: no end */
    uint32_t verdicts_count;
    enum ampd_msg_verdict verdicts[4]; /* only these, UNSPECIFIED: of actions and epochs; up to 4; default: all */
    bool only_changes;                 /* only rows after which the scale differs; default false */
    bool include_superseded;           /* also steps that were rolled back; default false */
    bool newest_first;                 /* default false: oldest first */
    uint32_t page_size;                /* 1 to 1000 rows; default 100 */
    char page_token[192];              /* next_page_token of the page before; default: the first page */
};

struct ampd_msg_list_scale_history_response {
    struct ampd_msg_scale_history_row_list rows;
    char next_page_token[192]; /* "": this was the last page */
};

struct ampd_msg_list_overflows_request {
    char model[128];
    bool has_epoch;
    uint64_t epoch;     /* only this one; default: the steps that stand, over all epochs */
    uint64_t from_step; /* first step; default: from the beginning */
    bool has_to_step;
    uint64_t to_step;    /* last step, included; default: no end */
    char parameter[128]; /* only this one; default "": all */
    bool has_rank;
    uint32_t rank;                        /* only this worker; default: all */
    enum ampd_msg_overflow_source source; /* only this source; default: all */
    bool include_superseded;              /* also steps that were rolled back; default false */
    bool newest_first;                    /* default false: oldest first */
    uint32_t page_size;                   /* 1 to 1000 rows; default 100 */
    char page_token[192];                 /* next_page_token of the page before; default: the first page */
};

struct ampd_msg_list_overflows_response {
    struct ampd_msg_overflow_row_list rows;
    char next_page_token[192]; /* "": this was the last page */
};

struct ampd_msg_watch_steps_request {
    char model[128];
    bool has_from_step;
    uint64_t from_step; /* also stored rows from this step on; default: only new ones */
    bool has_rank;
    uint32_t rank; /* of the worker that watches: the watch then renews its lease; default: it does not */
    bool has_incarnation;
    struct ampd_msg_incarnation incarnation; /* with rank */
};

struct ampd_msg_watch_steps_response {
    bool has_row;
    struct ampd_msg_scale_history_row row;
    enum ampd_msg_model_state state;             /* of the model, after the row */
    struct ampd_msg_overflow_row_list overflows; /* the first 64 of the step */
};

struct ampd_msg_explain_step_request {
    char model[128];
    bool has_epoch;
    uint64_t epoch; /* default: the epoch in which the step stands */
    uint64_t step;
};

/* One worker's part in a step. */
struct ampd_msg_step_contributor {
    uint32_t rank;
    char worker_name[128]; /* of who held the rank in that step; "": not known any more */
    bool has_incarnation;
    struct ampd_msg_incarnation incarnation;
    float weight; /* 1 for weighting EQUAL */
};

struct ampd_msg_step_contributor_list {
    struct ampd_msg_step_contributor *items;
    size_t count;
};

struct ampd_msg_explain_step_response {
    bool has_row;
    struct ampd_msg_scale_history_row row;
    struct ampd_msg_step_contributor_list contributors; /* by rank */
    struct ampd_msg_overflow_row_list overflows;        /* by (parameter, rank), up to 1000 */
    bool has_overflow_totals;
    struct ampd_msg_overflow_totals overflow_totals;   /* over all rows; absent: none */
    struct ampd_msg_range_warning_list range_warnings; /* of the apply of this step; not kept yet */
    char explanation[1024];                            /* in words: whose gradient, which parameter, what to do */
};

struct ampd_msg_replay_policy_request {
    char model[128];
    bool has_epoch;
    uint64_t epoch;     /* default: the steps that stand, over all epochs */
    uint64_t from_step; /* first step; default: from the beginning */
    bool has_to_step;
    uint64_t to_step; /* last step, included; default: no end */
    bool has_scaler;
    struct ampd_msg_scaler_spec scaler; /* the policy to try; must be given */
    uint32_t page_size;                 /* 1 to 1000 rows; default 100 */
    char page_token[192];               /* next_page_token of the page before; default: the first page */
};

struct ampd_msg_replayed_step {
    uint64_t epoch;
    uint64_t step;
    enum ampd_msg_verdict verdict; /* as stored */
    float stored_scale;            /* after the step, as it was */
    float replayed_scale;          /* after the step, under the other policy */
    bool uncertain;                /* the verdict might have been another under the other policy's scale */
};

struct ampd_msg_replayed_step_list {
    struct ampd_msg_replayed_step *items;
    size_t count;
};

struct ampd_msg_replay_policy_response {
    struct ampd_msg_replayed_step_list rows;
    char next_page_token[192]; /* "": this was the last page */
    uint64_t differing_steps;  /* on this page: steps after which the two scales differ */
    float final_scale;         /* after the last row of the page, under the other policy */
    uint64_t uncertain_steps;  /* on this page: steps whose verdict might have been another */
    char note[256];            /* one sentence: what this answer cannot know */
};

int ampd_msg_get_scale_request_encode(const struct ampd_msg_get_scale_request *message, struct amp_buf *out);
int ampd_msg_get_scale_request_decode(struct ampd_msg_get_scale_request *message, const void *data, size_t size,
                                      struct amp_error *error);

int ampd_msg_get_scale_response_encode(const struct ampd_msg_get_scale_response *message, struct amp_buf *out);
int ampd_msg_get_scale_response_decode(struct ampd_msg_get_scale_response *message, const void *data, size_t size,
                                       struct amp_error *error);

int ampd_msg_list_scale_history_request_encode(const struct ampd_msg_list_scale_history_request *message,
                                               struct amp_buf *out);
int ampd_msg_list_scale_history_request_decode(struct ampd_msg_list_scale_history_request *message, const void *data,
                                               size_t size, struct amp_error *error);

int ampd_msg_list_scale_history_response_encode(const struct ampd_msg_list_scale_history_response *message,
                                                struct amp_buf *out);
int ampd_msg_list_scale_history_response_decode(struct ampd_msg_list_scale_history_response *message, const void *data,
                                                size_t size, struct amp_error *error);
void ampd_msg_list_scale_history_response_free(struct ampd_msg_list_scale_history_response *message);

int ampd_msg_list_overflows_request_encode(const struct ampd_msg_list_overflows_request *message, struct amp_buf *out);
int ampd_msg_list_overflows_request_decode(struct ampd_msg_list_overflows_request *message, const void *data,
                                           size_t size, struct amp_error *error);

int ampd_msg_list_overflows_response_encode(const struct ampd_msg_list_overflows_response *message,
                                            struct amp_buf *out);
int ampd_msg_list_overflows_response_decode(struct ampd_msg_list_overflows_response *message, const void *data,
                                            size_t size, struct amp_error *error);
void ampd_msg_list_overflows_response_free(struct ampd_msg_list_overflows_response *message);

int ampd_msg_watch_steps_request_encode(const struct ampd_msg_watch_steps_request *message, struct amp_buf *out);
int ampd_msg_watch_steps_request_decode(struct ampd_msg_watch_steps_request *message, const void *data, size_t size,
                                        struct amp_error *error);

int ampd_msg_watch_steps_response_encode(const struct ampd_msg_watch_steps_response *message, struct amp_buf *out);
int ampd_msg_watch_steps_response_decode(struct ampd_msg_watch_steps_response *message, const void *data, size_t size,
                                         struct amp_error *error);
void ampd_msg_watch_steps_response_free(struct ampd_msg_watch_steps_response *message);

int ampd_msg_explain_step_request_encode(const struct ampd_msg_explain_step_request *message, struct amp_buf *out);
int ampd_msg_explain_step_request_decode(struct ampd_msg_explain_step_request *message, const void *data, size_t size,
                                         struct amp_error *error);

int ampd_msg_explain_step_response_encode(const struct ampd_msg_explain_step_response *message, struct amp_buf *out);
int ampd_msg_explain_step_response_decode(struct ampd_msg_explain_step_response *message, const void *data, size_t size,
                                          struct amp_error *error);
void ampd_msg_explain_step_response_free(struct ampd_msg_explain_step_response *message);

int ampd_msg_replay_policy_request_encode(const struct ampd_msg_replay_policy_request *message, struct amp_buf *out);
int ampd_msg_replay_policy_request_decode(struct ampd_msg_replay_policy_request *message, const void *data, size_t size,
                                          struct amp_error *error);

int ampd_msg_replay_policy_response_encode(const struct ampd_msg_replay_policy_response *message, struct amp_buf *out);
int ampd_msg_replay_policy_response_decode(struct ampd_msg_replay_policy_response *message, const void *data,
                                           size_t size, struct amp_error *error);
void ampd_msg_replay_policy_response_free(struct ampd_msg_replay_policy_response *message);

int ampd_msg_set_scale_request_encode(const struct ampd_msg_set_scale_request *message, struct amp_buf *out);
int ampd_msg_set_scale_request_decode(struct ampd_msg_set_scale_request *message, const void *data, size_t size,
                                      struct amp_error *error);

int ampd_msg_set_scale_response_encode(const struct ampd_msg_set_scale_response *message, struct amp_buf *out);
int ampd_msg_set_scale_response_decode(struct ampd_msg_set_scale_response *message, const void *data, size_t size,
                                       struct amp_error *error);

int ampd_msg_reset_scale_request_encode(const struct ampd_msg_reset_scale_request *message, struct amp_buf *out);
int ampd_msg_reset_scale_request_decode(struct ampd_msg_reset_scale_request *message, const void *data, size_t size,
                                        struct amp_error *error);

int ampd_msg_reset_scale_response_encode(const struct ampd_msg_reset_scale_response *message, struct amp_buf *out);
int ampd_msg_reset_scale_response_decode(struct ampd_msg_reset_scale_response *message, const void *data, size_t size,
                                         struct amp_error *error);

#endif
