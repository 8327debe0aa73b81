/* The table of rows: sorted, searched by the exact path. */
#include "rpc/h2/link.h"

#include "rpc/arpc_stats.h"

#include <stdlib.h>
#include <string.h>

static int compare_rows(const void *a, const void *b)
{
    const struct arpc_method_row *left = a;
    const struct arpc_method_row *right = b;
    int order = strcmp(left->method->service, right->method->service);
    return order != 0 ? order : strcmp(left->method->name, right->method->name);
}

static int check_rows(const struct arpc_method_row *rows, size_t count, struct amp_error *error)
{
    for (size_t i = 0; i < count; i++) {
        const struct arpc_method *method = rows[i].method;
        if (i > 0 && compare_rows(&rows[i - 1], &rows[i]) == 0)
            return amp_error_set(error, AMP_EINVAL, NULL, "two rows for /%s/%s", method->service, method->name);
        if (method->handler != NULL && method->handler->closed == NULL)
            return amp_error_set(error, AMP_EINVAL, NULL, "the handler of /%s/%s has no `closed`", method->service,
                                 method->name);
    }
    return 0;
}

/* Frees rows; of the stats those of `count` methods. */
static void free_rows(struct arpc_method_row *rows, size_t total, const struct arpc_method *methods, size_t count)
{
    for (size_t i = 0; rows != NULL && i < total; i++)
        if (rows[i].method >= methods && rows[i].method < methods + count)
            free(rows[i].stats);
    free(rows);
}

/* Makes rows with stats. False: out of memory, and some have none. */
static bool make_rows(struct arpc_method_row *rows, const struct arpc_method *methods, size_t count)
{
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        rows[i] = (struct arpc_method_row){&methods[i], calloc(1, sizeof *rows[i].stats)};
        all = all && rows[i].stats != NULL;
    }
    return all;
}

int arpc_method_table_add(struct arpc_method_table *table, const struct arpc_method *methods, size_t count,
                          struct amp_error *error)
{
    size_t total = table->count + count;
    struct arpc_method_row *rows = calloc(total + 1, sizeof *rows);
    if (rows != NULL && table->count > 0)
        memcpy(rows, table->rows, table->count * sizeof *rows);
    int rc = 0;
    if (rows == NULL || !make_rows(rows + table->count, methods, count))
        rc = amp_error_set(error, AMP_ENOMEM, NULL, "no memory for the table of methods");
    if (rc == 0) {
        qsort(rows, total, sizeof *rows, compare_rows);
        rc = check_rows(rows, total, error);
    }
    if (rc != 0) {
        free_rows(rows, total, methods, count);
        return rc;
    }
    free(table->rows);
    table->rows = rows;
    table->count = total;
    return 0;
}

void arpc_method_table_close(struct arpc_method_table *table)
{
    for (size_t i = 0; i < table->count; i++)
        free(table->rows[i].stats);
    free(table->rows);
    *table = (struct arpc_method_table){0};
}

struct path {
    const char *service;
    size_t service_size;
    const char *name;
    size_t name_size;
};

/* Orders a text with a size against one with a final zero, as strcmp does. */
static int compare_text(const char *text, size_t size, const char *name)
{
    size_t name_size = strlen(name);
    int order = memcmp(text, name, size < name_size ? size : name_size);
    return order != 0 ? order : (size > name_size) - (size < name_size);
}

static int compare_path(const void *key, const void *element)
{
    const struct path *path = key;
    const struct arpc_method_row *row = element;
    int order = compare_text(path->service, path->service_size, row->method->service);
    return order != 0 ? order : compare_text(path->name, path->name_size, row->method->name);
}

const struct arpc_method_row *arpc_method_table_find(const struct arpc_method_table *table, const uint8_t *path,
                                                     size_t size)
{
    if (size < 2 || path[0] != '/' || table->count == 0)
        return NULL;
    const char *service = (const char *)path + 1;
    const char *slash = memchr(service, '/', size - 1);
    if (slash == NULL)
        return NULL;
    struct path key = {service, (size_t)(slash - service), slash + 1, size - 2 - (size_t)(slash - service)};
    return bsearch(&key, table->rows, table->count, sizeof *table->rows, compare_path);
}
