/*
 * Workers, as the core knows them: who holds a rank, and until when (workers.c); whose calls are refused, and what is told of
 * that (ranks.c).
 */
#ifndef AMPD_WORKERS_H
#define AMPD_WORKERS_H

#include "server/core/events.h"
#include "server/core/states.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_alive;
struct ampd_call;
struct ampd_core;
struct ampd_model;
struct ampd_pending;

struct ampd_worker {
    struct ampd_worker_record record;
    bool held; /* somebody has, or had, the rank */
    enum ampd_lease_state lease;
    uint64_t joined_epoch; /* 0: not since this process started */
    uint64_t lease_until_ms;
    struct ampd_incarnation asked; /* newest one given out, stored or not */
    uint32_t writes;               /* of it that are being stored: until then nobody else gets the rank */
    uint64_t pushes, overflow_pushes, last_step;
    uint32_t slow_steps, bad_pushes; /* in a row, up to those at which the worker is named */
    uint64_t
        bad_window; /* a bit for each of the newest AMPD_QUARANTINE_WINDOW pushes, lowest the newest: 1 counts as bad */
    float finite_scale;        /* of its last push that was finite; 0: none was */
    bool straggles, nonfinite; /* named */
    uint64_t barred_until_ms;  /* quarantine; 0: none */
    uint64_t barred_epoch;     /* it ends with this */
    /* who it is, and what the log and the status tell (ranks.c) */
    uint64_t instance; /* of the process that holds the rank; 0: it gave none, or this process has just started */
    char peer[AMPD_PEER_NAME_MAX];  /* where its Join came from; "": likewise */
    uint64_t joined_ms;             /* when */
    struct ampd_incarnation others; /* the newest that was another process's; counter 0: none is known */
    struct ampd_incarnation alive;  /* another shard: heard from, and shard 0 is to be told; counter 0: none */
    struct ampd_incarnation listed; /* another shard: the newest that an OPEN has listed; counter 0: none has */
    uint64_t joins, replacements, leaves, fences;
    uint64_t quiet_until_ms; /* until then the log is told no more of the rank, but this is counted: */
    struct {
        uint32_t joins, replacements, leaves, fences;
    } untold;
};

/* ---- workers.c ---- */
void ampd_workers_join(struct ampd_core *core, uint64_t call, const struct ampd_event_join *join);
void ampd_workers_stored(struct ampd_model *model, const struct ampd_pending *pending);
void ampd_workers_keep_alive(struct ampd_core *core, uint64_t call, const struct ampd_event_worker *worker);
void ampd_workers_leave(struct ampd_core *core, uint64_t call, const struct ampd_event_worker *worker);
/* A sign of life: renews a running lease; another shard tells shard 0. False: that incarnation holds the rank, but its lease has ended. */
bool ampd_workers_renew(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation);
bool ampd_workers_enough(const struct ampd_model *model);                  /* for a step to open */
bool ampd_workers_expected(const struct ampd_model *model, uint32_t rank); /* by a step that opens now */
/* Steps go on without the rank, and for a while nobody may join as it. False if they could not: then nothing is done. */
bool ampd_workers_bar(struct ampd_model *model, uint32_t rank);
bool ampd_workers_barred(const struct ampd_model *model, uint32_t rank, uint64_t now_ms);
bool ampd_workers_holds_lease(const struct ampd_model *model, uint32_t *rank);
void ampd_workers_tick(struct ampd_model *model);
uint64_t ampd_workers_next_ms(const struct ampd_model *model); /* when tick has something to do; 0: never */
/*
 * Those that have joined under this epoch, or (after a start) are taken to have if a step of it had begun, live for the time of a lease.
 * Who is found at a start else has to join again.
 */
void ampd_workers_adopt(struct ampd_model *model, bool started, bool begun);
void ampd_workers_found(struct ampd_model *model, const struct ampd_worker_record *record);
/* A rank that the open step waits for and that has been gone for loss_timeout, or AMPD_NO_RANK. */
uint32_t ampd_workers_gone(const struct ampd_model *model);

/* ---- ranks.c ---- */
/*
 * Whether calls of an incarnation are refused: on shard 0 all that do not hold the rank now, on another shard those that it knows of
 * by the steps that were opened. Then *error says why, and it is counted: the call is to end with it.
 */
bool ampd_ranks_refuse(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation,
                       struct amp_error *error);
/* Who has taken the rank from the process of that incarnation, as a sentence; "": nobody. */
void ampd_ranks_taken(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation, char *text,
                      size_t size);
/* Ends a push whose incarnation the open step does not have. */
void ampd_ranks_end(struct ampd_call *call);
void ampd_ranks_joined(struct ampd_model *model, const struct ampd_pending *join); /* before its record is set */
void ampd_ranks_left(struct ampd_model *model, uint32_t rank);
void ampd_ranks_listed(struct ampd_model *model); /* another shard: a step is open */
/* Signs of life on other shards: notes one; tells shard 0 of those since the last time; takes them, on shard 0. */
void ampd_ranks_heard(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation);
void ampd_ranks_tell_alive(struct ampd_model *model);
void ampd_ranks_alive(struct ampd_model *model, const struct ampd_alive *alive);
void ampd_ranks_tick(struct ampd_model *model, uint32_t rank);
uint64_t ampd_ranks_next_ms(const struct ampd_worker *worker); /* when tick has something to tell; 0: never */

#endif
