/*
 * Taking up at start what another process has left (docs/step-protocol.md section 6): the catalogue of this shard names
 * the files of another shard, whose store this one was copied from, or of another number of shards. Then the core need
 * not know of it:
 *
 *   the same number   the part of this shard lies in the directory of checkpoints already: it is looked for by the
 *                     manifest that the catalogue has of it, and enters the catalogue in place of the other one
 *   another number    the ranges of this shard are read out of all parts of the newest checkpoint, each tensor
 *                     verified, and written as the part that this shard would have cut itself
 *
 * Parts are known by their manifests alone, so that what a rollback has made void, or what was left of another model of
 * the same name, is never taken for one. The files of the other number stay until a later checkpoint has taken their
 * place (storage/checkpoint.h): a start that is killed half-way begins again.
 */
#include "server/io/host/take_up.h"

#include "base/failpoint.h"
#include "server/core/model/tensors.h"
#include "server/io/base/server.h"
#include "server/io/cluster/peers.h"
#include "server/io/host/checkpoint_files.h"
#include "server/io/host/model_files.h"
#include "storage/checkpoint.h"
#include "storage/vote_journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What of a model this shard has, in memory of its own. */
struct share {
    bool whole; /* tensors are owned */
    struct ampd_restore_order order;
    struct ampd_layout *layout;             /* owned */
    struct ampd_checkpoint_target *targets; /* owned */
    struct ampd_checkpoint_state state;     /* owned */
};

static void share_close(struct share *share)
{
    ampd_checkpoint_state_clear(&share->state);
    if (share->whole) {
        free(share->order.tensors.masters);
        free(share->order.tensors.m);
        free(share->order.tensors.v);
    }
    free(share->targets);
    ampd_layout_free(share->layout);
}

static int share_memory(const struct ampd_server *server, struct share *share)
{
    struct ampd_restore_order *order = &share->order;
    unsigned moments = ampd_tensors_moments(order->spec);
    ampd_layout_shard(share->layout, server->options->shard, io_peers_shards(server), &order->first, &order->count);
    size_t elements = (size_t)(order->count * share->layout->block_elements) + 1; /* never zero */
    order->tensors.masters = calloc(elements, sizeof(float));
    order->tensors.m = moments >= 1 ? calloc(elements, sizeof(float)) : NULL;
    order->tensors.v = moments >= 2 ? calloc(elements, sizeof(float)) : NULL;
    bool made = order->tensors.masters != NULL && (moments < 1 || order->tensors.m != NULL) &&
                (moments < 2 || order->tensors.v != NULL);
    return made ? 0 : AMP_ENOMEM;
}

/* With `whole` there is room for the tensors; else nothing of them is wanted. */
static int share_open(const struct ampd_server *server, const struct ampd_model_spec *spec, bool whole,
                      struct share *share, struct amp_error *error)
{
    static float some; /* an address says that there is such a tensor; none of its elements is touched */
    unsigned moments = ampd_tensors_moments(spec);
    *share = (struct share){.whole = whole, .order.spec = spec};
    int rc = ampd_layout_new(spec, AMPD_BLOCK_ELEMENTS, &share->layout);
    share->order.layout = share->layout;
    if (rc == 0 && whole)
        rc = share_memory(server, share);
    else if (rc == 0)
        share->order.tensors =
            (struct ampd_tensor_view){&some, moments >= 1 ? &some : NULL, moments >= 2 ? &some : NULL};
    if (rc == 0)
        share->targets = io_checkpoint_files_targets(&share->order);
    if (share->targets != NULL)
        return 0;
    return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the part of %s", spec->name);
}

/* ---- the part of this shard, which lies there ---- */

/* Header and manifest of the file are verified; its tensors are when they are restored. */
static int find_part(const struct ampd_server *server, const struct ampd_model_spec *spec,
                     struct ampd_checkpoint_record *record, struct amp_error *error)
{
    const struct ampd_checkpoint_path place = io_model_files_place(server, spec->name);
    struct ampd_checkpoint_record found = *record;
    struct share share;
    struct stat info;
    char path[4096];
    int rc = share_open(server, spec, false, &share, error);
    if (rc == 0)
        rc = ampd_checkpoint_file(&place, record->step, found.file, sizeof found.file, error);
    memcpy(found.manifest, record->parts[place.shard], sizeof found.manifest);
    if (rc == 0)
        rc = ampd_checkpoint_read(place.data_dir, found.file, found.manifest, share.targets, spec->parameters_count,
                                  &share.state, error);
    share_close(&share);
    if (rc != 0)
        return rc;
    (void)snprintf(path, sizeof path, "%s/%s", place.data_dir, found.file);
    found.size_bytes = stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
    *record = found;
    return 0;
}

/* ---- a part made of those of another number of shards ---- */

static int read_parts(const struct ampd_server *server, const struct ampd_checkpoint_record *record,
                      struct share *share, struct amp_error *error)
{
    char files[AMPD_PARTS_MAX][sizeof record->file];
    struct ampd_checkpoint_part parts[AMPD_PARTS_MAX];
    struct ampd_checkpoint_path place = io_model_files_place(server, share->order.spec->name);
    place.shards = record->parts_count;
    for (place.shard = 0; place.shard < place.shards; place.shard++) {
        uint32_t k = place.shard;
        int rc = ampd_checkpoint_file(&place, record->step, files[k], sizeof files[k], error);
        if (rc != 0)
            return rc;
        parts[k] = (struct ampd_checkpoint_part){place.data_dir, files[k], record->parts[k]};
    }
    return ampd_checkpoint_read_parts(parts, record->parts_count, share->targets, share->order.spec->parameters_count,
                                      &share->state, error);
}

static int write_part(const struct ampd_server *server, const struct share *share,
                      struct ampd_checkpoint_record *record, struct amp_error *error)
{
    const struct ampd_checkpoint_path place = io_model_files_place(server, share->order.spec->name);
    uint32_t count = share->order.spec->parameters_count;
    struct ampd_checkpoint_tensor *tensors = calloc(count + (size_t)1, sizeof *tensors);
    if (tensors == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the part of %s", place.model);
    for (uint32_t i = 0; i < count; i++) {
        const struct ampd_checkpoint_target *from = &share->targets[i];
        tensors[i] = (struct ampd_checkpoint_tensor){.name = from->name,
                                                     .dimensions = from->dimensions,
                                                     .shape = from->shape,
                                                     .master = from->master,
                                                     .m = from->m,
                                                     .v = from->v,
                                                     .is_part = true,
                                                     .first = from->first,
                                                     .end = from->end};
    }
    AMP_FAILPOINT("takeup.read");
    int rc = ampd_checkpoint_write(&place, tensors, count, &share->state, NULL, record, error);
    AMP_FAILPOINT("takeup.written");
    free(tensors);
    return rc;
}

static int convert(const struct ampd_server *server, const struct ampd_model_spec *spec,
                   struct ampd_checkpoint_record *record, struct amp_error *error)
{
    struct ampd_checkpoint_record made = {0};
    struct share share;
    int rc = share_open(server, spec, true, &share, error);
    if (rc == 0)
        rc = read_parts(server, record, &share, error);
    if (rc == 0)
        rc = write_part(server, &share, &made, error);
    share_close(&share);
    if (rc != 0)
        return rc;
    memcpy(record->file, made.file, sizeof record->file);
    memcpy(record->manifest, made.manifest, sizeof record->manifest);
    record->size_bytes = made.size_bytes;
    return 0;
}

/* Whether another number of shards may go on from this checkpoint. */
static int check_before_convert(const struct ampd_server *server, const struct ampd_model_record *record,
                                const struct ampd_checkpoint_record *newest, uint32_t shards, struct amp_error *error)
{
    const char *name = record->spec.name;
    if (newest->parts_count == 0)
        return amp_error_set(error, AMP_ESTATE, NULL,
                             "model %s: checkpoint %" PRIu64 " was cut for %" PRIu32
                             " shards, and its other parts are not known here; start %" PRIu32
                             " shards once more and end them, shard 0 first, then start %" PRIu32,
                             name, newest->step, shards, shards, io_peers_shards(server));
    if (record->spec.durability == AMPD_DURABILITY_STEP && record->last != NULL && record->last->step > newest->step)
        return amp_error_set(error, AMP_ESTATE, NULL,
                             "model %s: step %" PRIu64 " is in the journals of %" PRIu32
                             " shards and in no checkpoint; start these once more and end them, shard 0 first",
                             name, record->last->step, newest->parts_count);
    return 0;
}

static int adopt(struct ampd_server *server, const char *model, const struct ampd_checkpoint_record *record,
                 struct amp_error *error)
{
    AMP_FAILPOINT("takeup.adopt");
    int rc = ampd_store_adopt_checkpoint(server->data.store, model, record, error);
    AMP_FAILPOINT("takeup.adopted");
    return rc == AMP_EDATALOSS ? AMP_ESTATE : rc; /* of the store: nothing is said of the checkpoint by it */
}

static int convert_newest(struct ampd_server *server, const struct ampd_model_record *record,
                          struct ampd_checkpoint_record *newest, uint32_t shards, struct amp_error *error)
{
    const char *name = record->spec.name;
    if (shards == 1 && newest->parts_count == 0) { /* one shard's catalogue has no other parts to name */
        newest->parts_count = 1;
        memcpy(newest->parts[0], newest->manifest, sizeof newest->parts[0]);
    }
    uint32_t from = newest->parts_count;
    int rc = check_before_convert(server, record, newest, shards, error);
    if (rc == 0 && (rc = convert(server, &record->spec, newest, error)) != 0)
        amp_error_wrap(error,
                       "model %s was cut for %" PRIu32 " shards, this is one of %" PRIu32
                       "; its parts must all be below %s (--checkpoint-dir)",
                       name, from, io_peers_shards(server), server->data.checkpoint_dir);
    if (rc == 0)
        rc = adopt(server, name, newest, error);
    if (rc == 0) /* that of the other number of shards; nothing is left in it */
        rc = ampd_vote_journal_remove(server->data.dir.path, name, error);
    if (rc == 0)
        amp_log(server->log, AMP_LOG_WARN, "checkpoint",
                "msg=\"converted from another number of shards\" model=%s step=%" PRIu64 " from=%" PRIu32
                " to=%" PRIu32,
                name, newest->step, from, io_peers_shards(server));
    return rc;
}

/* Whether a file is not there, or not what it should be. */
static bool is_lost(int code)
{
    return code == AMP_ENOTFOUND || code == AMP_EDATALOSS || code == AMP_EVERSION;
}

/*
 * One checkpoint of the catalogue; they come from the newest one down. *taken: this shard has one that is as new or
 * newer. A code that is_lost: this one cannot be had, an older one perhaps.
 */
static int take_up_one(struct ampd_server *server, const struct ampd_model_record *record,
                       struct ampd_checkpoint_record *checkpoint, bool *taken, struct amp_error *error)
{
    uint32_t shard = server->options->shard, shards = io_peers_shards(server), count = shards;
    (void)ampd_checkpoint_file_shard(checkpoint->file, &shard, &shards);
    if (shards == count && shard == server->options->shard) {
        *taken = true;
        return 0;
    }
    int rc = AMP_ENOTFOUND;
    if (checkpoint->parts_count == count) {
        rc = find_part(server, &record->spec, checkpoint, error);
        if (rc == 0)
            rc = adopt(server, record->spec.name, checkpoint, error);
        if (rc == AMP_ENOTFOUND && !*taken) { /* it exists, and may be brought back; a damaged one is given up */
            amp_error_wrap(error, "model %s: bring it below %s (--checkpoint-dir)", record->spec.name,
                           server->data.checkpoint_dir);
            return AMP_ESTATE;
        }
    } else if (shards == count && checkpoint->parts_count == 0) {
        return amp_error_set(error, rc, NULL, "this shard's part of it is not known");
    } else if (*taken) {
        return amp_error_set(error, rc, NULL, "it was cut for another number of shards, and a newer one is loaded");
    } else {
        rc = convert_newest(server, record, checkpoint, shards, error);
        if (is_lost(rc))
            return AMP_ESTATE; /* to take the one before would silently lose what is durable */
    }
    *taken = *taken || rc == 0;
    return rc;
}

/* Out of the catalogue go those that cannot be had, now that another one is. */
static int drop(struct ampd_server *server, struct ampd_model_record *record, const bool *lost, struct amp_error *error)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < record->checkpoints_count; i++) {
        const struct ampd_checkpoint_record *checkpoint = &record->checkpoints[i];
        if (!lost[i]) {
            record->checkpoints[kept++] = *checkpoint;
            continue;
        }
        int rc = ampd_store_drop_checkpoint(server->data.store, record->spec.name, checkpoint->epoch, checkpoint->step,
                                            error);
        if (rc != 0 && rc != AMP_ENOTFOUND)
            return rc;
    }
    record->checkpoints_count = kept;
    return 0;
}

int io_take_up(struct ampd_server *server, struct ampd_model_record *record, struct amp_error *error)
{
    bool taken = false, any_lost = false, *lost = calloc(record->checkpoints_count + (size_t)1, sizeof *lost);
    int rc = lost != NULL ? 0 : amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a catalogue");
    for (uint32_t i = record->checkpoints_count; rc == 0 && i-- > 0;) {
        struct ampd_checkpoint_record *checkpoint = &record->checkpoints[i];
        rc = take_up_one(server, record, checkpoint, &taken, error);
        lost[i] = is_lost(rc);
        if (!lost[i])
            continue;
        any_lost = true;
        amp_log(server->log, AMP_LOG_WARN, "checkpoint",
                "msg=\"a stored model cannot be loaded\" model=%s step=%" PRIu64 " err=\"%s\"", record->spec.name,
                checkpoint->step, error->text);
        rc = taken || i > 0 ? 0 : AMP_ESTATE; /* with the text of the last one */
        if (rc != 0)
            amp_error_wrap(error, "model %s: no part of its checkpoints is below %s (--checkpoint-dir)",
                           record->spec.name, server->data.checkpoint_dir);
    }
    if (rc == 0 && any_lost)
        rc = drop(server, record, lost, error);
    free(lost);
    return rc;
}
