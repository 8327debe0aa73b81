#include "examples/charlm/charlm.h"
int charlm_run_worker(const struct charlm_options *options, const struct amp_kernels *kernels,
                      const struct charlm_text *text)
{
    return 1;
}
