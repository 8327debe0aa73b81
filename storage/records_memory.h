/* Copies and frees records that own memory. Any thread; a record is used by one thread at a time. */
#ifndef AMPD_RECORDS_MEMORY_H
#define AMPD_RECORDS_MEMORY_H

#include "storage/records.h"

/*
 * Copies a specification and its parameters. On success *to is the caller's, to be freed by ampd_model_spec_clear.
 * AMP_ENOMEM: *to is all zero.
 */
int ampd_model_spec_copy(struct ampd_model_spec *to, const struct ampd_model_spec *from);

/* Frees the parameters of a specification and sets it to all zero. */
void ampd_model_spec_clear(struct ampd_model_spec *spec);

/* Frees the array that ampd_store_load gave and all that its `count` records own. NULL with count 0 is allowed. */
void ampd_model_records_free(struct ampd_model_record *records, size_t count);

/* Frees the user states of a checkpoint state and sets it to all zero. */
void ampd_checkpoint_state_clear(struct ampd_checkpoint_state *state);

#endif
