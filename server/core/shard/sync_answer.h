/* The answer to SYNC (sync_answer.c). Private to server/core. */
#ifndef AMPD_CORE_SYNC_ANSWER_H
#define AMPD_CORE_SYNC_ANSWER_H

#include <stdbool.h>

struct ampd_core;
struct ampd_message;

/* SYNC: true if it is to be answered. */
bool ampd_sync_asked(struct ampd_core *core, const struct ampd_message *message);
void ampd_sync_try_answer(
    struct ampd_core *core); /* if one is due, and nothing that it tells is being stored or read */
void ampd_sync_create(struct ampd_core *core, const struct ampd_message *message);

#endif
