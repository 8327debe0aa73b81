/*
 * Trains a small network on the UCI digits: as a worker of an ampd server (RANK and WORLD_SIZE from the environment),
 * or with --local in one process and in fp32, to compare with.
 */
#include "examples/digits/digits.h"

#include "amp/cpu.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_HIDDEN = 256, KEY_BATCH, KEY_DATA, KEY_LOCAL, KEY_MODEL, KEY_CHECKPOINT, KEY_DURABILITY };

static const struct argp_option option_table[] = {
    {"connect", 'c', "HOST:PORT", 0, "the ampd server (127.0.0.1:7420)", 0},
    {"model", KEY_MODEL, "NAME", 0, "name of the model (digits)", 0},
    {"steps", 'n', "N", 0, "steps to train (300)", 0},
    {"dtype", 'd', "f16|bf16|f32", 0, "low precision of the forward and backward pass (f16)", 0},
    {"seed", 's', "S", 0, "seed of the first values and of the order of the data (1)", 0},
    {"hidden", KEY_HIDDEN, "H", 0, "width of the two hidden layers (512)", 0},
    {"batch", KEY_BATCH, "B", 0, "rows for each worker and step (64)", 0},
    {"checkpoint-every", KEY_CHECKPOINT, "N", 0, "steps between checkpoints (100)", 0},
    {"durability", KEY_DURABILITY, "checkpoint|step", 0,
     "what survives a crash of the server: each checkpoint, or each step (checkpoint)", 0},
    {"data", KEY_DATA, "FILE", 0, "digits.csv", 0},
    {"local", KEY_LOCAL, NULL, 0, "train without a server, in fp32", 0},
    {"quiet", 'q', NULL, 0, "print the result only", 0},
    {0},
};

static uint64_t parse_number(struct argp_state *state, const char *name, const char *text, uint64_t max)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != 0 || value > max)
        argp_error(state, "--%s: \"%s\" is not a number from 0 to %llu", name, text, (unsigned long long)max);
    return value;
}

static enum amp_dtype parse_dtype(struct argp_state *state, const char *text)
{
    static const enum amp_dtype dtypes[] = {AMP_F16, AMP_BF16, AMP_F32};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(text, amp_dtype_name(dtypes[i])) == 0)
            return dtypes[i];
    argp_error(state, "--dtype: \"%s\" is not one of f16, bf16, f32", text);
    return AMP_DTYPE_NONE;
}

static bool parse_durability(struct argp_state *state, const char *text)
{
    if (strcmp(text, "checkpoint") != 0 && strcmp(text, "step") != 0)
        argp_error(state, "--durability: \"%s\" is neither checkpoint nor step", text);
    return strcmp(text, "step") == 0;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct digits_options *options = state->input;
    switch (key) {
    case 'c':
        options->connect = arg;
        return 0;
    case KEY_MODEL:
        options->model = arg;
        return 0;
    case 'n':
        options->steps = parse_number(state, "steps", arg, 1000000);
        return 0;
    case 'd':
        options->dtype = parse_dtype(state, arg);
        return 0;
    case 's':
        options->seed = parse_number(state, "seed", arg, UINT64_MAX);
        return 0;
    case KEY_HIDDEN:
        options->hidden = parse_number(state, "hidden", arg, 65536);
        return 0;
    case KEY_BATCH:
        options->batch = parse_number(state, "batch", arg, 65536);
        return 0;
    case KEY_CHECKPOINT:
        options->checkpoint_every = parse_number(state, "checkpoint-every", arg, 1000000);
        return 0;
    case KEY_DURABILITY:
        options->steps_durable = parse_durability(state, arg);
        return 0;
    case KEY_DATA:
        options->data_path = arg;
        return 0;
    case KEY_LOCAL:
        options->local = true;
        return 0;
    case 'q':
        options->quiet = true;
        return 0;
    case ARGP_KEY_END:
        if (options->steps == 0 || options->hidden == 0 || options->batch == 0 || options->checkpoint_every == 0)
            argp_error(state, "--steps, --hidden, --batch and --checkpoint-every must be at least 1");
        if (options->local && options->dtype != AMP_DTYPE_NONE && options->dtype != AMP_F32)
            argp_error(state, "--local trains in fp32: leave --dtype out, or train with a server");
        if (options->dtype == AMP_DTYPE_NONE)
            options->dtype = options->local ? AMP_F32 : AMP_F16;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp parser = {.options = option_table,
                                       .parser = parse_option,
                                       .doc = "Trains on the UCI digits, with an ampd server or alone."};
    struct digits_options options = {.connect = "127.0.0.1:7420",
                                     .data_path = DIGITS_DATA_PATH,
                                     .model = "digits",
                                     .steps = 300,
                                     .seed = 1,
                                     .hidden = 512,
                                     .batch = 64,
                                     .checkpoint_every = 100,
                                     .world = 2};
    argp_err_exit_status = 2;
    if (argp_parse(&parser, argc, argv, 0, NULL, &options) != 0)
        return 2;
    const char *world = getenv("WORLD_SIZE");
    if (world != NULL && atoi(world) > 0)
        options.world = (uint32_t)atoi(world);
    const struct amp_kernels *kernels;
    struct amp_error error = {0};
    if (amp_cpu_select(getenv("AMPD_ISA"), &kernels, &error) != 0) {
        (void)fprintf(stderr, "digits: AMPD_ISA: %s\n", error.text);
        return 2;
    }
    struct digits_data data;
    if (digits_data_open(&data, options.data_path) != 0)
        return 1;
    int rc = options.local ? digits_run_local(&options, kernels, &data) : digits_run_worker(&options, kernels, &data);
    digits_data_close(&data);
    return rc;
}
