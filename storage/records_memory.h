/* The memory of records: who copies and frees what they own. */
#ifndef AMPD_RECORDS_MEMORY_H
#define AMPD_RECORDS_MEMORY_H

#include "storage/records.h"

/* Copies a spec with its parameters. AMP_ENOMEM; *to is then empty. */
int ampd_model_spec_copy(struct ampd_model_spec *to, const struct ampd_model_spec *from);

/* Frees what a spec owns and makes it empty. */
void ampd_model_spec_clear(struct ampd_model_spec *spec);

/* Frees records of ampd_store_load, the array too; NULL is allowed. */
void ampd_model_records_free(struct ampd_model_record *records, size_t count);

/* Frees the user states of a checkpoint state and makes it empty. */
void ampd_checkpoint_state_clear(struct ampd_checkpoint_state *state);

#endif
