/*
 * For tests: every message that has a struct, and functions that fill and compare them, made from nanopb's field lists,
 * so that a new field is tested without a line here.
 */
#ifndef AMPD_TESTS_PROTO_MESSAGES_H
#define AMPD_TESTS_PROTO_MESSAGES_H

#include "base/random.h"
#include "proto/codec_messages.h"
#include "proto/codec_model.h"

#include "ampd/v1/admin_service.pb.h"
#include "ampd/v1/parameter_service.pb.h"
#include "ampd/v1/peer_service.pb.h"
#include "ampd/v1/scale_service.pb.h"

/* Submessages, each after those that it holds; L: also as a list. */
#define PROTO_PARTS(X, L)                                                                                              \
    X(ampd_v1_Incarnation, ampd_msg_incarnation)                                                                       \
    L(ampd_v1_BlockRange, ampd_msg_block_range)                                                                        \
    L(ampd_v1_Shard, ampd_msg_shard)                                                                                   \
    L(ampd_v1_ClusterShard, ampd_msg_cluster_shard)                                                                    \
    L(ampd_v1_ClusterStandby, ampd_msg_cluster_standby)                                                                \
    X(ampd_v1_ScaleRecord, ampd_msg_scale_record)                                                                      \
    X(ampd_v1_Metric, ampd_msg_metric)                                                                                 \
    X(ampd_v1_OverflowTotals, ampd_msg_overflow_totals)                                                                \
    L(ampd_v1_OverflowRow, ampd_msg_overflow_row)                                                                      \
    L(ampd_v1_RangeWarning, ampd_msg_range_warning)                                                                    \
    L(ampd_v1_ParameterSpec, ampd_msg_parameter_spec)                                                                  \
    L(ampd_v1_ParameterGroup, ampd_msg_parameter_group)                                                                \
    X(ampd_v1_OptimizerSpec, ampd_msg_optimizer_spec)                                                                  \
    X(ampd_v1_ScheduleSpec, ampd_msg_schedule_spec)                                                                    \
    X(ampd_v1_ClipSpec, ampd_msg_clip_spec)                                                                            \
    X(ampd_v1_ScalerSpec, ampd_msg_scaler_spec)                                                                        \
    L(ampd_v1_WorkerStatus, ampd_msg_worker_status)                                                                    \
    L(ampd_v1_ModelStatus, ampd_msg_model_status)                                                                      \
    X(ampd_v1_HeldVersion, ampd_msg_held_version)                                                                      \
    X(ampd_v1_LoadState, ampd_msg_load_state)                                                                          \
    L(ampd_v1_ConfigValue, ampd_msg_config_value)                                                                      \
    L(ampd_v1_CheckpointInfo, ampd_msg_checkpoint_info)                                                                \
    X(ampd_v1_StepTimes, ampd_msg_step_times)                                                                          \
    L(ampd_v1_ScaleHistoryRow, ampd_msg_scale_history_row)                                                             \
    L(ampd_v1_StepContributor, ampd_msg_step_contributor)                                                              \
    L(ampd_v1_ReplayedStep, ampd_msg_replayed_step)                                                                    \
    X(ampd_v1_Fence, ampd_msg_fence)                                                                                   \
    X(ampd_v1_ShardTrouble, ampd_msg_shard_trouble)                                                                    \
    X(ampd_v1_Envelope, ampd_msg_envelope)

/* Messages with a public pair beside requests and responses, which proto/methods.def has; F: they have a free, too. */
#define PROTO_MESSAGES(X, F)                                                                                           \
    F(ampd_v1_ModelSpec, ampd_msg_model_spec)                                                                          \
    F(ampd_v1_StepResult, ampd_msg_step_result)                                                                        \
    X(ampd_v1_LoadHeader, ampd_msg_load_header)                                                                        \
    X(ampd_v1_PullHeader, ampd_msg_pull_header)                                                                        \
    F(ampd_v1_PushHeader, ampd_msg_push_header)                                                                        \
    X(ampd_v1_PushTrailer, ampd_msg_push_trailer)                                                                      \
    X(ampd_v1_ReadCheckpointHeader, ampd_msg_read_checkpoint_header)

/* How a message is filled: EXTREME has every field present, texts and arrays full, numbers at an end of their range. */
enum fill { FILL_RANDOM, FILL_EXTREME };

/* One public message, for loops over all. */
struct proto_message {
    const char *name; /* "ampd_v1_JoinRequest" */
    size_t size;      /* of the struct */
    void (*fill)(void *message, struct amp_random *random, enum fill how);
    bool (*same)(const void *a, const void *b);
    int (*encode)(const void *message, struct amp_buf *out);
    int (*decode)(void *message, const void *data, size_t size, struct amp_error *error);
    void (*release)(void *message);
};

extern const struct proto_message proto_messages[];
extern const size_t proto_messages_count;

#endif
