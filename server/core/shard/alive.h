/*
 * ALIVE: how a shard other than 0 reports to shard 0 which workers it has heard from (alive.c). Runs on the thread that
 * steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_ALIVE_H
#define AMPD_CORE_ALIVE_H

struct ampd_model;

/*
 * Sends ALIVE for the workers heard from since the last one, if model->alive_due_ms has come, and forgets them. Without
 * a session to shard 0 nothing is sent, and they are forgotten all the same. Never called on shard 0 with an ALIVE due.
 */
void ampd_alive_send(struct ampd_model *model);

#endif
