#include "proto/codec_model.h"

_Static_assert(sizeof(((ampd_v1_ParameterSpec *)0)->shape) == 8 * sizeof(uint64_t), "model.options was not read");

AMPD_CODEC_LIST_DECLARE(ampd_v1_ParameterSpec, ampd_msg_parameter_spec, AMPD_MSG_PARAMETERS_MAX)
AMPD_CODEC(ampd_v1_ParameterSpec, ampd_msg_parameter_spec)
AMPD_CODEC_LIST(ampd_v1_ParameterSpec, ampd_msg_parameter_spec)
AMPD_CODEC_LIST_DECLARE(ampd_v1_ParameterGroup, ampd_msg_parameter_group, AMPD_MSG_GROUPS_MAX)
AMPD_CODEC(ampd_v1_ParameterGroup, ampd_msg_parameter_group)
AMPD_CODEC_LIST(ampd_v1_ParameterGroup, ampd_msg_parameter_group)
AMPD_CODEC(ampd_v1_OptimizerSpec, ampd_msg_optimizer_spec)
AMPD_CODEC(ampd_v1_ScheduleSpec, ampd_msg_schedule_spec)
AMPD_CODEC(ampd_v1_ClipSpec, ampd_msg_clip_spec)
AMPD_CODEC(ampd_v1_ScalerSpec, ampd_msg_scaler_spec)
AMPD_CODEC(ampd_v1_ModelSpec, ampd_msg_model_spec)
AMPD_CODEC_LIST_DECLARE(ampd_v1_WorkerStatus, ampd_msg_worker_status, AMPD_MSG_WORKERS_MAX)
AMPD_CODEC(ampd_v1_WorkerStatus, ampd_msg_worker_status)
AMPD_CODEC_LIST(ampd_v1_WorkerStatus, ampd_msg_worker_status)
AMPD_CODEC(ampd_v1_ModelStatus, ampd_msg_model_status)
AMPD_CODEC_LIST(ampd_v1_ModelStatus, ampd_msg_model_status)

AMPD_CODEC_PUBLIC(ampd_v1_ModelSpec, ampd_msg_model_spec)
AMPD_CODEC_PUBLIC_FREE(ampd_v1_ModelSpec, ampd_msg_model_spec)
