#include "examples/charlm/charlm.h"
#include "examples/charlm/layers.h"

#include <stdlib.h>
#include <string.h>

/* Below 1 the likely characters become likelier. */
#define TEMPERATURE 0.8f

/* A token drawn by the softmax of its logits; `unit` is a random number from 0 to 1. */
static uint8_t draw(const float *logits, double unit)
{
    double shares[CHARLM_TOKENS], sum = 0.0;
    float largest = logits[0];
    for (size_t i = 1; i < CHARLM_TOKENS; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (size_t i = 0; i < CHARLM_TOKENS; i++) {
        shares[i] = (double)charlm_exp((logits[i] - largest) / TEMPERATURE);
        sum += shares[i];
    }
    double left = unit * sum;
    for (size_t i = 0; i < CHARLM_TOKENS; i++) {
        left -= shares[i];
        if (left < 0.0)
            return (uint8_t)i;
    }
    return ' ';
}

int charlm_write(struct charlm_model *model, uint64_t seed, uint64_t count)
{
    static const char opening[] = "The Rays of Light ";
    size_t context = model->shape.context, known = sizeof opening - 1 < context ? sizeof opening - 1 : context;
    uint8_t *window = calloc(context, 1), *targets = calloc(context, 1);
    uint64_t state = seed; /* of an LCG, as in model.c */
    int rc = window != NULL && targets != NULL ? 0 : -1;
    if (rc == 0) {
        memcpy(window, opening, known);
        (void)fwrite(opening, 1, known, stdout);
    }
    for (uint64_t i = 0; rc == 0 && i < count; i++) {
        /* A whole window each time, plain and slow: what comes after the last known character changes nothing. */
        (void)charlm_evaluate(model, window, targets, 1);
        if ((rc = model->failed) != 0)
            break;
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint8_t next = draw(model->logits + (known - 1) * CHARLM_TOKENS, (double)(state >> 11) * 0x1.0p-53);
        (void)putchar(next);
        if (known == context)
            memmove(window, window + 1, --known);
        window[known++] = next;
    }
    (void)putchar('\n');
    (void)fflush(stdout);
    if (rc != 0)
        (void)fprintf(stderr, "charlm: writing: %s\n", model->failed != 0 ? model->error.text : "out of memory");
    free(window);
    free(targets);
    return rc;
}
