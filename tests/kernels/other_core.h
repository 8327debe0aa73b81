/*
 * In the place of what amp/kernels/x86_tuning.h finds: a core of AMD's with the other first cache level than this one
 * has, so that a test takes the branches that the kernels of this processor leave out.
 */
#ifndef OTHER_CORE_H
#define OTHER_CORE_H

#include <unistd.h>

#define ON_AMD            true
#define SMALL_FIRST_LEVEL (sysconf(_SC_LEVEL1_DCACHE_SIZE) >= 48 * 1024)
#define ON_ZEN5           (!SMALL_FIRST_LEVEL)

#endif
