/*
 * The token file: who may call ampd, and as what.
 *
 *     # comment, blank lines
 *     token ROLE NAME SHA256 [expires=2027-01-31 | expires=2027-01-31T12:00:00Z] [models=N] [memory=BYTES]
 *     cert  ROLE NAME         the common name, or a DNS name, of a client certificate: the rest of the line
 *     uid   ROLE NUMBER|*     a user of this machine who calls over the unix socket
 *
 * ROLE is read, worker, operator or peer. SHA256 is that of the token's bytes, 64 hexadecimal digits: the file has no
 * secret in it, but whoever can write it can let anybody in. `ampctl token new` makes a token and its line.
 */
#ifndef AMPD_IO_AUTH_RULES_H
#define AMPD_IO_AUTH_RULES_H

#include "base/err.h"
#include "rpc/arpc_token.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rules of one file. Each call compares its token with every token: 1024 of them cost 23 microseconds, one 0.7. */
#define AMPD_AUTH_RULES_MAX 1024
/* A file of that many long lines. */
#define AMPD_AUTH_FILE_MAX ((size_t)512 << 10)
/* A name with its final zero; a DNS name has at most 253 bytes. */
#define AMPD_AUTH_NAME_MAX 256

/* What the models that a name has created may be together; 0: no limit. */
struct ampd_auth_quota {
    uint64_t models;
    uint64_t memory_bytes;
};

enum ampd_auth_kind { AMPD_AUTH_TOKEN, AMPD_AUTH_CERT, AMPD_AUTH_UID };

struct ampd_auth_rule {
    enum ampd_auth_kind kind;
    uint32_t roles; /* bits of AMPD_ROLE_, those below the role included */
    unsigned line;
    uint8_t hash[ARPC_TOKEN_HASH_SIZE]; /* token */
    int64_t expires_us;                 /* token: UTC, INT64_MAX: never */
    struct ampd_auth_quota quota;       /* token */
    uint32_t uid;                       /* uid */
    bool any_uid;                       /* uid: "*" */
    char name[AMPD_AUTH_NAME_MAX];      /* token, cert */
};

struct ampd_auth_rules {
    size_t count;
    struct ampd_auth_rule rules[];
};

/*
 * Reads the text of a token file; `path` is for error texts, which name the line and never show what is in it (it may
 * be a token pasted in the wrong place). 0 and *out, for free(); AMP_EINVAL, AMP_ENOMEM.
 */
int ampd_auth_rules_parse(const char *text, size_t size, const char *path, struct ampd_auth_rules **out,
                          struct amp_error *error);

/* The bits of "read", "worker", "operator", "peer", those of lower roles included; 0: no such role. */
uint32_t ampd_auth_roles_of(const char *name);

/* The highest role that these bits have: "operator". */
const char *ampd_auth_role_name(uint32_t roles);

#endif
