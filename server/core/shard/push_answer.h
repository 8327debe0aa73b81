/* What a push is told of its step (push_answer.c). Private to server/core. */
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

/* The result of a decided step; `counted`: for a push that did, else it is LATE. Owned by the last output. */
void ampd_push_result(const struct ampd_model *model, const struct ampd_verdict_message *verdict, bool counted,
                      struct ampd_step_result *result);
void ampd_push_answer_decided(struct ampd_model *model, struct ampd_call *call); /* a push of the last decided step */

void ampd_push_state(struct ampd_core *core, uint64_t call, const struct ampd_event_push_state *state);
void ampd_call_frozen(struct ampd_call *call);                         /* a pull or push of a step that does not open */
void ampd_call_let_go(struct ampd_core *core, struct ampd_call *call); /* REVOKED came */

#endif
