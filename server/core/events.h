/*
 * What can happen to the core. The I/O layer (server/io) passes each thing that happens to ampd_core_step as one event.
 *
 * Calls: the I/O layer gives each RPC of the methods below a number, `call`, which is not 0 and never used twice in a
 * process. The core answers each call exactly once (AMPD_OUT_REPLY), or not at all if AMPD_EVENT_CALL_CLOSED came
 * first. CALL_CLOSED is sent once for a call that ends without the core's answer: cancelled, past its deadline,
 * connection lost, or refused by the I/O layer itself (a message that does not parse, a block out of range). For a
 * stream that was granted memory it is sent only when the stream's I/O loop does not touch that memory any more.
 *
 * What an event points to is borrowed for the call of ampd_core_step.
 */
#ifndef AMPD_EVENTS_H
#define AMPD_EVENTS_H

#include "server/core/call_events.h"
#include "server/core/model/passes.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_message;

enum ampd_event_type {
    /* ---- from the store, at start ---- */
    AMPD_EVENT_MODEL_FOUND = 1, /* u.found: a stored model; one for each of them, before START */
    AMPD_EVENT_START = 2,       /* all models have been found: the core begins recovery */
    AMPD_EVENT_FENCE_FOUND = 3, /* u.fence: the highest that was stored for a shard, before START */
    /* ---- unary calls ---- */
    AMPD_EVENT_SET_LR = 8,          /* u.act: lr */
    AMPD_EVENT_EVICT = 9,           /* u.act: rank */
    AMPD_EVENT_CREATE_MODEL = 10,   /* u.create */
    AMPD_EVENT_JOIN = 11,           /* u.join */
    AMPD_EVENT_KEEP_ALIVE = 12,     /* u.worker */
    AMPD_EVENT_LEAVE = 13,          /* u.worker */
    AMPD_EVENT_GET_PUSH_STATE = 14, /* u.push_state */
    AMPD_EVENT_CHECKPOINT = 15,     /* u.named */
    AMPD_EVENT_SET_SCALE = 16,      /* u.act: scale */
    AMPD_EVENT_RESET_SCALE = 17,    /* u.act */
    AMPD_EVENT_ROLLBACK = 18,       /* u.act: epoch and step of a checkpoint */
    AMPD_EVENT_DELETE_MODEL = 19,   /* u.act: force */
    /* ---- streams ---- */
    AMPD_EVENT_LOAD_BEGIN = 20,  /* u.load: the header is here. LOAD_GRANT or a reply follows */
    AMPD_EVENT_LOAD_BLOCK = 21,  /* u.block: a granted block is in memory */
    AMPD_EVENT_LOAD_END = 22,    /* the client has sent all it has */
    AMPD_EVENT_PULL = 23,        /* u.pull. PULL_GRANT and PULL_BLOCKS, or a reply, follow */
    AMPD_EVENT_PUSH_BEGIN = 24,  /* u.push: the header is here. PUSH_GRANT and PUSH_BLOCKS, or a reply, follow */
    AMPD_EVENT_PUSH_BLOCK = 25,  /* u.block: a listed block is in memory, or its checksum is wrong */
    AMPD_EVENT_PUSH_END = 26,    /* u.push_end: the trailer is here, after all blocks the client sent */
    AMPD_EVENT_CALL_CLOSED = 27, /* the call has ended without the core's answer, or a pull was sent whole */
    AMPD_EVENT_REVOKED = 28,     /* the I/O loop of the call has let go of the memory that was revoked */
    AMPD_EVENT_LOAD_STATE = 29,  /* u.load_state: a user state of a full load */
    /* ---- other signs of life ---- */
    AMPD_EVENT_RENEW = 30, /* u.worker, no call: bytes of its push came, or its connection lives with a call open */
    /* ---- completions of outputs ---- */
    AMPD_EVENT_JOB_DONE = 40,     /* u.job, as JOB gave it: it has run */
    AMPD_EVENT_PERSISTED = 41,    /* u.persisted: what PERSIST asked for is stored */
    AMPD_EVENT_RESTORED = 42,     /* u.restored: what RESTORE asked for was read, or cannot be */
    AMPD_EVENT_PART_WRITTEN = 43, /* u.part: the part of CUT is durable, or was stopped */
    AMPD_EVENT_PART_BLOCKS = 44,  /* u.part_blocks: the memory of these blocks is not read any more */
    AMPD_EVENT_JOURNALLED = 45,   /* u.persisted: the record of JOURNAL is synced */
    AMPD_EVENT_REPLAYED = 46,     /* u.replayed: what REPLAY asked for was read, or cannot be */
    /* ---- the rest ---- */
    AMPD_EVENT_PEER = 50,      /* u.message: a message of another shard */
    AMPD_EVENT_DRAIN = 51,     /* the process is to end, after a last checkpoint. AMPD_OUT_DRAINED follows */
    AMPD_EVENT_TICK = 52,      /* the time of AMPD_OUT_TIMER has come */
    AMPD_EVENT_PEER_UP = 53,   /* u.shard: a session with that shard begins; messages of an earlier one may be lost */
    AMPD_EVENT_PEER_DOWN = 54, /* u.shard: the session is over, and no other one has taken its place */
    AMPD_EVENT_EPOCH_RAISED = 55, /* u.raised: what RAISE_EPOCH asked for; none comes if the place is lost */
};

/* The highest fence of a shard that is stored. */
struct ampd_event_fence {
    uint32_t shard;
    struct ampd_fence fence;
};

struct ampd_event_persisted {
    uint64_t token; /* of the order, here and below */
};

struct ampd_event_restored {
    uint64_t token;
    int code; /* 0; AMP_EDATALOSS: it is damaged, and the one before is taken; any other (AMP_ENOTFOUND, AMP_EIO,
               * AMP_ENOMEM): it is asked for again later. Unless it is 0, the tensors may hold anything */
    const struct ampd_checkpoint_state *state; /* code 0: what the checkpoint has beside tensors */
};

struct ampd_event_part_blocks {
    uint64_t token;
    uint64_t first, count; /* as AMPD_OUT_PART_BLOCKS gave them */
};

struct ampd_event_part {
    uint64_t token;
    int code; /* 0; AMP_ECANCELLED after AMPD_OUT_CUT_CANCEL. A full disk is no answer: the I/O layer tries again */
    const struct ampd_checkpoint_record *record; /* code 0: of it file, size_bytes and manifest are used */
};

struct ampd_event_raised {
    uint64_t token;
    uint64_t epoch; /* a number that no epoch of the model has had */
};

struct ampd_event_replayed {
    uint64_t token;
    int code; /* 0; AMP_ENOTFOUND: there is no whole record of the step; AMP_EDATALOSS: it is of another model; any
               * other (AMP_ENOMEM, AMP_EIO): it is asked for again later */
    struct ampd_vote_journal_key key;
    const uint8_t *notes; /* [notes_size], as AMPD_OUT_JOURNAL gave them */
    uint64_t notes_size;
    bool has_g; /* the record has a gradient, which is in memory now */
};

struct ampd_event {
    enum ampd_event_type type;
    uint64_t call;  /* of unary calls and streams, else 0 */
    int64_t utc_us; /* UTC microseconds, now; for the records alone: no decision depends on it */
    union {
        const struct ampd_model_record *found;
        struct ampd_event_create create;
        struct ampd_event_named named;
        struct ampd_event_load load;
        struct ampd_event_load_state load_state;
        struct ampd_event_act act;
        struct ampd_event_fence fence;
        uint32_t shard;
        struct ampd_event_join join;
        struct ampd_event_worker worker;
        struct ampd_event_push_state push_state;
        struct ampd_event_pull pull;
        struct ampd_event_push push;
        struct ampd_event_block block;
        struct ampd_event_push_end push_end;
        struct ampd_job job;
        struct ampd_event_persisted persisted;
        struct ampd_event_restored restored;
        struct ampd_event_part part;
        struct ampd_event_part_blocks part_blocks;
        struct ampd_event_replayed replayed;
        struct ampd_event_raised raised;
        const struct ampd_message *message;
    } u;
};

#endif
