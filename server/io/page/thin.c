#include "server/io/page/thin.h"

#include <math.h>
#include <stdlib.h>

static const char *const names[IO_THIN_CURVES] = {"scale", "norm", "clip", "rate", "loss", "seconds",
                                                  "apply", "pull", "wait", "push", "vote"};

int io_thin_init(struct io_thin *thin, uint64_t from, uint64_t to, uint32_t pixels)
{
    uint64_t steps = to - from + 1;
    *thin = (struct io_thin){
        .from = from, .to = to, .acts_from = from, .pixels = steps < pixels ? (uint32_t)steps : pixels};
    thin->buckets = calloc(thin->pixels, sizeof *thin->buckets);
    return thin->buckets != NULL ? 0 : AMP_ENOMEM;
}

void io_thin_close(struct io_thin *thin)
{
    free(thin->buckets);
    thin->buckets = NULL;
}

static struct io_thin_bucket *bucket_of(const struct io_thin *thin, uint64_t step)
{
    double share = (double)(step - thin->from) / ((double)(thin->to - thin->from) + 1);
    uint32_t index = (uint32_t)(share * thin->pixels);
    return &thin->buckets[index < thin->pixels ? index : thin->pixels - 1];
}

static void add_value(struct io_thin_bucket *bucket, enum io_thin_curve curve, uint64_t step, double value)
{
    const struct io_thin_value new = {step, value};
    if (!isfinite(value)) /* a plot cannot show it */
        return;
    if (!bucket->any[curve] || value < bucket->least[curve].value)
        bucket->least[curve] = new;
    if (!bucket->any[curve] || value > bucket->greatest[curve].value)
        bucket->greatest[curve] = new;
    bucket->any[curve] = true;
}

static void add_skipped(struct io_thin_bucket *bucket, const struct ampd_history_point *point)
{
    if (bucket->overflows + bucket->empties == 0)
        bucket->first_skipped = point->key.step;
    bucket->last_skipped = point->key.step;
    if (point->verdict == AMPD_VERDICT_SKIPPED_OVERFLOW)
        bucket->overflows++;
    else
        bucket->empties++;
}

/* Adds the parts of the step's time, in seconds. */
static void add_times(struct io_thin_bucket *bucket, const struct ampd_history_point *point)
{
    bool known = ampd_step_times_known(point->times_us);
    for (int i = 0; known && i < AMPD_STEP_TIMES; i++)
        add_value(bucket, (enum io_thin_curve)(IO_THIN_TIMES + i), point->key.step, (double)point->times_us[i] / 1e6);
}

static void add_step(struct io_thin *thin, const struct ampd_history_point *point)
{
    uint64_t step = point->key.step;
    struct io_thin_bucket *bucket = bucket_of(thin, step);
    thin->rows++;
    add_value(bucket, IO_THIN_SCALE, step, (double)point->scale);
    if (point->has_loss)
        add_value(bucket, IO_THIN_LOSS, step, (double)point->loss);
    if (point->verdict == AMPD_VERDICT_APPLIED) {
        add_value(bucket, IO_THIN_NORM, step, point->norm);
        add_value(bucket, IO_THIN_CLIP, step, (double)point->clip);
        add_value(bucket, IO_THIN_RATE, step, point->lr);
    } else {
        add_skipped(bucket, point);
    }
    if (thin->before_us > 0 && point->at_us >= thin->before_us)
        add_value(bucket, IO_THIN_SECONDS, step, (double)(point->at_us - thin->before_us) / 1e6);
    add_times(bucket, point);
}

void io_thin_add(struct io_thin *thin, const struct ampd_history_point *point)
{
    bool is_step = point->kind == AMPD_ROW_STEP;
    uint64_t step = is_step ? point->key.step : point->key.step + 1; /* an act belongs to the step that follows it */
    bool is_in = step >= (is_step ? thin->from : thin->acts_from) && step <= thin->to + !is_step;
    thin->last = point->key;
    if (is_in && is_step)
        add_step(thin, point);
    else if (is_in)
        thin->acts[thin->acts_count++ % IO_THIN_ACTS_MAX] = *point;
    /* The pause before a new epoch is not part of a step's time. */
    thin->before_us = is_step ? point->at_us : point->kind == AMPD_ROW_EPOCH ? 0 : thin->before_us;
}

/* Writes the steps or the values of a curve: of each bucket the least and the greatest, in the order of their steps. */
static void write_curve(const struct io_thin *thin, enum io_thin_curve curve, bool steps, struct io_json *json)
{
    io_json_open(json, NULL, '[');
    for (uint32_t i = 0; i < thin->pixels; i++) {
        const struct io_thin_bucket *bucket = &thin->buckets[i];
        if (!bucket->any[curve])
            continue;
        struct io_thin_value first = bucket->least[curve], second = bucket->greatest[curve];
        if (first.step > second.step) {
            first = bucket->greatest[curve];
            second = bucket->least[curve];
        }
        for (int k = 0; k < (first.step == second.step ? 1 : 2); k++) {
            const struct io_thin_value *value = k == 0 ? &first : &second;
            if (steps)
                io_json_count(json, NULL, value->step);
            else
                io_json_number(json, NULL, value->value);
        }
    }
    io_json_shut(json, ']');
}

static void write_skipped(const struct io_thin *thin, struct io_json *json)
{
    io_json_open(json, "skipped", '[');
    for (uint32_t i = 0; i < thin->pixels; i++) {
        const struct io_thin_bucket *bucket = &thin->buckets[i];
        if (bucket->overflows + bucket->empties == 0)
            continue;
        io_json_open(json, NULL, '[');
        io_json_count(json, NULL, bucket->first_skipped);
        io_json_count(json, NULL, bucket->last_skipped);
        io_json_count(json, NULL, bucket->overflows);
        io_json_count(json, NULL, bucket->empties);
        io_json_shut(json, ']');
    }
    io_json_shut(json, ']');
}

void io_thin_write(const struct io_thin *thin, struct io_json *json)
{
    io_json_count(json, "from", thin->from);
    io_json_count(json, "to", thin->to);
    io_json_count(json, "rows", thin->rows);
    io_json_open(json, "curves", '{');
    for (int curve = 0; curve < IO_THIN_CURVES; curve++) {
        io_json_open(json, names[curve], '[');
        write_curve(thin, (enum io_thin_curve)curve, true, json);
        write_curve(thin, (enum io_thin_curve)curve, false, json);
        io_json_shut(json, ']');
    }
    io_json_shut(json, '}');
    write_skipped(thin, json);
}
