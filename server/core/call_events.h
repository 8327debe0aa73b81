/* What calls bring to the core: requests, and the blocks of streams (events.h). */
#ifndef AMPD_CALL_EVENTS_H
#define AMPD_CALL_EVENTS_H

#include "server/core/load_calls.h"
#include "server/core/model/passes.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes of a peer's address, with the final zero; a longer one is truncated. */
#define AMPD_PEER_NAME_MAX 64

/* What the models of one owner may be together, on this shard. */
struct ampd_quota {
    uint64_t models;       /* 0: no limit */
    uint64_t memory_bytes; /* as memory_max counts; 0: no limit */
};

struct ampd_event_create {
    const struct ampd_model_spec *spec; /* as given: the core fills in defaults and checks */
    const char *owner;                  /* who creates it; NULL or "": not known */
    struct ampd_quota quota;            /* the owner's */
};

struct ampd_event_named {
    const char *model;
};

/* What an operator asks for. A request id makes a repeated request the same action. */
struct ampd_event_act {
    const char *model;
    const struct ampd_note *note;
    float scale;
    double lr;
    uint64_t epoch, step;
    uint32_t rank;
    bool force; /* also while workers hold a lease */
};

struct ampd_event_join {
    const char *model;
    const char *worker;  /* name, or "" : made from rank */
    int32_t rank;        /* RANK, or -1 */
    uint32_t world_size; /* WORLD_SIZE, or 0: not checked */
    bool replace;
    uint64_t instance; /* of the process that joins; 0: it gives none */
    uint64_t random;   /* drawn by the host: the secret bits of the incarnation are taken from it */
    const char *peer;  /* its address, for people; NULL: not known */
};

struct ampd_event_worker {
    const char *model;
    uint32_t rank;
    struct ampd_incarnation incarnation;
};

struct ampd_event_push_state {
    const char *model;
    uint64_t epoch, step;
    uint32_t rank;
    struct ampd_incarnation incarnation;
};

enum ampd_pull_by { AMPD_PULL_STEP = 1, AMPD_PULL_VERSION = 2, AMPD_PULL_LATEST = 3 };

struct ampd_event_pull {
    const char *model;
    enum ampd_pull_by by;
    uint64_t epoch;                    /* 0: the present one */
    uint64_t number;                   /* the step or version; not used by LATEST */
    uint64_t have_epoch, have_version; /* what the client holds, 0, 0: nothing */
    bool has_worker;                   /* a worker that has joined pulls; rank and incarnation are its own */
    uint32_t rank;
    struct ampd_incarnation incarnation;
    bool in_memory; /* who pulls has the copies mapped: the host sends no block */
};

struct ampd_event_push {
    const char *model;
    uint64_t epoch, step;
    uint32_t rank;
    struct ampd_incarnation incarnation;
    uint64_t scale_id;
    enum amp_dtype dtype;
    float weight; /* 1 with equal weights */
    bool has_lr;  /* schedule WORKER */
    double lr;    /* learning rate of the step */
    const uint8_t *user_state;
    uint32_t user_state_size;
};

struct ampd_event_block {
    uint64_t block;
    uint32_t plane;    /* of a full load: 0 its masters, 1 and 2 its moments */
    bool bad_checksum; /* the bytes do not match: nothing below is set */
    uint32_t counts_count;
    const struct ampd_segment_count *counts; /* of ampd_receive_block: one per segment of the block */
};

struct ampd_event_push_end {
    uint32_t absent_count;
    const uint32_t *absent;             /* indexes of the parameters that this push does not have */
    const struct ampd_metrics *metrics; /* what the worker tells of the step; NULL: nothing */
};

#endif
