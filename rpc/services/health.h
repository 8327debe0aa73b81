/* grpc.health.v1: Check, List, Watch. Internal to rpc/. */
#ifndef ARPC_SERVICES_HEALTH_H
#define ARPC_SERVICES_HEALTH_H

#include "base/err.h"
#include "rpc/method.h"

#include <stdbool.h>
#include <stddef.h>

struct arpc_health;
struct arpc_method_row;

/* The rows of the service. */
extern const struct arpc_method arpc_health_methods[];
extern const size_t arpc_health_method_count;

/* One entry for each service of the rows and one for "", all SERVING. The names are pointed to. 0, AMP_ENOMEM. */
int arpc_health_new(const struct arpc_method_row *rows, size_t count, struct arpc_health **out);

/* All its calls have ended. */
void arpc_health_free(struct arpc_health *health);

/* Changes an entry and notifies its watchers. AMP_ENOTFOUND: there is no such service. */
int arpc_health_set(struct arpc_health *health, const char *service, bool serving);

/* Sets all entries to NOT_SERVING. Watches, also later ones, end with UNAVAILABLE once that has been sent to them. */
void arpc_health_drain(struct arpc_health *health);

#endif
