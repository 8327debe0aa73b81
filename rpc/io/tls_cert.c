/* What a peer's certificate says: the names in it, and why it is refused. */
#include "rpc/io/tls_cert.h"

#include "rpc/arpc_client.h"
#include "rpc/h2/link.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <openssl/x509v3.h>

#define refuse(error, ...) ((void)amp_error_set((error), AMP_EUNAVAILABLE, NULL, __VA_ARGS__))

/* Adds ", text" unless it would not fit. */
static void add_name(char *names, size_t size, const char *text)
{
    size_t used = strlen(names);
    if (used + strlen(text) + 3 < size)
        (void)snprintf(names + used, size - used, "%s%s", used > 0 ? ", " : "", text);
}

/* Neither a zero, which would cut it, nor what would move about in a log or terminal. */
static bool is_plain(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return true;
}

/* The text of a DNS name or URI, or NULL if it is something else or could be taken for another one. */
static const char *text_of(const GENERAL_NAME *name)
{
    if (name->type != GEN_DNS && name->type != GEN_URI)
        return NULL;
    const ASN1_IA5STRING *string = name->type == GEN_DNS ? name->d.dNSName : name->d.uniformResourceIdentifier;
    const char *text = (const char *)ASN1_STRING_get0_data(string);
    size_t size = (size_t)ASN1_STRING_length(string);
    return size > 0 && size < ARPC_PEER_NAME_SIZE && is_plain(text, size) ? text : NULL;
}

static void address_text(const GENERAL_NAME *name, char *text, size_t size)
{
    const uint8_t *bytes = ASN1_STRING_get0_data(name->d.iPAddress);
    char *full = ASN1_STRING_length(name->d.iPAddress) == 16 ? i2s_ASN1_OCTET_STRING(NULL, name->d.iPAddress) : NULL;
    if (ASN1_STRING_length(name->d.iPAddress) == 4)
        (void)snprintf(text, size, "%u.%u.%u.%u", bytes[0], bytes[1], bytes[2], bytes[3]);
    else
        (void)snprintf(text, size, "%s", full != NULL ? full : "?");
    OPENSSL_free(full);
}

/* What a certificate is for, as far as it fits; for a text. */
static void list_names(X509 *certificate, char *names, size_t size)
{
    GENERAL_NAMES *all = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    names[0] = 0;
    for (int i = 0; i < sk_GENERAL_NAME_num(all); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(all, i);
        char address[64];
        if (name->type == GEN_IPADD) {
            address_text(name, address, sizeof address);
            add_name(names, size, address);
        } else if (text_of(name) != NULL) {
            add_name(names, size, text_of(name));
        }
    }
    if (names[0] == 0)
        (void)snprintf(names, size, "no name at all (it has no subjectAltName)");
    GENERAL_NAMES_free(all);
}

void arpc_tls_read_names(struct x509_st *certificate, struct arpc_peer *peer)
{
    const X509_NAME *subject = X509_get_subject_name(certificate);
    int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    unsigned char *common = NULL;
    int size = at >= 0 ? ASN1_STRING_to_UTF8(&common, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at))) : -1;
    if (size > 0 && size < ARPC_PEER_NAME_SIZE && strlen((const char *)common) == (size_t)size)
        memcpy(peer->subject, common, (size_t)size + 1);
    OPENSSL_free(common);
    GENERAL_NAMES *all = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; i < sk_GENERAL_NAME_num(all); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(all, i);
        if (name->type != GEN_DNS && name->type != GEN_URI)
            continue;
        const char *text = text_of(name);
        if (text != NULL)
            memcpy(peer->alternative, text, strlen(text) + 1);
        break; /* the first one, or none */
    }
    GENERAL_NAMES_free(all);
}

void arpc_tls_day(const ASN1_TIME *time, char *text, size_t size)
{
    struct tm when;
    (void)snprintf(text, size, "?");
    if (ASN1_TIME_to_tm(time, &when) == 1)
        (void)strftime(text, size, "%Y-%m-%d %H:%M:%S UTC", &when);
}

void arpc_tls_say_refused(struct x509_store_ctx_st *store, bool server, const char *peer, const char *host,
                          struct amp_error *error)
{
    X509 *certificate = X509_STORE_CTX_get_current_cert(store);
    int reason = X509_STORE_CTX_get_error(store);
    const char *reason_text = X509_verify_cert_error_string(reason);
    char whose[ARPC_PEER_SIZE + 64];
    char detail[160] = "?";
    (void)snprintf(whose, sizeof whose, ARPC_CERTIFICATE "%s%s%s",
                   X509_STORE_CTX_get_error_depth(store) > 0 ? "an authority of " : "", server ? "the client " : "",
                   peer);
    switch (certificate != NULL ? reason : X509_V_ERR_UNSPECIFIED) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        list_names(certificate, detail, sizeof detail);
        refuse(error,
               "%s is not for \"%s\" but for %s: connect by such a name, or give the name to expect (server_name, "
               "--server-name)",
               whose, host, detail);
        return;
    case X509_V_ERR_CERT_HAS_EXPIRED:
        arpc_tls_day(X509_get0_notAfter(certificate), detail, sizeof detail);
        refuse(error, "%s expired on %s: renew it, or set this machine's clock", whose, detail);
        return;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        arpc_tls_day(X509_get0_notBefore(certificate), detail, sizeof detail);
        refuse(error, "%s is not valid before %s: wait, or set this machine's clock", whose, detail);
        return;
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        refuse(error, "%s is not signed by an authority that is trusted here (%s): %s", whose, reason_text,
               server ? "use one that is, or trust the authority (--trusted-ca-file)"
                      : "give the file of the one that signed it (cacert)");
        return;
    case X509_V_ERR_INVALID_PURPOSE:
        refuse(error, "%s is not meant for a %s: have one made whose extended key usage has %s", whose,
               server ? "client" : "server", server ? "clientAuth" : "serverAuth");
        return;
    default:
        refuse(error, "%s is refused: %s", whose, reason_text);
    }
}
