/*
 * Decides who a caller is, and whether it may call a method. Pure functions, for any thread: they take what is known of
 * the caller and the rules of the token file, and do no I/O. The gate (auth_gate.h) uses them for every call.
 *
 * A caller's roles come from the first of these that applies:
 *
 *   1. a bearer token: the roles of its line, and nothing else. A token that has no line is refused, whatever else the
 *      caller could show, so that a mistake is seen
 *   2. a client certificate that TLS has verified: its `cert` line, else the role for certificates without a line
 *   3. the user at the other end of a unix socket: its `uid` line; without one, ampd's own user and root are operators,
 *      and others have the line `uid ROLE *`
 *
 * Without a token file and without client certificates no caller is asked, and all may call everything. This is so only
 * on loopback, where whoever can reach the port can usually read the data directory too, or after --insecure.
 */
#ifndef AMPD_IO_AUTH_H
#define AMPD_IO_AUTH_H

#include "base/err.h"
#include "rpc/method.h"
#include "server/io/auth/auth_rules.h"

struct ampd_auth_policy {
    bool on;                             /* false: all callers may call everything, and none is asked who it is */
    const struct ampd_auth_rules *rules; /* rules of the token file; NULL: there is no such file */
    uint32_t cert_roles;                 /* AMPD_ROLE_ bits of a verified certificate without a line; 0: it has none */
    bool token_over_plaintext;           /* --insecure: tokens may cross a network unencrypted */
    uint32_t own_uid;                    /* user that this process runs as */
};

/* How a caller's connection reaches this process. PLAINTEXT: from another machine, without TLS. */
enum ampd_auth_transport { AMPD_AUTH_PLAINTEXT, AMPD_AUTH_LOOPBACK, AMPD_AUTH_TLS, AMPD_AUTH_UNIX };

struct ampd_auth_caller {
    enum ampd_auth_transport transport;
    bool uid_known;                /* transport UNIX: the system has told the user */
    uint32_t uid;                  /* the user, if uid_known */
    const char *const *cert_names; /* common name and DNS names of a verified client certificate */
    size_t cert_name_count;        /* 0: there is no such certificate */
    const char *authorization;     /* value of the metadata "authorization", without a final zero; NULL: not given */
    size_t authorization_size;     /* bytes of that value */
    bool authorization_twice;      /* the metadata came more than once, which is refused */
};

/*
 * Whether the caller may call the method at the time now_us (UTC). 0: it may. AMP_EUNAUTHENTICATED: it is not known who
 * the caller is; AMP_EDENIED: its role does not suffice; AMP_EINTERNAL: the token could not be hashed. The text of the
 * error says what is missing and what to do, and never shows a token.
 */
int ampd_auth_check(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller,
                    const struct arpc_method *method, int64_t now_us, struct amp_error *error);

/*
 * Writes who a caller is, truncated to `size` bytes: "token ann", "certificate ..." or "user 1000". "" if that is not
 * known, or if callers are not asked; a user of the unix socket is named even then.
 */
void ampd_auth_caller_name(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller, int64_t now_us,
                           char *name, size_t size);

/*
 * The limits for all models together that were created by tokens of the caller's name. They are the lowest of all lines
 * with that name, so that a new token which replaces an old one of the same name gets no more. All 0, no limit, for a
 * caller without a token.
 */
struct ampd_auth_quota ampd_auth_caller_quota(const struct ampd_auth_policy *policy,
                                              const struct ampd_auth_caller *caller, int64_t now_us);

/*
 * The AMPD_ROLE_ bits that a method requires, of which a caller must have at least one. They are those of the method's
 * row. The health service requires none (0), since probes have no token; other methods without roles (reflection,
 * which says no more than the documents do) require AMPD_ROLE_READER.
 */
uint32_t ampd_auth_needed(const struct arpc_method *method);

#endif
