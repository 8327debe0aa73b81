/* The statements of the SQLite store: their numbers and their texts. */
#ifndef AMPD_SQLITE_STATEMENTS_H
#define AMPD_SQLITE_STATEMENTS_H

/* The rows of sqlite_statements.def. */
enum store_statement {
#define STORE_STATEMENT(name, ...) STMT_##name,
#include "storage/sqlite/sqlite_statements.def"
#undef STORE_STATEMENT
    STMT_COUNT
};

/* The columns of a row, in the order that row_bind and row_read walk them. */
#define STORE_ROW_COLUMNS                                                                                              \
    "kind,parent_epoch,parent_step,verdict,tries,contributors_hash,contributors,scale,scale_id,after_scale,"           \
    "after_scale_id,growth_tracker,hysteresis_left,consecutive_overflows,total_overflows,"                             \
    "steps_since_overflow,attempted,applied,skipped,coefficient,norm,clip,lr,version,overflow_params,"                 \
    "inf_total,nan_total,rows_count,durable_step,cut,superseded,at_us,from_step,actor,words,request_id,clips,"         \
    "loss,loss_workers,metrics,apply_us,pull_us,wait_us,push_us,vote_us,after_lr"
#define STORE_ROW_COLUMNS_COUNT 46

/* The text of a statement. */
const char *store_sql(enum store_statement statement);

#endif
