#include "proto/codec_model.h"

#include "ampd/v1/admin_service.pb.h"

_Static_assert(sizeof(((ampd_v1_CheckpointInfo *)0)->manifest_hash) == 33, "admin_service.options was not read");

AMPD_CODEC(ampd_v1_CheckpointInfo, ampd_msg_checkpoint_info)
AMPD_CODEC(ampd_v1_GetStatusRequest, ampd_msg_get_status_request)
AMPD_CODEC(ampd_v1_GetStatusResponse, ampd_msg_get_status_response)
AMPD_CODEC(ampd_v1_CheckpointRequest, ampd_msg_checkpoint_request)
AMPD_CODEC(ampd_v1_CheckpointResponse, ampd_msg_checkpoint_response)

AMPD_CODEC_PUBLIC(ampd_v1_GetStatusRequest, ampd_msg_get_status_request)
AMPD_CODEC_PUBLIC(ampd_v1_GetStatusResponse, ampd_msg_get_status_response)
AMPD_CODEC_PUBLIC_FREE(ampd_v1_GetStatusResponse, ampd_msg_get_status_response)
AMPD_CODEC_PUBLIC(ampd_v1_CheckpointRequest, ampd_msg_checkpoint_request)
AMPD_CODEC_PUBLIC(ampd_v1_CheckpointResponse, ampd_msg_checkpoint_response)
