/* Who is let in: identities, every row of proto/methods.def against every role, and which options go together. */
#include "rpc/arpc_peer.h"
#include "server/io/auth/auth.h"
#include "server/io/auth/auth_options.h"
#include "server/io/base/options.h"
#include "server/io/process/methods.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cmocka needs the headers above. */
#include <cmocka.h>

#define OWN_UID     500u
#define NOW         INT64_C(1800000000000000)
#define READ_TOKEN  "read-read-read-read"
#define WORK_TOKEN  "work-work-work-work"
#define OP_TOKEN    "oper-oper-oper-oper"
#define PEER_TOKEN  "peer-peer-peer-peer"
#define OLD_TOKEN   "old--old--old--old-"
#define OTHER_TOKEN "other-other-other-other"

/* The linker puts this in front of the comparison (--wrap). */
static size_t comparisons;
bool __real_arpc_token_hash_equal(const uint8_t *a, const uint8_t *b);
bool __wrap_arpc_token_hash_equal(const uint8_t *a, const uint8_t *b);
bool __wrap_arpc_token_hash_equal(const uint8_t *a, const uint8_t *b)
{
    comparisons++;
    return __real_arpc_token_hash_equal(a, b);
}

static size_t put_token(char *text, const char *role, const char *token, const char *more)
{
    uint8_t hash[ARPC_TOKEN_HASH_SIZE];
    assert_int_equal(arpc_token_hash(token, strlen(token), hash), 0);
    size_t used = (size_t)sprintf(text, "token %s %s-name ", role, role);
    for (size_t i = 0; i < sizeof hash; i++)
        used += (size_t)sprintf(text + used, "%02x", hash[i]);
    return used + (size_t)sprintf(text + used, "%s\n", more);
}

/* Rules with a token for each role, and some certificates and users. */
static struct ampd_auth_policy policy_new(void)
{
    char text[4096];
    struct ampd_auth_rules *rules;
    struct amp_error error = {0};
    size_t used = put_token(text, "read", READ_TOKEN, "");
    used += put_token(text + used, "worker", WORK_TOKEN, "");
    used += put_token(text + used, "operator", OP_TOKEN, "");
    used += put_token(text + used, "peer", PEER_TOKEN, "");
    used += put_token(text + used, "operator", OLD_TOKEN, " expires=2027-01-15T08:00:00Z"); /* NOW */
    used += (size_t)sprintf(text + used, "cert worker trainer\ncert operator ops.example\n"
                                         "uid worker 1000\nuid read 501\n");
    assert_int_equal(ampd_auth_rules_parse(text, used, "tokens", &rules, &error), 0);
    return (struct ampd_auth_policy){.on = true, .rules = rules, .own_uid = OWN_UID};
}

static void policy_free(struct ampd_auth_policy *policy)
{
    free((void *)(uintptr_t)policy->rules);
}

static const struct arpc_method *method_of(const char *name)
{
    size_t count;
    const struct arpc_method *methods = ampd_methods(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(methods[i].name, name) == 0)
            return &methods[i];
    fail_msg("no method %s", name);
    return NULL;
}

/* The code and, in *error, the rest. */
static int check(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller, const char *method,
                 struct amp_error *error)
{
    *error = (struct amp_error){0};
    return ampd_auth_check(policy, caller, method_of(method), NOW, error);
}

static struct ampd_auth_caller with_header(const char *header)
{
    return (struct ampd_auth_caller){
        .transport = AMPD_AUTH_TLS, .authorization = header, .authorization_size = strlen(header)};
}

/* The caller must be refused for this reason, in a sentence. */
static void refused(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller, const char *method,
                    int code, const char *reason)
{
    struct amp_error error;
    int rc = check(policy, caller, method, &error);
    if (rc != code || strcmp(error.reason, reason) != 0)
        fail_msg("%d %s: %s; expected %d %s", rc, error.reason, error.text, code, reason);
    assert_true(strlen(error.text) > 20);
    if (caller->authorization != NULL && caller->authorization_size > 12) /* a part of the token, not of the scheme */
        assert_null(strstr(error.text, caller->authorization + caller->authorization_size - 8));
}

static void admitted(const struct ampd_auth_policy *policy, const struct ampd_auth_caller *caller, const char *method)
{
    struct amp_error error;
    if (check(policy, caller, method, &error) != 0)
        fail_msg("%s: %s", error.reason, error.text);
}

/* ---- the table ---- */

/*
 * The lowest role for each method, by the rows of proto/methods.def; docs/security.md tells the same
 * (test_docs_tables).
 */
#define NEEDS_ANYONE         "read", false
#define NEEDS_WORKER         "worker", false
#define NEEDS_OPERATOR       "operator", false
#define NEEDS_PEER           "peer", false
#define NEEDS_ANYONE_OR_PEER "read", true /* a shard asks it of shard 0 */

static const struct {
    const char *method;
    const char *role;
    bool peer_too;
} contract[] = {
#define AMPD_METHOD(service_, name_, c_name_, request_, response_, kind_, idempotent_, roles_, ...)                    \
    {#name_, NEEDS_##roles_},
#include "proto/methods.def"
#undef AMPD_METHOD
};

/* Whether `role` may do what asks for `needed`. */
static bool suffices(const char *role, const char *needed)
{
    static const char *const ladder[] = {"read", "worker", "operator"};
    size_t have = 3, need = 3;
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(ladder[i], role) == 0)
            have = i;
        if (strcmp(ladder[i], needed) == 0)
            need = i;
    }
    return have == 3 || need == 3 ? have == need : have >= need;
}

static void every_role_may_call_exactly_what_the_contract_says(void **state)
{
    static const struct {
        const char *role;
        const char *header;
    } callers[] = {{"read", "Bearer " READ_TOKEN},
                   {"worker", "Bearer " WORK_TOKEN},
                   {"operator", "Bearer " OP_TOKEN},
                   {"peer", "Bearer " PEER_TOKEN}};
    struct ampd_auth_policy policy = policy_new();
    size_t count;
    (void)ampd_methods(&count);
    assert_int_equal(count, sizeof contract / sizeof *contract);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < 4; j++) {
            struct ampd_auth_caller caller = with_header(callers[j].header);
            struct amp_error error;
            int rc = check(&policy, &caller, contract[i].method, &error);
            bool expected = suffices(callers[j].role, contract[i].role) ||
                            (contract[i].peer_too && strcmp(callers[j].role, "peer") == 0);
            if (rc != (expected ? 0 : AMP_EDENIED))
                fail_msg("%s calls %s: %d %s", callers[j].role, contract[i].method, rc, error.text);
            if (rc == 0)
                continue;
            char words[96];
            (void)snprintf(words, sizeof words, "/%s needs the role %s", contract[i].method, contract[i].role);
            assert_non_null(strstr(error.text, words));
            assert_string_equal(error.reason, "ROLE_REQUIRED");
        }
        struct ampd_auth_caller nobody = {.transport = AMPD_AUTH_TLS};
        refused(&policy, &nobody, contract[i].method, AMP_EUNAUTHENTICATED, "TOKEN_MISSING");
    }
    policy_free(&policy);
}

static void health_is_open_and_reflection_is_for_readers(void **state)
{
    static const struct arpc_method health = {.service = "grpc.health.v1.Health", .name = "Check"};
    static const struct arpc_method reflection = {.service = "grpc.reflection.v1.ServerReflection",
                                                  .name = "ServerReflectionInfo"};
    struct ampd_auth_policy policy = policy_new();
    struct ampd_auth_caller nobody = {.transport = AMPD_AUTH_PLAINTEXT}, reader = with_header("Bearer " READ_TOKEN);
    struct amp_error error;
    assert_int_equal(ampd_auth_check(&policy, &nobody, &health, NOW, &error), 0);
    assert_int_equal(ampd_auth_check(&policy, &nobody, &reflection, NOW, &error), AMP_EUNAUTHENTICATED);
    assert_int_equal(ampd_auth_check(&policy, &reader, &reflection, NOW, &error), 0);
    policy_free(&policy);
}

static void nobody_is_asked_when_there_is_nothing_to_ask_by(void **state)
{
    const struct ampd_auth_policy off = {.on = false};
    struct ampd_auth_caller nobody = {.transport = AMPD_AUTH_LOOPBACK}, wrong = with_header("Bearer x");
    for (size_t i = 0; i < sizeof contract / sizeof *contract; i++) {
        admitted(&off, &nobody, contract[i].method);
        admitted(&off, &wrong, contract[i].method);
    }
}

/* ---- tokens ---- */

static void tokens_that_are_wrong_are_refused_each_for_its_reason(void **state)
{
    static const char *const malformed[] = {"",
                                            "Bearer",
                                            "Bearer ",
                                            "Bearer short",
                                            "Basic b3BlcjpvcGVy",
                                            OP_TOKEN,
                                            "Bearer  " OP_TOKEN,
                                            "Bearer " OP_TOKEN " ",
                                            "Bearer " OP_TOKEN ", Bearer " READ_TOKEN,
                                            "Bearer\t" OP_TOKEN};
    struct ampd_auth_policy policy = policy_new();
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        struct ampd_auth_caller caller = with_header(malformed[i]);
        refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_MALFORMED");
    }
    struct ampd_auth_caller caller = with_header("Bearer " OTHER_TOKEN);
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_UNKNOWN");
    caller = with_header("Bearer " OP_TOKEN "x");
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_UNKNOWN");
    caller = with_header("Bearer " OLD_TOKEN);
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_EXPIRED");
    caller = with_header("Bearer " OP_TOKEN);
    caller.authorization_twice = true;
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_MALFORMED");
    char *longest = malloc(7 + ARPC_TOKEN_MAX + 2);
    assert_non_null(longest);
    memset(longest, 'a', 7 + ARPC_TOKEN_MAX + 2);
    memcpy(longest, "Bearer ", 7);
    longest[7 + ARPC_TOKEN_MAX + 1] = 0;
    caller = with_header(longest);
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_MALFORMED");
    caller.authorization_size--;
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_UNKNOWN");
    free(longest);
    policy_free(&policy);
}

static void the_scheme_may_be_in_any_case(void **state)
{
    struct ampd_auth_policy policy = policy_new();
    struct ampd_auth_caller caller = with_header("bEARER " OP_TOKEN);
    admitted(&policy, &caller, "Checkpoint");
    policy_free(&policy);
}

static void a_token_is_good_until_its_time(void **state)
{
    struct ampd_auth_policy policy = policy_new();
    struct ampd_auth_caller caller = with_header("Bearer " OLD_TOKEN);
    struct amp_error error;
    assert_int_equal(ampd_auth_check(&policy, &caller, method_of("Checkpoint"), NOW - 1, &error), 0);
    assert_int_equal(ampd_auth_check(&policy, &caller, method_of("Checkpoint"), NOW, &error), AMP_EUNAUTHENTICATED);
    policy_free(&policy);
}

static void tokens_over_a_plaintext_network_are_refused_unless_told(void **state)
{
    struct ampd_auth_policy policy = policy_new();
    struct ampd_auth_caller caller = with_header("Bearer " OP_TOKEN);
    static const enum ampd_auth_transport fine[] = {AMPD_AUTH_TLS, AMPD_AUTH_LOOPBACK, AMPD_AUTH_UNIX};
    for (size_t i = 0; i < 3; i++) {
        caller.transport = fine[i];
        admitted(&policy, &caller, "Checkpoint");
    }
    caller.transport = AMPD_AUTH_PLAINTEXT;
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_OVER_PLAINTEXT");
    policy.token_over_plaintext = true;
    admitted(&policy, &caller, "Checkpoint");
    policy_free(&policy);
}

/* Whichever line it is, or none: as many comparisons as there are lines. */
static void each_token_is_compared_with_every_line(void **state)
{
    static const char *const headers[] = {"Bearer " READ_TOKEN, "Bearer " PEER_TOKEN, "Bearer " OTHER_TOKEN};
    struct ampd_auth_policy policy = policy_new();
    for (size_t i = 0; i < 3; i++) {
        struct ampd_auth_caller caller = with_header(headers[i]);
        struct amp_error error;
        comparisons = 0;
        (void)check(&policy, &caller, "Session", &error);
        assert_int_equal(comparisons, policy.rules->count);
    }
    policy_free(&policy);
}

/* ---- certificates and users ---- */

static void certificates_have_the_role_of_their_line_or_the_common_one(void **state)
{
    struct ampd_auth_policy policy = policy_new();
    const char *trainer[] = {"trainer", "t.example"}, *ops[] = {"someone", "ops.example"}, *unknown[] = {"unknown"};
    struct ampd_auth_caller caller = {.transport = AMPD_AUTH_TLS, .cert_names = trainer, .cert_name_count = 2};
    admitted(&policy, &caller, "Push");
    refused(&policy, &caller, "Checkpoint", AMP_EDENIED, "ROLE_REQUIRED");
    caller.cert_names = ops;
    admitted(&policy, &caller, "Checkpoint");
    caller = (struct ampd_auth_caller){.transport = AMPD_AUTH_TLS, .cert_names = unknown, .cert_name_count = 1};
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "CERTIFICATE_UNKNOWN");
    policy.cert_roles = ampd_auth_roles_of("worker");
    admitted(&policy, &caller, "Push");
    refused(&policy, &caller, "Checkpoint", AMP_EDENIED, "ROLE_REQUIRED");
    policy_free(&policy);
}

static void a_token_counts_before_all_else(void **state)
{
    struct ampd_auth_policy policy = policy_new();
    const char *ops[] = {"ops.example"};
    struct ampd_auth_caller caller = with_header("Bearer " READ_TOKEN);
    caller.cert_names = ops;
    caller.cert_name_count = 1;
    refused(&policy, &caller, "Checkpoint", AMP_EDENIED, "ROLE_REQUIRED");
    caller = with_header("Bearer " OTHER_TOKEN);
    caller.cert_names = ops;
    caller.cert_name_count = 1;
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_UNKNOWN");
    caller = with_header("Bearer " OTHER_TOKEN);
    caller.transport = AMPD_AUTH_UNIX;
    caller.uid_known = true;
    caller.uid = OWN_UID;
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_UNKNOWN");
    policy_free(&policy);
}

static void users_of_the_socket_have_the_role_of_their_line(void **state)
{
    struct ampd_auth_policy policy = policy_new();
    struct ampd_auth_caller caller = {.transport = AMPD_AUTH_UNIX, .uid_known = true, .uid = OWN_UID};
    admitted(&policy, &caller, "Checkpoint");
    refused(&policy, &caller, "Session", AMP_EDENIED, "ROLE_REQUIRED");
    caller.uid = 0;
    admitted(&policy, &caller, "Checkpoint");
    caller.uid = 1000;
    admitted(&policy, &caller, "Push");
    refused(&policy, &caller, "Checkpoint", AMP_EDENIED, "ROLE_REQUIRED");
    caller.uid = 2000;
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "USER_UNKNOWN");
    caller.uid_known = false;
    caller.uid = 0;
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_MISSING");
    caller = (struct ampd_auth_caller){.transport = AMPD_AUTH_LOOPBACK, .uid_known = true, .uid = 0};
    refused(&policy, &caller, "GetStatus", AMP_EUNAUTHENTICATED, "TOKEN_MISSING");
    policy_free(&policy);
}

static void a_star_is_for_all_users_without_a_line(void **state)
{
    static const char text[] = "uid read *\nuid worker 500\nuid operator 7\n";
    struct ampd_auth_rules *rules;
    struct amp_error error;
    assert_int_equal(ampd_auth_rules_parse(text, strlen(text), "t", &rules, &error), 0);
    const struct ampd_auth_policy policy = {.on = true, .rules = rules, .own_uid = OWN_UID};
    struct ampd_auth_caller caller = {.transport = AMPD_AUTH_UNIX, .uid_known = true, .uid = 2000};
    admitted(&policy, &caller, "GetStatus");
    refused(&policy, &caller, "Push", AMP_EDENIED, "ROLE_REQUIRED");
    caller.uid = 7;
    admitted(&policy, &caller, "Checkpoint");
    caller.uid = 0;
    admitted(&policy, &caller, "Checkpoint");
    caller.uid = OWN_UID; /* a line counts even for ampd's own user */
    refused(&policy, &caller, "Checkpoint", AMP_EDENIED, "ROLE_REQUIRED");
    free(rules);
}

/* ---- options ---- */

static void loopback_is_told_from_other_addresses(void **state)
{
    static const char *const loopback[] = {"127.0.0.1:7420", "127.9.9.9:1", "[::1]:7420",
                                           "localhost:0",    "unix:/x",     "[::ffff:127.0.0.1]:1"};
    static const char *const beyond[] = {"0.0.0.0:7420", "[::]:1",    "10.0.0.1:1",         "localhost.example:1",
                                         "example:1",    "127.0.0:1", "[::ffff:10.0.0.1]:1"};
    for (size_t i = 0; i < sizeof loopback / sizeof *loopback; i++)
        assert_true(arpc_is_loopback(loopback[i]));
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++)
        assert_false(arpc_is_loopback(beyond[i]));
}

#define TLS .cert_file = "c", .key_file = "k"

static void options_that_leave_a_door_open_or_contradict_are_refused(void **state)
{
    static const struct {
        const char *listen;
        struct ampd_auth_options options;
        const char *words; /* of the refusal; NULL: they are fine */
    } rows[] = {
        {"127.0.0.1:1", {0}, NULL},
        {"127.0.0.1:1", {.insecure = true}, NULL},
        {"127.0.0.1:1", {.token_file = "t"}, NULL},
        {"127.0.0.1:1", {TLS}, NULL},
        {"unix:/x", {.token_file = "t"}, NULL},
        {"unix:/x", {TLS}, "unix socket"},
        {"0.0.0.0:1", {0}, "--insecure"},
        {"0.0.0.0:1", {.token_file = "t"}, "--cert-file"},
        {"0.0.0.0:1", {TLS}, "--token-file"},
        {"0.0.0.0:1", {TLS, .token_file = "t"}, NULL},
        {"no-such-host.invalid:1", {TLS}, "cannot listen on"},
        {"no-such-host.invalid:1", {TLS, .token_file = "t"}, NULL}, /* nothing is looked up */
        {"0.0.0.0:1", {TLS, .trusted_ca_file = "a", .client_cert_role = "worker"}, NULL},
        {"0.0.0.0:1", {TLS, .trusted_ca_file = "a", .client_cert_auth = true, .client_cert_role = "worker"}, NULL},
        {"0.0.0.0:1", {TLS, .trusted_ca_file = "a", .token_file = "t"}, NULL},
        {"0.0.0.0:1", {TLS, .trusted_ca_file = "a", .client_cert_auth = true}, "--client-cert-role"},
        {"0.0.0.0:1", {.insecure = true}, NULL},
        {"0.0.0.0:1", {TLS, .insecure = true}, NULL},
        {"0.0.0.0:1", {.token_file = "t", .insecure = true}, NULL},
        {"0.0.0.0:1", {TLS, .token_file = "t", .insecure = true}, "leave it out"},
        {"127.0.0.1:1", {.cert_file = "c"}, "--key-file"},
        {"127.0.0.1:1", {.key_file = "k"}, "--cert-file"},
        {"127.0.0.1:1", {.trusted_ca_file = "a"}, "--cert-file"},
        {"127.0.0.1:1", {TLS, .client_cert_auth = true}, "--trusted-ca-file"},
        {"127.0.0.1:1", {TLS, .client_cert_role = "read"}, "--trusted-ca-file"},
        {"127.0.0.1:1", {TLS, .trusted_ca_file = "a", .client_cert_role = "root"}, "give read, worker"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct amp_error error = {0};
        int rc = ampd_auth_options_check(&rows[i].options, rows[i].listen, &error);
        if (rows[i].words == NULL ? rc != 0 : rc != AMP_EINVAL || strstr(error.text, rows[i].words) == NULL)
            fail_msg("row %zu: %d \"%s\"", i, rc, error.text);
    }
}

static void insecure_is_warned_of_by_what_it_opens(void **state)
{
    const struct ampd_auth_options plain = {.insecure = true}, tls = {TLS, .insecure = true},
                                   tokens = {.insecure = true, .token_file = "t"};
    assert_null(ampd_auth_options_warning(&plain, "127.0.0.1:1"));
    assert_non_null(strstr(ampd_auth_options_warning(&plain, "0.0.0.0:1"), "read what is sent"));
    assert_non_null(strstr(ampd_auth_options_warning(&tls, "0.0.0.0:1"), "read and change every model"));
    assert_non_null(strstr(ampd_auth_options_warning(&tokens, "0.0.0.0:1"), "unencrypted"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_role_may_call_exactly_what_the_contract_says),
        cmocka_unit_test(health_is_open_and_reflection_is_for_readers),
        cmocka_unit_test(nobody_is_asked_when_there_is_nothing_to_ask_by),
        cmocka_unit_test(tokens_that_are_wrong_are_refused_each_for_its_reason),
        cmocka_unit_test(the_scheme_may_be_in_any_case),
        cmocka_unit_test(a_token_is_good_until_its_time),
        cmocka_unit_test(tokens_over_a_plaintext_network_are_refused_unless_told),
        cmocka_unit_test(each_token_is_compared_with_every_line),
        cmocka_unit_test(certificates_have_the_role_of_their_line_or_the_common_one),
        cmocka_unit_test(a_token_counts_before_all_else),
        cmocka_unit_test(users_of_the_socket_have_the_role_of_their_line),
        cmocka_unit_test(a_star_is_for_all_users_without_a_line),
        cmocka_unit_test(loopback_is_told_from_other_addresses),
        cmocka_unit_test(options_that_leave_a_door_open_or_contradict_are_refused),
        cmocka_unit_test(insecure_is_warned_of_by_what_it_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
