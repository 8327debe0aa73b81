/* Rows of amp_kernels_avx2 that have a source file of their own. */
#ifndef AMP_KERNELS_AVX2_ADAM_H
#define AMP_KERNELS_AVX2_ADAM_H

#include "amp/kernels.h"

amp_apply_fn amp_avx2_apply_adamw, amp_avx2_apply_adam;
amp_step_fn amp_avx2_step_adamw, amp_avx2_step_adam;

#endif
