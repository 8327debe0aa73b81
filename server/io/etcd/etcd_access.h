/* How etcd is accessed: with TLS or without, and as which user. The names are those of etcdctl's options. */
#ifndef AMPD_IO_ETCD_ACCESS_H
#define AMPD_IO_ETCD_ACCESS_H

#include "base/err.h"

#include <stdbool.h>

/* Longest name and longest password of a user, each with the final zero; etcd hashes 72 bytes of a password at most. */
#define IO_ETCD_USER_MAX 256

struct io_etcd_access {
    bool tls;                /* "etcds://" */
    const char *cacert_file; /* authorities that etcd's certificate is verified by; NULL: those of the system */
    const char *cert_file;   /* client certificate; its common name is the user if there is no user_file. NULL: none */
    const char *key_file;    /* key of cert_file; NULL: none */
    const char *user_file;   /* one line, NAME:PASSWORD; NULL: no user */
};

/* A user by name and password, each with a final zero. */
struct io_etcd_user {
    char name[IO_ETCD_USER_MAX], password[IO_ETCD_USER_MAX];
};

/*
 * Checks that the options fit one another and the endpoints of etcd, and that a user file can be read. `insecure`: a
 * password may cross a network in plaintext. 0; AMP_EINVAL or a code of io_etcd_user_read, with a sentence.
 */
int io_etcd_access_check(const struct io_etcd_access *access, const char *endpoints, bool insecure,
                         struct amp_error *error);

/*
 * Reads a user file into *user, which the caller wipes by arpc_token_wipe, also after an error. 0; AMP_ENOTFOUND,
 * AMP_EDENIED, AMP_EINVAL with a text that names the file and shows none of its content. A pipe is not waited for.
 */
int io_etcd_user_read(const char *path, struct io_etcd_user *user, struct amp_error *error);

#endif
