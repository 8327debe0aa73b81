/*
 * Taking up checkpoints of another process at a start (docs/step-protocol.md section 6). The catalogue of this shard
 * may name files of another shard, from whose store it was copied, or files made with another number of shards. Both
 * are settled here, before the core sees the catalogue:
 *
 *   the same number   this shard's part is in the shared checkpoint directory already. It is looked up by the manifest
 *                     that the catalogue has of it, and replaces the other shard's file in the catalogue
 *   another number    the ranges of this shard are read out of all parts of the newest checkpoint, each tensor is
 *                     verified, and they are written as the part that this shard would have written itself
 *
 * A part is recognised by its manifest only. So a file that a rollback has made void, or that another model of the same
 * name has left, is never mistaken for it. The files of the other number stay until a later checkpoint has replaced
 * them (storage/checkpoint.h): a start that is killed half-way begins again.
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

/* This shard's share of a model: which ranges it has, and memory for them. */
struct share {
    bool whole; /* there is memory for the tensors, which is owned */
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

/*
 * Opens a share. `whole`: with memory for the tensors; else only the header and manifest of a file can be checked by
 * it.
 */
static int share_open(const struct ampd_server *server, const struct ampd_model_spec *spec, bool whole,
                      struct share *share, struct amp_error *error)
{
    static float some; /* its address only says that there is such a tensor; no element is read or written */
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

/* ---- this shard's part, where it exists ---- */

/* Whether a code says that a file is there and damaged. */
static bool is_damaged(int code)
{
    return code == AMP_EDATALOSS || code == AMP_EVERSION;
}

/*
 * Finds this shard's file of a checkpoint, and puts it into *record, also where it is damaged. Header and manifest are
 * verified here, the tensors when they are restored. 0 also where the file cannot be read now: the restore waits for
 * it, and other models are served meanwhile.
 */
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
    bool is_unread = rc == AMP_EIO || rc == AMP_EDENIED;
    if (rc != 0 && !is_damaged(rc) && !is_unread)
        return rc;
    (void)snprintf(path, sizeof path, "%s/%s", place.data_dir, found.file);
    found.size_bytes = stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
    *record = found;
    return is_unread ? 0 : rc;
}

/* ---- a part made from those of another number of shards ---- */

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

/* 0 if this number of shards can go on from a checkpoint of another number; else AMP_ESTATE with a text. */
static int check_before_convert(const struct ampd_server *server, const struct ampd_model_record *record,
                                const struct ampd_checkpoint_record *newest, uint32_t shards, struct amp_error *error)
{
    const char *name = record->spec.name;
    if (newest->parts_count == 0)
        return amp_error_set(error, AMP_ESTATE, NULL,
                             "model %s: checkpoint %" PRIu64 " was written by %" PRIu32
                             " shards, and its other parts are not known here; start %" PRIu32
                             " shards once more and end them, shard 0 first, then start %" PRIu32,
                             name, newest->step, shards, shards, io_peers_shards(server));
    if (record->spec.durability == AMPD_DURABILITY_STEP && record->last != NULL && record->last->step > newest->step)
        return amp_error_set(error, AMP_ESTATE, NULL,
                             "model %s: step %" PRIu64 " is only in the journal of %" PRIu32
                             " shard(s), and in no checkpoint; start %s once more and end %s",
                             name, record->last->step, newest->parts_count,
                             newest->parts_count == 1 ? "ampd without --peers" : "that many",
                             newest->parts_count == 1 ? "it" : "them, shard 0 first");
    return 0;
}

static int adopt(struct ampd_server *server, const char *model, const struct ampd_checkpoint_record *record,
                 struct amp_error *error)
{
    AMP_FAILPOINT("takeup.adopt");
    int rc = ampd_store_adopt_checkpoint(server->data.store, model, record, error);
    AMP_FAILPOINT("takeup.adopted");
    return rc == AMP_EDATALOSS ? AMP_ESTATE : rc; /* the store is damaged, not the checkpoint: is_lost must not hold */
}

static int convert_newest(struct ampd_server *server, const struct ampd_model_record *record,
                          struct ampd_checkpoint_record *newest, uint32_t shards, struct amp_error *error)
{
    const char *name = record->spec.name;
    uint32_t from = newest->parts_count;
    int rc = check_before_convert(server, record, newest, shards, error);
    if (rc == 0 && (rc = convert(server, &record->spec, newest, error)) != 0)
        amp_error_wrap(error,
                       "model %s was written by %" PRIu32 " shards, and this is one of %" PRIu32
                       "; its parts must all be below %s (--checkpoint-dir)",
                       name, from, io_peers_shards(server), server->data.checkpoint_dir);
    /*
     * The journal was written with the other number of shards, and holds nothing that is still needed. It goes first:
     * once the checkpoint is adopted, no start looks for it any more.
     */
    if (rc == 0)
        rc = ampd_vote_journal_remove(server->data.dir.path, name, error);
    if (rc == 0)
        rc = adopt(server, name, newest, error);
    if (rc == 0)
        amp_log(server->log, AMP_LOG_WARN, "checkpoint",
                "msg=\"converted from another number of shards\" model=%s step=%" PRIu64 " from=%" PRIu32
                " to=%" PRIu32,
                name, newest->step, from, io_peers_shards(server));
    return rc;
}

/* Whether a code says that a file is missing or damaged. */
static bool is_lost(int code)
{
    return code == AMP_ENOTFOUND || is_damaged(code);
}

/*
 * Takes up one checkpoint of the catalogue; the newest one comes first. *taken: this shard has a part of this or a
 * newer checkpoint. A code for which is_lost holds: this one cannot be taken up, but an older one might.
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
    /* A single shard gets no PARTS: what its catalogue lists are the parts that its file was made of. */
    if (shards == 1) {
        checkpoint->parts_count = 1;
        memcpy(checkpoint->parts[0], checkpoint->manifest, sizeof checkpoint->parts[0]);
    }
    int rc = AMP_ENOTFOUND;
    if (checkpoint->parts_count == count) {
        rc = find_part(server, &record->spec, checkpoint, error);
        if (rc == 0)
            rc = adopt(server, record->spec.name, checkpoint, error);
        if (rc == AMP_ENOTFOUND && !*taken) { /* a missing file may be brought back; a damaged one is given up */
            amp_error_wrap(error, "model %s: bring it below %s (--checkpoint-dir)", record->spec.name,
                           server->data.checkpoint_dir);
            return AMP_ESTATE;
        }
    } else if (shards == count && checkpoint->parts_count == 0) {
        return amp_error_set(error, rc, NULL, "this shard's part of it is not known");
    } else if (*taken) {
        return amp_error_set(error, rc, NULL, "it was written by another number of shards, and a newer one is loaded");
    } else {
        rc = convert_newest(server, record, checkpoint, shards, error);
        if (is_lost(rc))
            return AMP_ESTATE; /* an older one would silently lose steps that were reported durable */
    }
    *taken = *taken || rc == 0;
    return rc;
}

/*
 * Removes from the catalogue the checkpoints whose files are missing, once another one was taken up. A part that is
 * damaged stays in it: whoever restores it passes it over, as any other, and it tells that these data know of it.
 */
static int drop(struct ampd_server *server, struct ampd_model_record *record, const int *lost, struct amp_error *error)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < record->checkpoints_count; i++) {
        const struct ampd_checkpoint_record *checkpoint = &record->checkpoints[i];
        const char *name = record->spec.name;
        int rc = 0;
        if (lost[i] == AMP_ENOTFOUND)
            rc = ampd_store_drop_checkpoint(server->data.store, name, checkpoint->epoch, checkpoint->step, error);
        else if (lost[i] != 0)
            rc = adopt(server, name, checkpoint, error);
        if (rc != 0 && rc != AMP_ENOTFOUND)
            return rc;
        if (lost[i] != AMP_ENOTFOUND)
            record->checkpoints[kept++] = *checkpoint;
    }
    record->checkpoints_count = kept;
    return 0;
}

int io_take_up(struct ampd_server *server, struct ampd_model_record *record, struct amp_error *error)
{
    bool taken = false, any_lost = false;
    int *lost = calloc(record->checkpoints_count + (size_t)1, sizeof *lost); /* the code of each that is lost */
    int rc = lost != NULL ? 0 : amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a catalogue");
    for (uint32_t i = record->checkpoints_count; rc == 0 && i-- > 0;) {
        struct ampd_checkpoint_record *checkpoint = &record->checkpoints[i];
        rc = take_up_one(server, record, checkpoint, &taken, error);
        if (!is_lost(rc))
            continue;
        lost[i] = rc;
        any_lost = true;
        amp_log(server->log, AMP_LOG_WARN, "checkpoint",
                "msg=\"a stored model cannot be loaded\" model=%s step=%" PRIu64 " err=\"%s\"", record->spec.name,
                checkpoint->step, error->text);
        rc = taken || i > 0 ? 0 : AMP_ESTATE; /* none is left: the text is that of the oldest one */
        if (rc != 0)
            amp_error_wrap(error, "model %s: no part of its checkpoints is below %s (--checkpoint-dir)",
                           record->spec.name, server->data.checkpoint_dir);
    }
    if (rc == 0 && any_lost)
        rc = drop(server, record, lost, error);
    free(lost);
    return rc;
}
