/* What a model waits for, in one sentence. */
#ifndef AMPD_IO_WAITING_H
#define AMPD_IO_WAITING_H

#include <stddef.h>
#include <stdint.h>

struct ampd_model_info;
struct ampd_server;

/* "": it runs. Ranks are named as soon as they are missing. */
void io_waiting_text(const struct ampd_server *server, uint32_t model, const struct ampd_model_info *info, char *text,
                     size_t size);

#endif
