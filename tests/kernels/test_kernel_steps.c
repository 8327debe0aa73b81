/*
 * The passes of a variant, each of which may be one kernel, against those of the reference: the gradient that the vote
 * keeps, masters, moments, copies and what is reported are equal, bit for bit, for all kinds of inputs, lengths and
 * addresses; nothing is written outside, and nothing behind an input is read.
 *
 * Argument: ISA.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "amp/pass.h"
#include "tests/kernels/inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define LONGEST 3000
#define GUARD   64 /* elements */
#define ROOM    (GUARD + LONGEST + GUARD)
#define INPUTS  20 /* more than a vote or a step sums at once */
#define RUNS    400

static const struct amp_kernels *variant;

/* What a pass changes. */
struct state {
    _Alignas(64) float p[ROOM];
    float m[ROOM], v[ROOM];
    _Alignas(64) uint32_t copy[ROOM]; /* room for each dtype */
    struct amp_apply_stats stats;
};

static struct state ours, theirs;
static char *gradients[INPUTS]; /* ROOM elements of any dtype, behind which a page begins that nobody may read */
static float formed[ROOM];

/* Where a clip by value changes the most, the least, or nothing; what is no limit is none. */
static const float limits[] = {0.125f, 0, -0.0f, 0x1p63f, 0x1p-149f, INFINITY, NAN};
#define LIMITS (sizeof limits / sizeof limits[0])

/* Where things begin, and what they are. */
struct shape {
    size_t n, at[4]; /* at: elements of p, m, v; bytes of the copy */
    struct amp_input inputs[INPUTS];
    struct amp_pass_in in;
    struct amp_apply apply;
};

/* A training state, of which one element in twenty takes its path in double, or any bits. */
static void fill_state(struct amp_random *random, bool any)
{
    for (size_t i = 0; i < ROOM; i++) {
        ours.p[i] = any ? input_any(random) : input_spread(random, -12, 0);
        ours.m[i] = any ? input_any(random) : input_spread(random, -14, -10);
        ours.v[i] = any ? input_any(random) : input_spread(random, -24, -18);
        ours.v[i] = !any && ours.v[i] < 0 ? -ours.v[i] : ours.v[i];
        ours.copy[i] = 0x5a5a5a5au;
    }
    memset(&ours.stats, 0, sizeof ours.stats);
    theirs = ours;
}

static enum amp_dtype any_dtype(struct amp_random *random)
{
    static const enum amp_dtype dtypes[] = {AMP_F32, AMP_F16, AMP_BF16};
    return dtypes[amp_random_below(random, 3)];
}

/* Any bits; where none but finite ones are wanted, zero for the others. */
static void fill_any(struct amp_random *random, char *data, enum amp_dtype dtype, size_t n, bool finite)
{
    size_t size = amp_dtype_size(dtype);
    input_fill(random, data, dtype, n);
    for (size_t k = 0; finite && k < n; k++) {
        float x;
        amp_kernels_ref.load[dtype](&x, data + size * k, 1);
        if (!isfinite(x))
            memset(data + size * k, 0, size);
    }
}

/* Elements of input i: at any address, or the last that can be read. */
static void fill_input(struct amp_random *random, struct shape *s, unsigned i, bool any)
{
    enum amp_dtype dtype = s->inputs[i].dtype;
    size_t size = amp_dtype_size(dtype), odd = amp_random_below(random, 2);
    size_t before = size * amp_random_below(random, GUARD) + odd;
    char *data = gradients[i] + (amp_random_below(random, 2) ? before : ROOM * sizeof(float) - size * s->n - odd);
    s->inputs[i].data = data;
    s->inputs[i].weight = amp_random_below(random, 2) ? 1.0f : 0.3f;
    if (any)
        fill_any(random, data, dtype, s->n, amp_random_below(random, 2));
    for (size_t k = 0; !any && k < s->n; k++) {
        float x = input_spread(random, -14, 3);
        (void)amp_kernels_ref.store[dtype](data + size * k, &x, 1);
    }
}

static void choose(struct amp_random *random, enum amp_optimizer optimizer, bool any, struct shape *s)
{
    struct amp_optim_config config;
    amp_optim_defaults(optimizer, &config);
    config.weight_decay = amp_random_below(random, 2) ? 0 : 0.01;
    s->n = amp_random_below(random, 4) ? amp_random_below(random, LONGEST + 1) : 256 * amp_random_below(random, 11);
    for (size_t i = 0; i < 4; i++)
        s->at[i] = amp_random_below(random, 2) ? 0 : amp_random_below(random, GUARD);
    unsigned most = amp_random_below(random, 2) ? 3 : INPUTS;
    unsigned count = amp_random_below(random, 2) ? 1 : 1 + (unsigned)amp_random_below(random, most);
    bool alike = amp_random_below(random, 2);
    for (unsigned i = 0; i < count; i++) {
        s->inputs[i].dtype = alike && i > 0 ? s->inputs[0].dtype : any_dtype(random);
        fill_input(random, s, i, any);
    }
    s->in = (struct amp_pass_in){.count = s->n,
                                 .inputs = s->inputs,
                                 .inputs_count = count,
                                 .equal_weights = amp_random_below(random, 2),
                                 .coefficient = amp_coefficient(16, count),
                                 .clip_value_set = amp_random_below(random, 2),
                                 .clip_value = limits[amp_random_below(random, LIMITS)],
                                 .squares = true};
    amp_optim_scalars(&config, 1 + amp_random_below(random, 1000), config.lr, amp_random_below(random, 2) ? 1 : 0.7f,
                      &s->apply);
    s->apply.cast = any_dtype(random);
    s->apply.saturate = amp_random_below(random, 2);
}

static void run(const struct amp_kernels *kernels, const struct shape *s, struct state *x)
{
    amp_pass_apply(kernels, &s->in, &s->apply, x->p + s->at[0], x->m + s->at[1], x->v + s->at[2],
                   (char *)x->copy + s->at[3], &x->stats);
}

/* As from the journal: g from the vote pass, then the apply pass from that. */
static void run_from_g(const struct amp_kernels *kernels, const struct shape *s, struct state *x)
{
    struct amp_pass_vote vote;
    amp_pass_vote(&amp_kernels_ref, &s->in, formed, &vote);
    amp_pass_apply_g(kernels, s->n, formed, &s->apply, x->p + s->at[0], x->m + s->at[1], x->v + s->at[2],
                     (char *)x->copy + s->at[3], &x->stats);
}

static void expect_equal(enum amp_optimizer optimizer, bool any)
{
    struct amp_random random;
    struct shape s;
    amp_random_init(&random, 5 + optimizer);
    for (int i = 0; i < RUNS; i++) {
        choose(&random, optimizer, any, &s);
        fill_state(&random, any);
        (i % 4 == 0 ? run_from_g : run)(variant, &s, &ours);
        run(&amp_kernels_ref, &s, &theirs);
        assert_memory_equal(ours.p, theirs.p, sizeof ours.p);
        assert_memory_equal(ours.m, theirs.m, sizeof ours.m);
        assert_memory_equal(ours.v, theirs.v, sizeof ours.v);
        assert_memory_equal(ours.copy, theirs.copy, sizeof ours.copy);
        assert_memory_equal(&ours.stats, &theirs.stats, sizeof ours.stats);
    }
}

/* Some inputs of a vote: one dtype and equal weights more often than not, more than are summed at once now and then. */
static void choose_vote(struct amp_random *random, bool any, struct shape *s)
{
    choose(random, AMP_OPT_ADAMW, any, s);
    enum amp_dtype dtype = any_dtype(random);
    bool alike = amp_random_below(random, 4) > 0;
    unsigned count = 1 + (unsigned)amp_random_below(random, amp_random_below(random, 2) ? AMP_VOTE_INPUTS : INPUTS);
    for (unsigned i = 0; i < count; i++) {
        s->inputs[i].dtype = alike ? dtype : any_dtype(random);
        fill_input(random, s, i, any && amp_random_below(random, 2));
    }
    s->in.inputs_count = count;
    s->in.equal_weights = amp_random_below(random, 4) > 0;
    s->in.coefficient = amp_random_below(random, 8) ? amp_coefficient(16, count) : 0x1p100f;
    s->in.squares = amp_random_below(random, 2);
}

/* All but the padding at the end. */
static void assert_same_vote(const struct amp_pass_vote *a, const struct amp_pass_vote *b)
{
    assert_memory_equal(a, b, offsetof(struct amp_pass_vote, largest) + sizeof a->largest);
}

static void expect_equal_votes(bool any)
{
    struct amp_random random;
    struct shape s;
    amp_random_init(&random, 17);
    for (int i = 0; i < RUNS; i++) {
        struct amp_pass_vote found, wanted;
        choose_vote(&random, any, &s);
        fill_state(&random, any);
        bool keeps = amp_random_below(&random, 2);
        amp_pass_vote(variant, &s.in, keeps ? ours.p + s.at[0] : NULL, &found);
        amp_pass_vote(&amp_kernels_ref, &s.in, keeps ? theirs.p + s.at[0] : NULL, &wanted);
        assert_memory_equal(ours.p, theirs.p, sizeof ours.p);
        assert_same_vote(&found, &wanted);
    }
}

static void a_vote_on_gradients_of_a_training_is_the_reference_s(void **state)
{
    expect_equal_votes(false);
}

static void a_vote_on_any_bits_is_the_reference_s(void **state)
{
    expect_equal_votes(true);
}

/* From any address to any address. */
static void expect_equal_takes(bool any)
{
    struct amp_random random;
    amp_random_init(&random, 31);
    for (unsigned r = 0; r < RUNS; r++) {
        struct shape s;
        struct amp_pass_vote found, wanted;
        struct amp_check counted = AMP_CHECK_INIT, expected = AMP_CHECK_INIT;
        choose_vote(&random, any, &s);
        s.in.inputs_count = 1;
        enum amp_dtype dtype = s.inputs[0].dtype;
        fill_state(&random, true);
        char *to = (char *)ours.copy + 64 + (r % 2 == 0 ? 0 : s.at[3]), *there = to - (char *)&ours + (char *)&theirs;
        amp_pass_take(variant, &s.in, to, 77, &counted, &found);
        memcpy(there, s.inputs[0].data, s.n * amp_dtype_size(dtype));
        amp_kernels_ref.check[dtype](there, s.n, 77, &expected);
        amp_pass_vote(&amp_kernels_ref, &s.in, NULL, &wanted);
        assert_same_vote(&found, &wanted);
        assert_memory_equal(&counted, &expected, offsetof(struct amp_check, largest) + sizeof counted.largest);
        assert_memory_equal(&ours, &theirs, sizeof ours);
    }
}

static void a_take_copies_tests_and_votes_as_three_passes_of_the_reference_do(void **state)
{
    expect_equal_takes(false);
}

static void a_take_of_any_bits_is_that_of_the_reference(void **state)
{
    expect_equal_takes(true);
}

static void a_clip_at_zero_keeps_the_sign_of_zero(void **state)
{
    static const uint16_t values[] = {0, 0x8000, 0x3c00, 0xbc00}; /* 0, -0, and more and less than zero in each dtype */
    uint16_t gradient[AMP_VOTE_MULTIPLE];
    for (size_t i = 0; i < AMP_VOTE_MULTIPLE; i++)
        gradient[i] = values[i % 4];
    for (int i = 0; i < 4; i++) {
        struct amp_input input = {.data = gradient, .dtype = i % 2 ? AMP_F16 : AMP_BF16, .weight = 1};
        struct amp_pass_in in = {.count = AMP_VOTE_MULTIPLE,
                                 .inputs = &input,
                                 .inputs_count = 1,
                                 .equal_weights = true,
                                 .coefficient = 1,
                                 .clip_value_set = true,
                                 .clip_value = i < 2 ? 0.0f : -0.0f};
        struct amp_pass_vote found, wanted;
        amp_pass_vote(variant, &in, ours.p, &found);
        amp_pass_vote(&amp_kernels_ref, &in, theirs.p, &wanted);
        assert_memory_equal(ours.p, theirs.p, AMP_VOTE_MULTIPLE * sizeof ours.p[0]);
        assert_same_vote(&found, &wanted);
    }
}

static void a_vote_may_put_g_in_the_place_of_an_input(void **state)
{
    struct amp_random random;
    struct shape s;
    amp_random_init(&random, 23);
    for (int i = 0; i < RUNS; i++) {
        struct amp_pass_vote found, wanted;
        choose_vote(&random, true, &s);
        fill_state(&random, true);
        struct amp_input *input = &s.inputs[amp_random_below(&random, s.in.inputs_count)];
        *input = (struct amp_input){.data = ours.p + s.at[0], .dtype = AMP_F32, .weight = 1};
        amp_pass_vote(&amp_kernels_ref, &s.in, formed, &wanted);
        amp_pass_vote(variant, &s.in, ours.p + s.at[0], &found);
        assert_memory_equal(ours.p + s.at[0], formed, s.n * sizeof formed[0]);
        assert_same_vote(&found, &wanted);
    }
}

static void adamw_moves_the_state_of_a_training_as_the_reference_does(void **state)
{
    expect_equal(AMP_OPT_ADAMW, false);
}

static void adamw_moves_any_bits_as_the_reference_does(void **state)
{
    expect_equal(AMP_OPT_ADAMW, true);
}

static void adam_moves_the_state_of_a_training_as_the_reference_does(void **state)
{
    expect_equal(AMP_OPT_ADAM, false);
}

static void adam_moves_any_bits_as_the_reference_does(void **state)
{
    expect_equal(AMP_OPT_ADAM, true);
}

static int make_room(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (ROOM * sizeof(float) + page - 1) / page * page;
    for (unsigned i = 0; i < INPUTS; i++) {
        char *room = mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED || mprotect(room + size, page, PROT_NONE) != 0)
            return -1;
        gradients[i] = room + size - ROOM * sizeof(float);
    }
    return 0;
}

int main(int argc, char **argv)
{
    variant = input_variant(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_vote_on_gradients_of_a_training_is_the_reference_s),
        cmocka_unit_test(a_vote_on_any_bits_is_the_reference_s),
        cmocka_unit_test(a_take_copies_tests_and_votes_as_three_passes_of_the_reference_do),
        cmocka_unit_test(a_take_of_any_bits_is_that_of_the_reference),
        cmocka_unit_test(a_clip_at_zero_keeps_the_sign_of_zero),
        cmocka_unit_test(a_vote_may_put_g_in_the_place_of_an_input),
        cmocka_unit_test(adamw_moves_the_state_of_a_training_as_the_reference_does),
        cmocka_unit_test(adamw_moves_any_bits_as_the_reference_does),
        cmocka_unit_test(adam_moves_the_state_of_a_training_as_the_reference_does),
        cmocka_unit_test(adam_moves_any_bits_as_the_reference_does),
    };
    return cmocka_run_group_tests(tests, make_room, NULL);
}
