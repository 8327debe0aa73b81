/* Common loss scales, by name. Source: the specification of the static loss scaler (ScaleFactor). */
#ifndef AMP_SCALE_PRESETS_H
#define AMP_SCALE_PRESETS_H

#include "amp/dtype.h"
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define AMP_SCALE_NONE         1.0f
#define AMP_SCALE_CONSERVATIVE 256.0f     /* 2^8 */
#define AMP_SCALE_MODERATE     65536.0f   /* 2^16 */
#define AMP_SCALE_AGGRESSIVE   1048576.0f /* 2^20 */

/*
 * *scale = 2^exponent, exactly. 0; AMP_ERANGE outside [-126, 127], where fp32 has no normal number, and *scale is as it
 * was. Pure; any thread.
 */
int amp_scale_power_of_two(int exponent, float *scale, struct amp_error *error);

/*
 * AMP_SCALE_MODERATE for f16, whose range is narrow; AMP_SCALE_NONE for bf16, f32 and f64, which have fp32's range or
 * more, and for AMP_DTYPE_NONE and unknown numbers. Pure; any thread.
 */
float amp_scale_recommended(enum amp_dtype precision);

#ifdef __cplusplus
}
#endif

#endif
