/* Writes the metrics of calls and connections: grpc_server_* and those of the rpc library. On the loop. */
#ifndef AMPD_IO_METRICS_CALLS_H
#define AMPD_IO_METRICS_CALLS_H

#include "base/metric.h"

struct ampd_server;

void io_metrics_write_calls(const struct ampd_server *server, struct amp_metric_text *text);

#endif
