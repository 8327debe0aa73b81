/* The token file: what is read from it, and what is refused; and the tokens themselves. */
#include "server/io/auth/auth_rules.h"
#include "server/io/base/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cmocka needs the headers above. */
#include <cmocka.h>

/* SHA-256 of "abc", of FIPS 180-4. */
#define HASH_ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define HASH_2   "00000000000000000000000000000000000000000000000000000000000000ff"

static struct ampd_auth_rules *parsed(const char *text)
{
    struct ampd_auth_rules *rules = NULL;
    struct amp_error error = {0};
    int rc = ampd_auth_rules_parse(text, strlen(text), "tokens", &rules, &error);
    if (rc != 0)
        fail_msg("%s", error.text);
    assert_non_null(rules);
    return rules;
}

/* The text must be refused by a sentence with these words, which shows nothing of the line. */
static void refused_bytes(const char *text, size_t size, const char *words)
{
    struct ampd_auth_rules *rules = NULL;
    struct amp_error error = {0};
    assert_int_equal(ampd_auth_rules_parse(text, size, "the-file", &rules, &error), AMP_EINVAL);
    assert_null(rules);
    if (strstr(error.text, words) == NULL || strstr(error.text, "the-file") == NULL)
        fail_msg("\"%s\" does not say \"%s\"", error.text, words);
    assert_null(strstr(error.text, "hunter2"));
}

static void refused(const char *text, const char *words)
{
    refused_bytes(text, strlen(text), words);
}

static void the_hash_is_sha256(void **state)
{
    uint8_t hash[ARPC_TOKEN_HASH_SIZE];
    assert_int_equal(arpc_token_hash("abc", 3, hash), 0);
    struct ampd_auth_rules *rules = parsed("token read x " HASH_ABC);
    assert_memory_equal(rules->rules[0].hash, hash, sizeof hash);
    assert_true(arpc_token_hash_equal(rules->rules[0].hash, hash));
    hash[31] ^= 1;
    assert_false(arpc_token_hash_equal(rules->rules[0].hash, hash));
    free(rules);
}

static void new_tokens_are_valid_and_differ(void **state)
{
    char first[ARPC_TOKEN_TEXT_SIZE], second[ARPC_TOKEN_TEXT_SIZE];
    assert_int_equal(arpc_token_new(first), 0);
    assert_int_equal(arpc_token_new(second), 0);
    assert_int_equal(strlen(first), ARPC_TOKEN_TEXT_SIZE - 1);
    assert_int_equal(strncmp(first, "ampd_", 5), 0);
    assert_true(arpc_token_valid(first, strlen(first)));
    assert_string_not_equal(first, second);
}

static void tokens_have_the_grammar_of_rfc_6750(void **state)
{
    assert_true(arpc_token_valid("0123456789abcXYZ", 16));
    assert_true(arpc_token_valid("a-._~+/0123456789==", 19));
    assert_false(arpc_token_valid("0123456789abcXY", 15));
    assert_false(arpc_token_valid("0123456789 abcXYZ", 17));
    assert_false(arpc_token_valid("0123456789=abcXYZ", 17));
    assert_false(arpc_token_valid("0123456789\0abcXYZ", 17));
    assert_false(arpc_token_valid("0123456789abcXY\xff", 16));
    char longest[ARPC_TOKEN_MAX + 1];
    memset(longest, 'a', sizeof longest);
    assert_true(arpc_token_valid(longest, ARPC_TOKEN_MAX));
    assert_false(arpc_token_valid(longest, ARPC_TOKEN_MAX + 1));
}

static void each_kind_of_line_becomes_a_rule(void **state)
{
    struct ampd_auth_rules *rules = parsed("# who may call\n"
                                           "\n"
                                           "   \t\r\n"
                                           "token worker alice " HASH_ABC "\r\n"
                                           "\ttoken  operator\tbob " HASH_2 " expires=2027-01-31T12:00:01Z  \n"
                                           "cert read  Jane Doe, Research \n"
                                           "uid peer 1000\n"
                                           "uid read *");
    assert_int_equal(rules->count, 5);
    const struct ampd_auth_rule *rule = rules->rules;
    assert_int_equal(rule[0].kind, AMPD_AUTH_TOKEN);
    assert_int_equal(rule[0].roles, AMPD_ROLE_READER | AMPD_ROLE_WORKER);
    assert_string_equal(rule[0].name, "alice");
    assert_int_equal(rule[0].line, 4);
    assert_true(rule[0].expires_us == INT64_MAX);
    assert_int_equal(rule[1].roles, AMPD_ROLE_READER | AMPD_ROLE_WORKER | AMPD_ROLE_OPERATOR);
    assert_true(rule[1].expires_us == INT64_C(1801396801) * 1000000);
    assert_int_equal(rule[2].kind, AMPD_AUTH_CERT);
    assert_string_equal(rule[2].name, "Jane Doe, Research");
    assert_int_equal(rule[3].kind, AMPD_AUTH_UID);
    assert_int_equal(rule[3].uid, 1000);
    assert_int_equal(rule[3].roles, AMPD_ROLE_PEER);
    assert_true(rule[4].any_uid);
    free(rules);
}

static void an_empty_file_has_no_rules(void **state)
{
    struct ampd_auth_rules *rules = parsed("");
    assert_int_equal(rules->count, 0);
    free(rules);
    rules = parsed("# nobody\n#");
    assert_int_equal(rules->count, 0);
    free(rules);
}

static void times_follow_the_calendar(void **state)
{
    static const struct {
        const char *text;
        int64_t seconds; /* -1: there is no such time */
    } rows[] = {{"1970-01-01", 0},
                {"2000-02-29", 951782400},
                {"2024-12-31T23:59:59Z", 1735689599},
                {"2100-03-01", 4107542400},
                {"9999-12-31", 253402214400},
                {"2100-02-29", -1},
                {"2026-02-29", -1},
                {"2026-13-01", -1},
                {"2026-00-01", -1},
                {"2026-01-00", -1},
                {"2026-04-31", -1},
                {"1969-12-31", -1},
                {"2026-1-1", -1},
                {"2026-01-01T00:00:00", -1},
                {"2026-01-01T24:00:00Z", -1},
                {"2026-01-01T00:60:00Z", -1},
                {"2026-01-01T00:00:60Z", -1},
                {"2026-01-01 00:00:00Z", -1},
                {"-026-01-01", -1},
                {"", -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[160];
        (void)snprintf(line, sizeof line, "token read x " HASH_ABC " expires=%s", rows[i].text);
        if (rows[i].seconds < 0) {
            refused(line, "line 1");
            continue;
        }
        struct ampd_auth_rules *rules = parsed(line);
        assert_true(rules->rules[0].expires_us == rows[i].seconds * 1000000);
        free(rules);
    }
}

static void a_token_has_its_quota_behind_its_hash(void **state)
{
    struct ampd_auth_rules *rules = parsed("token worker a " HASH_ABC " models=3 expires=2027-01-31 memory=512M\n"
                                           "token worker b " HASH_2 " memory=4096\n");
    assert_true(rules->rules[0].quota.models == 3 && rules->rules[0].quota.memory_bytes == (uint64_t)512 << 20);
    assert_true(rules->rules[0].expires_us != INT64_MAX && rules->rules[1].expires_us == INT64_MAX);
    assert_true(rules->rules[1].quota.models == 0 && rules->rules[1].quota.memory_bytes == 4096);
    free(rules);
}

static void what_is_not_a_rule_is_refused_by_its_line(void **state)
{
    refused("tokens read x " HASH_ABC, "line 1");
    refused("hunter2hunter2hunter2", "begins with token, cert or uid");
    refused("# fine\ntoken admin x " HASH_ABC, "line 2");
    refused("token", "the role");
    refused("token read J\xfcrgen " HASH_ABC, "must be UTF-8 text");
    refused("token read", "name is missing");
    refused("token read x", "SHA-256");
    refused("token read x hunter2hunter2", "SHA-256"); /* the token itself instead of its hash */
    refused("token read x ba7816bf", "SHA-256");
    refused("token read x " HASH_ABC "00", "SHA-256");
    refused("token read x ga7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "SHA-256");
    refused("token read x " HASH_ABC " until=2027-01-31", "expires=");
    refused("token read x " HASH_ABC " expires=2027-01-31 more", "models=N");
    refused("token read x " HASH_ABC " expires=2027-01-31 expires=2028-01-31", "once");
    refused("token read x " HASH_ABC " models=3 models=4", "once");
    refused("token read x " HASH_ABC " models=", "models=N");
    refused("token read x " HASH_ABC " models=0", "models=N");
    refused("token read x " HASH_ABC " models=3K", "models=N");
    refused("token read x " HASH_ABC " memory=1T", "memory=BYTES");
    refused("token read x " HASH_ABC " memory=99999999999999999G", "memory=BYTES");
    refused("cert read", "name is missing");
    refused("cert read   \t ", "name is missing");
    refused("uid read", "number");
    refused("uid read -1", "number");
    refused("uid read 4294967295", "number");
    refused("uid read 99999999999", "number");
    refused("uid read 12x", "number");
    refused("uid read 12 13", "unexpected text");
    refused("uid read **", "number");
}

static void bytes_that_no_editor_writes_are_refused(void **state)
{
    static const char zero[] = "token read x " HASH_ABC "\n\0token operator y " HASH_2;
    refused_bytes(zero, sizeof zero - 1, "line 2: the line contains a zero byte");
    refused("cert read a\x1b[31mb", "control character");
    refused("\xef\xbb\xbftoken read x " HASH_ABC, "line 1"); /* a byte order mark */
}

static void two_lines_for_one_caller_are_refused(void **state)
{
    refused("token read x " HASH_ABC "\ntoken operator y " HASH_ABC, "line 2: the same");
    refused("token read x BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD\ntoken read y " HASH_ABC,
            "line 1");
    refused("cert read a\ncert operator a", "same");
    refused("uid read 7\nuid operator 7", "same");
    refused("uid read 07\nuid operator 7", "same");
    refused("uid read *\nuid operator *", "same");
    free(parsed("uid read 0\nuid operator *\ncert read *\ncert read 0\ntoken read 0 " HASH_ABC));
    free(parsed("token read x " HASH_ABC "\ntoken operator x " HASH_2)); /* while a token is replaced */
}

static void sizes_are_bounded(void **state)
{
    char line[512];
    (void)memset(line, 'n', sizeof line);
    memcpy(line, "cert read ", 10);
    line[10 + 255] = 0;
    struct ampd_auth_rules *rules = parsed(line);
    assert_int_equal(strlen(rules->rules[0].name), 255);
    free(rules);
    line[10 + 255] = 'n';
    line[10 + 256] = 0;
    refused(line, "longer than 255");

    char *text = calloc(1, AMPD_AUTH_FILE_MAX + 2);
    assert_non_null(text);
    size_t used = 0;
    for (unsigned i = 0; i < AMPD_AUTH_RULES_MAX; i++)
        used += (size_t)sprintf(text + used, "uid read %u\n", i);
    rules = parsed(text);
    assert_int_equal(rules->count, AMPD_AUTH_RULES_MAX);
    free(rules);
    (void)strcpy(text + used, "uid read 70000\n");
    refused(text, "line 1025: there are more than 1024 rules");
    memset(text, '#', AMPD_AUTH_FILE_MAX + 1);
    text[AMPD_AUTH_FILE_MAX] = 0;
    free(parsed(text));
    text[AMPD_AUTH_FILE_MAX] = '#';
    refused(text, "longer than");
    free(text);
}

/* Each byte of a good file replaced by each other byte: it is read or refused, and nothing is read beyond it. */
static void no_changed_byte_makes_it_fail_otherwise(void **state)
{
    static const char good[] = "token worker a " HASH_ABC " expires=2027-01-31\ncert read b\nuid peer 1\n";
    size_t size = sizeof good - 1;
    char *text = malloc(size); /* without a final zero: the sanitizer sees a read too far */
    assert_non_null(text);
    for (size_t at = 0; at < size; at++) {
        for (int byte = 0; byte < 256; byte++) {
            struct ampd_auth_rules *rules = NULL;
            struct amp_error error = {0};
            memcpy(text, good, size);
            text[at] = (char)byte;
            int rc = ampd_auth_rules_parse(text, size, "t", &rules, &error);
            assert_true(rc == 0 ? rules->count >= 2 : rc == AMP_EINVAL && rules == NULL);
            free(rules);
        }
    }
    for (size_t cut = 0; cut <= size; cut++) {
        char *part = malloc(cut + 1);
        assert_non_null(part);
        memcpy(part, good, cut);
        struct ampd_auth_rules *rules = NULL;
        struct amp_error error = {0};
        (void)ampd_auth_rules_parse(part, cut, "t", &rules, &error); /* either is right */
        free(rules);
        free(part);
    }
    free(text);
}

static void roles_contain_those_below_but_for_peer(void **state)
{
    uint32_t reader = ampd_auth_roles_of("read"), worker = ampd_auth_roles_of("worker"),
             op = ampd_auth_roles_of("operator"), peer = ampd_auth_roles_of("peer");
    assert_true((worker & reader) == reader && (op & worker) == worker && worker != reader && op != worker);
    assert_int_equal(peer & op, 0);
    assert_int_equal(ampd_auth_roles_of("Read"), 0);
    assert_int_equal(ampd_auth_roles_of(""), 0);
    static const char *const names[] = {"read", "worker", "operator", "peer"};
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(ampd_auth_role_name(ampd_auth_roles_of(names[i])), names[i]);
    assert_string_equal(ampd_auth_role_name(0), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hash_is_sha256),
        cmocka_unit_test(new_tokens_are_valid_and_differ),
        cmocka_unit_test(tokens_have_the_grammar_of_rfc_6750),
        cmocka_unit_test(each_kind_of_line_becomes_a_rule),
        cmocka_unit_test(an_empty_file_has_no_rules),
        cmocka_unit_test(times_follow_the_calendar),
        cmocka_unit_test(a_token_has_its_quota_behind_its_hash),
        cmocka_unit_test(what_is_not_a_rule_is_refused_by_its_line),
        cmocka_unit_test(bytes_that_no_editor_writes_are_refused),
        cmocka_unit_test(two_lines_for_one_caller_are_refused),
        cmocka_unit_test(sizes_are_bounded),
        cmocka_unit_test(no_changed_byte_makes_it_fail_otherwise),
        cmocka_unit_test(roles_contain_those_below_but_for_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
