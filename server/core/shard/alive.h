/* What shard 0 is told of workers that are heard of on another shard (alive.c). Private to server/core. */
#ifndef AMPD_CORE_ALIVE_H
#define AMPD_CORE_ALIVE_H

struct ampd_model;

void ampd_alive_tell(struct ampd_model *model); /* ALIVE, if it is due */

#endif
