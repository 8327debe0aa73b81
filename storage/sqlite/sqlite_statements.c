/* The texts of the SQLite store's statements. */
#include "storage/sqlite/sqlite_statements.h"

#include "base/assert.h"

#include <stddef.h>

#define HISTORY_PAGE(compare_order)                                                                                    \
    "SELECT epoch,step,sequence," STORE_ROW_COLUMNS " FROM steps WHERE model_id=?1"                                    \
    " AND (epoch,step,sequence)>=(?2,?3,?4) AND (epoch,step,sequence)<=(?5,?6,?7)"                                     \
    " AND step+(?14 AND kind<>1)>=?8 AND step<=?9 AND (?10 OR superseded=0)"                                           \
    " AND (?11=0 OR (kind=1 AND (?11>>verdict)&1)) AND (NOT ?12 OR scale<>after_scale)"                                \
    " ORDER BY epoch " compare_order ",step " compare_order ",sequence " compare_order " LIMIT ?13"

/* Only the row of a step (sequence 0) has overflow rows. */
#define OVERFLOWS_PAGE(compare_order)                                                                                  \
    "SELECT o.epoch,o.step,o.position,parameter,rank,inf_count,nan_count,first_index,largest,at_us,superseded"         \
    " FROM overflows o JOIN steps s ON s.model_id=o.model_id AND s.epoch=o.epoch AND s.step=o.step"                    \
    " AND s.sequence=0 WHERE o.model_id=?1"                                                                            \
    " AND (o.epoch,o.step,o.position)>=(?2,?3,?4) AND (o.epoch,o.step,o.position)<=(?5,?6,?7)"                         \
    " AND o.step>=?8 AND o.step<=?9 AND (?10 OR s.superseded=0)"                                                       \
    " AND parameter>=?11 AND parameter<=?12 AND rank>=?13 AND rank<=?14"                                               \
    " ORDER BY o.epoch " compare_order ",o.step " compare_order ",o.position " compare_order " LIMIT ?15"

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
