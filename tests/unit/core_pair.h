/*
 * Two shards in one process, for unit tests: what their outputs ask for is done in order, messages between them are delivered in
 * order, or held. One model, "model", of core_spec with one rank.
 */
#ifndef AMPD_TEST_CORE_PAIR_H
#define AMPD_TEST_CORE_PAIR_H

#include "server/core/coordinator/coord.h"
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/shard/push.h"
#include "server/core/shard/shard.h"
#include "tests/unit/core_fixture.h"

#define PAIR_CALLS_MAX 64

extern struct ampd_core *pair_core[2];
extern uint64_t pair_now_ms, pair_calls_count;
extern struct core_call pair_calls[PAIR_CALLS_MAX]; /* by number, from 1 */
extern unsigned pair_messages_count;                /* on their way */
extern bool pair_hold_messages;                     /* they stay on their way */
extern enum ampd_persist_kind pair_hold_kind;       /* what is not stored before the test says PERSISTED; 0: nothing */
extern uint64_t pair_held_token;                    /* of the last that was held */
extern bool pair_drained[2];                        /* DRAINED came */
extern enum ampd_model_state pair_notified[2];      /* the state when watchers were last told to look */
extern uint64_t pair_acts[2][16];                   /* scale ids of the rows of acts that each has ordered, in order */
extern unsigned pair_acts_count[2];
extern int pair_restore_code[2];                    /* what the next restore of each finds */
extern char pair_logged[AMP_ERROR_TEXT_MAX];        /* the last line of either, */
extern char pair_logged_before[AMP_ERROR_TEXT_MAX]; /* and the one before */
extern struct ampd_message *pair_last;              /* the last that was sent, whatever became of it; owned */
extern struct ampd_incarnation pair_incarnation;    /* of rank 0 */
extern double pair_lr;                              /* of pushes, and the schedule is WORKER; NAN: none */
extern float pair_gradient;                         /* each element of a push; 0 */
extern enum ampd_floor_policy pair_floor;           /* 0: none; else one overflow at the only scale, 1, is too many */
extern enum ampd_durability pair_durability;        /* STEP: the journal keeps the last vote of each; 0: none */

/* Two cores with a model that is loaded and joined: step 1 is open. With pair_setup it is decided, too. */
void pair_start(unsigned shard, uint64_t boot);
void pair_send_start(unsigned shard);
void pair_begin(enum ampd_weighting weighting);
int pair_setup(void **state);
int pair_teardown(void **state);

/* One event; then what comes of it, until nothing is left to do (pair_settle). */
void pair_step(unsigned shard, struct ampd_event *event);
const struct ampd_message *pair_first(void); /* the next one to come; lent */
void pair_deliver_first(void);
void pair_settle(void);
void pair_forget_messages(void);
struct core_call *pair_call(unsigned shard, struct ampd_event *event);
void pair_load(unsigned shard); /* its blocks, by loader 7, to the end of the stream */
struct core_call *pair_push(unsigned shard, uint64_t number, float weight); /* zeros, whole */

struct ampd_model *pair_model(unsigned shard);

/* A message as the shard would send it, and it would count: a test makes one thing of it wrong. The caller's. */
struct ampd_message *pair_message(enum ampd_message_type type, unsigned from, unsigned to);
struct ampd_message *pair_verdict(uint64_t step);  /* of shard 0 for shard 1, with a record that the model can have */
void pair_send_take(struct ampd_message *message); /* delivers it, settles, and frees it */

/* Another process in the place of one, with this store, or with an empty one (NULL); its specification is filled in. */
void pair_start_with(unsigned shard, struct ampd_model_record *given, uint64_t memory_max);
/* Likewise of shard 0; then a session begins, and the first that it hears is HELLO. */
void pair_start_zero(struct ampd_model_record *given, uint64_t memory_max);

#endif
