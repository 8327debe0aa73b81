/* Rows as a table (libsmartcols) or as JSON, a page at a time, so that memory is bounded by a page. */
#include "client/ampctl/rows.h"

#include "base/buf.h"
#include "client/ampctl/print.h"

#include <libsmartcols.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Up to here whole numbers are shown with all digits. */
#define WHOLE_MAX 1e15

const char *ampctl_cell(const json_t *value, char buffer[32])
{
    bool whole;
    switch (value != NULL ? json_typeof(value) : JSON_NULL) {
    case JSON_STRING:
        return json_string_value(value);
    case JSON_INTEGER:
        (void)snprintf(buffer, 32, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return buffer;
    case JSON_REAL:
        /* Scales are powers of two, mostly: whole, or they could not be recognised. */
        whole = fabs(json_real_value(value)) < WHOLE_MAX && trunc(json_real_value(value)) == json_real_value(value);
        (void)snprintf(buffer, 32, whole ? "%.0f" : "%.6g", json_real_value(value));
        return buffer;
    case JSON_TRUE:
        return "yes";
    case JSON_FALSE:
        return "no";
    default:
        return "-";
    }
}

char *ampctl_pairs(json_t *object, bool all_digits)
{
    struct amp_buf text;
    const char *name;
    json_t *value;
    int rc = 0;
    amp_buf_init(&text, AMPD_MSG_SIZE_MAX);
    json_object_foreach(object, name, value)
    {
        char buffer[32];
        const char *parts[] = {text.size > 0 ? ";" : "", name, "=", ampctl_cell(value, buffer)};
        if (all_digits && json_is_real(value))
            (void)snprintf(buffer, sizeof buffer, "%.17g", json_real_value(value));
        for (size_t i = 0; rc == 0 && i < sizeof parts / sizeof *parts; i++)
            rc = amp_buf_append(&text, parts[i], strlen(parts[i]));
    }
    if (rc == 0)
        rc = amp_buf_append(&text, "", 1);
    char *printable = rc == 0 ? ampctl_text((const char *)text.data) : NULL;
    amp_buf_close(&text);
    return printable;
}

const char *ampctl_measured(const json_t *value, char buffer[32])
{
    if (!json_is_real(value) || json_real_value(value) == 0)
        return ampctl_cell(value, buffer);
    int size = snprintf(buffer, 32, "%#.6g", json_real_value(value));
    if (buffer[size - 1] == '.')
        buffer[size - 1] = 0;
    return buffer;
}

const char *ampctl_rate(const json_t *row, char buffer[72])
{
    char rate[32], old[32];
    const json_t *before = json_object_get(row, "old_learning_rate");
    bool told = json_is_number(before);
    (void)snprintf(buffer, 72, "%s%s%s", ampctl_cell(json_object_get(row, "learning_rate"), rate), told ? ", was " : "",
                   told ? ampctl_cell(before, old) : "");
    return buffer;
}

/* Of a table; to be freed. */
static char *cell_text(const json_t *row, const char *key)
{
    char buffer[72];
    json_t *value = json_object_get(row, key);
    if (json_is_object(value) && json_object_size(value) > 0)
        return ampctl_pairs(value, false);
    if (strcmp(key, "learning_rate") == 0)
        return ampctl_text(ampctl_rate(row, buffer));
    bool is_measured = strcmp(key, "norm") == 0 || strcmp(key, "clip") == 0 || strcmp(key, "loss") == 0;
    return ampctl_text(is_measured ? ampctl_measured(value, buffer) : ampctl_cell(value, buffer));
}

static int add_line(struct libscols_table *table, const struct ampctl_column *columns, const json_t *row)
{
    struct libscols_line *line = scols_table_new_line(table, NULL);
    int rc = line != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && columns[i].title != NULL; i++) {
        char *text = cell_text(row, columns[i].key);
        rc = text != NULL ? scols_line_refer_data(line, i, text) : -1; /* the line frees it */
        if (rc != 0)
            free(text);
    }
    return rc;
}

static int fill_table(struct libscols_table *table, const struct ampctl_list *list, const json_t *rows)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && list->columns[i].title != NULL; i++)
        if (scols_table_new_column(table, list->columns[i].title, 0, list->columns[i].right ? SCOLS_FL_RIGHT : 0) ==
            NULL)
            rc = -1;
    for (size_t i = 0; rc == 0 && i < json_array_size(rows); i++)
        rc = add_line(table, list->columns, json_array_get(rows, i));
    return rc;
}

static int print_table(const struct ampctl_list *list, const json_t *rows)
{
    if (json_array_size(rows) == 0)
        return 0;
    struct libscols_table *table = scols_new_table();
    if (table == NULL)
        return -1;
    (void)scols_table_set_stream(table, list->out);
    /* Only a terminal has a width to fit in; a file or pipe gets whole values. */
    if (!isatty(fileno(list->out)))
        (void)scols_table_set_termforce(table, SCOLS_TERMFORCE_NEVER);
    (void)scols_table_enable_noheadings(table, list->begun);
    int rc = fill_table(table, list, rows);
    if (rc == 0)
        rc = scols_print_table(table);
    scols_unref_table(table);
    return rc == 0 ? 0 : -1;
}

/* JSON has escapes of its own, and with this flag for U+009B, too, which a terminal may take for ESC [. */
#define JSON_FORM (JSON_COMPACT | JSON_ENSURE_ASCII)

int ampctl_print_json(FILE *out, const json_t *value)
{
    if (value == NULL || json_dumpf(value, out, JSON_FORM) != 0)
        return -1;
    return fputc('\n', out) != EOF ? 0 : -1;
}

static int open_list(struct ampctl_list *list)
{
    if (list->opened)
        return 0;
    list->opened = true;
    return fputs("{\"rows\":[", list->out) != EOF ? 0 : -1;
}

static int print_rows(struct ampctl_list *list, const json_t *rows)
{
    int rc = open_list(list);
    for (size_t i = 0; rc == 0 && i < json_array_size(rows); i++) {
        if (fputs(list->begun ? ",\n" : "\n", list->out) == EOF ||
            json_dumpf(json_array_get(rows, i), list->out, JSON_FORM) != 0)
            rc = -1;
        list->begun = true;
    }
    return rc;
}

static int put_csv_text(FILE *out, const char *text)
{
    if (strpbrk(text, ",\"") == NULL)
        return fputs(text, out) != EOF ? 0 : -1;
    int rc = fputc('"', out);
    for (; *text != 0 && rc != EOF; text++) {
        if (*text == '"')
            rc = fputc('"', out);
        if (rc != EOF)
            rc = fputc(*text, out);
    }
    return rc != EOF && fputc('"', out) != EOF ? 0 : -1;
}

int ampctl_csv_field(FILE *out, json_t *value)
{
    if (json_is_null(value) || value == NULL)
        return 0;
    if (json_is_boolean(value))
        return fputs(json_is_true(value) ? "true" : "false", out) != EOF ? 0 : -1;
    if (!json_is_string(value) && !json_is_object(value))
        return json_dumpf(value, out, JSON_ENCODE_ANY);
    char *text = json_is_object(value) ? ampctl_pairs(value, true) : ampctl_text(json_string_value(value));
    int rc = text != NULL ? put_csv_text(out, text) : -1;
    free(text);
    return rc;
}

static int print_csv(struct ampctl_list *list, const json_t *rows)
{
    int rc = 0;
    for (size_t c = 0; !list->opened && list->columns[c].key != NULL; c++)
        (void)fprintf(list->out, "%s%s%s", c > 0 ? "," : "", list->columns[c].key,
                      list->columns[c + 1].key == NULL ? "\r\n" : "");
    list->opened = true;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        for (size_t c = 0; rc == 0 && list->columns[c].key != NULL; c++) {
            if (c > 0)
                (void)fputc(',', list->out);
            rc = ampctl_csv_field(list->out, json_object_get(json_array_get(rows, i), list->columns[c].key));
        }
        (void)fputs("\r\n", list->out);
    }
    return rc == 0 && !ferror(list->out) ? 0 : -1;
}

int ampctl_list_page(struct ampctl_list *list, const json_t *rows)
{
    if (list->json)
        return print_rows(list, rows);
    if (list->csv)
        return print_csv(list, rows);
    int rc = print_table(list, rows);
    list->begun = list->begun || json_array_size(rows) > 0;
    return rc;
}

int ampctl_list_end(struct ampctl_list *list)
{
    if (list->json)
        return open_list(list) == 0 && fputs("]}\n", list->out) != EOF ? 0 : -1;
    if (list->csv)
        return print_csv(list, NULL);
    if (!list->begun)
        (void)fputs("There are no rows.\n", stderr);
    return 0;
}
