/* grpc_server_*: calls and connections. */
#ifndef AMPD_IO_METRICS_CALLS_H
#define AMPD_IO_METRICS_CALLS_H

#include "base/metric.h"

struct ampd_server;

void io_metrics_write_calls(const struct ampd_server *server, struct amp_metric_text *text);

#endif
