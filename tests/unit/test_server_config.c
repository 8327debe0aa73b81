/* The options of ampd: the file, the environment and the command line, and what is told of each. */
#include "server/config/config.h"
#include "server/config/config_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the file alone ---- */

static char told[4096];

static void on_value(void *arg, unsigned line, const char *name, const char *value)
{
    size_t at = strlen(told);
    (void)arg;
    (void)snprintf(told + at, sizeof told - at, "%u %s=%s;", line, name, value);
}

static void on_fault(void *arg, unsigned line, const char *text)
{
    size_t at = strlen(told);
    (void)arg;
    (void)snprintf(told + at, sizeof told - at, "%u! %.9s;", line, text);
}

static const char *read_text(const char *text)
{
    static const struct ampd_config_file_ops ops = {on_value, on_fault};
    told[0] = 0;
    ampd_config_file_read(text, strlen(text), &ops, NULL);
    return told;
}

static void a_name_and_its_value_are_told_with_their_line(void **state)
{
    (void)state;
    assert_string_equal("2 listen=127.0.0.1:7420;4 log-level=debug;5 insecure=true;",
                        read_text("# a comment\nlisten: 127.0.0.1:7420\n\nlog-level: \"debug\"\ninsecure: true\n"));
    assert_string_equal("", read_text(""));
    assert_string_equal("", read_text("# nothing\n"));
    assert_string_equal("1 data-dir=/a b;", read_text("{data-dir: /a b}"));
    assert_string_equal("1 listen=a:1;2 insecure=true;", read_text("\xef\xbb\xbflisten: a:1\ninsecure: true\n"));
}

static void a_list_is_its_values_with_commas(void **state)
{
    (void)state;
    assert_string_equal("1 peers=a:1,b:2;3 shard=1;", read_text("peers: [a:1, b:2]\n\nshard: 1\n"));
    assert_string_equal("1 peers=a:1,b:2;4 shard=1;", read_text("peers:\n- a:1\n- b:2\nshard: 1\n"));
    assert_string_equal("1 peers=;", read_text("peers: []\n"));
}

static void every_fault_is_told_and_the_rest_is_read(void **state)
{
    (void)state;
    assert_string_equal("1 a=1;2! a list ne;4 b=2;", read_text("a: 1\n? [e]\n: f\nb: 2\n"));
    assert_string_equal("1 a=1;2 a=2;4! an option;6 b=2;", read_text("a: 1\na: 2\nc:\n  d: 4\n\nb: 2\n"));
    assert_string_equal("1! a list ca;2 b=1;", read_text("a: [x, [y, {z: 1}]]\nb: 1\n"));
    assert_string_equal("1! a list ne;", read_text("- a\n- b\n"));
    assert_string_equal("1! this is n;", read_text("listen\n"));
    assert_string_equal("1! data-dir:;2! token-fil;3 name=~;",
                        read_text("data-dir: ~\ntoken-file: null\nname: \"~\"\n"));
    assert_string_equal("1! metrics-l;4! peers: it;5 name=;",
                        read_text("metrics-listen:\npeers:\n- a:1\n-\nname: \"\"\n"));
    assert_string_equal("1 a=1;2! this is n;3 b=1;", read_text("a: 1\n\"\": 2\nb: 1\n"));
    assert_string_equal("1 a=1;2! aliases a;3 b=1;", read_text("a: &x 1\nc: *x\nb: 1\n"));
    assert_string_equal("1 a=1;2! a second ;", read_text("a: 1\n---\nb: 1\n"));
}

static void a_fault_in_the_syntax_ends_the_reading(void **state)
{
    (void)state;
    assert_string_equal("6! control c;", read_text("a: 1\n\n\n\n\nb: \x01\n"));
    const char *found = read_text("a: 1\nb: [1\nc: 2\n");
    assert_memory_equal("1 a=1;", found, 6);
    assert_non_null(strchr(found, '!'));
    assert_string_equal("1 a=1;2! could not;", read_text("a: 1\nb\nc: 2\n")); /* found out in line 3 */
    assert_string_equal("1 a=1;2! found une;", read_text("a: 1\nb: \"x\nc: 2\n"));
    static char large[AMPD_CONFIG_FILE_MAX + 2];
    memset(large, '#', sizeof large - 1);
    assert_string_equal("1! the file ;", read_text(large));
}

static void deep_nesting_ends_the_reading(void **state)
{
    (void)state;
    static char deep[AMPD_CONFIG_FILE_MAX];
    memset(deep, '[', sizeof deep - 1);
    memcpy(deep, "a: ", 3);
    assert_string_equal("1! a list ca;1! nested to;", read_text(deep));
}

/* ---- all places ---- */

static struct ampd_config config;
static struct ampd_arguments arguments;
static char path[] = "/tmp/ampd-config-XXXXXX";

static int make_file(void **state)
{
    (void)state;
    (void)memcpy(strrchr(path, '-') + 1, "XXXXXX", 6);
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_all(void **state)
{
    (void)state;
    ampd_config_close(&config);
    (void)unsetenv("AMPD_WORKER_LEASE");
    (void)unsetenv("AMPD_LOG_LEVEL");
    return unlink(path);
}

static void write_file(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(0, fclose(file));
}

static int read_all(const char *flag)
{
    char *argv[] = {"ampd", "--config", path, (char *)(uintptr_t)(flag != NULL ? flag : "--data-dir=/d"), NULL};
    return ampd_config_read(&config, 4, argv, &arguments);
}

static const struct ampd_option_value *value_of(const char *name)
{
    static struct ampd_option_value values[AMPD_OPTIONS_MAX];
    size_t count = ampd_config_values(&config, values);
    for (size_t i = 0; i < count; i++)
        if (strcmp(values[i].name, name) == 0)
            return &values[i];
    fail_msg("no option %s", name);
    return NULL;
}

static void check(const char *name, const char *value, const char *where)
{
    assert_string_equal(value, value_of(name)->value);
    assert_string_equal(where, value_of(name)->where);
}

static void a_flag_goes_before_the_environment_that_before_the_file_and_that_before_the_default(void **state)
{
    (void)state;
    char where[64];
    (void)snprintf(where, sizeof where, "%s:1", path);
    write_file("\n");
    assert_int_equal(0, read_all(NULL));
    check("worker-lease", "30s", "default");
    assert_int_equal(0, arguments.server.times_ms[AMPD_TIME_WORKER_LEASE]);
    ampd_config_close(&config);
    write_file("worker-lease: 40s\n");
    assert_int_equal(0, read_all(NULL));
    check("worker-lease", "40s", where);
    assert_int_equal(40000, arguments.server.times_ms[AMPD_TIME_WORKER_LEASE]);
    ampd_config_close(&config);
    assert_int_equal(0, setenv("AMPD_WORKER_LEASE", "50s", 1));
    assert_int_equal(0, read_all(NULL));
    check("worker-lease", "50s", "AMPD_WORKER_LEASE");
    ampd_config_close(&config);
    assert_int_equal(AMP_EINVAL, read_all("--worker-lease=60s")); /* there is no data directory */
    check("worker-lease", "60s", "--worker-lease");
    assert_int_equal(60000, arguments.server.times_ms[AMPD_TIME_WORKER_LEASE]);
}

/* One good text and one that is refused, of each option. */
static void every_option_can_be_given_in_every_place(void **state)
{
    (void)state;
    static const char *const texts[] = {"true", "on", "10s", "4M", "3", "debug", "json", "h:1"};
    for (const struct argp_option *option = ampd_options; option->name != NULL; option++) {
        char name[AMPD_CONFIG_ENV_MAX], line[128];
        struct ampd_arguments trial;
        size_t t = 0;
        ampd_config_env_name(option, name);
        assert_memory_equal("AMPD_", name, 5);
        do {
            ampd_arguments_init(&trial);
            ampd_option_set(&trial, option, texts[t]);
        } while (trial.wrong[0] != 0 && ++t < sizeof texts / sizeof *texts);
        assert_string_equal("", trial.wrong);
        if (!ampd_option_is_for_file(option))
            continue;
        (void)snprintf(line, sizeof line, "%s: %s\n", option->name, texts[t]);
        write_file(line);
        (void)read_all("--check-config"); /* what must hold between options may not */
        assert_string_equal(texts[t], value_of(option->name)->value);
        ampd_config_close(&config);
        write_file("");
        assert_int_equal(0, setenv(name, texts[t], 1));
        (void)read_all("--check-config");
        check(option->name, texts[t], name);
        ampd_config_close(&config);
        assert_int_equal(0, unsetenv(name));
    }
    config = (struct ampd_config){0};
}

static void five_faults_are_all_told_with_their_lines(void **state)
{
    (void)state;
    static const char *const wanted[] = {":2: --log-level", ":3: --worker-lease", ":4: ampd has no option",
                                         ":5: listen is already given in line 1", ":6: --shards"};
    write_file("listen: 127.0.0.1:1\nlog-level: loud\nworker-lease: 5x\nno-such: 1\nlisten: a:2\nshards: 900\n");
    assert_int_equal(AMP_EINVAL, read_all(NULL));
    assert_int_equal(5, config.faults_count);
    assert_int_equal(0, amp_buf_append(&config.faults, "", 1));
    for (size_t i = 0; i < 5; i++)
        assert_non_null(strstr((const char *)config.faults.data, wanted[i]));
}

static void an_option_that_comes_again_is_told_though_its_first_value_is_wrong(void **state)
{
    (void)state;
    write_file("shards: 900\nshards: 2\n");
    assert_int_equal(AMP_EINVAL, read_all(NULL));
    assert_int_equal(2, config.faults_count);
    assert_int_equal(0, amp_buf_append(&config.faults, "", 1));
    assert_non_null(strstr((const char *)config.faults.data, ":2: shards is already given in line 1"));
}

static void a_file_that_is_not_there_is_a_fault(void **state)
{
    (void)state;
    char *argv[] = {"ampd", "--data-dir", "/d", "--config", "/nowhere/ampd.conf", NULL};
    assert_int_equal(AMP_EINVAL, ampd_config_read(&config, 5, argv, &arguments));
    assert_int_equal(1, config.faults_count);
}

static void a_file_that_is_a_pipe_is_a_fault_and_holds_nothing_up(void **state)
{
    (void)state;
    assert_int_equal(0, unlink(path));
    assert_int_equal(0, mkfifo(path, 0600));
    assert_int_equal(AMP_EINVAL, read_all(NULL));
    assert_int_equal(1, config.faults_count);
    assert_int_equal(0, amp_buf_append(&config.faults, "", 1));
    assert_non_null(strstr((const char *)config.faults.data, ": not a file\n"));
}

static void an_empty_value_is_none_in_the_environment_and_a_fault_elsewhere(void **state)
{
    (void)state;
    write_file("token-file:\nlisten: 127.0.0.1\n");
    assert_int_equal(0, setenv("AMPD_WORKER_LEASE", "", 1));
    assert_int_equal(AMP_EINVAL, read_all(NULL));
    assert_int_equal(2, config.faults_count);
    assert_int_equal(0, amp_buf_append(&config.faults, "", 1));
    assert_non_null(strstr((const char *)config.faults.data, ":1: token-file: its value cannot be read"));
    assert_non_null(strstr((const char *)config.faults.data, ":2: --listen 127.0.0.1: give HOST:PORT"));
}

/* ---- again ---- */

static char lines[4096];

static void on_line(void *arg, enum amp_log_level level, const char *line)
{
    size_t at = strlen(lines);
    (void)arg;
    (void)level;
    (void)snprintf(lines + at, sizeof lines - at, "%s\n", line);
}

static int64_t no_time(void *arg)
{
    (void)arg;
    return 0;
}

static void a_reload_takes_what_it_can_and_names_what_needs_a_start(void **state)
{
    (void)state;
    struct amp_log log = {.level = AMP_LOG_DEBUG, .write_cb = on_line, .now_us_cb = no_time};
    write_file("log-level: warn\nworker-lease: 40s\n");
    assert_int_equal(0, read_all(NULL));
    assert_int_equal(AMP_LOG_WARN, arguments.level);
    write_file("log-level: debug\nworker-lease: 45s\n");
    lines[0] = 0;
    ampd_config_reload(&config, &arguments, &log);
    assert_int_equal(AMP_LOG_DEBUG, arguments.level);
    assert_string_equal("debug", value_of("log-level")->value);
    assert_string_equal("40s", value_of("worker-lease")->value);
    assert_non_null(strstr(lines, "option=log-level was=\"warn\" is=\"debug\""));
    assert_non_null(strstr(lines, "option=worker-lease is=\"40s\" will_be=\"45s\""));
}

static void a_reload_with_a_fault_changes_nothing(void **state)
{
    (void)state;
    struct amp_log log = {.level = AMP_LOG_DEBUG, .write_cb = on_line, .now_us_cb = no_time};
    write_file("log-level: warn\n");
    assert_int_equal(0, read_all(NULL));
    write_file("log-level: debug\nworker-lease: 45x\n");
    lines[0] = 0;
    ampd_config_reload(&config, &arguments, &log);
    assert_int_equal(AMP_LOG_WARN, arguments.level);
    assert_string_equal("warn", value_of("log-level")->value);
    assert_non_null(strstr(lines, "the options could not be reloaded; the old ones stay in force"));
    assert_non_null(strstr(lines, ":2: --worker-lease 45x"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_and_its_value_are_told_with_their_line),
        cmocka_unit_test(a_list_is_its_values_with_commas),
        cmocka_unit_test(every_fault_is_told_and_the_rest_is_read),
        cmocka_unit_test(a_fault_in_the_syntax_ends_the_reading),
        cmocka_unit_test(deep_nesting_ends_the_reading),
        cmocka_unit_test_setup_teardown(
            a_flag_goes_before_the_environment_that_before_the_file_and_that_before_the_default, make_file, remove_all),
        cmocka_unit_test_setup_teardown(every_option_can_be_given_in_every_place, make_file, remove_all),
        cmocka_unit_test_setup_teardown(five_faults_are_all_told_with_their_lines, make_file, remove_all),
        cmocka_unit_test_setup_teardown(an_option_that_comes_again_is_told_though_its_first_value_is_wrong, make_file,
                                        remove_all),
        cmocka_unit_test_setup_teardown(a_file_that_is_not_there_is_a_fault, make_file, remove_all),
        cmocka_unit_test_setup_teardown(a_file_that_is_a_pipe_is_a_fault_and_holds_nothing_up, make_file, remove_all),
        cmocka_unit_test_setup_teardown(an_empty_value_is_none_in_the_environment_and_a_fault_elsewhere, make_file,
                                        remove_all),
        cmocka_unit_test_setup_teardown(a_reload_takes_what_it_can_and_names_what_needs_a_start, make_file, remove_all),
        cmocka_unit_test_setup_teardown(a_reload_with_a_fault_changes_nothing, make_file, remove_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
