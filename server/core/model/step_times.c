#include "server/core/model/step_times.h"

#include <string.h>

void ampd_step_times(const struct ampd_step_moments *moments, uint64_t times_us[AMPD_STEP_TIMES])
{
    const int64_t ends[] = {
        [AMPD_STEP_TIME_APPLY] = moments->applied, [AMPD_STEP_TIME_PULL] = moments->pulled,
        [AMPD_STEP_TIME_WAIT] = moments->pushed,   [AMPD_STEP_TIME_PUSH] = moments->whole,
        [AMPD_STEP_TIME_VOTE] = moments->decided,
    };
    memset(times_us, 0, AMPD_STEP_TIMES * sizeof *times_us);
    int64_t from = moments->before;
    for (int i = 0; from > 0 && i < AMPD_STEP_TIMES; i++) {
        int64_t end = ends[i] < moments->decided ? ends[i] : moments->decided;
        if (end <= from)
            continue;
        times_us[i] = (uint64_t)(end - from);
        from = end;
    }
}
