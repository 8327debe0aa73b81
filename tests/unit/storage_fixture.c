#define _XOPEN_SOURCE 700 /* nftw */
#include "tests/unit/storage_fixture.h"

#include "base/assert.h"
#include "tests/temp_folder.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

const char *storage_fixture_directory(void)
{
    static char path[TEMP_FOLDER_MAX];
    AMP_ASSERT(temp_folder(path, "test"));
    return path;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    return remove(path);
}

void storage_fixture_remove(const char *path)
{
    AMP_ASSERT(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

const char *storage_fixture_below(const char *directory, const char *name)
{
    static char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

void storage_fixture_write(const char *directory, const char *name, const char *text)
{
    FILE *file = fopen(storage_fixture_below(directory, name), "w");
    AMP_ASSERT(file != NULL && fputs(text, file) >= 0);
    AMP_ASSERT(fclose(file) == 0);
}

struct ampd_model_spec storage_fixture_spec(const char *name)
{
    struct ampd_model_spec spec;
    memset(&spec, 0, sizeof spec);
    (void)snprintf(spec.name, sizeof spec.name, "%s", name);
    spec.parameters_count = 3;
    spec.parameters = calloc(3, sizeof *spec.parameters);
    AMP_ASSERT(spec.parameters != NULL);
    (void)snprintf(spec.parameters[0].name, AMPD_NAME_MAX, "layer.0/weight");
    spec.parameters[0].dimensions = 2;
    spec.parameters[0].shape[0] = 64;
    spec.parameters[0].shape[1] = 5;
    (void)snprintf(spec.parameters[1].name, AMPD_NAME_MAX, "layer.0/bias");
    spec.parameters[1].dimensions = 1;
    spec.parameters[1].shape[0] = 5;
    spec.parameters[1].group = 1;
    (void)snprintf(spec.parameters[2].name, AMPD_NAME_MAX, "temperature \xc3\xa4"); /* a scalar, UTF-8 */
    spec.groups_count = 2;
    spec.groups[0].lr_scale = 1.0;
    spec.groups[1] = (struct ampd_group_spec){
        .name = "bias \xc3\xa4", .lr_scale = 0.1, .weight_decay_set = true, .weight_decay = 0.3, .clip_max_norm = 0.7f};
    spec.optimizer = AMPD_OPTIMIZER_ADAMW;
    spec.lr = 1e-3;
    spec.beta1 = 0.9;
    spec.beta2 = 0.999;
    spec.eps = 1e-8;
    spec.weight_decay = 0.01;
    spec.nesterov = true;
    spec.schedule = AMPD_SCHEDULE_COSINE;
    spec.warmup_steps = 7;
    spec.total_steps = (uint64_t)1 << 40;
    spec.lr_min = 0x1p-1022;
    spec.clip_max_norm = 1.5f;
    spec.clip_scope = AMPD_CLIP_GROUP;
    spec.world_size = 2;
    spec.sync = AMPD_SYNC_ALL;
    spec.on_loss = AMPD_ON_LOSS_WAIT;
    spec.loss_timeout_ms = 600000;
    spec.min_workers = 1;
    spec.weighting = AMPD_WEIGHTING_EQUAL;
    spec.cast = AMP_BF16;
    spec.cast_overflow = AMPD_CAST_REPORT;
    spec.scaler = (struct amp_scaler_config){AMP_SCALER_DYNAMIC, 65536.0f, 2.0f, 0.5f, 2000, 2, 1.0f, 0x1p24f};
    spec.floor_policy = AMPD_FLOOR_CLAMP;
    spec.max_consecutive_overflows = 50;
    spec.max_steps = 1000;
    spec.checkpoint_every = 100;
    spec.keep_last = 3;
    spec.durability = AMPD_DURABILITY_CHECKPOINT;
    return spec;
}

struct ampd_epoch_record storage_fixture_epoch(uint64_t epoch, uint64_t base_epoch, uint64_t base_step)
{
    struct ampd_epoch_record record = {
        .epoch = epoch, .parent = epoch - 1, .base_epoch = base_epoch, .base_step = base_step, .at_us = 1234567};
    (void)snprintf(record.reason, sizeof record.reason, "%s", epoch == 1 ? "CREATED" : "RESTART");
    return record;
}

struct ampd_step_row storage_fixture_first_row(const struct ampd_epoch_record *epoch)
{
    struct ampd_step_row row;
    memset(&row, 0, sizeof row);
    row.kind = AMPD_ROW_EPOCH;
    row.epoch = epoch->epoch;
    row.step = epoch->base_step;
    row.parent_epoch = epoch->parent;
    row.parent_step = epoch->base_step;
    row.after.scaler.scale = 65536.0f;
    row.after.scaler.scale_id = 1;
    return row;
}

static void add_overflows(struct ampd_step_row *row)
{
    row->verdict = AMPD_VERDICT_SKIPPED_OVERFLOW;
    row->norm = 0;
    row->overflow_params = 70;
    row->inf_total = 9;
    row->nan_total = UINT64_C(5000000000);
    row->rows_count = 2;
    row->rows[0] = (struct ampd_overflow_row){1, 0, 8, 0, UINT64_C(6000000000), 65504.0f};
    row->rows[1] = (struct ampd_overflow_row){2, AMPD_RANK_SUM, 1, UINT64_C(5000000000), 3, 0x1.fffffep127f};
}

struct ampd_step_row storage_fixture_step(uint64_t epoch, uint64_t step, bool overflow)
{
    struct ampd_step_row row;
    memset(&row, 0, sizeof row);
    row.kind = AMPD_ROW_STEP;
    row.epoch = epoch;
    row.step = step;
    row.verdict = AMPD_VERDICT_APPLIED;
    row.tries = 3;
    row.contributors_hash = UINT64_C(0xfedcba9876543210); /* above 2^63 */
    row.contributors_count = 2;
    row.contributors[0] = (struct ampd_contributor){0, {4, 17}, 1.0f};
    row.contributors[1] = (struct ampd_contributor){1, {UINT64_C(1) << 40, UINT64_C(1) << 50}, 0.1f};
    row.scale = 0x1.8p13f;
    row.scale_id = step + 5;
    row.after.scaler = (struct amp_scaler_state){0x1p13f, step + 6, 11, 2, 1, 12, 13, step, 14, 15};
    row.after.lr = 0.1 / (double)step;
    row.coefficient = 0x1.fffffep-20f;
    row.norm = 0.1;
    row.clip = 0.3f;
    row.clips_count = 2;
    row.clips[0] = 0.3f;
    row.clips[1] = 0x1.fffffep-1f;
    row.lr = 1e-7;
    row.version = step - 1;
    row.durable_step = step / 2;
    row.metrics = (struct ampd_metrics){.loss = 0.1f, .loss_workers = 2, .count = 2};
    row.metrics.items[0] = (struct ampd_metric){"accuracy", -INFINITY, 1};
    row.metrics.items[1] = (struct ampd_metric){"größe, exactly 32 bytes \"x' en", 0x1.fffffep127f, 2};
    row.cut = step % 2 == 0;
    row.at_us = INT64_C(1790000000123456);
    for (uint64_t i = 0; i < AMPD_STEP_TIMES; i++)
        row.times_us[i] = i * UINT64_C(10000000000) + step;
    if (overflow)
        add_overflows(&row);
    return row;
}

void storage_fixture_no_descriptors(bool none)
{
    struct rlimit limit;
    AMP_ASSERT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = none ? 0 : limit.rlim_max;
    AMP_ASSERT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}
