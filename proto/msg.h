/* All messages of ampd.v1 that have a struct. What holds for each of them: proto/msg_common.h. */
#ifndef AMPD_PROTO_MSG_H
#define AMPD_PROTO_MSG_H

#include "proto/msg_admin.h"
#include "proto/msg_common.h"
#include "proto/msg_model.h"
#include "proto/msg_peer.h"
#include "proto/msg_scale.h"
#include "proto/msg_step.h"
#include "proto/msg_worker.h"

#endif
