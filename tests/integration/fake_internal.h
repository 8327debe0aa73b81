/* Inside the fake ampd: what its files share. Everything but what the mutex guards belongs to the loop's thread. */
#ifndef FAKE_INTERNAL_H
#define FAKE_INTERNAL_H

#include "proto/block.h"
#include "proto/msg.h"
#include "rpc/arpc_server.h"
#include "tests/integration/fake_ampd.h"

#include <pthread.h>
#include <uv.h>

#define BLOCK_ELEMENTS 65536
#define BLOCKS_MAX     64
#define FLAT_ALIGN     64
#define LEARNING_RATE  0.5f
#define LEASE_MS       3000
#define BOOT_ID        77

struct fake {
    pthread_t thread;
    pthread_mutex_t mutex; /* faults, counts, values, user_state, wanted_*, stands */
    pthread_cond_t goes_on;
    bool stands;
    uv_loop_t loop;
    uv_async_t async;
    uv_timer_t relisten, verdict;
    struct arpc_server *server;
    int port;
    char endpoint[64];
    bool stopping, cut_wanted, cutting;
    bool dead; /* between the event of a cut and the cut itself: nothing is done or answered */
    struct fake_faults faults;
    struct fake_counts counts;
    /* the model */
    struct ampd_msg_model_spec spec;
    bool has_spec, loaded, done;
    uint64_t sizes[16], starts[16], elements, blocks;
    float *values, *initial;
    uint64_t epoch, step, version, applied, skipped, scale_id;
    float scale;
    uint64_t counter; /* of incarnations */
    /* the push of the open step */
    float *staged;
    bool present[BLOCKS_MAX];
    bool complete;
    struct arpc_call *waiting;        /* its answer is due */
    struct ampd_msg_overflow_row row; /* of last */
    struct ampd_msg_step_result last;
    uint8_t user_state[AMPD_MSG_USER_STATE_MAX];
    size_t user_state_size;
};

struct fake *fake_of(struct arpc_call *call);

/* The event of a cut: from now on nothing is done or answered, and soon all connections are lost. */
void fake_die(struct fake *fake);
/* Counts a fault's number down; true when it comes to 0 now. */
bool fake_comes(struct fake *fake, uint32_t *left);
/* Whether the flag was set; then it is no longer. */
bool fake_take(struct fake *fake, bool *flag);
void fake_count(struct fake *fake, uint32_t *counter);
/* A block has come: stands still if the fault says so. */
void fake_stand(struct fake *fake);

/* Answers with the message and frees it. */
void fake_reply(struct arpc_call *call, struct amp_buf *body);
/* Fails the call with the present epoch and step in the details. */
void fake_refuse(struct arpc_call *call, int status, const char *reason, const char *text);
/* Fails the call if the model has another name. */
bool fake_no_model(struct arpc_call *call, const char *name);

/* The time of a verdict has come. */
void fake_on_verdict(uv_timer_t *timer);

extern const struct arpc_handler fake_status, fake_drain, fake_create, fake_get, fake_join, fake_keep_alive, fake_leave,
    fake_push_state, fake_attach, fake_pull, fake_stream;

#endif
