/* Writes what the operating system knows of this process: process_*. On the loop. */
#ifndef AMPD_IO_METRICS_PROCESS_H
#define AMPD_IO_METRICS_PROCESS_H

#include "base/metric.h"

void io_metrics_write_process(struct amp_metric_text *text);

#endif
