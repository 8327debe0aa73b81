#include "server/io/calls/pages.h"

#include "server/io/base/server.h"
#include "server/io/calls/server_call.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool io_page_token_parse(const char *text, struct ampd_history_key *key)
{
    unsigned long long epoch, step;
    unsigned sequence;
    int used = 0;
    if (strspn(text, "0123456789.") != strlen(text) ||
        sscanf(text, "%20llu.%20llu.%10u%n", &epoch, &step, &sequence, &used) != 3 || text[used] != 0)
        return false;
    *key = (struct ampd_history_key){epoch, step, sequence};
    return true;
}

void io_page_token_write(const struct ampd_history_key *key, char *text, size_t size)
{
    (void)snprintf(text, size, "%" PRIu64 ".%" PRIu64 ".%" PRIu32, key->epoch, key->step, key->sequence);
}

int io_page_token_refuse(struct amp_error *error)
{
    return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                         "page_token: this server has not made it; give next_page_token of the page before");
}

int io_page_steps(struct ampd_history_filter *filter, uint64_t from_step, bool has_to_step, uint64_t to_step,
                  struct amp_error *error)
{
    if (has_to_step && to_step < from_step)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "to_step: it is before from_step");
    filter->step_min = from_step;
    filter->step_max = has_to_step ? to_step : UINT64_MAX;
    if (filter->step_max == 0) {
        /* The store takes 0 for "no bound", and no step has the number 0: a range that holds none. */
        filter->step_min = UINT64_MAX;
        filter->step_max = 1;
    }
    return 0;
}

static int seen(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                const struct ampd_epoch_record *epoch)
{
    *(bool *)arg = true;
    return 0;
}

/* ---- histories whose beginning was removed ---- */

struct first_row {
    struct ampd_history_key key; /* all zero: there is none */
    uint64_t base_epoch;         /* for a row of kind EPOCH: the epoch that it goes on from; else 0 */
};

static int take_first(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                      const struct ampd_epoch_record *epoch)
{
    *(struct first_row *)arg = (struct first_row){*key, epoch != NULL ? epoch->base_epoch : 0};
    return 0;
}

/*
 * Sets *gone if the step before `first` has no row. If the epoch of `first` begins with that step, the row of the step
 * before belongs to the epoch from which it goes on; with one_epoch that epoch is not looked at.
 */
static int find_before(struct ampd_store *reader, const char *model, const struct ampd_history_key *first,
                       bool one_epoch, bool *gone, struct amp_error *error)
{
    uint64_t epoch = first->epoch;
    *gone = false;
    while (epoch != 0 && !*gone && first->step > 1) {
        const struct ampd_history_filter before = {
            .epoch = epoch, .step_min = first->step - 1, .step_max = first->step - 1, .superseded_too = true};
        struct first_row row = {0};
        int rc = ampd_store_page_history(reader, model, &before, 1, &row, error, take_first);
        if (rc != 0)
            return rc;
        /* No row, or only that of an operator's act, which may be left without its step. */
        *gone = row.key.epoch == 0 || row.key.sequence > 0;
        epoch = one_epoch ? 0 : row.base_epoch;
    }
    return 0;
}

int io_history_find_beginning(struct ampd_store *reader, const char *model, uint64_t epoch,
                              struct io_history_beginning *beginning, struct amp_error *error)
{
    const struct ampd_history_filter steps = {.epoch = epoch,
                                              .superseded_too = epoch != 0,
                                              .verdicts = 1u << AMPD_VERDICT_APPLIED |
                                                          1u << AMPD_VERDICT_SKIPPED_OVERFLOW |
                                                          1u << AMPD_VERDICT_SKIPPED_EMPTY};
    struct first_row first = {0};
    *beginning = (struct io_history_beginning){0};
    int rc = ampd_store_page_history(reader, model, &steps, 1, &first, error, take_first);
    if (rc != 0)
        return rc;
    beginning->epoch = first.key.epoch;
    beginning->step = first.key.step;
    if (first.key.epoch != 0)
        return find_before(reader, model, &first.key, epoch != 0, &beginning->gone, error);
    if (epoch == 0)
        return 0;
    /* The epoch has no row of a step: either it had no step, or its rows were removed. */
    rc = io_history_find_beginning(reader, model, 0, beginning, error);
    beginning->gone = beginning->gone && epoch < beginning->epoch;
    return rc;
}

int io_history_check_gone(struct ampd_store *reader, const char *model, uint64_t epoch, const char *field,
                          uint64_t step, struct amp_error *error)
{
    struct io_history_beginning beginning;
    int rc = io_history_find_beginning(reader, model, epoch, &beginning, error);
    if (rc != 0 || !beginning.gone || step >= beginning.step)
        return rc;
    return amp_error_set(error, AMP_ERANGE, "HISTORY_GONE",
                         "%s: the history begins with step %" PRIu64
                         ": give that one or a later one; those before it were removed, as the server's history-rows "
                         "or history-age says",
                         field, beginning.step);
}

int io_page_check_gone(struct ampd_store *reader, const char *model, const struct ampd_history_filter *filter,
                       struct amp_error *error)
{
    bool is_range = filter->step_min > 0 && filter->step_min <= filter->step_max && filter->step_max != UINT64_MAX;
    if (!is_range || filter->from.epoch != 0)
        return 0;
    return io_history_check_gone(reader, model, filter->epoch, "to_step", filter->step_max, error);
}

int io_page_past_end(struct ampd_store *reader, const char *model, const struct ampd_history_filter *filter,
                     struct amp_error *error)
{
    struct ampd_history_filter probe = *filter;
    bool any = false;
    bool from_token = filter->from.epoch != 0;
    if (filter->step_min > filter->step_max)
        return 0;
    int rc = io_page_check_gone(reader, model, filter, error);
    if (rc != 0 || (filter->step_min <= 1 && !from_token))
        return rc;
    probe.verdicts = 0;
    probe.only_changes = false;
    probe.step_max = UINT64_MAX;
    rc = ampd_store_page_history(reader, model, &probe, 1, &any, error, seen);
    if (rc != 0 || any)
        return rc;
    if (from_token)
        return amp_error_set(error, AMP_ERANGE, "PAGE_PAST_END",
                             "page_token: the rows that it refers to have been deleted; start again without a token");
    return amp_error_set(error, AMP_ERANGE, "PAGE_PAST_END",
                         "from_step: step %" PRIu64 " and those after it have not been decided", filter->step_min);
}

bool io_find_model(struct io_server_call *call, const char *name, uint32_t *index, struct ampd_model_info *info)
{
    int64_t found = ampd_core_find(call->server->core, name);
    if (found < 0) {
        io_server_call_refuse(
            call, AMP_ENOTFOUND, "MODEL_NOT_FOUND",
            "model: there is none named %s on this server; ampctl models lists those that there are, or create it",
            name);
        return false;
    }
    *index = (uint32_t)found;
    ampd_core_let_go(call->held);
    call->held = ampd_core_hold(call->server->core, *index);
    ampd_core_model(call->server->core, *index, info);
    return true;
}
