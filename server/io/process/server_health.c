#include "server/io/process/server_health.h"

#include "rpc/arpc_server.h"
#include "server/io/base/notify.h"
#include "server/io/base/server.h"
#include "server/io/cluster/membership.h"
#include "server/io/host/purge.h"
#include "server/io/process/methods.h"

void io_server_health_set(struct ampd_server *server, bool serving)
{
    size_t count;
    const struct arpc_method *methods = ampd_methods(&count);
    /* None can fail: "" and the services of rows are always there. */
    (void)arpc_server_set_health(server->rpc, "", serving);
    for (size_t i = 0; i < count; i++)
        (void)arpc_server_set_health(server->rpc, methods[i].service, serving);
}

void io_server_health_update(struct ampd_server *server)
{
    if (server->life.serving || server->life.state != SERVER_RUNNING || !server->life.found ||
        !ampd_core_synced(server->core))
        return;
    for (uint32_t i = 0; i < ampd_core_models_count(server->core); i++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, i, &info);
        if (info.recovering && !info.deleted && info.trouble == NULL)
            return;
    }
    server->life.serving = true;
    io_server_health_set(server, true);
    server->life.notified_ready = true;
    io_notify_ready("serving");
    io_purge_sweep(server);
    io_membership_no_models(server);
    amp_log(server->log, AMP_LOG_INFO, "server", "msg=\"serving\" models=%u", ampd_core_models_count(server->core));
}
