/* What a shard's core has asked its host for: jobs, the store and the files, done one at a time, in any order. */
#include "tests/sim/sim.h"
#include "server/core/coordinator/workers.h"
#include "server/core/model/passes.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sim_task_free(struct sim_task *task)
{
    free(task->row);
    free(task->notes);
    ampd_message_free(task->message);
    free(task);
}

void sim_disk_forget(struct amp_list *list)
{
    for (struct amp_list *it; (it = amp_list_shift(list)) != NULL;)
        sim_task_free(AMP_CONTAINER(it, struct sim_task, node));
}

static void begin_draft(struct sim *sim, struct sim_shard *shard, const struct ampd_part_order *order);

void sim_disk_keep(struct sim *sim, struct sim_shard *shard, const struct ampd_output *output)
{
    if (output->type == AMPD_OUT_CUT)
        begin_draft(sim, shard, &output->u.cut);
    struct sim_task *task = calloc(1, sizeof(*task));
    task->output = *output;
    if (output->type == AMPD_OUT_PERSIST) {
        const struct ampd_persist *persist = &output->u.persist;
        if (persist->row != NULL) {
            task->row = malloc(sizeof(*task->row));
            *task->row = *persist->row;
        }
        if (persist->epoch != NULL)
            task->epoch = *persist->epoch;
        if (persist->worker != NULL)
            task->worker = *persist->worker;
        if (persist->checkpoint != NULL)
            task->checkpoint = *persist->checkpoint;
    }
    if (output->type == AMPD_OUT_JOURNAL)
        sim_journal_keep(task, &output->u.journal);
    if (output->type == AMPD_OUT_RESTORE)
        task->checkpoint = *output->u.restore.checkpoint;
    amp_list_push(output->type == AMPD_OUT_JOB ? &shard->jobs : &shard->tasks, &task->node);
}

/* Blocks of a part that is given up are not read any more when its end is told. */
void sim_disk_cancel(struct sim_shard *shard, uint64_t token)
{
    AMP_LIST_EACH(it, next, &shard->tasks)
    {
        struct sim_task *task = AMP_CONTAINER(it, struct sim_task, node);
        if (task->output.type == AMPD_OUT_CUT && task->output.u.cut.token == token)
            task->cancelled = true;
        if (task->output.type != AMPD_OUT_PART_BLOCKS || task->output.u.part_blocks.token != token)
            continue;
        amp_list_remove(&task->node);
        sim_task_free(task);
    }
}

/* Commits that are not synced are remembered, so that a power loss can take them back. */
static struct sim_undo *remember(struct sim_store *store, enum ampd_persist_kind kind)
{
    struct sim_undo *undo = calloc(1, sizeof(*undo));
    undo->kind = kind;
    undo->last_step = store->last_step;
    undo->acts_count = store->acts_count;
    undo->act_rows_count = store->act_rows_count;
    amp_list_push(&store->undo, &undo->node);
    return undo;
}

void sim_disk_synced(struct sim_store *store)
{
    for (struct amp_list *it; (it = amp_list_shift(&store->undo)) != NULL;)
        free(AMP_CONTAINER(it, struct sim_undo, node));
}

/* Of a checkpoint, if it is still in the catalogue; returns what was there before. */
static struct ampd_checkpoint_record put_parts(struct sim_store *store, const struct ampd_checkpoint_record *record)
{
    struct ampd_checkpoint_record before = *record;
    for (uint32_t i = 0; i < store->checkpoints_count; i++) {
        if (store->checkpoints[i].epoch != record->epoch || store->checkpoints[i].step != record->step)
            continue;
        before = store->checkpoints[i];
        store->checkpoints[i] = *record;
    }
    return before;
}

static void take_back(struct sim *sim, struct sim_store *store, const struct sim_undo *undo)
{
    if (undo->kind == AMPD_PERSIST_VERDICT) {
        store->last_step = undo->last_step;
    } else if (undo->kind == AMPD_PERSIST_WORKER) {
        store->workers[undo->worker.rank] = undo->worker;
        store->has_worker[undo->worker.rank] = undo->has_worker;
    } else if (undo->kind == AMPD_PERSIST_ACT) {
        store->acts_count = undo->acts_count;
        store->act_rows_count = undo->act_rows_count;
    } else if (undo->kind == AMPD_PERSIST_PARTS) {
        (void)put_parts(store, &undo->checkpoint);
    } else { /* a checkpoint is in the catalogue again: its file may be gone */
        memmove(store->checkpoints + 1, store->checkpoints, store->checkpoints_count * sizeof(store->checkpoints[0]));
        store->checkpoints[0] = undo->checkpoint;
        store->checkpoints_count++;
        store->files[undo->checkpoint.step].gone = sim_below(sim, 2) == 0;
    }
}

void sim_disk_power_loss(struct sim *sim, struct sim_shard *shard)
{
    struct sim_store *store = &shard->store;
    sim_trace(sim, 904, shard->index);
    uint64_t lost = 0, count = 0;
    for (struct amp_list *it = store->undo.next; it != &store->undo; it = it->next)
        count++;
    lost = sim_below(sim, count + 1); /* some of them may have reached the disk all the same, in order */
    for (uint64_t i = 0; i < lost; i++) {
        struct sim_undo *undo = AMP_CONTAINER(store->undo.prev, struct sim_undo, node);
        take_back(sim, store, undo);
        amp_list_remove(&undo->node);
        free(undo);
    }
    sim_disk_synced(store);
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu shard %u: power loss, %llu of %llu commits lost\n",
                      (unsigned long long)sim->now_ms, shard->index, (unsigned long long)lost,
                      (unsigned long long)count);
}

bool sim_disk_is_full(const struct sim *sim, const struct sim_shard *shard)
{
    return shard->store.full_until_ms > sim->now_ms;
}

static void drop_record(struct sim_store *store, const struct ampd_checkpoint_record *record)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < store->checkpoints_count; i++) {
        if (store->checkpoints[i].step != record->step)
            store->checkpoints[kept++] = store->checkpoints[i];
    }
    store->checkpoints_count = kept;
}

void sim_disk_drop(struct sim_store *store, const struct ampd_checkpoint_record *record)
{
    remember(store, AMPD_PERSIST_CHECKPOINT)->checkpoint = *record;
    drop_record(store, record);
}

static bool names(const struct sim_store *store, uint64_t epoch, uint64_t step)
{
    for (uint32_t i = 0; i < store->checkpoints_count; i++) {
        if (store->checkpoints[i].step == step && (epoch == 0 || store->checkpoints[i].epoch == epoch))
            return true;
    }
    return false;
}

/*
 * The file of a checkpoint that is void. A file has no epoch in its name, so that no other checkpoint of this shard may be of the
 * step; and no other shard may still have this one, since a lost disk is filled from there.
 */
void sim_disk_remove(struct sim *sim, struct sim_shard *shard, const struct ampd_checkpoint_record *record)
{
    bool needed = names(&shard->store, 0, record->step);
    for (uint32_t k = 0; k < sim->shards; k++)
        needed = needed || names(&sim->shard[k].store, record->epoch, record->step);
    if (needed)
        sim_fail(sim, SIM_DURABLE, "shard %u removes the file of step %llu, which is still needed", shard->index,
                 (unsigned long long)record->step);
    shard->store.files[record->step].gone = true;
}

static uint64_t list_count(const struct amp_list *list)
{
    uint64_t count = 0;
    for (const struct amp_list *it = list->next; it != list; it = it->next)
        count++;
    return count;
}

uint64_t sim_server_tasks(const struct sim_shard *shard)
{
    return list_count(&shard->tasks) + list_count(&shard->jobs);
}

uint64_t sim_server_ready(const struct sim *sim, const struct sim_shard *shard)
{
    return sim_is_zombie(sim, shard) || sim_disk_is_full(sim, shard) ? list_count(&shard->jobs)
                                                                     : sim_server_tasks(shard);
}

static void store_checkpoint(struct sim_store *store, const struct ampd_checkpoint_record *record)
{
    drop_record(store, record);
    store->checkpoints[store->checkpoints_count++] = *record;
}

static void store_epoch(struct sim *sim, struct sim_shard *shard, const struct ampd_epoch_record *epoch)
{
    struct sim_store *store = &shard->store;
    if (epoch->epoch <= store->epoch)
        sim_fail(sim, SIM_ONE_VERDICT, "epoch %llu is stored after %llu", (unsigned long long)epoch->epoch,
                 (unsigned long long)store->epoch);
    store->epoch = epoch->epoch;
    store->no_journal = false;
    shard->anew = false;
    store->base_epoch = epoch->base_epoch;
    store->base_step = epoch->base_step;
    store->last_step = epoch->base_step;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < store->checkpoints_count; i++) {
        if (epoch->base_epoch != 0 && store->checkpoints[i].step <= epoch->base_step)
            store->checkpoints[kept++] = store->checkpoints[i];
    }
    store->checkpoints_count = kept;
    sim_check_epoch(sim, shard, epoch);
}

/* Which records are synced when they are committed; all others are with the next that is. */
static bool is_synced(const struct ampd_persist *persist)
{
    return persist->full;
}

static void commit_worker(struct sim_store *store, const struct ampd_worker_record *worker)
{
    struct sim_undo *undo = remember(store, AMPD_PERSIST_WORKER);
    undo->worker = store->workers[worker->rank];
    undo->worker.rank = worker->rank;
    undo->has_worker = store->has_worker[worker->rank];
    store->workers[worker->rank] = *worker;
    store->has_worker[worker->rank] = true;
}

static void file_free(struct sim_file *file, uint32_t world)
{
    free(file->master);
    free(file->m);
    free(file->v);
    for (uint32_t r = 0; file->state.user_states != NULL && r < world; r++)
        free(file->state.user_states[r].data);
    free(file->state.user_states);
    memset(file, 0, sizeof(*file));
}

void sim_disk_delete(struct sim *sim, struct sim_shard *shard)
{
    struct sim_store *store = &shard->store;
    bool unmade = sim_has(sim->seed, SIM_MEMORY) && !sim->loaded; /* for a shard that has no memory for it */
    if (sim->end != SIM_DELETING && sim->end != SIM_DELETED && !unmade)
        sim_fail(sim, SIM_GONE, "shard %u deletes a model that nobody wants deleted", shard->index);
    sim_journal_forget(&shard->store);
    for (unsigned s = 0; s <= SIM_STEPS_MAX; s++)
        file_free(&store->files[s], sim->model.spec.world_size);
    store->has_model = false;
    store->deleting = false;
    shard->seen_epoch = shard->seen_step = 0; /* it may be made anew */
    store->epoch = store->base_epoch = store->base_step = store->last_step = 0;
    memset(store->has_worker, 0, sizeof(store->has_worker));
    store->checkpoints_count = 0;
    store->acts_count = 0;
    store->act_rows_count = 0;
    sim_disk_synced(store); /* none of what was not synced can come back */
}

/* As the stores do: one that comes again is there already. */
static void store_act_row(struct sim *sim, struct sim_store *store, const struct ampd_step_row *row)
{
    for (uint32_t i = 0; i < store->act_rows_count; i++) {
        const struct ampd_step_row *had = &store->act_rows[i];
        if (had->epoch == row->epoch && had->step == row->step && had->after.scaler.scale_id == row->after.scaler.scale_id &&
            strcmp(had->note.request_id, row->note.request_id) == 0)
            return;
    }
    sim_act_stored(store, row, 0);
    if (store->act_rows_count == SIM_ACTS_MAX)
        sim_fail(sim, SIM_ITSELF, "more than %d rows of acts", SIM_ACTS_MAX);
    store->act_rows[store->act_rows_count++] = *row;
}

static void commit(struct sim *sim, struct sim_shard *shard, struct sim_task *task)
{
    struct sim_store *store = &shard->store;
    if (task->output.u.persist.kind != AMPD_PERSIST_FENCE)
        sim_snapshots_stored(sim, shard);
    switch (task->output.u.persist.kind) {
    case AMPD_PERSIST_MODEL:
        store->has_model = true;
        store_epoch(sim, shard, &task->epoch);
        sim_check_epoch_row(sim, shard, task->row);
        break;
    case AMPD_PERSIST_EPOCH:
        store_epoch(sim, shard, &task->epoch);
        sim_check_epoch_row(sim, shard, task->row);
        sim_acts_supersede(store, &task->epoch);
        sim_act_stored(store, task->row, task->epoch.base_epoch);
        break;
    case AMPD_PERSIST_WORKER:
        commit_worker(store, &task->worker);
        break;
    case AMPD_PERSIST_VERDICT:
        sim_check_row(sim, shard, task->row);
        (void)remember(store, AMPD_PERSIST_VERDICT);
        store->rows[task->row->step] = *task->row;
        store->last_step = task->row->step;
        break;
    case AMPD_PERSIST_CHECKPOINT:
        store_checkpoint(store, &task->checkpoint);
        break;
    case AMPD_PERSIST_PARTS:
        remember(store, AMPD_PERSIST_PARTS)->checkpoint = put_parts(store, &task->checkpoint);
        break;
    case AMPD_PERSIST_FENCE:
        store->fences[task->output.u.persist.shard] = task->output.u.persist.fence;
        break;
    case AMPD_PERSIST_ACT:
        sim_check_act(sim, shard, task->row);
        (void)remember(store, AMPD_PERSIST_ACT);
        store_act_row(sim, store, task->row);
        break;
    case AMPD_PERSIST_DELETING:
        store->deleting = true;
        break;
    case AMPD_PERSIST_DELETE:
        sim_disk_delete(sim, shard);
        break;
    }
    if (is_synced(&task->output.u.persist))
        sim_disk_synced(store);
}

/* A sync that fails leaves it open whether the record is there, and ends the process. True: it did. */
static bool fails(struct sim *sim, struct sim_shard *shard, struct sim_task *task)
{
    if (sim->disk_errors == 0 || sim_below(sim, 200) != 0)
        return false;
    sim->disk_errors--;
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu shard %u: EIO\n", (unsigned long long)sim->now_ms, shard->index);
    if (task->output.type == AMPD_OUT_PERSIST && sim_below(sim, 2) == 0)
        commit(sim, shard, task);
    sim_server_kill(sim, shard);
    return true;
}

static void do_persist(struct sim *sim, struct sim_shard *shard, struct sim_task *task)
{
    commit(sim, shard, task);
    struct ampd_event event = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {task->output.u.persist.token}};
    sim_server_event(sim, shard, &event);
}

/* A file in the making: its tensors are filled block by block. */
static void begin_draft(struct sim *sim, struct sim_shard *shard, const struct ampd_part_order *order)
{
    struct sim_file *draft = &shard->draft;
    file_free(draft, sim->model.spec.world_size);
    draft->step = order->step;
    shard->draft_left = order->count;
    draft->master = malloc(shard->elements * sizeof(float) + 1);
    draft->m = order->has_m ? malloc(shard->elements * sizeof(float) + 1) : NULL;
    draft->v = order->has_v ? malloc(shard->elements * sizeof(float) + 1) : NULL;
}

static void do_cut_blocks(struct sim *sim, struct sim_shard *shard, const struct sim_task *task)
{
    const struct ampd_part_blocks *blocks = &task->output.u.part_blocks;
    struct sim_file *draft = &shard->draft;
    if (blocks->first != shard->block + shard->blocks - shard->draft_left)
        sim_fail(sim, SIM_BITWISE, "blocks of a checkpoint come out of order: %llu", (unsigned long long)blocks->first);
    uint64_t size = sim->model.layout->block_elements;
    uint64_t at = blocks->first * size - shard->element, end = at + blocks->count * size;
    size_t bytes = ((end < shard->elements ? end : shard->elements) - at) * sizeof(float);
    memcpy(draft->master + at, blocks->tensors.masters, bytes);
    if (draft->m != NULL)
        memcpy(draft->m + at, blocks->tensors.m, bytes);
    if (draft->v != NULL)
        memcpy(draft->v + at, blocks->tensors.v, bytes);
    shard->draft_left -= blocks->count;
    struct ampd_event event = {.type = AMPD_EVENT_PART_BLOCKS,
                               .u.part_blocks = {blocks->token, blocks->first, blocks->count}};
    sim_server_event(sim, shard, &event);
}

/* All blocks are in: the file gets its name. */
static void write_file(struct sim *sim, struct sim_shard *shard, const struct ampd_part_order *order)
{
    struct sim_file *file = &shard->store.files[order->step];
    file_free(file, sim->model.spec.world_size);
    *file = shard->draft;
    shard->draft = (struct sim_file){0};
    file->used = true;
    file->torn = false;
    file->state = *order->state;
    file->state.user_states = calloc(sim->model.spec.world_size, sizeof(*file->state.user_states));
    for (uint32_t r = 0; r < sim->model.spec.world_size; r++) {
        uint32_t size = order->state->user_states[r].size;
        file->state.user_states[r].size = size;
        file->state.user_states[r].data = malloc(size + (size_t)1);
        if (size > 0)
            memcpy(file->state.user_states[r].data, order->state->user_states[r].data, size);
    }
    uint64_t hash = shard->index;
    for (uint64_t i = 0; i < shard->elements; i++)
        hash = (hash ^ ((const uint32_t *)file->master)[i]) * 0x9e3779b97f4a7c15u + order->step;
    memcpy(file->manifest, &hash, sizeof(hash));
    sim_check_file(sim, shard, file);
}

/*
 * The file is written beside, synced, renamed and entered; a crash before the end leaves none, or half of one that nobody
 * reads: what the catalogue names was whole when it was entered.
 */
void sim_disk_tear(struct sim *sim, struct sim_shard *shard)
{
    for (struct amp_list *it = shard->tasks.next; it != &shard->tasks; it = it->next) {
        const struct sim_task *task = AMP_CONTAINER(it, struct sim_task, node);
        if (task->output.type != AMPD_OUT_CUT)
            continue;
        struct sim_file *file = &shard->store.files[task->output.u.cut.step];
        if (!file->used && sim_below(sim, 2) == 0)
            file->torn = true;
    }
}

static void do_cut(struct sim *sim, struct sim_shard *shard, const struct sim_task *task)
{
    const struct ampd_part_order *order = &task->output.u.cut;
    struct ampd_checkpoint_record record = {.size_bytes = 1};
    struct ampd_event event = {.type = AMPD_EVENT_PART_WRITTEN, .u.part = {order->token, 0, &record}};
    if (task->cancelled)
        event.u.part.code = AMP_ECANCELLED;
    else
        write_file(sim, shard, order);
    memcpy(record.manifest, shard->store.files[order->step].manifest, sizeof(record.manifest));
    sim_server_event(sim, shard, &event);
}

/* A file may be found damaged if an older one is there, and the workers still train: then they go on from that one. */
static bool may_damage(const struct sim *sim, uint64_t step)
{
    const struct sim_store *store = &sim->shard[0].store;
    return sim->shards == 1 && store->last_step < sim->model.spec.max_steps && store->checkpoints_count > 1 &&
           step != store->checkpoints[0].step && !store->files[store->checkpoints[0].step].gone && sim->away == 0;
}

static void do_restore(struct sim *sim, struct sim_shard *shard, const struct sim_task *task)
{
    const struct ampd_restore_order *order = &task->output.u.restore;
    const struct sim_file *file = &shard->store.files[task->checkpoint.step];
    struct ampd_event event = {.type = AMPD_EVENT_RESTORED, .u.restored = {order->token, 0, &file->state}};
    size_t bytes = shard->elements * sizeof(float);
    bool damaged = may_damage(sim, task->checkpoint.step) && sim_below(sim, 10) == 0;
    bool fails = sim_below(sim, 10) == 0;
    if (fails || shard->store.unreadable_until_ms > sim->now_ms) { /* what may pass costs no checkpoint */
        event.u.restored.code = fails && sim_below(sim, 2) == 0 ? AMP_ENOMEM : AMP_EIO;
        memset(order->tensors.masters, 0x55, bytes);
    } else if (damaged) {
        event.u.restored.code = AMP_EDATALOSS;
        sim->durable_told = 0; /* what a disk destroys is not the server's promise */
        sim->destroyed = true;
        memset(order->tensors.masters, 0x55, bytes);
    } else if (!file->used || file->gone || file->torn || file->away) {
        event.u.restored.code = file->torn ? AMP_EDATALOSS : AMP_ENOTFOUND;
        memset(order->tensors.masters, 0x55, bytes);
    } else {
        memcpy(order->tensors.masters, file->master, bytes);
        if (order->tensors.m != NULL)
            memcpy(order->tensors.m, file->m, bytes);
        if (order->tensors.v != NULL)
            memcpy(order->tensors.v, file->v, bytes);
    }
    sim_server_event(sim, shard, &event);
}

static struct sim_task *nth(struct amp_list *list, uint64_t n)
{
    struct amp_list *it = list->next;
    while (n-- > 0)
        it = it->next;
    return AMP_CONTAINER(it, struct sim_task, node);
}

static void do_journal(struct sim *sim, struct sim_shard *shard, const struct sim_task *task)
{
    sim_journal_write(shard, task);
    sim_snapshots_stored(sim, shard);
    struct ampd_event event = {.type = AMPD_EVENT_JOURNALLED, .u.persisted = {task->output.u.journal.token}};
    sim_server_event(sim, shard, &event);
}

/* Writes of the store go in order, so do those of the journal and the blocks of a file; files go in any order. */
static struct sim_task *first_of_kind(struct sim_shard *shard, struct sim_task *task)
{
    enum ampd_output_type type = task->output.type;
    if (type != AMPD_OUT_PERSIST && type != AMPD_OUT_PART_BLOCKS && type != AMPD_OUT_JOURNAL)
        return task;
    for (struct amp_list *it = shard->tasks.next;; it = it->next) {
        struct sim_task *earlier = AMP_CONTAINER(it, struct sim_task, node);
        if (earlier->output.type == task->output.type)
            return earlier;
    }
}

/* Jobs run, and are reported, in any order. */
bool sim_server_run_task(struct sim *sim, struct sim_shard *shard, uint64_t pick)
{
    uint64_t jobs = list_count(&shard->jobs);
    if (pick < jobs) {
        struct sim_task *task = nth(&shard->jobs, pick);
        if (!task->ran) {
            ampd_job_run(&task->output.u.job, &amp_kernels_ref);
            task->ran = true;
            return true;
        }
        amp_list_remove(&task->node);
        struct ampd_event event = {.type = AMPD_EVENT_JOB_DONE, .u.job = task->output.u.job};
        sim_task_free(task);
        sim_server_event(sim, shard, &event);
        return true;
    }
    struct sim_task *task = first_of_kind(shard, nth(&shard->tasks, pick - jobs));
    enum ampd_output_type type = task->output.type;
    bool writes =
        type == AMPD_OUT_PERSIST || type == AMPD_OUT_CUT || type == AMPD_OUT_PART_BLOCKS || type == AMPD_OUT_JOURNAL;
    if (type == AMPD_OUT_CUT && !task->cancelled && shard->draft_left != 0)
        return false;
    if (writes && type != AMPD_OUT_PERSIST && sim->slow_disk && sim_below(sim, 30) != 0)
        return false;
    bool part = type == AMPD_OUT_PERSIST && task->output.u.persist.kind == AMPD_PERSIST_CHECKPOINT;
    if (part && sim->rolls_back && sim_below(sim, 10) != 0)
        return false;
    if (writes && fails(sim, shard, task))
        return true;
    amp_list_remove(&task->node);
    if (task->output.type == AMPD_OUT_PERSIST)
        do_persist(sim, shard, task);
    else if (task->output.type == AMPD_OUT_CUT)
        do_cut(sim, shard, task);
    else if (type == AMPD_OUT_PART_BLOCKS)
        do_cut_blocks(sim, shard, task);
    else if (type == AMPD_OUT_JOURNAL)
        do_journal(sim, shard, task);
    else if (type == AMPD_OUT_REPLAY)
        sim_journal_read(sim, shard, task);
    else if (type == AMPD_OUT_RAISE_EPOCH)
        sim_raise_epoch(sim, shard, task);
    else
        do_restore(sim, shard, task);
    sim_task_free(task);
    return true;
}

void sim_disk_close(struct sim *sim, struct sim_shard *shard)
{
    sim_disk_synced(&shard->store);
    file_free(&shard->draft, sim->model.spec.world_size);
    sim_journal_forget(&shard->store);
    for (unsigned s = 0; s <= SIM_STEPS_MAX; s++)
        file_free(&shard->store.files[s], sim->model.spec.world_size);
}
