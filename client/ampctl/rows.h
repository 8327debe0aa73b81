/*
 * Messages as JSON objects, and rows of such objects as a table or as JSON. One description serves both: a table shows
 * some of the keys.
 */
#ifndef AMPCTL_ROWS_H
#define AMPCTL_ROWS_H

#include "proto/msg.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* ---- messages as new objects, which the caller frees (json_decref); NULL: out of memory ---- */

json_t *ampctl_history_row(const struct ampd_msg_scale_history_row *row);
json_t *ampctl_overflow_row(const struct ampd_msg_overflow_row *row);
json_t *ampctl_model_row(const struct ampd_msg_model_status *model, bool with_workers);
/* An array of ampctl_model_row for each model. */
json_t *ampctl_model_rows(const struct ampd_msg_model_status_list *models, bool with_workers);
json_t *ampctl_checkpoint_row(const struct ampd_msg_checkpoint_info *checkpoint);

/* one_model: the answer is about one model, whose steps are in the row, too. */
json_t *ampctl_cluster_row(const struct ampd_msg_cluster_shard *shard, bool one_model);
json_t *ampctl_standby_row(const struct ampd_msg_cluster_standby *standby);

json_t *ampctl_replayed_row(const struct ampd_msg_replayed_step *step);

/*
 * A specification of the server, with all defaults filled in, as an object; and printed, a line for each part.
 * `rate_set`: the learning rate that an operator has set in its place; null or NULL: none.
 */
json_t *ampctl_spec_object(const struct ampd_msg_model_spec *spec);
void ampctl_print_spec(FILE *out, const json_t *spec, const json_t *rate_set);

const char *ampctl_state_name(enum ampd_msg_model_state state);
const char *ampctl_policy_name(enum ampd_msg_scaler_policy policy);
const char *ampctl_optimizer_name(enum ampd_msg_optimizer_kind kind);

/* The name of a value of an enumeration; "unknown" for 0, and for values that only a newer server knows. */
const char *ampctl_name_of(const char *const *names, size_t count, unsigned value);
#define AMPCTL_NAME_OF(names, value) ampctl_name_of(names, sizeof names / sizeof *(names), (unsigned)(value))

/* A JSON number; null for Inf and NaN, which JSON does not have. */
json_t *ampctl_real(double value);

/*
 * Puts a value into an object that is being made, and takes the value in every case. After a failure (value NULL: out
 * of memory) the object is freed and NULL, and stays NULL, so that one check at the end is enough.
 */
void ampctl_put(json_t **object, const char *key, json_t *value);
/* The policy of this name; UNSPECIFIED: there is none. */
enum ampd_msg_scaler_policy ampctl_policy(const char *name);

/* ---- tables ---- */

struct ampctl_column {
    const char *key;
    const char *title; /* NULL: in CSV alone; such columns are the last */
    bool right;        /* numbers */
};

extern const struct ampctl_column ampctl_history_columns[];
extern const struct ampctl_column ampctl_overflow_columns[];
extern const struct ampctl_column ampctl_model_columns[];
extern const struct ampctl_column ampctl_worker_columns[];
extern const struct ampctl_column ampctl_checkpoint_columns[];
extern const struct ampctl_column ampctl_replay_columns[];

/*
 * The text of a value in a table, not escaped: "-" for null, "yes" or "no", numbers in a short form. A view of the
 * value or of `buffer`, which holds the longest number.
 */
const char *ampctl_cell(const json_t *value, char buffer[32]);

/* As ampctl_cell, for measured numbers (norms, losses): six digits of each number but 0, so that a column is even. */
const char *ampctl_measured(const json_t *value, char buffer[32]);

/* The learning rate of a history row in a table; "0.25, was 0.5" in a row that sets it, if the old one is known. */
const char *ampctl_rate(const json_t *row, char buffer[72]);

/*
 * Makes "acc=0.93;top5=0.99" from {"acc":0.93,"top5":0.99}, with short numbers as in a table, or with all digits. It is
 * printable, and the caller frees it. NULL: out of memory.
 */
char *ampctl_pairs(json_t *object, bool all_digits);

/*
 * A list that comes in pages: one JSON object with all rows, or a table whose titles stand above the first page.
 * Nothing is printed before the first page is there, so that a call that fails at once leaves stdout empty. Functions
 * return 0, or -1: out of memory, or `out` failed.
 */
struct ampctl_list {
    FILE *out;
    bool json, csv;                      /* neither: a table */
    const struct ampctl_column *columns; /* ends with a key of NULL */
    bool opened;                         /* the head of the JSON object, or of the CSV, has been printed */
    bool begun;                          /* a row has been printed */
};
int ampctl_list_page(struct ampctl_list *list, const json_t *rows);
/* Closes the JSON object; a table without any row says so on stderr. */
int ampctl_list_end(struct ampctl_list *list);

/*
 * One field of a CSV record by RFC 4180: in quotes where it needs them, numbers with all digits, null empty. Control
 * characters are escaped (print.h), so that a record is a line. 0 or -1.
 */
int ampctl_csv_field(FILE *out, json_t *value);

/* Prints one object as a line of JSON, in ASCII. 0; -1: out of memory, or `out` failed. */
int ampctl_print_json(FILE *out, const json_t *value);

#endif
