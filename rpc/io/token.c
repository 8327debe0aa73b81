#include "rpc/arpc_token.h"

#include "base/err.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <string.h>

#define RANDOM_SIZE 32

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

void arpc_token_wipe(void *secret, size_t size)
{
    OPENSSL_cleanse(secret, size);
}
