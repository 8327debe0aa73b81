/*
 * The gate: reads the files that say who may call (the token file, TLS certificates and keys), checks each call by
 * server/io/auth/auth.h, counts and logs refusals, and reads the files again on SIGHUP. All on the loop; the files are
 * small enough to be read there.
 */
#ifndef AMPD_IO_AUTH_GATE_H
#define AMPD_IO_AUTH_GATE_H

#include "base/log.h"
#include "server/io/auth/auth.h"
#include "server/io/auth/auth_options.h"

struct arpc_call;
struct arpc_tls;

/* Least time between two log lines about refusals of one kind, so that a flood of calls does not fill the log. */
#define AMPD_AUTH_LOG_US ((int64_t)10 * 1000000)

/* Refusals of one kind. */
struct ampd_auth_refusals {
    uint64_t count;    /* all since the start */
    uint64_t logged;   /* how many of them a line of the log has counted */
    int64_t logged_us; /* UTC time of the last such line; 0: there was none */
};

struct ampd_auth {
    const struct ampd_auth_options *options;
    const struct amp_log *log;
    struct ampd_auth_policy policy;
    struct ampd_auth_rules *rules;                        /* owned; policy.rules points to it. NULL: no token file */
    struct arpc_tls *tls;                                 /* owned; NULL: the listener is without TLS */
    struct ampd_auth_refusals unauthenticated, forbidden; /* calls of unknown callers; calls without the needed role */
    struct ampd_auth_refusals handshakes;                 /* connections that ended in the TLS handshake */
};

/* Names of the metadata that the gate reads, NULL-terminated (arpc_server_options.keep_metadata). */
extern const char *const ampd_auth_metadata[];

/*
 * Reads all files that the options name. `options` and `log` must outlive the gate. 0; AMP_EINVAL, AMP_ENOTFOUND,
 * AMP_EDENIED, AMP_EIO or AMP_ENOMEM with a text that names the file and the remedy. ampd_auth_close is due in either
 * case.
 */
int ampd_auth_open(struct ampd_auth *auth, const struct ampd_auth_options *options, const struct amp_log *log,
                   struct amp_error *error);

/*
 * Reads all files again, and logs the result. If a file cannot be used, what was read before stays in force. Later
 * calls are checked by the new rules; io_admit_watch_tokens (admit.h) checks the calls under way.
 */
void ampd_auth_reload(struct ampd_auth *auth);

/* How many tokens of the file have expired by the machine's clock; *more: others of it will expire. */
size_t ampd_auth_expired(const struct ampd_auth *auth, bool *more);

/* Frees what the gate owns, after a last log line about refusals that none has counted. A zeroed gate is allowed. */
void ampd_auth_close(struct ampd_auth *auth);

/*
 * Whether a new call may begin, with the codes of ampd_auth_check, for arpc_server_options.admit_cb. A refusal is
 * counted, and logged if a line is due.
 */
int ampd_auth_admit(struct ampd_auth *auth, struct arpc_call *call, struct amp_error *error);

/* Whether an open call would be let in by the present rules. The codes are the same; nothing is counted or logged. */
int ampd_auth_admit_again(const struct ampd_auth *auth, struct arpc_call *call, struct amp_error *error);

/*
 * Whether a caller may ask over HTTP for the data of a method, with the codes of ampd_auth_check. `peer` is its
 * address, for the log. A refusal is counted and logged as that of a call is, unless `again` says that this caller was
 * let in before, and an answer to it goes on.
 */
int ampd_auth_admit_http(struct ampd_auth *auth, const struct ampd_auth_caller *caller,
                         const struct arpc_method *method, const char *peer, bool again, struct amp_error *error);

/* Writes who makes the call, for the history: as ampd_auth_caller_name, and the address where that gives "". */
void ampd_auth_name(const struct ampd_auth *auth, struct arpc_call *call, char *name, size_t size);

/* The limits for the caller's models together (ampd_auth_caller_quota). */
struct ampd_auth_quota ampd_auth_quota(const struct ampd_auth *auth, struct arpc_call *call);

/* Counts, and logs if a line is due, a connection that ended in its TLS handshake (handshake_failed_cb of arpc). */
void ampd_auth_handshake_failed(struct ampd_auth *auth, const char *peer, const struct amp_error *error);

#endif
