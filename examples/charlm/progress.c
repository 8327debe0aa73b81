#include "examples/charlm/charlm.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

/* Steps between two lines on stdout. */
#define PROGRESS_EVERY 50

double charlm_now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int charlm_progress_open(struct charlm_progress *progress, const struct charlm_options *options)
{
    *progress = (struct charlm_progress){.options = options};
    if (options->log_path == NULL)
        return 0;
    progress->log = fopen(options->log_path, "w");
    if (progress->log != NULL) {
        (void)setvbuf(progress->log, NULL, _IOLBF, 0); /* whoever follows the file sees each step */
        return 0;
    }
    (void)fprintf(stderr, "charlm: --log %s: %s\n", options->log_path, strerror(errno));
    return -1;
}

void charlm_progress_close(struct charlm_progress *progress)
{
    if (progress->log != NULL)
        (void)fclose(progress->log);
    progress->log = NULL;
}

void charlm_progress_step(struct charlm_progress *progress, uint64_t step, double loss, float scale, double norm,
                          bool skipped)
{
    const struct charlm_options *options = progress->options;
    double now_s = charlm_now_s();
    if (progress->log != NULL)
        (void)fprintf(progress->log, "%" PRIu64 "\t%.6f\t%.9g\t%.6g\t%d\n", step, loss, (double)scale, norm, skipped);
    if (progress->first_step == 0) {
        progress->first_step = progress->shown_step = step;
        progress->first_s = progress->shown_s = now_s;
    }
    if (options->quiet || (!skipped && step % PROGRESS_EVERY != 0 && step != options->steps))
        return;
    double steps = (double)(step - progress->shown_step), seconds = now_s - progress->shown_s;
    double tokens = steps * (double)(options->shape.sequences * options->shape.context * options->world);
    double all_s = now_s - progress->first_s, done = (double)(step - progress->first_step);
    double left_s = done > 0.0 ? all_s / done * (double)(options->steps - step) : 0.0;
    (void)printf("step %5" PRIu64 "/%" PRIu64
                 "  loss %6.4f  %6.0f tokens/s  scale %8.0f  norm %6.3f  %s%02d:%02d left\n",
                 step, options->steps, loss, seconds > 0.0 ? tokens / seconds : 0.0, (double)scale, norm,
                 skipped ? "skipped: overflow  " : "", (int)(left_s / 60.0), (int)left_s % 60);
    (void)fflush(stdout);
    progress->shown_step = step;
    progress->shown_s = now_s;
}
