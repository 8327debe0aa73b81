/*
 * The token file, which says who may call ampd, and with which role. One rule a line:
 *
 *     # comment, blank lines
 *     token ROLE NAME SHA256 [expires=2027-01-31 | expires=2027-01-31T12:00:00Z] [models=N] [memory=BYTES]
 *     cert  ROLE NAME         the common name, or a DNS name, of a client certificate: the rest of the line
 *     uid   ROLE NUMBER|*     a user of this machine who calls over the unix socket
 *
 * ROLE is read, worker, operator or peer. SHA256 is the hash of the token's bytes, as 64 hexadecimal digits: the file
 * has no secret in it, but whoever can write it can let anybody in. `ampctl token new` makes a token and its line.
 *
 * Pure functions; any thread.
 */
#ifndef AMPD_IO_AUTH_RULES_H
#define AMPD_IO_AUTH_RULES_H

#include "base/err.h"
#include "rpc/arpc_token.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Most rules in one file. The token of each call is compared with all tokens of the file: with 1024 of them that takes
 * 23 microseconds, with one 0.7.
 */
#define AMPD_AUTH_RULES_MAX 1024
/* Most bytes of a file; AMPD_AUTH_RULES_MAX long lines take less. */
#define AMPD_AUTH_FILE_MAX ((size_t)512 << 10)
/* Bytes of a name with its final zero; a DNS name has at most 253 bytes. */
#define AMPD_AUTH_NAME_MAX 256

/* Limits for all models together that were created under one name; 0: no limit. */
struct ampd_auth_quota {
    uint64_t models;       /* number of models */
    uint64_t memory_bytes; /* memory of their tensors */
};

enum ampd_auth_kind { AMPD_AUTH_TOKEN, AMPD_AUTH_CERT, AMPD_AUTH_UID };

/* One line of the file. The fields marked with a kind have a value in rules of that kind alone. */
struct ampd_auth_rule {
    enum ampd_auth_kind kind;
    uint32_t roles;                     /* AMPD_ROLE_ bits of the role and of those below it */
    unsigned line;                      /* its number in the file, from 1 */
    uint8_t hash[ARPC_TOKEN_HASH_SIZE]; /* token: SHA-256 of its bytes */
    int64_t expires_us;                 /* token: UTC time from which it is refused; INT64_MAX: never */
    struct ampd_auth_quota quota;       /* token: limits for the models of this name */
    uint32_t uid;                       /* uid: number of the user, unless any_uid */
    bool any_uid;                       /* uid: "*", for users without a line of their own */
    char name[AMPD_AUTH_NAME_MAX];      /* token: the caller's name; cert: a common name or DNS name */
};

/* All rules of a file, in its order; one piece of memory. */
struct ampd_auth_rules {
    size_t count;
    struct ampd_auth_rule rules[];
};

/*
 * Parses the text of a token file. 0: *out has its rules, for the caller to free(); AMP_EINVAL, AMP_ENOMEM: *out is
 * NULL. The error's text names `path` and the line, and never shows what is in the line, which may be a token that was
 * pasted in the wrong place.
 */
int ampd_auth_rules_parse(const char *text, size_t size, const char *path, struct ampd_auth_rules **out,
                          struct amp_error *error);

/* The AMPD_ROLE_ bits of "read", "worker", "operator" or "peer", with those of lower roles; 0: no such role. */
uint32_t ampd_auth_roles_of(const char *name);

/* The name of the highest role whose bits are all among these, as "operator"; "none" if there is none. */
const char *ampd_auth_role_name(uint32_t roles);

#endif
