/* What a client does with its endpoints, files and token before it connects, and when a file changes. */
#include "client/io/secure.h"
#include "tests/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* cmocka needs the headers above. */
#include <cmocka.h>

#define TOKEN_A "aaaa-aaaa-aaaa-aaaa"
#define TOKEN_B "bbbb-bbbb-bbbb-bbbb"

static char folder[TEMP_FOLDER_MAX], path[TEMP_FOLDER_MAX + 32];

static int setup(void **state)
{
    if (!temp_folder(folder, "client-secure"))
        return -1;
    (void)snprintf(path, sizeof path, "%s/token", folder);
    static const char *const variables[] = {"AMPD_CACERT", "AMPD_CERT", "AMPD_KEY", "AMPD_SERVER_NAME",
                                            "AMPD_TOKEN_FILE"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        (void)unsetenv(variables[i]);
    return 0;
}

static int teardown(void **state)
{
    (void)unlink(path);
    return rmdir(folder);
}

/* A new file in place of the old one, as editors and `mv` do. */
static void put(const char *text, size_t size)
{
    char fresh[sizeof path + 4];
    (void)snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(fresh, path), 0);
}

static void put_text(const char *text)
{
    put(text, strlen(text));
}

static int opened(struct ampclient_secure *secure, const char *endpoints,
                  const struct ampclient_secure_options *options, struct amp_error *error)
{
    *error = (struct amp_error){0};
    return ampclient_secure_open(secure, endpoints, options, error);
}

static void refused(const char *endpoints, const struct ampclient_secure_options *options, int code, const char *words)
{
    struct ampclient_secure secure;
    struct amp_error error;
    int rc = opened(&secure, endpoints, options, &error);
    if (rc != code || strstr(error.text, words) == NULL)
        fail_msg("%s: %d \"%s\"", endpoints, rc, error.text);
    assert_null(strstr(error.text, "aaaa"));
    ampclient_secure_close(&secure); /* may be done, and changes nothing */
}

static void endpoints_without_tls_pass_unchanged(void **state)
{
    static const char *const lists[] = {"127.0.0.1:1", "a:1,b:2,[::1]:3", "unix:/x", "", ",", "a:1,,b:2"};
    const struct ampclient_secure_options none = {0};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct ampclient_secure secure;
        struct amp_error error;
        assert_int_equal(opened(&secure, lists[i], &none, &error), 0);
        assert_string_equal(secure.target, lists[i]); /* rpc judges them */
        assert_null(secure.tls);
        assert_null(ampclient_secure_authorization(&secure, 5000));
        ampclient_secure_close(&secure);
    }
}

static void tls_is_for_all_endpoints_or_none(void **state)
{
    const struct ampclient_secure_options none = {0}, name = {.server_name = "x"};
    refused("tls://a:1,b:2", &none, AMP_EINVAL, "all or none");
    refused("a:1,tls://b:2", &none, AMP_EINVAL, "all or none");
    refused("tls://unix:/x", &none, AMP_EINVAL, "unix socket");
    refused("a:1,unix:/x", &name, AMP_EINVAL, "unix socket");
}

static void a_folder_is_no_socket(void **state)
{
    const struct ampclient_secure_options none = {0};
    refused("unix:/", &none, AMP_EINVAL, "ampd.sock");
}

static void a_certificate_and_its_key_go_together(void **state)
{
    const struct ampclient_secure_options cert = {.cert = "c"}, key = {.key = "k"};
    refused("a:1", &cert, AMP_EINVAL, "go together");
    refused("a:1", &key, AMP_EINVAL, "go together");
}

static void files_for_tls_must_be_there(void **state)
{
    const struct ampclient_secure_options missing = {.cacert = "/nowhere/ca.crt"}, junk = {.cacert = path},
                                          no_key = {.cert = path, .key = "/nowhere/key"};
    put_text("no certificate\n");
    refused("a:1", &missing, AMP_ENOTFOUND, "/nowhere/ca.crt");
    refused("a:1", &junk, AMP_EINVAL, path);
    refused("a:1", &no_key, AMP_ENOTFOUND, "/nowhere/key");
}

static void a_scheme_or_a_name_is_enough_for_tls(void **state)
{
    const struct ampclient_secure_options none = {0}, name = {.server_name = "x"}, token = {.token_file = path};
    const struct ampclient_secure_options *const options[] = {&none, &name, &token};
    static const char *const endpoints[] = {"tls://a:1,tls://[::1]:2", "a:1,[::1]:2", "tls://a:1,tls://[::1]:2"};
    put_text(TOKEN_A);
    for (size_t i = 0; i < 3; i++) {
        struct ampclient_secure secure;
        struct amp_error error;
        assert_int_equal(opened(&secure, endpoints[i], options[i], &error), 0);
        assert_string_equal(secure.target, "a:1,[::1]:2");
        assert_non_null(secure.tls);
        ampclient_secure_close(&secure);
    }
}

static void files_for_tls_do_not_matter_to_a_unix_socket(void **state)
{
    const struct ampclient_secure_options options = {.cacert = "/nowhere"};
    struct ampclient_secure secure;
    struct amp_error error;
    assert_int_equal(opened(&secure, "unix:/x", &options, &error), 0);
    assert_null(secure.tls);
    ampclient_secure_close(&secure);
}

/* It would get parameters and gradients as plain text otherwise, from whoever answers there. */
static void tls_that_was_asked_for_is_used_for_a_shard_that_is_told_over_a_unix_socket(void **state)
{
    const struct ampclient_secure_options named = {.server_name = "ampd"}, missing = {.cacert = "/nowhere"};
    struct ampclient_secure secure;
    struct arpc_tls *tls = NULL;
    struct amp_error error;
    assert_int_equal(opened(&secure, "unix:/x", &named, &error), 0);
    assert_int_equal(ampclient_secure_shard(&secure, "unix:/y", &tls, &error), 0);
    assert_null(tls);
    assert_int_equal(ampclient_secure_shard(&secure, "localhost:1", &tls, &error), 0);
    assert_null(tls); /* it stays on this machine */
    assert_int_equal(ampclient_secure_shard(&secure, "192.0.2.1:1", &tls, &error), 0);
    assert_non_null(tls);
    ampclient_secure_close(&secure);
    assert_int_equal(opened(&secure, "unix:/x", &missing, &error), 0);
    assert_true(ampclient_secure_shard(&secure, "192.0.2.1:1", &tls, &error) != 0);
    assert_non_null(strstr(error.text, "/nowhere"));
    ampclient_secure_close(&secure);
}

static void the_token_is_what_the_file_holds_without_space(void **state)
{
    static const char *const texts[] = {TOKEN_A, TOKEN_A "\n", "\n  " TOKEN_A "\r\n\n", "\t" TOKEN_A " "};
    const struct ampclient_secure_options options = {.token_file = path};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct ampclient_secure secure;
        struct amp_error error;
        put_text(texts[i]);
        assert_int_equal(opened(&secure, "localhost:1", &options, &error), 0);
        assert_string_equal(ampclient_secure_authorization(&secure, 0), "Bearer " TOKEN_A);
        ampclient_secure_close(&secure);
    }
}

static void what_is_no_token_is_refused_and_not_shown(void **state)
{
    static const char *const texts[] = {
        "", "\n", "short", TOKEN_A " " TOKEN_B, TOKEN_A "\n" TOKEN_B, "aaaa aaaa aaaa aaaa"};
    const struct ampclient_secure_options options = {.token_file = path};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put_text(texts[i]);
        refused("localhost:1", &options, AMP_EINVAL, "does not hold one token");
    }
    put(TOKEN_A "\0", sizeof TOKEN_A);
    refused("localhost:1", &options, AMP_EINVAL, "does not hold one token");
    static char large[100000];
    memset(large, 'a', sizeof large);
    put(large, sizeof large);
    refused("localhost:1", &options, AMP_EINVAL, "does not hold one token");
    put(large, ARPC_TOKEN_MAX + 1);
    refused("localhost:1", &options, AMP_EINVAL, "does not hold one token");
    const struct ampclient_secure_options missing = {.token_file = "/nowhere/token"},
                                          directory = {.token_file = folder};
    refused("localhost:1", &missing, AMP_ENOTFOUND, "cannot be read");
    refused("localhost:1", &directory, AMP_EINVAL, "does not hold one token");
}

static void a_token_goes_to_other_machines_only_by_tls_or_when_told(void **state)
{
    struct ampclient_secure_options options = {.token_file = path};
    put_text(TOKEN_A);
    refused("10.0.0.1:1", &options, AMP_EINVAL, "unencrypted");
    refused("127.0.0.1:1,example:1", &options, AMP_EINVAL, "unencrypted");
    refused("unix:/x,10.0.0.1:1", &options, AMP_EINVAL, "unencrypted");
    struct ampclient_secure secure;
    struct amp_error error;
    assert_int_equal(opened(&secure, "unix:/x,[::1]:1,127.0.0.1:1", &options, &error), 0);
    ampclient_secure_close(&secure);
    options.token_over_plaintext = true;
    assert_int_equal(opened(&secure, "10.0.0.1:1", &options, &error), 0);
    assert_string_equal(ampclient_secure_authorization(&secure, 0), "Bearer " TOKEN_A);
    ampclient_secure_close(&secure);
}

static void a_token_that_is_replaced_is_used_within_a_second(void **state)
{
    const struct ampclient_secure_options options = {.token_file = path};
    struct ampclient_secure secure;
    struct amp_error error;
    put_text(TOKEN_A);
    assert_int_equal(opened(&secure, "localhost:1", &options, &error), 0);
    assert_string_equal(ampclient_secure_authorization(&secure, 10000), "Bearer " TOKEN_A);
    put_text(TOKEN_B);
    assert_string_equal(ampclient_secure_authorization(&secure, 10999), "Bearer " TOKEN_A); /* not looked at yet */
    assert_string_equal(ampclient_secure_authorization(&secure, 11000), "Bearer " TOKEN_B);
    put_text("half a tok"); /* not whole: the old one goes on */
    assert_string_equal(ampclient_secure_authorization(&secure, 12000), "Bearer " TOKEN_B);
    (void)unlink(path);
    assert_string_equal(ampclient_secure_authorization(&secure, 13000), "Bearer " TOKEN_B);
    put_text(TOKEN_A "\n");
    assert_string_equal(ampclient_secure_authorization(&secure, 14000), "Bearer " TOKEN_A);
    ampclient_secure_close(&secure);
}

static void a_token_that_cannot_be_read_for_a_moment_is_read_later(void **state)
{
    const struct ampclient_secure_options options = {.token_file = path};
    struct ampclient_secure secure;
    struct amp_error error;
    struct rlimit all, none;
    put_text(TOKEN_A);
    assert_int_equal(opened(&secure, "localhost:1", &options, &error), 0);
    put_text(TOKEN_B);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = all.rlim_max}; /* no descriptor is left */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_string_equal(ampclient_secure_authorization(&secure, 10000), "Bearer " TOKEN_A);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    assert_string_equal(ampclient_secure_authorization(&secure, 11000), "Bearer " TOKEN_B);
    ampclient_secure_close(&secure);
}

static void a_refused_call_may_be_tried_again_soon_after_the_token_was_replaced(void **state)
{
    const struct ampclient_secure_options options = {.token_file = path};
    struct ampclient_secure secure;
    struct amp_error error;
    put_text(TOKEN_A);
    assert_int_equal(opened(&secure, "localhost:1", &options, &error), 0);
    assert_false(ampclient_secure_renewed(&secure, 10000));
    put_text("half a tok");
    assert_false(ampclient_secure_renewed(&secure, 10001));
    put_text(TOKEN_B);
    assert_true(ampclient_secure_renewed(&secure, 10002)); /* at once, not a second later */
    assert_string_equal(ampclient_secure_authorization(&secure, 10002), "Bearer " TOKEN_B);
    assert_true(ampclient_secure_renewed(&secure, 10001 + AMPCLIENT_SECURE_RENEWED_MS));
    assert_false(ampclient_secure_renewed(&secure, 10002 + AMPCLIENT_SECURE_RENEWED_MS)); /* nor is the new one known */
    ampclient_secure_close(&secure);
}

static void the_environment_says_what_is_not_given(void **state)
{
    struct ampclient_secure_options options = {0};
    struct ampclient_secure secure;
    struct amp_error error;
    put_text(TOKEN_A);
    (void)setenv("AMPD_TOKEN_FILE", path, 1);
    assert_int_equal(opened(&secure, "localhost:1", &options, &error), 0);
    assert_string_equal(ampclient_secure_authorization(&secure, 0), "Bearer " TOKEN_A);
    ampclient_secure_close(&secure);
    options.token_file = ""; /* none, whatever the environment says */
    assert_int_equal(opened(&secure, "localhost:1", &options, &error), 0);
    assert_null(ampclient_secure_authorization(&secure, 0));
    ampclient_secure_close(&secure);
    (void)unsetenv("AMPD_TOKEN_FILE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endpoints_without_tls_pass_unchanged),
        cmocka_unit_test(tls_is_for_all_endpoints_or_none),
        cmocka_unit_test(a_folder_is_no_socket),
        cmocka_unit_test(a_certificate_and_its_key_go_together),
        cmocka_unit_test(files_for_tls_must_be_there),
        cmocka_unit_test(a_scheme_or_a_name_is_enough_for_tls),
        cmocka_unit_test(files_for_tls_do_not_matter_to_a_unix_socket),
        cmocka_unit_test(tls_that_was_asked_for_is_used_for_a_shard_that_is_told_over_a_unix_socket),
        cmocka_unit_test(the_token_is_what_the_file_holds_without_space),
        cmocka_unit_test(what_is_no_token_is_refused_and_not_shown),
        cmocka_unit_test(a_token_goes_to_other_machines_only_by_tls_or_when_told),
        cmocka_unit_test(a_token_that_is_replaced_is_used_within_a_second),
        cmocka_unit_test(a_token_that_cannot_be_read_for_a_moment_is_read_later),
        cmocka_unit_test(a_refused_call_may_be_tried_again_soon_after_the_token_was_replaced),
        cmocka_unit_test(the_environment_says_what_is_not_given),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
