#include "proto/codec.h"

#include "ampd/v1/peer_service.pb.h"

AMPD_CODEC(ampd_v1_Fence, ampd_msg_fence)
AMPD_CODEC(ampd_v1_Envelope, ampd_msg_envelope)
AMPD_CODEC(ampd_v1_SessionRequest, ampd_msg_session_request)

AMPD_CODEC_PUBLIC(ampd_v1_SessionRequest, ampd_msg_session_request)
AMPD_CODEC_PUBLIC_FREE(ampd_v1_SessionRequest, ampd_msg_session_request)
