/*
 * Checkpoint files are written on a thread of their own, so that training does not wait for them. A part is this
 * shard's file of one checkpoint. The core gives the blocks of a part range by range, and says when each may be read.
 *
 * The tasks of a part run in this order: open, blocks (any number), and a last one. The last one seals the file when no
 * block is `left`, or abandons it after a cancel, if it is not sealed already.
 *
 * A task that fails for lack of room, memory or rights goes back to the loop, whose timer gives it to the thread again
 * later: in between the thread may remove a file and so make room. Later tasks of the same part are held until that
 * task has succeeded.
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
#include "storage/checkpoint_writer.h"

#include <stdlib.h>

/* Time between two tries of a write that failed. */
#define RETRY_MS 500

/* One task of a part. */
struct cut_task {
    struct io_task task;
    struct cut *cut;
    /* The work, which is tried again where io_storage_is_retried; other failures end the process. */
    int (*try_cb)(struct cut_task *task, struct amp_error *error);
    enum {
        TRIED, /* it has done its work, or has none since the part is over */
        AGAIN, /* it has failed, and is tried again */
        HELD,  /* it was not tried, since a task before it is AGAIN */
    } result;
    /* Only of a task for blocks: the range, and the block (from the first one) and segment at which it goes on. */
    struct ampd_part_blocks blocks;
    uint64_t block;
    uint32_t segment;
};

/* A part that is being written. */
struct cut {
    struct amp_list in_cuts;    /* entry in io_checkpoint_files.cuts */
    struct cut_task open, last; /* the first task and the last one */
    struct cut_task *waits;     /* the task that is AGAIN, or NULL; further tasks are held */
    bool rests;                 /* `waits` is not with the thread, but waits for the timer */
    struct amp_list held;       /* tasks behind `waits`, by their first block; owned */
    struct ampd_server *server;
    struct ampd_part_order order;
    struct ampd_checkpoint_tensor *tensors; /* the range of each parameter that the part holds; owned */
    struct ampd_checkpoint_writer *writer;  /* NULL: not open yet, or sealed; owned */
    uint64_t left;                          /* blocks that are not written yet */
    bool ending;                            /* the last task was submitted */
    atomic_bool cancel;                     /* the core has cancelled the part */
    /* The following are used by the files' thread only, except in last_done. */
    bool retried;                 /* it was logged that a task failed, and none has succeeded since */
    const struct cut_task *again; /* the task that is AGAIN, or NULL */
    uint64_t begun_us;
    bool sealed;     /* the file is complete */
    atomic_int code; /* not 0: the part has failed. The thread may set it while the loop reads it for an earlier task */
    struct ampd_checkpoint_record record;
};

struct restore_task {
    struct io_task task;
    struct ampd_server *server;
    struct ampd_restore_order order;
    struct ampd_checkpoint_record checkpoint;
    int code;
    struct ampd_checkpoint_state state;
};

/* ---- the elements of a shard ---- */

/* The elements [*begin, *end) of parameter i that lie in the blocks [first, first + count). False: none. */
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

/* Whether the part has failed or was cancelled, so that its tasks have nothing to do. */
static bool is_over(const struct cut *cut)
{
    return atomic_load(&cut->code) != 0 || atomic_load(&cut->cancel);
}

/* Whether the task may be tried now; else sets its result (TRIED where the part is over, or HELD). */
static bool may_try(struct cut_task *task)
{
    struct cut *cut = task->cut;
    task->result = TRIED;
    if (cut->again != NULL && atomic_load(&cut->server->pools.stop_waiting))
        atomic_store(&cut->code, AMP_ECANCELLED);
    if (is_over(cut))
        return false;
    if (cut->again != NULL && cut->again != task)
        task->result = HELD;
    return task->result == TRIED;
}

/* Marks the task to be tried again (io_storage_is_retried); any other failure ends the process. */
static void begin_retries(struct cut_task *task, int code, const struct amp_error *error)
{
    struct cut *cut = task->cut;
    const struct ampd_server *server = cut->server;
    if (!io_storage_is_retried(code))
        io_fatal(server->log, "a checkpoint cannot be written", error);
    if (!cut->retried)
        amp_log(server->log, AMP_LOG_ERROR, "checkpoint", "msg=\"cannot write, trying again\" model=%s err=\"%s\"",
                cut->order.spec->name, error->text);
    io_storage_alert_set(server->storage_alert, IO_STORAGE_ALERT_CHECKPOINT, error->text);
    server->checkpoint_files->retried += cut->retried ? 0 : 1;
    cut->retried = true;
    cut->again = task;
    task->result = AGAIN;
}

/* A task has succeeded, or the part is over: ends the alert, unless another part still waits. */
static void end_retries(struct cut *cut)
{
    const struct ampd_server *server = cut->server;
    if (cut->retried && --server->checkpoint_files->retried == 0)
        io_storage_alert_set(server->storage_alert, IO_STORAGE_ALERT_CHECKPOINT, "");
    cut->retried = false;
}

static void cut_task_run(struct io_task *base)
{
    struct cut_task *task = AMP_CONTAINER(base, struct cut_task, task);
    struct amp_error error = {0};
    if (may_try(task)) {
        task->cut->again = NULL;
        int rc = task->try_cb(task, &error);
        if (rc != 0)
            begin_retries(task, rc, &error);
        else
            end_retries(task->cut);
    }
    AMP_FAILPOINT("checkpoint.done");
}

static int open_try(struct cut_task *task, struct amp_error *error)
{
    struct cut *cut = task->cut;
    const struct ampd_part_order *order = &cut->order;
    const struct ampd_checkpoint_path place = io_model_files_place(cut->server, order->spec->name);
    AMP_FAILPOINT("checkpoint.begin");
    if (cut->begun_us == 0)
        cut->begun_us = io_clock_now_us();
    return ampd_checkpoint_begin(&place, cut->tensors, order->spec->parameters_count, order->state, &cut->writer,
                                 error);
}

/* Writes one segment of a block. */
static int put_segment(const struct cut *cut, const struct cut_task *task, const struct ampd_segment *segment,
                       struct amp_error *error)
{
    const struct ampd_tensor_view *tensors = &task->blocks.tensors;
    uint64_t index = task->block * cut->order.layout->block_elements + segment->offset;
    return ampd_checkpoint_put(cut->writer, segment->parameter, segment->first, segment->count,
                               at(tensors->masters, index), at(tensors->m, index), at(tensors->v, index), error);
}

static int blocks_try(struct cut_task *task, struct amp_error *error)
{
    const struct cut *cut = task->cut;
    AMP_FAILPOINT("checkpoint.half");
    for (; task->block < task->blocks.count; task->block++, task->segment = 0) {
        uint32_t count;
        const struct ampd_segment *segments =
            ampd_layout_block(cut->order.layout, task->blocks.first + task->block, &count);
        for (; task->segment < count && !is_over(cut); task->segment++) {
            int rc = put_segment(cut, task, &segments[task->segment], error);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

static int seal_try(struct cut_task *task, struct amp_error *error)
{
    struct cut *cut = task->cut;
    int rc = ampd_checkpoint_end(cut->writer, &cut->record, error);
    cut->sealed = rc == 0;
    cut->writer = rc == 0 ? NULL : cut->writer;
    return rc;
}

/* The last task: seals the file, or abandons it where the part is over. */
static void last_run(struct io_task *base)
{
    struct cut *cut = AMP_CONTAINER(base, struct cut, last.task);
    cut_task_run(base);
    if (cut->last.result == AGAIN)
        return;
    if (!cut->sealed)
        atomic_store(&cut->code, AMP_ECANCELLED);
    ampd_checkpoint_abandon(cut->writer);
    end_retries(cut);
}

static void free_cut(struct cut *cut)
{
    if (cut->waits != NULL && cut->waits != &cut->open && cut->waits != &cut->last)
        free(cut->waits);
    for (struct amp_list *node; (node = amp_list_shift(&cut->held)) != NULL;)
        free(AMP_CONTAINER(node, struct cut_task, task.node));
    free(cut->tensors);
    free(cut);
}

static void on_retry(uv_timer_t *timer);

/*
 * Lets a task that is AGAIN wait for the timer. A server that closes has none: io_checkpoint_files_drop frees
 * it.
 */
static void rest(struct cut *cut, struct cut_task *task)
{
    cut->waits = task;
    cut->rests = true;
    uv_timer_t *timer = &cut->server->checkpoint_files->timer;
    if (cut->server->life.state != SERVER_CLOSING && uv_is_active((uv_handle_t *)timer) == 0)
        (void)uv_timer_start(timer, on_retry, RETRY_MS, 0); /* cannot fail on an open handle */
}

static void try_again(struct cut *cut)
{
    cut->rests = false;
    io_threads_submit(cut->server->pools.files, &cut->waits->task);
}

static void on_retry(uv_timer_t *timer)
{
    struct ampd_server *server = timer->data;
    AMP_LIST_EACH(it, safe, &server->checkpoint_files->cuts)
    {
        struct cut *cut = AMP_CONTAINER(it, struct cut, in_cuts);
        if (cut->rests && server->life.state != SERVER_CLOSING)
            try_again(cut);
    }
}

static void last_done(struct io_task *base)
{
    struct cut *cut = AMP_CONTAINER(base, struct cut, last.task);
    struct ampd_server *server = cut->server;
    if (cut->last.result == AGAIN) {
        rest(cut, &cut->last);
        return;
    }
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
    free_cut(cut);
}

/*
 * Submits the last task of a part, once. A server that closes takes no tasks: io_checkpoint_files_drop ends the part.
 */
static void finish(struct cut *cut)
{
    if (cut->ending || cut->server->life.state == SERVER_CLOSING)
        return;
    cut->ending = true;
    io_threads_submit(cut->server->pools.files, &cut->last.task);
}

/* The task that was AGAIN has succeeded: submits those behind it, in their order. */
static void release_held(struct cut *cut)
{
    bool none = is_over(cut) || cut->server->life.state == SERVER_CLOSING; /* then free_cut frees them */
    cut->waits = NULL;
    for (struct amp_list *node; !none && (node = amp_list_shift(&cut->held)) != NULL;)
        io_threads_submit(cut->server->pools.files, AMP_CONTAINER(node, struct io_task, node));
}

/*
 * Adds a task to those held, in the order of their blocks: one that was already with the thread comes back later than
 * newer ones were held.
 */
static void hold(struct cut *cut, struct cut_task *task)
{
    struct amp_list *at = cut->held.next;
    while (at != &cut->held && AMP_CONTAINER(at, struct cut_task, task.node)->blocks.first < task->blocks.first)
        at = at->next;
    amp_list_push(at, &task->task.node);
}

static void cut_task_done(struct io_task *base)
{
    struct cut_task *task = AMP_CONTAINER(base, struct cut_task, task);
    struct cut *cut = task->cut;
    struct ampd_server *server = cut->server;
    bool over = is_over(cut);
    if (task->result == AGAIN && !over) {
        rest(cut, task);
        return;
    }
    if (task->result == HELD && !over) {
        hold(cut, task);
        return;
    }
    if (cut->waits == task)
        release_held(cut);
    struct ampd_event event = {
        .type = AMPD_EVENT_PART_BLOCKS,
        .u.part_blocks = {.token = cut->order.token, .first = task->blocks.first, .count = task->blocks.count}};
    if (!over) {
        AMP_ASSERT(task->blocks.count <= cut->left); /* no block of a part comes twice */
        cut->left -= task->blocks.count;
    }
    if (over || cut->left == 0)
        finish(cut);
    if (!over && event.u.part_blocks.count > 0)
        io_core_event(server, &event);
    if (task != &cut->open)
        free(task);
}

/* The ranges that the file will hold. Their memory comes later, so any address stands for "there is such a tensor". */
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

void io_checkpoint_files_open(struct ampd_server *server)
{
    uv_timer_t *timer = &server->checkpoint_files->timer;
    AMP_ASSERT(uv_timer_init(&server->loop, timer) == 0);
    timer->data = server;
}

void io_checkpoint_files_close(struct ampd_server *server)
{
    uv_close((uv_handle_t *)&server->checkpoint_files->timer, NULL);
}

void io_checkpoint_files_cut(struct ampd_server *server, const struct ampd_part_order *order)
{
    struct cut *cut = calloc(1, sizeof *cut);
    AMP_ASSERT(find_cut(server, order->token) == NULL); /* it identifies the part */
    AMP_NEED(cut != NULL);                              /* a small allocation without which a promise would be broken */
    cut->tensors = tensors_of(order);
    AMP_NEED(cut->tensors != NULL);
    /* It is urgent since it starts the thread that writes the file: a drain or a restore may have to wait for that. */
    cut->open = (struct cut_task){
        .task = {.run_cb = cut_task_run, .done_cb = cut_task_done, .urgent = true}, .cut = cut, .try_cb = open_try};
    cut->last = (struct cut_task){.task = {.run_cb = last_run, .done_cb = last_done}, .cut = cut, .try_cb = seal_try};
    amp_list_init(&cut->held);
    cut->server = server;
    cut->order = *order;
    cut->left = order->count;
    atomic_init(&cut->cancel, false);
    atomic_init(&cut->code, 0);
    amp_list_push(&server->checkpoint_files->cuts, &cut->in_cuts);
    io_threads_submit(server->pools.files, &cut->open.task);
}

void io_checkpoint_files_cut_blocks(struct ampd_server *server, const struct ampd_part_blocks *blocks)
{
    struct cut *cut = find_cut(server, blocks->token);
    struct cut_task *task = calloc(1, sizeof *task);
    AMP_ASSERT(cut != NULL && !cut->ending); /* the core sends none after the last one or a cancel */
    AMP_NEED(task != NULL);                  /* without it a promise would be broken */
    *task = (struct cut_task){.task = {.run_cb = cut_task_run, .done_cb = cut_task_done},
                              .cut = cut,
                              .try_cb = blocks_try,
                              .blocks = *blocks};
    if (cut->waits != NULL)
        hold(cut, task);
    else
        io_threads_submit(server->pools.files, &task->task);
}

void io_checkpoint_files_cut_cancel(struct ampd_server *server, uint64_t token)
{
    struct cut *cut = find_cut(server, token);
    if (cut == NULL)
        return;
    atomic_store(&cut->cancel, true);
    if (!cut->ending)
        cut->last.task.urgent = true; /* a restore may wait for it */
    if (cut->waits == NULL)
        finish(cut);
    else if (cut->rests && server->life.state != SERVER_CLOSING) {
        cut->waits->task.urgent = true;
        try_again(cut); /* the part ends when this task has come back */
    }
}

void io_checkpoint_files_drop(struct ampd_server *server)
{
    for (struct amp_list *node; (node = amp_list_shift(&server->checkpoint_files->cuts)) != NULL;) {
        struct cut *cut = AMP_CONTAINER(node, struct cut, in_cuts);
        ampd_checkpoint_abandon(cut->writer);
        free_cut(cut);
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
    AMP_NEED(task != NULL); /* 1 KiB, without which the restore could not end */
    task->task = (struct io_task){.run_cb = restore_run, .done_cb = restore_done, .urgent = true, .slow = true};
    task->server = server;
    task->order = *order;
    task->checkpoint = *order->checkpoint;
    task->order.checkpoint = &task->checkpoint;
    io_threads_submit(server->pools.files, &task->task);
}
