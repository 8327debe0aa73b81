#include "client/io/attach.h"

#include "base/assert.h"
#include "base/large.h"
#include "base/shared.h"
#include "client/io/methods.h"
#include "client/io/model_call.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* Limit for the servers' answers, and for the descriptors: live servers on this host take a millisecond. */
#define ATTACH_TIMEOUT_MS 5000
/* More time for the slot, whose pages are made before answers: some GB/s on an idle host, far less on a busy one. */
#define ATTACH_BYTES_PER_MS ((uint64_t)128 << 10)
/* The part of step_begin's time that an attempt may take: what does not come this way comes by the pull after it. */
#define ATTACH_SHARE 2
/* First pause after an attempt that may do better later: the server was away, or had no memory left. It doubles. */
#define ATTACH_AGAIN_MS     100
#define ATTACH_AGAIN_MAX_MS 10000
/* Pause after a denied attempt (code_of): each attempt makes the server fill a slot, and the reason seldom changes. */
#define ATTACH_DENIED_MS 300000
/* Pause after an attempt that used all of its time, or got no descriptors. */
#define ATTACH_SLOW_MS 60000
/* Least pause, unless a server was away, in times of what the attempt took: slots may have been filled in vain. */
#define ATTACH_PAUSE_FACTOR 10
#define FDS                 3

/* What the user's thread waits for. From malloc, so that it can be left alone when the link breaks. */
struct attach_job {
    struct ampclient_job job;
    struct ampclient_model *model;
    struct attach_call *call; /* NULL: it has not begun */
    uint32_t shard;
    uint64_t timeout_ms;
    struct amp_buf request;
    int code;
    struct amp_error error;
    struct ampd_msg_attach_memory_response answer;
    bool local; /* it came by a unix socket */
};

/* One call of AttachMemory. The loop's thread alone has it. */
struct attach_call {
    struct amp_list node; /* in model->attach_calls */
    struct ampclient_model *model;
    struct arpc_call *call;     /* NULL: over */
    struct attach_job *waiting; /* NULL: it has been answered */
    bool dropped;               /* by this side: its end says nothing of what is attached since */
    uv_timer_t timer;           /* until the answer */
};

/* ---- the loop's thread ---- */

static void finish(struct attach_call *own, int code)
{
    struct attach_job *job = own->waiting;
    own->waiting = NULL;
    if (job == NULL)
        return;
    job->code = code;
    ampclient_link_finish(own->model->client->link, &job->job);
}

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct attach_call *own = arpc_call_user(call);
    if (own->waiting == NULL)
        return;
    (void)uv_timer_stop(&own->timer);
    own->waiting->local = arpc_call_is_by_unix(call);
    finish(own, ampd_msg_attach_memory_response_decode(&own->waiting->answer, data, size, &own->waiting->error));
}

static void on_late(uv_timer_t *timer)
{
    struct attach_call *own = timer->data;
    own->dropped = true;
    if (own->waiting != NULL)
        finish(own, amp_error_set(&own->waiting->error, AMP_EDEADLINE, NULL, "no answer in time"));
    if (own->call != NULL)
        arpc_call_cancel(own->call, ARPC_STATUS_CANCELLED, "no answer in time");
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct attach_call *own = handle->data;
    struct ampclient_model *model = own->model;
    amp_list_remove(&own->node);
    free(own);
    ampclient_model_remove_if_idle(model);
}

/* The slot is gone: views that the user has stay valid, and from now on bytes are sent. */
static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct attach_call *own = arpc_call_user(call);
    struct ampclient_model *model = own->model;
    int code = ampclient_channels_code(&model->client->link->channels, result->status, result->from_peer);
    own->call = NULL;
    if (own->waiting != NULL)
        finish(own, amp_error_set(&own->waiting->error, code != 0 ? code : AMP_EUNAVAILABLE, result->details.reason,
                                  "%s", result->message));
    else if (!own->dropped)
        ampclient_attach_lost(model);
    uv_close((uv_handle_t *)&own->timer, on_timer_closed);
}

void ampclient_attach_lost(struct ampclient_model *model)
{
    (void)pthread_mutex_lock(&model->client->link->mutex);
    ampclient_core_leave_memory(model->core);
    (void)pthread_mutex_unlock(&model->client->link->mutex);
}

static const struct arpc_handler attach_handler = {.message = on_message, .closed = on_closed};

static void run_attach(struct ampclient_job *base)
{
    struct attach_job *job = AMP_CONTAINER(base, struct attach_job, job);
    struct ampclient_link *link = job->model->client->link;
    const struct arpc_call_options options = {.size = sizeof options, .max_message = AMPCLIENT_REPLY_MAX};
    struct attach_call *own = calloc(1, sizeof *own);
    job->code = own != NULL ? 0 : AMP_ENOMEM;
    if (own != NULL)
        job->code = ampclient_channels_call(&link->channels, job->shard, AMPCLIENT_PARAMETER_SERVICE "AttachMemory",
                                            &options, &attach_handler, own, &own->call, &job->error);
    if (job->code != 0) {
        free(own);
        ampclient_link_finish(link, base);
        return;
    }
    job->call = own;
    own->model = job->model;
    own->waiting = job;
    amp_list_push(&job->model->attach_calls, &own->node);
    (void)uv_timer_init(&link->loop, &own->timer); /* cannot fail, nor can it be started in vain */
    own->timer.data = own;
    (void)uv_timer_start(&own->timer, on_late, job->timeout_ms, 0);
    if (arpc_call_send(own->call, job->request.data, job->request.size, NULL, 0, NULL, NULL) != 0)
        arpc_call_cancel(own->call, ARPC_STATUS_CANCELLED, "the request cannot be sent");
    else
        arpc_call_half_close(own->call);
}

/* The user's thread was interrupted. The job waits, so that its call is not over. */
static void cancel_attach(struct ampclient_job *base)
{
    struct attach_job *job = AMP_CONTAINER(base, struct attach_job, job);
    AMP_ASSERT(job->call != NULL && job->call->call != NULL);
    arpc_call_cancel(job->call->call, ARPC_STATUS_CANCELLED, "the call was interrupted");
}

void ampclient_attach_cancel(struct ampclient_model *model)
{
    AMP_LIST_EACH(node, next, &model->attach_calls)
    {
        struct attach_call *own = AMP_CONTAINER(node, struct attach_call, node);
        own->dropped = true;
        if (own->call != NULL)
            arpc_call_cancel(own->call, ARPC_STATUS_CANCELLED, "the client has released the memory");
    }
}

static void run_cancel(struct ampclient_job *job)
{
    struct ampclient_model *model = AMP_CONTAINER(job, struct ampclient_model, job);
    ampclient_attach_cancel(model);
    ampclient_link_finish(model->client->link, job);
}

/* ---- the user's thread ---- */

/* The descriptors of a message, which has room for FDS. False: there are fewer, and none is left open. */
static bool take_descriptors(struct msghdr *message, int fds[FDS])
{
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    if (head == NULL || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
        return false;
    unsigned count = (unsigned)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int)); /* fewer: there was no room for more */
    AMP_ASSERT(count <= FDS);
    memcpy(fds, CMSG_DATA(head), count * sizeof(int));
    for (unsigned i = 0; count < FDS && i < count; i++)
        (void)close(fds[i]);
    return count == FDS;
}

/*
 * The code for an errno. AMP_EDENIED: this process may not see or use the socket, which seldom changes. AMP_EDEADLINE
 * (a long pause follows): nobody gives descriptors there, or not to this process, because its call seems to come from
 * another one (a proxy). AMP_EEXHAUSTED: descriptors or memory are short on this side, so the server was not away.
 */
static int code_of(int why)
{
    if (why == EACCES || why == EPERM || why == ENOENT)
        return AMP_EDENIED;
    if (why == ECANCELED)
        return AMP_ECANCELLED;
    if (why == EMFILE || why == ENFILE || why == ENOMEM || why == ENOBUFS)
        return AMP_EEXHAUSTED;
    return why == EAGAIN || why == ECONNREFUSED || why == 0 ? AMP_EDEADLINE : AMP_EUNAVAILABLE;
}

/* Whether a call on the socket that was interrupted, or waited for a while, is made again; if not, errno says why. */
static bool again(struct ampclient_link *link, uint64_t until_ms)
{
    if ((errno != EINTR && errno != EAGAIN) || ampclient_now_ms() >= until_ms)
        return false;
    ampclient_link_pause(link, 0); /* it asks interrupt_cb */
    bool interrupted = ampclient_link_interrupted(link, NULL);
    errno = interrupted ? ECANCELED : 0; /* 0: as an end of the stream leaves it */
    return !interrupted;
}

static void set_timeout(int fd, int option, uint64_t timeout_ms)
{
    const struct timeval timeout = {.tv_sec = (time_t)(timeout_ms / 1000), .tv_usec = (long)(timeout_ms % 1000) * 1000};
    (void)setsockopt(fd, SOL_SOCKET, option, &timeout, sizeof timeout);
}

/*
 * The socket, connected before `until_ms`; -1: errno says why not. connect(2) waits only where the server's queue is
 * full. It is not cut into short waits, since each new wait begins at the end of that queue; a signal does cut it.
 */
static int connect_to(struct ampclient_link *link, const char *path, uint64_t until_ms)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    errno = ENAMETOOLONG;
    int fd = strlen(path) < sizeof address.sun_path ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0)
        return -1;
    memcpy(address.sun_path, path, strlen(path) + 1);
    set_timeout(fd, SO_RCVTIMEO, AMPCLIENT_INTERRUPT_MS);
    do {
        uint64_t now_ms = ampclient_now_ms();
        set_timeout(fd, SO_SNDTIMEO, until_ms > now_ms ? until_ms - now_ms : 1); /* 0 would be for ever */
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return fd;
    } while (again(link, until_ms));
    int why = errno;
    (void)close(fd);
    errno = why;
    return -1;
}

/* recvmsg, repeated until something comes: the socket waits for AMPCLIENT_INTERRUPT_MS (connect_to). */
static ssize_t receive(struct ampclient_link *link, int fd, struct msghdr *message, uint64_t until_ms)
{
    ssize_t size;
    do
        size = recvmsg(fd, message, MSG_CMSG_CLOEXEC);
    while (size < 0 && again(link, until_ms));
    return size;
}

/* Sends the nonce of an answer, and gets the descriptors for it, which are the caller's to close. */
static int fetch(struct ampclient_link *link, const struct ampd_msg_attach_memory_response *answer, uint64_t until_ms,
                 int fds[FDS], struct amp_error *error)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * FDS)];
    } control = {0};
    uint64_t nonce[2] = {answer->nonce_low, answer->nonce_high};
    char byte;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_LEN(sizeof(int) * FDS)}; /* what is aligned has room for another */
    if (until_ms > ampclient_now_ms() + ATTACH_TIMEOUT_MS)
        until_ms = ampclient_now_ms() + ATTACH_TIMEOUT_MS;
    int fd = connect_to(link, answer->socket, until_ms);
    bool came = false;
    if (fd >= 0) {
        errno = 0;
        came = send(fd, nonce, sizeof nonce, MSG_NOSIGNAL) == (ssize_t)sizeof nonce &&
               receive(link, fd, &message, until_ms) == 1 && take_descriptors(&message, fds);
    }
    int why = (message.msg_flags & MSG_CTRUNC) != 0 ? EMFILE : errno;
    if (fd >= 0)
        (void)close(fd);
    if (came)
        return 0;
    int rc = code_of(why);
    if (why == EAGAIN)
        return amp_error_set(error, rc, NULL, "%s did not give the descriptors in time", answer->socket);
    if (why == 0)
        return amp_error_set(error, rc, NULL,
                             "%s gave no descriptors: the model was deleted, or a proxy hides this process from the "
                             "server; if there is a proxy, connect to the server's own unix socket instead",
                             answer->socket);
    return amp_error_set(error, rc, NULL, "the descriptors cannot be fetched from %s (%s)%s", answer->socket,
                         strerror(why),
                         rc == AMP_EDENIED ? "; give this process access to that socket"
                         : why == EMFILE   ? "; raise this process's limit of open files"
                                           : "");
}

/* Whether the memory of an answer has the layout that Join told: all blocks of the shard, and no others. */
static int check_layout(const struct ampclient_core *core, uint32_t shard,
                        const struct ampd_msg_attach_memory_response *answer, size_t copy_stride, size_t slot_stride,
                        struct amp_error *error)
{
    uint64_t first, end;
    ampclient_core_shard_blocks(core, shard, &first, &end);
    bool same = answer->block_count == end - first && (answer->block_count == 0 || answer->first_block == first);
    if (same && answer->copy_bytes == (end - first) * copy_stride && answer->slot_bytes == (end - first) * slot_stride)
        return 0;
    return amp_error_set(
        error, AMP_EINTERNAL, NULL,
        "the server's answer to AttachMemory has another layout than that to Join; are versions mixed?");
}

static int map_shard(const struct ampclient_attached *attached, const struct ampd_msg_attach_memory_response *answer,
                     size_t copy_stride, size_t slot_stride, const int fds[FDS], struct amp_error *error)
{
    size_t copy_at = answer->first_block * copy_stride, slot_at = answer->first_block * slot_stride;
    if (answer->block_count == 0)
        return 0;
    int rc = 0;
    for (unsigned c = 0; rc == 0 && c < 2; c++)
        rc = amp_shared_map(fds[c], attached->copies[c] + copy_at, answer->copy_bytes, false, error);
    return rc == 0 ? amp_shared_map(fds[2], attached->slot + slot_at, answer->slot_bytes, true, error) : rc;
}

/* Asks the shard of the request for its memory and maps it, until `until_ms`; on failure *error says why. */
static int attach_shard(struct ampclient_model *model, struct ampclient_attached *attached,
                        const struct ampd_msg_attach_memory_request *request, size_t copy_stride, size_t slot_stride,
                        uint64_t until_ms, struct amp_error *error)
{
    int fds[FDS];
    uint64_t now_ms = ampclient_now_ms();
    if (now_ms >= until_ms)
        return amp_error_set(error, AMP_EDEADLINE, NULL, "no answer in time");
    struct attach_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return AMP_ENOMEM;
    job->job.run_cb = run_attach;
    job->job.cancel_cb = cancel_attach;
    job->model = model;
    job->shard = request->shard;
    job->timeout_ms = until_ms - now_ms;
    amp_buf_init(&job->request, AMPD_MSG_SIZE_MAX);
    int rc = ampd_msg_attach_memory_request_encode(request, &job->request);
    if (rc == 0) {
        rc = ampclient_link_run(model->client->link, &job->job, job->timeout_ms, NULL);
        if (rc != 0)
            return rc; /* broken: the job may still be in use */
        rc = job->code;
        *error = job->error;
    }
    if (rc == 0)
        rc = check_layout(model->core, request->shard, &job->answer, copy_stride, slot_stride, error);
    if (rc == 0 && !job->local) /* a server on another machine must not choose which sockets this process connects to */
        rc = amp_error_set(error, AMP_ESTATE, NULL,
                           "the server was reached by TCP; give the unix socket in its data directory as its address");
    if (rc == 0)
        rc = fetch(model->client->link, &job->answer, until_ms, fds, error);
    if (rc == 0) {
        rc = map_shard(attached, &job->answer, copy_stride, slot_stride, fds, error);
        attached->waits = attached->waits && job->answer.waits;
        for (unsigned i = 0; i < FDS; i++)
            (void)close(fds[i]);
    }
    amp_buf_close(&job->request);
    free(job);
    return rc;
}

static void unmap(struct ampclient_attached *attached)
{
    if (attached == NULL)
        return;
    for (unsigned c = 0; c < 2; c++)
        amp_large_free(attached->copies[c], attached->copy_size);
    amp_large_free(attached->slot, attached->slot_size);
    free(attached);
}

/* Calls shared_cb for each mapping: it was made, or is about to be unmapped. */
static void tell_mappings(const struct ampclient_model *model, const struct ampclient_attached *attached, bool mapped)
{
    const struct ampclient_shared_memory mappings[] = {
        {.data = attached->copies[0], .size_bytes = attached->copy_size, .dtype = model->cast},
        {.data = attached->copies[1], .size_bytes = attached->copy_size, .dtype = model->cast},
        {.data = attached->slot, .size_bytes = attached->slot_size, .dtype = attached->dtype, .writable = true}};
    for (unsigned i = 0; model->shared_cb != NULL && i < sizeof mappings / sizeof mappings[0]; i++)
        model->shared_cb(model->shared_arg, &mappings[i], mapped);
}

void ampclient_attach_free(struct ampclient_model *model)
{
    if (model->shared == NULL)
        return;
    tell_mappings(model, model->shared, false);
    unmap(model->shared);
    model->shared = NULL;
}

static bool same(struct ampclient_incarnation a, struct ampclient_incarnation b)
{
    return a.fence == b.fence && a.counter == b.counter;
}

static void end_calls(struct ampclient_model *model)
{
    (void)ampclient_model_run(model, run_cancel, ATTACH_TIMEOUT_MS, NULL);
}

/* Ends and unmaps what was attached before. */
static void let_go(struct ampclient_model *model)
{
    struct ampclient_link *link = model->client->link;
    (void)pthread_mutex_lock(&link->mutex);
    struct ampclient_attached *attached = model->shared;
    model->shared = NULL;
    ampclient_core_set_in_memory(model->core, false, false);
    (void)pthread_mutex_unlock(&link->mutex);
    if (attached == NULL)
        return;
    end_calls(model);
    tell_mappings(model, attached, false);
    unmap(attached);
}

/* Attaches to all shards or to none: a single shard's slot would be held for nothing. The time counts from begun_ms. */
static int attach_all(struct ampclient_model *model, struct ampd_msg_attach_memory_request *request, uint64_t begun_ms,
                      struct ampclient_attached **out, struct amp_error *error)
{
    struct ampclient_attached *made = calloc(1, sizeof *made);
    if (made == NULL)
        return AMP_ENOMEM;
    size_t block = ampclient_core_whole_block(model->core), blocks = ampclient_core_blocks(model->core);
    made->dtype = (enum amp_dtype)request->dtype;
    size_t copy_stride = block * amp_dtype_size(model->cast), slot_stride = block * amp_dtype_size(made->dtype);
    made->waits = true; /* unless a shard says otherwise */
    made->copy_size = blocks * copy_stride;
    made->slot_size = blocks * slot_stride;
    made->copies[0] = amp_large_reserve(made->copy_size);
    made->copies[1] = amp_large_reserve(made->copy_size);
    made->slot = amp_large_reserve(made->slot_size);
    uint64_t limit_ms = ATTACH_TIMEOUT_MS + made->slot_size / ATTACH_BYTES_PER_MS,
             most_ms = model->client->options.step_timeout_ms / ATTACH_SHARE,
             until_ms = begun_ms + (limit_ms < most_ms ? limit_ms : most_ms);
    int rc = made->copies[0] != NULL && made->copies[1] != NULL && made->slot != NULL ? 0 : AMP_ENOMEM;
    for (uint32_t k = 0; rc == 0 && k < ampclient_shards(model->client); k++) {
        request->shard = k;
        rc = attach_shard(model, made, request, copy_stride, slot_stride, until_ms, error);
    }
    if (rc == 0) {
        *out = made;
        return 0;
    }
    unmap(made);
    end_calls(model);
    return rc;
}

/* Whether a server has no memory for the slot. */
static bool is_short(int rc, const struct amp_error *error)
{
    return rc != 0 && strcmp(error->reason, "NO_MEMORY") == 0;
}

/* Whether a later attempt may succeed. If not, the server does not share memory, or not with this host. */
static bool passes(int rc)
{
    return rc == AMP_EUNAVAILABLE || rc == AMP_EDEADLINE || rc == AMP_ECANCELLED || rc == AMP_EEXHAUSTED ||
           rc == AMP_ENOMEM || rc == AMP_EDENIED || rc == AMP_EABORTED || /* a lease that comes back */
           rc == AMP_ENOTFOUND; /* a shard that has started hears of the model in a moment */
}

static void note_attempt(struct ampclient_model *model, int rc, uint64_t took_ms)
{
    uint64_t next = model->attach_pause_ms == 0 ? ATTACH_AGAIN_MS : 2 * model->attach_pause_ms;
    if (rc == AMP_EDENIED)
        next = ATTACH_DENIED_MS;
    else if (rc == AMP_EDEADLINE)
        next = ATTACH_SLOW_MS;
    else if (next > ATTACH_AGAIN_MAX_MS)
        next = ATTACH_AGAIN_MAX_MS;
    if (rc != AMP_EUNAVAILABLE && next < ATTACH_PAUSE_FACTOR * took_ms)
        next = ATTACH_PAUSE_FACTOR * took_ms;
    model->attach_pause_ms = passes(rc) ? next : 0;
    model->attach_again_ms = passes(rc) ? ampclient_now_ms() + model->attach_pause_ms : 0;
}

/* Says in the log why memory is not shared, once for each reason; over TCP, where none is expected, only for DEBUG. */
static void say_not_shared(struct ampclient_model *model, int rc, const struct amp_error *error)
{
    struct ampclient_link *link = model->client->link;
    const char *why = error->text[0] != 0 ? error->text : amp_strerror(rc);
    char line[AMP_ERROR_TEXT_MAX + 128];
    if (strcmp(model->attach_said, why) == 0)
        return;
    (void)snprintf(model->attach_said, sizeof model->attach_said, "%s", why);
    (void)snprintf(line, sizeof line, "no memory is shared with the server, so blocks are sent: %s", why);
    ampclient_link_log_soon(link, link->local ? AMPCLIENT_LOG_INFO : AMPCLIENT_LOG_DEBUG, line);
}

/* With the mutex, since the loop's thread may join again at any time. It names shard 0. */
static struct ampd_msg_attach_memory_request request_of(const struct ampclient_model *model,
                                                        struct ampclient_incarnation incarnation, enum amp_dtype dtype)
{
    struct ampd_msg_attach_memory_request request = {.rank = ampclient_core_rank(model->core),
                                                     .has_incarnation = true,
                                                     .incarnation = ampclient_incarnation_message(incarnation),
                                                     .dtype = (enum ampd_msg_dtype)dtype,
                                                     .seals = true};
    ampclient_core_name(model->core, request.model);
    return request;
}

void ampclient_attach(struct ampclient_model *model)
{
    struct ampclient_link *link = model->client->link;
    (void)pthread_mutex_lock(&link->mutex);
    struct ampclient_incarnation incarnation = ampclient_core_incarnation(model->core);
    bool on = ampclient_core_in_memory(model->core);
    enum amp_dtype dtype =
        amp_dtype_size(model->gradients) > amp_dtype_size(model->cast) ? model->gradients : model->cast;
    struct ampd_msg_attach_memory_request request = request_of(model, incarnation, dtype);
    bool held = model->shared != NULL, lost = held && !on;      /* a server was restarted: the worker is the same */
    bool wide = on && same(incarnation, model->attach_tried) && /* the server gives another one nothing */
                amp_dtype_size(model->shared->dtype) >= amp_dtype_size(dtype);
    bool tried = same(incarnation, model->attach_tried) && model->attach_dtype == dtype && !lost &&
                 (model->attach_again_ms == 0 || ampclient_now_ms() < model->attach_again_ms);
    bool may = !model->units && !model->client->options.no_shared_memory &&
               ampclient_core_state(model->core) == AMPCLIENT_STATE_READY && incarnation.counter != 0;
    (void)pthread_mutex_unlock(&link->mutex);
    if (link->broken || !may || wide || tried)
        return;
    struct ampclient_attached *made = NULL;
    struct amp_error error = {0};
    uint64_t begun_ms = ampclient_now_ms();
    model->attach_tried = incarnation;
    model->attach_dtype = dtype;
    let_go(model);
    int rc = attach_all(model, &request, begun_ms, &made, &error);
    if (held && is_short(rc, &error)) /* the server may have noticed only now that the last slot is not used any more */
        rc = attach_all(model, &request, begun_ms, &made, &error);
    if (dtype != model->cast && is_short(rc, &error)) {
        request.dtype = (enum ampd_msg_dtype)model->cast; /* then gradients alone are sent, for this incarnation */
        rc = attach_all(model, &request, begun_ms, &made, &error);
    }
    note_attempt(model, rc, ampclient_now_ms() - begun_ms);
    if (rc != 0) {
        say_not_shared(model, rc, &error);
        return;
    }
    model->attach_said[0] = 0;
    tell_mappings(model, made, true);
    (void)pthread_mutex_lock(&link->mutex);
    model->shared = made;
    ampclient_core_set_in_memory(model->core, true, made->waits);
    (void)pthread_mutex_unlock(&link->mutex);
    /* If a call has ended meanwhile, the first pull or push is refused with NOT_ATTACHED. */
}

uint8_t *ampclient_attached_place(const struct ampclient_model *model, uint64_t block, enum amp_dtype dtype)
{
    const struct ampclient_attached *attached = model->shared;
    if (!ampclient_core_in_memory(model->core) || amp_dtype_size(dtype) > amp_dtype_size(attached->dtype))
        return NULL;
    uint64_t first = ampclient_core_shard_first(model->core, block);
    size_t whole = ampclient_core_whole_block(model->core);
    return attached->slot + first * whole * amp_dtype_size(attached->dtype) +
           (block - first) * whole * amp_dtype_size(dtype);
}
