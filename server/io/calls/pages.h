/* What lists that come in pages share: tokens, the probe for a page past the end, and finding the model. */
#ifndef AMPD_IO_PAGES_H
#define AMPD_IO_PAGES_H

#include "base/err.h"
#include "server/core/core.h"
#include "server/io/calls/server_call.h"
#include "storage/store.h"

/* A token is the key of the first row of the next page: "epoch.step.sequence". False: not one of ours. */
bool io_page_token_parse(const char *text, struct ampd_history_key *key);
void io_page_token_write(const struct ampd_history_key *key, char *text, size_t size);

/* AMP_EINVAL for a token that io_page_token_parse does not take. */
int io_page_token_refuse(struct amp_error *error);

/*
 * Makes bounds of the store's filter of a request's: to_step 0 is a range that holds no step. AMP_EINVAL: to_step is
 * before from_step.
 */
int io_page_steps(struct ampd_history_filter *filter, uint64_t from_step, bool has_to_step, uint64_t to_step,
                  struct amp_error *error);

/*
 * The same of a page whose steps are given by both ends, and all were removed. One from step 0 on is from wherever the
 * history begins.
 */
int io_page_check_gone(struct ampd_store *reader, const char *model, const struct ampd_history_filter *filter,
                       struct amp_error *error);

/*
 * For a page without rows, on the reader thread: AMP_ERANGE when it begins behind the last row that its epochs have,
 * whatever its verdicts, or io_page_check_gone says so; 0 when the filter alone has left
 * none. A page that begins at step 1 is never past the end.
 */
int io_page_past_end(struct ampd_store *reader, const char *model, const struct ampd_history_filter *filter,
                     struct amp_error *error);

/* Where a history begins, and whether there was more before, which --history-rows or --history-age has removed. */
struct io_history_beginning {
    uint64_t epoch, step; /* of the first step that has a row; 0: none has */
    bool gone;
};

/* Of an epoch, or (0) of the steps that stand. On the reader thread. 0 or an error of the store. */
int io_history_find_beginning(struct ampd_store *reader, const char *model, uint64_t epoch,
                              struct io_history_beginning *beginning, struct amp_error *error);

/*
 * AMP_ERANGE (HISTORY_GONE) where `step`, which the request's `field` names, is of those that were removed; else 0, or
 * an error of the store. On the reader thread.
 */
int io_history_check_gone(struct ampd_store *reader, const char *model, uint64_t epoch, const char *field,
                          uint64_t step, struct amp_error *error);

/* The model of a name; else the call is refused. `info->spec` lives as long as the call and never changes. */
bool io_find_model(struct io_server_call *call, const char *name, uint32_t *index, struct ampd_model_info *info);

#endif
