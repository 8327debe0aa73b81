/*
 * Which checkpoint parts a shard holds, and which of them are kept: the newest keep_last, those of every keep_every-th
 * step, one that a restore reads, and one that a rollback was promised (HELD). Only checkpoints that exist on all
 * shards count as the newest: a part above them does not replace any below.
 *
 * The file of a checkpoint that a new epoch makes void is not removed before all shards have stored the epoch: until
 * then a start may go on from it, or a shard that has lost its disk. STATE and parts of an epoch come only after that.
 * After a rollback the files go with the first STATE. With any other epoch, as after a start, they stay until the next
 * part is written: if the data directory is an older one by mistake, they may be those of the right one, and a start
 * alone must cost nothing. They go before that part, since its file may have the same name.
 *
 * A process that ends before it has removed such a file leaves it. The store's rows of void checkpoints are not used to
 * remove it later: a file names no epoch, so that it may be a newer one of the same step. It goes when its step is
 * written again, or when a start finds a newer checkpoint in the catalogue.
 */
#include "server/core/shard/catalogue.h"

#include "base/assert.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/shard/checkpoint_part.h"
#include "server/core/shard/memory.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/bus.h"

#include <stdlib.h>
#include <string.h>

int ampd_catalogue_add(struct ampd_shard *shard, const struct ampd_checkpoint_record *record)
{
    for (uint32_t i = 0; i < shard->catalogue.count; i++) {
        if (shard->catalogue.records[i].epoch == record->epoch && shard->catalogue.records[i].step == record->step) {
            shard->catalogue.records[i] = *record;
            return 0;
        }
    }
    if (shard->catalogue.count == shard->catalogue.capacity) {
        uint32_t room = shard->catalogue.capacity * 2 + 4;
        void *grown = realloc(shard->catalogue.records, room * sizeof *shard->catalogue.records);
        if (grown == NULL)
            return AMP_ENOMEM;
        shard->catalogue.records = grown;
        shard->catalogue.capacity = room;
    }
    shard->catalogue.records[shard->catalogue.count++] = *record;
    return 0;
}

uint64_t ampd_catalogue_durable(const struct ampd_shard *shard)
{
    const struct ampd_verdict_message *last = shard->decided.verdict;
    return last == NULL ? shard->catalogue.found_durable_step : last->row.durable_step;
}

/* Whether a checkpoint is kept beyond keep_last. Step 0, the initial values, is a multiple of keep_every, too. */
static bool is_kept(const struct ampd_model *model, const struct ampd_checkpoint_record *record)
{
    const struct ampd_shard *shard = model->shard;
    uint64_t every = model->spec.keep_every;
    if (every != 0 && record->step % every == 0)
        return true;
    return record->epoch == shard->catalogue.held_epoch && record->step == shard->catalogue.held_step;
}

static void drop(struct ampd_model *model, const struct ampd_checkpoint_record *record, bool file_only)
{
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_DROP_CHECKPOINT, 0);
    output->u.drop.model = model->spec.name;
    output->u.drop.checkpoint = ampd_out_own(model->core, ampd_need(ampd_copy(record, sizeof *record)));
    output->u.drop.file_only = file_only;
}

/*
 * Whether this store has been told all parts of the checkpoint. Of one that it has not, another shard may have no part:
 * it has started again while it wrote that, and all have gone on.
 */
static bool has_all_parts(const struct ampd_model *model, const struct ampd_checkpoint_record *record)
{
    uint32_t count = AMPD_COUNT(model->core);
    return count == 1 || record->parts_count == count;
}

/* How many records, from the first on, are older than the newest keep_last checkpoints that exist on all shards. */
static uint32_t count_old(const struct ampd_model *model)
{
    const struct ampd_catalogue *catalogue = &model->shard->catalogue;
    uint64_t common = AMPD_COUNT(model->core) == 1 ? UINT64_MAX : ampd_catalogue_durable(model->shard);
    uint32_t at = catalogue->count;
    for (uint32_t exist = 0; exist < model->spec.keep_last; at--) {
        if (at == 0)
            return 0;
        const struct ampd_checkpoint_record *record = &catalogue->records[at - 1];
        exist += record->step <= common && has_all_parts(model, record) ? 1 : 0;
    }
    return at;
}

void ampd_catalogue_prune(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    uint32_t old = count_old(model), kept = 0;
    for (uint32_t i = 0; i < shard->catalogue.count; i++) {
        if (i < old && !is_kept(model, &shard->catalogue.records[i]))
            drop(model, &shard->catalogue.records[i], false);
        else
            shard->catalogue.records[kept++] = shard->catalogue.records[i];
    }
    shard->catalogue.count = kept;
}

void ampd_catalogue_void(struct ampd_shard *shard, const struct ampd_epoch_record *epoch)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < shard->catalogue.count; i++) {
        if (epoch->base_epoch != 0 && shard->catalogue.records[i].step <= epoch->base_step)
            shard->catalogue.records[kept++] = shard->catalogue.records[i];
        else
            ampd_catalogue_add_void(shard, &shard->catalogue.records[i]);
    }
    shard->catalogue.count = kept;
    shard->catalogue.held_epoch = 0;
    shard->catalogue.voids_go = shard->catalogue.voids_go || strcmp(epoch->reason, "ROLLBACK") == 0;
}

void ampd_catalogue_add_void(struct ampd_shard *shard, const struct ampd_checkpoint_record *record)
{
    struct ampd_catalogue *catalogue = &shard->catalogue;
    void *grown = realloc(catalogue->voids, (catalogue->voids_count + (size_t)1) * sizeof *catalogue->voids);
    if (grown == NULL)
        return; /* its file stays, as after a process that ends too early */
    catalogue->voids = grown;
    catalogue->voids[catalogue->voids_count++] = *record;
}

void ampd_catalogue_remove_voids(struct ampd_model *model)
{
    struct ampd_catalogue *catalogue = &model->shard->catalogue;
    if (model->shard->new_epoch != 0)
        return; /* the store may still name them */
    for (uint32_t i = 0; i < catalogue->voids_count; i++)
        drop(model, &catalogue->voids[i], true);
    catalogue->voids_count = 0;
    catalogue->voids_go = false;
}

bool ampd_catalogue_knows(const struct ampd_model *model, const struct ampd_checkpoint_record *record)
{
    return has_all_parts(model, record) && model->shard->catalogue.parts_storing == 0;
}

/*
 * Another shard may have to be filled from this store one day: so shard 0 is sent PART_DONE again when the manifests
 * are stored, now or before. If they name another part of this shard than the one here, they are of no use.
 */
void ampd_catalogue_parts(struct ampd_model *model, const struct ampd_parts *parts)
{
    struct ampd_shard *shard = model->shard;
    for (uint32_t i = 0; i < shard->catalogue.count; i++) {
        struct ampd_checkpoint_record *record = &shard->catalogue.records[i];
        if (record->epoch != parts->epoch || record->step != parts->step ||
            memcmp(record->manifest, parts->manifests[model->core->config.shard], sizeof record->manifest) != 0)
            continue;
        bool known = record->parts_count == parts->count &&
                     memcmp(record->parts, parts->manifests, parts->count * sizeof parts->manifests[0]) == 0;
        if (known) {
            ampd_part_send_known(model);
            return;
        }
        record->parts_count = parts->count;
        memcpy(record->parts, parts->manifests, sizeof record->parts);
        shard->catalogue.parts_storing++;
        struct ampd_persist *persist;
        (void)ampd_out_persist(model, AMPD_PERSIST_PARTS, 0, &persist);
        persist->checkpoint = ampd_out_own(model->core, ampd_need(ampd_copy(record, sizeof *record)));
    }
}

void ampd_catalogue_parts_stored(struct ampd_model *model)
{
    AMP_ASSERT(model->shard->catalogue.parts_storing > 0);
    if (--model->shard->catalogue.parts_storing != 0)
        return;
    ampd_part_send_known(model);
    if (model->shard->memory == AMPD_MEMORY_RESTORED)
        ampd_memory_resend(model);
}

const struct ampd_checkpoint_record *ampd_catalogue_find(const struct ampd_shard *shard, uint64_t epoch, uint64_t step)
{
    for (uint32_t i = 0; i < shard->catalogue.count; i++) {
        if (shard->catalogue.records[i].epoch == epoch && shard->catalogue.records[i].step == step)
            return &shard->catalogue.records[i];
    }
    return NULL;
}

void ampd_catalogue_hold(struct ampd_shard *shard, const struct ampd_restore *asked)
{
    shard->catalogue.held_epoch = asked->epoch;
    shard->catalogue.held_step = asked->step;
}

void ampd_catalogue_holds(struct ampd_model *model, const struct ampd_message *message)
{
    const struct ampd_restore *asked = &message->u.restore;
    struct ampd_message *answer = ampd_bus_message(model, AMPD_MESSAGE_HELD, 0);
    AMP_ASSERT(message->from == 0);
    answer->u.restore = *asked;
    const struct ampd_checkpoint_record *record = ampd_catalogue_find(model->shard, asked->epoch, asked->step);
    answer->u.restore.ok = record != NULL;
    ampd_catalogue_hold(model->shard, asked);
    if (record != NULL)
        memcpy(answer->u.restore.manifest, record->manifest, sizeof record->manifest);
    ampd_bus_send_take(model->core, answer);
}
