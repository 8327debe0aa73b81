/* How far a model with a last step is, and how long the rest takes at the pace of the steps seen. Pure functions. */
#ifndef AMPCTL_PROGRESS_H
#define AMPCTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* A zeroed one has seen no step. */
struct ampctl_progress {
    uint64_t last_step;        /* of the model; 0: it has none */
    bool begun;                /* a step was added */
    uint64_t first_step, step; /* the first and the last step that were added */
    int64_t first_us, us;      /* when these were decided, in microseconds */
};

/* Adds a step and when it was decided. A step that is not above the last one (a rollback) begins the count again. */
void ampctl_progress_add(struct ampctl_progress *progress, uint64_t step, int64_t us);

/* Seconds until the last step; negative: not known. */
double ampctl_progress_left_s(const struct ampctl_progress *progress);

/* "42%" and "1:02:03", or "-" for what is not known. */
void ampctl_progress_text(const struct ampctl_progress *progress, char done[16], char left[24]);

#endif
