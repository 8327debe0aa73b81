/* Bearer tokens (RFC 6750): their form, their hash, comparing hashes, and new ones. Any thread. */
#ifndef ARPC_TOKEN_H
#define ARPC_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct amp_error;

/* Shortest: 16 characters of base64 are 96 random bits, the least that nobody guesses over a network. */
#define ARPC_TOKEN_MIN 16
/* Longest that is hashed: signed tokens of other systems are shorter than this, and metadata is bounded anyway. */
#define ARPC_TOKEN_MAX 1024
/* SHA-256. Tokens are random, so that a slow hash (as of passwords) would gain nothing. */
#define ARPC_TOKEN_HASH_SIZE 32
/* What arpc_token_new makes, with the final zero: a prefix that secret scanners can know, and 32 bytes in base64url. */
#define ARPC_TOKEN_PREFIX    "ampd_"
#define ARPC_TOKEN_TEXT_SIZE (sizeof ARPC_TOKEN_PREFIX + 43)

/* Whether it has an allowed length and only characters of the grammar "b64token". */
bool arpc_token_valid(const char *token, size_t size);

/* The SHA-256 of the bytes. 0, or AMP_EINTERNAL when OpenSSL fails. */
int arpc_token_hash(const char *token, size_t size, uint8_t hash[ARPC_TOKEN_HASH_SIZE]);

/* Compares two hashes in constant time. */
bool arpc_token_hash_equal(const uint8_t a[ARPC_TOKEN_HASH_SIZE], const uint8_t b[ARPC_TOKEN_HASH_SIZE]);

/* A new random token. 0, or AMP_EIO when the system has no random numbers. */
int arpc_token_new(char text[ARPC_TOKEN_TEXT_SIZE]);

/*
 * Reads a file that holds one token, with space around it. 0; AMP_ENOTFOUND, AMP_EDENIED (it cannot be read),
 * AMP_EINVAL (it holds something else) with a text that names the file and never shows its content. Does not block on a
 * pipe.
 */
int arpc_token_read(const char *path, char text[ARPC_TOKEN_MAX + 1], struct amp_error *error);

/*
 * Reads the first `capacity` bytes of a file that holds a secret; *size is how many there were. `what` names the kind
 * of file in the text of an error. 0, or AMP_ENOTFOUND, AMP_EDENIED as above. Does not block on a pipe. Any thread.
 */
int arpc_secret_read(const char *path, const char *what, char *text, size_t capacity, size_t *size,
                     struct amp_error *error);

/* Overwrites a secret with zeros; the compiler cannot remove the writes. */
void arpc_token_wipe(void *secret, size_t size);

#endif
