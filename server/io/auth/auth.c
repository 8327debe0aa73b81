#include "server/io/auth/auth.h"

#include "base/text.h"
#include "server/io/auth/auth_rules.h"
#include "server/io/base/options.h"

#include <stdio.h>
#include <string.h>

#define HEALTH_SERVICE "grpc.health.v1.Health"
#define SCHEME         "bearer "

/* Who a caller is. */
struct identity {
    uint32_t roles;                    /* AMPD_ROLE_ bits */
    char who[AMPD_AUTH_NAME_MAX + 32]; /* for the text of a refusal, as: the token "ann" */
    const char *token_name;            /* name in the token's rule; NULL: the caller has no token */
};

uint32_t ampd_auth_needed(const struct arpc_method *method)
{
    if (strcmp(method->service, HEALTH_SERVICE) == 0)
        return 0;
    return method->roles != 0 ? method->roles : AMPD_ROLE_READER;
}

/* ---- tokens ---- */

static int refuse_token(struct amp_error *error, const char *reason, const char *text)
{
    return amp_error_set(error, AMP_EUNAUTHENTICATED, reason, "%s", text);
}

/* The token in "Bearer TOKEN"; the case of the scheme does not matter (RFC 9110 11.1). NULL: not of this form. */
static const char *token_of(const struct ampd_auth_caller *caller, size_t *size)
{
    const char *at = caller->authorization;
    size_t scheme = sizeof SCHEME - 1;
    if (caller->authorization_size <= scheme)
        return NULL;
    for (size_t i = 0; i < scheme; i++)
        if ((at[i] | 0x20) != SCHEME[i])
            return NULL;
    *size = caller->authorization_size - scheme;
    return at + scheme;
}

/*
 * The rule of a token, or NULL. All rules are compared, whether or not one was found, and each in constant time, so
 * that the time which this takes shows nothing to somebody who guesses tokens.
 */
static const struct ampd_auth_rule *find_token(const struct ampd_auth_rules *rules,
                                               const uint8_t hash[ARPC_TOKEN_HASH_SIZE])
{
    size_t found = 0; /* index + 1 */
    for (size_t i = 0; i < rules->count; i++) {
        size_t equal = arpc_token_hash_equal(rules->rules[i].hash, hash);
        size_t token = rules->rules[i].kind == AMPD_AUTH_TOKEN;
        found |= (0 - (equal & token)) & (i + 1); /* no hash is in the file twice */
    }
    return found > 0 ? &rules->rules[found - 1] : NULL;
}

static int identify_token(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller, int64_t now_us,
                          struct identity *identity, struct amp_error *error)
{
    size_t size = 0;
    const char *token = token_of(caller, &size);
    uint8_t hash[ARPC_TOKEN_HASH_SIZE];
    if (caller->transport == AMPD_AUTH_PLAINTEXT && !policy->token_over_plaintext)
        return refuse_token(error, "TOKEN_OVER_PLAINTEXT",
                            "a token came over an unencrypted connection from another machine and may have been read "
                            "by anyone on the network: make a new one, and connect with TLS");
    if (token == NULL || caller->authorization_twice || !arpc_token_valid(token, size))
        return refuse_token(
            error, "TOKEN_MALFORMED",
            "the metadata \"authorization\" must be given exactly once and be \"Bearer TOKEN\", with a token of "
            "16 to 1024 letters, digits or -._~+/");
    if (arpc_token_hash(token, size, hash) != 0)
        return amp_error_set(error, AMP_EINTERNAL, "HASH_FAILED",
                             "the token could not be hashed; see the server's log");
    const struct ampd_auth_rule *rule = policy->rules != NULL ? find_token(policy->rules, hash) : NULL;
    if (rule == NULL)
        return refuse_token(error, "TOKEN_UNKNOWN",
                            "this token is not in the server's token file; add its line there and send ampd a SIGHUP");
    if (now_us >= rule->expires_us)
        return amp_error_set(error, AMP_EUNAUTHENTICATED, "TOKEN_EXPIRED",
                             "the token \"%.200s\" has expired; make a new one with ampctl token new", rule->name);
    identity->roles = rule->roles;
    identity->token_name = rule->name;
    (void)snprintf(identity->who, sizeof identity->who, "the token \"%s\"", rule->name);
    return 0;
}

/* ---- certificates and users ---- */

static const struct ampd_auth_rule *find_cert(const struct ampd_auth_rules *rules, const char *name)
{
    for (size_t i = 0; rules != NULL && i < rules->count; i++)
        if (rules->rules[i].kind == AMPD_AUTH_CERT && strcmp(rules->rules[i].name, name) == 0)
            return &rules->rules[i];
    return NULL;
}

static int identify_cert(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller,
                         struct identity *identity, struct amp_error *error)
{
    identity->roles = policy->cert_roles;
    (void)snprintf(identity->who, sizeof identity->who, "the certificate \"%.255s\"", caller->cert_names[0]);
    /* Only the first name that has a line counts: the roles of several names are not combined. */
    for (size_t i = 0; i < caller->cert_name_count; i++) {
        const struct ampd_auth_rule *rule = find_cert(policy->rules, caller->cert_names[i]);
        if (rule == NULL)
            continue;
        identity->roles = rule->roles;
        (void)snprintf(identity->who, sizeof identity->who, "the certificate \"%s\"", rule->name);
        break;
    }
    if (identity->roles != 0)
        return 0;
    return amp_error_set(error, AMP_EUNAUTHENTICATED, "CERTIFICATE_UNKNOWN",
                         "no line of the token file names the client certificate \"%.200s\"; add one (cert ROLE NAME), "
                         "or send a token",
                         caller->cert_names[0]);
}

static const struct ampd_auth_rule *find_uid(const struct ampd_auth_rules *rules, uint32_t uid, bool any)
{
    for (size_t i = 0; rules != NULL && i < rules->count; i++) {
        const struct ampd_auth_rule *rule = &rules->rules[i];
        if (rule->kind == AMPD_AUTH_UID && rule->any_uid == any && (any || rule->uid == uid))
            return rule;
    }
    return NULL;
}

static int identify_uid(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller,
                        struct identity *identity, struct amp_error *error)
{
    const struct ampd_auth_rule *rule = find_uid(policy->rules, caller->uid, false);
    if (rule == NULL && (caller->uid == policy->own_uid || caller->uid == 0))
        identity->roles = ampd_auth_roles_of("operator"); /* they can stop ampd and read its files anyway */
    else if (rule == NULL)
        rule = find_uid(policy->rules, caller->uid, true);
    if (rule != NULL)
        identity->roles = rule->roles;
    (void)snprintf(identity->who, sizeof identity->who, "the user %u", (unsigned)caller->uid);
    if (identity->roles != 0)
        return 0;
    return amp_error_set(error, AMP_EUNAUTHENTICATED, "USER_UNKNOWN",
                         "no line of the token file is for the user %u of this machine; add one (uid ROLE %u), or send "
                         "a token",
                         (unsigned)caller->uid, (unsigned)caller->uid);
}

/* ---- the verdict ---- */

static int identify(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller, int64_t now_us,
                    struct identity *identity, struct amp_error *error)
{
    *identity = (struct identity){0};
    if (caller->authorization != NULL)
        return identify_token(policy, caller, now_us, identity, error);
    if (caller->transport == AMPD_AUTH_TLS && caller->cert_name_count > 0)
        return identify_cert(policy, caller, identity, error);
    if (caller->transport == AMPD_AUTH_UNIX && caller->uid_known)
        return identify_uid(policy, caller, identity, error);
    return refuse_token(
        error, "TOKEN_MISSING",
        "this server requires authentication; send a token as the metadata \"authorization: Bearer TOKEN\" "
        "(ampctl --token-file FILE, in Python token_file, or AMPD_TOKEN_FILE)");
}

/* The name of the lowest role that has one of these bits. */
static const char *role_needed(uint32_t needed)
{
    static const char *const names[] = {"read", "worker", "operator", "peer"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((ampd_auth_roles_of(names[i]) & needed) != 0)
            return names[i];
    return "none";
}

void ampd_auth_caller_name(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller, int64_t now_us,
                           char *name, size_t size)
{
    static const char article[] = "the ";
    struct identity identity;
    struct amp_error error = {0};
    name[0] = 0;
    if (!policy->on && caller->transport == AMPD_AUTH_UNIX && caller->uid_known) {
        (void)snprintf(name, size, "user %u", (unsigned)caller->uid);
    } else if (policy->on && identify(policy, caller, now_us, &identity, &error) == 0) {
        size_t used = 0; /* `who` without its article and quotes, which are for sentences */
        for (const char *at = identity.who + sizeof article - 1; *at != 0 && used + 1 < size; at++)
            if (*at != '"')
                name[used++] = *at;
        name[used] = 0;
        amp_text_repair(name); /* it may be truncated within a character, and goes into the history */
    }
}

/* The lower of two limits; 0 is no limit. */
static uint64_t lower(uint64_t a, uint64_t b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

struct ampd_auth_quota ampd_auth_caller_quota(const struct ampd_auth_policy *policy,
                                              const struct ampd_auth_caller *caller, int64_t now_us)
{
    struct ampd_auth_quota quota = {0};
    struct identity identity;
    struct amp_error error = {0};
    if (!policy->on || identify(policy, caller, now_us, &identity, &error) != 0 || identity.token_name == NULL)
        return quota;
    for (size_t i = 0; i < policy->rules->count; i++) {
        const struct ampd_auth_rule *rule = &policy->rules->rules[i];
        if (rule->kind != AMPD_AUTH_TOKEN || strcmp(rule->name, identity.token_name) != 0)
            continue;
        quota.models = lower(quota.models, rule->quota.models);
        quota.memory_bytes = lower(quota.memory_bytes, rule->quota.memory_bytes);
    }
    return quota;
}

int ampd_auth_check(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller,
                    const struct arpc_method *method, int64_t now_us, struct amp_error *error)
{
    uint32_t needed = ampd_auth_needed(method);
    struct identity identity;
    if (!policy->on || needed == 0)
        return 0;
    int rc = identify(policy, caller, now_us, &identity, error);
    if (rc != 0 || (identity.roles & needed) != 0)
        return rc;
    return amp_error_set(error, AMP_EDENIED, "ROLE_REQUIRED", "%s has the role %s, but /%s/%s needs the role %s",
                         identity.who, ampd_auth_role_name(identity.roles), method->service, method->name,
                         role_needed(needed));
}
