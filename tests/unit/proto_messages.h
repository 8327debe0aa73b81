/*
 * For tests: every message that has a struct, and functions that fill and compare them, made from nanopb's field lists,
 * so that a new field is tested without a line here.
 */
#ifndef AMPD_TESTS_PROTO_MESSAGES_H
#define AMPD_TESTS_PROTO_MESSAGES_H

#include "base/random.h"
#include "proto/codec.h"
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
    X(ampd_v1_ScaleRecord, ampd_msg_scale_record)                                                                      \
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
    L(ampd_v1_CheckpointInfo, ampd_msg_checkpoint_info)                                                                \
    L(ampd_v1_ScaleHistoryRow, ampd_msg_scale_history_row)                                                             \
    L(ampd_v1_StepContributor, ampd_msg_step_contributor)                                                              \
    L(ampd_v1_ReplayedStep, ampd_msg_replayed_step)                                                                    \
    X(ampd_v1_Fence, ampd_msg_fence)                                                                                   \
    X(ampd_v1_Envelope, ampd_msg_envelope)

/* Messages with a public pair; F: they have a free, too. */
#define PROTO_MESSAGES(X, F)                                                                                           \
    F(ampd_v1_ModelSpec, ampd_msg_model_spec)                                                                          \
    F(ampd_v1_CreateModelRequest, ampd_msg_create_model_request)                                                       \
    F(ampd_v1_CreateModelResponse, ampd_msg_create_model_response)                                                     \
    X(ampd_v1_GetModelRequest, ampd_msg_get_model_request)                                                             \
    F(ampd_v1_GetModelResponse, ampd_msg_get_model_response)                                                           \
    X(ampd_v1_ListModelsRequest, ampd_msg_list_models_request)                                                         \
    F(ampd_v1_ListModelsResponse, ampd_msg_list_models_response)                                                       \
    X(ampd_v1_JoinRequest, ampd_msg_join_request)                                                                      \
    F(ampd_v1_JoinResponse, ampd_msg_join_response)                                                                    \
    X(ampd_v1_KeepAliveRequest, ampd_msg_keep_alive_request)                                                           \
    X(ampd_v1_KeepAliveResponse, ampd_msg_keep_alive_response)                                                         \
    X(ampd_v1_LeaveRequest, ampd_msg_leave_request)                                                                    \
    F(ampd_v1_StepResult, ampd_msg_step_result)                                                                        \
    X(ampd_v1_LoadHeader, ampd_msg_load_header)                                                                        \
    X(ampd_v1_LoadResponse, ampd_msg_load_response)                                                                    \
    X(ampd_v1_PullRequest, ampd_msg_pull_request)                                                                      \
    X(ampd_v1_PullHeader, ampd_msg_pull_header)                                                                        \
    F(ampd_v1_PushHeader, ampd_msg_push_header)                                                                        \
    X(ampd_v1_PushTrailer, ampd_msg_push_trailer)                                                                      \
    F(ampd_v1_PushResponse, ampd_msg_push_response)                                                                    \
    X(ampd_v1_GetPushStateRequest, ampd_msg_get_push_state_request)                                                    \
    F(ampd_v1_GetPushStateResponse, ampd_msg_get_push_state_response)                                                  \
    X(ampd_v1_GetScaleRequest, ampd_msg_get_scale_request)                                                             \
    X(ampd_v1_GetScaleResponse, ampd_msg_get_scale_response)                                                           \
    X(ampd_v1_ListScaleHistoryRequest, ampd_msg_list_scale_history_request)                                            \
    F(ampd_v1_ListScaleHistoryResponse, ampd_msg_list_scale_history_response)                                          \
    X(ampd_v1_ListOverflowsRequest, ampd_msg_list_overflows_request)                                                   \
    F(ampd_v1_ListOverflowsResponse, ampd_msg_list_overflows_response)                                                 \
    X(ampd_v1_WatchStepsRequest, ampd_msg_watch_steps_request)                                                         \
    F(ampd_v1_WatchStepsResponse, ampd_msg_watch_steps_response)                                                       \
    X(ampd_v1_GetStatusRequest, ampd_msg_get_status_request)                                                           \
    F(ampd_v1_GetStatusResponse, ampd_msg_get_status_response)                                                         \
    X(ampd_v1_GetClusterRequest, ampd_msg_get_cluster_request)                                                         \
    F(ampd_v1_GetClusterResponse, ampd_msg_get_cluster_response)                                                       \
    X(ampd_v1_CheckpointRequest, ampd_msg_checkpoint_request)                                                          \
    X(ampd_v1_CheckpointResponse, ampd_msg_checkpoint_response)                                                        \
    X(ampd_v1_ListCheckpointsRequest, ampd_msg_list_checkpoints_request)                                               \
    F(ampd_v1_ListCheckpointsResponse, ampd_msg_list_checkpoints_response)                                             \
    X(ampd_v1_ReadCheckpointRequest, ampd_msg_read_checkpoint_request)                                                 \
    X(ampd_v1_ReadCheckpointHeader, ampd_msg_read_checkpoint_header)                                                   \
    X(ampd_v1_SetScaleRequest, ampd_msg_set_scale_request)                                                             \
    X(ampd_v1_SetScaleResponse, ampd_msg_set_scale_response)                                                           \
    X(ampd_v1_ResetScaleRequest, ampd_msg_reset_scale_request)                                                         \
    X(ampd_v1_ResetScaleResponse, ampd_msg_reset_scale_response)                                                       \
    X(ampd_v1_RollbackRequest, ampd_msg_rollback_request)                                                              \
    X(ampd_v1_RollbackResponse, ampd_msg_rollback_response)                                                            \
    X(ampd_v1_DeleteModelRequest, ampd_msg_delete_model_request)                                                       \
    X(ampd_v1_DrainRequest, ampd_msg_drain_request)                                                                    \
    X(ampd_v1_SetLogLevelRequest, ampd_msg_set_log_level_request)                                                      \
    X(ampd_v1_SetLogLevelResponse, ampd_msg_set_log_level_response)                                                    \
    X(ampd_v1_ExplainStepRequest, ampd_msg_explain_step_request)                                                       \
    F(ampd_v1_ExplainStepResponse, ampd_msg_explain_step_response)                                                     \
    X(ampd_v1_ReplayPolicyRequest, ampd_msg_replay_policy_request)                                                     \
    F(ampd_v1_ReplayPolicyResponse, ampd_msg_replay_policy_response)                                                   \
    F(ampd_v1_SessionRequest, ampd_msg_session_request)

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
