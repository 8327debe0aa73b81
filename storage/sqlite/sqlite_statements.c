/* The texts of the SQLite store's statements. */
#include "storage/sqlite/sqlite_statements.h"

#include "base/assert.h"

#include <stddef.h>

/* Selects the epochs from ?2 to ?3 that have rows, by one search in the primary key for each of them. */
#define EPOCHS_OF_ROWS(next, beyond, from, to)                                                                         \
    "WITH RECURSIVE list(e) AS (SELECT " next "(epoch) FROM steps WHERE model_id=?1 AND epoch" beyond "=" from         \
    " UNION ALL SELECT (SELECT " next "(epoch) FROM steps WHERE model_id=?1 AND epoch" beyond "e) FROM list"           \
    " WHERE " to beyond "e) SELECT e FROM list WHERE e BETWEEN ?2 AND ?3"

/*
 * The rows of one epoch, ?2, between two keys, (?3,?4) to (?5,?6), and with steps up to ?8; sqlite_history.c reads one
 * epoch after the other.
 */
#define OF_EPOCH(t, sequence)                                                                                          \
    t "model_id=?1 AND " t "epoch=?2 AND " t "step<=min(?5,?8) AND NOT(" t "step=?3 AND " t sequence "<?4)"            \
      " AND NOT(" t "step=?5 AND " t sequence ">?6)"

#define STEPS_OF_EPOCH     OF_EPOCH("", "sequence")
#define OVERFLOWS_OF_EPOCH OF_EPOCH("o.", "position")

/* Of these rows all, or only those that are not just an applied step with an unchanged scale (index `notable`). */
#define ALL     "WHERE "
#define NOTABLE "INDEXED BY notable WHERE (kind<>1 OR verdict<>1 OR scale<>after_scale) AND "

#define HISTORY_PAGE(which, order)                                                                                     \
    "SELECT epoch,step,sequence," STORE_ROW_COLUMNS " FROM steps " which STEPS_OF_EPOCH                                \
    " AND step>=max(?3,?7-?13) AND step+(?13 AND kind<>1)>=?7 AND (?9 OR superseded=0)"                                \
    " AND (?11=0 OR (?11>>iif(kind=1,verdict,0))&1) AND (NOT ?12 OR scale<>after_scale)"                               \
    " ORDER BY step " order ",sequence " order " LIMIT ?10"

/* The overflow rows of one epoch, each joined with the row of its step (sequence 0). */
#define OVERFLOWS_PAGE(order)                                                                                          \
    "SELECT o.epoch,o.step,o.position,parameter,rank,inf_count,nan_count,first_index,largest,contributors,at_us,"      \
    "superseded"                                                                                                       \
    " FROM overflows o CROSS JOIN steps s ON s.model_id=o.model_id AND s.epoch=o.epoch AND s.step=o.step"              \
    " AND s.sequence=0 WHERE " OVERFLOWS_OF_EPOCH " AND o.step>=max(?3,?7) AND (?9 OR s.superseded=0)"                 \
    " AND parameter>=?11 AND parameter<=?12 AND rank>=?13 AND rank<=?14"                                               \
    " ORDER BY o.step " order ",o.position " order " LIMIT ?10"

static const char *const statement_texts[STMT_COUNT] = {
#define STORE_STATEMENT(name, ...) [STMT_##name] = __VA_ARGS__,
#include "storage/sqlite/sqlite_statements.def"
#undef STORE_STATEMENT
};

const char *store_sql(enum store_statement statement)
{
    AMP_ASSERT(statement < STMT_COUNT && statement_texts[statement] != NULL);
    return statement_texts[statement];
}
