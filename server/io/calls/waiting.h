/* What a model waits for, in one sentence, and for how long it has waited. On the loop. */
#ifndef AMPD_IO_WAITING_H
#define AMPD_IO_WAITING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ampd_model_info;
struct ampd_server;
struct ampd_worker_info;

/* Whether a worker takes part: it has joined the present epoch, has not left, and its lease has not ended. */
bool io_worker_is_live(const struct ampd_worker_info *worker);

/*
 * Writes what the model waits for, truncated to `size` bytes with the final zero, or "" if it waits for nothing. Ranks
 * without a live worker are named at once; for how long the model has waited is added once io_waiting_ms is not 0.
 */
void io_waiting_text(const struct ampd_server *server, uint32_t model, const struct ampd_model_info *info, char *text,
                     size_t size);
/*
 * For how many milliseconds the model has waited for workers: for some whose leases have ended, or for some whose
 * pushes are missing while others' are complete. 0: for less than AMPD_AWAITED_MS, or not at all. It does not count as
 * waiting when no worker has joined yet, or all have left. On another shard than 0, which knows no leases, always 0.
 */
uint64_t io_waiting_ms(const struct ampd_server *server, uint32_t model, const struct ampd_model_info *info);

#endif
