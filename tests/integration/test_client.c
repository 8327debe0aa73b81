/* libampclient against a server that behaves: the loop of a worker, what wrong use gets, and a call without memory. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "client/io/client.h"
#include "tests/integration/client_fixture.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- a call for whose path there is no memory (linked with --wrap) ---- */

static _Atomic(const char *) starved; /* the next call of this method; NULL: none */
static struct ampclient_link *breaks; /* its loop is found to stand still right after that call; NULL: none does */

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
    const char *method = starved, *name = strrchr(text, '/');
    if (method == NULL || name == NULL || strcmp(name, method) != 0)
        return __real_strdup(text);
    starved = NULL;
    if (breaks != NULL)
        (void)ampclient_link_break(breaks, NULL); /* a call of a model is begun with the mutex */
    breaks = NULL;
    return NULL;
}

static void a_worker_goes_round_until_the_model_is_done(void **state)
{
    struct fixture *fixture = *state;
    bool existed = true, already = true;
    fixture_ok(fixture, fixture_create(fixture, 3, &existed));
    assert_false(existed);
    fixture_ok(fixture, fixture_create(fixture, 3, &existed));
    assert_true(existed);
    fixture_ok(fixture, fixture_load(fixture, &already));
    assert_false(already);
    fixture_ok(fixture, fixture_load(fixture, &already));
    assert_true(already);
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    join.rank = 0;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
    assert_int_equal(ampclient_world_size(fixture->model), 1);
    assert_int_equal(ampclient_parameters_count(fixture->model), PARAMETERS);
    assert_int_equal(ampclient_parameter_index(fixture->model, "line"), 3);
    for (unsigned s = 0; s < 3; s++) {
        fixture_begin(fixture);
        assert_int_equal(fixture->step.step, s + 1);
        assert_false(fixture->step.rolled_back);
        assert_true(fixture->step.scale == 1024);
        fixture_check(fixture, s);
        fixture_push(fixture);
        fixture_end(fixture);
        assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
        assert_int_equal(fixture->result.step, s + 1);
        assert_int_equal(fixture->result.version, s + 1);
    }
    assert_int_equal(ampclient_step_begin(fixture->model, &fixture->step), 1);
    uint64_t version = 0;
    fixture_ok(fixture, ampclient_pull(fixture->model, &version));
    assert_int_equal(version, 3);
    fixture_check(fixture, 3);
    struct ampclient_status status = AMPCLIENT_STATUS_INIT;
    fixture_ok(fixture, ampclient_status(fixture->client, MODEL, &status));
    assert_true(status.done);
    assert_int_equal(status.step, 3);
    assert_int_equal(status.applied, 3);
    fixture_ok(fixture, ampclient_leave(fixture->model));
    assert_int_equal(fake_counts(fixture->fake).leaves, 1);
}

static void an_overflow_is_a_result_and_halves_the_scale(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fixture->gradients[1][3] = INFINITY;
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_SKIPPED_OVERFLOW);
    assert_true(fixture->result.scale == 1024 && fixture->result.new_scale == 512);
    assert_int_equal(fixture->result.overflow_parameters, 1);
    fixture_begin(fixture); /* the view outlives it */
    assert_int_equal(fixture->result.overflows_count, 1);
    const struct ampclient_overflow *row = fixture->result.overflows;
    assert_string_equal(row->parameter, "seven");
    assert_string_equal(row->worker, "rank-0");
    assert_int_equal(row->parameter_index, 1);
    assert_int_equal(row->rank, 0);
    assert_int_equal(row->inf_count, 1);
    assert_int_equal(row->first_index, 3);
    assert_true(fixture->step.scale == 512);
    fixture_check(fixture, 0);
}

static void parameters_that_are_not_pushed_count_as_zero(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fixture_ok(fixture, ampclient_push(fixture->model, 1, fixture->gradients[1], AMP_F32));
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
    assert_true(fake_value(fixture->fake, 0) == fixture->values[0][0]);
    uint64_t seven = (fixture_sizes[0] + 63) / 64 * 64;
    assert_true(fake_value(fixture->fake, seven) == fixture->values[1][0] - 0.5f);
}

static void a_step_without_any_push_is_a_step(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.step, 1);
    fixture_begin(fixture);
    assert_int_equal(fixture->step.step, 2);
}

static void a_step_begun_again_is_the_same_step(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fixture_push(fixture);
    fixture_begin(fixture);
    assert_int_equal(fixture->step.step, 1);
    fixture_push(fixture);
    fixture_end(fixture);
    fixture_begin(fixture);
    fixture_check(fixture, 1);
}

/* Else two handles of a rank would take it from each other for ever. */
static void each_handle_is_a_process_of_its_own_to_the_server(void **state)
{
    struct fixture *fixture = *state;
    uint64_t instance = fake_counts(fixture->fake).instance;
    fixture_begin(fixture);
    fixture_push(fixture);
    fixture_begin(fixture); /* joins again */
    assert_int_equal(fake_counts(fixture->fake).joins, 2);
    assert_true(fake_counts(fixture->fake).instance == instance);
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    struct ampclient_model *other = NULL;
    join.rank = 0;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &other));
    assert_true(fake_counts(fixture->fake).instance != instance);
    fixture_ok(fixture, ampclient_leave(other));
}

static void user_state_travels_with_the_push_and_back_with_a_join(void **state)
{
    struct fixture *fixture = *state;
    const void *data;
    size_t size = 1;
    fixture_ok(fixture, ampclient_user_state(fixture->model, &data, &size));
    assert_int_equal(size, 0);
    fixture_begin(fixture);
    fixture_push(fixture);
    fixture_ok(fixture, ampclient_set_user_state(fixture->model, "position 7", 10));
    fixture_end(fixture);
    char got[16];
    assert_int_equal(fake_user_state(fixture->fake, got, sizeof got), 10);
    assert_memory_equal(got, "position 7", 10);
    fixture_ok(fixture, ampclient_leave(fixture->model));
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    join.rank = 0;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
    fixture_ok(fixture, ampclient_user_state(fixture->model, &data, &size));
    assert_int_equal(size, 10);
    assert_memory_equal(data, "position 7", 10);
}

static void accumulated_pushes_go_out_as_their_sum(void **state)
{
    struct fixture *fixture = *state;
    fixture_ok(fixture, ampclient_leave(fixture->model));
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    join.rank = 0;
    join.accumulate = 2;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
    fixture_begin(fixture);
    for (int i = 0; i < PARAMETERS; i++)
        for (uint64_t e = 0; e < fixture_sizes[i]; e++)
            fixture->gradients[i][e] *= 0.5f;
    fixture_push(fixture);
    fixture_push(fixture);
    fixture_end(fixture);
    fixture_begin(fixture);
    fixture_check(fixture, 1);
}

static void gradients_may_be_freed_once_the_step_has_ended(void **state)
{
    struct fixture *fixture = *state;
    for (int s = 0; s < 3; s++) {
        fixture_begin(fixture);
        fixture_push(fixture);
        fixture_end(fixture);
        for (int i = 0; i < PARAMETERS; i++) {
            size_t size = fixture_sizes[i] * sizeof(float);
            memset(fixture->gradients[i], 0xff, size); /* NaNs, which a late read would push */
            free(fixture->gradients[i]);
            fixture->gradients[i] = malloc(size);
            memset(fixture->gradients[i], 0x7f, size); /* large, where the allocator gives the same memory */
        }
    }
    fixture_begin(fixture);
    fixture_check(fixture, 3);
}

/* ---- wrong use ---- */

static void expect_error(const struct fixture *fixture, int rc, int code, const char *word)
{
    assert_int_equal(rc, code);
    const char *text = ampclient_error_text(fixture->client);
    if (strstr(text, word) == NULL)
        fail_msg("\"%s\" does not speak of \"%s\"", text, word);
}

static void wrong_arguments_get_a_code_and_a_sentence(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_model *model = NULL;
    struct ampclient_tensor tensor;
    const void *data;
    size_t size;
    expect_error(fixture, ampclient_create(fixture->client, NULL, NULL), AMP_EINVAL, "spec");
    expect_error(fixture, ampclient_join(fixture->client, "none", NULL, &model), AMP_EINVAL, "RANK");
    expect_error(fixture, ampclient_load(fixture->client, MODEL, NULL, 5, NULL), AMP_EINVAL, "values");
    expect_error(fixture, ampclient_load(fixture->client, MODEL, (const float *const *)fixture->values, 4, NULL),
                 AMP_EINVAL, "values_count");
    expect_error(fixture, ampclient_load(fixture->client, "none", (const float *const *)fixture->values, 5, NULL),
                 AMP_ENOTFOUND, "no such model");
    struct ampclient_full full = AMPCLIENT_FULL_INIT;
    expect_error(fixture, ampclient_load_full(fixture->client, MODEL, NULL, NULL), AMP_EINVAL, "full");
    expect_error(fixture, ampclient_load_full(fixture->client, MODEL, &full, NULL), AMP_EINVAL, "parameters_count");
    full.size = 0;
    expect_error(fixture, ampclient_load_full(fixture->client, MODEL, &full, NULL), AMP_EINVAL, "The fields of full");
    full.size = sizeof full;
    full.parameters_count = PARAMETERS;
    expect_error(fixture, ampclient_load_full(fixture->client, MODEL, &full, NULL), AMP_EINVAL, "values");
    full.values = (const float *const *)fixture->values;
    full.m = full.values;
    expect_error(fixture, ampclient_load_full(fixture->client, MODEL, &full, NULL), AMP_EINVAL, "keeps 0 moments");
    const uint8_t *const user_states[] = {NULL};
    full.m = NULL;
    full.user_states = (const void *)user_states;
    full.user_states_count = 1;
    expect_error(fixture, ampclient_load_full(fixture->client, MODEL, &full, NULL), AMP_EINVAL, "user_states_sizes");
    expect_error(fixture, ampclient_parameter(fixture->model, PARAMETERS, &tensor), AMP_ERANGE, "5");
    expect_error(fixture, ampclient_parameter(fixture->model, 0, &tensor), AMP_ESTATE, "pulled");
    expect_error(fixture, ampclient_push(fixture->model, 0, fixture->gradients[0], AMP_F32), AMP_ESTATE, "step");
    void *place = fixture;
    expect_error(fixture, ampclient_gradient(fixture->model, 0, AMP_F32, &place), AMP_ESTATE, "step_begin");
    assert_ptr_equal(place, fixture);
    fixture_begin(fixture);
    expect_error(fixture, ampclient_push(fixture->model, 0, NULL, AMP_F32), AMP_EINVAL, "NULL");
    expect_error(fixture, ampclient_push(fixture->model, 9, fixture->gradients[0], AMP_F32), AMP_ERANGE, "9");
    expect_error(fixture, ampclient_push(fixture->model, 0, fixture->gradients[0], AMP_F64), AMP_EINVAL, "AMP_F16");
    expect_error(fixture, ampclient_pull(fixture->model, NULL), AMP_ESTATE, "step_begin");
    fixture_ok(fixture, ampclient_push(fixture->model, 0, fixture->gradients[0], AMP_F32));
    expect_error(fixture, ampclient_push(fixture->model, 0, fixture->gradients[0], AMP_F32), AMP_ESTATE, "pushed");
    expect_error(fixture, ampclient_step_end(fixture->model, NULL), AMP_EINVAL, "result");
    expect_error(fixture, ampclient_set_user_state(fixture->model, "x", 70000), AMP_EINVAL, "70000");
    expect_error(fixture, ampclient_set_user_state(fixture->model, NULL, 7), AMP_EINVAL, "NULL");
    expect_error(fixture, ampclient_user_state(fixture->model, &data, NULL), AMP_EINVAL, "size");
    assert_null(model);
    (void)size;
    fixture_end(fixture);
    assert_int_equal(ampclient_step_begin(NULL, &fixture->step), AMP_EINVAL);
    assert_int_equal(ampclient_leave(NULL), AMP_EINVAL);
}

static void a_call_that_cannot_begin_for_want_of_memory_has_failed(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    starved = "/Push";
    fixture_push(fixture);
    assert_int_equal(ampclient_step_end(fixture->model, &fixture->result), AMP_ENOMEM);
    assert_null(starved);
    assert_non_null(strstr(ampclient_error_text(fixture->client), "no memory for a call"));
    fixture_begin(fixture);
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
    fixture_begin(fixture);
    fixture_check(fixture, 1);
    starved = "/Leave";
    assert_int_equal(ampclient_leave(fixture->model), AMP_ENOMEM);
    assert_null(starved);
    assert_int_equal(fake_counts(fixture->fake).leaves, 0);
}

static void a_loop_that_stands_still_is_told_by_every_call_that_hands_something_in(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_link *link = fixture->client->link;
    void *place;
    fixture_begin(fixture);
    (void)pthread_mutex_lock(&link->mutex);
    (void)ampclient_link_break(link, NULL);
    (void)pthread_mutex_unlock(&link->mutex);
    assert_int_equal(ampclient_gradient(fixture->model, 0, AMP_F32, &place), AMP_EINTERNAL);
    assert_int_equal(ampclient_push(fixture->model, 0, fixture->gradients[0], AMP_F32), AMP_EINTERNAL);
    assert_non_null(strstr(ampclient_error_text(fixture->client), "does not answer any more"));
    assert_int_equal(ampclient_set_weight(fixture->model, 1), AMP_EINTERNAL);
    assert_int_equal(ampclient_loss(fixture->model, 1), AMP_EINTERNAL);
    assert_int_equal(ampclient_set_user_state(fixture->model, "s", 1), AMP_EINTERNAL);
    assert_int_equal(ampclient_step_end(fixture->model, &fixture->result), AMP_EINTERNAL);
}

/* Only this code tells the caller that the loop may still use gradients and memory. */
static void a_leave_after_which_the_loop_stands_still_says_so_whatever_the_server_has_answered(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    breaks = fixture->client->link;
    starved = "/Leave";
    assert_int_equal(ampclient_leave(fixture->model), AMP_EINTERNAL);
    assert_null(starved);
    assert_non_null(strstr(ampclient_error_text(fixture->client), "does not answer any more"));
}

static void a_learning_rate_is_refused_where_the_schedule_gives_it_and_steps_go_on_without(void **state)
{
    struct fixture *fixture = *state;
    expect_error(fixture, ampclient_set_learning_rate(fixture->model, 0.5), AMP_EINVAL, "AMPCLIENT_WORKER");
    fixture_begin(fixture);
    fixture_push(fixture);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
}

static void a_specification_that_differs_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_parameter_spec parameter = {.name = "w", .dimensions = 1, .shape = {4}};
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    spec.name = MODEL;
    spec.parameters = &parameter;
    spec.parameters_count = 1;
    spec.world_size = 1;
    expect_error(fixture, ampclient_create(fixture->client, &spec, NULL), AMP_EEXIST, "another number");
    spec.parameters = NULL;
    expect_error(fixture, ampclient_create(fixture->client, &spec, NULL), AMP_EINVAL, "parameters is NULL");
    spec.parameters = &parameter;
    spec.world_size = 0;
    expect_error(fixture, ampclient_create(fixture->client, &spec, NULL), AMP_EINVAL, "world_size");
}

static void rank_and_world_size_come_from_the_environment(void **state)
{
    struct fixture *fixture = *state;
    fixture_ok(fixture, ampclient_leave(fixture->model));
    assert_int_equal(setenv("RANK", "0", 1), 0);
    assert_int_equal(setenv("WORLD_SIZE", "3", 1), 0);
    int differs = ampclient_join(fixture->client, MODEL, NULL, &fixture->model);
    assert_int_equal(setenv("WORLD_SIZE", "1", 1), 0);
    int joined = ampclient_join(fixture->client, MODEL, NULL, &fixture->model);
    uint32_t rank = ampclient_rank(fixture->model);
    struct ampclient_model *other = NULL;
    assert_int_equal(setenv("RANK", "256", 1), 0); /* ranks are below the largest world */
    expect_error(fixture, ampclient_join(fixture->client, MODEL, NULL, &other), AMP_EINVAL, "from 0 to 255");
    assert_int_equal(setenv("RANK", "0", 1) | setenv("WORLD_SIZE", "0", 1), 0);
    expect_error(fixture, ampclient_join(fixture->client, MODEL, NULL, &other), AMP_EINVAL, "from 1 to 256");
    assert_int_equal(setenv("WORLD_SIZE", "1", 1), 0);
    assert_int_equal(setenv("RANK", "first", 1), 0);
    int no_number = ampclient_join(fixture->client, MODEL, NULL, &other);
    assert_int_equal(unsetenv("RANK") | unsetenv("WORLD_SIZE"), 0);
    assert_int_equal(differs, AMP_EINVAL);
    assert_int_equal(joined, 0);
    assert_int_equal(rank, 0);
    expect_error(fixture, no_number, AMP_EINVAL, "RANK");
}

static void a_worker_alone_needs_no_rank(void **state)
{
    struct fixture *fixture = *state;
    fixture_ok(fixture, ampclient_leave(fixture->model));
    struct ampclient_model *other = NULL;
    expect_error(fixture, ampclient_join(fixture->client, MODEL, NULL, &other), AMP_EINVAL, "has no rank");
    struct ampclient_join_options options = AMPCLIENT_JOIN_OPTIONS_INIT;
    options.world_size = 2;
    expect_error(fixture, ampclient_join(fixture->client, MODEL, &options, &other), AMP_EINVAL, "has no rank");
    options.world_size = 1;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &options, &fixture->model));
    assert_int_equal(ampclient_rank(fixture->model), 0);
    fixture_ok(fixture, ampclient_leave(fixture->model));
    assert_int_equal(setenv("WORLD_SIZE", "1", 1), 0);
    int joined = ampclient_join(fixture->client, MODEL, NULL, &fixture->model);
    assert_int_equal(unsetenv("WORLD_SIZE"), 0);
    assert_int_equal(joined, 0);
    assert_int_equal(ampclient_rank(fixture->model), 0);
}

static void structs_grow_by_their_size(void **state)
{
    struct fixture *fixture = *state;
    struct {
        struct ampclient_options options;
        uint64_t later;
    } newer = {.options = AMPCLIENT_OPTIONS_INIT};
    newer.options.size = sizeof newer;
    struct ampclient *client = NULL;
    struct amp_error error = {0};
    newer.later = 1;
    assert_int_equal(ampclient_connect(fake_endpoint(fixture->fake), &newer.options, &client, &error), AMP_EINVAL);
    newer.later = 0;
    assert_int_equal(ampclient_connect(fake_endpoint(fixture->fake), &newer.options, &client, &error), 0);
    ampclient_close(client);
    newer.options.size = 0;
    assert_int_equal(ampclient_connect(fake_endpoint(fixture->fake), &newer.options, &client, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "_INIT"));
    struct ampclient_status shorter = {.size = offsetof(struct ampclient_status, version)};
    shorter.version = 99;
    fixture_ok(fixture, ampclient_status(fixture->client, MODEL, &shorter));
    assert_int_equal(shorter.epoch, 1);
    assert_int_equal(shorter.version, 99);
    assert_int_equal(shorter.size, offsetof(struct ampclient_status, version));
}

static void a_struct_whose_size_cannot_be_is_refused_and_not_read_beyond_its_end(void **state)
{
    struct fixture *fixture = *state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct ampclient_options *last; /* zeros up to a page that cannot be read */
    struct ampclient_status status = {.size = SIZE_MAX};
    struct ampclient *client = NULL;
    uint8_t *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
    last = (struct ampclient_options *)(void *)(pages + page - sizeof *last);
    last->size = SIZE_MAX;
    assert_int_equal(ampclient_connect(fake_endpoint(fixture->fake), last, &client, NULL), AMP_EINVAL);
    assert_int_equal(munmap(pages, 2 * page), 0);
    assert_int_equal(ampclient_status(fixture->client, MODEL, &status), AMP_EINVAL);
}

static void memory_of_the_caller_holds_the_parameters(void **state)
{
    struct fixture *fixture = *state;
    size_t size = ampclient_memory_size(fixture->model);
    size_t room = (size + 63) / 64 * 64;
    float *memory = aligned_alloc(64, room);
    assert_non_null(memory);
    assert_int_equal(ampclient_use_memory(fixture->model, memory, 64), AMP_EINVAL);
    assert_true(strlen(ampclient_error_text(fixture->client)) > 10);
    fixture_ok(fixture, ampclient_use_memory(fixture->model, memory, room));
    fixture_begin(fixture);
    fixture_check(fixture, 0);
    struct ampclient_tensor tensor;
    fixture_ok(fixture, ampclient_parameter(fixture->model, 0, &tensor));
    assert_ptr_equal(tensor.data, memory);
    assert_int_equal(ampclient_use_memory(fixture->model, memory, room), AMP_ESTATE);
    fixture_push(fixture);
    fixture_end(fixture);
    fixture_ok(fixture, ampclient_leave(fixture->model));
    assert_true(memory[0] == fixture->values[0][0]); /* it outlives the model */
    free(memory);
}

static void any_method_can_be_called_by_its_path(void **state)
{
    struct fixture *fixture = *state;
    static const char get[] = "/ampd.v1.ParameterService/GetModel", request[] = "\n\1m"; /* field 1: "m" */
    const void *answer = NULL;
    size_t size = 0;
    fixture_ok(fixture, ampclient_call(fixture->client, get, request, 3, &answer, &size));
    assert_non_null(answer);
    assert_true(size > 3);
    assert_int_equal(ampclient_call(fixture->client, "GetModel", request, 3, &answer, &size), AMP_EINVAL);
    assert_null(answer);
    expect_error(fixture, ampclient_call(fixture->client, get, NULL, 3, &answer, &size), AMP_EINVAL, "NULL");
    assert_int_equal(ampclient_call(fixture->client, get, request, 3, NULL, &size), AMP_EINVAL);
    expect_error(fixture, ampclient_call(fixture->client, "/ampd.v1.NoService/GetModel", request, 3, &answer, &size),
                 AMP_EUNIMPLEMENTED, "no method /ampd.v1.NoService/GetModel");
    assert_int_equal(ampclient_call_stream(fixture->client, get, request, 3, NULL, NULL), AMP_EINVAL);
}

/* Another process may have the place of the one that was drained when it is asked again. */
static void a_drain_is_asked_for_once(void **state)
{
    struct fixture *fixture = *state;
    const void *answer = NULL;
    size_t size = 0;
    expect_error(fixture, ampclient_call(fixture->client, "/ampd.v1.AdminService/Drain", NULL, 0, &answer, &size),
                 AMP_EUNAVAILABLE, "the server is ending");
    assert_string_equal(ampclient_error_reason(fixture->client), "DRAINING");
    assert_int_equal(fake_counts(fixture->fake).drains, 1);
}

static void addresses_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"", ",", "nonsense", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:7420,nonsense"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ampclient *client = NULL;
        struct amp_error error = {0};
        assert_int_equal(ampclient_connect(bad[i], NULL, &client, &error), AMP_EINVAL);
        assert_null(client);
        assert_true(strlen(error.text) > 10);
    }
}

#define JOINED(test) cmocka_unit_test_setup_teardown(test, fixture_setup_joined, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_worker_goes_round_until_the_model_is_done, fixture_setup, fixture_teardown),
        JOINED(an_overflow_is_a_result_and_halves_the_scale),
        JOINED(parameters_that_are_not_pushed_count_as_zero),
        JOINED(a_step_without_any_push_is_a_step),
        JOINED(a_step_begun_again_is_the_same_step),
        JOINED(each_handle_is_a_process_of_its_own_to_the_server),
        JOINED(user_state_travels_with_the_push_and_back_with_a_join),
        JOINED(accumulated_pushes_go_out_as_their_sum),
        JOINED(gradients_may_be_freed_once_the_step_has_ended),
        JOINED(wrong_arguments_get_a_code_and_a_sentence),
        JOINED(a_call_that_cannot_begin_for_want_of_memory_has_failed),
        JOINED(a_loop_that_stands_still_is_told_by_every_call_that_hands_something_in),
        JOINED(a_leave_after_which_the_loop_stands_still_says_so_whatever_the_server_has_answered),
        JOINED(a_learning_rate_is_refused_where_the_schedule_gives_it_and_steps_go_on_without),
        JOINED(a_specification_that_differs_is_refused),
        JOINED(rank_and_world_size_come_from_the_environment),
        JOINED(a_worker_alone_needs_no_rank),
        JOINED(structs_grow_by_their_size),
        JOINED(a_struct_whose_size_cannot_be_is_refused_and_not_read_beyond_its_end),
        JOINED(memory_of_the_caller_holds_the_parameters),
        JOINED(any_method_can_be_called_by_its_path),
        JOINED(a_drain_is_asked_for_once),
        cmocka_unit_test(addresses_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
