/*
 * A worker whose gradients follow from its rank, the step and the parameters that it sees, bit for bit: two runs that
 * end in the same sum have seen the same bytes in every step, whichever way these came.
 *
 *     shared_worker ADDRESS MODEL [KEY=VALUE ...]
 *
 *     rank=0 world=1 steps=6        who it is, and how long the model trains
 *     sizes=70000,3,5               elements of each parameter
 *     cast=f16 dtype=f16            of the parameters, and of the gradients; dtype=f16,f32: by turns
 *     wide=0                        from this step on gradients are f32; 0: never
 *     place=own|slot                gradients in memory of its own, or where ampclient_gradient says
 *     values=library|own|shared     parameters where the library has them, or in memory of its own (guarded);
 *                                   shared: with shared_cb, so in the latter where they come as bytes alone
 *     share=1                       0: no_shared_memory
 *     evaluate=0                    1: ampclient_pull before each step
 *     absent=0                      1: parameter step % count has no gradient
 *     overflow=0                    in each n-th step rank 0 pushes an Inf
 *     quorum=0 journal=0 pace=0     of the model; ms between two steps
 *     accumulate=0                  each gradient is pushed so many times
 *     files=0                       its limit of open files
 *     again=0                       this step is begun again when all of its gradients have been pushed
 *     pause=STEP:POINT[,...]        begin, half, pushed or ended: it says "paused" there and waits for a line
 *
 * A line for each step, and one at the end. Exit code 1: a call failed, and a sentence says so.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, usleep */
#include "client/ampclient.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PARAMETERS_MAX 64
#define PAGE           ((size_t)4096)
#define MAPPINGS_MAX   3 /* of shared memory at a time */

struct worker {
    const char *address, *name;
    const char *pauses; /* those to come */
    uint32_t rank, world, count, quorum, accumulate;
    uint64_t sizes[PARAMETERS_MAX], steps, wide, overflow, pace, files, again;
    enum amp_dtype cast, dtypes[2];
    bool in_slot, own_values, hears, no_share, evaluate, absent, journal;
    struct ampclient *client;
    struct ampclient_model *model;
    void *gradients[PARAMETERS_MAX];
    struct ampclient_shared_memory mappings[MAPPINGS_MAX]; /* that are mapped, as shared_cb has told */
    uint32_t mappings_count;
};

static int failed(const struct worker *worker, const char *what, int rc)
{
    (void)fprintf(stderr, "%s: %s: %s\n", what, amp_strerror(rc), ampclient_error_text(worker->client));
    return -1;
}

/* ---- start ---- */

static int make_model(struct worker *worker)
{
    static struct ampclient_parameter_spec parameters[PARAMETERS_MAX];
    static char names[PARAMETERS_MAX][16];
    static const float *values[PARAMETERS_MAX];
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    for (uint32_t p = 0; p < worker->count; p++) {
        float *first = malloc(worker->sizes[p] * sizeof *first); /* freed with the process */
        if (first == NULL)
            return AMP_ENOMEM;
        for (uint64_t i = 0; i < worker->sizes[p]; i++)
            first[i] = (float)((i * 13 + p) % 1009) / 512 - 1;
        (void)snprintf(names[p], sizeof names[p], "w%" PRIu32, p);
        parameters[p] =
            (struct ampclient_parameter_spec){.name = names[p], .dimensions = 1, .shape = {worker->sizes[p]}};
        values[p] = first;
    }
    spec.name = worker->name;
    spec.parameters = parameters;
    spec.parameters_count = worker->count;
    spec.world_size = worker->world;
    spec.cast = worker->cast;
    spec.optimizer = AMPCLIENT_SGD;
    spec.lr = 64;
    spec.max_steps = worker->steps;
    spec.checkpoint_every = 2;
    spec.durability = worker->journal ? AMPCLIENT_DURABILITY_STEP : AMPCLIENT_DURABILITY_CHECKPOINT;
    spec.sync = worker->quorum != 0 ? AMPCLIENT_QUORUM : AMPCLIENT_SYNC;
    spec.quorum = worker->quorum;
    int rc = ampclient_create(worker->client, &spec, NULL);
    return rc == 0 ? ampclient_load(worker->client, worker->name, values, worker->count, NULL) : rc;
}

/* A page that nobody may touch lies behind it: what is written beyond the end is noticed. */
static void *guarded(size_t size)
{
    size_t pages = (size + PAGE - 1) & ~(PAGE - 1);
    uint8_t *memory = mmap(NULL, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + pages, PAGE, PROT_NONE) != 0)
        return NULL;
    return memory + ((pages - size) & ~(size_t)63);
}

/* What is told of a mapping that was not made, or is there already, ends the process. */
static void hear(void *arg, const struct ampclient_shared_memory *shared, bool mapped)
{
    struct worker *worker = arg;
    uint32_t at = 0;
    volatile uint8_t *bytes = shared->data;
    while (at < worker->mappings_count && worker->mappings[at].data != shared->data)
        at++;
    if (mapped == (at < worker->mappings_count) || at == MAPPINGS_MAX || shared->size_bytes % PAGE != 0)
        abort();
    uint8_t last = bytes[shared->size_bytes - 1]; /* it is there, also right before it goes */
    if (shared->writable)
        bytes[shared->size_bytes - 1] = last;
    if (mapped)
        worker->mappings[worker->mappings_count++] = *shared;
    else
        worker->mappings[at] = worker->mappings[--worker->mappings_count];
}

static bool lies_in(const struct ampclient_shared_memory *mapping, const void *memory, size_t size)
{
    uintptr_t begin = (uintptr_t)mapping->data, at = (uintptr_t)memory;
    return at >= begin && at + size <= begin + mapping->size_bytes;
}

/*
 * With shared_cb, as long as memory is shared: parameters lie in a copy that it has told, unless the model goes on
 * without this worker, and gradients in the slot, if that is of their width.
 */
static bool lies_where_told(const struct worker *worker, const struct ampclient_tensor *tensor, const void *place,
                            enum amp_dtype dtype)
{
    size_t elements = (size_t)tensor->elements;
    bool in_copy = false, in_slot = false, fits = false;
    if (!worker->hears || !ampclient_shares_memory(worker->model))
        return true;
    for (uint32_t i = 0; i < worker->mappings_count; i++) {
        const struct ampclient_shared_memory *mapping = &worker->mappings[i];
        if (mapping->writable) {
            fits = amp_dtype_size(mapping->dtype) == amp_dtype_size(dtype);
            in_slot = lies_in(mapping, place, elements * amp_dtype_size(dtype));
        } else if (lies_in(mapping, tensor->data, elements * amp_dtype_size(tensor->dtype))) {
            in_copy = mapping->dtype == tensor->dtype;
        }
    }
    return worker->mappings_count == MAPPINGS_MAX && in_copy == (worker->quorum == 0) &&
           (!worker->in_slot || in_slot == fits);
}

static int join(struct worker *worker)
{
    struct ampclient_join_options options = AMPCLIENT_JOIN_OPTIONS_INIT;
    options.shared_arg = worker;
    options.shared_cb = worker->hears ? hear : NULL;
    options.rank = (int32_t)worker->rank; /* and its name */
    options.world_size = (int32_t)worker->world;
    options.accumulate = worker->accumulate;
    int rc = ampclient_join(worker->client, worker->name, &options, &worker->model);
    for (uint32_t p = 0; rc == 0 && p < worker->count; p++)
        rc = (worker->gradients[p] = malloc(worker->sizes[p] * sizeof(float))) != NULL ? 0 : AMP_ENOMEM;
    if (rc != 0 || !worker->own_values)
        return rc;
    size_t size = ampclient_memory_size(worker->model);
    void *memory = guarded(size);
    return memory != NULL ? ampclient_use_memory(worker->model, memory, size) : AMP_ENOMEM;
}

/* ---- steps ---- */

static uint64_t mix(uint64_t sum, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    uint64_t word;
    for (size_t at = 0; at + sizeof word <= size; at += sizeof word) {
        memcpy(&word, bytes + at, sizeof word);
        sum = (sum ^ word) * UINT64_C(0x100000001b3);
        sum ^= sum >> 29;
    }
    for (size_t at = size - size % sizeof word; at < size; at++)
        sum = (sum ^ bytes[at]) * UINT64_C(0x100000001b3);
    return sum;
}

static int add_up(const struct worker *worker, uint64_t *sum)
{
    int rc = 0;
    *sum = 0;
    for (uint32_t p = 0; rc == 0 && p < worker->count; p++) {
        struct ampclient_tensor tensor;
        rc = ampclient_parameter(worker->model, p, &tensor);
        if (rc == 0)
            *sum += mix(p + 1, tensor.data, (size_t)tensor.elements * amp_dtype_size(tensor.dtype));
    }
    return rc;
}

/* Bits of a value of magnitude 1/8 to 1/4, with the sign of the parameter's: small beside the scale's room. */
static uint32_t bits_of(enum amp_dtype dtype, bool negative, uint32_t noise)
{
    switch (dtype) {
    case AMP_F16:
        return (negative ? 0x8000u : 0) | 0x3000 | (noise & 0x3ff);
    case AMP_BF16:
        return (negative ? 0x8000u : 0) | 0x3e00 | (noise & 0x7f);
    default:
        return (negative ? 0x80000000u : 0) | 0x3e000000 | ((noise * 2654435761u) & 0x7fffff);
    }
}

static void compute(const struct worker *worker, uint64_t step, uint32_t p, const struct ampclient_tensor *tensor,
                    enum amp_dtype dtype, void *to)
{
    size_t from_size = amp_dtype_size(tensor->dtype), to_size = amp_dtype_size(dtype);
    for (uint64_t i = 0; i < tensor->elements; i++) {
        uint32_t seen = 0;
        memcpy(&seen, (const uint8_t *)tensor->data + i * from_size, from_size);
        bool negative = (seen >> (from_size * 8 - 1)) != 0;
        uint32_t noise = seen + (seen >> 12) + (uint32_t)(i * 7 + step * 31) + p + worker->rank * 57;
        uint32_t bits = bits_of(dtype, negative, noise);
        memcpy((uint8_t *)to + i * to_size, &bits, to_size);
    }
    static const uint32_t infinities[] = {[AMP_F16] = 0x7c00, [AMP_BF16] = 0x7f80, [AMP_F32] = 0x7f800000};
    if (worker->overflow != 0 && step % worker->overflow == 0 && worker->rank == 0 && p == worker->count / 2)
        memcpy(to, &infinities[dtype], to_size);
}

static void pause_at(struct worker *worker, uint64_t step, const char *point)
{
    char line[8], here[32];
    int size = snprintf(here, sizeof here, "%llu:%s", (unsigned long long)step, point);
    if (strncmp(worker->pauses, here, (size_t)size) != 0 || (worker->pauses[size] != 0 && worker->pauses[size] != ','))
        return;
    worker->pauses += size + (worker->pauses[size] == ',');
    (void)printf("paused\n");
    (void)fflush(stdout);
    (void)fgets(line, sizeof line, stdin);
}

static int push_all(struct worker *worker, uint64_t step)
{
    enum amp_dtype dtype = worker->wide != 0 && step >= worker->wide ? AMP_F32 : worker->dtypes[step % 2];
    int rc = 0;
    for (uint32_t turn = 0; rc == 0 && turn < worker->count; turn++) {
        uint32_t p = worker->count - 1 - turn; /* as backward has them */
        void *place = worker->gradients[p];
        struct ampclient_tensor tensor;
        if (turn == worker->count / 2)
            pause_at(worker, step, "half");
        if (worker->absent && step % worker->count == p)
            continue;
        rc = ampclient_parameter(worker->model, p, &tensor);
        if (rc == 0 && worker->in_slot)
            rc = ampclient_gradient(worker->model, p, dtype, &place);
        if (rc == 0 && !lies_where_told(worker, &tensor, place, dtype))
            rc = AMP_EINTERNAL;
        if (rc != 0)
            break;
        compute(worker, step, p, &tensor, dtype, place);
        for (uint32_t i = 0; rc == 0 && i < (worker->accumulate > 0 ? worker->accumulate : 1); i++)
            rc = ampclient_push(worker->model, p, place, dtype);
    }
    return rc;
}

static int one_step(struct worker *worker, const struct ampclient_step *step)
{
    struct ampclient_result result = AMPCLIENT_RESULT_INIT;
    uint64_t before = 0, after = 0;
    bool shared = ampclient_shares_memory(worker->model);
    pause_at(worker, step->step, "begin");
    int rc = add_up(worker, &before);
    if (rc == 0)
        rc = push_all(worker, step->step);
    pause_at(worker, step->step, "pushed");
    if (rc == 0)
        rc = ampclient_step_end(worker->model, &result);
    if (rc == 0)
        rc = add_up(worker, &after); /* the views hold until the next step_begin */
    if (rc != 0)
        return failed(worker, "step", rc);
    (void)printf("step %" PRIu64 " verdict %d saw %016" PRIx64 " still %d shared %d epoch %" PRIu64 "\n", step->step,
                 (int)result.verdict, before, before == after, shared, step->epoch);
    (void)fflush(stdout);
    pause_at(worker, step->step, "ended");
    if (worker->pace != 0)
        (void)usleep((useconds_t)worker->pace * 1000);
    return 0;
}

static int train(struct worker *worker)
{
    struct ampclient_step step = AMPCLIENT_STEP_INIT;
    int rc = 0;
    for (;;) {
        if (worker->evaluate && (rc = ampclient_pull(worker->model, NULL)) != 0)
            return failed(worker, "pull", rc);
        rc = ampclient_step_begin(worker->model, &step);
        if (rc == 0 && step.step == worker->again) {
            worker->again = 0;
            rc = push_all(worker, step.step);
            if (rc == 0)
                rc = ampclient_step_begin(worker->model, &step);
        }
        if (rc != 0)
            return rc == 1 ? 0 : failed(worker, "step_begin", rc);
        if (one_step(worker, &step) != 0)
            return -1;
    }
}

/* The parameters after the last step. */
static int show(struct worker *worker)
{
    uint64_t sum = 0;
    int rc = ampclient_pull(worker->model, NULL);
    if (rc == 0)
        rc = add_up(worker, &sum);
    if (rc != 0)
        return failed(worker, "pull", rc);
    (void)printf("sum %016" PRIx64 "\n", sum);
    (void)fflush(stdout);
    rc = ampclient_leave(worker->model);
    if (worker->mappings_count != 0)
        rc = AMP_EINTERNAL; /* it was not told that these go */
    return rc == 0 ? 0 : failed(worker, "leave", rc);
}

static void say(void *arg, enum ampclient_log_level level, const char *text)
{
    (void)arg;
    (void)level;
    (void)fprintf(stderr, "log: %s\n", text);
}

static int run(struct worker *worker)
{
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    struct amp_error error = {0};
    options.no_shared_memory = worker->no_share;
    options.log_level = AMPCLIENT_LOG_INFO;
    options.log_cb = say;
    if (worker->files != 0 && setrlimit(RLIMIT_NOFILE, &(struct rlimit){worker->files, worker->files}) != 0)
        return -1;
    if (ampclient_connect(worker->address, &options, &worker->client, &error) != 0) {
        (void)fprintf(stderr, "connect: %s\n", error.text);
        return -1;
    }
    int rc = make_model(worker);
    if (rc == 0)
        rc = join(worker);
    rc = rc != 0 ? failed(worker, "start", rc) : train(worker);
    if (rc == 0)
        rc = show(worker);
    ampclient_close(worker->client);
    for (uint32_t p = 0; p < worker->count; p++)
        free(worker->gradients[p]);
    return rc;
}

/* ---- arguments ---- */

static enum amp_dtype dtype_of(const char *text)
{
    return strncmp(text, "bf16", 4) == 0 ? AMP_BF16 : strncmp(text, "f32", 3) == 0 ? AMP_F32 : AMP_F16;
}

static void take_sizes(struct worker *worker, const char *text)
{
    char *end = NULL;
    for (worker->count = 0; worker->count < PARAMETERS_MAX; text = end + 1) {
        worker->sizes[worker->count++] = strtoull(text, &end, 10);
        if (*end != ',')
            break;
    }
}

static bool take_number(struct worker *worker, const char *key, uint64_t number)
{
    const struct {
        const char *key;
        uint64_t *wide;
        uint32_t *narrow;
        bool *flag;
    } rows[] = {{"rank", NULL, &worker->rank, NULL},     {"world", NULL, &worker->world, NULL},
                {"quorum", NULL, &worker->quorum, NULL}, {"steps", &worker->steps, NULL, NULL},
                {"wide", &worker->wide, NULL, NULL},     {"overflow", &worker->overflow, NULL, NULL},
                {"pace", &worker->pace, NULL, NULL},     {"evaluate", NULL, NULL, &worker->evaluate},
                {"absent", NULL, NULL, &worker->absent}, {"journal", NULL, NULL, &worker->journal},
                {"files", &worker->files, NULL, NULL},   {"accumulate", NULL, &worker->accumulate, NULL},
                {"again", &worker->again, NULL, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].key, key) != 0)
            continue;
        if (rows[i].wide != NULL)
            *rows[i].wide = number;
        else if (rows[i].narrow != NULL)
            *rows[i].narrow = (uint32_t)number;
        else
            *rows[i].flag = number != 0;
        return true;
    }
    return false;
}

static bool take(struct worker *worker, char *word)
{
    char *value = strchr(word, '=');
    if (value == NULL)
        return false;
    *value++ = '\0';
    if (strcmp(word, "sizes") == 0) {
        take_sizes(worker, value);
    } else if (strcmp(word, "cast") == 0) {
        worker->cast = dtype_of(value);
    } else if (strcmp(word, "dtype") == 0) {
        const char *second = strchr(value, ',');
        worker->dtypes[1] = dtype_of(value); /* of step 1, 3, ... */
        worker->dtypes[0] = second != NULL ? dtype_of(second + 1) : worker->dtypes[1];
    } else if (strcmp(word, "place") == 0) {
        worker->in_slot = strcmp(value, "slot") == 0;
    } else if (strcmp(word, "values") == 0) {
        worker->hears = strcmp(value, "shared") == 0;
        worker->own_values = worker->hears || strcmp(value, "own") == 0;
    } else if (strcmp(word, "share") == 0) {
        worker->no_share = *value == '0';
    } else if (strcmp(word, "pause") == 0) {
        worker->pauses = value;
    } else {
        return take_number(worker, word, strtoull(value, NULL, 10));
    }
    return true;
}

int main(int argc, char **argv)
{
    struct worker worker = {.world = 1,
                            .steps = 6,
                            .count = 1,
                            .sizes = {1000},
                            .cast = AMP_F16,
                            .dtypes = {AMP_F16, AMP_F16},
                            .pauses = ""};
    if (argc < 3)
        return 2;
    worker.address = argv[1];
    worker.name = argv[2];
    for (int i = 3; i < argc; i++)
        if (!take(&worker, argv[i])) {
            (void)fprintf(stderr, "%s: not known\n", argv[i]);
            return 2;
        }
    return run(&worker) == 0 ? 0 : 1;
}
