/* A row of amp_kernels_avx2 that has a source file of its own. */
#ifndef AMP_KERNELS_AVX2_VOTE_H
#define AMP_KERNELS_AVX2_VOTE_H

#include "amp/kernels.h"

amp_vote_fn amp_avx2_vote;

#endif
