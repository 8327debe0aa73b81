#include "server/io/host/recover.h"

#include "base/assert.h"
#include "server/io/base/core_event.h"
#include "server/io/base/server.h"
#include "server/io/cluster/peers.h"
#include "server/io/host/model_files.h"
#include "server/io/host/purge.h"
#include "server/io/host/take_up.h"
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/vote_journal.h"

#include <inttypes.h>

/*
 * Removes files that the catalogue does not name: those of interrupted writes, and of void epochs. Complete files above
 * the newest step in the catalogue stay, since the catalogue of an older data directory that was brought back does not
 * name them. Files in a shared directory are removed later (purge.c).
 */
static int sweep(struct ampd_server *server, const struct ampd_model_record *record, struct amp_error *error)
{
    const struct ampd_checkpoint_path place = io_model_files_place(server, record->spec.name);
    uint32_t count = record->checkpoints_count;
    uint64_t newest = 0;
    if (io_model_files_shared(server))
        return 0;
    const char *name = record->spec.name;
    int rc = io_model_files_removed(server, name, ampd_checkpoint_sweep_temporary(&place, error), error);
    if (rc != 0 || count == 0)
        return rc;
    for (uint32_t i = 0; i < count; i++)
        newest = record->checkpoints[i].step > newest ? record->checkpoints[i].step : newest;
    rc = ampd_checkpoint_sweep(&place, record->checkpoints, count, newest, error);
    return io_model_files_removed(server, name, rc, error);
}

/*
 * A stored model that the core has no room for ends the start. Without it its name would be free, and a new model of
 * that name would write over the old one's history.
 */
static int not_taken_up(const struct ampd_server *server, const char *model, struct amp_error *error)
{
    return amp_error_set(error, AMP_EEXHAUSTED, NULL,
                         "the stored model %s cannot be loaded, as the log says; --memory-max is %" PRIu64
                         " bytes: start with a higher one",
                         model, server->options->memory_max);
}

/* Makes the files of one stored model ready for the core. */
static int find_model(struct ampd_server *server, struct ampd_model_record *record, struct amp_error *error)
{
    int rc = record->deleting ? 0 : io_take_up(server, record, error); /* the files of a deletion may be gone already */
    if (rc == 0)
        rc = sweep(server, record, error);
    const struct ampd_checkpoint_path place = io_model_files_journal(server, record->spec.name);
    bool journal = true;
    if (rc == 0 && record->spec.durability == AMPD_DURABILITY_STEP && !record->deleting) /* no vote of it is needed */
        rc = ampd_vote_journal_find(&place, &journal, error);
    record->no_journal = !journal;
    return rc;
}

int io_recover_find(void *arg, struct amp_error *error)
{
    struct io_found *found = arg;
    struct ampd_server *server = found->server;
    int rc = ampd_store_load(server->data.store, &found->records, &found->count, error);
    for (size_t i = 0; rc == 0 && i < found->count; i++)
        rc = find_model(server, &found->records[i], error);
    if (rc == 0)
        rc = io_purge_sweep_deleted(server, found->records, found->count, error);
    for (uint32_t k = 0; rc == 0 && k < io_peers_shards(server); k++)
        rc = ampd_store_get_fence(server->data.store, k, &found->fences[k], error);
    return rc;
}

int io_recover(struct ampd_server *server, const struct io_found *found, struct amp_error *error)
{
    AMP_ASSERT(server->life.state == SERVER_RUNNING && !server->life.found); /* once, and before START */
    for (size_t i = 0; i < found->count; i++) {
        const char *name = found->records[i].spec.name;
        struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &found->records[i]};
        io_core_event(server, &event);
        if (ampd_core_find(server->core, name) < 0)
            return not_taken_up(server, name, error);
    }
    io_purge(server);
    for (uint32_t k = 0; k < io_peers_shards(server); k++) {
        struct ampd_event event = {.type = AMPD_EVENT_FENCE_FOUND, .u.fence = {k, found->fences[k]}};
        if (found->fences[k].counter != 0)
            io_core_event(server, &event);
    }
    return 0;
}
