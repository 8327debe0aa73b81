/*
 * The journal of a shard: records of votes, whole or torn. A record is synced before it is answered, so a power loss takes
 * only those that are still on their way.
 */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

static void record_free(struct sim_record *record)
{
    free(record->notes);
    free(record->g);
    memset(record, 0, sizeof(*record));
}

static void *copy_of(const void *from, uint64_t size)
{
    void *to = malloc(size + 1);
    if (size > 0)
        memcpy(to, from, size);
    return to;
}

void sim_journal_keep(struct sim_task *task, const struct ampd_vote_journal_order *order)
{
    task->notes = copy_of(order->notes, order->notes_size);
}

void sim_journal_write(struct sim_shard *shard, const struct sim_task *task)
{
    const struct ampd_vote_journal_order *order = &task->output.u.journal;
    struct sim_record *record = &shard->store.journal[order->key.step];
    record_free(record);
    record->used = true;
    record->key = order->key;
    record->notes = copy_of(task->notes, order->notes_size);
    record->notes_size = order->notes_size;
    record->elements = order->elements;
    record->g = order->g == NULL ? NULL : copy_of(order->g, order->elements * sizeof(float));
}

void sim_journal_crash(struct sim *sim, struct sim_shard *shard)
{
    for (struct amp_list *it = shard->tasks.next; it != &shard->tasks; it = it->next) {
        const struct sim_task *task = AMP_CONTAINER(it, struct sim_task, node);
        if (task->output.type != AMPD_OUT_JOURNAL)
            continue;
        if (sim_below(sim, 2) == 0)
            return; /* they are written in order */
        sim_journal_write(shard, task);
    }
}

void sim_journal_prune(struct sim_shard *shard, uint64_t epoch, uint64_t step)
{
    for (unsigned s = 0; s <= SIM_STEPS_MAX; s++) {
        struct sim_record *record = &shard->store.journal[s];
        if (record->used && (record->key.epoch != epoch || record->key.step <= step))
            record_free(record);
    }
}

void sim_journal_read(struct sim *sim, struct sim_shard *shard, const struct sim_task *task)
{
    const struct ampd_replay_order *order = &task->output.u.replay;
    const struct sim_record *record = order->step <= SIM_STEPS_MAX ? &shard->store.journal[order->step] : NULL;
    struct ampd_event event = {.type = AMPD_EVENT_REPLAYED, .u.replayed = {.token = order->token}};
    bool fails = sim_below(sim, 20) == 0;
    if (fails || shard->store.unreadable_until_ms > sim->now_ms) { /* what may pass costs nothing */
        event.u.replayed.code = fails && sim_below(sim, 2) == 0 ? AMP_ENOMEM : AMP_EIO;
    } else if (record == NULL || !record->used || record->key.epoch != order->epoch) {
        event.u.replayed.code = AMP_ENOTFOUND;
    } else {
        event.u.replayed.key = record->key;
        event.u.replayed.notes = record->notes;
        event.u.replayed.notes_size = record->notes_size;
        event.u.replayed.has_g = record->g != NULL;
        if (record->g != NULL)
            memcpy(order->g, record->g, order->elements * sizeof(float));
    }
    sim_server_event(sim, shard, &event);
}

void sim_journal_forget(struct sim_store *store)
{
    for (unsigned s = 0; s <= SIM_STEPS_MAX; s++)
        record_free(&store->journal[s]);
}

void sim_journal_copy(struct sim_store *store)
{
    for (unsigned s = 0; s <= SIM_STEPS_MAX; s++) {
        struct sim_record *record = &store->journal[s];
        record->notes = record->used ? copy_of(record->notes, record->notes_size) : NULL;
        record->g = record->g != NULL ? copy_of(record->g, record->elements * sizeof(float)) : NULL;
    }
}
