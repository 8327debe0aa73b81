#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void amp_assert_failed(const char *file, int line, const char *expression)
{
    (void)fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, expression);
    abort();
}

static void (*end_process)(void);

void amp_memory_out_set(void (*end)(void))
{
    end_process = end;
}

_Noreturn void amp_memory_out(const char *file, int line)
{
    (void)fprintf(stderr,
                  "%s:%d: out of memory for work that was already acknowledged: this process ends; a restarted one "
                  "continues from what is stored\n",
                  file, line);
    if (end_process != NULL)
        end_process();
    abort();
}
