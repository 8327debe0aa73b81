#include "server/io/history/replay_policy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void io_replay_init(struct io_replay *replay, const struct amp_scaler_config *config)
{
    replay->config = *config;
    amp_scaler_init(config, &replay->state);
}

void io_replay_step(struct io_replay *replay, const struct ampd_step_row *row, struct ampd_msg_replayed_step *out)
{
    float before = replay->state.scale;
    bool applied = row->verdict == AMPD_VERDICT_APPLIED, overflow = row->verdict == AMPD_VERDICT_SKIPPED_OVERFLOW;
    amp_scaler_update(&replay->config, &replay->state,
                      applied    ? AMP_SCALER_CLEAN
                      : overflow ? AMP_SCALER_OVERFLOW
                                 : AMP_SCALER_EMPTY);
    *out = (struct ampd_msg_replayed_step){.epoch = row->epoch,
                                           .step = row->step,
                                           .verdict = (enum ampd_msg_verdict)row->verdict,
                                           .stored_scale = row->after.scaler.scale,
                                           .replayed_scale = replay->state.scale,
                                           .uncertain =
                                               (applied && before > row->scale) || (overflow && before < row->scale)};
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

void io_replay_token_write(const struct io_replay *replay, const struct ampd_history_key *key, char *text, size_t size)
{
    (void)snprintf(text, size, "%" PRIu64 ".%" PRIu64 ".%" PRIu32 ".%" PRIu32 ".%" PRIu32 ".%" PRIu32, key->epoch,
                   key->step, key->sequence, bits_of(replay->state.scale), replay->state.growth_tracker,
                   replay->state.hysteresis_left);
}

bool io_replay_token_parse(const char *text, struct io_replay *replay, struct ampd_history_key *key)
{
    unsigned long long epoch, step;
    unsigned sequence, bits, tracker, hysteresis;
    int used = 0;
    if (strspn(text, "0123456789.") != strlen(text) ||
        sscanf(text, "%20llu.%20llu.%10u.%10u.%10u.%10u%n", &epoch, &step, &sequence, &bits, &tracker, &hysteresis,
               &used) != 6 ||
        text[used] != 0)
        return false;
    const struct amp_scaler_config *config = &replay->config;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    if (!(scale >= config->min_scale && scale <= config->max_scale) || tracker > config->growth_interval ||
        hysteresis < 1 || hysteresis > config->hysteresis)
        return false;
    replay->state.scale = scale;
    replay->state.growth_tracker = tracker;
    replay->state.hysteresis_left = hysteresis;
    *key = (struct ampd_history_key){epoch, step, sequence};
    return true;
}
