/*
 * What handlers that list rows in pages share: page tokens, the bounds of a request, and the errors for a page that
 * begins behind the last row or before the first one that is left. Functions that take `reader` run on the reader's
 * thread, and return errors of the store as they are; the others run on the loop.
 */
#ifndef AMPD_IO_PAGES_H
#define AMPD_IO_PAGES_H

#include "base/err.h"
#include "server/core/core.h"
#include "server/io/calls/server_call.h"
#include "storage/store.h"

/*
 * A page token is the key of the next page's first row, written "epoch.step.sequence". Parsing returns false for a text
 * that is not of this form.
 */
bool io_page_token_parse(const char *text, struct ampd_history_key *key);
void io_page_token_write(const struct ampd_history_key *key, char *text, size_t size);

/* Sets the error for a page token that cannot be parsed, and returns its code, AMP_EINVAL. */
int io_page_token_refuse(struct amp_error *error);

/*
 * Sets the first and the last step of a filter from those of a request; from_step 0 means the beginning. A to_step of 0
 * is given to the store as a range that holds no step, for which the store itself has no 0. 0, or AMP_EINVAL: to_step
 * is before from_step.
 */
int io_page_steps(struct ampd_history_filter *filter, uint64_t from_step, bool has_to_step, uint64_t to_step,
                  struct amp_error *error);

/*
 * AMP_ERANGE (HISTORY_GONE) for a page, not asked for by a token, whose from_step (above 0) and to_step name only steps
 * that --history-rows or --history-age has removed; else 0. A page from step 0 on begins wherever the history does.
 */
int io_page_check_gone(struct ampd_store *reader, const char *model, const struct ampd_history_filter *filter,
                       struct amp_error *error);

/*
 * Says why a page has no rows. AMP_ERANGE (PAGE_PAST_END): it begins behind the last row of its epochs, whatever that
 * row's verdict; AMP_ERANGE (HISTORY_GONE), as io_page_check_gone; 0: there are rows, and the filter left out all of
 * them. A page that begins at step 0 or 1 without a token is never past the end.
 */
int io_page_past_end(struct ampd_store *reader, const char *model, const struct ampd_history_filter *filter,
                     struct amp_error *error);

/* Where a history begins. */
struct io_history_beginning {
    uint64_t epoch, step; /* of the first step that has a row; both 0: no step has one */
    bool gone;            /* steps before that one were removed (--history-rows, --history-age) */
};

/*
 * Finds where one epoch begins, or, with epoch 0, the steps that were not rolled back. For an epoch that has no row of
 * a step, the answer is that for epoch 0, with `gone` only if the epoch is older than it.
 */
int io_history_find_beginning(struct ampd_store *reader, const char *model, uint64_t epoch,
                              struct io_history_beginning *beginning, struct amp_error *error);

/*
 * AMP_ERANGE (HISTORY_GONE) if `step` is one of those that were removed from an epoch (0: from the steps that were not
 * rolled back); else 0. `field` is the name of the request's field that has the step, for the text of the error.
 */
int io_history_check_gone(struct ampd_store *reader, const char *model, uint64_t epoch, const char *field,
                          uint64_t step, struct amp_error *error);

/*
 * Finds a model by its name, and fills in its index and *info. The call holds the model from then on, so that
 * info->spec and info->layout stay valid as long as the call, also on other threads. False: there is no such model, and
 * the call has been refused.
 */
bool io_find_model(struct io_server_call *call, const char *name, uint32_t *index, struct ampd_model_info *info);

#endif
