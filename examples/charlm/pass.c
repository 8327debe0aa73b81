#include "examples/charlm/layers.h"
#include "examples/charlm/model.h"

#include <string.h>

/*
 * Forward and backward. Forward keeps what backward needs (struct charlm_kept); gradients of the residual stream are in
 * d_stream all the way, and each branch adds its own.
 */

/* Notes an error; the first one counts. */
static void check(struct charlm_model *model, int code)
{
    if (code != 0 && model->failed == 0)
        model->failed = code;
}

/* ---- parameters and linear ---- */

/* A parameter that is not an operand of a product meets fp32 values element by element: it is widened if need be. */
static void widen(struct charlm_model *model, size_t unit)
{
    size_t first, count;
    charlm_unit_parameters(model, unit, &first, &count);
    for (size_t i = first; i < first + count && model->failed == 0; i++) {
        struct charlm_parameter *parameter = &model->parameters[i];
        if (!parameter->multiplied)
            check(model,
                  amp_autocast_cast_to(model->kernels, AMP_F32, &parameter->now, parameter->wide_buffer,
                                       charlm_elements(parameter) * sizeof(float), &parameter->wide, &model->error));
    }
}

/* out = in * weight^T + bias + add; add may be NULL. */
static void linear_forward(struct charlm_model *model, struct charlm_linear *linear, const float *in, const float *add,
                           float *out)
{
    size_t rows = model->rows, count = rows * linear->in;
    const struct amp_tensor_view input = {.data = in, .count = count, .dtype = AMP_F32};
    check(model, amp_autocast_cast(model->kernels, "linear", &input, NULL, linear->low, count * sizeof(uint16_t),
                                   &linear->input, &model->error));
    check(model, amp_autocast_cast(model->kernels, "linear", &linear->weight->now, model->cache, NULL, 0,
                                   &linear->weight_used, &model->error));
    if (model->failed != 0)
        return;
    charlm_start_rows(out, linear->bias != NULL ? linear->bias->wide.data : NULL, add, rows, linear->out);
    check(model, charlm_product(&model->products, CHARLM_NT, rows, linear->out, linear->in, &linear->input,
                                &linear->weight_used, out, AMP_F32, true, &model->error));
}

/* Stores a gradient that was computed in fp32, in the model's gradient_dtype. */
static void store_gradient(struct charlm_model *model, struct charlm_parameter *parameter, const float *values)
{
    amp_cast(model->kernels, parameter->gradient.data, model->gradient_dtype, values, AMP_F32,
             parameter->gradient.count);
}

/*
 * The weight as forward multiplied it: its low copy is still in the cache, which has room for every weight (cast.h).
 * One that was used in place may be elsewhere now: a unit that was released is gathered again for its backward.
 */
static const struct amp_tensor_view *weight_operand(const struct charlm_linear *linear)
{
    return linear->weight_used.dtype == linear->weight->now.dtype ? &linear->weight->now : &linear->weight_used;
}

/* The gradients of weight and bias, and of the input into d_in. The operands are those of forward. */
static void linear_backward(struct charlm_model *model, struct charlm_linear *linear, const float *d_out, float *d_in)
{
    size_t rows = model->rows, count = rows * linear->out;
    const struct amp_tensor_view gradient = {.data = d_out, .count = count, .dtype = AMP_F32};
    struct amp_tensor_view operand;
    check(model, amp_autocast_cast_to(model->kernels, amp_autocast_backward_dtype("linear", AMP_F32), &gradient,
                                      model->low, count * sizeof(uint16_t), &operand, &model->error));
    if (model->failed != 0)
        return;
    if (linear->bias != NULL) {
        charlm_bias_backward(model->d_small, d_out, rows, linear->out);
        store_gradient(model, linear->bias, model->d_small);
    }
    check(model, charlm_product(&model->products, CHARLM_TN, linear->out, linear->in, rows, &operand, &linear->input,
                                linear->weight->gradient.data, model->gradient_dtype, false, &model->error));
    check(model, charlm_product(&model->products, CHARLM_NN, rows, linear->in, linear->out, &operand,
                                weight_operand(linear), d_in, AMP_F32, false, &model->error));
}

static void norm_forward(const struct charlm_model *model, struct charlm_kept *kept, size_t index,
                         const struct charlm_parameter *weight, const float *in)
{
    charlm_layernorm_forward(kept->normal[index], kept->mean[index], kept->rstd[index], in, weight[0].wide.data,
                             weight[1].wide.data, model->rows, model->shape.width);
}

/* Adds to d_stream what d_narrow, the gradient of the norm's output, gives. */
static void norm_backward(struct charlm_model *model, const struct charlm_kept *kept, size_t index,
                          struct charlm_parameter *weight, const float *in)
{
    size_t width = model->shape.width;
    charlm_layernorm_backward(model->d_stream, model->d_small, model->d_small + width, model->d_narrow, in,
                              kept->mean[index], kept->rstd[index], weight[0].wide.data, model->rows, width);
    store_gradient(model, &weight[0], model->d_small);
    store_gradient(model, &weight[1], model->d_small + width);
}

/* ---- units ---- */

static struct charlm_heads heads_of(const struct charlm_model *model)
{
    const struct charlm_shape *shape = &model->shape;
    return (struct charlm_heads){.sequences = model->rows / shape->context,
                                 .context = shape->context,
                                 .heads = shape->heads,
                                 .size = shape->width / shape->heads};
}

static void embedding_forward(struct charlm_model *model)
{
    const struct charlm_parameter *table = model->parameters;
    const enum amp_dtype operands[] = {AMP_F32, table[0].now.dtype, table[1].now.dtype};
    enum amp_dtype stream;
    check(model, amp_autocast_promote("residual", operands, 3, &stream, &model->error));
    if (model->failed != 0)
        return;
    charlm_embedding_forward(model->stream[0], model->text, table[CHARLM_TOKEN_TABLE].wide.data,
                             table[CHARLM_POSITION_TABLE].wide.data, model->rows, model->shape.context,
                             model->shape.width);
}

static void embedding_backward(struct charlm_model *model)
{
    size_t width = model->shape.width;
    float *tokens = model->d_small, *positions = tokens + CHARLM_TOKENS * width;
    charlm_embedding_backward(tokens, positions, model->d_stream, model->text, model->rows, model->shape.context, width,
                              CHARLM_TOKENS);
    store_gradient(model, &model->parameters[CHARLM_TOKEN_TABLE], tokens);
    store_gradient(model, &model->parameters[CHARLM_POSITION_TABLE], positions);
}

static void block_forward(struct charlm_model *model, size_t layer, const struct charlm_parameter *own)
{
    struct charlm_kept *kept = &model->kept[layer];
    const struct charlm_heads heads = heads_of(model);
    size_t count = model->rows * model->shape.width;
    norm_forward(model, kept, 0, &own[CHARLM_LN1_WEIGHT], model->stream[layer]);
    linear_forward(model, &kept->linear[CHARLM_QKV], kept->normal[0], NULL, kept->qkv);
    const struct amp_tensor_view qkv = {.data = kept->qkv, .count = 3 * count, .dtype = AMP_F32};
    struct amp_tensor_view operand; /* qkv itself: add_rules keeps attention in fp32 */
    check(model, amp_autocast_cast(model->kernels, "scaled_dot_product_attention", &qkv, NULL, NULL, 0, &operand,
                                   &model->error));
    if (model->failed != 0)
        return;
    charlm_attention_forward(kept->mixed, kept->shares, operand.data, &heads);
    linear_forward(model, &kept->linear[CHARLM_PROJECTION], kept->mixed, model->stream[layer], kept->middle);
    norm_forward(model, kept, 1, &own[CHARLM_LN2_WEIGHT], kept->middle);
    linear_forward(model, &kept->linear[CHARLM_UP], kept->normal[1], NULL, kept->up);
    charlm_gelu_forward(kept->bent, kept->up, 4 * count);
    linear_forward(model, &kept->linear[CHARLM_DOWN], kept->bent, kept->middle, model->stream[layer + 1]);
}

static void block_backward(struct charlm_model *model, size_t layer, struct charlm_parameter *own)
{
    struct charlm_kept *kept = &model->kept[layer];
    const struct charlm_heads heads = heads_of(model);
    linear_backward(model, &kept->linear[CHARLM_DOWN], model->d_stream, model->d_wide);
    charlm_gelu_backward(model->d_wide, model->d_wide, kept->up, 4 * model->rows * model->shape.width);
    linear_backward(model, &kept->linear[CHARLM_UP], model->d_wide, model->d_narrow);
    norm_backward(model, kept, 1, &own[CHARLM_LN2_WEIGHT], kept->middle);
    linear_backward(model, &kept->linear[CHARLM_PROJECTION], model->d_stream, model->d_narrow);
    charlm_attention_backward(model->d_wide, model->d_shares, model->d_narrow, kept->qkv, kept->shares, &heads);
    linear_backward(model, &kept->linear[CHARLM_QKV], model->d_wide, model->d_narrow);
    norm_backward(model, kept, 0, &own[CHARLM_LN1_WEIGHT], model->stream[layer]);
}

static void head_forward(struct charlm_model *model, const struct charlm_parameter *own)
{
    struct charlm_kept *kept = &model->kept[model->shape.layers];
    norm_forward(model, kept, 0, &own[CHARLM_LN_WEIGHT], model->stream[model->shape.layers]);
    linear_forward(model, &kept->linear[0], kept->normal[0], NULL, model->logits);
}

static void head_backward(struct charlm_model *model, struct charlm_parameter *own)
{
    struct charlm_kept *kept = &model->kept[model->shape.layers];
    linear_backward(model, &kept->linear[0], model->logits, model->d_narrow);
    memset(model->d_stream, 0, model->rows * model->shape.width * sizeof *model->d_stream);
    norm_backward(model, kept, 0, &own[CHARLM_LN_WEIGHT], model->stream[model->shape.layers]);
}

/* ---- a pass ---- */

void charlm_begin(struct charlm_model *model, const uint8_t *text, size_t sequences)
{
    model->text = text;
    model->rows = sequences * model->shape.context;
    model->failed = 0;
    struct amp_autocast_config config = amp_autocast_config_of(model->mode, &model->registry);
    config.lists = AMP_OP_LISTS_CUDA; /* layer norm, softmax and loss in fp32, in bf16 too */
    check(model, amp_autocast_enter_config(&config));
}

void charlm_forward(struct charlm_model *model, size_t unit)
{
    size_t first, count;
    charlm_unit_parameters(model, unit, &first, &count);
    widen(model, unit);
    if (model->failed != 0)
        return;
    if (unit == 0)
        embedding_forward(model);
    else if (unit <= model->shape.layers)
        block_forward(model, unit - 1, model->parameters + first);
    else
        head_forward(model, model->parameters + first);
}

void charlm_end(struct charlm_model *model)
{
    amp_autocast_exit();
}

double charlm_loss(struct charlm_model *model, const uint8_t *targets, float factor)
{
    if (model->failed != 0)
        return 0.0;
    return charlm_cross_entropy(model->logits, targets, model->rows, CHARLM_TOKENS, factor);
}

void charlm_backward(struct charlm_model *model, size_t unit)
{
    size_t first, count;
    charlm_unit_parameters(model, unit, &first, &count);
    widen(model, unit);
    if (model->failed != 0)
        return;
    if (unit == 0)
        embedding_backward(model);
    else if (unit <= model->shape.layers)
        block_backward(model, unit - 1, model->parameters + first);
    else
        head_backward(model, model->parameters + first);
}

double charlm_evaluate(struct charlm_model *model, const uint8_t *text, const uint8_t *targets, size_t sequences)
{
    charlm_begin(model, text, sequences);
    for (size_t unit = 0; unit < charlm_units(model); unit++)
        charlm_forward(model, unit);
    charlm_end(model);
    return charlm_loss(model, targets, 0.0f);
}
