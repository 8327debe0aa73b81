/*
 * The client's thread, loop and connections. Users' threads hand work to it and wait.
 *
 * Threads. There are the user's (one at a time; a load on several shards has helpers) and the loop's, on which
 * everything of rpc/ runs.
 *
 *   link->mutex guards   link->jobs, link->cancelled, job->finished, link->stopping, link->ended, link->broken,
 *                        link->asker, link->interrupted; of each model: the core, and what model.h says
 *   the loop's thread    owns all else: the channel, calls, timers, the list of models
 *
 * The user's thread takes the mutex to hand work over and to wait; the loop's thread takes it around each use of a
 * core, and to say that something is finished. It is never held while a callback of the user or of rpc runs, and it is
 * the only one, so there is no order to keep. Threads wait on link->wake with a deadline; every change of a flag that
 * is waited for is broadcast.
 *
 * A wait whose deadline passes means that the loop stands still (each call that the loop makes has its own, earlier
 * deadline). Then the link is broken: its memory is left alone, since the loop may still use it, each later call fails
 * at once, and closing does not hang.
 */
#ifndef AMPCLIENT_LINK_H
#define AMPCLIENT_LINK_H

#include "base/err.h"
#include "base/list.h"
#include "client/ampclient.h"
#include "client/io/follow.h"
#include "rpc/arpc_client.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define AMPCLIENT_WAIT_SLACK_MS 60000 /* of a wait beyond the deadline of its work; then the loop must stand still */
#define AMPCLIENT_CLOSE_MS      10000 /* how long closing waits for the loop to end */
/* How often interrupt_cb is asked: a person does not notice it, and it costs nothing beside a wait. */
#define AMPCLIENT_INTERRUPT_MS 50

/* A piece of work for the loop's thread. From malloc, so that it can be left alone when the link breaks. */
struct ampclient_job {
    struct amp_list node, cancelled;           /* in link->jobs until it runs; in link->cancelled when interrupted */
    void (*run_cb)(struct ampclient_job *job); /* on the loop's thread, without the mutex */
    /* On the loop's thread, without the mutex: the waiting thread was interrupted; NULL: it waits all the same. */
    void (*cancel_cb)(struct ampclient_job *job);
    const bool *stop; /* NULL, or what ampclient_link_stop sets: the waiting thread then counts as interrupted */
    bool finished;    /* ampclient_link_finish was called */
};

/* Each of the callbacks may be NULL. */
struct ampclient_link_callbacks {
    void (*kick_cb)(void *arg); /* on the loop's thread, without the mutex: after each wake-up of the loop */
    void (*stop_cb)(void *arg); /* on the loop's thread: the link is about to close its channel */
    void *arg;
    /* The client's log; the loop's thread. */
    void (*log_cb)(void *arg, enum ampclient_log_level level, const char *text);
    void *log_arg;
    enum ampclient_log_level log_level;
    bool (*interrupt_cb)(void *arg); /* on the user's thread: whether its wait is to end */
    void *interrupt_arg;
};

struct ampclient_link {
    pthread_mutex_t mutex;
    pthread_cond_t wake; /* by the monotonic clock */
    pthread_t thread;
    uv_loop_t loop;
    uv_async_t async;
    struct amp_list jobs;
    struct amp_list cancelled; /* jobs whose waiting threads were interrupted */
    bool stopping;             /* ampclient_link_close was called */
    bool ended;                /* the loop's thread is at its end */
    bool broken;               /* a wait's deadline has passed: the loop stands still, and may still use any memory */
    bool local;                /* the user's endpoints are unix sockets */
    struct ampclient_link_callbacks callbacks;
    struct ampclient_channels channels;
    struct ampclient_follow follow; /* where the shards are */
    /* The user's thread. */
    pthread_t asker;             /* the thread that calls interrupt_cb: that of the call in hand, not a load's helper */
    bool interrupted;            /* the call in hand was interrupted; reset by ampclient_link_begin. With the mutex */
    uint64_t interrupt_asked_ms; /* the last time that interrupt_cb was called */
};

struct ampclient_link_options {
    struct arpc_channel_options channel; /* zeroed: the defaults of a client; state_cb is not used */
    struct ampclient_secure_options secure;
    struct ampclient_link_callbacks callbacks;
};

/*
 * Starts the thread, with all signals blocked; connects nowhere yet. `endpoints` as for ampclient_secure_open. 0, and
 * *out is the caller's (ampclient_link_close); AMP_ENOMEM, AMP_EIO, and the codes of ampclient_secure_open, with a
 * text.
 */
int ampclient_link_open(const char *endpoints, const struct ampclient_link_options *options,
                        struct ampclient_link **out, struct amp_error *error);

/*
 * Ends all calls, the thread and its loop, within AMPCLIENT_CLOSE_MS. True: the memory of models may be freed, and then
 * the link by ampclient_link_free. False: the loop did not end in time, and what it may use is left. User's thread.
 */
bool ampclient_link_close(struct ampclient_link *link);
void ampclient_link_free(struct ampclient_link *link); /* frees a link that ampclient_link_close has closed */

/*
 * Runs a job on the loop's thread and waits for its ampclient_link_finish; timeout_ms bounds the job's own work. 0;
 * AMP_EINTERNAL: the link is broken, and the job must not be freed. Any thread but the loop's, without the mutex.
 */
int ampclient_link_run(struct ampclient_link *link, struct ampclient_job *job, uint64_t timeout_ms,
                       struct amp_error *error);
/* The job is done and belongs to the waiting thread again. Loop's thread, without the mutex. */
void ampclient_link_finish(struct ampclient_link *link, struct ampclient_job *job);

/* Makes the loop call kick_cb soon. Any thread. */
void ampclient_link_kick(struct ampclient_link *link);

/*
 * Waits until something changes: for the next broadcast, or AMPCLIENT_INTERRUPT_MS to ask interrupt_cb, which may set
 * link->interrupted. False: *deadline_ms has passed; it is put off by the time in which this process was stopped
 * (SIGSTOP, a debugger), so that the loop's thread gets its turn. With the mutex, which is free meanwhile.
 */
bool ampclient_link_wait(struct ampclient_link *link, uint64_t *deadline_ms);
/* Declares the link broken, since the loop stands still. Returns AMP_EINTERNAL with the text. With the mutex. */
int ampclient_link_break(struct ampclient_link *link, struct amp_error *error);
/* A call of the user begins on this thread, and is not interrupted yet. Without the mutex. */
void ampclient_link_begin(struct ampclient_link *link);
/* Whether the call in hand was interrupted, or *stop (which may be NULL) was set. Any thread, without the mutex. */
bool ampclient_link_interrupted(struct ampclient_link *link, const bool *stop);
/* Sets *stop, for jobs that have it, and wakes their threads. False: it was set before. Any thread, no mutex. */
bool ampclient_link_stop(struct ampclient_link *link, bool *stop);
/* Sleeps for `ms`, or until the link breaks or the call is interrupted. User's thread, without the mutex. */
void ampclient_link_pause(struct ampclient_link *link, uint64_t ms);

/* Writes a line to the client's log, if its level is wanted. Loop's thread, without the mutex. */
void ampclient_link_log(struct ampclient_link *link, enum ampclient_log_level level, const char *text);
/* Has the loop's thread write a line to the client's log, and waits for it. User's thread, without the mutex. */
void ampclient_link_log_soon(struct ampclient_link *link, enum ampclient_log_level level, const char *text);

/* Milliseconds of the monotonic clock. Any thread. */
uint64_t ampclient_now_ms(void);

/*
 * Connects to 2 to AMPCLIENT_SHARDS_MAX shards; calls then go to the shard that they name. 0; AMP_EINVAL
 * (also: the token would cross a network unencrypted), AMP_ENOMEM, AMP_EINTERNAL: it may be called again. User thread.
 */
int ampclient_link_use_shards(struct ampclient_link *link, const char *const *endpoints, uint32_t count,
                              struct amp_error *error);

#endif
