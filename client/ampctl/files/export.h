/* A checkpoint as one file: what `checkpoint export` and `backup` share. */
#ifndef AMPCTL_EXPORT_H
#define AMPCTL_EXPORT_H

#include "client/ampctl/ctl.h"
#include "storage/records_memory.h"

/* What was exported. */
struct ampctl_exported {
    uint64_t epoch, step, version;
    uint64_t decided; /* the model's last decided step when the export began */
    struct ampd_carry carry;
    uint32_t world_size;
    uint32_t user_states_sizes[AMPD_WORLD_MAX];
};

/*
 * Writes all of the newest checkpoint of a model to a file that must not be there, verified and synced; *made says what
 * it is. Opens and closes `ctl` itself. 0, or an exit code after a sentence on stderr; then there is no file.
 */
int ampctl_export_full(struct ampctl *ctl, const char model[128], const char *file, struct ampctl_exported *made);

#endif
