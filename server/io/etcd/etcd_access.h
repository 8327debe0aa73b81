/* How etcd is spoken to: with TLS or without, and as whom. Named as etcdctl's options are. */
#ifndef AMPD_IO_ETCD_ACCESS_H
#define AMPD_IO_ETCD_ACCESS_H

#include "base/err.h"

#include <stdbool.h>

/* Longest name and longest password of a user, each with the final zero; etcd hashes 72 bytes of a password at most. */
#define IO_ETCD_USER_MAX 256

struct io_etcd_access {
    bool tls;                /* "etcds://" */
    const char *cacert_file; /* authorities of etcd; NULL: those of the system */
    const char *cert_file;   /* shown to etcd; its common name is a user, where no other is named. NULL: none */
    const char *key_file;    /* with cert_file */
    const char *user_file;   /* one line, NAME:PASSWORD; NULL: nobody */
};

struct io_etcd_user {
    char name[IO_ETCD_USER_MAX], password[IO_ETCD_USER_MAX];
};

/*
 * Whether the options fit one another and the addresses of etcd, and a user file is one. `insecure`: a password may
 * cross a network in plaintext. AMP_EINVAL, or what reading says, with a sentence.
 */
int io_etcd_access_check(const struct io_etcd_access *access, const char *endpoints, bool insecure,
                         struct amp_error *error);

/*
 * Reads a user file. 0; AMP_ENOTFOUND, AMP_EDENIED, AMP_EINVAL with a text that names the file and shows nothing of it.
 * To be wiped by arpc_token_wipe. A pipe is not waited for.
 */
int io_etcd_user_read(const char *path, struct io_etcd_user *user, struct amp_error *error);

#endif
