/*
 * Loss and metrics: what each worker tells of each step, and the mean that the step's row must have. Some tell none,
 * some tell numbers that are not finite, and not all tell the same names.
 */
#include "tests/sim/sim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAMES 12 /* more than a row keeps */

/* A number, or nothing, by the bits that a key and a place give. */
static bool draw(uint64_t bits, float *value)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 3e38f, -0.0f, 1e-45f, 0, 3e38f};
    *value = (float)((double)(int64_t)(bits >> 40) * 0x1p-20 - 8);
    if (bits % 32 < 2)
        *value = odd[bits / 32 % 8];
    return bits / 256 % 4 != 0;
}

struct ampd_metrics sim_told(const struct sim_model *model, const struct sim_key *key)
{
    struct ampd_metrics told = {0};
    if (draw(sim_model_bits(model, 8, key, NAMES), &told.loss))
        told.loss_workers = 1;
    else
        told.loss = 0;
    uint64_t first = sim_model_bits(model, 9, key, 0) % NAMES;
    for (uint32_t i = 0; i < AMPD_METRICS_MAX / 2; i++) {
        struct ampd_metric *to = &told.items[told.count];
        uint64_t name = (first + i) % NAMES;
        if (!draw(sim_model_bits(model, 8, key, name), &to->value))
            continue;
        (void)snprintf(to->name, sizeof to->name, "m%llu", (unsigned long long)name);
        to->workers = 1;
        told.count++;
    }
    return told;
}

/* The mean of what the contributors have told under a name, NULL: of the loss. 0: nobody has. */
static uint32_t mean(const struct sim_model *model, const struct ampd_step_row *row, const struct sim_key *keys,
                     const char *name, float *value)
{
    double sum = 0, weights = 0;
    uint32_t count = 0;
    for (uint32_t c = 0; c < row->contributors_count; c++) {
        struct ampd_metrics told = sim_told(model, &keys[c]);
        double weight = (double)row->contributors[c].weight;
        uint32_t i = 0;
        while (name != NULL && i < told.count && strcmp(told.items[i].name, name) != 0)
            i++;
        if (weight == 0 || (name == NULL ? told.loss_workers == 0 : i == told.count))
            continue;
        sum += weight * (double)(name == NULL ? told.loss : told.items[i].value);
        weights += weight;
        count++;
    }
    *value = count == 0 ? 0 : isnan(sum / weights) ? NAN : (float)(sum / weights);
    return count;
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Names that a row must have, in the order in which contributors tell them. */
static uint32_t names_of(const struct sim_model *model, const struct ampd_step_row *row, const struct sim_key *keys,
                         char names[AMPD_METRICS_MAX][AMPD_METRIC_NAME_MAX])
{
    uint32_t count = 0;
    for (uint32_t c = 0; c < row->contributors_count; c++) {
        struct ampd_metrics told = sim_told(model, &keys[c]);
        for (uint32_t i = 0; row->contributors[c].weight != 0 && i < told.count; i++) {
            bool had = false;
            for (uint32_t n = 0; n < count; n++)
                had = had || strcmp(names[n], told.items[i].name) == 0;
            if (!had && count < AMPD_METRICS_MAX)
                memcpy(names[count++], told.items[i].name, AMPD_METRIC_NAME_MAX);
        }
    }
    return count;
}

const char *sim_told_differs(const struct sim_model *model, const struct ampd_step_row *row, const struct sim_key *keys)
{
    char names[AMPD_METRICS_MAX][AMPD_METRIC_NAME_MAX];
    float value;
    if (mean(model, row, keys, NULL, &value) != row->metrics.loss_workers || !same(value, row->metrics.loss))
        return "loss";
    if (names_of(model, row, keys, names) != row->metrics.count)
        return "metrics";
    for (uint32_t i = 0; i < row->metrics.count; i++) {
        const struct ampd_metric *metric = &row->metrics.items[i];
        if (strcmp(metric->name, names[i]) != 0 || mean(model, row, keys, metric->name, &value) != metric->workers ||
            !same(value, metric->value))
            return "metrics";
    }
    return NULL;
}
