/* A row of amp_kernels_avx512 that has a source file of its own. */
#ifndef AMP_KERNELS_AVX512_VOTE_H
#define AMP_KERNELS_AVX512_VOTE_H

#include "amp/kernels.h"

amp_vote_fn amp_avx512_vote;

#endif
