/*
 * What the server tells of itself to Prometheus: counts and times that this room takes, and a text of them and of what core,
 * rpc and system know. Names of calls are those of go-grpc-prometheus, which etcd has too; docs/operations.md has the list.
 */
#ifndef AMPD_IO_METRICS_H
#define AMPD_IO_METRICS_H

#include "base/metric.h"
#include "server/core/core.h"

#include <stdatomic.h>
#include <stdint.h>

struct ampd_server;

/* Models that have rows of their own: the first ones that there are. A Prometheus copes with a server of so many rows. */
#define IO_METRICS_MODELS_MAX 256

/* Longest text: so many models of 40 rows with the longest names take half of it. */
#define IO_METRICS_BYTES_MAX ((size_t)4 << 20)

/* Upper ends of buckets of times on the disk, in seconds: a record on an idle NVMe disk up to a checkpoint of 64 GB. */
#define IO_TIMING_BOUNDS                                                                                               \
    {                                                                                                                  \
        0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1, 2, 4, 16, 64, 256             \
    }
#define IO_TIMING_BUCKETS 18

/* How long something takes. Zeroed: nothing was counted. */
struct io_timing {
    atomic_uint_least64_t counts[IO_TIMING_BUCKETS];
    atomic_uint_least64_t total_us;
};

/* Steps that one model has decided in this process. */
struct io_model_counts {
    uint64_t applied, overflows, empty;
};

struct io_metrics {
    struct io_timing commit;              /* of the store: one transaction, with its sync where it has one */
    struct io_timing journal;             /* of a vote's record, with its sync */
    struct io_timing checkpoint, restore; /* of this shard's part */
    atomic_uint_least64_t checkpoint_bytes;
    struct io_model_counts models[AMPD_MODELS_MAX];
};

/* Microseconds of a clock that does not go back. Any thread. */
uint64_t io_metrics_now_us(void);

/* Counts what began at `from_us` and is over now. Any thread. */
void io_timing_add(struct io_timing *timing, uint64_t from_us);

/* A row of a model was stored. On the loop. */
void io_metrics_row(struct ampd_server *server, uint32_t model, const struct ampd_step_row *row);

/* The model is gone; its place may become another one's. On the loop. */
void io_metrics_forget(struct ampd_server *server, uint32_t model);

/* Writes everything; text->error tells what went wrong. On the loop. */
void io_metrics_write(const struct ampd_server *server, struct amp_metric_text *text);

/* ---- the parts of it ---- */

void io_metrics_write_process(struct amp_metric_text *text);                                  /* metrics_process.c */
void io_metrics_write_calls(const struct ampd_server *server, struct amp_metric_text *text);  /* metrics_calls.c */
void io_metrics_write_models(const struct ampd_server *server, struct amp_metric_text *text); /* metrics_models.c */

#endif
