/*
 * The calls of a joined model (model.h): each is one RPC that its core has asked for. Their messages are in
 * model_messages.c, the streams of blocks in model_push.c and model_pull.c. On the loop's thread.
 */
#ifndef AMPCLIENT_MODEL_CALL_H
#define AMPCLIENT_MODEL_CALL_H

#include "client/io/model.h"
#include "proto/block.h"

/* One RPC of a core. */
struct ampclient_core_call {
    struct amp_list node;
    struct ampclient_model *model;
    uint64_t number;
    enum ampclient_output_type kind;
    uint32_t shard;
    struct arpc_call *call; /* NULL: could not begin */
    bool cancelled;         /* by the core: nothing of it matters any more */
    struct amp_error error; /* what this side found wrong; goes before what the server says */
    struct amp_buf reply;   /* the one message of all kinds but PULL */
    struct {
        struct ampclient_out_pull wanted;
        struct ampd_block_reader reader;
        uint64_t first, count; /* blocks that the header announced */
        const uint8_t *copy;   /* in_memory: where the version lies, as a whole flat space */
    } pull;
    struct {
        uint64_t *blocks; /* to be sent, in order */
        size_t count, capacity, next;
        bool end;
        bool telling;           /* that a run is in the slot; the next one is put there once this has left */
        bool untold;            /* blocks were named, and the core has not heard that they have left */
        struct amp_buf trailer; /* the message */
    } push;
};

/*
 * Sends the request of an output that begins an RPC; the call goes into model->calls, or model->failed. With the mutex.
 */
void ampclient_call_begin(struct ampclient_model *model, const struct ampclient_output *output);
struct ampclient_core_call *ampclient_call_find(struct ampclient_model *model, uint64_t number);
/* This side gives the call up; its end is told with this code. */
void ampclient_call_give_up(struct ampclient_core_call *call, int code, const char *text);
void ampclient_call_free(struct ampclient_core_call *call);

/* The request of an output as a message (model.h: of PUSH the header, else the whole). With the mutex. */
int ampclient_request_encode(const struct ampclient_model *model, const struct ampclient_output *output,
                             struct amp_buf *out);
/* As the wire has it, with its secret. */
struct ampd_msg_incarnation ampclient_incarnation_message(const struct ampclient_model *model,
                                                          struct ampclient_incarnation incarnation);
/*
 * Fills ended->u from the answer of a call that ended well, tells PUSH_STATE before it, and ends in
 * ampclient_model_event. An answer that cannot be read becomes AMP_EINTERNAL.
 */
void ampclient_answer(struct ampclient_core_call *call, struct ampclient_event *event);

/* Push: more blocks, the end; and sends of these what there is room for. With the mutex. */
void ampclient_push_blocks(struct ampclient_core_call *call, const struct ampclient_range *blocks);
void ampclient_push_end(struct ampclient_core_call *call, const struct ampclient_output *output);
void ampclient_push_feed(struct ampclient_core_call *call);

/* Pull: the handler of its messages, and its reader. */
void ampclient_pull_begin(struct ampclient_core_call *call, const struct ampclient_out_pull *wanted);
void ampclient_pull_message_begin(struct arpc_call *call, size_t size);
void ampclient_pull_message_bytes(struct arpc_call *call, const uint8_t *data, size_t size);
void ampclient_pull_message_end(struct arpc_call *call);

#endif
