/* The rows of proto/methods.def in the form of the rpc library. */
#include "server/io/process/methods.h"

#include "proto/block.h"
#include "proto/msg_common.h"
#include "rpc/method.h"
#include "server/io/base/handlers.h"
#include "server/io/base/options.h"

/*
 * Largest request in bytes. SMALL: names and numbers, at most 800 bytes today, with room for fields of later versions.
 * BLOCK: a block, or a header with its user state, and SMALL beside it. LARGE: a message of another shard.
 */
#define LIMIT_SMALL 4096
#define LIMIT_BLOCK (AMPD_BLOCK_DATA_MAX + LIMIT_SMALL)
#define LIMIT_LARGE AMPD_MSG_SIZE_MAX
/*
 * SPEC: a specification. It is smaller than LARGE, so that Join can answer with it, its defaults, a user state and the
 * shards.
 */
#define LIMIT_SPEC (AMPD_MSG_SIZE_MAX - AMPD_MSG_USER_STATE_MAX - 64 * 1024)

static const struct arpc_method methods[] = {
#define AMPD_METHOD(service_, name_, c_name_, request_, response_, kind_, idempotent_, roles_, limit_)                 \
    {.service = "ampd.v1." #service_,                                                                                  \
     .name = #name_,                                                                                                   \
     .kind = ARPC_##kind_,                                                                                             \
     .idempotent = idempotent_,                                                                                        \
     .roles = AMPD_ROLES_##roles_,                                                                                     \
     .max_message = LIMIT_##limit_,                                                                                    \
     .handler = &ampd_handle_##c_name_},
#include "proto/methods.def"
#undef AMPD_METHOD
};

const struct arpc_method *ampd_methods(size_t *count)
{
    *count = sizeof methods / sizeof *methods;
    return methods;
}
