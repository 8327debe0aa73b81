#include "server/io/base/pools.h"

#include "server/io/base/options.h"
#include "server/io/base/threads.h"

void io_pools_init(struct io_pools *pools)
{
    *pools = (struct io_pools){0};
    atomic_init(&pools->stop_waiting, false);
}

void io_pools_stop_waiting(struct io_pools *pools)
{
    atomic_store(&pools->stop_waiting, true);
}

int io_pools_open(struct io_pools *pools, uv_loop_t *loop, const struct ampd_server_options *options,
                  struct amp_error *error)
{
    bool may_wait = options->checkpoint_memory < 100; /* a step, for blocks that cannot be saved */
    const struct {
        struct io_threads **pool;
        unsigned count;
        enum io_threads_kind kind;
    } kinds[] = {{&pools->compute, options->compute_threads, IO_THREADS_PATIENT},
                 {&pools->writer, 1, IO_THREADS_SPINNING},
                 {&pools->readers, 1, IO_THREADS_PLAIN},
                 {&pools->exports, 1, IO_THREADS_PLAIN},
                 {&pools->files, 1, may_wait ? IO_THREADS_PLAIN : IO_THREADS_BACKGROUND},
                 {&pools->journal, 1, IO_THREADS_PLAIN}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (io_threads_new(loop, kinds[i].count, kinds[i].kind, kinds[i].pool) != 0)
            return amp_error_set(
                error, AMP_ENOMEM, NULL,
                "cannot start threads; raise the limits of open files and of processes (ulimit -n, -u)");
    return 0;
}
