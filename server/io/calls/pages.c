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
                         "page_token: not one of this server; give next_page_token of the page before");
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
        filter->step_min = 2;
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

int io_page_past_end(struct ampd_store *reader, const char *model, const struct ampd_history_filter *filter,
                     struct amp_error *error)
{
    struct ampd_history_filter probe = *filter;
    bool any = false;
    bool from_token = filter->from.epoch != 0;
    if (filter->step_min > filter->step_max || (filter->step_min <= 1 && !from_token))
        return 0;
    probe.verdicts = 0;
    probe.only_changes = false;
    probe.step_max = UINT64_MAX;
    int rc = ampd_store_page_history(reader, model, &probe, 1, &any, error, seen);
    if (rc != 0 || any)
        return rc;
    if (from_token)
        return amp_error_set(error, AMP_ERANGE, "PAGE_PAST_END",
                             "page_token: there are no rows from there on any more; begin again without one");
    return amp_error_set(error, AMP_ERANGE, "PAGE_PAST_END",
                         "from_step: step %" PRIu64 " and those after it have not been decided", filter->step_min);
}

bool io_find_model(struct io_server_call *call, const char *name, uint32_t *index, struct ampd_model_info *info)
{
    int64_t found = ampd_core_find(call->server->core, name);
    if (found < 0) {
        io_server_call_refuse(call, AMP_ENOTFOUND, "MODEL_NOT_FOUND",
                              "model: there is none named %s on this server; create it first", name);
        return false;
    }
    *index = (uint32_t)found;
    ampd_core_let_go(call->held);
    call->held = ampd_core_hold(call->server->core, *index);
    ampd_core_model(call->server->core, *index, info);
    return true;
}
