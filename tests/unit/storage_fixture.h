/* What the tests of storage share: a directory of their own, and records to store. */
#ifndef AMPD_TESTS_STORAGE_FIXTURE_H
#define AMPD_TESTS_STORAGE_FIXTURE_H

#include <stdbool.h>
#include "storage/store.h"

/* A new directory below $TMPDIR or /tmp; the path is the fixture's, valid until the next call. */
const char *storage_fixture_directory(void);

/* Removes a directory with all that is in it. */
void storage_fixture_remove(const char *path);

/* The path of a name in it; valid until the next one. */
const char *storage_fixture_below(const char *directory, const char *name);

/* Makes, or replaces, a file of that name in it. */
void storage_fixture_write(const char *directory, const char *name, const char *text);

/* A filled-in specification of `name` with three parameters; cleared by ampd_model_spec_clear. */
struct ampd_model_spec storage_fixture_spec(const char *name);

/* Epoch `epoch` on top of (base_epoch, base_step), with its first row. */
struct ampd_epoch_record storage_fixture_epoch(uint64_t epoch, uint64_t base_epoch, uint64_t base_step);
struct ampd_step_row storage_fixture_first_row(const struct ampd_epoch_record *epoch);

/* A row with every field set: applied, or skipped for two overflow rows if `overflow`. */
struct ampd_step_row storage_fixture_step(uint64_t epoch, uint64_t step, bool overflow);

/* While true no file can be opened (EMFILE); what is open stays so. */
void storage_fixture_no_descriptors(bool none);

#endif
