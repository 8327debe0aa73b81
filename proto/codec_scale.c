#include "proto/codec_methods.h"
#include "proto/codec_model.h"

#include "ampd/v1/scale_service.pb.h"

_Static_assert(sizeof(((ampd_v1_GetScaleRequest *)0)->model) == 128, "scale_service.options was not read");

AMPD_CODEC_DECLARE(ampd_v1_StepTimes, ampd_msg_step_times)
AMPD_CODEC_LIST_DECLARE(ampd_v1_ScaleHistoryRow, ampd_msg_scale_history_row, AMPD_MSG_ROWS_MAX)
AMPD_CODEC(ampd_v1_StepTimes, ampd_msg_step_times)
AMPD_CODEC(ampd_v1_ScaleHistoryRow, ampd_msg_scale_history_row)
AMPD_CODEC_LIST(ampd_v1_ScaleHistoryRow, ampd_msg_scale_history_row)
AMPD_CODEC_LIST_DECLARE(ampd_v1_StepContributor, ampd_msg_step_contributor, AMPD_MSG_WORKERS_MAX)
AMPD_CODEC(ampd_v1_StepContributor, ampd_msg_step_contributor)
AMPD_CODEC_LIST(ampd_v1_StepContributor, ampd_msg_step_contributor)
AMPD_CODEC_LIST_DECLARE(ampd_v1_ReplayedStep, ampd_msg_replayed_step, AMPD_MSG_ROWS_MAX)
AMPD_CODEC(ampd_v1_ReplayedStep, ampd_msg_replayed_step)
AMPD_CODEC_LIST(ampd_v1_ReplayedStep, ampd_msg_replayed_step)

#define ParameterService_METHOD(n, c, rq, rs)
#define ScaleService_METHOD(n, c, rq, rs) AMPD_CODEC_METHOD(n, c, rq, rs)
#define AdminService_METHOD(n, c, rq, rs)
#define PeerService_METHOD(n, c, rq, rs)
#define AMPD_METHOD(service_, name_, c_name_, request_, response_, ...)                                                \
    service_##_METHOD(name_, c_name_, request_, response_)
#include "proto/methods.def"
#undef AMPD_METHOD
