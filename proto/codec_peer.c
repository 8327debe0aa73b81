#include "proto/codec_methods.h"

#include "ampd/v1/peer_service.pb.h"

AMPD_CODEC(ampd_v1_Fence, ampd_msg_fence)
AMPD_CODEC(ampd_v1_Envelope, ampd_msg_envelope)
AMPD_CODEC(ampd_v1_ShardTrouble, ampd_msg_shard_trouble)

#define ParameterService_METHOD(n, c, rq, rs)
#define ScaleService_METHOD(n, c, rq, rs)
#define AdminService_METHOD(n, c, rq, rs)
#define PeerService_METHOD(n, c, rq, rs) AMPD_CODEC_METHOD(n, c, rq, rs)
#define AMPD_METHOD(service_, name_, c_name_, request_, response_, ...)                                                \
    service_##_METHOD(name_, c_name_, request_, response_)
#include "proto/methods.def"
#undef AMPD_METHOD
