#include "rpc/io/endpoints.h"

#include <string.h>

static int parse_one(const char *text, size_t size, struct arpc_endpoint *endpoint, struct amp_error *error)
{
    if (size >= sizeof endpoint->text)
        return amp_error_set(error, AMP_EINVAL, NULL, "address \"%.80s...\": one of at most %zu bytes is expected",
                             text, sizeof endpoint->text - 1);
    memcpy(endpoint->text, text, size);
    endpoint->text[size] = 0;
    return arpc_address_parse(endpoint->text, &endpoint->address, error);
}

int arpc_endpoints_parse(const char *text, struct arpc_endpoints *endpoints, struct amp_error *error)
{
    endpoints->count = 0;
    for (;;) {
        size_t size = strcspn(text, ",");
        if (endpoints->count == ARPC_ENDPOINTS_MAX)
            return amp_error_set(error, AMP_EINVAL, NULL, "a list of addresses has at most %d", ARPC_ENDPOINTS_MAX);
        int rc = parse_one(text, size, &endpoints->list[endpoints->count], error);
        if (rc != 0)
            return rc;
        endpoints->count++;
        if (text[size] == 0)
            return 0;
        text += size + 1;
    }
}
