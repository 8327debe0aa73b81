#include "rpc/arpc_tls.h"

int arpc_tls_server(const struct arpc_tls_server_options *options, struct arpc_tls **out, struct amp_error *error)
{
    (void)options;
    (void)out;
    return amp_error_set(error, AMP_EUNIMPLEMENTED, NULL, "TLS is not implemented");
}

int arpc_tls_client(const struct arpc_tls_client_options *options, struct arpc_tls **out, struct amp_error *error)
{
    (void)options;
    (void)out;
    return amp_error_set(error, AMP_EUNIMPLEMENTED, NULL, "TLS is not implemented");
}

int arpc_tls_reload(struct arpc_tls *tls, struct amp_error *error)
{
    (void)tls;
    return amp_error_set(error, AMP_EUNIMPLEMENTED, NULL, "TLS is not implemented");
}

const char *arpc_tls_warning(struct arpc_tls *tls)
{
    (void)tls;
    return "";
}

struct arpc_tls *arpc_tls_ref(struct arpc_tls *tls)
{
    return tls;
}

void arpc_tls_unref(struct arpc_tls *tls)
{
    (void)tls;
}
