/* Which gRPC status follows from an HTTP status, an HTTP/2 error code, or a text. */
#ifndef ARPC_WIRE_STATUS_H
#define ARPC_WIRE_STATUS_H

#include "rpc/arpc_call.h"

#include <stddef.h>
#include <stdint.h>

/* Of a response without grpc-status (grpc/grpc doc/http-grpc-status-mapping.md). */
int arpc_status_from_http(int http_status);

/* Of a RST_STREAM's error code (gRPC PROTOCOL-HTTP2, Errors). */
int arpc_status_from_h2(uint32_t error_code);

/* Of the text of grpc-status; UNKNOWN for one that is not a decimal number of 0 to 16. */
int arpc_status_parse(const uint8_t *text, size_t size);

#endif
