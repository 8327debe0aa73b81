#include "server/io/history/explain_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/*
 * Most overflow rows with a sentence of their own; the others are counted, so that the text has room for the reasons.
 */
#define ROWS_SHOWN 2

struct writer {
    char *text;
    size_t size, used;
};

/* Appends to the text; what does not fit is left out. */
static void say(struct writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct writer *writer, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int written = vsnprintf(writer->text + writer->used, writer->size - writer->used, format, args);
    va_end(args);
    if (written > 0)
        writer->used += (size_t)written;
    if (writer->used >= writer->size)
        writer->used = writer->size - 1;
}

/* ---- what was found ---- */

static void say_found(struct writer *writer, const struct ampd_msg_overflow_row *row)
{
    if (row->source == AMPD_MSG_OVERFLOW_SOURCE_WORKER && row->worker_name[0] != 0)
        say(writer, "the gradient of worker %s (rank %" PRIu32 ")", row->worker_name, row->rank);
    else if (row->source == AMPD_MSG_OVERFLOW_SOURCE_WORKER)
        say(writer, "the gradient of rank %" PRIu32, row->rank);
    else if (row->source == AMPD_MSG_OVERFLOW_SOURCE_SUM)
        say(writer, "the sum of gradients that were finite");
    else
        say(writer, "the mean gradient");
    say(writer, " had ");
    if (row->source == AMPD_MSG_OVERFLOW_SOURCE_RANGE)
        say(writer, "%" PRIu64 " values too large for the optimizer to square", row->inf_count);
    else
        say(writer, "%" PRIu64 " Inf and %" PRIu64 " NaN", row->inf_count, row->nan_count);
    say(writer, " in %s, the first at index %" PRIu64 ", the largest finite magnitude %.9g", row->parameter,
        row->first_index, (double)row->largest_finite);
}

static void say_overflows(struct writer *writer, const struct ampd_step_row *row,
                          const struct ampd_msg_overflow_row *overflows, size_t count)
{
    size_t shown = count < ROWS_SHOWN ? count : ROWS_SHOWN;
    for (size_t i = 0; i < shown; i++) {
        say(writer, i == 0 ? ": " : "; ");
        say_found(writer, &overflows[i]);
    }
    if (row->overflow_params > shown)
        say(writer, "; and %" PRIu64 " more (parameter, worker) pairs", row->overflow_params - shown);
    say(writer, ". ");
}

static void say_verdict(struct writer *writer, const struct ampd_step_row *row,
                        const struct ampd_msg_overflow_row *overflows, size_t count)
{
    switch (row->verdict) {
    case AMPD_VERDICT_APPLIED:
        say(writer, "Step %" PRIu64 " was applied: the gradients of %" PRIu32 " %s were finite, their norm %.6g. ",
            row->step, row->contributors_count, row->contributors_count == 1 ? "worker" : "workers", row->norm);
        break;
    case AMPD_VERDICT_SKIPPED_OVERFLOW:
        say(writer, "Step %" PRIu64 " was skipped for overflow", row->step);
        say_overflows(writer, row, overflows, count);
        break;
    default:
        say(writer, "Step %" PRIu64 " was skipped: no gradient that counts arrived. ", row->step);
        break;
    }
}

/* ---- what the policy did ---- */

static bool moves(const struct amp_scaler_config *config)
{
    return config->policy != AMP_SCALER_STATIC && config->policy != AMP_SCALER_NONE;
}

static bool forgives(const struct amp_scaler_config *config)
{
    return moves(config) && config->policy != AMP_SCALER_DYNAMIC;
}

static void say_stayed_after_overflow(struct writer *writer, const struct amp_scaler_config *config,
                                      const struct amp_scaler_state *after)
{
    if (amp_scaler_at_floor(config, after))
        say(writer, "it is at its floor, min_scale. ");
    else if (forgives(config) && after->hysteresis_left > 1)
        say(writer, "its hysteresis of %" PRIu32 " forgave this overflow and forgives %" PRIu32 " more. ",
            config->hysteresis, after->hysteresis_left - 1);
    else if (forgives(config))
        say(writer, "its hysteresis of %" PRIu32 " forgave this overflow; the next one shrinks the scale. ",
            config->hysteresis);
    else
        say(writer, "no smaller one is a finite number. ");
}

static void say_stayed_after_clean(struct writer *writer, const struct amp_scaler_config *config,
                                   const struct amp_scaler_state *after)
{
    if (after->scale >= config->max_scale)
        say(writer, "it is at its cap, max_scale. ");
    else
        say(writer, "%" PRIu32 " clean step%s of the %" PRIu32 " of growth_interval %s counted. ",
            after->growth_tracker, after->growth_tracker == 1 ? "" : "s", config->growth_interval,
            after->growth_tracker == 1 ? "is" : "are");
}

static void say_scale(struct writer *writer, const struct ampd_model_spec *spec, const struct ampd_step_row *row)
{
    const struct amp_scaler_config *config = &spec->scaler;
    const struct amp_scaler_state *after = &row->after.scaler;
    const char *policy = amp_scaler_policy_name(config->policy);
    if (after->scale < row->scale) {
        say(writer,
            "The scale shrank from %.9g to %.9g: policy %s multiplies it by backoff_factor %.9g after an overflow",
            (double)row->scale, (double)after->scale, policy, (double)config->backoff_factor);
        if (amp_scaler_at_floor(config, after))
            say(writer, ", not below min_scale %.9g", (double)config->min_scale);
        say(writer, ". ");
    } else if (after->scale > row->scale) {
        say(writer,
            "The scale grew from %.9g to %.9g: policy %s multiplies it by growth_factor %.9g after %" PRIu32
            " clean steps",
            (double)row->scale, (double)after->scale, policy, (double)config->growth_factor, config->growth_interval);
        if (after->scale >= config->max_scale)
            say(writer, ", not above max_scale %.9g", (double)config->max_scale);
        say(writer, ". ");
    } else {
        say(writer, "The scale stayed at %.9g: ", (double)after->scale);
        if (!moves(config))
            say(writer, "policy %s never moves it. ", policy);
        else if (row->verdict == AMPD_VERDICT_SKIPPED_EMPTY)
            say(writer, "policy %s does not count empty steps. ", policy);
        else if (row->verdict == AMPD_VERDICT_SKIPPED_OVERFLOW)
            say_stayed_after_overflow(writer, config, after);
        else
            say_stayed_after_clean(writer, config, after);
    }
}

/* ---- what to do ---- */

const char *io_explain_loss(const struct ampd_step_row *row)
{
    bool overflow = row->verdict == AMPD_VERDICT_SKIPPED_OVERFLOW;
    if (!overflow || row->metrics.loss_workers == 0 || isfinite(row->metrics.loss))
        return NULL;
    return isnan(row->metrics.loss) ? "The loss itself that a worker reported is NaN, which no loss scale can fix"
                                    : "The loss itself that a worker reported is infinite, which no loss scale can fix";
}

static void say_remedy(struct writer *writer, const struct ampd_model_spec *spec, const struct ampd_step_row *row,
                       const struct ampd_msg_overflow_row *overflows, size_t count)
{
    if (row->verdict != AMPD_VERDICT_SKIPPED_OVERFLOW)
        return;
    uint32_t in_a_row = row->after.scaler.consecutive_overflows;
    const char *loss = io_explain_loss(row);
    if (loss != NULL)
        say(writer, "%s: look at its data, lower the learning rate, or go back to a checkpoint.", loss);
    else if (in_a_row >= spec->max_consecutive_overflows)
        say(writer,
            "It is overflow number %" PRIu32 " in a row: training is unstable; lower the learning rate, or go "
            "back to a checkpoint.",
            in_a_row);
    else if (count > 0 && overflows[0].source == AMPD_MSG_OVERFLOW_SOURCE_RANGE)
        say(writer, "No loss scale can fix that: clip the gradients or lower the learning rate.");
    else if (row->inf_total == 0 && row->nan_total > 0)
        say(writer, "NaN without Inf rarely comes from the scale: look at the data and the loss of that worker.");
    else
        say(writer, "Nothing needs to be done: a step is skipped now and then while the scale finds its level.");
}

void io_explain_step(const struct ampd_model_spec *spec, const struct ampd_step_row *row,
                     const struct ampd_msg_overflow_row *overflows, size_t count, char *text, size_t size)
{
    struct writer writer = {text, size, 0};
    text[0] = 0;
    say_verdict(&writer, row, overflows, count);
    say_scale(&writer, spec, row);
    say_remedy(&writer, spec, row, overflows, count);
    while (writer.used > 0 && text[writer.used - 1] == ' ')
        text[--writer.used] = 0;
}
