#include "server/io/calls/attach_memory.h"

#include "base/assert.h"
#include "base/shared.h"
#include "proto/msg_step.h"
#include "server/core/model/tensors.h"
#include "server/io/base/handlers.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/server.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/memory_socket.h"
#include "server/io/calls/pages.h"
#include "server/io/calls/server_call.h"
#include "server/io/host/free_memory.h"
#include "server/io/host/shared_copies.h"
#include "server/io/host/shared_fill.h"
#include "server/io/host/watchers.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/*
 * Most attachments of one rank of a model: the one in use, and an old one that ends soon (of a worker that has joined
 * again before its lost connection was noticed). The bound is for each rank, so that no rank can use up what the others
 * need.
 */
#define ATTACHMENTS_PER_RANK 2

/* An AttachMemory call, with the slot that belongs to it. */
struct attachment {
    struct io_server_call call;
    struct amp_list node;      /* in attachments->list, newest first */
    struct io_watcher watcher; /* for the model's deletion */
    char model[AMPD_NAME_MAX];
    uint32_t rank;
    struct ampd_incarnation incarnation;
    int64_t pid, uid;             /* process that made the call, and its user */
    bool taken;                   /* the descriptors were given; they are given once */
    uint64_t copies[AMPD_COPIES]; /* taken: io_shared_copies_serial of the copies that they are of */
    bool kept;                    /* no process can take pages out of the slot any more */
    /* The slot, and what gives it its pages; its memory and fd are owned. memory is NULL: no slot, node or watcher. */
    struct io_shared_fill fill;
    /* Sent when the slot is filled. Its nonce is random: the descriptors are for the process that sends it. */
    struct ampd_msg_attach_memory_response answer;
};

static struct attachment *attachment_of(struct io_server_call *call)
{
    return AMP_CONTAINER(call, struct attachment, call);
}

void io_attachments_init(struct io_attachments *attachments)
{
    amp_list_init(&attachments->list);
}

static void attachment_free(struct io_server_call *call)
{
    struct attachment *own = attachment_of(call);
    if (own->fill.memory == NULL)
        return;
    amp_list_remove(&own->node);
    io_watchers_remove(&own->watcher);
    io_shared_free(call->server, own->fill.fd, own->fill.memory, own->fill.size);
    ampd_core_uncount_memory(call->server->core, own->fill.size);
}

static const struct io_server_call_ops attach_ops = {NULL, NULL, attachment_free};

static struct attachment *find(const struct ampd_server *server, const char *model, uint32_t rank,
                               struct ampd_incarnation incarnation)
{
    AMP_LIST_EACH(node, next, &server->attachments->list)
    {
        struct attachment *own = AMP_CONTAINER(node, struct attachment, node);
        if (!own->call.finished && own->rank == rank && ampd_incarnation_same(own->incarnation, incarnation) &&
            strcmp(own->model, model) == 0)
            return own;
    }
    return NULL;
}

/* Whether the model still writes its versions to the copies whose descriptors were given. */
static bool has_copies(const struct attachment *own)
{
    const struct ampd_core *core = own->call.server->core;
    struct ampd_model_info info;
    int64_t index = ampd_core_find(core, own->model);
    if (index < 0 || !own->taken)
        return index >= 0;
    ampd_core_model(core, (uint32_t)index, &info);
    return io_shared_copies_serial(own->call.server, info.copies[0]) == own->copies[0] &&
           io_shared_copies_serial(own->call.server, info.copies[1]) == own->copies[1];
}

bool io_attached(const struct ampd_server *server, const char *model, uint32_t rank,
                 struct ampd_incarnation incarnation)
{
    struct attachment *own = find(server, model, rank, incarnation);
    if (own == NULL || has_copies(own))
        return own != NULL;
    io_server_call_refuse(&own->call, AMP_EUNAVAILABLE, "NOT_ATTACHED",
                          "%s was restored into other memory than is attached; attach again", model);
    return false;
}

struct io_server_call *io_attached_slot(const struct ampd_server *server, const char *model, uint32_t rank,
                                        struct ampd_incarnation incarnation, struct io_slot *slot)
{
    struct attachment *own = find(server, model, rank, incarnation);
    struct amp_error error = {0};
    if (own == NULL)
        return NULL;
    if (!own->kept && amp_shared_keeps_pages(own->fill.fd, &error) != 0) {
        io_server_call_fail(&own->call, &error);
        return NULL;
    }
    own->kept = true;
    *slot = (struct io_slot){own->fill.memory, own->answer.slot_bytes};
    return &own->call;
}

/*
 * Gives the descriptors of the copies that the model has now: a rollback may have made them since the call. They are in
 * shared memory, since those were that the call found (check), and are replaced only by such (shared_copies.c).
 */
static void give_copies(const struct ampd_server *server, struct attachment *own, int fds[AMPD_COPIES])
{
    struct ampd_model_info info;
    int64_t index = ampd_core_find(server->core, own->model);
    AMP_ASSERT(index >= 0); /* a deletion ends the call (on_deleted) before the model is gone */
    ampd_core_model(server->core, (uint32_t)index, &info);
    for (unsigned c = 0; c < AMPD_COPIES; c++)
        own->copies[c] = io_shared_copies_give(server, info.copies[c], &fds[c]);
    own->taken = true;
}

/* Whether the descriptors are still to be given, to this process of this user. */
static bool is_for(const struct attachment *own, int64_t pid, int64_t uid)
{
    return !own->call.finished && !own->taken && own->pid == pid && own->uid == uid;
}

bool io_attachment_awaits(const struct ampd_server *server, int64_t pid, int64_t uid)
{
    AMP_LIST_EACH(node, next, &server->attachments->list)
    {
        if (is_for(AMP_CONTAINER(node, struct attachment, node), pid, uid))
            return true;
    }
    return false;
}

bool io_attachment_take(struct ampd_server *server, const uint8_t nonce[16], int64_t pid, int64_t uid, int fds[3])
{
    AMP_LIST_EACH(node, next, &server->attachments->list)
    {
        struct attachment *own = AMP_CONTAINER(node, struct attachment, node);
        const uint64_t wanted[2] = {own->answer.nonce_low, own->answer.nonce_high};
        if (!is_for(own, pid, uid) || memcmp(wanted, nonce, sizeof wanted) != 0)
            continue;
        give_copies(server, own, fds);
        fds[AMPD_COPIES] = own->fill.fd;
        return true;
    }
    return false;
}

void io_attachments_end(struct ampd_server *server)
{
    AMP_LIST_EACH(node, next, &server->attachments->list)
    io_server_call_refuse(&AMP_CONTAINER(node, struct attachment, node)->call, AMP_EUNAVAILABLE, "DRAINING",
                          "the server is ending");
}

uint64_t io_attachments_bytes(const struct ampd_server *server)
{
    uint64_t bytes = 0;
    AMP_LIST_EACH(node, next, &server->attachments->list)
    bytes += AMP_CONTAINER(node, struct attachment, node)->fill.size;
    return bytes;
}

/*
 * Makes room for a new attachment of a rank: if the rank has the most that it may have, its oldest call ends. That is
 * usually the call of a worker that was replaced and whose connection is still open (the process is stopped, or a child
 * of it has the connection). Calls that have been ended but are not closed yet count, too, up to twice as many.
 *
 * On another shard than 0, a new incarnation that no step lists yet may be a worker that has just joined, or a process
 * that only claims so. It does not end the newest attachment of the incarnation that the steps list.
 */
static int make_room(const struct attachment *newcomer, struct ampd_incarnation listed, struct amp_error *error)
{
    const char *model = newcomer->model;
    uint32_t rank = newcomer->rank;
    struct attachment *oldest = NULL;
    bool spare = listed.counter != 0 && !ampd_incarnation_same(newcomer->incarnation, listed);
    unsigned live = 0, all = 0;
    AMP_LIST_EACH(node, next, &newcomer->call.server->attachments->list)
    {
        struct attachment *own = AMP_CONTAINER(node, struct attachment, node);
        if (own->rank != rank || strcmp(own->model, model) != 0)
            continue;
        all++;
        if (own->call.finished)
            continue;
        live++;
        if (spare && ampd_incarnation_same(own->incarnation, listed))
            spare = false; /* the newest of them is the one in use */
        else
            oldest = own;
    }
    if (all >= 2 * ATTACHMENTS_PER_RANK)
        return amp_error_set(error, AMP_EEXHAUSTED, "TOO_MANY_CALLS",
                             "rank %u of %s has memory attached %u times; end some of these calls", rank, model, all);
    if (live >= ATTACHMENTS_PER_RANK)
        io_server_call_refuse(&oldest->call, AMP_EUNAVAILABLE, "TOO_MANY_CALLS",
                              "rank %u of %s has attached memory again, more than once; this older call ends", rank,
                              model);
    return 0;
}

/* Whether memory can be shared with this caller at all. The text only gets into the client's log. */
static int check(const struct attachment *own, const struct ampd_msg_attach_memory_request *request,
                 const struct ampd_model_info *info, struct amp_error *error)
{
    const struct ampd_server *server = own->call.server;
    const struct arpc_peer *peer = arpc_call_peer_info(own->call.rpc);
    if (server->attachments->socket == NULL)
        return amp_error_set(error, AMP_ESTATE, "NO_SHARED_MEMORY", "this server shares no memory");
    if (io_shared_copies_serial(server, info->copies[0]) == 0 || io_shared_copies_serial(server, info->copies[1]) == 0)
        return amp_error_set(error, AMP_ESTATE, "NO_SHARED_MEMORY",
                             "the copies of this model are not in shared memory; the server's log says why");
    if (peer->transport != ARPC_TRANSPORT_UNIX || peer->pid <= 0)
        return amp_error_set(error, AMP_ESTATE, "NO_SHARED_MEMORY",
                             "memory is shared only with processes on this host that connect through the unix socket");
    if (request->rank >= info->spec->world_size)
        return amp_error_set(error, AMP_EINVAL, "RANK", "rank: %u is not below the world_size of %s, %u", request->rank,
                             request->model, info->spec->world_size);
    if (request->dtype != AMPD_MSG_DTYPE_F32 && request->dtype != AMPD_MSG_DTYPE_F16 &&
        request->dtype != AMPD_MSG_DTYPE_BF16)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "dtype: %d cannot be pushed; use F32, F16 or BF16",
                             (int)request->dtype);
    if (!request->seals) /* a libampclient of before: it sends bytes instead, and does not ask again at each step */
        return amp_error_set(error, AMP_ESTATE, "NO_SHARED_MEMORY",
                             "seals: only a worker that seals its slot gets one; use a newer libampclient");
    return 0;
}

static int prepare_answer(struct attachment *own, const struct ampd_model_info *info, enum amp_dtype dtype,
                          struct amp_error *error)
{
    uint64_t nonce[2];
    if (getrandom(nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce)
        return amp_error_set(error, AMP_EUNAVAILABLE, NULL, "the system gives no random numbers; try again");
    own->answer = (struct ampd_msg_attach_memory_response){
        .nonce_low = nonce[0],
        .nonce_high = nonce[1],
        .first_block = (uint32_t)info->first_block,
        .block_count = (uint32_t)info->block_count,
        .copy_bytes = info->copy_bytes,
        .slot_bytes = info->block_count * info->layout->block_elements * amp_dtype_size(dtype),
        .waits = info->spec->sync == AMPD_SYNC_ALL};
    (void)snprintf(own->answer.socket, sizeof own->answer.socket, "%s",
                   io_memory_socket_path(own->call.server->attachments->socket));
    return 0;
}

static void answer(struct attachment *own)
{
    struct amp_buf buf = io_message_buf();
    int rc = ampd_msg_attach_memory_response_encode(&own->answer, &buf);
    if (rc == 0)
        rc = arpc_call_send(own->call.rpc, NULL, 0, buf.data, buf.size, NULL, NULL);
    if (rc != 0)
        io_server_call_refuse(&own->call, rc, NULL, "the answer cannot be sent: %s", amp_strerror(rc));
    amp_buf_close(&buf);
}

static void slot_filled(struct io_shared_fill *fill)
{
    struct attachment *own = AMP_CONTAINER(fill, struct attachment, fill);
    if (fill->code != 0)
        io_server_call_refuse(&own->call, fill->code, "NO_MEMORY",
                              "there is no memory for a slot of %llu bytes; send the blocks instead",
                              (unsigned long long)own->answer.slot_bytes);
    else if (!fill->stopped) /* else the call is closed (attach_closed), or the server closes */
        answer(own);
    io_server_call_unref(&own->call);
}

/* A slot has no use for rows. While the server drains, steps still need it, until io_attachments_end. */
static void on_other(struct io_watcher *watcher)
{
    (void)watcher;
}

static void on_deleted(struct io_watcher *watcher)
{
    struct attachment *own = AMP_CONTAINER(watcher, struct attachment, watcher);
    io_server_call_refuse(&own->call, AMP_ENOTFOUND, "MODEL_NOT_FOUND", "model: %s was deleted", own->model);
}

static const struct io_watcher_ops watcher_ops = {
    .row_cb = on_other, .draining_cb = on_other, .deleted_cb = on_deleted};

static size_t whole_huge_pages(size_t size)
{
    return (size + AMP_HUGE_PAGE - 1) / AMP_HUGE_PAGE * AMP_HUGE_PAGE;
}

static int make_slot(struct attachment *own, struct amp_error *error)
{
    struct ampd_core *core = own->call.server->core;
    size_t size = whole_huge_pages(own->answer.slot_bytes > 0 ? own->answer.slot_bytes : 1);
    int rc = ampd_core_count_memory(core, size, error);
    if (rc != 0)
        return rc;
    int fd;
    void *memory;
    rc = io_shared_new("ampd-slot", size, false, &fd, &memory, error);
    if (rc != 0) {
        ampd_core_uncount_memory(core, size);
        return rc;
    }
    own->fill = (struct io_shared_fill){.server = own->call.server,
                                        .fd = fd,
                                        .memory = memory,
                                        .size = size,
                                        .huge = own->answer.slot_bytes >= AMP_HUGE_PAGE,
                                        .done_cb = slot_filled};
    return 0;
}

/* Checks that the caller holds the rank, as far as this shard knows, and makes room, for which another may end. */
static int admit(const struct attachment *own, uint32_t model, struct amp_error *error)
{
    struct ampd_core *core = own->call.server->core;
    struct ampd_worker_info worker;
    if (ampd_core_refuse(core, model, own->rank, own->incarnation, error))
        return error->code;
    ampd_core_worker(core, model, own->rank, io_core_now(own->call.server), &worker);
    return make_room(own, worker.listed, error);
}

static void attach(struct attachment *own, const struct ampd_msg_attach_memory_request *request)
{
    struct ampd_model_info info;
    struct amp_error error = {0};
    uint32_t model;
    if (!io_find_model(&own->call, request->model, &model, &info))
        return;
    int rc = io_check_shard(own->call.server, request->shard, &error);
    if (rc == 0)
        rc = check(own, request, &info, &error);
    if (rc == 0)
        rc = prepare_answer(own, &info, (enum amp_dtype)request->dtype, &error);
    memcpy(own->model, request->model, sizeof own->model);
    own->rank = request->rank;
    own->incarnation = io_incarnation(request->has_incarnation, &request->incarnation);
    own->pid = arpc_call_peer_info(own->call.rpc)->pid;
    own->uid = arpc_call_peer_info(own->call.rpc)->uid;
    if (rc == 0)
        rc = admit(own, model, &error);
    if (rc == 0)
        rc = make_slot(own, &error);
    if (rc != 0) {
        io_server_call_fail(&own->call, &error);
        return;
    }
    /*
     * The newest is first, so that it is found: an older one, whose end was not noticed yet, is no longer written to.
     */
    amp_list_push(own->call.server->attachments->list.next, &own->node);
    io_watchers_prepare(&own->watcher, &watcher_ops);
    io_watchers_add(own->call.server, &own->watcher, model);
    io_server_call_ref(&own->call);
    io_shared_fill_start(&own->fill);
}

static void attach_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_attach_memory_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct attachment), &attach_ops);
    if (call == NULL)
        return;
    if (ampd_msg_attach_memory_request_decode(&request, data, size, &error) != 0)
        io_server_call_fail(call, &error);
    else
        attach(attachment_of(call), &request);
}

/* Stops filling the slot, if that has not been done, since nobody will use it. */
static void attach_closed(struct arpc_call *rpc, const struct arpc_result *result)
{
    struct io_server_call *call = io_server_call_of(rpc);
    if (call != NULL && attachment_of(call)->fill.running && io_shared_fill_stop(&attachment_of(call)->fill))
        io_server_call_unref(call); /* not the last reference: the rpc call has one */
    io_server_call_closed(rpc, result);
}

const struct arpc_handler ampd_handle_attach_memory = {.message = attach_message, .closed = attach_closed};
