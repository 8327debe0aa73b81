/* The command line of ampctl: the options of all verbs, and arguments that several verbs take. */
#ifndef AMPCTL_PARSE_H
#define AMPCTL_PARSE_H

#include "client/ampctl/ctl.h"
#include "client/ampctl/verbs.h"

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#define AMPCTL_DEFAULT_ENDPOINT "127.0.0.1:7420"

/* The options that come before or after the verb; the input is a struct ampctl. */
extern const struct argp ampctl_common_argp;

extern const struct argp_option ampctl_common_options[];

/*
 * Parses a verb's arguments: its own options (input: `input`) and the common ones; sets the time limit of its calls. A
 * usage error ends the program with argp_err_exit_status.
 */
void ampctl_parse(struct ampctl *ctl, const struct ampctl_verb *verb, void *input, int argc, char **argv);

/* Says what is wrong with an option (amp_usage_options_known), and ends the program with a usage error. */
_Noreturn void ampctl_wrong_option(const char *program, const char *wrong);

/* Copies an argument into a field of a message, or ends the program with a usage error. */
void ampctl_name(struct argp_state *state, char field[128], const char *value);
/* For verbs that take one model: ARGP_KEY_ARG and ARGP_KEY_NO_ARGS; ARGP_ERR_UNKNOWN for every other key. */
error_t ampctl_one_model(int key, char *arg, struct argp_state *state, char field[128]);
/*
 * For verbs that take one model and one word more, which is borrowed: as ampctl_one_model, and ARGP_KEY_END. `what`
 * names the word, and `missing` is what to say without it.
 */
error_t ampctl_model_and(int key, char *arg, struct argp_state *state, char field[128], const char **word,
                         const char *what, const char *missing);
error_t ampctl_model_and_file(int key, char *arg, struct argp_state *state, char field[128], const char **file);
/* The greatest number (step, epoch and others) that a server can store. */
#define AMPCTL_NUMBER_MAX ((uint64_t)INT64_MAX)
/* Parses a number from 0 to `max`, or ends the program with a usage error that names the option and `max`. */
uint64_t ampctl_number(struct argp_state *state, const char *option, const char *value, uint64_t max);
/* At the end of the options: a usage error if --to was given and is before --from. */
error_t ampctl_from_to(struct argp_state *state, uint64_t from, bool has_to, uint64_t to);

#endif
