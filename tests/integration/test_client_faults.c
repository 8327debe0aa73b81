/* libampclient when servers start late, break off, lie about checksums, or do not answer. */
#include "tests/integration/client_fixture.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- a clock that jumps in the next wait, as after the process was stopped (linked with --wrap) ---- */

#define STOPPED_S 7200

static atomic_bool stops;
static atomic_uint_least64_t behind_s; /* by how much the system's clock is behind that of this process */

uint64_t __real_uv_hrtime(void);
uint64_t __wrap_uv_hrtime(void);
uint64_t __wrap_uv_hrtime(void)
{
    return __real_uv_hrtime() + behind_s * 1000000000;
}

int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *at);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *at);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *at)
{
    const struct timespec real = {.tv_sec = at->tv_sec - (time_t)behind_s, .tv_nsec = at->tv_nsec};
    if (atomic_exchange(&stops, false))
        behind_s += STOPPED_S;
    return __real_pthread_cond_timedwait(cond, mutex, &real);
}

static void connect_without_a_server_fails_with_a_sentence(void **state)
{
    (void)state;
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.connect_timeout_ms = 300;
    struct ampclient *client = NULL;
    struct amp_error error = {0};
    /* Port 1: nothing listens there, and no test could. */
    assert_int_equal(ampclient_connect("127.0.0.1:1", &options, &client, &error), AMP_EUNAVAILABLE);
    assert_null(client);
    assert_non_null(strstr(error.text, "127.0.0.1:1"));
}

/* What a client says that was given the port of something else; `sent` (NULL: nothing) is what that says at once. */
static void connect_elsewhere(const char *sent, const char *words)
{
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    struct ampclient *client = NULL;
    struct amp_error error = {0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    char endpoint[64];
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, size) | listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", ntohs(address.sin_port));
    pid_t child = sent != NULL ? fork() : 0;
    if (sent != NULL && child == 0)
        for (;;) {
            int fd = accept(listener, NULL, NULL);
            (void)send(fd, sent, strlen(sent), MSG_NOSIGNAL);
            (void)shutdown(fd, SHUT_WR);
        }
    options.connect_timeout_ms = 1000;
    assert_int_equal(ampclient_connect(endpoint, &options, &client, &error), AMP_EUNAVAILABLE);
    (void)close(listener);
    if (child > 0) {
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, 0);
    }
    if (strstr(error.text, words) == NULL || strstr(error.text, "its gRPC port") == NULL)
        fail_msg("no \"%s\" in: %s", words, error.text);
}

static void a_port_of_something_else_is_told_by_what_it_does(void **state)
{
    (void)state;
    connect_elsewhere(NULL, "takes the connection, but says nothing in HTTP/2");
    connect_elsewhere("", "before it said anything in HTTP/2");
    /* At once: "within 1000 ms" would say that it was tried again. */
    connect_elsewhere("HTTP/1.1 400 Bad Request\r\n\r\n", "No connection to 127.0.0.1:");
    connect_elsewhere("HTTP/1.0 400 Bad Request\r\n\r\n", "speaks HTTP/1: ");
}

static void connect_waits_for_a_server_that_starts_later(void **state)
{
    (void)state;
    struct fixture fixture = {.fake = fake_new_later(300)};
    fixture_connect(&fixture);
    bool existed;
    fixture_ok(&fixture, fixture_create(&fixture, 0, &existed));
    ampclient_close(fixture.client);
    fake_free(fixture.fake);
}

static void the_second_address_serves_when_the_first_does_not(void **state)
{
    (void)state;
    struct fixture fixture = {.fake = fake_new()};
    char endpoints[128];
    (void)snprintf(endpoints, sizeof endpoints, "127.0.0.1:1,%s", fake_endpoint(fixture.fake));
    struct amp_error error = {0};
    assert_int_equal(ampclient_connect(endpoints, NULL, &fixture.client, &error), 0);
    fixture_ok(&fixture, fixture_create(&fixture, 0, NULL));
    ampclient_close(fixture.client);
    fake_free(fixture.fake);
}

static void calls_are_tried_again_while_the_server_is_unavailable(void **state)
{
    struct fixture *fixture = *state;
    fake_set(fixture->fake, &(struct fake_faults){.unavailable = 3});
    fixture_ok(fixture, fixture_create(fixture, 0, NULL));
    fake_set(fixture->fake, &(struct fake_faults){.unavailable = 2});
    fixture_ok(fixture, fixture_load(fixture, NULL));
    fake_set(fixture->fake, &(struct fake_faults){.unavailable = 2});
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    join.rank = 0;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
    fake_set(fixture->fake, &(struct fake_faults){.unavailable = 2});
    fixture_begin(fixture);
    fixture_check(fixture, 0);
}

/* As in the start of a whole cluster: its own coordinator does not know yet where it is. */
static void a_shard_that_nobody_knows_yet_is_waited_for(void **state)
{
    struct fixture *fixture = *state;
    fake_set(fixture->fake, &(struct fake_faults){.shard_away = 2});
    fixture_ok(fixture, fixture_create(fixture, 0, NULL));
    fixture_ok(fixture, fixture_load(fixture, NULL));
}

static void a_join_that_waits_for_a_shard_first_takes_no_more_time_than_it_may(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    options.reconnect_timeout_ms = 4000;
    join.rank = 0;
    ampclient_close(fixture->client);
    assert_int_equal(ampclient_connect(fake_endpoint(fixture->fake), &options, &fixture->client, NULL), 0);
    fake_set(fixture->fake, &(struct fake_faults){.shard_away = 7, .unavailable = 1000});
    struct timespec begun, now;
    (void)clock_gettime(CLOCK_MONOTONIC, &begun);
    int rc = ampclient_join(fixture->client, MODEL, &join, &fixture->model);
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    assert_true(rc == AMP_EDEADLINE || rc == AMP_EUNAVAILABLE);
    assert_true(now.tv_sec - begun.tv_sec >= 3 && now.tv_sec - begun.tv_sec < 6);
}

static void a_server_that_goes_away_while_a_shard_is_waited_for_costs_no_second_wait(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.reconnect_timeout_ms = 4000;
    ampclient_close(fixture->client);
    assert_int_equal(ampclient_connect(fake_endpoint(fixture->fake), &options, &fixture->client, NULL), 0);
    fake_set(fixture->fake, &(struct fake_faults){.shard_away = 7, .no_status = true}); /* after 3.5 s */
    struct timespec begun, now;
    (void)clock_gettime(CLOCK_MONOTONIC, &begun);
    assert_int_equal(fixture_create(fixture, 0, NULL), AMP_EUNAVAILABLE);
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    assert_true(now.tv_sec - begun.tv_sec >= 3 && now.tv_sec - begun.tv_sec < 7);
}

static void keep_line(void *arg, enum ampclient_log_level level, const char *text)
{
    char *lines = arg;
    size_t used = strlen(lines);
    (void)snprintf(lines + used, 1024 - used, "%d %s\n", (int)level, text);
}

/* More than the channel tries again by itself. */
#define REFUSALS 9

static void what_goes_on_meanwhile_is_told_to_the_log(void **state)
{
    struct fixture *fixture = *state;
    char lines[1024] = "";
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.log_cb = keep_line;
    options.log_arg = lines;
    options.log_level = AMPCLIENT_LOG_INFO;
    ampclient_close(fixture->client);
    assert_int_equal(ampclient_connect(fake_endpoint(fixture->fake), &options, &fixture->client, NULL), 0);
    fake_set(fixture->fake, &(struct fake_faults){.unavailable = REFUSALS});
    fixture_ok(fixture, fixture_create(fixture, 0, NULL));
    fixture_ok(fixture, fixture_load(fixture, NULL));
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    join.rank = 0;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
    fake_set(fixture->fake, &(struct fake_faults){.unavailable = REFUSALS});
    fixture_begin(fixture);
    ampclient_close(fixture->client); /* with its thread, which tells the lines */
    fixture->client = NULL;
    static const char *const expected[] = {
        "3 trying again: not now\n", "3 connected again\n", "2 m: joined as rank 0 of 1 at step 1 (epoch 1)\n",
        "3 m: trying again: not now\n", "3 m: connected again: rank 0 continues with step 1 (epoch 1)\n"};
    const char *rest = lines;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if ((rest = strstr(rest, expected[i])) == NULL)
            fail_msg("\"%s\" is not where it should be in\n%s", expected[i], lines);
}

static void a_load_that_was_cut_off_is_repeated(void **state)
{
    struct fixture *fixture = *state;
    fixture_ok(fixture, fixture_create(fixture, 0, NULL));
    fake_set(fixture->fake, &(struct fake_faults){.cut_load_after = 2, .down_ms = 200});
    bool already = true;
    fixture_ok(fixture, fixture_load(fixture, &already));
    assert_false(already);
    struct fake_counts counts = fake_counts(fixture->fake);
    assert_int_equal(counts.cuts, 1);
    assert_int_equal(counts.loads, 2);
}

static void a_push_that_was_cut_off_goes_on_where_it_was(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fake_set(fixture->fake, &(struct fake_faults){.cut_push_after = 2, .down_ms = 100});
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
    struct fake_counts counts = fake_counts(fixture->fake);
    assert_int_equal(counts.cuts, 1);
    assert_true(counts.push_states >= 1);
    assert_true(counts.pushes >= 2);
    fixture_begin(fixture);
    fixture_check(fixture, 1);
}

static void a_pull_that_was_cut_off_is_repeated(void **state)
{
    struct fixture *fixture = *state;
    fake_set(fixture->fake, &(struct fake_faults){.cut_pull_after = 3, .down_ms = 100});
    fixture_begin(fixture);
    fixture_check(fixture, 0);
    assert_int_equal(fake_counts(fixture->fake).cuts, 1);
    assert_true(fake_counts(fixture->fake).pulls >= 2);
}

static void a_pulled_block_with_a_wrong_checksum_is_pulled_again(void **state)
{
    struct fixture *fixture = *state;
    fake_set(fixture->fake, &(struct fake_faults){.damage_pull = true});
    fixture_begin(fixture);
    fixture_check(fixture, 0);
    assert_int_equal(fake_counts(fixture->fake).pulls, 2);
}

static void a_pushed_block_that_the_server_finds_damaged_is_sent_again(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fake_set(fixture->fake, &(struct fake_faults){.refuse_push_block = true});
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
    fixture_begin(fixture);
    fixture_check(fixture, 1);
}

static void a_rollback_while_the_verdict_is_awaited_voids_the_step(void **state)
{
    struct fixture *fixture = *state;
    for (int s = 0; s < 2; s++) {
        fixture_begin(fixture);
        fixture_push(fixture);
        fixture_end(fixture);
    }
    fixture_begin(fixture);
    assert_int_equal(fixture->step.step, 3);
    fake_set(fixture->fake, &(struct fake_faults){.cut_push_after = 2, .roll_back = true, .down_ms = 100});
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_ROLLED_BACK);
    fixture_begin(fixture);
    assert_int_equal(fixture->step.epoch, 2);
    assert_int_equal(fixture->step.step, 1);
    assert_true(fixture->step.rolled_back);
    fixture_check(fixture, 0);
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
    fixture_begin(fixture);
    fixture_check(fixture, 1);
}

struct restored {
    unsigned calls;
    uint64_t step;
    char data[32];
    size_t size;
};

static void take_state(void *arg, uint64_t step, const void *data, size_t size)
{
    struct restored *restored = arg;
    restored->calls++;
    restored->step = step;
    restored->size = size;
    memcpy(restored->data, data, size < sizeof restored->data ? size : sizeof restored->data);
}

static void user_state_comes_back_before_the_step_that_follows_the_checkpoint(void **state)
{
    struct fixture *fixture = *state;
    struct restored restored = {0};
    fixture_ok(fixture, ampclient_leave(fixture->model));
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    join.rank = 0;
    join.restore_arg = &restored;
    join.restore_cb = take_state;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
    assert_int_equal(restored.calls, 0);
    fixture_begin(fixture);
    assert_int_equal(restored.calls, 1);
    assert_int_equal(restored.step, 1);
    assert_int_equal(restored.size, 0);
    fixture_push(fixture);
    fixture_ok(fixture, ampclient_set_user_state(fixture->model, "position 8", 10));
    fixture_end(fixture);
    fixture_begin(fixture);
    assert_int_equal(restored.calls, 1);
    fake_set(fixture->fake, &(struct fake_faults){.cut_push_after = 2, .roll_back = true, .down_ms = 100});
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_ROLLED_BACK);
    assert_int_equal(restored.calls, 1);
    fixture_begin(fixture);
    assert_int_equal(restored.calls, 2);
    assert_int_equal(restored.step, 1);
    assert_int_equal(restored.size, 10);
    assert_memory_equal(restored.data, "position 8", 10);
}

static void a_server_that_restarts_between_steps_is_joined_again(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fixture_push(fixture);
    fixture_end(fixture);
    fake_set(fixture->fake, &(struct fake_faults){.roll_back = true, .down_ms = 300});
    fake_cut(fixture->fake);
    while (fake_counts(fixture->fake).cuts == 0)
        ; /* until it has happened: within a turn of the server's loop */
    fixture_begin(fixture);
    assert_int_equal(fixture->step.epoch, 2);
    assert_int_equal(fixture->step.step, 1);
    assert_int_equal(fake_counts(fixture->fake).joins, 2);
    fixture_check(fixture, 0);
}

static void a_model_that_was_made_anew_with_other_parameters_ends_the_worker_with_a_remedy(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fake_set(fixture->fake, &(struct fake_faults){.cut_push_after = 2, .roll_back = true, .fewer_parameters = true});
    fixture_push(fixture);
    assert_int_equal(ampclient_step_end(fixture->model, &fixture->result), AMP_ESTATE);
    if (strstr(ampclient_error_text(fixture->client), "start this process again") == NULL)
        fail_msg("no remedy: %s", ampclient_error_text(fixture->client));
}

/* Begins the step again in a model of the other schedule. */
static void change_schedule(struct fixture *fixture)
{
    fake_set(fixture->fake, &(struct fake_faults){.cut_push_after = 2, .roll_back = true, .other_schedule = true});
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_ROLLED_BACK);
    fixture_begin(fixture);
}

static void who_gives_the_learning_rate_is_what_the_model_of_the_last_join_says(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    assert_int_equal(ampclient_set_learning_rate(fixture->model, 0.5), AMP_EINVAL);
    change_schedule(fixture);
    fixture_ok(fixture, ampclient_set_learning_rate(fixture->model, 0.5));
    change_schedule(fixture); /* it took the rate until it was cut */
    assert_int_equal(ampclient_set_learning_rate(fixture->model, 0.5), AMP_EINVAL);
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
}

static void a_slow_verdict_is_waited_for_while_the_lease_is_kept(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    /* Longer than a third of the fake's lease of 3 s. */
    fake_set(fixture->fake, &(struct fake_faults){.verdict_after_ms = 2500});
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
    assert_true(fake_counts(fixture->fake).keep_alives >= 1);
    assert_int_equal(fake_counts(fixture->fake).joins, 1);
}

static void a_process_that_was_stopped_in_a_call_goes_on_with_it(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fake_set(fixture->fake, &(struct fake_faults){.verdict_after_ms = 1500}); /* longer than between two looks */
    fixture_push(fixture);
    stops = true;
    int rc;
    do /* the time limit of the call may have passed, too */
        rc = ampclient_step_end(fixture->model, &fixture->result);
    while (rc == AMP_EDEADLINE);
    fixture_ok(fixture, rc);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
    fixture_begin(fixture);
}

static void an_answer_before_the_body_was_read_ends_the_step(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fake_set(fixture->fake, &(struct fake_faults){.answer_early = true});
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_LATE);
    /* Borrowed no longer: tools would see a read of freed memory. */
    for (int i = 0; i < PARAMETERS; i++) {
        free(fixture->gradients[i]);
        fixture->gradients[i] = malloc(fixture_sizes[i] * sizeof(float));
    }
    fixture_begin(fixture);
    assert_int_equal(fixture->step.step, 2);
}

/* Another client in the place of the fixture's. */
static void join_again(struct fixture *fixture, const struct ampclient_options *options)
{
    struct amp_error error = {0};
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    ampclient_close(fixture->client);
    assert_int_equal(ampclient_connect(fake_endpoint(fixture->fake), options, &fixture->client, &error), 0);
    join.rank = 0;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
}

/* In its first step, too. */
static void begin_again(struct fixture *fixture, const struct ampclient_options *options)
{
    join_again(fixture, options);
    fixture_begin(fixture);
}

static void memory_of_another_layout_is_not_shared_and_the_log_says_why(void **state)
{
    struct fixture *fixture = *state;
    char lines[1024] = "";
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.log_cb = keep_line;
    options.log_arg = lines;
    options.log_level = AMPCLIENT_LOG_DEBUG;
    /* A client that took it would write where nothing is mapped. */
    for (unsigned round = 0; round < 2; round++) {
        lines[0] = 0;
        fake_set(fixture->fake, &(struct fake_faults){.odd_memory = round == 0, .no_memory_blocks = round == 1});
        begin_again(fixture, &options);
        assert_false(ampclient_shares_memory(fixture->model));
        ampclient_close(fixture->client); /* with its thread, which tells the lines */
        fixture->client = NULL;
        if (strstr(lines, "no memory is shared") == NULL || strstr(lines, "another layout") == NULL)
            fail_msg("\"another layout\" is not in\n%s", lines);
    }
}

/* A server elsewhere could have this process connect to any socket here, and send 16 bytes that the server chooses. */
static void a_worker_connects_to_no_socket_that_a_server_reached_by_tcp_names(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "/tmp/ampd-faults-%ld.sock", (long)getpid());
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 1), 0);
    fake_set(fixture->fake, &(struct fake_faults){.memory_socket = address.sun_path});
    begin_again(fixture, &options);
    int guest = accept(fd, NULL, NULL);
    (void)close(fd);
    (void)unlink(address.sun_path);
    assert_int_equal(guest, -1);
    assert_false(ampclient_shares_memory(fixture->model));
}

static uint64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void a_step_begins_in_time_or_not_at_all_where_memory_was_waited_for_in_vain(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.step_timeout_ms = 2000;
    join_again(fixture, &options);
    fake_set(fixture->fake, &(struct fake_faults){.swallow_attach = true, .swallow_pull = true});
    uint64_t begun_ms = now_ms();
    assert_int_equal(ampclient_step_begin(fixture->model, &fixture->step), AMP_EDEADLINE);
    assert_in_range(now_ms() - begun_ms, 1900, 3000);
    fixture_begin(fixture);
    join_again(fixture, &options);
    fake_set(fixture->fake, &(struct fake_faults){.swallow_attach = true});
    fixture_begin(fixture); /* an attempt leaves time for the pull */
}

/* A user who is gone from the second time on that he is asked; until then, and while he is patient, he waits. */
struct impatient {
    bool patient;
    unsigned asked;
};

static bool interrupt_soon(void *arg)
{
    struct impatient *user = arg;
    return !user->patient && ++user->asked > 1;
}

static void a_wait_that_is_interrupted_ends_and_the_step_goes_on(void **state)
{
    struct fixture *fixture = *state;
    struct impatient user = {.patient = true};
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.interrupt_cb = interrupt_soon;
    options.interrupt_arg = &user;
    begin_again(fixture, &options);
    fake_set(fixture->fake, &(struct fake_faults){.verdict_after_ms = 1500});
    fixture_push(fixture);
    user.patient = false;
    assert_int_equal(ampclient_step_end(fixture->model, &fixture->result), AMP_ECANCELLED);
    assert_non_null(strstr(ampclient_error_text(fixture->client), "interrupted"));
    assert_int_equal(user.asked, 2);
    user = (struct impatient){.patient = true};
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
    assert_int_equal(fake_counts(fixture->fake).pushes, 1);
    /* Tries of an RPC, and the pauses between them. */
    user.patient = false;
    fake_set(fixture->fake, &(struct fake_faults){.unavailable = 1000});
    struct ampclient_status status = AMPCLIENT_STATUS_INIT;
    assert_int_equal(ampclient_status(fixture->client, MODEL, &status), AMP_ECANCELLED);
    user.patient = true;
    fake_set(fixture->fake, &(struct fake_faults){0});
    fixture_ok(fixture, ampclient_status(fixture->client, MODEL, &status));
}

static bool interrupt_after_a_second(void *arg)
{
    unsigned *asked = arg;
    return ++*asked > 20;
}

/* That of shard 0, which the user's thread sends itself, has ended long before. */
static void a_load_that_waits_for_another_shard_alone_can_be_interrupted(void **state)
{
    struct fixture *fixture = *state;
    unsigned asked = 0;
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.call_timeout_ms = 5000;
    options.interrupt_cb = interrupt_after_a_second;
    options.interrupt_arg = &asked;
    ampclient_close(fixture->client);
    assert_int_equal(ampclient_connect(fake_endpoint(fixture->fake), &options, &fixture->client, NULL), 0);
    fake_set(fixture->fake, &(struct fake_faults){.two_shards = true, .swallow_load = true});
    fixture_ok(fixture, fixture_create(fixture, 0, NULL));
    assert_int_equal(fixture_load(fixture, NULL), AMP_ECANCELLED);
}

static void closing_asks_nobody_whether_to_end(void **state)
{
    const struct fixture *fixture = *state;
    struct impatient user = {.patient = false};
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    struct ampclient *client;
    options.interrupt_cb = interrupt_soon;
    options.interrupt_arg = &user;
    const struct timespec pause = {.tv_nsec = 100000000}; /* longer than between two times that it is asked */
    assert_int_equal(ampclient_connect(fake_endpoint(fixture->fake), &options, &client, NULL), 0);
    (void)nanosleep(&pause, NULL);
    unsigned before = user.asked;
    ampclient_close(client);
    assert_int_equal(before, user.asked);
}

static void a_verdict_that_never_comes_is_a_deadline(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.step_timeout_ms = 2000;
    begin_again(fixture, &options);
    fake_set(fixture->fake, &(struct fake_faults){.swallow_push = true});
    fixture_push(fixture);
    assert_int_equal(ampclient_step_end(fixture->model, &fixture->result), AMP_EDEADLINE);
    assert_true(strlen(ampclient_error_text(fixture->client)) > 10);
    /* The step is still in hand, and may be ended: a push that has had twice the time is made again. */
    int rc;
    do
        rc = ampclient_step_end(fixture->model, &fixture->result);
    while (rc == AMP_EDEADLINE);
    fixture_ok(fixture, rc);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
    assert_int_equal(fake_counts(fixture->fake).pushes, 2);
}

/* More than sockets hold. */
#define BIG ((size_t)64 << 16)

/* Fails if more time has passed than the limits of the calls and what a machine under load needs. */
static void expect_in_time(const struct timespec *begun)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    assert_true(now.tv_sec - begun->tv_sec < 25); /* a connection whose writes stand still is given up after 30 s */
}

/* Bytes of the caller's lie between what the socket has taken and what it has not. */
static void a_server_that_stands_still_holds_no_call_up_beyond_its_time_limit(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    options.call_timeout_ms = options.step_timeout_ms = 3000;
    ampclient_close(fixture->client);
    assert_int_equal(ampclient_connect(fake_endpoint(fixture->fake), &options, &fixture->client, NULL), 0);
    struct ampclient_parameter_spec parameter = {.name = "w", .dimensions = 1, .shape = {BIG}};
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    spec.name = MODEL;
    spec.parameters = &parameter;
    spec.parameters_count = spec.world_size = 1;
    spec.cast = AMP_F32;
    float *memory = calloc(BIG, sizeof *memory);
    const float *const values[] = {memory};
    struct timespec begun;
    fixture_ok(fixture, ampclient_create(fixture->client, &spec, NULL));
    fake_set(fixture->fake, &(struct fake_faults){.stand_after = 2});
    (void)clock_gettime(CLOCK_MONOTONIC, &begun);
    assert_int_equal(ampclient_load(fixture->client, MODEL, values, 1, NULL), AMP_EDEADLINE);
    assert_non_null(strstr(ampclient_error_text(fixture->client), "Load of " MODEL " was not answered within "));
    assert_non_null(strstr(ampclient_error_text(fixture->client), "raise call_timeout_ms"));
    expect_in_time(&begun);
    fake_go_on(fixture->fake);
    fixture_ok(fixture, ampclient_load(fixture->client, MODEL, values, 1, NULL));
    join.rank = 0;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
    fixture_ok(fixture, ampclient_step_begin(fixture->model, &fixture->step));
    fake_set(fixture->fake, &(struct fake_faults){.stand_after = 2});
    (void)clock_gettime(CLOCK_MONOTONIC, &begun);
    fixture_ok(fixture, ampclient_push(fixture->model, 0, memory, AMP_F32));
    assert_int_equal(ampclient_step_end(fixture->model, &fixture->result), AMP_EDEADLINE);
    assert_int_equal(ampclient_leave(fixture->model), AMP_EDEADLINE);
    expect_in_time(&begun);
    free(memory);
}

static void a_client_closes_in_the_middle_of_a_step(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fixture_push(fixture);
}

static void a_client_closes_while_the_server_is_gone(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fake_set(fixture->fake, &(struct fake_faults){.down_ms = 60000});
    fake_cut(fixture->fake);
    fixture_push(fixture);
    ampclient_close(fixture->client);
    fixture->client = NULL;
}

static void leaving_in_the_middle_of_a_step_frees_the_model(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fixture_push(fixture);
    fixture_ok(fixture, ampclient_leave(fixture->model));
    assert_int_equal(fake_counts(fixture->fake).leaves, 1);
}

static void spoil_next(struct fixture *fixture)
{
    fake_set(fixture->fake, &(struct fake_faults){.garbage = true});
}

static void expect_servers_fault(struct fixture *fixture, int rc)
{
    assert_int_equal(rc, AMP_EINTERNAL);
    assert_non_null(strstr(ampclient_error_text(fixture->client), "server's answer"));
}

static void an_answer_that_is_no_message_is_no_fault_of_the_caller(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_status status = AMPCLIENT_STATUS_INIT;
    spoil_next(fixture);
    expect_servers_fault(fixture, fixture_create(fixture, 0, NULL));
    fixture_ok(fixture, fixture_create(fixture, 0, NULL)); /* an empty answer: it is there */
    spoil_next(fixture);
    expect_servers_fault(fixture, ampclient_status(fixture->client, MODEL, &status));
    fixture_ok(fixture, fixture_load(fixture, NULL));
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    join.rank = 0;
    spoil_next(fixture);
    expect_servers_fault(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
    spoil_next(fixture);
    expect_servers_fault(fixture, ampclient_step_begin(fixture->model, &fixture->step));
    fixture_begin(fixture);
}

static void a_server_that_stays_away_is_given_up_in_time(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.reconnect_timeout_ms = 500;
    begin_again(fixture, &options);
    fake_set(fixture->fake, &(struct fake_faults){.down_ms = 60000});
    fake_cut(fixture->fake);
    fixture_push(fixture);
    assert_int_equal(ampclient_step_end(fixture->model, &fixture->result), AMP_EUNAVAILABLE);
    struct ampclient_status status = AMPCLIENT_STATUS_INIT;
    assert_int_equal(ampclient_status(fixture->client, MODEL, &status), AMP_EUNAVAILABLE);
    assert_true(strlen(ampclient_error_text(fixture->client)) > 10);
}

#define FRESH(test)  cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)
#define JOINED(test) cmocka_unit_test_setup_teardown(test, fixture_setup_joined, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connect_without_a_server_fails_with_a_sentence),
        cmocka_unit_test(a_port_of_something_else_is_told_by_what_it_does),
        cmocka_unit_test(connect_waits_for_a_server_that_starts_later),
        cmocka_unit_test(the_second_address_serves_when_the_first_does_not),
        FRESH(calls_are_tried_again_while_the_server_is_unavailable),
        FRESH(a_shard_that_nobody_knows_yet_is_waited_for),
        FRESH(a_join_that_waits_for_a_shard_first_takes_no_more_time_than_it_may),
        FRESH(a_server_that_goes_away_while_a_shard_is_waited_for_costs_no_second_wait),
        FRESH(what_goes_on_meanwhile_is_told_to_the_log),
        FRESH(a_load_that_was_cut_off_is_repeated),
        JOINED(a_push_that_was_cut_off_goes_on_where_it_was),
        JOINED(a_pull_that_was_cut_off_is_repeated),
        JOINED(a_pulled_block_with_a_wrong_checksum_is_pulled_again),
        JOINED(a_pushed_block_that_the_server_finds_damaged_is_sent_again),
        JOINED(user_state_comes_back_before_the_step_that_follows_the_checkpoint),
        JOINED(a_rollback_while_the_verdict_is_awaited_voids_the_step),
        JOINED(a_server_that_restarts_between_steps_is_joined_again),
        JOINED(a_model_that_was_made_anew_with_other_parameters_ends_the_worker_with_a_remedy),
        JOINED(who_gives_the_learning_rate_is_what_the_model_of_the_last_join_says),
        JOINED(a_slow_verdict_is_waited_for_while_the_lease_is_kept),
        JOINED(a_process_that_was_stopped_in_a_call_goes_on_with_it),
        JOINED(an_answer_before_the_body_was_read_ends_the_step),
        JOINED(memory_of_another_layout_is_not_shared_and_the_log_says_why),
        JOINED(a_worker_connects_to_no_socket_that_a_server_reached_by_tcp_names),
        JOINED(a_step_begins_in_time_or_not_at_all_where_memory_was_waited_for_in_vain),
        JOINED(a_verdict_that_never_comes_is_a_deadline),
        JOINED(a_wait_that_is_interrupted_ends_and_the_step_goes_on),
        FRESH(a_load_that_waits_for_another_shard_alone_can_be_interrupted),
        JOINED(closing_asks_nobody_whether_to_end),
        FRESH(a_server_that_stands_still_holds_no_call_up_beyond_its_time_limit),
        JOINED(a_client_closes_in_the_middle_of_a_step),
        JOINED(a_client_closes_while_the_server_is_gone),
        JOINED(leaving_in_the_middle_of_a_step_frees_the_model),
        JOINED(a_server_that_stays_away_is_given_up_in_time),
        FRESH(an_answer_that_is_no_message_is_no_fault_of_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
