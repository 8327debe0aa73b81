/*
 * How pushes and GetPushState are answered (push_answer.c). All functions run on the thread that steps the core.
 * Private to server/core.
 */
#ifndef AMPD_CORE_PUSH_ANSWER_H
#define AMPD_CORE_PUSH_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

struct ampd_call;
struct ampd_core;
struct ampd_event_push_state;
struct ampd_model;
struct ampd_step_result;
struct ampd_verdict_message;

/*
 * Fills the result of a decided step; with `counted` false its verdict is LATE. The arrays that it points to are
 * copies, owned by the output that was made last.
 */
void ampd_push_result(const struct ampd_model *model, const struct ampd_verdict_message *verdict, bool counted,
                      struct ampd_step_result *result);

/*
 * Answers a push of the last decided step, whose verdict must be here: with its result if the push counted; else LATE,
 * or an error if the incarnation does not hold the rank.
 */
void ampd_push_answer_decided(struct ampd_model *model, struct ampd_call *call);

/* GetPushState: answers at once with the blocks that are PRESENT, and renews the worker's lease. */
void ampd_push_state(struct ampd_core *core, uint64_t call, const struct ampd_event_push_state *state);

/* Ends a pull or push of a step that does not open, since the scale is at its floor: FAILED_PRECONDITION. */
void ampd_call_frozen(struct ampd_call *call);

/* AMPD_EVENT_REVOKED: sends the answer that a REVOKING call has been waiting with, and forgets the call. */
void ampd_call_let_go(struct ampd_core *core, struct ampd_call *call);

#endif
