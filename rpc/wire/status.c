#include "rpc/wire/status.h"

#include <string.h>

static const char *const names[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

#define STATUS_COUNT ((int)(sizeof names / sizeof *names))

const char *arpc_status_name(int status)
{
    return status >= 0 && status < STATUS_COUNT ? names[status] : "UNKNOWN";
}

int arpc_status_from_http(int http_status)
{
    switch (http_status) {
    case 400:
        return ARPC_STATUS_INTERNAL;
    case 401:
        return ARPC_STATUS_UNAUTHENTICATED;
    case 403:
        return ARPC_STATUS_PERMISSION_DENIED;
    case 404:
        return ARPC_STATUS_UNIMPLEMENTED;
    case 429:
    case 502:
    case 503:
    case 504:
        return ARPC_STATUS_UNAVAILABLE;
    default:
        return ARPC_STATUS_UNKNOWN;
    }
}

int arpc_status_from_h2(uint32_t error_code)
{
    /* By the code of RFC 9113 section 7; NO_ERROR and the like tell of a broken peer. */
    static const uint8_t table[] = {
        [0x0] = ARPC_STATUS_INTERNAL,           /* NO_ERROR */
        [0x1] = ARPC_STATUS_INTERNAL,           /* PROTOCOL_ERROR */
        [0x2] = ARPC_STATUS_INTERNAL,           /* INTERNAL_ERROR */
        [0x3] = ARPC_STATUS_INTERNAL,           /* FLOW_CONTROL_ERROR */
        [0x4] = ARPC_STATUS_INTERNAL,           /* SETTINGS_TIMEOUT */
        [0x5] = ARPC_STATUS_INTERNAL,           /* STREAM_CLOSED */
        [0x6] = ARPC_STATUS_INTERNAL,           /* FRAME_SIZE_ERROR */
        [0x7] = ARPC_STATUS_UNAVAILABLE,        /* REFUSED_STREAM: not processed, may be sent again */
        [0x8] = ARPC_STATUS_CANCELLED,          /* CANCEL */
        [0x9] = ARPC_STATUS_INTERNAL,           /* COMPRESSION_ERROR */
        [0xa] = ARPC_STATUS_INTERNAL,           /* CONNECT_ERROR */
        [0xb] = ARPC_STATUS_RESOURCE_EXHAUSTED, /* ENHANCE_YOUR_CALM */
        [0xc] = ARPC_STATUS_PERMISSION_DENIED,  /* INADEQUATE_SECURITY */
    };
    return error_code < sizeof table ? table[error_code] : ARPC_STATUS_UNKNOWN;
}

int arpc_status_parse(const uint8_t *text, size_t size)
{
    if (size < 1 || size > 2)
        return ARPC_STATUS_UNKNOWN;
    int value = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9')
            return ARPC_STATUS_UNKNOWN;
        value = value * 10 + (text[i] - '0');
    }
    return value < STATUS_COUNT ? value : ARPC_STATUS_UNKNOWN;
}

const char *arpc_details_find(const struct arpc_details *details, const char *key)
{
    for (size_t i = 0; i < details->pair_count; i++)
        if (strcmp(details->pairs[i].key, key) == 0)
            return details->pairs[i].value;
    return NULL;
}
