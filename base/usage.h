/*
 * Writes manual pages and bash completion from the tables of options by which argp parses the command line, so that
 * these and --help cannot differ; and suggests the name that was probably meant by a misspelled one.
 */
#ifndef AMP_BASE_USAGE_H
#define AMP_BASE_USAGE_H

#include "base/buf.h"

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * The name among `count` names, none with capitals, that was probably meant by `wrong`, whatever its capitals: the only
 * one that begins with it, else the nearest one within a few typing errors (one in a short word). NULL: there is none.
 */
const char *amp_usage_near(const char *wrong, const char *const *names, size_t count);

/*
 * Checks the long options of a command line before argp parses it, since argp makes no suggestions for unknown ones.
 * `tables` is an array of tables of options that ends with NULL. With `mixed` options may also follow arguments that
 * are no options. False: an option is unknown, and `text` (of `capacity` bytes) says which and what was probably meant.
 */
bool amp_usage_options_known(int argc, char **argv, const struct argp_option *const *tables, bool mixed, char *text,
                             size_t capacity);

/* Whether `argument` is, in full, one of these options ("-x" or "--name") that takes the next argument as its value. */
bool amp_usage_takes_next(const struct argp_option *options, const char *argument);

/* ---- a manual page: source text for scdoc(1). Each function appends to `out`; 0 or an error of amp_buf_append ---- */

/* Appends text of a paragraph; characters that have a meaning to scdoc are escaped. */
int amp_usage_man_text(struct amp_buf *out, const char *text);
/* Appends the list of options, in the order of the table, without the hidden ones. */
int amp_usage_man_options(struct amp_buf *out, const struct argp_option *options);
/* Appends a block of lines that a user types, literally. */
int amp_usage_man_examples(struct amp_buf *out, const char *lines);

/* ---- a script of bash completion. Each function appends to `out`; 0 or an error of amp_buf_append ---- */

/* Begins the script for `program`, whose name has only letters, digits and underscores. */
int amp_usage_bash_begin(struct amp_buf *out, const char *program);
/*
 * Adds a verb of one or two words with its options; "" stands for the options before any verb. `arguments` is the text
 * in its usage, as "MODEL [FILE]": completion offers files for FILE, DIR and FOLDER, and for MODEL what the program's
 * verb "models" lists. `first` has words for the first argument with bars between them; NULL: none.
 */
int amp_usage_bash_verb(struct amp_buf *out, const char *verb, const struct argp_option *options, const char *arguments,
                        const char *first);
/* Ends the script. `verbs` has the names of all verbs, one a line. */
int amp_usage_bash_end(struct amp_buf *out, const char *program, const char *verbs);

#endif
