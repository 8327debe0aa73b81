/* Leases of ranks (workers.c). Private to server/core. */
#ifndef AMPD_CORE_WORKERS_H
#define AMPD_CORE_WORKERS_H

#include "server/core/events.h"
#include "server/core/model/states.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_alive;
struct ampd_core;
struct ampd_model;
struct ampd_pending;

void ampd_workers_join(struct ampd_core *core, uint64_t call, const struct ampd_event_join *join);
/* ALIVE: signs of life that another shard has seen. */
void ampd_workers_alive(struct ampd_model *model, const struct ampd_alive *alive);
void ampd_workers_stored(struct ampd_model *model, const struct ampd_pending *pending);
void ampd_workers_keep_alive(struct ampd_core *core, uint64_t call, const struct ampd_event_worker *worker);
void ampd_workers_leave(struct ampd_core *core, uint64_t call, const struct ampd_event_worker *worker);
/* Whether a rank may be evicted now; else the call is answered why not. */
bool ampd_workers_may_evict(struct ampd_model *model, uint64_t call, uint32_t rank);
/* Ends the lease of whoever holds the rank, if somebody does, for an operator (`note`), and refuses it from then on. */
void ampd_workers_evict(struct ampd_model *model, uint32_t rank, const struct ampd_note *note);
bool ampd_workers_enough(const struct ampd_model *model);                  /* for a step to open */
uint32_t ampd_workers_least(const struct ampd_model *model);               /* so many are enough; 1 or more */
bool ampd_workers_expected(const struct ampd_model *model, uint32_t rank); /* by a step that opens now */
/*
 * Steps go on without the rank, and for a while nobody may join as it. False if they could not: then nothing is done.
 */
bool ampd_workers_quarantine(struct ampd_model *model, uint32_t rank);
bool ampd_workers_quarantined(const struct ampd_model *model, uint32_t rank, uint64_t now_ms);
bool ampd_workers_holds_lease(const struct ampd_model *model, uint32_t *rank);
void ampd_workers_tick(struct ampd_model *model);
uint64_t ampd_workers_next_ms(const struct ampd_model *model); /* when tick has something to do; 0: never */
/*
 * Those that have joined under this epoch, or (after a start) are taken to have if a step of it had begun, live for the
 * time of a lease. Who is found at a start else has to join again.
 */
void ampd_workers_adopt(struct ampd_model *model, bool started, bool begun);
void ampd_workers_found(struct ampd_model *model, const struct ampd_worker_record *record);
/* A rank that the open step waits for and that has been gone for loss_timeout, or AMPD_NO_RANK. */
uint32_t ampd_workers_gone(const struct ampd_model *model);

#endif
