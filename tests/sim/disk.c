/* What a shard's core has asked its host for: jobs, the store and the files, done one at a time, in any order. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

void sim_task_free(struct sim_task *task)
{
    free(task->row);
    ampd_message_free(task->message);
    free(task);
}

void sim_disk_forget(struct amp_list *list)
{
    for (struct amp_list *it; (it = amp_list_shift(list)) != NULL;)
        sim_task_free(AMP_CONTAINER(it, struct sim_task, node));
}

void sim_disk_keep(struct sim_shard *shard, const struct ampd_output *output)
{
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
    if (output->type == AMPD_OUT_RESTORE)
        task->checkpoint = *output->u.restore.checkpoint;
    amp_list_push(output->type == AMPD_OUT_JOB ? &shard->jobs : &shard->tasks, &task->node);
}

void sim_disk_cancel(struct sim_shard *shard, uint64_t token)
{
    for (struct amp_list *it = shard->tasks.next; it != &shard->tasks; it = it->next) {
        struct sim_task *task = AMP_CONTAINER(it, struct sim_task, node);
        if (task->output.type == AMPD_OUT_CUT && task->output.u.cut.token == token)
            task->cancelled = true;
    }
}

void sim_disk_drop(struct sim_store *store, const struct ampd_checkpoint_record *record)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < store->checkpoints_count; i++) {
        if (store->checkpoints[i].step != record->step)
            store->checkpoints[kept++] = store->checkpoints[i];
    }
    store->checkpoints_count = kept;
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

static void store_checkpoint(struct sim_store *store, const struct ampd_checkpoint_record *record)
{
    sim_disk_drop(store, record);
    store->checkpoints[store->checkpoints_count++] = *record;
}

static void store_epoch(struct sim *sim, struct sim_shard *shard, const struct ampd_epoch_record *epoch)
{
    struct sim_store *store = &shard->store;
    if (epoch->epoch <= store->epoch)
        sim_fail(sim, "epoch %llu is stored after %llu", (unsigned long long)epoch->epoch,
                 (unsigned long long)store->epoch);
    store->epoch = epoch->epoch;
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

static void do_persist(struct sim *sim, struct sim_shard *shard, struct sim_task *task)
{
    struct sim_store *store = &shard->store;
    switch (task->output.u.persist.kind) {
    case AMPD_PERSIST_MODEL:
        store->has_model = true;
        store_epoch(sim, shard, &task->epoch);
        break;
    case AMPD_PERSIST_EPOCH:
        store_epoch(sim, shard, &task->epoch);
        break;
    case AMPD_PERSIST_WORKER:
        store->workers[task->worker.rank] = task->worker;
        store->has_worker[task->worker.rank] = true;
        break;
    case AMPD_PERSIST_VERDICT:
        sim_check_row(sim, shard, task->row);
        store->rows[task->row->step] = *task->row;
        store->last_step = task->row->step;
        break;
    case AMPD_PERSIST_CHECKPOINT:
        store_checkpoint(store, &task->checkpoint);
        break;
    case AMPD_PERSIST_FENCE:
        store->fences[task->output.u.persist.shard] = task->output.u.persist.fence;
        break;
    }
    struct ampd_event event = {.type = AMPD_EVENT_PERSISTED, .u.persisted = {task->output.u.persist.token}};
    sim_server_event(sim, shard, &event);
}

static float *copy_floats(const float *from, uint64_t count)
{
    if (from == NULL)
        return NULL;
    float *to = malloc(count * sizeof(*to));
    memcpy(to, from, count * sizeof(*to));
    return to;
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

static void write_file(struct sim *sim, struct sim_shard *shard, const struct ampd_cut_order *order)
{
    struct sim_file *file = &shard->store.files[order->step];
    file_free(file, sim->model.spec.world_size);
    file->used = true;
    file->step = order->step;
    file->master = copy_floats(order->tensors.masters, shard->elements);
    file->m = copy_floats(order->tensors.m, shard->elements);
    file->v = copy_floats(order->tensors.v, shard->elements);
    file->state = *order->state;
    file->state.user_states = calloc(sim->model.spec.world_size, sizeof(*file->state.user_states));
    for (uint32_t r = 0; r < sim->model.spec.world_size; r++) {
        uint32_t size = order->state->user_states[r].size;
        file->state.user_states[r].size = size;
        file->state.user_states[r].data = malloc(size + (size_t)1);
        if (size > 0)
            memcpy(file->state.user_states[r].data, order->state->user_states[r].data, size);
    }
    sim_check_file(sim, shard, file);
}

static void do_cut(struct sim *sim, struct sim_shard *shard, const struct sim_task *task)
{
    const struct ampd_cut_order *order = &task->output.u.cut;
    struct ampd_checkpoint_record record = {.size_bytes = 1};
    struct ampd_event event = {.type = AMPD_EVENT_PART_WRITTEN, .u.part = {order->token, 0, &record}};
    if (task->cancelled)
        event.u.part.code = AMP_ECANCELLED;
    else
        write_file(sim, shard, order);
    sim_server_event(sim, shard, &event);
}

/* A file may be found damaged if an older one is there, and the workers still train: then they go on from that one. */
static bool may_damage(const struct sim *sim, uint64_t step)
{
    const struct sim_store *store = &sim->shard[0].store;
    return sim->shards == 1 && store->last_step < sim->model.spec.max_steps && store->checkpoints_count > 1 &&
           step != store->checkpoints[0].step;
}

static void do_restore(struct sim *sim, struct sim_shard *shard, const struct sim_task *task)
{
    const struct ampd_restore_order *order = &task->output.u.restore;
    const struct sim_file *file = &shard->store.files[task->checkpoint.step];
    struct ampd_event event = {.type = AMPD_EVENT_RESTORED, .u.restored = {order->token, 0, &file->state}};
    size_t bytes = shard->elements * sizeof(float);
    bool damaged = may_damage(sim, task->checkpoint.step) && sim_below(sim, 10) == 0;
    if (sim_below(sim, 10) == 0) { /* what may pass costs no checkpoint */
        event.u.restored.code = sim_below(sim, 2) == 0 ? AMP_ENOMEM : AMP_EIO;
        memset(order->tensors.masters, 0x55, bytes);
    } else if (damaged) {
        event.u.restored.code = AMP_EDATALOSS;
        sim->durable_told = 0; /* what a disk destroys is not the server's promise */
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

/* Writes of the store go in order; files go in any order. */
static struct sim_task *first_of_kind(struct sim_shard *shard, struct sim_task *task)
{
    if (task->output.type != AMPD_OUT_PERSIST)
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
    if (task->output.type == AMPD_OUT_CUT && sim->slow_disk && sim_below(sim, 60) != 0)
        return false;
    amp_list_remove(&task->node);
    if (task->output.type == AMPD_OUT_PERSIST)
        do_persist(sim, shard, task);
    else if (task->output.type == AMPD_OUT_CUT)
        do_cut(sim, shard, task);
    else
        do_restore(sim, shard, task);
    sim_task_free(task);
    return true;
}

void sim_disk_close(struct sim *sim, struct sim_shard *shard)
{
    for (unsigned s = 0; s <= SIM_STEPS_MAX; s++)
        file_free(&shard->store.files[s], sim->model.spec.world_size);
}
