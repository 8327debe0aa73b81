/*
 * The text of /metrics, in the format of Prometheus: what the process counts (base/counts.h), and what the core, the
 * rpc library and the operating system know. Metrics of calls have the names of go-grpc-prometheus, which etcd uses,
 * too. docs/monitoring.md lists all of them.
 */
#ifndef AMPD_IO_METRICS_H
#define AMPD_IO_METRICS_H

#include "base/metric.h"
#include "server/core/core.h"

#include <stdatomic.h>
#include <stdint.h>

struct ampd_server;

/*
 * Most models that have samples of their own: the first ones in the core's order. A Prometheus server copes with the
 * samples of that many.
 */
#define IO_METRICS_MODELS_MAX 256

/* Most bytes of the text. IO_METRICS_MODELS_MAX models with 40 rows each and the longest names take half of it. */
#define IO_METRICS_BYTES_MAX ((size_t)4 << 20)

/* Appends all metrics to the text. On the loop. text->error is not 0 if something did not fit, or memory was out. */
void io_metrics_write(const struct ampd_server *server, struct amp_metric_text *text);

#endif
