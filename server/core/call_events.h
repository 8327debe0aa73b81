/*
 * What calls bring to the core: requests, and the blocks of streams. They are members of ampd_event (events.h): what
 * they point to is borrowed for the call of ampd_core_step.
 */
#ifndef AMPD_CALL_EVENTS_H
#define AMPD_CALL_EVENTS_H

#include "server/core/load_calls.h"
#include "server/core/model/passes.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes of a client's address as text, with the final zero; a longer one is truncated. */
#define AMPD_PEER_NAME_MAX 64

/* How much the models of one owner may be together, on this shard. */
struct ampd_quota {
    uint64_t models;       /* their number; 0: no limit */
    uint64_t memory_bytes; /* their memory, as memory_max counts it; 0: no limit */
};

/* CreateModel. */
struct ampd_event_create {
    const struct ampd_model_spec *spec; /* whole; the core checks it */
    const char *owner;                  /* who creates it, for the quota; NULL or "": not known */
    struct ampd_quota quota;            /* of that owner */
};

/* Checkpoint. */
struct ampd_event_named {
    const char *model;
};

/* What an operator asks for. A repeated request with the same request id (in the note) is one action. */
struct ampd_event_act {
    const char *model;
    const struct ampd_note *note; /* who asks, why, and the request id */
    float scale;                  /* SetScale */
    double lr;                    /* SetLearningRate */
    uint64_t epoch, step;         /* Rollback: of the checkpoint */
    uint32_t rank;                /* EvictWorker */
    bool force; /* DeleteModel: also while workers hold a lease, or while the model cannot be brought back */
};

/* Join. */
struct ampd_event_join {
    const char *model;
    const char *worker;  /* the worker's name; "": it is made from the rank */
    int32_t rank;        /* the rank that it wants (RANK), or -1: any */
    uint32_t world_size; /* the WORLD_SIZE that it was started with; 0: it is not checked */
    bool replace;        /* it may take a rank whose lease has ended */
    uint64_t instance;   /* number of the process that joins; 0: it gives none */
    uint64_t random;     /* random bits from the I/O layer: the secret part of the incarnation is taken from them */
    const char *peer;    /* the client's address, for people; NULL: not known */
};

/* KeepAlive, Leave, and other signs of life (RENEW). */
struct ampd_event_worker {
    const char *model;
    uint32_t rank;
    struct ampd_incarnation incarnation;
};

/* GetPushState. */
struct ampd_event_push_state {
    const char *model;
    uint64_t epoch, step;
    uint32_t rank;
    struct ampd_incarnation incarnation;
};

enum ampd_pull_by { AMPD_PULL_STEP = 1, AMPD_PULL_VERSION = 2, AMPD_PULL_LATEST = 3 };

/* Pull. */
struct ampd_event_pull {
    const char *model;
    enum ampd_pull_by by;
    uint64_t epoch;                    /* 0: the present one */
    uint64_t number;                   /* the step or version; not used by LATEST */
    uint64_t have_epoch, have_version; /* the version that the client holds; 0, 0: none */
    bool has_worker;                   /* a worker that has joined pulls; rank and incarnation are its own */
    uint32_t rank;
    struct ampd_incarnation incarnation;
    bool in_memory; /* the client has the copies mapped, so that no block is sent */
};

/* The header of a Push stream. */
struct ampd_event_push {
    const char *model;
    uint64_t epoch, step;
    uint32_t rank;
    struct ampd_incarnation incarnation;
    uint64_t scale_id;
    enum amp_dtype dtype;
    float weight; /* 1 with `weighting: equal` */
    bool has_lr;  /* lr was given, as schedule WORKER asks for */
    double lr;    /* has_lr: learning rate of the step */
    const uint8_t *user_state;
    uint32_t user_state_size;
};

/* A block of a granted Push or Load stream, which is in memory. */
struct ampd_event_block {
    uint64_t block;    /* global index */
    uint32_t plane;    /* Load: 0 its masters, 1 and 2 its moments; Push: 0 */
    bool bad_checksum; /* the bytes do not match their CRC32C: the fields below are not set */
    uint32_t counts_count;
    const struct ampd_segment_count *counts; /* [counts_count] of ampd_receive_block: one per segment of the block */
    const struct ampd_vote_terms *terms;     /* Push: by which `votes` were made; NULL: there are no votes */
    const struct amp_pass_vote *votes;       /* [counts_count] of ampd_take_block, if `terms` is set */
};

/* The trailer of a Push stream. */
struct ampd_event_push_end {
    uint32_t absent_count;
    const uint32_t *absent;             /* [absent_count] indexes of the parameters that this push does not have */
    const struct ampd_metrics *metrics; /* loss and metrics of the step from this worker; NULL: none */
};

#endif
