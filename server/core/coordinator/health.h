/*
 * Workers that keep the others waiting, or whose pushes have Inf or NaN again and again (health.c). Shard 0 alone, on
 * the thread that steps the core. Times are of the clock that ampd_core_step is given. Private to server/core.
 */
#ifndef AMPD_CORE_HEALTH_H
#define AMPD_CORE_HEALTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ampd_model;
struct ampd_step_row;

/* Counts a step that was just decided, names stragglers and bad pushes in the log, and may begin a quarantine. */
void ampd_health_count(struct ampd_model *model, const struct ampd_step_row *row);

/*
 * Since when a complete push waits in the open step for those of other ranks; before the first step of an epoch, since
 * when a worker waits for others to join. 0: nobody waits.
 */
uint64_t ampd_health_awaited_ms(const struct ampd_model *model);

/* From when on the ranks that are waited for are named (AMPD_AWAITED_MS); 0: nobody waits. */
uint64_t ampd_health_late_ms(const struct ampd_model *model);

/* Whether others wait for this rank, in the sense of ampd_health_awaited_ms. */
bool ampd_health_awaits(const struct ampd_model *model, uint32_t rank);

/* Writes the ranks that are waited for, "rank 1 (name), rank 3 (name)", the first eight of them; "": none. */
void ampd_health_names(const struct ampd_model *model, char *text, size_t size);

/* Bytes that hold every text of ampd_health_names, with the final zero. */
#define AMPD_AWAITED_NAMES_MAX 256

/* Writes the line of the log that names them, if it is due. */
void ampd_health_tick(struct ampd_model *model);

/* When that line is due; 0: it is written already, or nobody waits. */
uint64_t ampd_health_next_ms(const struct ampd_model *model);

#endif
