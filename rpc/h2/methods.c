/* The table of rows: sorted pointers, searched by the exact path. */
#include "rpc/h2/link.h"

#include <stdlib.h>
#include <string.h>

static int compare_rows(const void *a, const void *b)
{
    const struct arpc_method *const *left = a;
    const struct arpc_method *const *right = b;
    int order = strcmp((*left)->service, (*right)->service);
    return order != 0 ? order : strcmp((*left)->name, (*right)->name);
}

static int check_rows(const struct arpc_method **rows, size_t count, struct amp_error *error)
{
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && compare_rows(&rows[i - 1], &rows[i]) == 0)
            return amp_error_set(error, AMP_EINVAL, NULL, "two rows for /%s/%s", rows[i]->service, rows[i]->name);
        if (rows[i]->handler != NULL && rows[i]->handler->closed == NULL)
            return amp_error_set(error, AMP_EINVAL, NULL, "the handler of /%s/%s has no `closed`", rows[i]->service,
                                 rows[i]->name);
    }
    return 0;
}

int arpc_method_table_add(struct arpc_method_table *table, const struct arpc_method *methods, size_t count,
                          struct amp_error *error)
{
    size_t total = table->count + count;
    const struct arpc_method **rows = calloc(total + 1, sizeof *rows);
    if (rows == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory for the table of methods");
    if (table->count > 0)
        memcpy(rows, table->rows, table->count * sizeof *rows);
    for (size_t i = 0; i < count; i++)
        rows[table->count + i] = &methods[i];
    qsort(rows, total, sizeof *rows, compare_rows);
    int rc = check_rows(rows, total, error);
    if (rc != 0) {
        free(rows);
        return rc;
    }
    free(table->rows);
    table->rows = rows;
    table->count = total;
    return 0;
}

void arpc_method_table_close(struct arpc_method_table *table)
{
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
    const struct arpc_method *const *row = element;
    int order = compare_text(path->service, path->service_size, (*row)->service);
    return order != 0 ? order : compare_text(path->name, path->name_size, (*row)->name);
}

const struct arpc_method *arpc_method_table_find(const struct arpc_method_table *table, const uint8_t *path,
                                                 size_t size)
{
    if (size < 2 || path[0] != '/' || table->count == 0)
        return NULL;
    const char *service = (const char *)path + 1;
    const char *slash = memchr(service, '/', size - 1);
    if (slash == NULL)
        return NULL;
    struct path key = {service, (size_t)(slash - service), slash + 1, size - 2 - (size_t)(slash - service)};
    const struct arpc_method **row = bsearch(&key, table->rows, table->count, sizeof *table->rows, compare_path);
    return row != NULL ? *row : NULL;
}
