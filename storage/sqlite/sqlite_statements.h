/* The statements of the SQLite store: their numbers (STMT_<name>) and their SQL texts. */
#ifndef AMPD_SQLITE_STATEMENTS_H
#define AMPD_SQLITE_STATEMENTS_H

/* One for each row of sqlite_statements.def. */
enum store_statement {
#define STORE_STATEMENT(name, ...) STMT_##name,
#include "storage/sqlite/sqlite_statements.def"
#undef STORE_STATEMENT
    STMT_COUNT
};

/* The columns of a row of `steps` after its key, in the order in which bind_row and store_read_row go through them. */
#define STORE_ROW_COLUMNS                                                                                              \
    "kind,parent_epoch,parent_step,verdict,tries,contributors_hash,contributors,scale,scale_id,after_scale,"           \
    "after_scale_id,growth_tracker,hysteresis_left,consecutive_overflows,total_overflows,"                             \
    "steps_since_overflow,attempted,applied,skipped,coefficient,norm,clip,lr,version,overflow_params,"                 \
    "inf_total,nan_total,rows_count,durable_step,cut,superseded,at_us,from_step,actor,words,request_id,clips,"         \
    "loss,loss_workers,metrics,apply_us,pull_us,wait_us,push_us,vote_us,after_lr"
#define STORE_ROW_COLUMNS_COUNT 46

/* The SQL text of a statement; constant. */
const char *store_sql(enum store_statement statement);

#endif
