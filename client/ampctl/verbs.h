/*
 * What ampctl can do: a table of verbs with their options, which the command line is parsed by, and of which --help,
 * the manual page and bash's completion are made.
 */
#ifndef AMPCTL_VERBS_H
#define AMPCTL_VERBS_H

#include <argp.h>
#include <stddef.h>

struct ampctl;

struct ampctl_verb {
    const char *name;      /* of one word or two */
    const char *arguments; /* NULL: none */
    const char *first;     /* what the first argument may be, with bars between them; NULL: much */
    const char *summary;   /* for the list of verbs */
    const char *doc;
    const char *examples;              /* lines */
    const struct argp_option *options; /* its own; NULL: none */
    argp_parser_t parser;
    /* argv[0] is the last word of the verb. Returns the exit code. */
    int (*run)(struct ampctl *ctl, int argc, char **argv);
    void (*prepare)(void); /* fills a table that is not constant; NULL: nothing to fill */
};

extern const struct ampctl_verb ampctl_ready_verb, ampctl_doctor_verb, ampctl_status_verb, ampctl_models_verb,
    ampctl_top_verb, ampctl_cluster_verb, ampctl_config_verb, ampctl_history_verb, ampctl_overflows_verb,
    ampctl_explain_verb, ampctl_replay_verb, ampctl_watch_verb, ampctl_tensorboard_verb, ampctl_create_verb,
    ampctl_checkpoint_verb, ampctl_checkpoints_verb, ampctl_export_verb, ampctl_import_verb, ampctl_backup_verb,
    ampctl_restore_verb, ampctl_rollback_verb, ampctl_scale_set_verb, ampctl_scale_reset_verb, ampctl_set_lr_verb,
    ampctl_delete_verb, ampctl_evict_verb, ampctl_drain_verb, ampctl_log_level_verb, ampctl_token_verb;

/* All of them, in the order of the list; NULL at the end. */
extern const struct ampctl_verb *const ampctl_verbs[];

/* Names of verbs, and words that two-word verbs begin with: at most so many. */
#define AMPCTL_VERB_NAMES_MAX 64

/*
 * The verb of a command line's words, and how many of them are its name; NULL: there is none, and *meant is the name
 * that is near, or NULL.
 */
const struct ampctl_verb *ampctl_verb_find(int argc, char **argv, int *words, const char **meant);

#endif
