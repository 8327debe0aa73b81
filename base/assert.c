#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void amp_assert_failed(const char *file, int line, const char *expression)
{
    (void)fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, expression);
    abort();
}
