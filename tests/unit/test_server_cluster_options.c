/* What the command line says of a cluster, and what processes write about themselves into etcd. */
#include "server/io/cluster/cluster_impl.h"
#include "server/io/etcd/etcd_access.h"
#include "tests/temp_folder.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

static void an_url_names_endpoints_and_a_cluster(void **state)
{
    struct io_cluster_url url;
    assert_int_equal(io_cluster_url_parse("etcd://h:2379/prod", &url, NULL), 0);
    assert_string_equal(url.endpoints, "h:2379");
    assert_string_equal(url.name, "prod");
    assert_int_equal(io_cluster_url_parse("etcd://10.0.0.1:2379,[::1]:2380,etcd-2.local:1/a.b_c-9", &url, NULL), 0);
    assert_string_equal(url.endpoints, "10.0.0.1:2379,[::1]:2380,etcd-2.local:1");
    assert_string_equal(url.name, "a.b_c-9");
    assert_false(url.tls);
    assert_int_equal(io_cluster_url_parse("etcds://h:2379/prod", &url, NULL), 0);
    assert_true(url.tls);
    assert_string_equal(url.endpoints, "h:2379");
}

static void other_urls_are_refused_with_a_sentence(void **state)
{
    static const char *const wrong[] = {"",
                                        "etcd",
                                        "etcd:/",
                                        "http://h:2379/n",
                                        "https://h:2379/n",
                                        "etcdss://h:2379/n",
                                        "etcds:///n",
                                        "etcd://",
                                        "etcd:///n",
                                        "etcd://h:2379",
                                        "etcd://h:2379/",
                                        "etcd://h/n",
                                        "etcd://h:/n",
                                        "etcd://:2379/n",
                                        "etcd://h:0/n",
                                        "etcd://h:65536/n",
                                        "etcd://h:2379,/n",
                                        "etcd://,h:2379/n",
                                        "etcd://h:2379,,h:2379/n",
                                        "etcd://h:2379/n/m",
                                        "etcd://h:2379/.n",
                                        "etcd://h:2379/-n",
                                        "etcd://h:2379/n m",
                                        "etcd://h:2379 /n",
                                        "etcd://h:2379/n?x",
                                        "etcd://h:23x9/n",
                                        "etcd://h:2379/\xc3\xa4"};
    struct io_cluster_url url;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct amp_error error = {0};
        assert_int_equal(io_cluster_url_parse(wrong[i], &url, &error), AMP_EINVAL);
        assert_non_null(strstr(error.text, "give"));
    }
}

static void bounds_of_an_url(void **state)
{
    char text[4096], name[IO_CLUSTER_NAME_MAX + 1];
    struct io_cluster_url url;
    memset(name, 'n', sizeof name);
    name[IO_CLUSTER_NAME_MAX - 1] = 0;
    (void)snprintf(text, sizeof text, "etcd://h:1/%s", name);
    assert_int_equal(io_cluster_url_parse(text, &url, NULL), 0);
    assert_string_equal(url.name, name);
    (void)snprintf(text, sizeof text, "etcd://h:1/n%s", name);
    assert_int_equal(io_cluster_url_parse(text, &url, NULL), AMP_EINVAL);
    memset(text, 'h', sizeof text);
    memcpy(text, "etcd://", 7);
    (void)snprintf(text + 7 + IO_CLUSTER_ENDPOINTS_MAX, 16, ":1/n");
    assert_int_equal(io_cluster_url_parse(text, &url, NULL), AMP_EINVAL);
}

static void addresses_that_others_can_connect_to(void **state)
{
    static const char *const right[] = {"h:1", "127.0.0.1:7420", "[::1]:7420", "a.b-c:65535", "unix:/tmp/s"};
    static const char *const wrong[] = {"",           "h",       "h:",    ":1",    "h:0",       "0.0.0.0:7420",
                                        "[::]:7420",  "*:1",     "h:1 x", "unix:", "unix:x",    "unix:/a b",
                                        "h/x:1",      "h:65536", "h:1x",  "h:-1",  "0.0.0.0:0", "h:1,i:2",
                                        "unix:/a,h:1"};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        assert_true(io_cluster_address_ok(right[i]));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(io_cluster_address_ok(wrong[i]));
}

static void lists_of_addresses(void **state)
{
    char address[IO_CLUSTER_ADDRESS_MAX], text[IO_CLUSTER_SHARDS_MAX * 4 + 8] = "";
    assert_int_equal(io_cluster_list_count("a:1"), 1);
    assert_int_equal(io_cluster_list_count("a:1,b:2,unix:/c"), 3);
    assert_int_equal(io_cluster_list_count(""), 0);
    assert_int_equal(io_cluster_list_count("a:1,,b:2"), 0);
    assert_int_equal(io_cluster_list_count("a:1,"), 0);
    assert_true(io_cluster_list_address("a:1,b:2,unix:/c", 2, address));
    assert_string_equal(address, "unix:/c");
    assert_false(io_cluster_list_address("a:1,b:2", 2, address));
    for (size_t i = 0; i < IO_CLUSTER_SHARDS_MAX; i++)
        memcpy(text + 4 * i, "a:1,", 5);
    assert_int_equal(io_cluster_list_count(text), 0); /* one more, and it is empty */
    text[4 * IO_CLUSTER_SHARDS_MAX - 1] = 0;
    assert_int_equal(io_cluster_list_count(text), IO_CLUSTER_SHARDS_MAX);
}

static struct ampd_msg_bytes bytes(const char *text)
{
    return (struct ampd_msg_bytes){(uint8_t *)(uintptr_t)text, strlen(text)};
}

static void what_a_process_writes_is_read_again(void **state)
{
    struct io_cluster cluster = {.options = {.shards = 3, .address = "10.0.0.7:7420"}};
    char value[CLUSTER_VALUE_MAX];
    struct cluster_entry entry;
    cluster_value(&cluster, 12345678901, value);
    assert_string_equal(value, "1 3 12345678901 10.0.0.7:7420");
    struct ampd_msg_bytes as_bytes = bytes(value);
    assert_true(cluster_entry_parse(&as_bytes, &entry));
    assert_int_equal(entry.format, CLUSTER_FORMAT);
    assert_int_equal(entry.shards, 3);
    assert_int_equal(entry.base, 12345678901);
    assert_string_equal(entry.address, "10.0.0.7:7420");
}

static void what_no_process_writes_is_not(void **state)
{
    static const char *const wrong[] = {"",
                                        "1",
                                        "1 ",
                                        "1 3",
                                        "1 3 0",
                                        "1 3 0 ",
                                        "1 3 0 x",
                                        "1  3 0 a:1",
                                        "x 3 0 a:1",
                                        "1 x 0 a:1",
                                        "1 3 -1 a:1",
                                        "1 3 0 a:1 b",
                                        " 1 3 0 a:1",
                                        "1 4294967296 0 a:1",
                                        "1 3 9223372036854775808 a:1"};
    static const uint8_t zero[] = {'1', ' ', '3', 0, ' ', '0'};
    struct cluster_entry entry;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct ampd_msg_bytes value = bytes(wrong[i]);
        assert_false(cluster_entry_parse(&value, &entry));
    }
    struct ampd_msg_bytes value = {(uint8_t *)(uintptr_t)zero, sizeof zero};
    assert_false(cluster_entry_parse(&value, &entry));
    char longer[CLUSTER_VALUE_MAX + 8];
    memset(longer, '1', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    value = bytes(longer);
    assert_false(cluster_entry_parse(&value, &entry));
    value = bytes("7 and whatever that version writes"); /* known to be of another version, and no more */
    assert_true(cluster_entry_parse(&value, &entry));
    assert_int_equal(entry.format, 7);
}

static void numbers(void **state)
{
    static const char *const wrong[] = {
        "", " 1", "1 ", "-1", "0x1", "9223372036854775808", "99999999999999999999999999999999999"};
    uint64_t number = 0;
    struct ampd_msg_bytes value = bytes("9223372036854775807");
    assert_true(cluster_number_parse(&value, &number));
    assert_int_equal(number, INT64_MAX);
    value = bytes("0");
    assert_true(cluster_number_parse(&value, &number));
    assert_int_equal(number, 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        value = bytes(wrong[i]);
        assert_false(cluster_number_parse(&value, &number));
    }
}

/* A file with these bytes, below the directory of the test; it is gone with the next. */
static const char *file_of(const char *text)
{
    static char path[TEMP_FOLDER_MAX];
    (void)snprintf(path, sizeof path, "%s/ampd-etcd-user-%d", temp_base(), (int)getpid());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
    return path;
}

static void a_user_is_one_line_with_a_name_and_a_password(void **state)
{
    static const char *const wrong[] = {"", "\n", "nobody\n", ":secret\n", "name:\n", "name:a\nb\n", "\nname:secret"};
    struct io_etcd_user user;
    struct amp_error error = {0};
    assert_int_equal(io_etcd_user_read(file_of("root:a secret: two\n"), &user, &error), 0);
    assert_string_equal(user.name, "root");
    assert_string_equal(user.password, "a secret: two");
    assert_int_equal(io_etcd_user_read(file_of("a:b"), &user, &error), 0);
    assert_int_equal(io_etcd_user_read(file_of("a:b\r\n"), &user, &error), 0);
    assert_string_equal(user.password, "b");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *path = file_of(wrong[i]);
        assert_int_equal(io_etcd_user_read(path, &user, &error), AMP_EINVAL);
        assert_non_null(strstr(error.text, path));
        assert_null(strstr(error.text, "secret"));
    }
    (void)unlink(file_of(""));
    assert_int_equal(io_etcd_user_read("/nowhere/user", &user, &error), AMP_ENOTFOUND);
}

static void bounds_of_a_user(void **state)
{
    char text[2 * IO_ETCD_USER_MAX + 16];
    struct io_etcd_user user;
    const int most = IO_ETCD_USER_MAX - 1;
    (void)snprintf(text, sizeof text, "%0*d:%0*d\n", most, 1, most, 2);
    assert_int_equal(io_etcd_user_read(file_of(text), &user, NULL), 0);
    assert_int_equal(strlen(user.name), most);
    assert_int_equal(strlen(user.password), most);
    (void)snprintf(text, sizeof text, "%0*d:%0*d\n", most + 1, 1, most, 2);
    assert_int_equal(io_etcd_user_read(file_of(text), &user, NULL), AMP_EINVAL);
    (void)snprintf(text, sizeof text, "%0*d:%0*d\n", most, 1, most + 1, 2);
    assert_int_equal(io_etcd_user_read(file_of(text), &user, NULL), AMP_EINVAL);
    (void)unlink(file_of(""));
}

static void options_of_etcd_that_do_not_fit_are_refused(void **state)
{
    struct amp_error error = {0};
    const char *user = file_of("a:b\n");
    assert_int_equal(io_etcd_access_check(&(struct io_etcd_access){.tls = false}, "h:1", false, &error), 0);
    assert_int_equal(
        io_etcd_access_check(&(struct io_etcd_access){.tls = true, .cacert_file = "ca"}, "h:1", false, &error), 0);
    assert_int_equal(
        io_etcd_access_check(&(struct io_etcd_access){.tls = true, .user_file = user}, "10.0.0.1:1", false, &error), 0);
    assert_int_equal(io_etcd_access_check(&(struct io_etcd_access){.user_file = user}, "127.0.0.1:1", false, &error),
                     0);
    assert_int_equal(io_etcd_access_check(&(struct io_etcd_access){.user_file = user}, "10.0.0.1:1", true, &error), 0);
    assert_int_equal(
        io_etcd_access_check(&(struct io_etcd_access){.user_file = user}, "127.0.0.1:1,10.0.0.1:1", false, &error),
        AMP_EINVAL);
    assert_int_equal(io_etcd_access_check(&(struct io_etcd_access){.cacert_file = "ca"}, "h:1", false, &error),
                     AMP_EINVAL);
    assert_int_equal(
        io_etcd_access_check(&(struct io_etcd_access){.tls = true, .cert_file = "c"}, "h:1", false, &error),
        AMP_EINVAL);
    assert_int_equal(io_etcd_access_check(&(struct io_etcd_access){.tls = true, .key_file = "k"}, "h:1", false, &error),
                     AMP_EINVAL);
    (void)unlink(user);
    assert_int_equal(io_etcd_access_check(&(struct io_etcd_access){.user_file = user}, "127.0.0.1:1", false, &error),
                     0); /* which opens no file */
    assert_int_equal(io_etcd_access_try(&(struct io_etcd_access){.user_file = user}, &error), AMP_ENOTFOUND);
    assert_int_equal(io_etcd_access_try(&(struct io_etcd_access){.tls = false}, &error), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_url_names_endpoints_and_a_cluster),
        cmocka_unit_test(other_urls_are_refused_with_a_sentence),
        cmocka_unit_test(bounds_of_an_url),
        cmocka_unit_test(addresses_that_others_can_connect_to),
        cmocka_unit_test(lists_of_addresses),
        cmocka_unit_test(what_a_process_writes_is_read_again),
        cmocka_unit_test(what_no_process_writes_is_not),
        cmocka_unit_test(numbers),
        cmocka_unit_test(a_user_is_one_line_with_a_name_and_a_password),
        cmocka_unit_test(bounds_of_a_user),
        cmocka_unit_test(options_of_etcd_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
