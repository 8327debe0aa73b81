#include "examples/charlm/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Arrays begin at multiples of so many bytes: a cache line, and the widest vector. */
#define ALIGNMENT 64
/* GPT-2's standard deviation of first values. */
#define DEVIATION 0.02

size_t charlm_elements(const struct charlm_parameter *parameter)
{
    return parameter->rows * (parameter->columns > 0 ? parameter->columns : 1);
}

size_t charlm_units(const struct charlm_model *model)
{
    return model->shape.layers + 2;
}

void charlm_unit_parameters(const struct charlm_model *model, size_t unit, size_t *first, size_t *count)
{
    bool embedding = unit == 0, head = unit == model->shape.layers + 1;
    *first = embedding ? 0 : CHARLM_EMBEDDING_PARAMETERS + (unit - 1) * CHARLM_BLOCK_PARAMETERS;
    *count = embedding ? CHARLM_EMBEDDING_PARAMETERS : head ? CHARLM_HEAD_PARAMETERS : CHARLM_BLOCK_PARAMETERS;
}

/* ---- names and sizes ---- */

/* Sizes are multiples of the width; 0 columns: a vector. */
struct row {
    const char *name;
    size_t rows, columns;
    bool multiplied;
};
static const struct row block_rows[CHARLM_BLOCK_PARAMETERS] = {
    [CHARLM_LN1_WEIGHT] = {"ln1.weight", 1, 0, false},
    [CHARLM_LN1_BIAS] = {"ln1.bias", 1, 0, false},
    [CHARLM_QKV_WEIGHT] = {"attention.qkv.weight", 3, 1, true},
    [CHARLM_QKV_BIAS] = {"attention.qkv.bias", 3, 0, false},
    [CHARLM_PROJECTION_WEIGHT] = {"attention.projection.weight", 1, 1, true},
    [CHARLM_PROJECTION_BIAS] = {"attention.projection.bias", 1, 0, false},
    [CHARLM_LN2_WEIGHT] = {"ln2.weight", 1, 0, false},
    [CHARLM_LN2_BIAS] = {"ln2.bias", 1, 0, false},
    [CHARLM_UP_WEIGHT] = {"mlp.up.weight", 4, 1, true},
    [CHARLM_UP_BIAS] = {"mlp.up.bias", 4, 0, false},
    [CHARLM_DOWN_WEIGHT] = {"mlp.down.weight", 1, 4, true},
    [CHARLM_DOWN_BIAS] = {"mlp.down.bias", 1, 0, false},
};

static void name_parameters(struct charlm_model *model)
{
    const struct charlm_shape *shape = &model->shape;
    struct charlm_parameter *next = model->parameters;
    *next++ = (struct charlm_parameter){.name = "embedding.tokens", .rows = CHARLM_TOKENS, .columns = shape->width};
    *next++ = (struct charlm_parameter){.name = "embedding.positions", .rows = shape->context, .columns = shape->width};
    for (size_t layer = 0; layer < shape->layers; layer++)
        for (size_t i = 0; i < CHARLM_BLOCK_PARAMETERS; i++) {
            const struct row *row = &block_rows[i];
            *next = (struct charlm_parameter){.rows = row->rows * shape->width,
                                              .columns = row->columns * shape->width,
                                              .multiplied = row->multiplied};
            (void)snprintf(next->name, sizeof next->name, "blocks.%zu.%s", layer, row->name);
            next++;
        }
    *next++ = (struct charlm_parameter){.name = "head.ln.weight", .rows = shape->width};
    *next++ = (struct charlm_parameter){.name = "head.ln.bias", .rows = shape->width};
    *next++ = (struct charlm_parameter){
        .name = "head.weight", .rows = CHARLM_TOKENS, .columns = shape->width, .multiplied = true};
}

void charlm_init(const struct charlm_model *model, size_t index, uint64_t seed, float *values)
{
    const struct charlm_parameter *parameter = &model->parameters[index];
    size_t elements = charlm_elements(parameter);
    if (parameter->columns == 0) {
        bool is_weight = strstr(parameter->name, ".weight") != NULL; /* of a layer norm */
        for (size_t i = 0; i < elements; i++)
            values[i] = is_weight ? 1.0f : 0.0f;
        return;
    }
    /* What is added to the residual stream is smaller, so that the stream does not grow with the layers (GPT-2). */
    bool adds = strstr(parameter->name, "projection") != NULL || strstr(parameter->name, "down") != NULL;
    double bound = DEVIATION * sqrt(3.0) / (adds ? sqrt(2.0 * (double)model->shape.layers) : 1.0);
    uint64_t state = seed * 1000003u + index;
    for (size_t i = 0; i < elements; i++) {
        /* An LCG (Knuth's MMIX constants); its upper 53 bits are the uniform number. */
        state = state * 6364136223846793005u + 1442695040888963407u;
        double unit = (double)(state >> 11) * 0x1.0p-53;
        values[i] = (float)((2.0 * unit - 1.0) * bound);
    }
}

/* ---- memory ---- */

/* One allocation for all: the layout is made twice, first to count bytes (base NULL), then to hand them out. */
struct arena {
    char *base;
    size_t used;
};

static void *take(struct arena *arena, size_t count, size_t size)
{
    void *place = arena->base != NULL ? arena->base + arena->used : NULL;
    arena->used += (count * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return place;
}

static float *floats(struct arena *arena, size_t count)
{
    return take(arena, count, sizeof(float));
}

static struct charlm_linear linear_of(struct arena *arena, size_t rows, struct charlm_parameter *weight,
                                      struct charlm_parameter *bias)
{
    return (struct charlm_linear){.weight = weight,
                                  .bias = bias,
                                  .in = weight->columns,
                                  .out = weight->rows,
                                  .low = take(arena, rows * weight->columns, sizeof(uint16_t))};
}

static void lay_out_norm(struct arena *arena, struct charlm_kept *kept, size_t index, size_t rows, size_t width)
{
    kept->mean[index] = floats(arena, rows);
    kept->rstd[index] = floats(arena, rows);
    kept->normal[index] = floats(arena, rows * width);
}

static void lay_out_block(struct arena *arena, struct charlm_model *model, size_t layer)
{
    const struct charlm_shape *shape = &model->shape;
    size_t rows = shape->sequences * shape->context, width = shape->width;
    struct charlm_kept *kept = &model->kept[layer];
    struct charlm_parameter *own = model->parameters + CHARLM_EMBEDDING_PARAMETERS + layer * CHARLM_BLOCK_PARAMETERS;
    lay_out_norm(arena, kept, 0, rows, width);
    lay_out_norm(arena, kept, 1, rows, width);
    kept->qkv = floats(arena, rows * 3 * width);
    kept->shares = floats(arena, shape->sequences * shape->heads * shape->context * shape->context);
    kept->mixed = floats(arena, rows * width);
    kept->middle = floats(arena, rows * width);
    kept->up = floats(arena, rows * 4 * width);
    kept->bent = floats(arena, rows * 4 * width);
    kept->linear[CHARLM_QKV] = linear_of(arena, rows, &own[CHARLM_QKV_WEIGHT], &own[CHARLM_QKV_BIAS]);
    kept->linear[CHARLM_PROJECTION] =
        linear_of(arena, rows, &own[CHARLM_PROJECTION_WEIGHT], &own[CHARLM_PROJECTION_BIAS]);
    kept->linear[CHARLM_UP] = linear_of(arena, rows, &own[CHARLM_UP_WEIGHT], &own[CHARLM_UP_BIAS]);
    kept->linear[CHARLM_DOWN] = linear_of(arena, rows, &own[CHARLM_DOWN_WEIGHT], &own[CHARLM_DOWN_BIAS]);
}

static void lay_out(struct arena *arena, struct charlm_model *model)
{
    const struct charlm_shape *shape = &model->shape;
    size_t rows = shape->sequences * shape->context, width = shape->width;
    size_t tables = (CHARLM_TOKENS + shape->context) * width;
    for (size_t i = 0; i < model->parameters_count; i++) {
        struct charlm_parameter *parameter = &model->parameters[i];
        size_t elements = charlm_elements(parameter);
        parameter->gradient =
            (struct amp_tensor){parameter->name, take(arena, elements, amp_dtype_size(model->gradient_dtype)), elements,
                                model->gradient_dtype};
        parameter->wide_buffer = parameter->multiplied ? NULL : floats(arena, elements);
    }
    for (size_t layer = 0; layer < shape->layers; layer++)
        lay_out_block(arena, model, layer);
    struct charlm_kept *head = &model->kept[shape->layers];
    lay_out_norm(arena, head, 0, rows, width);
    head->linear[0] = linear_of(arena, rows, &model->parameters[model->parameters_count - 1], NULL);
    for (size_t i = 0; i <= shape->layers; i++)
        model->stream[i] = floats(arena, rows * width);
    model->logits = floats(arena, rows * CHARLM_TOKENS);
    model->d_stream = floats(arena, rows * width);
    model->d_narrow = floats(arena, rows * width);
    model->d_wide = floats(arena, rows * 4 * width);
    model->d_shares = floats(arena, shape->context * shape->context);
    model->d_small = floats(arena, tables > 8 * width ? tables : 8 * width);
    model->low = take(arena, rows * (4 * width > CHARLM_TOKENS ? 4 * width : CHARLM_TOKENS), sizeof(uint16_t));
}

/* Twice the low copies of all parameters: enough for those of the weights and the cache's overhead (amp/cast.h). */
static size_t cache_bytes(const struct charlm_model *model)
{
    size_t elements = 0;
    for (size_t i = 0; i < model->parameters_count; i++)
        elements += charlm_elements(&model->parameters[i]);
    return elements * 2 * sizeof(uint16_t);
}

static int add_rules(struct charlm_model *model)
{
    /* What is added to the residual stream takes its dtype, and attention stays in fp32 between its two products. */
    int code = amp_registry_promote(&model->registry, "residual", &model->error);
    return code != 0 ? code : amp_registry_deny(&model->registry, "scaled_dot_product_attention", &model->error);
}

int charlm_model_open(struct charlm_model *model, const struct amp_kernels *kernels, const struct charlm_shape *shape,
                      enum amp_autocast_mode mode)
{
    *model = (struct charlm_model){.shape = *shape, .kernels = kernels, .mode = mode};
    model->gradient_dtype = mode == AMP_AUTOCAST_NONE ? AMP_F32 : amp_autocast_low_dtype(mode);
    amp_registry_init(&model->registry);
    int code = charlm_products_open(&model->products, kernels, &model->error);
    if (code != 0 || (code = add_rules(model)) != 0)
        return code;
    model->parameters_count =
        CHARLM_EMBEDDING_PARAMETERS + shape->layers * CHARLM_BLOCK_PARAMETERS + CHARLM_HEAD_PARAMETERS;
    model->parameters = calloc(model->parameters_count, sizeof *model->parameters);
    if (model->parameters == NULL)
        return amp_error_set(&model->error, AMP_ENOMEM, NULL, "out of memory");
    name_parameters(model);
    struct arena arena = {0};
    lay_out(&arena, model);
    model->memory = aligned_alloc(ALIGNMENT, arena.used);
    model->cache = amp_cast_cache_new(cache_bytes(model));
    if (model->memory == NULL || model->cache == NULL)
        return amp_error_set(&model->error, AMP_ENOMEM, NULL, "out of memory: %zu bytes are needed", arena.used);
    arena = (struct arena){.base = model->memory};
    lay_out(&arena, model);
    return 0;
}

void charlm_model_close(struct charlm_model *model)
{
    charlm_products_close(&model->products);
    amp_cast_cache_free(model->cache);
    amp_registry_close(&model->registry);
    free(model->memory);
    free(model->parameters);
    *model = (struct charlm_model){0};
}
