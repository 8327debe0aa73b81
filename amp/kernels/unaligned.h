/* Elements at any address: arrays of a caller may begin at odd ones. */
#ifndef AMP_KERNELS_UNALIGNED_H
#define AMP_KERNELS_UNALIGNED_H

#include <stdint.h>

typedef float any_f32 __attribute__((aligned(1)));
typedef uint16_t any_u16 __attribute__((aligned(1)));

#endif
