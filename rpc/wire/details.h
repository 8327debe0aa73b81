/* grpc-status-details-bin: a serialized google.rpc.Status with ErrorInfo, RetryInfo and BadRequest. */
#ifndef ARPC_WIRE_DETAILS_H
#define ARPC_WIRE_DETAILS_H

#include "rpc/arpc_call.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Bytes of the largest Status that is written: as base64 it leaves room for other trailers in the 8 KiB that peers
 * accept by default.
 */
#define ARPC_STATUS_BYTES_MAX 4096

/*
 * Writes the Status; *size is 0 if the details hold nothing to say. If it is too large, the pairs, then all
 * details are left out. 0, or AMP_ENOMEM.
 */
int arpc_details_encode(int status, const char *message, const struct arpc_details *details,
                        uint8_t out[ARPC_STATUS_BYTES_MAX], size_t *size);

/* What a decoded arpc_details points into. Large: on the heap. */
struct arpc_details_store;

/*
 * Reads the details of a Status. Unknown or oversized ones are skipped. 0, *details filled, and *store for
 * arpc_details_free; AMP_EINVAL (not a Status), AMP_ENOMEM: nothing is kept.
 */
int arpc_details_decode(const uint8_t *data, size_t size, struct arpc_details *details,
                        struct arpc_details_store **store);
void arpc_details_free(struct arpc_details_store *store);

#endif
