#include "server/io/host/model_files.h"

#include "server/io/base/server.h"
#include "server/io/cluster/peers.h"

struct ampd_checkpoint_path io_model_files_place(const struct ampd_server *server, const char *model)
{
    return (struct ampd_checkpoint_path){server->data.checkpoint_dir, model, server->options->shard,
                                          io_peers_shards(server)};
}

struct ampd_checkpoint_path io_model_files_journal(const struct ampd_server *server, const char *model)
{
    return (struct ampd_checkpoint_path){server->data.dir.path, model, server->options->shard,
                                          io_peers_shards(server)};
}

bool io_model_files_shared(const struct ampd_server *server)
{
    return server->options->checkpoint_dir != NULL && (io_peers_shards(server) > 1 || server->options->cluster != NULL);
}
