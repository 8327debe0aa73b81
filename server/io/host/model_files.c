#include "server/io/host/model_files.h"

#include "server/io/base/server.h"
#include "server/io/cluster/peers.h"
#include "storage/checkpoint_remove.h"
#include "storage/vote_journal.h"

struct ampd_checkpoint_path io_model_files_place(const struct ampd_server *server, const char *model)
{
    return (struct ampd_checkpoint_path){server->data.checkpoint_dir, model, server->options->shard,
                                         io_peers_shards(server)};
}

struct ampd_checkpoint_path io_model_files_journal(const struct ampd_server *server, const char *model)
{
    return (struct ampd_checkpoint_path){server->data.dir.path, model, server->options->shard, io_peers_shards(server)};
}

bool io_model_files_shared(const struct ampd_server *server)
{
    return server->options->checkpoint_dir != NULL && (io_peers_shards(server) > 1 || server->options->cluster != NULL);
}

int io_model_files_removed(const struct ampd_server *server, const char *model, int rc, const struct amp_error *error)
{
    if (!ampd_checkpoint_only_stays(rc, error))
        return rc;
    amp_log(server->log, AMP_LOG_ERROR, "checkpoint",
            "msg=\"could not be removed; remove it by hand\" model=%s err=\"%s\"", model, error->text);
    return 0;
}

int io_model_files_remove(const struct ampd_server *server, const char *model, bool checkpoints,
                          struct amp_error *error)
{
    const struct ampd_checkpoint_path place = io_model_files_place(server, model);
    int rc = checkpoints ? ampd_checkpoint_remove_model(&place, error) : 0;
    rc = io_model_files_removed(server, model, rc, error);
    if (rc != 0)
        return rc;
    rc = ampd_vote_journal_remove(server->data.dir.path, model, error);
    return io_model_files_removed(server, model, rc, error);
}
