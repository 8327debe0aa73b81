/*
 * Power loss. The life of a small model is written down call by call (storage_record.h), then the disk is made that a
 * loss of power leaves after every one of these calls, with what was not synced there, gone, or gone in part. Each disk
 * is opened as a start does: what was answered as durable is there, nothing is there by half, and the store goes on.
 *
 *   test_storage_power            one life of eight steps
 *   test_storage_power --long     more steps and larger tensors, every sector, and random losses
 */
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/datadir.h"
#include "storage/vote_journal.h"
#include "storage/store.h"
#include "tests/unit/storage_fixture.h"
#include "tests/unit/storage_record.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL         "model"
#define WORLD         2
#define PARTS         3
#define STATE_SIZE    40
#define ACTS_MAX      4096
#define STEPS_MAX     1024
#define PREFIX_RANDOM 4 /* random losses after each call, in the long run */
/* Of the kills and the failed syncs of the short run: not each beside a sanitizer, which is ten times as slow. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MOMENT_EVERY 3
#endif
#endif
#ifndef MOMENT_EVERY
#define MOMENT_EVERY 1
#endif

/* What is asked of storage, one after the other. */
enum act_kind {
    ACT_MODEL,      /* FULL, as the epoch */
    ACT_EPOCH,      /* with its first row */
    ACT_ROW,        /* of a step; FULL, or durable with the next act that is */
    ACT_JOURNAL,    /* the record of a step and try, synced */
    ACT_PRUNE,      /* the journal up to a step is not wanted */
    ACT_FILE,       /* of a checkpoint, synced and named */
    ACT_CHECKPOINT, /* in the catalogue, FULL */
    ACT_PARTS,      /* what all its parts are, FULL */
    ACT_DROP,       /* out of it, FULL */
};

struct act {
    enum act_kind kind;
    bool full;
    uint64_t step;
    uint32_t try_number;
    uint32_t begun, ended; /* calls of the record before it, and when it was answered */
};

struct life {
    char root[256], data[300]; /* the directory that is written down, and the data directory in it */
    uint64_t steps, checkpoint_every, elements;
    struct ampd_datadir dir;
    struct ampd_store *store;
    struct ampd_vote_journal *journal;
    float *values, *back; /* [elements] */
    struct ampd_checkpoint_record parts[STEPS_MAX];
    struct ampd_model_spec spec;
    struct ampd_checkpoint_state state; /* of the checkpoint that was written last */
    struct act acts[ACTS_MAX];
    uint32_t acts_count;
    jmp_buf ended; /* the process ends here after a sync that failed */
};

static struct life life;
static bool is_long;

/* ---- what is written ---- */

static struct ampd_checkpoint_path place_of(const char *data)
{
    return (struct ampd_checkpoint_path){data, MODEL, 0, 1};
}

static void fill(uint64_t step, uint32_t what, float *values)
{
    for (uint64_t i = 0; i < life.elements; i++)
        values[i] = (float)(step * 64 + what) + (float)(i % 8191) / 8192.0f;
}

static bool is_overflow(uint64_t step)
{
    return step % 3 == 0;
}

/* Rows of every other pair of steps are not synced by themselves. */
static bool is_full(uint64_t step)
{
    return step % 4 < 2;
}

static struct act *begin(enum act_kind kind, uint64_t step)
{
    assert_true(life.acts_count < ACTS_MAX);
    struct act *act = &life.acts[life.acts_count++];
    *act =
        (struct act){.kind = kind, .step = step, .full = true, .begun = storage_record_count(), .ended = RECORD_NEVER};
    return act;
}

/* Nothing but a sync may fail; the process ends then. */
static void need(int rc)
{
    if (rc != 0 && storage_record_failed())
        longjmp(life.ended, 1);
    assert_int_equal(rc, 0);
}

static void end(struct act *act, int rc)
{
    need(rc);
    act->ended = storage_record_count();
}

static void open_all(const char *data)
{
    const struct ampd_checkpoint_path place = place_of(data);
    need(ampd_datadir_open(&life.dir, data, NULL));
    need(ampd_store_sqlite_open(data, &life.store, NULL));
    need(ampd_vote_journal_open(&place, &life.journal, NULL));
}

static void close_all(void)
{
    ampd_vote_journal_close(life.journal);
    ampd_store_close(life.store);
    ampd_datadir_close(&life.dir);
    life.journal = NULL;
    life.store = NULL;
}

static void put_model(void)
{
    struct act *act = begin(ACT_MODEL, 0);
    end(act, ampd_store_put_model(life.store, &life.spec, 42, NULL));
}

static void put_epoch(void)
{
    const struct ampd_epoch_record epoch = storage_fixture_epoch(1, 0, 0);
    const struct ampd_step_row first = storage_fixture_first_row(&epoch);
    struct act *act = begin(ACT_EPOCH, 0);
    end(act, ampd_store_put_epoch(life.store, MODEL, &epoch, &first, NULL));
}

static void put_journal(uint64_t step, uint32_t try_number)
{
    char notes[32];
    int size = snprintf(notes, sizeof notes, "step %u try %u", (unsigned)step, try_number);
    fill(step, try_number, life.values);
    struct ampd_vote_journal_record record = {.key = {1, step, 7, try_number},
                                              .notes = (uint8_t *)notes,
                                              .notes_size = (uint64_t)size,
                                              .g = life.values,
                                              .elements = life.elements};
    struct act *act = begin(ACT_JOURNAL, step);
    act->try_number = try_number;
    end(act, ampd_vote_journal_write(life.journal, &record, NULL));
}

static void put_row(uint64_t step, bool full)
{
    const struct ampd_step_row row = storage_fixture_step(1, step, is_overflow(step));
    struct act *act = begin(ACT_ROW, step);
    act->full = full;
    end(act, ampd_store_put_verdict(life.store, MODEL, &row, act->full, NULL));
}

static void fill_state(uint64_t step, struct ampd_checkpoint_state *state)
{
    *state = (struct ampd_checkpoint_state){.step = step, .version = step - 1, .world_size = WORLD};
    state->carry.scaler = (struct amp_scaler_state){0x1p13f, step + 6, 11, 2, 1, 12, 13, step, 14, 15};
    state->user_states = calloc(WORLD, sizeof *state->user_states);
    state->user_states[1].data = calloc(1, STATE_SIZE);
    state->user_states[1].size = STATE_SIZE;
    memset(state->user_states[1].data, (int)step, STATE_SIZE);
}

static void put_checkpoint(uint64_t step)
{
    const struct ampd_checkpoint_path place = place_of(life.data);
    const struct ampd_checkpoint_tensor tensor = {"w", 1, &life.elements, life.values, life.back, NULL, false, 0, 0};
    struct ampd_checkpoint_record *part = &life.parts[step];
    ampd_checkpoint_state_clear(&life.state);
    fill_state(step, &life.state);
    fill(step, 32, life.values);
    fill(step, 33, life.back);
    struct act *act = begin(ACT_FILE, step);
    end(act, ampd_checkpoint_write(&place, &tensor, 1, &life.state, NULL, part, NULL));
    part->epoch = 1;
    part->at_us = 77;
    act = begin(ACT_CHECKPOINT, step);
    end(act, ampd_store_put_checkpoint(life.store, MODEL, part, NULL));
    act = begin(ACT_PRUNE, step);
    ampd_vote_journal_prune(life.journal, 1, step);
    end(act, 0);
    part->parts_count = PARTS;
    memset(part->parts, (int)step, sizeof part->parts);
    act = begin(ACT_PARTS, step);
    end(act, ampd_store_put_parts(life.store, MODEL, part, NULL));
}

static void drop_checkpoint(uint64_t step)
{
    struct act *act = begin(ACT_DROP, step);
    end(act, ampd_store_drop_checkpoint(life.store, MODEL, 1, step, NULL));
    need(ampd_checkpoint_remove(life.data, life.parts[step].file, NULL));
}

/* Votes in the journal, verdicts, checkpoints, an older one that goes, and a restart half-way. */
static void live(uint32_t failing_sync)
{
    (void)snprintf(life.root, sizeof life.root, "%s", storage_fixture_directory());
    (void)snprintf(life.data, sizeof life.data, "%s/data", life.root);
    storage_record_begin(life.root);
    storage_record_fail_sync(failing_sync);
    open_all(life.data);
    put_model();
    put_epoch();
    for (uint64_t step = 1; step <= life.steps; step++) {
        put_journal(step, 0);
        if (step % 4 == 3)
            put_journal(step, 1);
        put_row(step, is_full(step));
        if (step % life.checkpoint_every == 0)
            put_checkpoint(step);
        if (step % life.checkpoint_every == 0 && step >= 3 * life.checkpoint_every)
            drop_checkpoint(step - 2 * life.checkpoint_every);
        if (step == life.steps * 3 / 5) {
            close_all();
            open_all(life.data);
        }
    }
    close_all();
    storage_record_stop();
}

/* ---- what must be there ---- */

static bool is_answered(const struct act *act, uint32_t prefix)
{
    return act->ended <= prefix;
}

static bool is_begun(const struct act *act, uint32_t prefix)
{
    return act->begun < prefix || is_answered(act, prefix);
}

static const struct act *find_act(enum act_kind kind, uint64_t step, uint32_t try_number)
{
    for (uint32_t i = 0; i < life.acts_count; i++) {
        const struct act *act = &life.acts[i];
        if (act->kind == kind && act->step == step && act->try_number == try_number)
            return act;
    }
    return NULL;
}

static bool begun(enum act_kind kind, uint64_t step, uint32_t prefix)
{
    const struct act *act = find_act(kind, step, 0);
    return act != NULL && is_begun(act, prefix);
}

/* True for acts of the store, which are durable in order. */
static bool is_stored(const struct act *act)
{
    return act->kind != ACT_JOURNAL && act->kind != ACT_PRUNE && act->kind != ACT_FILE;
}

/* The last step whose row survives: FULL, or followed by an act of the store that is. */
static uint64_t durable_row(uint32_t prefix)
{
    uint64_t step = 0, last = 0;
    for (uint32_t i = 0; i < life.acts_count; i++) {
        const struct act *act = &life.acts[i];
        if (!is_stored(act) || !is_answered(act, prefix))
            continue;
        last = act->kind == ACT_ROW ? act->step : last;
        step = act->full ? last : step;
    }
    return step;
}

struct walk {
    uint32_t prefix;
    uint64_t last; /* step whose row was seen */
};

static int see_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                   const struct ampd_epoch_record *epoch)
{
    struct walk *walk = arg;
    if (row->kind == AMPD_ROW_EPOCH) {
        assert_true(key->step == 0 && walk->last == 0 && begun(ACT_EPOCH, 0, walk->prefix));
        return 0;
    }
    const struct ampd_step_row expected = storage_fixture_step(1, key->step, is_overflow(key->step));
    assert_int_equal(key->step, walk->last + 1); /* no gap */
    assert_true(begun(ACT_ROW, key->step, walk->prefix));
    assert_memory_equal(row, &expected, sizeof expected);
    walk->last = key->step;
    return 0;
}

static uint64_t check_rows(uint32_t prefix)
{
    struct walk walk = {.prefix = prefix};
    const struct ampd_history_filter all = {0};
    assert_int_equal(ampd_store_page_history(life.store, MODEL, &all, 4096, &walk, NULL, see_row), 0);
    assert_true(walk.last >= durable_row(prefix));
    return walk.last;
}

static void check_file(const char *data, const struct ampd_checkpoint_record *part)
{
    uint64_t step = part->step;
    float *m = calloc(life.elements, sizeof *m);
    const struct ampd_checkpoint_target target = {"w", 1, &life.elements, life.back, m, NULL, false, 0, 0};
    struct ampd_checkpoint_state read, expected;
    struct amp_error error = {0};
    if (ampd_checkpoint_read(data, part->file, part->manifest, &target, 1, &read, &error) != 0)
        fail_msg("checkpoint %u cannot be read: %s", (unsigned)step, error.text);
    fill_state(step, &expected);
    assert_int_equal(read.step, step);
    assert_memory_equal(&read.carry, &expected.carry, sizeof expected.carry);
    assert_int_equal(read.user_states[1].size, STATE_SIZE);
    assert_memory_equal(read.user_states[1].data, expected.user_states[1].data, STATE_SIZE);
    fill(step, 32, life.values);
    assert_memory_equal(life.back, life.values, life.elements * sizeof(float));
    fill(step, 33, life.values);
    assert_memory_equal(m, life.values, life.elements * sizeof(float));
    ampd_checkpoint_state_clear(&read);
    ampd_checkpoint_state_clear(&expected);
    free(m);
}

/* Whether the store knows them; if it does, all of them. */
static bool has_parts(const struct ampd_checkpoint_record *part, uint32_t prefix)
{
    if (part->parts_count == 0)
        return false;
    assert_true(begun(ACT_PARTS, part->step, prefix));
    assert_int_equal(part->parts_count, PARTS);
    assert_memory_equal(part->parts, life.parts[part->step].parts, PARTS * sizeof part->parts[0]);
    return true;
}

/* Each that the catalogue names is whole; each that was answered and not dropped is named, and its parts are known. */
static void check_checkpoints(const char *data, const struct ampd_model_record *record, uint32_t prefix)
{
    const struct ampd_checkpoint_path place = place_of(data);
    assert_int_equal(ampd_checkpoint_sweep(&place, record->checkpoints, record->checkpoints_count, UINT64_MAX, NULL),
                     0);
    bool named[STEPS_MAX] = {false}, known[STEPS_MAX] = {false};
    for (uint32_t i = 0; i < record->checkpoints_count; i++) {
        const struct ampd_checkpoint_record *part = &record->checkpoints[i];
        assert_true(part->step < STEPS_MAX && begun(ACT_CHECKPOINT, part->step, prefix));
        assert_string_equal(part->file, life.parts[part->step].file);
        assert_memory_equal(part->manifest, life.parts[part->step].manifest, sizeof part->manifest);
        named[part->step] = true;
        known[part->step] = has_parts(part, prefix);
        check_file(data, part);
    }
    for (uint32_t i = 0; i < life.acts_count; i++) {
        const struct act *act = &life.acts[i];
        if (act->kind == ACT_CHECKPOINT && is_answered(act, prefix))
            assert_true(named[act->step] || begun(ACT_DROP, act->step, prefix));
        if (act->kind == ACT_PARTS && is_answered(act, prefix))
            assert_true(known[act->step] || begun(ACT_DROP, act->step, prefix));
        if (act->kind == ACT_DROP && is_answered(act, prefix))
            assert_false(named[act->step]);
    }
}

/* The try that the journal has of a step, compared bit for bit; -1: none. */
static int read_journal(uint64_t step)
{
    struct ampd_vote_journal_record record;
    char notes[32];
    int rc = ampd_vote_journal_read(life.journal, 1, step, life.back, life.elements, &record, NULL);
    if (rc == AMP_ENOTFOUND)
        return -1;
    assert_int_equal(rc, 0);
    int size = snprintf(notes, sizeof notes, "step %u try %u", (unsigned)step, record.key.try_number);
    assert_int_equal(record.notes_size, size);
    assert_memory_equal(record.notes, notes, (size_t)size);
    assert_int_equal(record.elements, life.elements);
    fill(step, record.key.try_number, life.values);
    assert_memory_equal(life.back, life.values, life.elements * sizeof(float));
    free(record.notes);
    return (int)record.key.try_number;
}

static void check_journal(uint32_t prefix)
{
    uint64_t pruned = 0;
    for (uint32_t i = 0; i < life.acts_count; i++)
        if (life.acts[i].kind == ACT_PRUNE && life.acts[i].begun <= prefix)
            pruned = life.acts[i].step;
    for (uint64_t step = 1; step <= life.steps; step++) {
        int found = read_journal(step), answered = -1, tried = -1;
        for (uint32_t try_number = 0; try_number < 2; try_number++) {
            const struct act *act = find_act(ACT_JOURNAL, step, try_number);
            if (act != NULL && is_begun(act, prefix))
                tried = (int)try_number;
            if (act != NULL && is_answered(act, prefix))
                answered = (int)try_number;
        }
        assert_true(found <= tried);
        assert_true(found >= answered || step <= pruned);
    }
}

/* The store takes more: the next step, durable. */
static void check_goes_on(uint64_t last)
{
    const struct ampd_step_row row = storage_fixture_step(1, last + 1, false);
    assert_int_equal(ampd_store_put_verdict(life.store, MODEL, &row, true, NULL), 0);
}

/* One disk, as a start finds it. */
static void check_disk(const char *root, uint32_t prefix)
{
    char data[300];
    struct ampd_model_record *records;
    size_t count;
    (void)snprintf(data, sizeof data, "%s/data", root);
    open_all(data);
    assert_int_equal(ampd_store_load(life.store, &records, &count, NULL), 0);
    const struct act *model = find_act(ACT_MODEL, 0, 0), *epoch = find_act(ACT_EPOCH, 0, 0);
    assert_true(count <= 1 && (count == 1 || !is_answered(model, prefix)));
    if (count == 1) {
        assert_string_equal(records[0].spec.name, MODEL);
        assert_true(records[0].epoch == 1 || !is_answered(epoch, prefix));
        uint64_t last = check_rows(prefix);
        assert_true(last == 0 || records[0].last->step == last);
        check_checkpoints(data, &records[0], prefix);
        if (records[0].epoch == 1)
            check_goes_on(last);
    }
    check_journal(prefix);
    ampd_model_records_free(records, count);
    close_all();
}

/* ---- all disks ---- */

struct seen {
    uint64_t *hashes; /* open addressing; 0: free */
    size_t room, count;
};

/* False: a disk of the same bytes was looked at already. */
static bool is_new(struct seen *seen, uint64_t hash)
{
    hash += hash == 0;
    if (seen->count * 2 >= seen->room) {
        struct seen larger = {.room = seen->room * 2 + 1024};
        larger.hashes = calloc(larger.room, sizeof *larger.hashes);
        for (size_t i = 0; i < seen->room; i++)
            if (seen->hashes[i] != 0)
                (void)is_new(&larger, seen->hashes[i]);
        free(seen->hashes);
        *seen = larger;
    }
    size_t at = hash % seen->room;
    for (; seen->hashes[at] != 0; at = (at + 1) % seen->room)
        if (seen->hashes[at] == hash)
            return false;
    seen->hashes[at] = hash;
    seen->count++;
    return true;
}

struct tally {
    struct seen seen;
    unsigned prefixes, dropped, torn, random, disks;
};

/* What ran last, for the sentence of a failure. */
static struct record_crash last;

static void look_at(struct tally *tally, const struct record_crash *crash)
{
    if (!is_new(&tally->seen, storage_record_hash(crash)))
        return;
    char root[256];
    (void)snprintf(root, sizeof root, "%s", storage_fixture_directory());
    last = *crash;
    storage_record_make(crash, root);
    check_disk(root, crash->prefix);
    storage_fixture_remove(root);
    tally->disks++;
}

/* The sectors of a write that are lost: all of them in the long run, else the first two and the last. */
static void tear(struct tally *tally, struct record_crash crash)
{
    const struct record_op *op = storage_record_op(crash.call);
    uint32_t sectors = (uint32_t)((op->offset % RECORD_SECTOR + op->size + RECORD_SECTOR - 1) / RECORD_SECTOR);
    for (uint32_t i = 0; op->kind == RECORD_WRITE && i < sectors; i++) {
        bool chosen = i < 2 || i + 1 == sectors || (is_long && (sectors <= 16 || i % (sectors / 16) == 0));
        for (unsigned from = 0; chosen && from < 2; from++) {
            crash.loss = from ? RECORD_LOSE_FROM : RECORD_LOSE_SECTOR;
            crash.sector = i;
            look_at(tally, &crash);
            tally->torn++;
        }
    }
}

/* Each call that is not synced, alone. It is torn where most is written beside it: just before it is synced. */
static void drop_each(struct tally *tally, uint32_t prefix)
{
    for (uint32_t i = 0; i < prefix; i++) {
        struct record_crash crash = {.prefix = prefix, .loss = RECORD_LOSE_ONE, .call = i};
        if (!storage_record_open(i, prefix))
            continue;
        look_at(tally, &crash);
        tally->dropped++;
        if (storage_record_op(i)->synced_at == prefix || prefix == storage_record_count())
            tear(tally, crash);
    }
}

/* From the end: a disk that was looked at had more to keep than one of the same bytes before. */
static void lose_power_everywhere(struct tally *tally)
{
    for (uint32_t prefix = storage_record_count() + 1; prefix-- > 0;) {
        struct record_crash crash = {.prefix = prefix, .loss = RECORD_LOSE_UNSYNCED};
        look_at(tally, &crash);
        crash.loss = RECORD_LOSE_NOTHING;
        look_at(tally, &crash);
        tally->prefixes++;
        drop_each(tally, prefix);
        crash.loss = RECORD_LOSE_RANDOM;
        for (unsigned i = 0; is_long && i < PREFIX_RANDOM; i++) {
            crash.seed = (uint64_t)prefix * PREFIX_RANDOM + i;
            look_at(tally, &crash);
            tally->random++;
        }
    }
}

/* ---- killed first ---- */

/* The acts that were under way are open for ever, later ones were never begun. */
static void cut_acts(uint32_t prefix)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < life.acts_count; i++) {
        struct act act = life.acts[i];
        if (!is_begun(&act, prefix))
            continue;
        act.ended = is_answered(&act, prefix) ? act.ended : RECORD_NEVER;
        life.acts[kept++] = act;
    }
    life.acts_count = kept;
}

/* What a start finds in the journal is voted on as it is. */
static void vote_on_what_is_found(void)
{
    for (uint32_t i = 0; i < life.acts_count; i++) {
        struct act *act = &life.acts[i];
        if (act->kind == ACT_JOURNAL && act->ended == RECORD_NEVER && read_journal(act->step) == (int)act->try_number)
            end(act, 0);
    }
}

/* What a start finds, and one more step, durable; with its vote and a checkpoint, or by itself. */
static void live_on(bool with_files)
{
    struct ampd_model_record *records;
    size_t count;
    open_all(life.data);
    vote_on_what_is_found();
    assert_int_equal(ampd_store_load(life.store, &records, &count, NULL), 0);
    uint64_t step = count == 1 && records[0].last != NULL ? records[0].last->step + 1 : 1;
    bool has_epoch = count == 1 && records[0].epoch != 0;
    ampd_model_records_free(records, count);
    if (count == 0)
        put_model();
    if (!has_epoch)
        put_epoch();
    if (with_files)
        put_journal(step, 1);
    put_row(step, true);
    if (with_files)
        put_checkpoint(step);
}

/* The process is killed after that call; another one starts on what the system has, and works on. */
static void kill_and_live_on(uint32_t prefix, bool with_files, uint32_t failing_sync)
{
    const struct record_crash crash = {.prefix = prefix, .loss = RECORD_LOSE_NOTHING};
    char root[256];
    (void)snprintf(root, sizeof root, "%s", storage_fixture_directory());
    (void)snprintf(life.data, sizeof life.data, "%s/data", root);
    storage_record_make(&crash, root);
    cut_acts(prefix);
    storage_record_resume(root, prefix);
    storage_record_fail_sync(failing_sync);
    last = crash;
    if (setjmp(life.ended) == 0)
        live_on(with_files);
    storage_record_stop();
    close_all();
    storage_fixture_remove(root);
}

/* With all that was not synced, or with one call of it. */
static void lose_power(struct tally *tally)
{
    struct record_crash crash = {.prefix = storage_record_count(), .loss = RECORD_LOSE_UNSYNCED};
    look_at(tally, &crash);
    crash.loss = RECORD_LOSE_ONE;
    for (crash.call = 0; crash.call < crash.prefix; crash.call++)
        if (storage_record_open(crash.call, crash.prefix))
            look_at(tally, &crash);
}

/* False: there are fewer syncs in the life. */
static bool live_until_a_sync_fails(uint32_t n)
{
    if (setjmp(life.ended) == 0)
        live(n);
    storage_record_stop();
    close_all();
    return storage_record_failed();
}

/* ---- life ---- */

static int setup(void **state)
{
    memset(&life, 0, sizeof life);
    life.steps = is_long ? 40 : 8;
    life.checkpoint_every = is_long ? 5 : 2;
    life.elements = is_long ? 4000 : 700;
    life.values = calloc(life.elements, sizeof *life.values);
    life.back = calloc(life.elements, sizeof *life.back);
    life.spec = storage_fixture_spec(MODEL);
    life.spec.durability = AMPD_DURABILITY_STEP;
    return 0;
}

static int teardown(void **state)
{
    close_all();
    storage_record_end();
    if (life.root[0] != 0)
        storage_fixture_remove(life.root);
    ampd_model_spec_clear(&life.spec);
    ampd_checkpoint_state_clear(&life.state);
    free(life.values);
    free(life.back);
    return 0;
}

static void whenever_the_power_goes_what_was_answered_is_there_and_nothing_by_half(void **state)
{
    struct tally tally = {0};
    live(0);
    lose_power_everywhere(&tally);
    (void)printf(
        "%u calls, %u acts: %u prefixes, %u single calls lost, %u sectors, %u random losses; %u different disks\n",
        storage_record_count(), life.acts_count, tally.prefixes, tally.dropped, tally.torn, tally.random, tally.disks);
    assert_true(tally.disks > 500);
    free(tally.seen.hashes);
}

static void a_power_loss_after_a_kill_takes_no_more(void **state)
{
    struct tally tally = {0};
    live(0);
    uint32_t calls = storage_record_count();
    for (uint32_t prefix = calls + 1; prefix-- > 0;) {
        if (!is_long && prefix % MOMENT_EVERY != 0)
            continue;
        kill_and_live_on(prefix, prefix % 2 == 1, 0);
        lose_power(&tally);
    }
    (void)printf("%u calls, with kills after them: %u different disks\n", calls, tally.disks);
    assert_true(tally.disks > 100);
    free(tally.seen.hashes);
}

/* The system may take what it could not write for written; the process ends, and the next one finds it all the same. */
static void a_power_loss_after_a_sync_that_failed_takes_no_more(void **state)
{
    uint32_t n = 1, disks = 0;
    for (; live_until_a_sync_fails(n); n += is_long ? 1 : MOMENT_EVERY) {
        struct tally tally = {0}; /* other lives may have other things to keep on a disk of the same bytes */
        kill_and_live_on(storage_record_count(), n % 2 == 1, 0);
        lose_power(&tally);
        disks += tally.disks;
        free(tally.seen.hashes);
        (void)teardown(state);
        (void)setup(state);
    }
    (void)printf("%u syncs, and those that failed: %u disks\n", n - 1, disks);
    assert_true(n > 40);
}

/* What the first process did not come to sync, the second one cannot; the third one finds it all the same. */
static void a_power_loss_after_a_kill_and_a_sync_that_failed_takes_no_more(void **state)
{
    unsigned failed = 0;
    live(0);
    for (uint32_t prefix = storage_record_count(); prefix-- > 0;) {
        if (storage_record_op(prefix)->kind != RECORD_SYNC || (!is_long && prefix % 7 != 0))
            continue;
        for (uint32_t n = 1;; n++) {
            struct tally tally = {0};
            kill_and_live_on(prefix, false, n);
            if (!storage_record_failed())
                break;
            kill_and_live_on(storage_record_count(), n % 2 == 1, 0);
            look_at(&tally, &(const struct record_crash){storage_record_count(), RECORD_LOSE_UNSYNCED, 0, 0, 0});
            free(tally.seen.hashes);
            failed++;
        }
    }
    (void)printf("%u syncs failed after a kill\n", failed);
    assert_true(failed > 100);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whenever_the_power_goes_what_was_answered_is_there_and_nothing_by_half, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_power_loss_after_a_kill_takes_no_more, setup, teardown),
        cmocka_unit_test_setup_teardown(a_power_loss_after_a_sync_that_failed_takes_no_more, setup, teardown),
        cmocka_unit_test_setup_teardown(a_power_loss_after_a_kill_and_a_sync_that_failed_takes_no_more, setup,
                                        teardown),
    };
    /* No byte of these disks is to outlive the test, and many are made: memory will do. */
    if (access("/dev/shm", W_OK) == 0)
        (void)setenv("TMPDIR", "/dev/shm", 0);
    is_long = argc > 1 && strcmp(argv[1], "--long") == 0;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed != 0)
        (void)fprintf(stderr, "the last disk: after %u calls, loss %d of call %u, sector %u, seed %llu\n", last.prefix,
                      (int)last.loss, last.call, last.sector, (unsigned long long)last.seed);
    return failed;
}
