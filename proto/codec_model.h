/* Inside of the codec: what codec_model.c gives to other files. */
#ifndef AMPD_PROTO_CODEC_MODEL_H
#define AMPD_PROTO_CODEC_MODEL_H

#include "proto/codec_messages.h"

#include "ampd/v1/model.pb.h"

AMPD_CODEC_DECLARE(ampd_v1_ScalerSpec, ampd_msg_scaler_spec)
AMPD_CODEC_DECLARE(ampd_v1_ModelSpec, ampd_msg_model_spec)
AMPD_CODEC_DECLARE(ampd_v1_ModelStatus, ampd_msg_model_status)
AMPD_CODEC_LIST_DECLARE(ampd_v1_ModelStatus, ampd_msg_model_status, AMPD_MSG_MODELS_MAX)

#endif
