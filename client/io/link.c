#include "client/io/link.h"

#include "base/assert.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How often a waiting thread looks at the clock: one that wakes as much too late was stopped with its process. */
#define LOOK_MS 1000

uint64_t ampclient_now_ms(void)
{
    return uv_hrtime() / 1000000;
}

/* ---- waiting ---- */

void ampclient_link_begin(struct ampclient_link *link)
{
    (void)pthread_mutex_lock(&link->mutex);
    link->asker = pthread_self();
    link->interrupted = false;
    (void)pthread_mutex_unlock(&link->mutex);
}

/* With the mutex. */
static bool interrupted(const struct ampclient_link *link, const bool *stop)
{
    return link->interrupted || (stop != NULL && *stop);
}

bool ampclient_link_interrupted(struct ampclient_link *link, const bool *stop)
{
    (void)pthread_mutex_lock(&link->mutex);
    bool ends = interrupted(link, stop);
    (void)pthread_mutex_unlock(&link->mutex);
    return ends;
}

bool ampclient_link_stop(struct ampclient_link *link, bool *stop)
{
    (void)pthread_mutex_lock(&link->mutex);
    bool first = !*stop;
    *stop = true;
    (void)pthread_cond_broadcast(&link->wake);
    (void)pthread_mutex_unlock(&link->mutex);
    return first;
}

bool ampclient_link_wait(struct ampclient_link *link, uint64_t *deadline_ms)
{
    bool asks =
        link->callbacks.interrupt_cb != NULL && !link->interrupted && pthread_equal(link->asker, pthread_self()) != 0;
    uint64_t until = ampclient_now_ms() + (asks ? AMPCLIENT_INTERRUPT_MS : LOOK_MS);
    if (until > *deadline_ms)
        until = *deadline_ms;
    struct timespec at = {.tv_sec = (time_t)(until / 1000), .tv_nsec = (long)(until % 1000) * 1000000};
    (void)pthread_cond_timedwait(&link->wake, &link->mutex, &at);
    uint64_t now = ampclient_now_ms();
    if (now > until + LOOK_MS) /* it was stopped meanwhile */
        *deadline_ms += now - until;
    if (asks && now - link->interrupt_asked_ms >= AMPCLIENT_INTERRUPT_MS) {
        link->interrupt_asked_ms = now;
        (void)pthread_mutex_unlock(&link->mutex);
        bool ends = link->callbacks.interrupt_cb(link->callbacks.interrupt_arg);
        (void)pthread_mutex_lock(&link->mutex);
        link->interrupted = ends;
        if (ends) /* wakes the threads that help this call */
            (void)pthread_cond_broadcast(&link->wake);
    }
    return now < *deadline_ms;
}

int ampclient_link_break(struct ampclient_link *link, struct amp_error *error)
{
    link->broken = true;
    return amp_error_set(error, AMP_EINTERNAL, NULL,
                         "The client's own thread does not answer any more; close this client and make another one.");
}

void ampclient_link_pause(struct ampclient_link *link, uint64_t ms)
{
    uint64_t until = ampclient_now_ms() + ms;
    (void)pthread_mutex_lock(&link->mutex);
    while (!link->broken && !link->interrupted && ampclient_link_wait(link, &until))
        ;
    (void)pthread_mutex_unlock(&link->mutex);
}

/* ---- jobs ---- */

void ampclient_link_kick(struct ampclient_link *link)
{
    (void)uv_async_send(&link->async); /* fails only on a closing handle, and then nobody waits */
}

int ampclient_link_run(struct ampclient_link *link, struct ampclient_job *job, uint64_t timeout_ms,
                       struct amp_error *error)
{
    uint64_t deadline = ampclient_now_ms() + timeout_ms + AMPCLIENT_WAIT_SLACK_MS;
    int rc = 0;
    bool asked = job->cancel_cb == NULL; /* the job was asked to end, or cannot be */
    job->finished = false;
    amp_list_init(&job->cancelled);
    (void)pthread_mutex_lock(&link->mutex);
    if (link->broken) {
        rc = ampclient_link_break(link, error);
    } else {
        amp_list_push(&link->jobs, &job->node);
        ampclient_link_kick(link);
    }
    while (rc == 0 && !job->finished) {
        if (!asked && interrupted(link, job->stop)) {
            asked = true;
            amp_list_push(&link->cancelled, &job->cancelled);
            ampclient_link_kick(link);
        }
        if (!ampclient_link_wait(link, &deadline) && !job->finished)
            rc = ampclient_link_break(link, error);
    }
    (void)pthread_mutex_unlock(&link->mutex);
    return rc;
}

void ampclient_link_finish(struct ampclient_link *link, struct ampclient_job *job)
{
    (void)pthread_mutex_lock(&link->mutex);
    job->finished = true;
    amp_list_remove(&job->cancelled);
    (void)pthread_cond_broadcast(&link->wake);
    (void)pthread_mutex_unlock(&link->mutex);
}

/* ---- the log ---- */

void ampclient_link_log(struct ampclient_link *link, enum ampclient_log_level level, const char *text)
{
    if (link->callbacks.log_cb != NULL && level >= link->callbacks.log_level)
        link->callbacks.log_cb(link->callbacks.log_arg, level, text);
}

struct log_job {
    struct ampclient_job job;
    struct ampclient_link *link;
    enum ampclient_log_level level;
    char text[AMP_ERROR_TEXT_MAX];
};

static void run_log(struct ampclient_job *base)
{
    struct log_job *job = AMP_CONTAINER(base, struct log_job, job);
    ampclient_link_log(job->link, job->level, job->text);
    ampclient_link_finish(job->link, base);
}

void ampclient_link_log_soon(struct ampclient_link *link, enum ampclient_log_level level, const char *text)
{
    struct log_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return;
    job->job.run_cb = run_log;
    job->link = link;
    job->level = level;
    (void)snprintf(job->text, sizeof job->text, "%s", text);
    if (ampclient_link_run(link, &job->job, 0, NULL) == 0) /* else broken: the job may still be in use */
        free(job);
}

/* ---- the loop's thread ---- */

static void on_channels_closed(struct ampclient_channels *channels)
{
    struct ampclient_link *link = AMP_CONTAINER(channels, struct ampclient_link, channels);
    uv_close((uv_handle_t *)&link->async, NULL);
}

/* Closes everything that keeps the loop alive; uv_run returns when all of it is closed. */
static void begin_stop(struct ampclient_link *link)
{
    link->channels.closing = true;
    if (link->callbacks.stop_cb != NULL)
        link->callbacks.stop_cb(link->callbacks.arg);
    ampclient_channels_close(&link->channels, on_channels_closed);
}

static struct ampclient_job *next_job(struct ampclient_link *link, bool *stopping)
{
    (void)pthread_mutex_lock(&link->mutex);
    /* What a job of a broken link points to may be gone with its caller. */
    struct amp_list *node = link->broken ? NULL : amp_list_shift(&link->jobs);
    *stopping = link->stopping;
    (void)pthread_mutex_unlock(&link->mutex);
    return node != NULL ? AMP_CONTAINER(node, struct ampclient_job, node) : NULL;
}

/* Jobs finish only on this thread, so that none goes away meanwhile. */
static void cancel_jobs(struct ampclient_link *link)
{
    for (;;) {
        (void)pthread_mutex_lock(&link->mutex);
        /* Jobs that have not run yet run first; the loop was woken for them. */
        bool waits = link->broken || !amp_list_empty(&link->jobs);
        struct amp_list *node = waits ? NULL : amp_list_shift(&link->cancelled);
        (void)pthread_mutex_unlock(&link->mutex);
        if (node == NULL)
            return;
        struct ampclient_job *job = AMP_CONTAINER(node, struct ampclient_job, cancelled);
        job->cancel_cb(job);
    }
}

static void on_async(uv_async_t *async)
{
    struct ampclient_link *link = async->data;
    if (link->channels.closing)
        return;
    bool stopping;
    for (struct ampclient_job *job; (job = next_job(link, &stopping)) != NULL;)
        job->run_cb(job);
    cancel_jobs(link);
    if (stopping)
        begin_stop(link);
    else if (link->callbacks.kick_cb != NULL)
        link->callbacks.kick_cb(link->callbacks.arg);
}

static void *loop_main(void *arg)
{
    struct ampclient_link *link = arg;
    (void)uv_run(&link->loop, UV_RUN_DEFAULT);
    (void)pthread_mutex_lock(&link->mutex);
    link->ended = true;
    (void)pthread_cond_broadcast(&link->wake);
    (void)pthread_mutex_unlock(&link->mutex);
    return NULL;
}

struct shards_job {
    struct ampclient_job job;
    struct ampclient_link *link;
    char endpoints[AMPCLIENT_SHARDS_MAX][256];
    uint32_t count;
    int code;
    struct amp_error error;
};

static void open_shards(struct ampclient_job *base)
{
    struct shards_job *job = AMP_CONTAINER(base, struct shards_job, job);
    struct ampclient_channels *channels = &job->link->channels;
    for (uint32_t k = 0; job->code == 0 && k < job->count && !channels->closing; k++) {
        job->code = ampclient_channels_open_shard(channels, k, job->endpoints[k], &job->error);
        if (job->code == 0 && k == channels->shards_count) /* else a call before this one has opened it, and failed */
            channels->shards_count++;
    }
    ampclient_link_finish(job->link, base);
}

int ampclient_link_use_shards(struct ampclient_link *link, const char *const *endpoints, uint32_t count,
                              struct amp_error *error)
{
    if (count < 2 || count > AMPCLIENT_SHARDS_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "The server has %u shards; this client speaks with at most %d.",
                             count, AMPCLIENT_SHARDS_MAX);
    struct shards_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "There is no memory for the connections to the shards.");
    job->job.run_cb = open_shards;
    job->link = link;
    job->count = count;
    for (uint32_t k = 0; k < count; k++)
        (void)snprintf(job->endpoints[k], sizeof job->endpoints[k], "%s", endpoints[k]);
    int rc = ampclient_link_run(link, &job->job, AMPCLIENT_CLOSE_MS, error);
    if (rc != 0)
        return rc; /* broken: the job may still be in use */
    rc = job->code;
    if (rc != 0)
        *error = job->error;
    free(job);
    return rc;
}

/* ---- life ---- */

static int start_thread(struct ampclient_link *link)
{
    return amp_thread_start(&link->thread, NULL, loop_main, link) == 0 ? 0 : AMP_EIO;
}

static int init_waiting(struct ampclient_link *link)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return AMP_ENOMEM;
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* the clock of uv_hrtime */
    int rc = pthread_cond_init(&link->wake, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    if (rc != 0)
        return AMP_ENOMEM;
    rc = pthread_mutex_init(&link->mutex, NULL);
    if (rc != 0)
        (void)pthread_cond_destroy(&link->wake);
    return rc == 0 ? 0 : AMP_ENOMEM;
}

/* Without a thread: the caller runs the loop until all is closed. */
static void close_unstarted(struct ampclient_link *link)
{
    if (link->channels.first != NULL)
        begin_stop(link);
    else
        uv_close((uv_handle_t *)&link->async, NULL);
    (void)uv_run(&link->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&link->loop);
}

static int no_loop(struct amp_error *error)
{
    return amp_error_set(error, AMP_EIO, NULL, "No event loop can be made; raise the limit of open files.");
}

int ampclient_link_open(const char *endpoints, const struct ampclient_link_options *options,
                        struct ampclient_link **out, struct amp_error *error)
{
    *out = NULL;
    struct ampclient_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "There is no memory for a client.");
    amp_list_init(&link->jobs);
    amp_list_init(&link->cancelled);
    link->asker = pthread_self();
    int rc = init_waiting(link);
    if (rc != 0)
        goto fail_memory;
    if (uv_loop_init(&link->loop) != 0) {
        rc = no_loop(error);
        goto fail_waiting;
    }
    if (uv_async_init(&link->loop, &link->async, on_async) != 0) {
        rc = no_loop(error);
        (void)uv_loop_close(&link->loop);
        goto fail_waiting;
    }
    link->async.data = link;
    ampclient_follow_init(&link->follow, &link->channels);
    rc = ampclient_channels_open(&link->channels, &link->loop, endpoints, &options->secure, &options->channel, error);
    if (rc != 0)
        goto fail_channels;
    link->local = strncmp(endpoints, "unix:", strlen("unix:")) == 0;
    link->callbacks = options->callbacks;
    if (start_thread(link) != 0) {
        link->callbacks.stop_cb = NULL;
        rc = amp_error_set(error, AMP_EIO, NULL, "No thread can be made; raise the limit of processes.");
        goto fail_channels;
    }
    *out = link;
    return 0;
fail_channels:
    close_unstarted(link);
fail_waiting:
    (void)pthread_cond_destroy(&link->wake);
    (void)pthread_mutex_destroy(&link->mutex);
fail_memory:
    ampclient_secure_close(&link->channels.secure);
    free(link);
    return rc;
}

bool ampclient_link_close(struct ampclient_link *link)
{
    uint64_t deadline = ampclient_now_ms() + AMPCLIENT_CLOSE_MS;
    (void)pthread_mutex_lock(&link->mutex);
    link->callbacks.interrupt_cb = NULL; /* it does not ask */
    link->stopping = true;
    ampclient_link_kick(link);
    while (!link->ended && ampclient_link_wait(link, &deadline))
        ;
    bool ended = link->ended;
    (void)pthread_mutex_unlock(&link->mutex);
    if (ended) {
        (void)pthread_join(link->thread, NULL);
        AMP_ASSERT(uv_loop_close(&link->loop) == 0);
    } else {
        (void)pthread_detach(link->thread);
    }
    return ended;
}

void ampclient_link_free(struct ampclient_link *link)
{
    (void)pthread_cond_destroy(&link->wake);
    (void)pthread_mutex_destroy(&link->mutex);
    ampclient_secure_close(&link->channels.secure);
    free(link);
}
