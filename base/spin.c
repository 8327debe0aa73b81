#include "base/spin.h"

bool amp_spin_begin(struct amp_spin *spin, uint64_t now_ns)
{
    if (spin->rest > 0) {
        spin->rest--;
        return false;
    }
    return now_ns >= spin->rest_end_ns;
}

void amp_spin_found(struct amp_spin *spin, uint64_t end_ns, uint64_t now_ns)
{
    if (now_ns < end_ns)
        spin->misses = 0;
    else
        amp_spin_missed(spin, end_ns, now_ns);
}

void amp_spin_missed(struct amp_spin *spin, uint64_t end_ns, uint64_t now_ns)
{
    uint64_t late_ns = now_ns > end_ns ? now_ns - end_ns : 0;
    if (late_ns > AMP_SPIN_CONTENTION_REST_MAX_NS / AMP_SPIN_CONTENTION_REST)
        spin->rest_end_ns = now_ns + AMP_SPIN_CONTENTION_REST_MAX_NS;
    else if (late_ns > AMP_SPIN_CONTENTION_NS)
        spin->rest_end_ns = now_ns + late_ns * AMP_SPIN_CONTENTION_REST;
    if (spin->misses < AMP_SPIN_MISSES)
        spin->misses++;
    if (spin->misses == AMP_SPIN_MISSES) /* stays so until a spin finds work: each further miss rests again */
        spin->rest = AMP_SPIN_REST_WAITS;
}
