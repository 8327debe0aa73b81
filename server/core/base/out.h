/* What the core asks of its host: outputs, writes, log lines (out.c). Private to server/core. */
#ifndef AMPD_CORE_OUT_H
#define AMPD_CORE_OUT_H

#include "base/list.h"
#include "server/core/events.h"
#include "server/core/outputs.h"
#include "storage/records.h"

#include <stddef.h>
#include <stdint.h>

struct ampd_core;
struct ampd_message;
struct ampd_model;

/* A write that has been asked for. */
struct ampd_pending {
    struct amp_list node;
    uint64_t token;
    enum ampd_persist_kind kind;
    struct ampd_model *model;
    uint64_t call;                    /* answered afterwards, or 0 */
    struct ampd_worker_record worker; /* WORKER */
    uint64_t instance;                /* WORKER of a Join: the process that joins */
    char peer[AMPD_PEER_NAME_MAX];    /* WORKER of a Join: the address that it joins from */
    struct ampd_act_record act;       /* ACT */
    uint32_t shard;                   /* FENCE: whose, */
    struct ampd_fence fence;          /* and which */
};

/* Memory for a decision already taken: running out of it ends the process, and a restart recovers. */
void *ampd_need(void *memory);
void *ampd_copy(const void *from, size_t size); /* NULL when memory is out */
struct ampd_output *ampd_out(struct ampd_core *core, enum ampd_output_type type, uint64_t call);
void *ampd_out_own(struct ampd_core *core, void *memory); /* freed when the last output has been handed out */
struct ampd_pending *ampd_out_persist(struct ampd_model *model, enum ampd_persist_kind kind, uint64_t call,
                                      struct ampd_persist **persist);
/* Something of the process, not of a model. */
struct ampd_pending *ampd_out_persist_plain(struct ampd_core *core, enum ampd_persist_kind kind,
                                            struct ampd_persist **persist);
void ampd_out_log(struct ampd_core *core, enum amp_log_level level, const struct ampd_model *model, const char *format,
                  ...) __attribute__((format(printf, 4, 5)));
/* SEND; `free_message` frees it when it has been sent. */
void ampd_out_message_take(struct ampd_core *core, struct ampd_message *message,
                           void (*free_message)(struct ampd_message *message));
void ampd_out_close(struct ampd_core *core);

#endif
