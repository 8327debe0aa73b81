/*
 * Who a caller is, and whether the method's row lets him in. No I/O: the caller as it is seen, the rules as they were
 * read, and a verdict. The gate (auth_gate.h) asks for every call.
 *
 * Who somebody is, the first of these that applies:
 *
 *   1. a bearer token: what its line says, and nothing else. A token that is not known is refused, whatever else the
 *      caller could show, so that a mistake is seen
 *   2. a client certificate that TLS has verified: its `cert` line, else the role for certificates without one
 *   3. the unix socket: its `uid` line; ampd's own user and root are operators; others by the line `uid ROLE *`
 *
 * Without tokens and without client certificates nobody is asked, and everybody may do everything: this is so only on
 * loopback, where who can reach the port can usually read the data directory too, or after --insecure.
 */
#ifndef AMPD_IO_AUTH_H
#define AMPD_IO_AUTH_H

#include "base/err.h"
#include "rpc/method.h"
#include "server/io/auth/auth_rules.h"

struct ampd_auth_policy {
    bool on;                             /* callers are asked */
    const struct ampd_auth_rules *rules; /* NULL: there is no token file */
    uint32_t cert_roles;                 /* of verified certificates without a line; 0: none */
    bool token_over_plaintext;           /* --insecure: tokens may cross a network unencrypted */
    uint32_t own_uid;                    /* of this process */
};

/* What a connection comes over. */
enum ampd_auth_transport { AMPD_AUTH_PLAINTEXT, AMPD_AUTH_LOOPBACK, AMPD_AUTH_TLS, AMPD_AUTH_UNIX };

struct ampd_auth_caller {
    enum ampd_auth_transport transport;
    bool uid_known; /* UNIX */
    uint32_t uid;
    const char *const *cert_names; /* of a verified client certificate: its common name and DNS names */
    size_t cert_name_count;
    const char *authorization; /* value of the metadata; NULL: there is none. Not ended by a zero */
    size_t authorization_size;
    bool authorization_twice;
};

/*
 * 0: the caller may call the method. AMP_EUNAUTHENTICATED: who he is, is not known; AMP_EDENIED: his role does not
 * suffice. The error's sentence names the method, the role needed and the remedy, and never shows a token.
 */
int ampd_auth_check(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller,
                    const struct arpc_method *method, int64_t now_us, struct amp_error *error);

/*
 * Who a caller is: "token ann", "certificate ...", "user 1000", truncated to `size`; "" where nobody is asked (but for
 * users of the unix socket), or it is not known.
 */
void ampd_auth_caller_name(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller, int64_t now_us,
                           char *name, size_t size);

/*
 * What the models of a caller's token may be together: the lowest limits of all lines with its name, so that a
 * token which takes another one's place has that one's.
 */
struct ampd_auth_quota ampd_auth_caller_quota(const struct ampd_auth_policy *policy,
                                              const struct ampd_auth_caller *caller, int64_t now_us);

/*
 * The bits one of which a method asks for: its row's; health is for everybody (0: a probe has no token), and what else
 * has none (reflection, which tells no more than the documents do) is for readers.
 */
uint32_t ampd_auth_needed(const struct arpc_method *method);

#endif
