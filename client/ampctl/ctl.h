/* What the verbs of ampctl share: options, the connection, and how things are printed. */
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
    bool here;           /* the verb is for the process at the endpoint, whatever that is in its cluster */
    bool quiet;          /* calls that fail say nothing: the verb does */
    uint64_t timeout_ms; /* of each call; 0: the verb's own */
    struct ampclient_link *link;
    const char *verb;
    /* of the last call that failed */
    struct amp_error failure;
    bool nobody; /* it has reached no server */
};

#define AMPCTL_TIMEOUT_MS 10000
/* Of verbs that move the tensors of a model, per shard: a file of many GB over a slow network. */
#define AMPCTL_FILE_TIMEOUT_MS 3600000

/* Of a clock that nobody sets. */
uint64_t ampctl_now_ms(void);

/* Connects nowhere yet. 0, or an exit code after a sentence on stderr. */
int ampctl_open(struct ampctl *ctl);
void ampctl_close(struct ampctl *ctl);

/*
 * One RPC. If an address cannot be reached, the next one is tried; if who is there refuses, since only shard 0 answers
 * the call, shard 0 is asked (not with `here`). `encoded` is what the encoding of the request returned. 0, or an exit
 * code after a sentence on stderr; *reply is the caller's to close in every case.
 */
int ampctl_ask(struct ampctl *ctl, const char *path, int encoded, const struct amp_buf *request,
               struct ampclient_reply *reply);
/* Nobody listens at any of the endpoints: the request has reached no server. */
bool ampctl_nobody(const struct ampclient_reply *reply);

/* Says on stderr why a call has failed, with what to do; `asked`: the address, or several. */
void ampctl_print_failure(const struct ampctl *ctl, const char *asked, const struct ampclient_reply *reply);

/* The same as ampctl_ask for a request with a message_cb; one that ends the call says why itself. */
int ampctl_call(struct ampctl *ctl, const struct ampclient_request *request, struct ampclient_reply *reply);

/* One row in the form that was asked for; takes the row, NULL: there was no memory for it. An exit code. */
int ampctl_print_one(const struct ampctl *ctl, const struct ampctl_column *columns, json_t *row);

/* All rows in the form that was asked for; takes them, NULL: there was no memory for them. An exit code. */
int ampctl_print_rows(const struct ampctl *ctl, const struct ampctl_column *columns, json_t *rows);

/* The answer could not be decoded: says so. An exit code. */
int ampctl_bad_answer(const struct amp_error *error);

#endif
