#include "base/look.h"

bool amp_look_begin(struct amp_look *look, uint64_t now_ns)
{
    if (look->rest > 0) {
        look->rest--;
        return false;
    }
    return now_ns >= look->rest_end_ns;
}

void amp_look_found(struct amp_look *look, uint64_t end_ns, uint64_t now_ns)
{
    if (now_ns < end_ns)
        look->misses = 0;
    else
        amp_look_missed(look, end_ns, now_ns);
}

void amp_look_missed(struct amp_look *look, uint64_t end_ns, uint64_t now_ns)
{
    uint64_t late_ns = now_ns > end_ns ? now_ns - end_ns : 0;
    if (late_ns > AMP_LOOK_CROWD_REST_MAX_NS / AMP_LOOK_CROWD_REST)
        look->rest_end_ns = now_ns + AMP_LOOK_CROWD_REST_MAX_NS;
    else if (late_ns > AMP_LOOK_CROWD_NS)
        look->rest_end_ns = now_ns + late_ns * AMP_LOOK_CROWD_REST;
    if (look->misses < AMP_LOOK_MISSES)
        look->misses++;
    if (look->misses == AMP_LOOK_MISSES) /* and the next one in vain is one too many again */
        look->rest = AMP_LOOK_REST_WAITS;
}
