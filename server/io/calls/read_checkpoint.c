/*
 * ReadCheckpoint: a stream of a checkpoint file's bytes. The thread for exports reads a portion of some blocks, the
 * loop sends it, and so on. The file is opened once, so a checkpoint that is dropped meanwhile is still read to its
 * end. Nothing is read while the connection is full: a slow client takes one portion of memory and one descriptor, and
 * READINGS_MAX bounds the number of such calls.
 */
#include "server/io/base/handlers.h"

#include "base/crc32c.h"
#include "proto/block.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/server.h"
#include "server/io/base/threads.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/pages.h"
#include "server/io/calls/server_call.h"
#include "storage/plain_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Blocks of one portion. From the page cache it takes half a millisecond, so that other exports wait no longer. */
#define PORTION_BLOCKS 4

/* Most calls on the whole server. Each takes a descriptor, 1 MiB, and perhaps the disk space of a dropped file. */
#define READINGS_MAX 16

struct reading {
    struct io_server_call call;
    struct io_task task;
    char path[4096]; /* of the file */
    struct ampd_msg_read_checkpoint_header header;
    bool counted;                  /* server->calls->readings counts this call */
    int fd;                        /* the file's descriptor, owned; -1: not open yet */
    bool busy;                     /* the thread has the portion */
    uint8_t *data;                 /* the portion: [PORTION_BLOCKS * AMPD_BLOCK_DATA_MAX], owned */
    uint64_t offset;               /* where the portion begins in the file, bytes */
    uint32_t size;                 /* bytes of the portion */
    uint32_t sent;                 /* how many of them were given to the rpc library */
    bool headed;                   /* the header has been sent */
    uint32_t crcs[PORTION_BLOCKS]; /* CRC32C of each block of the portion */
    struct amp_error error;        /* if code is not 0 */
    int code;                      /* result of the thread */
};

static struct reading *reading_of(struct io_server_call *call)
{
    return AMP_CONTAINER(call, struct reading, call);
}

/* ---- on the thread for exports ---- */

static int open_file(struct reading *reading)
{
    struct stat status;
    reading->fd = ampd_plain_open(reading->path, O_RDONLY);
    if (reading->fd < 0 && errno == ENOENT)
        return amp_error_set(
            &reading->error, AMP_ENOTFOUND, "CHECKPOINT_NOT_FOUND",
            "the checkpoint's file is not there: is the checkpoint directory mounted? If it is, the "
            "checkpoint has been removed meanwhile; ListCheckpoints (ampctl checkpoints) lists those that there are");
    if (reading->fd < 0 || fstat(reading->fd, &status) != 0)
        return amp_error_set(&reading->error, AMP_EIO, NULL, "the checkpoint's file cannot be opened: %s",
                             ampd_plain_strerror(errno));
    if (status.st_size == 0)
        return amp_error_set(&reading->error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "the file is empty");
    if (reading->header.size_bytes == 0) /* nobody could look at it when it was taken up (take_up.c) */
        reading->header.size_bytes = (uint64_t)status.st_size;
    if ((uint64_t)status.st_size != reading->header.size_bytes)
        return amp_error_set(&reading->error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED",
                             "the file has %" PRIu64 " bytes and should have %" PRIu64, (uint64_t)status.st_size,
                             reading->header.size_bytes);
    return 0;
}

static int read_portion(struct reading *reading)
{
    uint64_t left = reading->header.size_bytes - reading->offset, most = PORTION_BLOCKS * (uint64_t)AMPD_BLOCK_DATA_MAX;
    reading->size = (uint32_t)(left < most ? left : most);
    for (uint32_t got = 0; got < reading->size;) {
        ssize_t n = pread(reading->fd, reading->data + got, reading->size - got, (off_t)(reading->offset + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return amp_error_set(&reading->error, AMP_EIO, NULL, "the checkpoint's file cannot be read: %s",
                                 n < 0 ? strerror(errno) : "it has become shorter");
        got += (uint32_t)n;
    }
    for (uint32_t at = 0, i = 0; at < reading->size; at += AMPD_BLOCK_DATA_MAX, i++) {
        uint32_t size = reading->size - at < AMPD_BLOCK_DATA_MAX ? reading->size - at : AMPD_BLOCK_DATA_MAX;
        reading->crcs[i] = amp_crc32c(0, reading->data + at, size);
    }
    return 0;
}

static void reading_run(struct io_task *task)
{
    struct reading *reading = AMP_CONTAINER(task, struct reading, task);
    reading->code = reading->fd < 0 ? open_file(reading) : 0;
    if (reading->code == 0)
        reading->code = read_portion(reading);
}

/* ---- on the loop ---- */

static int send_header(struct reading *reading)
{
    struct amp_buf body = io_message_buf(), message = io_message_buf();
    int rc = ampd_msg_read_checkpoint_header_encode(&reading->header, &body);
    if (rc == 0)
        rc = ampd_block_part_encode(AMPD_BLOCK_HEADER, &body, &message);
    if (rc == 0)
        rc = arpc_call_send(reading->call.rpc, NULL, 0, message.data, message.size, NULL, NULL);
    amp_buf_close(&message);
    amp_buf_close(&body);
    return rc;
}

/* Sends the rest of the portion. AMP_EEXHAUSTED: the connection is full, and reading_writable goes on later. */
static int send_portion(struct reading *reading)
{
    int rc = reading->headed ? 0 : send_header(reading);
    reading->headed = reading->headed || rc == 0;
    while (rc == 0 && reading->sent < reading->size) {
        uint32_t left = reading->size - reading->sent;
        struct ampd_block block = {.index = (uint32_t)((reading->offset + reading->sent) / AMPD_BLOCK_DATA_MAX),
                                   .crc32c = reading->crcs[reading->sent / AMPD_BLOCK_DATA_MAX],
                                   .size = left < AMPD_BLOCK_DATA_MAX ? left : AMPD_BLOCK_DATA_MAX};
        uint8_t head[AMPD_BLOCK_HEAD_MAX];
        size_t head_size = ampd_block_head_encode(&block, head);
        rc = arpc_call_send(reading->call.rpc, head, head_size, reading->data + reading->sent, block.size, NULL, NULL);
        reading->sent += rc == 0 ? block.size : 0;
    }
    return rc;
}

static void read_on(struct reading *reading);

/* Sends the rest of the portion, and then reads the next one or ends the call. */
static void send_on(struct reading *reading)
{
    struct io_server_call *call = &reading->call;
    if (reading->busy || call->finished)
        return;
    int rc = send_portion(reading);
    if (rc == AMP_EEXHAUSTED)
        return;
    if (rc != 0) {
        io_server_call_refuse(call, rc, NULL, "a block cannot be sent: %s", amp_strerror(rc));
        return;
    }
    if (reading->offset + reading->size < reading->header.size_bytes)
        read_on(reading);
    else
        io_server_call_end(call);
}

static void reading_done(struct io_task *task)
{
    struct reading *reading = AMP_CONTAINER(task, struct reading, task);
    struct io_server_call *call = &reading->call;
    reading->busy = false;
    if (reading->code != 0)
        io_server_call_fail(call, &reading->error);
    else
        send_on(reading);
    io_server_call_unref(call);
}

/* Begins to read the next portion. If the connection is full, reading_writable calls this again, by send_on. */
static void read_on(struct reading *reading)
{
    if (arpc_call_queued(reading->call.rpc) > ARPC_LOW_WATER)
        return;
    reading->busy = true;
    reading->offset += reading->size;
    reading->size = reading->sent = 0;
    reading->task = (struct io_task){.run_cb = reading_run, .done_cb = reading_done};
    io_server_call_ref(&reading->call);
    io_threads_submit(reading->call.server->pools.exports, &reading->task);
}

static void reading_free(struct io_server_call *call)
{
    struct reading *reading = reading_of(call);
    call->server->calls->readings -= reading->counted ? 1 : 0;
    if (reading->fd >= 0)
        (void)close(reading->fd);
    free(reading->data);
}

static const struct io_server_call_ops reading_ops = {NULL, NULL, reading_free};

static void begin(struct reading *reading, const struct ampd_msg_read_checkpoint_request *request)
{
    struct ampd_server *server = reading->call.server;
    struct ampd_model_info info;
    struct ampd_msg_checkpoint_info told;
    uint32_t index;
    if (!io_find_model(&reading->call, request->model, &index, &info))
        return;
    const struct ampd_checkpoint_record *record = io_find_checkpoint(&info, request->epoch, request->step);
    if (record == NULL || record->epoch != request->epoch) {
        io_server_call_refuse(&reading->call, AMP_ENOTFOUND, "CHECKPOINT_NOT_FOUND",
                              "%s has no checkpoint of epoch %" PRIu64 ", step %" PRIu64
                              "; ListCheckpoints lists those that there are",
                              request->model, request->epoch, request->step);
        return;
    }
    io_checkpoint_info(info.spec, record, &told);
    reading->header = (struct ampd_msg_read_checkpoint_header){
        .size_bytes = record->size_bytes, .shard = server->options->shard, .parts = told.parts};
    memcpy(reading->header.manifest_hash, told.manifest_hash, sizeof told.manifest_hash);
    if (server->calls->readings == READINGS_MAX) {
        io_server_call_refuse(&reading->call, AMP_EEXHAUSTED, "TOO_MANY_CALLS",
                              "%u checkpoints are being read already; try again when one is done", READINGS_MAX);
        return;
    }
    server->calls->readings++;
    reading->counted = true;
    int length = snprintf(reading->path, sizeof reading->path, "%s/%s", server->data.checkpoint_dir, record->file);
    reading->data = malloc(PORTION_BLOCKS * (size_t)AMPD_BLOCK_DATA_MAX);
    if (reading->data == NULL || length < 0 || (size_t)length >= sizeof reading->path) {
        io_server_call_refuse(&reading->call, AMP_ENOMEM, NULL, "out of memory for this stream; read again");
        return;
    }
    read_on(reading);
}

static void reading_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_read_checkpoint_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct reading), &reading_ops);
    if (call == NULL)
        return;
    reading_of(call)->fd = -1;
    if (ampd_msg_read_checkpoint_request_decode(&request, data, size, &error) != 0)
        io_server_call_fail(call, &error);
    else
        begin(reading_of(call), &request);
}

static void reading_writable(struct arpc_call *rpc)
{
    struct io_server_call *call = io_server_call_of(rpc);
    if (call != NULL)
        send_on(reading_of(call));
}

const struct arpc_handler ampd_handle_read_checkpoint = {
    .message = reading_message,
    .writable = reading_writable,
    .closed = io_server_call_closed,
};
