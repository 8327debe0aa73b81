/*
 * What a command line offers, told from the tables that argp parses it by, so that --help, the manual page and bash's
 * completion cannot differ; and which name was meant where none is there.
 */
#ifndef AMP_BASE_USAGE_H
#define AMP_BASE_USAGE_H

#include "base/buf.h"

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * The one of `count` names that `wrong` is a slip of the keyboard away from, or the beginning of; NULL: none, or more
 * than one begins so.
 */
const char *amp_usage_near(const char *wrong, const char *const *names, size_t count);

/*
 * Looks at the long options of a command line before argp does, which names none that was meant. `tables` end with
 * NULL; arguments from the first that is no option on are looked at only with `mixed`. False: *text says what is wrong.
 */
bool amp_usage_options_known(int argc, char **argv, const struct argp_option *const *tables, bool mixed, char *text,
                             size_t capacity);

/* Of these options: whether `argument` is one in full whose value is the next argument. */
bool amp_usage_takes_next(const struct argp_option *options, const char *argument);

/* ---- a manual page: text for scdoc(1). Each appends; 0 or an error of amp_buf_append ---- */

/* A text as a paragraph's words: what scdoc has a meaning for is escaped. */
int amp_usage_man_text(struct amp_buf *out, const char *text);
/* Options, in the order of the table; hidden ones are left out. */
int amp_usage_man_options(struct amp_buf *out, const struct argp_option *options);
/* Lines that a user types, as they are. */
int amp_usage_man_examples(struct amp_buf *out, const char *lines);

/* ---- bash's completion. Each appends; 0 or an error of amp_buf_append ---- */

/* The beginning of the script, up to the lists of words; `program` is a name of letters, digits and underscores. */
int amp_usage_bash_begin(struct amp_buf *out, const char *program);
/*
 * A verb, of one word or two ("": the options before any), with its options. `arguments` as in its usage, "MODEL
 * [FILE]": files are offered for FILE, DIR and FOLDER, for MODEL what the program's verb "models" lists, and for the
 * first one the words of `first`, with bars between them; NULL: none.
 */
int amp_usage_bash_verb(struct amp_buf *out, const char *verb, const struct argp_option *options, const char *arguments,
                        const char *first);
/* `verbs` is the list of all, a line each. */
int amp_usage_bash_end(struct amp_buf *out, const char *program, const char *verbs);

#endif
