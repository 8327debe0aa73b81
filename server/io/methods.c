/* The rows of server/methods.def as rpc takes them. */
#include "server/io/handlers.h"
#include "server/io/server.h"

#include "proto/msg_common.h"

/* Largest request of the methods that carry tensors, specifications or user state, and of all others (DESIGN section 3). */
#define LIMIT_LARGE AMPD_MSG_SIZE_MAX
#define LIMIT_SMALL 65536

#define ROLE_ANYONE   (AMPD_ROLE_WORKER | AMPD_ROLE_OPERATOR | AMPD_ROLE_READER)
#define ROLE_WORKER   AMPD_ROLE_WORKER
#define ROLE_OPERATOR AMPD_ROLE_OPERATOR
#define ROLE_PEER     AMPD_ROLE_PEER
/* A shard asks it of shard 0, for a client of its own. */
#define ROLE_ANYONE_OR_PEER (ROLE_ANYONE | ROLE_PEER)

static const struct arpc_method methods[] = {
#define AMPD_METHOD(service_, name_, request_, response_, kind_, idempotent_, roles_, limit_, handler_)                \
    {.service = "ampd.v1." #service_,                                                                                  \
     .name = #name_,                                                                                                   \
     .kind = ARPC_##kind_,                                                                                             \
     .idempotent = idempotent_,                                                                                        \
     .roles = ROLE_##roles_,                                                                                           \
     .max_message = LIMIT_##limit_,                                                                                    \
     .handler = handler_},
#include "server/methods.def"
#undef AMPD_METHOD
};

const struct arpc_method *ampd_methods(size_t *count)
{
    *count = sizeof methods / sizeof *methods;
    return methods;
}
