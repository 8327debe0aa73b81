#include "rpc/arpc_token.h"

#include "base/err.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define RANDOM_SIZE 32
#define SPACE       " \t\r\n"
#define FILE_MAX    (ARPC_TOKEN_MAX + 16) /* a token and some space around it */

static bool is_token_char(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c != 0 && strchr("-._~+/", c) != NULL);
}

bool arpc_token_valid(const char *token, size_t size)
{
    if (size < ARPC_TOKEN_MIN || size > ARPC_TOKEN_MAX)
        return false;
    while (size > 1 && token[size - 1] == '=')
        size--;
    for (size_t i = 0; i < size; i++)
        if (!is_token_char((unsigned char)token[i]))
            return false;
    return true;
}

int arpc_token_hash(const char *token, size_t size, uint8_t hash[ARPC_TOKEN_HASH_SIZE])
{
    unsigned written = 0;
    int ok = EVP_Digest(token, size, hash, &written, EVP_sha256(), NULL);
    return ok == 1 && written == ARPC_TOKEN_HASH_SIZE ? 0 : AMP_EINTERNAL;
}

bool arpc_token_hash_equal(const uint8_t a[ARPC_TOKEN_HASH_SIZE], const uint8_t b[ARPC_TOKEN_HASH_SIZE])
{
    return CRYPTO_memcmp(a, b, ARPC_TOKEN_HASH_SIZE) == 0;
}

int arpc_token_new(char text[ARPC_TOKEN_TEXT_SIZE])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t random[RANDOM_SIZE + 1] = {0}; /* 33 bytes are 44 digits; the last one is left out */
    if (RAND_bytes(random, RANDOM_SIZE) != 1)
        return AMP_EIO;
    size_t used = sizeof ARPC_TOKEN_PREFIX - 1;
    memcpy(text, ARPC_TOKEN_PREFIX, used);
    for (size_t i = 0; i < sizeof random; i += 3) {
        uint32_t group = (uint32_t)random[i] << 16 | (uint32_t)random[i + 1] << 8 | random[i + 2];
        for (int shift = 18; shift >= 0 && used < ARPC_TOKEN_TEXT_SIZE - 1; shift -= 6)
            text[used++] = digits[group >> shift & 63];
    }
    text[used] = 0;
    OPENSSL_cleanse(random, sizeof random);
    return 0;
}

int arpc_secret_read(const char *path, const char *what, char *text, size_t capacity, size_t *size,
                     struct amp_error *error)
{
    *size = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe must not hold the loop */
    if (fd < 0) {
        int number = errno;
        return amp_error_set(error, number == ENOENT ? AMP_ENOTFOUND : AMP_EDENIED, NULL,
                             "The %s file %.200s cannot be read: %s; %s.", what, path, strerror(number),
                             number == ENOENT ? "correct its path" : "let the user of this process read it");
    }
    while (*size < capacity) {
        ssize_t got = read(fd, text + *size, capacity - *size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break; /* the end, or what is there is no file */
        *size += (size_t)got;
    }
    (void)close(fd); /* only read */
    return 0;
}

int arpc_token_read(const char *path, char text[ARPC_TOKEN_MAX + 1], struct amp_error *error)
{
    char file[FILE_MAX + 1];
    size_t size;
    int rc = arpc_secret_read(path, "token", file, sizeof file, &size, error);
    if (rc != 0)
        return rc;
    const char *token = file;
    while (size > 0 && *token != 0 && strchr(SPACE, *token) != NULL) {
        token++;
        size--;
    }
    while (size > 0 && token[size - 1] != 0 && strchr(SPACE, token[size - 1]) != NULL)
        size--;
    if (arpc_token_valid(token, size)) {
        memcpy(text, token, size);
        text[size] = 0;
    } else {
        rc =
            amp_error_set(error, AMP_EINVAL, NULL,
                          "The token file %.200s does not hold one token of 16 to 1024 letters, digits or -._~+/; make "
                          "one with ampctl token new.",
                          path);
    }
    arpc_token_wipe(file, sizeof file);
    return rc;
}

void arpc_token_wipe(void *secret, size_t size)
{
    OPENSSL_cleanse(secret, size);
}
