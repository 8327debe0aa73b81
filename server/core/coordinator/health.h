/* Workers that hold the others up, or that push no good gradients (health.c). Private to server/core. */
#ifndef AMPD_CORE_HEALTH_H
#define AMPD_CORE_HEALTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ampd_model;
struct ampd_step_row;

void ampd_health_count(struct ampd_model *model, const struct ampd_step_row *row); /* a decided step */
/* Since when a push is complete while the open step needs others, and from when on those are named; 0: nobody waits. */
uint64_t ampd_health_awaited_ms(const struct ampd_model *model);
uint64_t ampd_health_late_ms(const struct ampd_model *model);
bool ampd_health_awaits(const struct ampd_model *model, uint32_t rank);          /* it is one of those */
void ampd_health_names(const struct ampd_model *model, char *text, size_t size); /* them, by rank; "": none */
#define AMPD_AWAITED_NAMES_MAX 256
void ampd_health_tick(struct ampd_model *model);
uint64_t ampd_health_next_ms(const struct ampd_model *model); /* when tick has something to do; 0: never */

#endif
