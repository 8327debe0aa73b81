/* What is counted of a server's calls. Internal to rpc/h2. */
#ifndef ARPC_H2_STATS_H
#define ARPC_H2_STATS_H

#include "rpc/h2/call.h"

void arpc_stats_begin(struct arpc_call *call);
void arpc_stats_end(struct arpc_call *call);

#endif
