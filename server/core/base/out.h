/*
 * The queue of outputs, and the writes that have been asked for (out.c). All functions run on the thread that steps the
 * core. Private to server/core.
 */
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

/* A write that has been asked for (AMPD_OUT_PERSIST), until PERSISTED comes with its token. */
struct ampd_pending {
    struct amp_list node; /* in core->pendings */
    uint64_t token;
    enum ampd_persist_kind kind;
    struct ampd_model *model;         /* NULL: it is the process's (FENCE) */
    uint64_t call;                    /* the call that is answered afterwards, or 0 */
    struct ampd_worker_record worker; /* WORKER */
    uint64_t instance;                /* WORKER of a Join: the process that joins; 0: it gave none */
    char peer[AMPD_PEER_NAME_MAX];    /* WORKER of a Join: the address that it joins from */
    struct ampd_act_record act;       /* ACT */
    uint32_t shard;                   /* FENCE: the shard */
    struct ampd_fence fence;          /* FENCE: its new fence */
};

/*
 * Returns the memory, which is for a decision already taken: where it is NULL, the process ends, and a restart
 * recovers.
 */
void *ampd_need(void *memory);

/* A copy of `size` bytes, which may be 0; the caller's. NULL when memory is out. */
void *ampd_copy(const void *from, size_t size);

/* Appends an output to the queue, with everything but type and call zero, for the caller to fill in. */
struct ampd_output *ampd_out(struct ampd_core *core, enum ampd_output_type type, uint64_t call);

/*
 * Makes the output that was appended last the owner of this memory: it is freed when the output after it is asked for.
 * Returns the memory, which must not be NULL. An output owns OWNED_MAX pieces at most (out.c).
 */
void *ampd_out_own(struct ampd_core *core, void *memory);

/*
 * Asks for a write of a model, which is held until it is done. Sets *persist to the order, whose token, kind, model,
 * time and `full` are filled in; the caller fills in the rest of both. The pending is the core's.
 */
struct ampd_pending *ampd_out_persist(struct ampd_model *model, enum ampd_persist_kind kind, uint64_t call,
                                      struct ampd_persist **persist);

/* Asks in the same way for a write that is the process's and not a model's. */
struct ampd_pending *ampd_out_persist_plain(struct ampd_core *core, enum ampd_persist_kind kind,
                                            struct ampd_persist **persist);

/* A line for the operator's log; model NULL: about none. Without ampd_core_set_debug, DEBUG lines are dropped. */
void ampd_out_log(struct ampd_core *core, enum amp_log_level level, const struct ampd_model *model, const char *format,
                  ...) __attribute__((format(printf, 4, 5)));

/* SEND: takes the message, and frees it by free_message when the output after it is asked for. */
void ampd_out_message_take(struct ampd_core *core, struct ampd_message *message,
                           void (*free_message)(struct ampd_message *message));

/* Frees all outputs that have not been taken. */
void ampd_out_close(struct ampd_core *core);

#endif
