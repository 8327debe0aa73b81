/* The row of a decided step in the SQLite store, written (sqlite_row_write.c) and read (sqlite_row_read.c). */
#ifndef AMPD_SQLITE_ROWS_H
#define AMPD_SQLITE_ROWS_H

#include "storage/sqlite/sqlite_cursor.h"

/* A contributor in a row's blob: rank u32, fence u64, counter u64, weight as fp32 bits; little-endian. */
#define STORE_CONTRIBUTOR_BYTES 24

/* A metric in a row's blob: value as fp32 bits, workers u32, bytes of the name u8; little-endian; then its name. */
#define STORE_METRIC_BYTES 9

/* A row with its overflows. AMP_EEXIST: the step has one of that sequence. */
int store_put_row(struct sqlite_store *store, int64_t id, uint64_t sequence, const struct ampd_step_row *row,
                  struct amp_error *error);

/*
 * Reads epoch, step, sequence and STORE_ROW_COLUMNS from the first column on; overflow rows are apart. 0, or
 * AMP_EDATALOSS without a text.
 */
int store_read_row(sqlite3_stmt *statement, struct ampd_history_key *key, struct ampd_step_row *row);

/* Of a row's contributors: the rank of the first; 0 without any. */
uint32_t store_read_first_rank(struct store_cursor *get);
/* Of a row's contributors: the incarnation of that rank; counter 0: it did not contribute. */
struct ampd_incarnation store_read_incarnation(struct store_cursor *get, uint32_t rank);
/* The columns of a scaler's state, and of an overflow row. */
void store_read_scaler(struct store_cursor *get, struct amp_scaler_state *after);
void store_read_overflow(struct store_cursor *get, struct ampd_overflow_row *row);

/* Fills row->rows of a row that has some. */
int store_read_overflows_of(struct sqlite_store *store, int64_t id, struct ampd_step_row *row, struct amp_error *error);

#endif
