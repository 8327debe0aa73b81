/*
 * The gate: reads the files that say who may call, asks server/io/auth/auth.h for each call, counts and logs who was
 * turned away, and reads the files anew on SIGHUP. All on the loop; the files are small and read where they are needed.
 */
#ifndef AMPD_IO_AUTH_GATE_H
#define AMPD_IO_AUTH_GATE_H

#include "base/log.h"
#include "server/io/auth/auth.h"
#include "server/io/auth/auth_options.h"

struct arpc_call;
struct arpc_tls;

/* Between two lines about calls that were turned away for the same kind of reason: a flood does not fill the log. */
#define AMPD_AUTH_LOG_US ((int64_t)10 * 1000000)

/* What was turned away for one kind of reason. */
struct ampd_auth_refusals {
    uint64_t count;
    uint64_t told;     /* of these, how many the log knows */
    int64_t logged_us; /* when it was last told; 0: never */
};

struct ampd_auth {
    const struct ampd_auth_options *options;
    const struct amp_log *log;
    struct ampd_auth_policy policy;
    struct ampd_auth_rules *rules;                        /* the policy's; owned */
    struct arpc_tls *tls;                                 /* NULL: the listener is plain; owned */
    struct ampd_auth_refusals unauthenticated, forbidden; /* unknown callers, and known ones without the role */
    struct ampd_auth_refusals handshakes;                 /* connections that TLS has turned away */
};

/* NULL-terminated: the metadata that the gate must see (arpc_server_options.keep_metadata). */
extern const char *const ampd_auth_metadata[];

/* Reads all files. 0; else AMP_EINVAL and others with a sentence that names the file and the remedy. */
int ampd_auth_open(struct ampd_auth *auth, const struct ampd_auth_options *options, const struct amp_log *log,
                   struct amp_error *error);

/*
 * Reads all files anew and logs what came of it. A file that cannot be used leaves what it said before in force. Each
 * later call is judged by the new rules; of calls under way it is asked by ampd_server_watch_tokens (admit.c).
 */
void ampd_auth_reload(struct ampd_auth *auth);

/* How many tokens have had their time, by the clock of the machine; *more: others will have it. */
size_t ampd_auth_expired(const struct ampd_auth *auth, bool *more);

/* Also of a zeroed one. Tells the log of refusals that it does not know yet. */
void ampd_auth_close(struct ampd_auth *auth);

/* May this call begin? As arpc_server_options.admit_cb. */
int ampd_auth_admit(struct ampd_auth *auth, struct arpc_call *call, struct amp_error *error);

/* Whether a call that was let in before would be let in now, by rules that were read meanwhile. */
int ampd_auth_admit_again(const struct ampd_auth *auth, struct arpc_call *call, struct amp_error *error);

/*
 * The same for somebody who asks over HTTP for what a method tells: `again` for one who was let in before, who is
 * neither counted nor told to the log.
 */
int ampd_auth_admit_http(struct ampd_auth *auth, const struct ampd_auth_caller *caller,
                         const struct arpc_method *method, const char *peer, bool again, struct amp_error *error);

/* Who makes the call, for the history: "token ann", "certificate ...", "user 1000"; else the address. */
void ampd_auth_name(const struct ampd_auth *auth, struct arpc_call *call, char *name, size_t size);

/* What the models of who makes the call may be together. */
struct ampd_auth_quota ampd_auth_quota(const struct ampd_auth *auth, struct arpc_call *call);

/* A connection came no further than TLS. As arpc_server_options.handshake_failed_cb. */
void ampd_auth_handshake_failed(struct ampd_auth *auth, const char *peer, const struct amp_error *error);

#endif
