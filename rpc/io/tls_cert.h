/* What a certificate says. Internal to rpc/io's tls files. */
#ifndef ARPC_IO_TLS_CERT_H
#define ARPC_IO_TLS_CERT_H

#include "base/err.h"
#include "rpc/arpc_peer.h"

#include <stddef.h>

struct asn1_string_st;
struct x509_st;
struct x509_store_ctx_st;

/* Fills in the names; peer->subject and peer->alternative are "" before. */
void arpc_tls_read_names(struct x509_st *certificate, struct arpc_peer *peer);

/* A time as UTC. */
void arpc_tls_day(const struct asn1_string_st *time, char *text, size_t size);

/*
 * Fills in why verification has failed at the store's current certificate, and what to do. `peer` names the other side;
 * `server`: this side is the server; `host`: the name that a client expected.
 */
void arpc_tls_say_refused(struct x509_store_ctx_st *store, bool server, const char *peer, const char *host,
                          struct amp_error *error);

#endif
