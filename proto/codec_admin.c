#include "proto/codec_methods.h"
#include "proto/codec_model.h"

#include "ampd/v1/admin_service.pb.h"

_Static_assert(sizeof(((ampd_v1_CheckpointInfo *)0)->manifest_hash) == 33, "admin_service.options was not read");

AMPD_CODEC_LIST_DECLARE(ampd_v1_CheckpointInfo, ampd_msg_checkpoint_info, AMPD_MSG_ROWS_MAX)
AMPD_CODEC(ampd_v1_CheckpointInfo, ampd_msg_checkpoint_info)
AMPD_CODEC_LIST(ampd_v1_CheckpointInfo, ampd_msg_checkpoint_info)
AMPD_CODEC_LIST_DECLARE(ampd_v1_ClusterShard, ampd_msg_cluster_shard, AMPD_MSG_SHARDS_MAX)
AMPD_CODEC(ampd_v1_ClusterShard, ampd_msg_cluster_shard)
AMPD_CODEC_LIST(ampd_v1_ClusterShard, ampd_msg_cluster_shard)
AMPD_CODEC_LIST_DECLARE(ampd_v1_ClusterStandby, ampd_msg_cluster_standby, AMPD_MSG_STANDBYS_MAX)
AMPD_CODEC(ampd_v1_ClusterStandby, ampd_msg_cluster_standby)
AMPD_CODEC_LIST(ampd_v1_ClusterStandby, ampd_msg_cluster_standby)
AMPD_CODEC_LIST_DECLARE(ampd_v1_ConfigValue, ampd_msg_config_value, AMPD_MSG_ROWS_MAX)
AMPD_CODEC(ampd_v1_ConfigValue, ampd_msg_config_value)
AMPD_CODEC_LIST(ampd_v1_ConfigValue, ampd_msg_config_value)
AMPD_CODEC(ampd_v1_ReadCheckpointHeader, ampd_msg_read_checkpoint_header)

AMPD_CODEC_PUBLIC(ampd_v1_ReadCheckpointHeader, ampd_msg_read_checkpoint_header)

#define ParameterService_METHOD(n, c, rq, rs)
#define ScaleService_METHOD(n, c, rq, rs)
#define AdminService_METHOD(n, c, rq, rs) AMPD_CODEC_METHOD(n, c, rq, rs)
#define PeerService_METHOD(n, c, rq, rs)
#define AMPD_METHOD(service_, name_, c_name_, request_, response_, ...)                                                \
    service_##_METHOD(name_, c_name_, request_, response_)
#include "proto/methods.def"
#undef AMPD_METHOD
