#include "client/ampctl/view/progress.h"

#include <inttypes.h>
#include <stdio.h>

/* A rest that takes longer is shown as this: nobody plans by it. */
#define LEFT_MAX_S (1000 * 3600.0)

void ampctl_progress_add(struct ampctl_progress *progress, uint64_t step, int64_t us)
{
    if (!progress->begun || step <= progress->step || us < progress->us) {
        progress->begun = true;
        progress->first_step = step;
        progress->first_us = us;
    }
    progress->step = step;
    progress->us = us;
}

double ampctl_progress_left_s(const struct ampctl_progress *progress)
{
    if (progress->last_step == 0 || !progress->begun)
        return -1;
    if (progress->step >= progress->last_step)
        return 0;
    if (progress->step == progress->first_step)
        return -1;
    double a_step = (double)(progress->us - progress->first_us) / 1e6 / (double)(progress->step - progress->first_step);
    return a_step * (double)(progress->last_step - progress->step);
}

void ampctl_progress_text(const struct ampctl_progress *progress, char done[16], char left[24])
{
    double seconds = ampctl_progress_left_s(progress);
    (void)snprintf(done, 16, "-");
    (void)snprintf(left, 24, "-");
    if (progress->last_step == 0 || !progress->begun)
        return;
    uint64_t step = progress->step < progress->last_step ? progress->step : progress->last_step;
    (void)snprintf(done, 16, "%.0f%%", (double)step / (double)progress->last_step * 100);
    if (seconds > LEFT_MAX_S)
        (void)snprintf(left, 24, ">1000h");
    else if (seconds >= 0) {
        uint64_t whole = (uint64_t)(seconds + 0.5);
        (void)snprintf(left, 24, "%" PRIu64 ":%02u:%02u", whole / 3600, (unsigned)(whole / 60 % 60),
                       (unsigned)(whole % 60));
    }
}
