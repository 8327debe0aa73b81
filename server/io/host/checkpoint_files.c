/*
 * Checkpoint files, on a thread of their own: training does not wait for them. The core gives the blocks of a part one
 * after the other and says when each may be read; a part's tasks run in the order in which they were given.
 *
 * The tasks of a part: open, blocks (any number), and last either seal or abandon. Its `left` blocks tell when to seal;
 * a cancel abandons it, if it is not being sealed already.
 */
#include "server/io/host/checkpoint_files.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "server/io/base/clock.h"
#include "server/io/base/core_event.h"
#include "server/io/base/counts.h"
#include "server/io/base/fatal.h"
#include "server/io/base/server.h"
#include "server/io/base/storage_alert.h"
#include "server/io/base/threads.h"
#include "server/io/host/model_files.h"
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/checkpoint_writer.h"

#include <stdlib.h>
#include <time.h>

/* Time between two tries on a full disk, in slices of which a cancel is noticed. */
#define RETRY_MS       500
#define RETRY_SLICE_MS 20

/* A part in the making. */
struct cut {
    struct amp_list in_cuts;   /* of the server, so that blocks and a cancel find it */
    struct io_task open, last; /* last: seal or abandon */
    struct ampd_server *server;
    struct ampd_part_order order;
    struct ampd_checkpoint_tensor *tensors; /* what of each parameter is in it; owned */
    struct ampd_checkpoint_writer *writer;  /* NULL: not open, or over */
    uint64_t left;                          /* blocks that are not written */
    bool ending;                            /* seal or abandon is on its way */
    atomic_bool cancel;
    bool told; /* the log has its trouble */
    uint64_t begun_us;
    atomic_int code; /* the thread's: a later task may set it while the loop looks at it for an earlier one */
    struct ampd_checkpoint_record record;
};

struct blocks_task {
    struct io_task task;
    struct cut *cut;
    struct ampd_part_blocks blocks;
};

struct restore_task {
    struct io_task task;
    struct ampd_server *server;
    struct ampd_restore_order order;
    struct ampd_checkpoint_record checkpoint;
    int code;
    struct ampd_checkpoint_state state;
};

/* ---- which elements a shard has ---- */

/* What of parameter i lies in the blocks [first, first + count). False: nothing. */
static bool part_of(const struct ampd_layout *layout, uint32_t i, uint64_t first, uint64_t count, uint64_t *begin,
                    uint64_t *end)
{
    uint64_t from = first * layout->block_elements, until = (first + count) * layout->block_elements;
    uint64_t start = layout->starts[i], stop = start + layout->sizes[i];
    *begin = from > start ? from - start : 0;
    *end = until < stop ? until - start : layout->sizes[i];
    if (until <= start || from >= stop)
        *begin = *end = 0;
    return *begin < *end;
}

static float *at(float *flat, uint64_t index)
{
    return flat != NULL ? flat + index : NULL;
}

struct ampd_checkpoint_target *io_checkpoint_files_targets(const struct ampd_restore_order *order)
{
    const struct ampd_model_spec *spec = order->spec;
    const struct ampd_layout *layout = order->layout;
    struct ampd_checkpoint_target *targets = calloc(spec->parameters_count + (size_t)1, sizeof *targets);
    for (uint32_t i = 0; targets != NULL && i < spec->parameters_count; i++) {
        struct ampd_checkpoint_target *target = &targets[i];
        *target = (struct ampd_checkpoint_target){.name = spec->parameters[i].name,
                                                  .dimensions = spec->parameters[i].dimensions,
                                                  .shape = spec->parameters[i].shape,
                                                  .is_part = true};
        uint64_t index = 0;
        if (part_of(layout, i, order->first, order->count, &target->first, &target->end))
            index = layout->starts[i] + target->first - order->first * layout->block_elements;
        target->master = at(order->tensors.masters, index);
        target->m = at(order->tensors.m, index);
        target->v = at(order->tensors.v, index);
    }
    return targets;
}

/* ---- writing ---- */

/* Waits before another try on a full disk. False: the part is cancelled, or the server ends. */
static bool wait_unless_cancelled(const struct cut *cut)
{
    struct timespec slice = {.tv_nsec = RETRY_SLICE_MS * 1000000L};
    for (int waited = 0; waited < RETRY_MS; waited += RETRY_SLICE_MS) {
        if (atomic_load(&cut->cancel) || atomic_load(&cut->server->pools.stop_waiting))
            return false;
        (void)nanosleep(&slice, NULL); /* an early end is as good */
    }
    return true;
}

/* After a failure: whether to try again. Any but a full disk or memory ends the process. */
static bool try_again(struct cut *cut, int code, const struct amp_error *error)
{
    const struct ampd_server *server = cut->server;
    if (code != AMP_EEXHAUSTED && code != AMP_ENOMEM)
        io_fatal(server->log, "a checkpoint cannot be written", error);
    if (!cut->told)
        amp_log(server->log, AMP_LOG_ERROR, "checkpoint", "msg=\"cannot write, trying again\" model=%s err=\"%s\"",
                cut->order.spec->name, error->text);
    io_storage_alert_set(server->storage_alert, IO_STORAGE_ALERT_CHECKPOINT, error->text);
    cut->told = true;
    if (wait_unless_cancelled(cut))
        return true;
    atomic_store(&cut->code, AMP_ECANCELLED);
    return false;
}

/* Whether a task of the part has anything to do. */
static bool is_over(const struct cut *cut)
{
    return atomic_load(&cut->code) != 0 || atomic_load(&cut->cancel);
}

static void clear_alert(const struct cut *cut)
{
    if (cut->told)
        io_storage_alert_set(cut->server->storage_alert, IO_STORAGE_ALERT_CHECKPOINT, "");
}

static void open_run(struct io_task *base)
{
    struct cut *cut = AMP_CONTAINER(base, struct cut, open);
    const struct ampd_part_order *order = &cut->order;
    const struct ampd_checkpoint_path place = io_model_files_place(cut->server, order->spec->name);
    struct amp_error error = {0};
    AMP_FAILPOINT("checkpoint.begin");
    cut->begun_us = io_clock_now_us();
    while (!is_over(cut)) {
        int rc = ampd_checkpoint_begin(&place, cut->tensors, order->spec->parameters_count, order->state, &cut->writer,
                                       &error);
        if (rc == 0 || !try_again(cut, rc, &error))
            break;
    }
    AMP_FAILPOINT("checkpoint.done");
}

/* The segments of one block of a batch. */
static int put_block(struct cut *cut, const struct ampd_part_blocks *blocks, uint64_t block, uint32_t segment,
                     struct amp_error *error)
{
    const struct ampd_layout *layout = cut->order.layout;
    uint32_t count;
    const struct ampd_segment *at_segment = ampd_layout_block(layout, block, &count) + segment;
    uint64_t index = (block - blocks->first) * layout->block_elements + at_segment->offset;
    return ampd_checkpoint_put(cut->writer, at_segment->parameter, at_segment->first, at_segment->count,
                               at(blocks->tensors.masters, index), at(blocks->tensors.m, index),
                               at(blocks->tensors.v, index), error);
}

static void blocks_run(struct io_task *base)
{
    struct blocks_task *task = AMP_CONTAINER(base, struct blocks_task, task);
    struct cut *cut = task->cut;
    struct amp_error error = {0};
    AMP_FAILPOINT("checkpoint.half");
    for (uint64_t i = 0; i < task->blocks.count; i++) {
        uint32_t count;
        (void)ampd_layout_block(cut->order.layout, task->blocks.first + i, &count);
        for (uint32_t s = 0; s < count && !is_over(cut);) {
            int rc = put_block(cut, &task->blocks, task->blocks.first + i, s, &error);
            if (rc == 0)
                s++;
            else if (!try_again(cut, rc, &error))
                break; /* it is over */
        }
    }
    AMP_FAILPOINT("checkpoint.done");
}

static void seal_run(struct io_task *base)
{
    struct cut *cut = AMP_CONTAINER(base, struct cut, last);
    struct amp_error error = {0};
    while (!is_over(cut)) {
        int rc = ampd_checkpoint_end(cut->writer, &cut->record, &error);
        if (rc == 0) {
            cut->writer = NULL;
            break;
        }
        if (!try_again(cut, rc, &error))
            break;
    }
    if (cut->writer != NULL && atomic_load(&cut->code) == 0)
        atomic_store(&cut->code, AMP_ECANCELLED);
    ampd_checkpoint_abandon(cut->writer);
    AMP_FAILPOINT("checkpoint.done");
    clear_alert(cut);
}

static void abandon_run(struct io_task *base)
{
    struct cut *cut = AMP_CONTAINER(base, struct cut, last);
    atomic_store(&cut->code, AMP_ECANCELLED);
    ampd_checkpoint_abandon(cut->writer);
    clear_alert(cut);
}

static void cut_done(struct io_task *base)
{
    struct cut *cut = AMP_CONTAINER(base, struct cut, last);
    struct ampd_server *server = cut->server;
    int code = atomic_load(&cut->code);
    if (code == 0) {
        io_timing_add(&server->counts.checkpoint, cut->begun_us);
        (void)atomic_fetch_add(&server->counts.checkpoint_bytes, cut->record.size_bytes);
        amp_log(server->log, AMP_LOG_INFO, "checkpoint", "msg=\"written\" model=%s step=%llu bytes=%llu file=%s",
                cut->order.spec->name, (unsigned long long)cut->order.step, (unsigned long long)cut->record.size_bytes,
                cut->record.file);
    }
    struct ampd_event event = {
        .type = AMPD_EVENT_PART_WRITTEN,
        .u.part = {.token = cut->order.token, .code = code, .record = code == 0 ? &cut->record : NULL}};
    amp_list_remove(&cut->in_cuts);
    AMP_FAILPOINT("checkpoint.written");
    io_core_event(server, &event);
    AMP_FAILPOINT("checkpoint.done");
    free(cut->tensors);
    free(cut);
}

/* The last task of a part. */
static void finish(struct cut *cut, void (*run_cb)(struct io_task *))
{
    if (cut->ending || cut->server->life.state == SERVER_CLOSING)
        return; /* (a server that closes takes no more tasks: io_checkpoint_files_drop ends the part) */
    cut->ending = true;
    cut->last = (struct io_task){.run_cb = run_cb, .done_cb = cut_done};
    io_threads_submit(cut->server->pools.files, &cut->last);
}

static void open_done(struct io_task *base)
{
    struct cut *cut = AMP_CONTAINER(base, struct cut, open);
    if (is_over(cut))
        finish(cut, abandon_run);
    else if (cut->left == 0)
        finish(cut, seal_run);
}

static void blocks_done(struct io_task *base)
{
    struct blocks_task *task = AMP_CONTAINER(base, struct blocks_task, task);
    struct cut *cut = task->cut;
    struct ampd_event event = {
        .type = AMPD_EVENT_PART_BLOCKS,
        .u.part_blocks = {.token = cut->order.token, .first = task->blocks.first, .count = task->blocks.count}};
    bool over = is_over(cut);
    AMP_ASSERT(task->blocks.count <= cut->left); /* no block of a part comes twice */
    cut->left -= task->blocks.count;
    struct ampd_server *server = cut->server;
    if (!over && cut->left == 0)
        finish(cut, seal_run);
    if (!over)
        io_core_event(server, &event);
    free(task);
}

/* What the file will hold: the memory behind it comes later, so that any address stands for "there is one". */
static struct ampd_checkpoint_tensor *tensors_of(const struct ampd_part_order *order)
{
    static const float some;
    const struct ampd_model_spec *spec = order->spec;
    struct ampd_checkpoint_tensor *tensors = calloc(spec->parameters_count + (size_t)1, sizeof *tensors);
    for (uint32_t i = 0; tensors != NULL && i < spec->parameters_count; i++) {
        tensors[i] = (struct ampd_checkpoint_tensor){.name = spec->parameters[i].name,
                                                     .dimensions = spec->parameters[i].dimensions,
                                                     .shape = spec->parameters[i].shape,
                                                     .master = &some,
                                                     .m = order->has_m ? &some : NULL,
                                                     .v = order->has_v ? &some : NULL,
                                                     .is_part = true};
        (void)part_of(order->layout, i, order->first, order->count, &tensors[i].first, &tensors[i].end);
    }
    return tensors;
}

static struct cut *find_cut(struct ampd_server *server, uint64_t token)
{
    AMP_LIST_EACH(it, safe, &server->checkpoint_files->cuts)
    {
        struct cut *cut = AMP_CONTAINER(it, struct cut, in_cuts);
        if (cut->order.token == token)
            return cut;
    }
    return NULL;
}

void io_checkpoint_files_init(struct io_checkpoint_files *files)
{
    amp_list_init(&files->cuts);
}

void io_checkpoint_files_cut(struct ampd_server *server, const struct ampd_part_order *order)
{
    struct cut *cut = calloc(1, sizeof *cut);
    AMP_ASSERT(find_cut(server, order->token) == NULL); /* blocks and a cancel are told apart by it */
    AMP_NEED(cut != NULL); /* little memory that a promise depends on */
    cut->tensors = tensors_of(order);
    AMP_NEED(cut->tensors != NULL);
    cut->open = (struct io_task){.run_cb = open_run, .done_cb = open_done};
    cut->server = server;
    cut->order = *order;
    cut->left = order->count;
    atomic_init(&cut->cancel, false);
    atomic_init(&cut->code, 0);
    amp_list_push(&server->checkpoint_files->cuts, &cut->in_cuts);
    io_threads_submit(server->pools.files, &cut->open);
}

void io_checkpoint_files_cut_blocks(struct ampd_server *server, const struct ampd_part_blocks *blocks)
{
    struct cut *cut = find_cut(server, blocks->token);
    struct blocks_task *task = calloc(1, sizeof *task);
    AMP_ASSERT(cut != NULL && !cut->ending); /* the core sends none behind the last one, or behind a cancel */
    AMP_NEED(task != NULL); /* as above */
    task->task = (struct io_task){.run_cb = blocks_run, .done_cb = blocks_done};
    task->cut = cut;
    task->blocks = *blocks;
    io_threads_submit(server->pools.files, &task->task);
}

void io_checkpoint_files_cut_cancel(struct ampd_server *server, uint64_t token)
{
    struct cut *cut = find_cut(server, token);
    if (cut == NULL)
        return;
    atomic_store(&cut->cancel, true);
    finish(cut, abandon_run);
}

void io_checkpoint_files_drop(struct ampd_server *server)
{
    for (struct amp_list *node; (node = amp_list_shift(&server->checkpoint_files->cuts)) != NULL;) {
        struct cut *cut = AMP_CONTAINER(node, struct cut, in_cuts);
        ampd_checkpoint_abandon(cut->writer);
        free(cut->tensors);
        free(cut);
    }
}

/* ---- reading ---- */

static void restore_run(struct io_task *base)
{
    struct restore_task *task = AMP_CONTAINER(base, struct restore_task, task);
    const struct ampd_restore_order *order = &task->order;
    struct ampd_server *server = task->server;
    struct amp_error error = {0};
    uint64_t begun_us = io_clock_now_us();
    AMP_FAILPOINT("restore.begin");
    struct ampd_checkpoint_target *targets = io_checkpoint_files_targets(order);
    if (targets == NULL)
        task->code = amp_error_set(&error, AMP_ENOMEM, NULL, "out of memory reading a checkpoint");
    else
        task->code = ampd_checkpoint_read(server->data.checkpoint_dir, task->checkpoint.file, task->checkpoint.manifest,
                                          targets, order->spec->parameters_count, &task->state, &error);
    free(targets);
    AMP_FAILPOINT("restore.done");
    if (task->code == 0)
        io_timing_add(&server->counts.restore, begun_us);
    if (task->code == 0)
        amp_log(server->log, AMP_LOG_INFO, "checkpoint", "msg=\"read\" model=%s step=%llu file=%s", order->spec->name,
                (unsigned long long)task->state.step, task->checkpoint.file);
    else
        amp_log(server->log, AMP_LOG_ERROR, "checkpoint", "msg=\"cannot be used\" model=%s file=%s err=\"%s\"",
                order->spec->name, task->checkpoint.file, error.text);
}

static void restore_done(struct io_task *base)
{
    struct restore_task *task = AMP_CONTAINER(base, struct restore_task, task);
    struct ampd_event event = {
        .type = AMPD_EVENT_RESTORED,
        .u.restored = {.token = task->order.token, .code = task->code, .state = task->code == 0 ? &task->state : NULL}};
    AMP_FAILPOINT("restore.told");
    io_core_event(task->server, &event);
    AMP_FAILPOINT("restore.done");
    ampd_checkpoint_state_clear(&task->state);
    free(task);
}

void io_checkpoint_files_restore(struct ampd_server *server, const struct ampd_restore_order *order)
{
    struct restore_task *task = calloc(1, sizeof *task);
    AMP_NEED(task != NULL); /* 1 KiB that the start depends on */
    task->task = (struct io_task){.run_cb = restore_run, .done_cb = restore_done};
    task->server = server;
    task->order = *order;
    task->checkpoint = *order->checkpoint;
    task->order.checkpoint = &task->checkpoint;
    io_threads_submit(server->pools.files, &task->task);
}
