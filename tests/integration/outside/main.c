/* A program outside the tree: autocast of one tensor, and a gradient that is unscaled and found finite. */
#include "amp/autocast.h"
#include "amp/cpu.h"
#include "amp/dlpack.h"
#include "amp/dynamic_scaler.h"
#include "amp/grad.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    float weights[4] = {1, 2, 3, 65536};
    uint16_t low[4];
    struct amp_tensor_view in = {weights, 4, AMP_F32, 0, 0};
    struct amp_tensor_view out;
    struct amp_error error;
    struct amp_dlpack_managed *shared;
    if (amp_autocast_enter(AMP_AUTOCAST_FP16) != 0)
        return 1;
    int code = amp_autocast_cast(&amp_kernels_ref, "linear", &in, NULL, low, sizeof low, &out, &error);
    amp_autocast_exit();
    if (code != 0 || out.dtype != AMP_F16 || low[0] != 0x3c00 || low[3] != 0x7c00)
        return 2;
    if (amp_dlpack_export(&out, NULL, 0, true, NULL, NULL, &shared, &error) != 0)
        return 3;
    shared->deleter(shared);
    enum amp_dtype dtype = AMP_F16;
    if (amp_autocast_enter(AMP_AUTOCAST_FP16) != 0)
        return 4;
    code = amp_autocast_promote("binary_cross_entropy", &dtype, 1, &dtype, &error);
    amp_autocast_exit();
    if (code != AMP_EINVAL || strstr(error.text, "with_logits") == NULL)
        return 5;
    (void)printf("amp works outside the tree: %s\n", amp_strerror(0));
    return 0;
}
