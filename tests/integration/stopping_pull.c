/* For LD_PRELOAD, in front of libampclient: stops the process (SIGSTOP) when its first ampclient_pull has returned. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "client/ampclient.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

__attribute__((visibility("default"))) int ampclient_pull(struct ampclient_model *model, uint64_t *version)
{
    static bool stopped;
    void *next = dlsym(RTLD_NEXT, "ampclient_pull");
    int (*pull)(struct ampclient_model *, uint64_t *);
    memcpy(&pull, &next, sizeof pull);
    int rc = pull(model, version);
    if (rc == 0 && !stopped) {
        stopped = true;
        (void)raise(SIGSTOP);
    }
    return rc;
}
