/*
 * What the server tells of itself to Prometheus: a text of what the process counts (base/counts.h) and of what core,
 * rpc and system know. Names of calls are those of go-grpc-prometheus, which etcd has too; docs/monitoring.md has the
 * list.
 */
#ifndef AMPD_IO_METRICS_H
#define AMPD_IO_METRICS_H

#include "base/metric.h"
#include "server/core/core.h"

#include <stdatomic.h>
#include <stdint.h>

struct ampd_server;

/*
 * Models that have rows of their own: the first ones that there are. A Prometheus copes with a server of so many rows.
 */
#define IO_METRICS_MODELS_MAX 256

/* Longest text: so many models of 40 rows with the longest names take half of it. */
#define IO_METRICS_BYTES_MAX ((size_t)4 << 20)

/* Writes everything; text->error tells what went wrong. On the loop. */
void io_metrics_write(const struct ampd_server *server, struct amp_metric_text *text);

#endif
