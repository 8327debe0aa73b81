/* Writes the metrics of each model: ampd_model_*. On the loop. */
#ifndef AMPD_IO_METRICS_MODELS_H
#define AMPD_IO_METRICS_MODELS_H

#include "base/metric.h"

struct ampd_server;

void io_metrics_write_models(const struct ampd_server *server, struct amp_metric_text *text);

#endif
