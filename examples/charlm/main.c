/*
 * Trains a small language model on a book, character by character, and lets it write: as a worker of an ampd server
 * (RANK and WORLD_SIZE from the environment), or alone with --local. It uses autocast with its cache of casts, the loss
 * scalers, the gradient utilities, and ampd's scale, verdict and user state.
 *
 *     model.h, pass.c    the transformer: its parameters, forward, backward
 *     layers.h           the layers, each a plain function and its backward
 *     product.h          matrix products by OpenBLAS and oneDNN
 *     local.c, worker.c  the two ways to train it
 *
 * Begin with pass.c. tests/unit/test_charlm_layers.c has a reference for each layer, and checks each backward by finite
 * differences.
 */
#include "examples/charlm/charlm.h"

#include "amp/cpu.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_MODEL = 256,
    KEY_TEXT,
    KEY_LOCAL,
    KEY_LAYERS,
    KEY_HEADS,
    KEY_WIDTH,
    KEY_CONTEXT,
    KEY_BATCH,
    KEY_SCALER,
    KEY_SCALE,
    KEY_WRITE,
    KEY_INITIAL,
    KEY_LOG,
    KEY_CHECKPOINT,
    KEY_UNITS,
};

static const struct argp_option option_table[] = {
    {"connect", 'c', "HOST:PORT", 0, "the ampd server (127.0.0.1:7420)", 0},
    {"model", KEY_MODEL, "NAME", 0, "name of the model (charlm)", 0},
    {"steps", 'n', "N", 0, "steps to train (1000)", 0},
    {"precision", 'p', "f32|bf16|f16", 0, "low precision of forward and backward (f32)", 0},
    {"seed", 's', "S", 0, "seed of the first values and of the order of the text (1)", 0},
    {"layers", KEY_LAYERS, "N", 0, "blocks of the model (4)", 0},
    {"heads", KEY_HEADS, "N", 0, "heads of attention (4); they divide the width", 0},
    {"width", KEY_WIDTH, "N", 0, "numbers for each character (128)", 0},
    {"context", KEY_CONTEXT, "N", 0, "characters that the model looks back (128)", 0},
    {"batch", KEY_BATCH, "N", 0, "sequences per worker and step (8)", 0},
    {"scaler", KEY_SCALER, "dynamic|static|none", 0, "of the loss (dynamic in f16, else none)", 0},
    {"scale", KEY_SCALE, "S", 0, "the first loss scale, or the constant one", 0},
    {"text", KEY_TEXT, "FILE", 0, "an ASCII text (Newton's Opticks)", 0},
    {"write", KEY_WRITE, "N", 0, "characters to write after training (0)", 0},
    {"checkpoint-every", KEY_CHECKPOINT, "N", 0, "steps between the server's checkpoints (100)", 0},
    {"units", KEY_UNITS, NULL, 0, "hold only the parameters in use: gather and release them unit by unit", 0},
    {"local", KEY_LOCAL, NULL, 0, "train without a server", 0},
    {"initial", KEY_INITIAL, "FILE", 0, "with --local: put the first values into this file: a line of name, rows and "
     "columns for each parameter, an empty line, then all of them in f32", 0},
    {"log", KEY_LOG, "FILE", 0, "a line for each step: step, loss, scale, norm, skipped", 0},
    {"quiet", 'q', NULL, 0, "print the result only", 0},
    {0},
};

static uint64_t parse_range(struct argp_state *state, const char *name, const char *text, unsigned min, uint64_t max)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != 0 || value < min || value > max)
        argp_error(state, "--%s: \"%s\" is not a number from %u to %llu", name, text, min, (unsigned long long)max);
    return value;
}

static uint64_t parse_number(struct argp_state *state, const char *name, const char *text, uint64_t max)
{
    return parse_range(state, name, text, 0, max);
}

static size_t parse_size(struct argp_state *state, const char *name, const char *text, uint64_t max)
{
    return parse_range(state, name, text, 1, max);
}

/* The index of a text among `count` choices. */
static size_t parse_choice(struct argp_state *state, const char *name, const char *text, const char *const *choices,
                           size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(text, choices[i]) == 0)
            return i;
    argp_error(state, "--%s: \"%s\" is not one of %s, %s, %s", name, text, choices[0], choices[1], choices[2]);
    return 0;
}

static enum amp_autocast_mode parse_precision(struct argp_state *state, const char *text)
{
    static const char *const names[] = {"f32", "bf16", "f16"};
    static const enum amp_autocast_mode modes[] = {AMP_AUTOCAST_NONE, AMP_AUTOCAST_BF16, AMP_AUTOCAST_FP16};
    return modes[parse_choice(state, "precision", text, names, 3)];
}

static enum charlm_scaler parse_scaler(struct argp_state *state, const char *text)
{
    static const char *const names[] = {"dynamic", "static", "none"};
    static const enum charlm_scaler scalers[] = {CHARLM_SCALER_DYNAMIC, CHARLM_SCALER_STATIC, CHARLM_SCALER_NONE};
    return scalers[parse_choice(state, "scaler", text, names, 3)];
}

static float parse_scale(struct argp_state *state, const char *text)
{
    char *end;
    float value = strtof(text, &end);
    if (end == text || *end != 0 || !(value > 0.0f))
        argp_error(state, "--scale: \"%s\" is not a number above 0", text);
    return value;
}

static error_t parse_shape(int key, const char *arg, struct argp_state *state, struct charlm_shape *shape)
{
    switch (key) {
    case KEY_LAYERS:
        shape->layers = parse_size(state, "layers", arg, CHARLM_LAYERS_MAX);
        return 0;
    case KEY_HEADS:
        shape->heads = parse_size(state, "heads", arg, 256);
        return 0;
    case KEY_WIDTH:
        shape->width = parse_size(state, "width", arg, 4096);
        return 0;
    case KEY_CONTEXT:
        shape->context = parse_size(state, "context", arg, 4096);
        return 0;
    case KEY_BATCH:
        shape->sequences = parse_size(state, "batch", arg, 4096);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t check_options(struct argp_state *state, const struct charlm_options *options)
{
    if (options->shape.width % options->shape.heads != 0)
        argp_error(state, "--width is %zu, must be a multiple of --heads, %zu", options->shape.width,
                   options->shape.heads);
    if (options->scale > 0.0f && charlm_scaler_of(options) == CHARLM_SCALER_NONE)
        argp_error(state, "--scale does nothing without a scaler; leave it out, or give --scaler dynamic or static");
    if (options->initial_path != NULL && !options->local)
        argp_error(state, "--initial needs --local");
    if (options->units && options->local)
        argp_error(state, "--units needs a server: leave --local out");
    return 0;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct charlm_options *options = state->input;
    switch (key) {
    case 'c':
        options->connect = arg;
        return 0;
    case KEY_MODEL:
        options->model = arg;
        return 0;
    case 'n':
        options->steps = parse_size(state, "steps", arg, 10000000);
        return 0;
    case 'p':
        options->mode = parse_precision(state, arg);
        return 0;
    case 's':
        options->seed = parse_number(state, "seed", arg, UINT64_MAX);
        return 0;
    case KEY_SCALER:
        options->scaler = parse_scaler(state, arg);
        return 0;
    case KEY_SCALE:
        options->scale = parse_scale(state, arg);
        return 0;
    case KEY_TEXT:
        options->text_path = arg;
        return 0;
    case KEY_WRITE:
        options->write = parse_number(state, "write", arg, 1000000);
        return 0;
    case KEY_CHECKPOINT:
        options->checkpoint_every = parse_size(state, "checkpoint-every", arg, 1000000);
        return 0;
    case KEY_LOCAL:
        options->local = true;
        return 0;
    case KEY_UNITS:
        options->units = true;
        return 0;
    case KEY_INITIAL:
        options->initial_path = arg;
        return 0;
    case KEY_LOG:
        options->log_path = arg;
        return 0;
    case 'q':
        options->quiet = true;
        return 0;
    case ARGP_KEY_END:
        return check_options(state, options);
    default:
        return parse_shape(key, arg, state, &options->shape);
    }
}

int main(int argc, char **argv)
{
    static const struct argp parser = {.options = option_table,
                                       .parser = parse_option,
                                       .doc = "Trains a language model on a text, with an ampd server or alone.\v"
                                              "With a server it is worker RANK of WORLD_SIZE (2), of the environment; "
                                              "examples/charlm/run.sh starts server and workers. With --local these "
                                              "two, --connect, --model and --checkpoint-every are not used."};
    struct charlm_options options = {.connect = "127.0.0.1:7420",
                                     .text_path = CHARLM_TEXT_PATH,
                                     .model = "charlm",
                                     .shape = CHARLM_SHAPE_DEFAULT,
                                     .mode = AMP_AUTOCAST_NONE,
                                     .steps = 1000,
                                     .seed = 1,
                                     .checkpoint_every = 100,
                                     .world = 1};
    argp_err_exit_status = 2;
    if (argp_parse(&parser, argc, argv, 0, NULL, &options) != 0)
        return 2;
    const char *world = getenv("WORLD_SIZE");
    if (!options.local)
        options.world = world != NULL && atoi(world) > 0 ? (uint32_t)atoi(world) : 2;
    const struct amp_kernels *kernels;
    struct amp_error error = {0};
    if (amp_cpu_select(getenv("AMPD_ISA"), &kernels, &error) != 0) {
        (void)fprintf(stderr, "charlm: AMPD_ISA: %s\n", error.text);
        return 2;
    }
    struct charlm_text text;
    int rc = 1;
    if (charlm_text_open(&text, options.text_path, options.shape.context) == 0)
        rc = options.local ? charlm_run_local(&options, kernels, &text) : charlm_run_worker(&options, kernels, &text);
    charlm_text_close(&text);
    return rc;
}
