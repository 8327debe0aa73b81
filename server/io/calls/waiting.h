/* What a model waits for, in one sentence, and whether a worker is there. */
#ifndef AMPD_IO_WAITING_H
#define AMPD_IO_WAITING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ampd_model_info;
struct ampd_server;
struct ampd_worker_info;

/* Whether a worker takes part: it has joined the present epoch, has not left, and its lease runs. */
bool io_worker_is_live(const struct ampd_worker_info *worker);

/* "": it runs. Ranks are named as soon as they are missing; for how long is told as io_waiting_ms has it. */
void io_waiting_text(const struct ampd_server *server, uint32_t model, const struct ampd_model_info *info, char *text,
                     size_t size);
/*
 * For how long the model has waited for workers who have gone, or whom others who are there need; 0: for less than
 * AMPD_AWAITED_MS. Nobody waits where nobody has come yet, or where all have left.
 */
uint64_t io_waiting_ms(const struct ampd_server *server, uint32_t model, const struct ampd_model_info *info);

#endif
