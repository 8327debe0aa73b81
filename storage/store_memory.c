/*
 * The store in memory: lists and arrays behind one lock, for the simulator and tests. It is also the simplest statement
 * of what the SQLite store must do: one test suite runs on both. It is never trimmed by itself, so that it grows for as
 * long as a test lasts.
 */
#include "storage/store_impl.h"

#include "base/list.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct history_row {
    struct amp_list node; /* in model->history, ordered by key */
    struct ampd_history_key key;
    struct ampd_step_row row;
    struct ampd_epoch_record epoch; /* of a row of kind EPOCH */
};

struct memory_checkpoint {
    struct ampd_checkpoint_record record;
    bool voided;
};

struct memory_model {
    struct amp_list node; /* in shared->models, ordered by name */
    struct ampd_model_spec spec;
    int64_t created_us;
    struct ampd_epoch_record epoch; /* the newest; all zero before the first */
    struct amp_list history;
    struct ampd_worker_record workers[AMPD_WORLD_MAX]; /* ascending rank */
    uint32_t workers_count;
    struct memory_checkpoint *checkpoints; /* in order of arrival */
    size_t checkpoints_count, checkpoints_capacity;
    bool deleting;
};

/* The content of a store, which all its handles share; freed with the last handle. */
struct memory_shared {
    pthread_mutex_t lock;
    unsigned handles;          /* number of open handles */
    struct ampd_fence *fences; /* [fences_count], indexed by shard; counter 0: none is stored */
    uint32_t fences_count;
    struct amp_list models;
};

struct memory_store {
    struct ampd_store base;
    struct memory_shared *shared;
};

static struct memory_shared *lock_shared(struct ampd_store *store)
{
    struct memory_shared *shared = AMP_CONTAINER(store, struct memory_store, base)->shared;
    (void)pthread_mutex_lock(&shared->lock); /* a plain mutex of our own: it cannot fail */
    return shared;
}

static int unlock_with(struct memory_shared *shared, int result)
{
    (void)pthread_mutex_unlock(&shared->lock);
    return result;
}

static struct memory_model *find_model(struct memory_shared *shared, const char *name)
{
    AMP_LIST_EACH(it, safe, &shared->models)
    {
        struct memory_model *model = AMP_CONTAINER(it, struct memory_model, node);
        if (strcmp(model->spec.name, name) == 0)
            return model;
    }
    return NULL;
}

static int no_memory(struct amp_error *error)
{
    return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory in the store");
}

static int key_compare(const struct ampd_history_key *a, const struct ampd_history_key *b)
{
    if (a->epoch != b->epoch)
        return a->epoch < b->epoch ? -1 : 1;
    if (a->step != b->step)
        return a->step < b->step ? -1 : 1;
    return a->sequence == b->sequence ? 0 : a->sequence < b->sequence ? -1 : 1;
}

/* ---- writing ---- */

/* The stored fence of a shard; one with counter 0 is added if there is none. NULL: out of memory. */
static struct ampd_fence *fence_of(struct memory_shared *shared, uint32_t shard)
{
    if (shard >= shared->fences_count) {
        struct ampd_fence *more = realloc(shared->fences, (shard + 1u) * sizeof *more);
        if (more == NULL)
            return NULL;
        memset(more + shared->fences_count, 0, (shard + 1u - shared->fences_count) * sizeof *more);
        shared->fences = more;
        shared->fences_count = shard + 1;
    }
    return &shared->fences[shard];
}

static int memory_boot(struct ampd_store *store, uint32_t shard, const uint8_t *boot_id, struct ampd_fence *fence,
                       struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    struct ampd_fence *mine = fence_of(shared, shard);
    if (mine == NULL)
        return unlock_with(shared, no_memory(error));
    mine->counter++;
    memcpy(mine->boot_id, boot_id, sizeof mine->boot_id);
    *fence = *mine;
    return unlock_with(shared, 0);
}

static int memory_put_fence(struct ampd_store *store, uint32_t shard, const struct ampd_fence *fence,
                            struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    struct ampd_fence *seen = fence_of(shared, shard);
    if (seen == NULL)
        return unlock_with(shared, no_memory(error));
    *seen = *fence;
    return unlock_with(shared, 0);
}

static int memory_get_fence(struct ampd_store *store, uint32_t shard, struct ampd_fence *fence, struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    const struct ampd_fence *seen = fence_of(shared, shard);
    if (seen == NULL)
        return unlock_with(shared, no_memory(error));
    *fence = *seen;
    return unlock_with(shared, 0);
}

static int memory_put_model(struct ampd_store *store, const struct ampd_model_spec *spec, int64_t at_us,
                            struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    if (find_model(shared, spec->name) != NULL)
        return unlock_with(shared, ampd_store_model_exists(error, spec->name));
    struct memory_model *model = calloc(1, sizeof *model);
    if (model == NULL || ampd_model_spec_copy(&model->spec, spec) != 0) {
        free(model);
        return unlock_with(shared, no_memory(error));
    }
    model->created_us = at_us;
    amp_list_init(&model->history);
    struct amp_list *before = shared->models.next;
    while (before != &shared->models &&
           strcmp(AMP_CONTAINER(before, struct memory_model, node)->spec.name, spec->name) < 0)
        before = before->next;
    amp_list_push(before, &model->node);
    return unlock_with(shared, 0);
}

static struct history_row *find_row(const struct memory_model *model, const struct ampd_history_key *key)
{
    for (struct amp_list *it = model->history.prev; it != &model->history; it = it->prev) {
        struct history_row *row = AMP_CONTAINER(it, struct history_row, node);
        int order = key_compare(&row->key, key);
        if (order == 0)
            return row;
        if (order < 0)
            return NULL;
    }
    return NULL;
}

/* Adds a copy of a row to the history, in the order of keys. 0 or AMP_ENOMEM. */
static int add_row(struct memory_model *model, const struct ampd_history_key *key, const struct ampd_step_row *row,
                   const struct ampd_epoch_record *epoch)
{
    struct history_row *added = calloc(1, sizeof *added);
    if (added == NULL)
        return AMP_ENOMEM;
    added->key = *key;
    added->row = *row;
    if (epoch != NULL)
        added->epoch = *epoch;
    struct amp_list *before = &model->history;
    while (before->prev != &model->history &&
           key_compare(&AMP_CONTAINER(before->prev, struct history_row, node)->key, key) > 0)
        before = before->prev;
    amp_list_push(before, &added->node);
    return 0;
}

static int memory_put_epoch(struct ampd_store *store, const char *name, const struct ampd_epoch_record *epoch,
                            const struct ampd_step_row *first, struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    struct memory_model *model = find_model(shared, name);
    if (model == NULL)
        return unlock_with(shared, ampd_store_no_model(error, name));
    if (epoch->epoch <= model->epoch.epoch)
        return unlock_with(shared, ampd_store_old_epoch(error, epoch->epoch, model->epoch.epoch));
    struct ampd_history_key key = {epoch->epoch, epoch->base_step, 0};
    if (add_row(model, &key, first, epoch) != 0)
        return unlock_with(shared, no_memory(error));
    model->epoch = *epoch;
    uint64_t kept = epoch->base_epoch == 0 ? 0 : epoch->base_step;
    AMP_LIST_EACH(it, safe, &model->history)
    {
        struct history_row *row = AMP_CONTAINER(it, struct history_row, node);
        bool above = row->key.step > kept || (row->key.step == kept && row->key.sequence > 0);
        if (row->key.epoch < epoch->epoch && above)
            row->row.superseded = true;
    }
    for (size_t i = 0; i < model->checkpoints_count; i++)
        if (epoch->base_epoch == 0 || model->checkpoints[i].record.step > epoch->base_step)
            model->checkpoints[i].voided = true;
    return unlock_with(shared, 0);
}

static void remove_worker(struct memory_model *model, uint32_t index)
{
    model->workers_count--;
    memmove(model->workers + index, model->workers + index + 1,
            (model->workers_count - index) * sizeof *model->workers);
}

static int memory_put_worker(struct ampd_store *store, const char *name, const struct ampd_worker_record *worker,
                             struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    struct memory_model *model = find_model(shared, name);
    if (model == NULL)
        return unlock_with(shared, ampd_store_no_model(error, name));
    for (uint32_t i = model->workers_count; i-- > 0;)
        if (model->workers[i].rank == worker->rank || strcmp(model->workers[i].name, worker->name) == 0)
            remove_worker(model, i);
    if (model->workers_count == AMPD_WORLD_MAX)
        return unlock_with(shared, amp_error_set(error, AMP_EINVAL, NULL, "more ranks than AMPD_WORLD_MAX"));
    uint32_t at = 0;
    while (at < model->workers_count && model->workers[at].rank < worker->rank)
        at++;
    memmove(model->workers + at + 1, model->workers + at, (model->workers_count - at) * sizeof *model->workers);
    model->workers[at] = *worker;
    model->workers_count++;
    return unlock_with(shared, 0);
}

/*
 * Finds the key for a row of ampd_store_put_verdict, or the error by which it is refused. AMP_EEXIST for a row that is
 * not of kind STEP: the same action is stored already.
 */
static int verdict_key(const struct memory_model *model, const struct ampd_step_row *row, struct ampd_history_key *key,
                       struct amp_error *error)
{
    *key = (struct ampd_history_key){row->epoch, row->step, 0};
    if (row->epoch != model->epoch.epoch)
        return ampd_store_old_epoch(error, row->epoch, model->epoch.epoch);
    if (row->kind != AMPD_ROW_STEP) {
        const struct history_row *had;
        for (key->sequence = 1; (had = find_row(model, key)) != NULL; key->sequence++)
            if (had->row.after.scaler.scale_id == row->after.scaler.scale_id &&
                strcmp(had->row.note.request_id, row->note.request_id) == 0)
                return AMP_EEXIST;
        return 0;
    }
    struct ampd_history_key before = {row->epoch, row->step - 1, 0};
    if (find_row(model, key) != NULL)
        return ampd_store_step_exists(error, row->epoch, row->step);
    if (find_row(model, &before) == NULL)
        return ampd_store_step_gap(error, row->epoch, row->step);
    return 0;
}

static int put_one_verdict(struct memory_shared *shared, const struct ampd_verdict_put *put, struct amp_error *error)
{
    struct memory_model *model = find_model(shared, put->model);
    if (model == NULL)
        return ampd_store_no_model(error, put->model);
    struct ampd_history_key key;
    int rc = verdict_key(model, put->row, &key, error);
    if (rc == AMP_EEXIST && put->row->kind != AMPD_ROW_STEP)
        return 0;
    if (rc == 0 && add_row(model, &key, put->row, NULL) != 0)
        rc = no_memory(error);
    return rc;
}

static int memory_put_verdicts(struct ampd_store *store, const struct ampd_verdict_put *puts, uint32_t count, bool full,
                               uint32_t *stored, struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    int rc = 0;
    (void)full; /* nothing outlives the process */
    while (rc == 0 && *stored < count) {
        rc = put_one_verdict(shared, &puts[*stored], error);
        *stored += rc == 0 ? 1 : 0;
    }
    return unlock_with(shared, rc);
}

static struct memory_checkpoint *find_checkpoint(struct memory_model *model, uint64_t epoch, uint64_t step)
{
    for (size_t i = 0; i < model->checkpoints_count; i++)
        if (model->checkpoints[i].record.epoch == epoch && model->checkpoints[i].record.step == step)
            return &model->checkpoints[i];
    return NULL;
}

static int memory_put_checkpoint(struct ampd_store *store, const char *name,
                                 const struct ampd_checkpoint_record *checkpoint, bool adopted, struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    struct memory_model *model = find_model(shared, name);
    if (model == NULL)
        return unlock_with(shared, ampd_store_no_model(error, name));
    if (adopted ? checkpoint->epoch > model->epoch.epoch : checkpoint->epoch != model->epoch.epoch)
        return unlock_with(shared, ampd_store_old_epoch(error, checkpoint->epoch, model->epoch.epoch));
    struct memory_checkpoint *at = find_checkpoint(model, checkpoint->epoch, checkpoint->step);
    if (at == NULL) {
        if (model->checkpoints_count == model->checkpoints_capacity) {
            size_t capacity = model->checkpoints_capacity * 2 + 4;
            struct memory_checkpoint *more = realloc(model->checkpoints, capacity * sizeof *more);
            if (more == NULL)
                return unlock_with(shared, no_memory(error));
            model->checkpoints = more;
            model->checkpoints_capacity = capacity;
        }
        at = &model->checkpoints[model->checkpoints_count++];
    }
    *at = (struct memory_checkpoint){.record = *checkpoint};
    return unlock_with(shared, 0);
}

static int memory_put_parts(struct ampd_store *store, const char *name, const struct ampd_checkpoint_record *checkpoint,
                            struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    struct memory_model *model = find_model(shared, name);
    if (model == NULL)
        return unlock_with(shared, ampd_store_no_model(error, name));
    struct memory_checkpoint *at = find_checkpoint(model, checkpoint->epoch, checkpoint->step);
    if (at == NULL || at->voided)
        return unlock_with(shared, ampd_store_no_checkpoint(error, checkpoint->epoch, checkpoint->step));
    at->record.parts_count = checkpoint->parts_count;
    memcpy(at->record.parts, checkpoint->parts, sizeof at->record.parts);
    return unlock_with(shared, 0);
}

static int memory_drop_checkpoint(struct ampd_store *store, const char *name, uint64_t epoch, uint64_t step,
                                  struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    struct memory_model *model = find_model(shared, name);
    if (model == NULL)
        return unlock_with(shared, ampd_store_no_model(error, name));
    struct memory_checkpoint *at = find_checkpoint(model, epoch, step);
    if (at == NULL)
        return unlock_with(shared, ampd_store_no_checkpoint(error, epoch, step));
    *at = model->checkpoints[--model->checkpoints_count];
    return unlock_with(shared, 0);
}

/* ---- reading ---- */

static int compare_checkpoints(const void *a, const void *b)
{
    const struct ampd_checkpoint_record *left = a, *right = b;
    struct ampd_history_key x = {left->epoch, left->step, 0}, y = {right->epoch, right->step, 0};
    return key_compare(&x, &y);
}

static int copy_checkpoints(const struct memory_model *model, struct ampd_model_record *record)
{
    if (model->checkpoints_count == 0)
        return 0;
    record->checkpoints = calloc(model->checkpoints_count, sizeof *record->checkpoints);
    if (record->checkpoints == NULL)
        return AMP_ENOMEM;
    for (size_t i = 0; i < model->checkpoints_count; i++)
        if (!model->checkpoints[i].voided)
            record->checkpoints[record->checkpoints_count++] = model->checkpoints[i].record;
    qsort(record->checkpoints, record->checkpoints_count, sizeof *record->checkpoints, compare_checkpoints);
    return 0;
}

/* Sets the owner from the note of the first epoch's row. */
static void copy_owner(const struct memory_model *model, struct ampd_model_record *record)
{
    AMP_LIST_EACH(it, safe, &model->history)
    {
        const struct ampd_step_row *row = &AMP_CONTAINER(it, struct history_row, node)->row;
        if (row->kind == AMPD_ROW_EPOCH && row->parent_epoch == 0) {
            memcpy(record->owner, row->note.actor, sizeof record->owner);
            return;
        }
    }
}

/* Copies the newest operator actions with a request id, oldest first. */
static void copy_acts(const struct memory_model *model, struct ampd_model_record *record)
{
    for (struct amp_list *it = model->history.prev; it != &model->history; it = it->prev) {
        const struct history_row *row = AMP_CONTAINER(it, struct history_row, node);
        if (row->row.note.request_id[0] == 0 || record->acts_count == AMPD_ACTIONS_MAX)
            continue;
        memmove(record->acts + 1, record->acts, record->acts_count * sizeof *record->acts);
        record->acts[0] = (struct ampd_act_record){.kind = row->row.kind,
                                                   .epoch = row->row.epoch,
                                                   .step = row->row.step,
                                                   .from_step = row->row.from_step,
                                                   .base_epoch = row->epoch.base_epoch,
                                                   .rank = row->row.contributors[0].rank,
                                                   .after = row->row.after,
                                                   .superseded = row->row.superseded};
        memcpy(record->acts[0].request_id, row->row.note.request_id, sizeof record->acts[0].request_id);
        record->acts_count++;
    }
}

static int copy_record(const struct memory_model *model, struct ampd_model_record *record)
{
    if (ampd_model_spec_copy(&record->spec, &model->spec) != 0 || copy_checkpoints(model, record) != 0)
        return AMP_ENOMEM;
    record->created_us = model->created_us;
    record->deleting = model->deleting;
    copy_owner(model, record);
    copy_acts(model, record);
    record->epoch = model->epoch.epoch;
    record->base_epoch = model->epoch.base_epoch;
    record->base_step = model->epoch.base_step;
    if (model->workers_count > 0) {
        record->workers = calloc(model->workers_count, sizeof *record->workers);
        if (record->workers == NULL)
            return AMP_ENOMEM;
        memcpy(record->workers, model->workers, model->workers_count * sizeof *record->workers);
        record->workers_count = model->workers_count;
    }
    if (amp_list_empty(&model->history))
        return 0;
    record->last = malloc(sizeof *record->last);
    if (record->last == NULL)
        return AMP_ENOMEM;
    *record->last = AMP_CONTAINER(model->history.prev, struct history_row, node)->row;
    return 0;
}

static int memory_load(struct ampd_store *store, struct ampd_model_record **records, size_t *count,
                       struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    size_t models = 0;
    AMP_LIST_EACH(it, safe, &shared->models)
    models++;
    struct ampd_model_record *loaded = calloc(models + 1, sizeof *loaded);
    int rc = loaded == NULL ? AMP_ENOMEM : 0;
    size_t at = 0;
    for (struct amp_list *it = shared->models.next; rc == 0 && it != &shared->models; it = it->next)
        rc = copy_record(AMP_CONTAINER(it, struct memory_model, node), &loaded[at++]);
    if (rc != 0) {
        if (loaded != NULL)
            ampd_model_records_free(loaded, at);
        return unlock_with(shared, no_memory(error));
    }
    *records = loaded;
    *count = models;
    return unlock_with(shared, 0);
}

static int memory_count_models(struct ampd_store *store, size_t *count, struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    *count = 0;
    AMP_LIST_EACH(it, safe, &shared->models)
    (*count)++;
    return unlock_with(shared, 0);
}

static bool step_passes(const struct history_row *row, const struct ampd_history_filter *filter)
{
    if (row->row.superseded && !filter->superseded_too)
        return false;
    bool before = filter->acts_before && row->row.kind != AMPD_ROW_STEP;
    return row->key.step + before >= filter->step_min && row->key.step <= filter->step_max;
}

static bool row_passes(const struct history_row *row, const struct ampd_history_filter *filter)
{
    if (!step_passes(row, filter) || (filter->only_changes && row->row.scale == row->row.after.scaler.scale))
        return false;
    unsigned verdict = row->row.kind == AMPD_ROW_STEP ? row->row.verdict : 0;
    return filter->verdicts == 0 || (filter->verdicts >> verdict & 1) != 0;
}

static int memory_page_history(struct ampd_store *store, const char *name, const struct ampd_history_filter *filter,
                               const struct ampd_history_key *lo, const struct ampd_history_key *hi, uint32_t limit,
                               void *arg, struct amp_error *error, ampd_history_cb *row_cb)
{
    struct memory_shared *shared = lock_shared(store);
    struct memory_model *model = find_model(shared, name);
    if (model == NULL)
        return unlock_with(shared, ampd_store_no_model(error, name));
    struct amp_list *head = &model->history;
    int rc = 0;
    struct amp_list *it = filter->descending ? head->prev : head->next;
    for (; rc == 0 && limit > 0 && it != head; it = filter->descending ? it->prev : it->next) {
        struct history_row *row = AMP_CONTAINER(it, struct history_row, node);
        if (key_compare(&row->key, lo) < 0 || key_compare(&row->key, hi) > 0 || !row_passes(row, filter))
            continue;
        limit--;
        rc = row_cb(arg, &row->key, &row->row, row->row.kind == AMPD_ROW_EPOCH ? &row->epoch : NULL);
    }
    return unlock_with(shared, rc);
}

static int memory_page_points(struct ampd_store *store, const char *name, const struct ampd_history_key *from,
                              uint64_t step_min, uint64_t step_max, uint32_t limit, void *arg, struct amp_error *error,
                              ampd_points_cb *point_cb)
{
    struct memory_shared *shared = lock_shared(store);
    struct memory_model *model = find_model(shared, name);
    if (model == NULL)
        return unlock_with(shared, ampd_store_no_model(error, name));
    const struct ampd_history_filter filter = {.step_min = step_min, .step_max = step_max};
    int rc = 0;
    struct amp_list *it = model->history.next;
    for (; rc == 0 && limit > 0 && it != &model->history; it = it->next) {
        const struct history_row *found = AMP_CONTAINER(it, struct history_row, node);
        const struct ampd_step_row *row = &found->row;
        if (key_compare(&found->key, from) < 0 || !step_passes(found, &filter))
            continue;
        limit--;
        struct ampd_history_point point = {.key = found->key,
                                           .kind = row->kind,
                                           .verdict = row->verdict,
                                           .scale = row->scale,
                                           .after_scale = row->after.scaler.scale,
                                           .clip = row->clip,
                                           .norm = row->norm,
                                           .lr = row->lr,
                                           .has_loss = row->metrics.loss_workers > 0,
                                           .loss = row->metrics.loss,
                                           .at_us = row->at_us};
        memcpy(point.times_us, row->times_us, sizeof point.times_us);
        rc = point_cb(arg, &point);
    }
    return unlock_with(shared, rc);
}

/* A page of overflow rows that is being handed out. */
struct overflow_page {
    const struct ampd_overflow_filter *which;
    const struct ampd_history_key *lo, *hi;
    bool descending;
    uint32_t limit; /* rows still wanted */
    void *arg;
    ampd_overflows_cb *row_cb;
};

static bool overflow_passes(const struct ampd_overflow_row *row, const struct ampd_overflow_filter *which)
{
    return row->parameter >= which->parameter_min && row->parameter <= which->parameter_max &&
           row->rank >= which->rank_min && row->rank <= which->rank_max;
}

static struct ampd_incarnation incarnation_of(const struct ampd_step_row *row, uint32_t rank)
{
    const struct ampd_contributor *whose = ampd_contributor_of(row->contributors, row->contributors_count, rank);
    return whose != NULL ? whose->incarnation : (struct ampd_incarnation){0, 0};
}

/* Hands out the overflow rows of one step. */
static int page_rows_of(const struct history_row *row, struct overflow_page *page)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && page->limit > 0 && i < row->row.rows_count; i++) {
        uint32_t index = page->descending ? row->row.rows_count - 1 - i : i;
        struct ampd_history_key key = {row->key.epoch, row->key.step, index};
        struct ampd_overflow_found found = {row->row.rows[index], incarnation_of(&row->row, row->row.rows[index].rank),
                                            row->row.at_us, row->row.superseded};
        if (key_compare(&key, page->lo) < 0 || key_compare(&key, page->hi) > 0 ||
            !overflow_passes(&found.row, page->which))
            continue;
        page->limit--;
        rc = page->row_cb(page->arg, &key, &found);
    }
    return rc;
}

static int memory_page_overflows(struct ampd_store *store, const char *name, const struct ampd_history_filter *filter,
                                 const struct ampd_overflow_filter *which, const struct ampd_history_key *lo,
                                 const struct ampd_history_key *hi, uint32_t limit, void *arg, struct amp_error *error,
                                 ampd_overflows_cb *row_cb)
{
    struct memory_shared *shared = lock_shared(store);
    struct memory_model *model = find_model(shared, name);
    if (model == NULL)
        return unlock_with(shared, ampd_store_no_model(error, name));
    struct overflow_page page = {which, lo, hi, filter->descending, limit, arg, row_cb};
    struct amp_list *head = &model->history;
    int rc = 0;
    struct amp_list *it = filter->descending ? head->prev : head->next;
    for (; rc == 0 && page.limit > 0 && it != head; it = filter->descending ? it->prev : it->next) {
        struct history_row *row = AMP_CONTAINER(it, struct history_row, node);
        if (row->key.sequence == 0 && step_passes(row, filter))
            rc = page_rows_of(row, &page);
    }
    return unlock_with(shared, rc);
}

static int memory_move_log(struct ampd_store *store, struct amp_error *error)
{
    return 0;
}

/* ---- life ---- */

static int memory_open_reader(struct ampd_store *store, struct ampd_store **reader, struct amp_error *error)
{
    struct memory_store *handle = malloc(sizeof *handle);
    if (handle == NULL)
        return no_memory(error);
    struct memory_shared *shared = lock_shared(store);
    shared->handles++;
    *handle = (struct memory_store){.base = *store, .shared = shared};
    *reader = &handle->base;
    return unlock_with(shared, 0);
}

static void free_model(struct memory_model *model)
{
    AMP_LIST_EACH(it, safe, &model->history)
    free(AMP_CONTAINER(it, struct history_row, node));
    ampd_model_spec_clear(&model->spec);
    free(model->checkpoints);
    free(model);
}

static int memory_mark_deleting(struct ampd_store *store, const char *name, struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    struct memory_model *model = find_model(shared, name);
    if (model == NULL)
        return unlock_with(shared, ampd_store_no_model(error, name));
    model->deleting = true;
    return unlock_with(shared, 0);
}

static int memory_delete_model(struct ampd_store *store, const char *name, struct amp_error *error)
{
    struct memory_shared *shared = lock_shared(store);
    struct memory_model *model = find_model(shared, name);
    if (model == NULL)
        return unlock_with(shared, ampd_store_no_model(error, name));
    amp_list_remove(&model->node);
    free_model(model);
    return unlock_with(shared, 0);
}

static int memory_each_deleted(struct ampd_store *store, void *arg, struct amp_error *error,
                               int (*name_cb)(void *arg, const char *name))
{
    return 0; /* nothing is left of a deleted model */
}

static int memory_purge(struct ampd_store *store, uint32_t limit, bool *more, struct amp_error *error)
{
    (void)store;
    (void)limit;
    (void)error;
    *more = false; /* nothing is left of a deleted model */
    return 0;
}

/* The lowest (epoch, step) from which on all rows are kept whatever the limit is; see store_trim.h. */
static struct ampd_history_key kept_from(const struct memory_model *model, bool replays)
{
    struct ampd_history_key last = AMP_CONTAINER(model->history.prev, struct history_row, node)->key;
    struct ampd_history_key newest = {0};
    for (size_t i = 0; replays && i < model->checkpoints_count; i++) {
        const struct ampd_checkpoint_record *record = &model->checkpoints[i].record;
        struct ampd_history_key key = {record->epoch, record->step, 0};
        if (!model->checkpoints[i].voided && key_compare(&key, &newest) > 0)
            newest = key;
    }
    uint64_t replayed = newest.step > 0 ? newest.step - 1 : 0;
    return (struct ampd_history_key){last.epoch, replays && replayed < last.step ? replayed : last.step, 0};
}

/* The key of the first of the newest `rows` steps that are not superseded; all zero: there are not that many. */
static struct ampd_history_key newest_from(const struct memory_model *model, uint64_t rows)
{
    const struct amp_list *head = &model->history;
    uint64_t last = AMP_CONTAINER(head->prev, struct history_row, node)->key.step;
    if (rows == 0 || last <= rows)
        return (struct ampd_history_key){0};
    for (struct amp_list *it = head->prev; it != head; it = it->prev) {
        const struct history_row *row = AMP_CONTAINER(it, struct history_row, node);
        if (row->row.kind == AMPD_ROW_EPOCH && (row->epoch.base_step <= last - rows || row->epoch.base_epoch == 0))
            return (struct ampd_history_key){row->key.epoch, last - rows + 1, 0};
    }
    return (struct ampd_history_key){0};
}

/* The key from which on rows with a request id are kept: that of the AMPD_ACTIONS_MAX-th newest; all zero: all are. */
static struct ampd_history_key acts_from(const struct memory_model *model)
{
    uint32_t count = 0;
    for (struct amp_list *it = model->history.prev; it != &model->history; it = it->prev) {
        const struct history_row *row = AMP_CONTAINER(it, struct history_row, node);
        count += row->row.note.request_id[0] != 0;
        if (count == AMPD_ACTIONS_MAX)
            return row->key;
    }
    return (struct ampd_history_key){0};
}

static void trim_model(struct memory_model *model, const struct ampd_history_limit *limit, uint32_t portion,
                       struct ampd_trimmed *trimmed)
{
    const struct ampd_history_key kept = kept_from(model, limit->replays), acts = acts_from(model);
    const struct ampd_history_key newest = newest_from(model, limit->rows);
    uint32_t used = 0;
    AMP_LIST_EACH(it, safe, &model->history)
    {
        struct history_row *row = AMP_CONTAINER(it, struct history_row, node);
        bool is_act = row->row.note.request_id[0] != 0 && key_compare(&row->key, &acts) >= 0;
        if (row->row.kind == AMPD_ROW_EPOCH || is_act)
            continue;
        bool goes = key_compare(&row->key, &newest) < 0 || ampd_store_is_beyond(limit, row->row.at_us);
        trimmed->more = used >= portion;
        if (trimmed->more || !goes || key_compare(&row->key, &kept) >= 0)
            return;
        used += 1 + row->row.rows_count;
        trimmed->rows++;
        amp_list_remove(&row->node);
        free(row);
    }
}

static int memory_trim(struct ampd_store *store, const char *name, const struct ampd_history_limit *limit,
                       uint32_t portion, struct ampd_trimmed *trimmed, struct amp_error *error)
{
    *trimmed = (struct ampd_trimmed){0};
    struct memory_shared *shared = lock_shared(store);
    struct memory_model *model = find_model(shared, name);
    if (model == NULL)
        return unlock_with(shared, ampd_store_no_model(error, name));
    if (!amp_list_empty(&model->history))
        trim_model(model, limit, portion, trimmed);
    return unlock_with(shared, 0);
}

static void memory_close(struct ampd_store *store)
{
    struct memory_shared *shared = lock_shared(store);
    unsigned left = --shared->handles;
    (void)unlock_with(shared, 0);
    free(AMP_CONTAINER(store, struct memory_store, base));
    if (left > 0)
        return;
    AMP_LIST_EACH(it, safe, &shared->models)
    free_model(AMP_CONTAINER(it, struct memory_model, node));
    free(shared->fences);
    (void)pthread_mutex_destroy(&shared->lock);
    free(shared);
}

static const struct ampd_store_ops memory_ops = {
    .open_reader = memory_open_reader,
    .close = memory_close,
#define AMPD_STORE_CALL(name, parameters, arguments) .name = memory_##name,
#define AMPD_STORE_OP(name, parameters)              .name = memory_##name,
#include "storage/store_calls.def"
#undef AMPD_STORE_CALL
#undef AMPD_STORE_OP
};

int ampd_store_memory_open(struct ampd_store **store, struct amp_error *error)
{
    *store = NULL;
    struct memory_store *handle = calloc(1, sizeof *handle);
    struct memory_shared *shared = calloc(1, sizeof *shared);
    if (handle == NULL || shared == NULL || pthread_mutex_init(&shared->lock, NULL) != 0) {
        free(handle);
        free(shared);
        return no_memory(error);
    }
    amp_list_init(&shared->models);
    shared->handles = 1;
    *handle = (struct memory_store){.base.ops = &memory_ops, .shared = shared};
    *store = &handle->base;
    return 0;
}
