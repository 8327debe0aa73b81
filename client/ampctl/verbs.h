/*
 * The table of ampctl's verbs with their options. The command line is parsed by it, and --help, the manual page and
 * bash's completion are made from it.
 */
#ifndef AMPCTL_VERBS_H
#define AMPCTL_VERBS_H

#include <argp.h>
#include <stddef.h>
#include <stdint.h>

struct ampctl;

struct ampctl_verb {
    const char *name;                  /* one word or two */
    const char *arguments;             /* as in the usage line; NULL: none */
    const char *first;                 /* possible first arguments, separated by bars; NULL: there is no such list */
    const char *summary;               /* one line for the list of verbs */
    const char *doc;                   /* text of the verb's --help */
    const char *examples;              /* lines */
    const struct argp_option *options; /* its own options; NULL: none */
    argp_parser_t parser;              /* of its options and arguments */
    uint64_t timeout_ms;               /* limit of each call without --timeout; 0: AMPCTL_TIMEOUT_MS */
    /* Runs the verb; argv[0] is the last word of its name. Returns the exit code. */
    int (*run)(struct ampctl *ctl, int argc, char **argv);
    void (*prepare)(void); /* fills tables of the verb that are not constant, before all else; NULL: there are none */
};

extern const struct ampctl_verb ampctl_ready_verb, ampctl_doctor_verb, ampctl_status_verb, ampctl_models_verb,
    ampctl_top_verb, ampctl_cluster_verb, ampctl_config_verb, ampctl_history_verb, ampctl_overflows_verb,
    ampctl_explain_verb, ampctl_replay_verb, ampctl_watch_verb, ampctl_tensorboard_verb, ampctl_create_verb,
    ampctl_checkpoint_verb, ampctl_checkpoints_verb, ampctl_export_verb, ampctl_import_verb, ampctl_backup_verb,
    ampctl_restore_verb, ampctl_rollback_verb, ampctl_scale_set_verb, ampctl_scale_reset_verb, ampctl_set_lr_verb,
    ampctl_delete_verb, ampctl_evict_verb, ampctl_drain_verb, ampctl_log_level_verb, ampctl_token_verb;

/* All verbs, in the order of the list in --help; NULL at the end. */
extern const struct ampctl_verb *const ampctl_verbs[];

/* Bound of the number of verbs' names and of first words of two-word verbs together. */
#define AMPCTL_VERB_NAMES_MAX 64

/*
 * The verb that the words of a command line begin with, and in *words how many of them are its name. NULL: there is
 * none, and *meant is a similar name (a constant), or NULL.
 */
const struct ampctl_verb *ampctl_verb_find(int argc, char **argv, int *words, const char **meant);

#endif
