/* How etcd is accessed: with TLS or without, and as which user. The names are those of etcdctl's options. */
#ifndef AMPD_IO_ETCD_ACCESS_H
#define AMPD_IO_ETCD_ACCESS_H

#include "base/err.h"

#include <stdbool.h>

struct arpc_tls;

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
 * Checks that the options fit one another and the endpoints of etcd, and opens none of the files. `insecure`: a
 * password may cross a network in plaintext. 0, or AMP_EINVAL with a sentence.
 */
int io_etcd_access_check(const struct io_etcd_access *access, const char *endpoints, bool insecure,
                         struct amp_error *error);

/* Tries to read the files, so that a wrong one ends the start. 0, or a code with a sentence that names the file. */
int io_etcd_access_try(const struct io_etcd_access *access, struct amp_error *error);

/*
 * Reads the certificate files. On success *tls is the caller's (arpc_tls_unref), and NULL for plaintext; else the code
 * of arpc_tls_client.
 */
int io_etcd_access_tls(const struct io_etcd_access *access, struct arpc_tls **tls, struct amp_error *error);

/*
 * Reads a user file into *user, which the caller wipes by arpc_token_wipe, also after an error. 0; AMP_ENOTFOUND,
 * AMP_EDENIED, AMP_EINVAL with a text that names the file and shows none of its content. A pipe is not waited for.
 */
int io_etcd_user_read(const char *path, struct io_etcd_user *user, struct amp_error *error);

#endif
