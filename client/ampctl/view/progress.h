/* How far a model with a last step is, and how long the rest takes at the pace of the steps that were seen. Pure. */
#ifndef AMPCTL_PROGRESS_H
#define AMPCTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* A zeroed one has seen no step. */
struct ampctl_progress {
    uint64_t last_step; /* of the model; 0: it has none */
    bool begun;
    uint64_t first_step, step;
    int64_t first_us, us;
};

/* A step, and when it was decided. One at or below those before (a rollback) begins anew. */
void ampctl_progress_add(struct ampctl_progress *progress, uint64_t step, int64_t us);

/* Seconds that are left; negative: not known. */
double ampctl_progress_left_s(const struct ampctl_progress *progress);

/* "42%" and "1:02:03", or "-" for what is not known. */
void ampctl_progress_text(const struct ampctl_progress *progress, char done[16], char left[24]);

#endif
