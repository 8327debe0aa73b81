#include "storage/json_memory.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>

static pthread_once_t hooked = PTHREAD_ONCE_INIT;
static _Thread_local bool failed;

static void *allocate(size_t size)
{
    void *memory = malloc(size);
    failed = failed || memory == NULL;
    return memory;
}

static void hook(void)
{
    json_set_alloc_funcs(allocate, free);
}

void ampd_json_begin(void)
{
    (void)pthread_once(&hooked, hook); /* fails for no argument that is valid */
    failed = false;
}

bool ampd_json_no_memory(void)
{
    return failed;
}
