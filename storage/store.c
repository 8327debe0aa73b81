#include "storage/store.h"

#include "base/assert.h"
#include "storage/store_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int ampd_store_no_model(struct amp_error *error, const char *model)
{
    return amp_error_set(error, AMP_ENOTFOUND, "MODEL_NOT_FOUND",
                         "the store has no model \"%s\": it was deleted meanwhile, or never created", model);
}

int ampd_store_model_exists(struct amp_error *error, const char *model)
{
    return amp_error_set(error, AMP_EEXIST, "MODEL_EXISTS", "the store has a model \"%s\" already", model);
}

int ampd_store_old_epoch(struct amp_error *error, uint64_t given, uint64_t newest)
{
    return amp_error_set(error, AMP_ESTATE, "STALE_EPOCH", "epoch %" PRIu64 " is refused: epoch %" PRIu64 " is stored",
                         given, newest);
}

int ampd_store_step_exists(struct amp_error *error, uint64_t epoch, uint64_t step)
{
    return amp_error_set(error, AMP_EEXIST, "STEP_EXISTS", "step %" PRIu64 " of epoch %" PRIu64 " has its row already",
                         step, epoch);
}

int ampd_store_step_gap(struct amp_error *error, uint64_t epoch, uint64_t step)
{
    return amp_error_set(error, AMP_ESTATE, "STEP_GAP",
                         "step %" PRIu64 " of epoch %" PRIu64 " is refused: the row before it is missing", step, epoch);
}

int ampd_store_no_checkpoint(struct amp_error *error, uint64_t epoch, uint64_t step)
{
    return amp_error_set(error, AMP_ENOTFOUND, "CHECKPOINT_NOT_FOUND",
                         "no checkpoint of epoch %" PRIu64 ", step %" PRIu64 " is stored", epoch, step);
}

int ampd_store_open_reader(struct ampd_store *store, struct ampd_store **reader, struct amp_error *error)
{
    *reader = NULL;
    return store->ops->open_reader(store, reader, error);
}

bool ampd_store_log_is_long(const struct ampd_store *store)
{
    return store->log_is_long;
}

bool ampd_store_is_beyond(const struct ampd_history_limit *limit, int64_t at_us)
{
    return at_us < limit->before_us || (limit->after_us != 0 && at_us > limit->after_us);
}

void ampd_store_close(struct ampd_store *store)
{
    if (store != NULL)
        store->ops->close(store);
}

#define AMPD_STORE_CALL(name, parameters, arguments)                                                                   \
    int ampd_store_##name parameters                                                                                   \
    {                                                                                                                  \
        return store->ops->name arguments;                                                                             \
    }
#define AMPD_STORE_OP(name, parameters)
#include "storage/store_calls.def"
#undef AMPD_STORE_CALL
#undef AMPD_STORE_OP

int ampd_store_get_fence(struct ampd_store *store, uint32_t shard, struct ampd_fence *fence, struct amp_error *error)
{
    *fence = (struct ampd_fence){0};
    return store->ops->get_fence(store, shard, fence, error);
}

int ampd_store_put_model(struct ampd_store *store, const struct ampd_model_spec *spec, int64_t at_us,
                         struct amp_error *error)
{
    AMP_ASSERT(spec->parameters_count > 0 && spec->groups_count > 0 && spec->groups_count <= AMPD_GROUPS_MAX);
    return store->ops->put_model(store, spec, at_us, error);
}

int ampd_store_put_epoch(struct ampd_store *store, const char *model, const struct ampd_epoch_record *epoch,
                         const struct ampd_step_row *first, struct amp_error *error)
{
    AMP_ASSERT(epoch->epoch > 0 && epoch->parent < epoch->epoch);
    AMP_ASSERT(first->kind == AMPD_ROW_EPOCH && first->epoch == epoch->epoch && first->step == epoch->base_step);
    return store->ops->put_epoch(store, model, epoch, first, error);
}

int ampd_store_put_verdict(struct ampd_store *store, const char *model, const struct ampd_step_row *row, bool full,
                           struct amp_error *error)
{
    const struct ampd_verdict_put put = {model, row};
    uint32_t stored;
    return ampd_store_put_verdicts(store, &put, 1, full, &stored, error);
}

int ampd_store_put_verdicts(struct ampd_store *store, const struct ampd_verdict_put *puts, uint32_t count, bool full,
                            uint32_t *stored, struct amp_error *error)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct ampd_step_row *row = puts[i].row;
        AMP_ASSERT(row->kind != AMPD_ROW_EPOCH && row->epoch > 0);
        AMP_ASSERT(row->contributors_count <= AMPD_WORLD_MAX && row->rows_count <= AMPD_OVERFLOW_ROWS_MAX);
    }
    *stored = 0;
    return store->ops->put_verdicts(store, puts, count, full, stored, error);
}

int ampd_store_put_checkpoint(struct ampd_store *store, const char *model,
                              const struct ampd_checkpoint_record *checkpoint, struct amp_error *error)
{
    return store->ops->put_checkpoint(store, model, checkpoint, false, error);
}

int ampd_store_adopt_checkpoint(struct ampd_store *store, const char *model,
                                const struct ampd_checkpoint_record *checkpoint, struct amp_error *error)
{
    return store->ops->put_checkpoint(store, model, checkpoint, true, error);
}

int ampd_store_put_parts(struct ampd_store *store, const char *model, const struct ampd_checkpoint_record *checkpoint,
                         struct amp_error *error)
{
    AMP_ASSERT(checkpoint->parts_count <= AMPD_PARTS_MAX);
    return store->ops->put_parts(store, model, checkpoint, error);
}

/* Turns a filter's epoch and from into inclusive bounds of the key. */
static void key_bounds(const struct ampd_history_filter *filter, struct ampd_history_key *lo,
                       struct ampd_history_key *hi)
{
    *lo = (struct ampd_history_key){filter->epoch, 0, 0};
    *hi = (struct ampd_history_key){filter->epoch != 0 ? filter->epoch : UINT64_MAX, UINT64_MAX, UINT32_MAX};
    const struct ampd_history_key *from = &filter->from;
    if (from->epoch == 0 && from->step == 0 && from->sequence == 0)
        return;
    if (filter->epoch != 0 && from->epoch != 0 && from->epoch != filter->epoch) {
        /* `from` is in another epoch than the filter's: the page has all rows of the filter's epoch, or none. */
        bool all = filter->descending ? from->epoch > filter->epoch : from->epoch < filter->epoch;
        if (!all)
            *hi = (struct ampd_history_key){0, 0, 0};
        return;
    }
    struct ampd_history_key *bound = filter->descending ? hi : lo;
    uint64_t epoch = from->epoch != 0 ? from->epoch : filter->epoch;
    *bound = (struct ampd_history_key){epoch, from->step, from->sequence};
}

/* The filter with UINT64_MAX for a step_max of 0. */
static struct ampd_history_filter filled_in(const struct ampd_history_filter *filter)
{
    struct ampd_history_filter filled = *filter;
    if (filled.step_max == 0)
        filled.step_max = UINT64_MAX;
    return filled;
}

int ampd_store_page_history(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                            uint32_t limit, void *arg, struct amp_error *error, ampd_history_cb *row_cb)
{
    struct ampd_history_key lo, hi;
    struct ampd_history_filter filled = filled_in(filter);
    key_bounds(filter, &lo, &hi);
    limit = limit > AMPD_STORE_PAGE_MAX ? AMPD_STORE_PAGE_MAX : limit;
    return store->ops->page_history(store, model, &filled, &lo, &hi, limit, arg, error, row_cb);
}

int ampd_store_page_points(struct ampd_store *store, const char *model, const struct ampd_history_key *from,
                           uint64_t step_min, uint64_t step_max, uint32_t limit, void *arg, struct amp_error *error,
                           ampd_points_cb *point_cb)
{
    step_min = step_min < from->step ? from->step : step_min;
    limit = limit > AMPD_STORE_PAGE_MAX ? AMPD_STORE_PAGE_MAX : limit;
    return store->ops->page_points(store, model, from, step_min, step_max, limit, arg, error, point_cb);
}

int ampd_store_page_overflows(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                              const struct ampd_overflow_filter *which, uint32_t limit, void *arg,
                              struct amp_error *error, ampd_overflows_cb *row_cb)
{
    static const struct ampd_overflow_filter all = {0, UINT32_MAX, 0, UINT32_MAX};
    struct ampd_history_key lo, hi;
    struct ampd_history_filter filled = filled_in(filter);
    key_bounds(filter, &lo, &hi);
    limit = limit > AMPD_STORE_PAGE_MAX ? AMPD_STORE_PAGE_MAX : limit;
    return store->ops->page_overflows(store, model, &filled, which != NULL ? which : &all, &lo, &hi, limit, arg, error,
                                      row_cb);
}

/* Pages of rows that go into record->rows. */
struct rows_load {
    struct ampd_model_record *record;
    struct ampd_history_key next; /* behind the last row of the pages so far */
    uint32_t page_count;          /* rows of this page, also those that are not added */
};

/* Takes the actions of steps before the one before `step` out of record->rows: a page may have dozens of each step. */
static void forget_actions(struct ampd_model_record *record, uint64_t step)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < record->rows_count; i++) {
        if (record->rows[i].kind != AMPD_ROW_STEP && record->rows[i].step + 1 < step)
            continue;
        if (kept != i)
            record->rows[kept] = record->rows[i];
        kept++;
    }
    record->rows_count = kept;
}

/*
 * An ampd_history_cb that adds a row to record->rows, without epochs' rows and, of the step before the newest
 * checkpoint, only operators' actions. The array's capacity is a power of two, or more where actions were taken out.
 */
static int add_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                   const struct ampd_epoch_record *epoch)
{
    struct rows_load *load = arg;
    struct ampd_model_record *record = load->record;
    bool before = key->step < record->checkpoints[record->checkpoints_count - 1].step;
    load->next = (struct ampd_history_key){key->epoch, key->step, key->sequence + 1};
    load->page_count++;
    if (epoch != NULL || (before && row->kind == AMPD_ROW_STEP))
        return 0;
    if (row->kind == AMPD_ROW_STEP)
        forget_actions(record, row->step);
    uint32_t count = record->rows_count;
    if ((count & (count - 1)) == 0) {
        void *grown = realloc(record->rows, (count == 0 ? 1 : count * 2) * sizeof *record->rows);
        if (grown == NULL)
            return AMP_ENOMEM;
        record->rows = grown;
    }
    record->rows[record->rows_count++] = *row;
    return 0;
}

/*
 * Fills record->rows, which a replay of the vote journal needs, for a model with durability STEP. A full journal with
 * as many actions as there can be behind each of its steps takes several pages.
 */
static int load_rows(struct ampd_store *store, struct ampd_model_record *record, struct amp_error *error)
{
    if (record->spec.durability != AMPD_DURABILITY_STEP || record->checkpoints_count == 0)
        return 0;
    uint64_t newest = record->checkpoints[record->checkpoints_count - 1].step;
    struct ampd_history_filter filter = {.epoch = record->epoch, .step_min = newest > 0 ? newest - 1 : 0};
    struct rows_load load = {.record = record, .page_count = AMPD_STORE_PAGE_MAX};
    int rc = 0;
    while (rc == 0 && load.page_count == AMPD_STORE_PAGE_MAX) {
        load.page_count = 0;
        filter.from = load.next;
        rc = ampd_store_page_history(store, record->spec.name, &filter, AMPD_STORE_PAGE_MAX, &load, error, add_row);
    }
    if (rc == AMP_ENOMEM)
        (void)amp_error_set(error, rc, NULL, "out of memory loading the rows of %s", record->spec.name);
    return rc;
}

int ampd_store_load(struct ampd_store *store, struct ampd_model_record **records, size_t *count,
                    struct amp_error *error)
{
    *records = NULL;
    *count = 0;
    int rc = store->ops->load(store, records, count, error);
    for (size_t i = 0; rc == 0 && i < *count; i++)
        rc = load_rows(store, &(*records)[i], error);
    if (rc != 0) {
        ampd_model_records_free(*records, *count);
        *records = NULL;
        *count = 0;
    }
    return rc;
}

int ampd_model_spec_copy(struct ampd_model_spec *to, const struct ampd_model_spec *from)
{
    *to = *from;
    to->parameters = NULL;
    if (from->parameters_count == 0)
        return 0;
    to->parameters = malloc(from->parameters_count * sizeof *to->parameters);
    if (to->parameters == NULL) {
        memset(to, 0, sizeof *to);
        return AMP_ENOMEM;
    }
    memcpy(to->parameters, from->parameters, from->parameters_count * sizeof *to->parameters);
    return 0;
}

void ampd_model_spec_clear(struct ampd_model_spec *spec)
{
    free(spec->parameters);
    memset(spec, 0, sizeof *spec);
}

void ampd_model_records_free(struct ampd_model_record *records, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ampd_model_spec_clear(&records[i].spec);
        free(records[i].last);
        free(records[i].rows);
        free(records[i].workers);
        free(records[i].checkpoints);
    }
    free(records);
}

void ampd_checkpoint_state_clear(struct ampd_checkpoint_state *state)
{
    for (uint32_t i = 0; state->user_states != NULL && i < state->world_size; i++)
        free(state->user_states[i].data);
    free(state->user_states);
    memset(state, 0, sizeof *state);
}
