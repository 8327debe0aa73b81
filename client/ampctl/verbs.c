#include "client/ampctl/verbs.h"

#include "base/assert.h"
#include "base/usage.h"

#include <stdio.h>
#include <string.h>

const struct ampctl_verb *const ampctl_verbs[] = {
    &ampctl_ready_verb,
    &ampctl_doctor_verb,
    &ampctl_status_verb,
    &ampctl_models_verb,
    &ampctl_top_verb,
    &ampctl_cluster_verb,
    &ampctl_config_verb,
    &ampctl_history_verb,
    &ampctl_overflows_verb,
    &ampctl_explain_verb,
    &ampctl_replay_verb,
    &ampctl_watch_verb,
    &ampctl_tensorboard_verb,
    &ampctl_create_verb,
    &ampctl_checkpoint_verb,
    &ampctl_checkpoints_verb,
    &ampctl_export_verb,
    &ampctl_import_verb,
    &ampctl_backup_verb,
    &ampctl_restore_verb,
    &ampctl_rollback_verb,
    &ampctl_scale_set_verb,
    &ampctl_scale_reset_verb,
    &ampctl_set_lr_verb,
    &ampctl_evict_verb,
    &ampctl_delete_verb,
    &ampctl_drain_verb,
    &ampctl_log_level_verb,
    &ampctl_token_verb,
    NULL,
};

/* Whether `name` begins with this whole word. */
static bool begins_with(const char *name, const char *word)
{
    size_t size = strlen(word);
    return strncmp(name, word, size) == 0 && (name[size] == ' ' || name[size] == 0);
}

static const struct ampctl_verb *find(const char *name)
{
    for (const struct ampctl_verb *const *at = ampctl_verbs; *at != NULL; at++)
        if (strcmp((*at)->name, name) == 0)
            return *at;
    return NULL;
}

/* What was meant: of two words if the first of them is that of a verb, else of one. */
static const char *near(const char *word, const char *both)
{
    const char *names[AMPCTL_VERB_NAMES_MAX];
    size_t count = 0;
    for (const struct ampctl_verb *const *at = ampctl_verbs; *at != NULL; at++) {
        AMP_ASSERT(count < AMPCTL_VERB_NAMES_MAX);
        names[count++] = (*at)->name;
    }
    const char *meant = amp_usage_near(both, names, count);
    if (meant == NULL)
        meant = amp_usage_near(word, names, count);
    for (size_t i = 0; meant == NULL && i < count; i++)
        if (begins_with(names[i], word))
            meant = names[i];
    return meant;
}

const struct ampctl_verb *ampctl_verb_find(int argc, char **argv, int *words, const char **meant)
{
    char both[64];
    (void)snprintf(both, sizeof both, "%s %s", argv[0], argc > 1 ? argv[1] : "");
    const struct ampctl_verb *verb = find(both);
    *words = 2;
    if (verb == NULL) {
        verb = find(argv[0]);
        *words = 1;
    }
    *meant = verb == NULL ? near(argv[0], both) : NULL;
    return verb;
}
