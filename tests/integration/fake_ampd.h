/*
 * A small stand-in for ampd: one model, one worker, SGD in fp32, in memory, on a thread of its own. It speaks the real
 * protocol on rpc/, and does wrong what a test tells it to do wrong.
 */
#ifndef FAKE_AMPD_H
#define FAKE_AMPD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is to go wrong next. Each happens once, then its field is zero again. */
struct fake_faults {
    uint32_t cut_push_after; /* the connection is lost when so many blocks of pushes have come */
    uint32_t cut_pull_after; /* ... when so many blocks of a pull have been sent */
    uint32_t cut_load_after; /* ... when so many blocks of a load have come */
    uint32_t stand_after;    /* it does nothing any more when so many blocks have come, until fake_go_on or fake_free */
    bool garbage;            /* the next answer with one message, or header of a pull, has bytes that are no message */
    bool damage_pull;        /* the first block of the next pull has a wrong checksum */
    bool other_blocks;       /* the header of the next pull announces a block more than was asked for */
    bool refuse_push_block;  /* the next block of a push is answered with DATA_LOSS */
    uint32_t unavailable;    /* so many calls are answered UNAVAILABLE */
    uint64_t verdict_after_ms; /* a verdict takes so long (stays set) */
    uint32_t shard_away;       /* so many times it has two shards, one of which is nowhere */
    bool no_status;            /* then, or at once, GetStatus is answered UNAVAILABLE (stays set) */
    bool two_shards;           /* it is both of two shards (stays set) */
    bool swallow_load;         /* the next load of shard 1 is never answered */
    bool fewer_parameters;     /* the next Join is answered with a model that has one parameter less */
    bool other_schedule;       /* before the next Join the model gets the schedule WORKER, or another one instead */
    bool odd_memory;           /* the next AttachMemory is answered with memory of another layout */
    bool no_memory_blocks;     /* the next AttachMemory is answered with memory for no block */
    const char *memory_socket; /* AttachMemory is answered with memory that this unix socket gives; or NULL */
    bool swallow_attach;       /* the next AttachMemory is never answered */
    bool swallow_pull;         /* the next pull is never answered */
    bool answer_early;         /* the next push is answered LATE at its header; its body is not read */
    bool swallow_push;         /* the next push is never answered */
    uint64_t down_ms;          /* after a cut nothing listens for so long (stays set) */
    bool roll_back;            /* a cut raises the epoch, and the model is at step 1 again */
};

/* What has happened so far. */
struct fake_counts {
    uint32_t joins, keep_alives, leaves, pulls, pushes, push_states, loads, creates, cuts, drains;
    uint64_t instance;    /* of the last Join */
    uint32_t push_blocks; /* received, repeated ones counted */
};

struct fake;

/* Starts it on a free port of 127.0.0.1. NULL after a message on stderr. */
struct fake *fake_new(void);
/* Starts it on that port later: until then nothing listens there. */
struct fake *fake_new_later(uint64_t after_ms);
void fake_free(struct fake *fake);

/* "127.0.0.1:port" */
const char *fake_endpoint(const struct fake *fake);

void fake_set(struct fake *fake, const struct fake_faults *faults);
struct fake_counts fake_counts(struct fake *fake);
/* Cuts all connections now. */
void fake_cut(struct fake *fake);
/* Ends a `stand_after`. */
void fake_go_on(struct fake *fake);

/* The value of one element of the flat space, and the last user state that a push carried (its size; copied if it fits). */
float fake_value(struct fake *fake, uint64_t flat_index);
size_t fake_user_state(struct fake *fake, void *data, size_t room);

#endif
