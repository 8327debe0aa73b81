/*
 * Checkpoint files, on a thread of their own: training does not wait for them. The core has made the snapshot, which
 * stays as it is until PART_WRITTEN.
 */
#include "base/assert.h"
#include "server/io/server.h"
#include "server/io/trouble.h"
#include "storage/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Time between two tries on a full disk, in slices of which a cancel is noticed. */
#define RETRY_MS       500
#define RETRY_SLICE_MS 20

struct cut_task {
    struct io_task task;
    struct amp_list in_cuts; /* of the server, so that a cancel finds it */
    struct ampd_server *server;
    struct ampd_cut_order order;
    atomic_bool cancel;
    int code;
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

/* ---- writing ---- */

static float *at_start(float *flat, uint64_t start)
{
    return flat != NULL ? flat + start : NULL;
}

/* The parameters of a model with one shard. The caller frees the array. NULL: out of memory. */
static struct ampd_checkpoint_target *targets_of(const struct ampd_model_spec *spec, const struct ampd_layout *layout,
                                                 const struct ampd_tensor_view *tensors)
{
    struct ampd_checkpoint_target *targets = calloc(spec->parameters_count, sizeof *targets);
    for (uint32_t i = 0; targets != NULL && i < spec->parameters_count; i++) {
        targets[i] = (struct ampd_checkpoint_target){.name = spec->parameters[i].name,
                                                     .dimensions = spec->parameters[i].dimensions,
                                                     .shape = spec->parameters[i].shape,
                                                     .master = at_start(tensors->masters, layout->starts[i]),
                                                     .m = at_start(tensors->m, layout->starts[i]),
                                                     .v = at_start(tensors->v, layout->starts[i])};
    }
    return targets;
}

static int write_once(struct cut_task *cut, struct amp_error *error)
{
    const struct ampd_cut_order *order = &cut->order;
    struct ampd_checkpoint_place place = {cut->server->dir.path, order->spec->name, 0, 1};
    struct ampd_checkpoint_target *targets = targets_of(order->spec, order->layout, &order->tensors);
    struct ampd_checkpoint_tensor *tensors = calloc(order->spec->parameters_count, sizeof *tensors);
    int rc = AMP_ENOMEM;
    if (targets == NULL || tensors == NULL) {
        (void)amp_error_set(error, rc, NULL, "out of memory writing a checkpoint");
    } else {
        for (uint32_t i = 0; i < order->spec->parameters_count; i++)
            tensors[i] = (struct ampd_checkpoint_tensor){targets[i].name,   targets[i].dimensions, targets[i].shape,
                                                         targets[i].master, targets[i].m,          targets[i].v};
        rc = ampd_checkpoint_write(&place, tensors, order->spec->parameters_count, order->state, &cut->cancel,
                                   &cut->record, error);
    }
    free(tensors);
    free(targets);
    return rc;
}

static bool wait_unless_cancelled(struct cut_task *cut)
{
    struct timespec slice = {.tv_nsec = RETRY_SLICE_MS * 1000000L};
    for (int waited = 0; waited < RETRY_MS; waited += RETRY_SLICE_MS) {
        if (atomic_load(&cut->cancel) || atomic_load(&cut->server->stop_waiting))
            return false;
        (void)nanosleep(&slice, NULL); /* an early end is as good */
    }
    return true;
}

/* Tries until it is written, cancelled, or another failure ends the process. */
static void write_at_last(struct cut_task *cut)
{
    const struct ampd_server *server = cut->server;
    struct amp_error error = {0};
    bool told = false;
    for (;;) {
        cut->code = write_once(cut, &error);
        if (cut->code == 0 || cut->code == AMP_ECANCELLED)
            return;
        if (cut->code != AMP_EEXHAUSTED && cut->code != AMP_ENOMEM)
            ampd_server_fatal(server, "a checkpoint cannot be written", &error);
        if (!told)
            amp_log(server->log, AMP_LOG_ERROR, "checkpoint", "msg=\"cannot write, trying again\" model=%s err=\"%s\"",
                    cut->order.spec->name, error.text);
        io_trouble_set(server->trouble, IO_TROUBLE_CHECKPOINT, error.text);
        told = true;
        if (!wait_unless_cancelled(cut)) {
            cut->code = AMP_ECANCELLED;
            return;
        }
    }
}

static void cut_run(struct io_task *base)
{
    struct cut_task *cut = AMP_CONTAINER(base, struct cut_task, task);
    write_at_last(cut);
    io_trouble_set(cut->server->trouble, IO_TROUBLE_CHECKPOINT, "");
}

static void cut_done(struct io_task *base)
{
    struct cut_task *cut = AMP_CONTAINER(base, struct cut_task, task);
    struct ampd_server *server = cut->server;
    if (cut->code == 0)
        amp_log(server->log, AMP_LOG_INFO, "checkpoint", "msg=\"written\" model=%s step=%llu bytes=%llu file=%s",
                cut->order.spec->name, (unsigned long long)cut->order.step, (unsigned long long)cut->record.size_bytes,
                cut->record.file);
    cut->record.epoch = cut->order.epoch;
    cut->record.at_us = ampd_utc_us();
    struct ampd_event event = {
        .type = AMPD_EVENT_PART_WRITTEN,
        .u.part = {.token = cut->order.token, .code = cut->code, .record = cut->code == 0 ? &cut->record : NULL}};
    amp_list_remove(&cut->in_cuts);
    ampd_server_event(server, &event);
    free(cut);
}

void ampd_server_cut(struct ampd_server *server, const struct ampd_cut_order *order)
{
    struct cut_task *cut = calloc(1, sizeof *cut);
    AMP_ASSERT(cut != NULL); /* 1 KiB that a promise depends on */
    cut->task = (struct io_task){.run_cb = cut_run, .done_cb = cut_done};
    cut->server = server;
    cut->order = *order;
    atomic_init(&cut->cancel, false);
    amp_list_push(&server->cuts, &cut->in_cuts);
    io_threads_submit(server->files, &cut->task);
}

void ampd_server_cut_cancel(struct ampd_server *server, uint64_t token)
{
    AMP_LIST_EACH(it, safe, &server->cuts)
    {
        struct cut_task *cut = AMP_CONTAINER(it, struct cut_task, in_cuts);
        if (cut->order.token == token)
            atomic_store(&cut->cancel, true);
    }
}

/* ---- reading ---- */

static void restore_run(struct io_task *base)
{
    struct restore_task *task = AMP_CONTAINER(base, struct restore_task, task);
    const struct ampd_restore_order *order = &task->order;
    const struct ampd_server *server = task->server;
    struct amp_error error = {0};
    struct ampd_checkpoint_target *targets = targets_of(order->spec, order->layout, &order->tensors);
    if (targets == NULL)
        task->code = amp_error_set(&error, AMP_ENOMEM, NULL, "out of memory reading a checkpoint");
    else
        task->code = ampd_checkpoint_read(server->dir.path, task->checkpoint.file, task->checkpoint.manifest, targets,
                                          order->spec->parameters_count, &task->state, &error);
    free(targets);
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
    ampd_server_event(task->server, &event);
    ampd_checkpoint_state_clear(&task->state);
    free(task);
}

void ampd_server_restore(struct ampd_server *server, const struct ampd_restore_order *order)
{
    struct restore_task *task = calloc(1, sizeof *task);
    AMP_ASSERT(task != NULL); /* 1 KiB that the start depends on */
    task->task = (struct io_task){.run_cb = restore_run, .done_cb = restore_done};
    task->server = server;
    task->order = *order;
    task->checkpoint = *order->checkpoint;
    task->order.checkpoint = &task->checkpoint;
    io_threads_submit(server->files, &task->task);
}
