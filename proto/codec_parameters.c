#include "proto/codec_methods.h"
#include "proto/codec_model.h"

#include "ampd/v1/parameter_service.pb.h"

_Static_assert(sizeof(((ampd_v1_PushTrailer *)0)->absent) == AMPD_MSG_PARAMETERS_MAX * sizeof(uint32_t),
               "parameter_service.options was not read");

AMPD_CODEC(ampd_v1_StepResult, ampd_msg_step_result)
AMPD_CODEC(ampd_v1_LoadState, ampd_msg_load_state)
AMPD_CODEC(ampd_v1_LoadHeader, ampd_msg_load_header)
AMPD_CODEC(ampd_v1_HeldVersion, ampd_msg_held_version)
AMPD_CODEC(ampd_v1_PullHeader, ampd_msg_pull_header)
AMPD_CODEC(ampd_v1_PushHeader, ampd_msg_push_header)
AMPD_CODEC(ampd_v1_PushTrailer, ampd_msg_push_trailer)

AMPD_CODEC_PUBLIC(ampd_v1_StepResult, ampd_msg_step_result)
AMPD_CODEC_PUBLIC_FREE(ampd_v1_StepResult, ampd_msg_step_result)
AMPD_CODEC_PUBLIC(ampd_v1_LoadHeader, ampd_msg_load_header)
AMPD_CODEC_PUBLIC(ampd_v1_PullHeader, ampd_msg_pull_header)
AMPD_CODEC_PUBLIC(ampd_v1_PushHeader, ampd_msg_push_header)
AMPD_CODEC_PUBLIC_FREE(ampd_v1_PushHeader, ampd_msg_push_header)
AMPD_CODEC_PUBLIC(ampd_v1_PushTrailer, ampd_msg_push_trailer)

#define ParameterService_METHOD(n, c, rq, rs) AMPD_CODEC_METHOD(n, c, rq, rs)
#define ScaleService_METHOD(n, c, rq, rs)
#define AdminService_METHOD(n, c, rq, rs)
#define PeerService_METHOD(n, c, rq, rs)
#define AMPD_METHOD(service_, name_, c_name_, request_, response_, ...)                                                \
    service_##_METHOD(name_, c_name_, request_, response_)
#include "proto/methods.def"
#undef AMPD_METHOD
