/* Writes (sqlite_row_write.c) and reads (sqlite_row_read.c) the rows of the history in the SQLite store. */
#ifndef AMPD_SQLITE_ROWS_H
#define AMPD_SQLITE_ROWS_H

#include "storage/sqlite/sqlite_cursor.h"

/* Bytes of one contributor in the blob: rank u32, fence u64, counter u64, weight as fp32 bits; little-endian. */
#define STORE_CONTRIBUTOR_BYTES 24

/*
 * Bytes of one metric in the blob without its name: value as fp32 bits, workers u32, length of the name in bytes u8;
 * little-endian. The name follows.
 */
#define STORE_METRIC_BYTES 9

/*
 * Inserts a row and its overflow rows, within a transaction of the caller's. `id` is the model's. AMP_EEXIST: there is
 * a row with this key; or an error of a write.
 */
int store_put_row(struct sqlite_store *store, int64_t id, uint64_t sequence, const struct ampd_step_row *row,
                  struct amp_error *error);

/*
 * Reads a row from a statement whose columns are epoch, step, sequence and STORE_ROW_COLUMNS. row->rows is not filled:
 * store_read_overflows_of does that. 0, or AMP_EDATALOSS without a text: the row is damaged.
 */
int store_read_row(sqlite3_stmt *statement, struct ampd_history_key *key, struct ampd_step_row *row);

/* Reads the column `contributors`: the rank of the first one, 0 if there is none. */
uint32_t store_read_first_rank(struct store_cursor *get);
/* Reads the column `contributors`: the incarnation of the one with this rank; {0, 0} if there is none. */
struct ampd_incarnation store_read_incarnation(struct store_cursor *get, uint32_t rank);
/* Read the columns of a scaler's state (after_scale to skipped), and those of an overflow row. */
void store_read_scaler(struct store_cursor *get, struct amp_scaler_state *after);
void store_read_overflow(struct store_cursor *get, struct ampd_overflow_row *row);

/*
 * Fills row->rows from the table of overflow rows, if row->rows_count is not 0. `id` is the model's. An error of a
 * read; AMP_EDATALOSS also if there are fewer rows than rows_count.
 */
int store_read_overflows_of(struct sqlite_store *store, int64_t id, struct ampd_step_row *row, struct amp_error *error);

#endif
