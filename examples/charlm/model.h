/*
 * The language model: a transformer of GPT-2's form over ASCII characters, forward and backward.
 *
 * It is a sequence of units: the embedding, the blocks, the head. Forward goes from the first unit to the last,
 * backward from the last to the first. A unit needs only its own parameters, and its gradients are complete when its
 * backward returns, so a caller may fetch parameters and send gradients unit by unit.
 *
 * Which dtype an operation takes its operands in is the autocast region's choice (amp/autocast.h). Operands of `linear`
 * are in the low precision; their products, and everything else, are in fp32.
 *
 * A model is used by one thread at a time.
 */
#ifndef CHARLM_MODEL_H
#define CHARLM_MODEL_H

#include "amp/autocast.h"
#include "amp/tensor.h"
#include "examples/charlm/product.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A token is an ASCII character. */
#define CHARLM_TOKENS     128
#define CHARLM_LAYERS_MAX 48
#define CHARLM_NAME_MAX   40

struct charlm_shape {
    size_t layers, heads, width, context;
    size_t sequences; /* of `context` characters each in a batch */
};
/* 842,496 parameters. */
#define CHARLM_SHAPE_DEFAULT                                                                                           \
    {                                                                                                                  \
        .layers = 4, .heads = 4, .width = 128, .context = 128, .sequences = 8                                          \
    }

/* The parameters of a block, of the embedding, and of the head, each in this order. */
enum {
    CHARLM_LN1_WEIGHT,
    CHARLM_LN1_BIAS,
    CHARLM_QKV_WEIGHT,
    CHARLM_QKV_BIAS,
    CHARLM_PROJECTION_WEIGHT,
    CHARLM_PROJECTION_BIAS,
    CHARLM_LN2_WEIGHT,
    CHARLM_LN2_BIAS,
    CHARLM_UP_WEIGHT,
    CHARLM_UP_BIAS,
    CHARLM_DOWN_WEIGHT,
    CHARLM_DOWN_BIAS,
    CHARLM_BLOCK_PARAMETERS,
};
enum { CHARLM_TOKEN_TABLE, CHARLM_POSITION_TABLE, CHARLM_EMBEDDING_PARAMETERS };
enum { CHARLM_LN_WEIGHT, CHARLM_LN_BIAS, CHARLM_HEAD_WEIGHT, CHARLM_HEAD_PARAMETERS };

struct charlm_parameter {
    char name[CHARLM_NAME_MAX];
    size_t rows, columns;        /* a vector has columns 0 */
    bool multiplied;             /* an operand of a product */
    struct amp_tensor_view now;  /* the next pass's values: the caller's memory, f32 or the low dtype */
    struct amp_tensor_view wide; /* the same in f32, unless multiplied: `now` itself, or in wide_buffer */
    float *wide_buffer;
    struct amp_tensor gradient; /* written by backward, in the model's gradient_dtype; the model's memory */
};

/* out = in * weight^T + bias. */
struct charlm_linear {
    struct charlm_parameter *weight, *bias;    /* bias may be NULL */
    size_t in, out;                            /* columns */
    void *low;                                 /* the input's low copy */
    struct amp_tensor_view input, weight_used; /* the operands of forward, for backward */
};
enum { CHARLM_QKV, CHARLM_PROJECTION, CHARLM_UP, CHARLM_DOWN, CHARLM_LINEARS };

/* What the forward of a block, or of the head, keeps for its backward: all [rows][..]. The head has only one norm. */
struct charlm_kept {
    float *mean[2], *rstd[2], *normal[2]; /* of both layer norms */
    float *qkv, *shares, *mixed;          /* attention: input, softmax, output */
    float *middle;                        /* the residual stream between attention and the two products after it */
    float *up, *bent;                     /* before and after GELU */
    struct charlm_linear linear[CHARLM_LINEARS];
};

struct charlm_model {
    struct charlm_shape shape;
    const struct amp_kernels *kernels; /* borrowed */
    enum amp_autocast_mode mode;
    enum amp_dtype gradient_dtype; /* the mode's low dtype, or f32 */
    struct amp_registry registry;  /* rules for what this model calls its operations */
    struct amp_cast_cache *cache;  /* low copies of fp32 weights */
    struct charlm_products products;
    struct charlm_parameter *parameters;
    size_t parameters_count;
    struct charlm_kept kept[CHARLM_LAYERS_MAX + 1]; /* of each block, then of the head */
    float *stream[CHARLM_LAYERS_MAX + 1];           /* the residual stream before each of them */
    float *logits;                                  /* [rows][CHARLM_TOKENS]; after the loss their gradient */
    float *d_stream, *d_narrow, *d_wide;            /* gradients: [rows][width], the same, [rows][4 * width] */
    float *d_shares, *d_small;                      /* of one head's softmax; of vectors and tables */
    void *low;                                      /* a gradient's low copy */
    void *memory;                                   /* all of the above lies in it */
    const uint8_t *text;                            /* of the pass in hand */
    size_t rows;                                    /* sequences in hand times context */
    int failed;                                     /* the first error since begin: 0, or a code with `error` */
    struct amp_error error;
};

/* Allocates. 0, or a code with a text in model->error; close it in both cases. */
int charlm_model_open(struct charlm_model *model, const struct amp_kernels *kernels, const struct charlm_shape *shape,
                      enum amp_autocast_mode mode);
void charlm_model_close(struct charlm_model *model);

size_t charlm_units(const struct charlm_model *model);
/* The parameters [*first, *first + *count) of a unit. */
void charlm_unit_parameters(const struct charlm_model *model, size_t unit, size_t *first, size_t *count);
size_t charlm_elements(const struct charlm_parameter *parameter);

/* First values of parameter `index`, uniform with GPT-2's standard deviation. A function of its arguments alone. */
void charlm_init(const struct charlm_model *model, size_t index, uint64_t seed, float *values);

/*
 * One pass: begin (enters the autocast region), forward of each unit, end (leaves it), loss, backward of each unit in
 * reverse. `text` [sequences * context] is borrowed until the pass is over. An error shows in model->failed; what comes
 * after it does nothing.
 */
void charlm_begin(struct charlm_model *model, const uint8_t *text, size_t sequences);
void charlm_forward(struct charlm_model *model, size_t unit);
void charlm_end(struct charlm_model *model);
/* The mean loss; with a factor (the loss scale), backward may follow. */
double charlm_loss(struct charlm_model *model, const uint8_t *targets, float factor);
void charlm_backward(struct charlm_model *model, size_t unit);

/* All of it without backward: the loss. */
double charlm_evaluate(struct charlm_model *model, const uint8_t *text, const uint8_t *targets, size_t sequences);

#endif
