/* The methods of a server, by name. Internal to rpc/. */
#ifndef ARPC_H2_METHOD_TABLE_H
#define ARPC_H2_METHOD_TABLE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct arpc_method;
struct arpc_method_stats;

/* A row, and what is counted of its calls. */
struct arpc_method_row {
    const struct arpc_method *method;
    struct arpc_method_stats *stats; /* owned by the table */
};

/* The rows of a server, sorted by name. */
struct arpc_method_table {
    struct arpc_method_row *rows;
    size_t count;
};

/*
 * Adds rows, which must outlive the table. 0; AMP_ENOMEM, AMP_EINVAL (a name twice, or a handler without `closed`): the
 * table is as before.
 */
int arpc_method_table_add(struct arpc_method_table *table, const struct arpc_method *methods, size_t count,
                          struct amp_error *error);
/* Frees the table and the counts; no call of a row may be left. */
void arpc_method_table_close(struct arpc_method_table *table);
/*
 * The row of exactly "/service/name", or NULL. Valid until rows are added; its method and stats as long as the table.
 */
const struct arpc_method_row *arpc_method_table_find(const struct arpc_method_table *table, const uint8_t *path,
                                                     size_t size);

#endif
