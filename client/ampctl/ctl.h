/* What the verbs of ampctl share: the common options, the connection, and how rows are printed. One thread. */
#ifndef AMPCTL_CTL_H
#define AMPCTL_CTL_H

#include "client/ampctl/rows.h"
#include "client/ampctl/print.h"
#include "client/io/rpc.h"
#include "proto/msg.h"
#include "rpc/arpc_call.h"

#include <argp.h>
#include <stdbool.h>

/* Exit codes. An RPC that fails ends with AMPCTL_EXIT_RPC plus its gRPC status, as grpcurl does. */
#define AMPCTL_EXIT_FAILED 1
#define AMPCTL_EXIT_USAGE  2
#define AMPCTL_EXIT_RPC    64
/* Wrong usage of `ready`, whose codes are those of pg_isready. */
#define AMPCTL_EXIT_NO_ATTEMPT 3

/* Options that come before or after the verb. */
struct ampctl {
    const char *endpoints;
    struct ampclient_secure_options secure;
    bool json, csv;      /* neither: tables */
    bool here;           /* the verb is for the process at the endpoint, whichever shard that is */
    bool quiet;          /* failed calls print nothing, since the verb reports them itself */
    uint64_t timeout_ms; /* limit of each call; 0, before ampctl_parse: the verb's own limit */
    struct ampclient_link *link;
    const char *verb;
    /* The last call that failed. */
    struct amp_error failure;
    bool nobody; /* no server could be reached */
};

#define AMPCTL_TIMEOUT_MS 10000
/* Limit of verbs that move the tensors of a model, per shard: a file of many GB over a slow network. */
#define AMPCTL_FILE_TIMEOUT_MS 3600000

/*
 * Makes the link for the options of `ctl`, if there is none; connects nowhere yet. A call does it, too, and main closes
 * it after the verb; one that has other work between two calls closes it before. 0, or an exit code after a sentence on
 * stderr.
 */
int ampctl_open(struct ampctl *ctl);
void ampctl_close(struct ampctl *ctl);

/*
 * Makes one unary RPC. If an address cannot be reached, the next one is tried; if the process there refuses because
 * only shard 0 answers the call, shard 0 is asked (not with `here`). `encoded` is the code that the encoding of the
 * request returned. 0, or an exit code after a sentence on stderr; *reply is the caller's to close in every case.
 */
int ampctl_ask(struct ampctl *ctl, const char *path, int encoded, const struct amp_buf *request,
               struct ampclient_reply *reply);
/* Whether the request has reached no server, because nothing listens at any of the endpoints. */
bool ampctl_nobody(const struct ampclient_reply *reply);

/* Prints on stderr why a call has failed, and what to do about it; `asked`: the address or addresses. */
void ampctl_print_failure(const struct ampctl *ctl, const char *asked, const struct ampclient_reply *reply);

/*
 * Makes an RPC as ampctl_ask does, for a request with a message_cb; a message_cb that ends the call prints the reason
 * itself. 0, or an exit code; *reply is the caller's to close in every case.
 */
int ampctl_call(struct ampctl *ctl, const struct ampclient_request *request, struct ampclient_reply *reply);

/* Prints one row in the form of the options, and frees it; NULL: there was no memory for it. Returns an exit code. */
int ampctl_print_one(const struct ampctl *ctl, const struct ampctl_column *columns, json_t *row);

/* Prints all rows in the form of the options, and frees them; NULL: there was no memory. Returns an exit code. */
int ampctl_print_rows(const struct ampctl *ctl, const struct ampctl_column *columns, json_t *rows);

/* Prints that an answer could not be decoded. Returns an exit code. */
int ampctl_bad_answer(const struct amp_error *error);

#endif
