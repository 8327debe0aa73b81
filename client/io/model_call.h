/*
 * The calls of a joined model (model.h): each is one RPC that its core has asked for. Their messages are made and read
 * in model_messages.c, the streams of blocks are in model_push.c and model_pull.c. All functions run on the loop's
 * thread; "with the mutex" means that of model->client->link.
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
    struct arpc_call *call;
    bool cancelled;         /* the core has cancelled it, and ignores its result */
    struct amp_error error; /* code not 0: what this side found wrong; it replaces the status of the server */
    struct amp_buf reply;   /* the one answer message of all kinds but PULL */
    struct {
        struct ampclient_out_pull wanted; /* copied from the output */
        struct ampd_block_reader reader;
        uint64_t first, count; /* blocks that the header announced */
        const uint8_t *copy;   /* in_memory: the mapped copy of the version, as a whole flat space */
    } pull;
    struct {
        uint64_t *blocks;             /* numbers of the blocks to be sent, in order; owned */
        size_t count, capacity, next; /* blocks named, room for, and index of the next one to be sent */
        bool end;                     /* the trailer is to be sent after the blocks */
        bool announcing;              /* a message on blocks in the slot has not left; the next blocks wait for it */
        bool undrained;               /* blocks were named since the core last got PUSH_DRAINED for this call */
        struct amp_buf trailer;       /* the encoded trailer message */
    } push;
};

/*
 * Makes the call of an output that begins an RPC, and sends its request. The call goes into model->calls or, if it
 * could not begin, its number into model->unstarted, so that the core gets its ENDED in every case. With the mutex.
 */
void ampclient_call_begin(struct ampclient_model *model, const struct ampclient_output *output);
/* The call of this number in model->calls. NULL: it could not begin, or has ended and the core does not know it yet. */
struct ampclient_core_call *ampclient_call_find(struct ampclient_model *model, uint64_t number);
/* This side gives the call up and cancels it: its ENDED has this code and text, unless an earlier one was given. */
void ampclient_call_give_up(struct ampclient_core_call *call, int code, const char *text);
/* Frees a call that is in no list and whose arpc_call has closed or never began. */
void ampclient_call_free(struct ampclient_core_call *call);

/*
 * Appends to *out the first message of an output that begins an RPC: of PUSH the header, else the whole request. 0;
 * AMP_EINVAL (names that are not UTF-8), AMP_ENOMEM. With the mutex.
 */
int ampclient_request_encode(const struct ampclient_model *model, const struct ampclient_output *output,
                             struct amp_buf *out);
/* An incarnation as it is sent. */
struct ampd_msg_incarnation ampclient_incarnation_message(struct ampclient_incarnation incarnation);
/*
 * For a call that ended with code 0: reads its answer into event->u.ended.u, gives the core a PUSH_STATE before it if
 * it is a GET_PUSH_STATE, and then the event itself. An answer that cannot be read becomes AMP_EINTERNAL.
 */
void ampclient_answer(struct ampclient_core_call *call, struct ampclient_event *event);

/* PUSH: add blocks, or the trailer, to what is to be sent; a failure gives the call up. With the mutex. */
void ampclient_push_blocks(struct ampclient_core_call *call, const struct ampclient_range *blocks);
void ampclient_push_end(struct ampclient_core_call *call, const struct ampclient_output *output);
/* PUSH: sends of this what there is room for (ARPC_HIGH_WATER), and the trailer last. With the mutex. */
void ampclient_push_feed(struct ampclient_core_call *call);

/* Readies the reader of a new call; `wanted` is copied, and NULL for all kinds but PULL. */
void ampclient_pull_begin(struct ampclient_core_call *call, const struct ampclient_out_pull *wanted);
/* PULL: the callbacks of arpc_handler for its messages; they give the core PULL_HEADER and PULL_BLOCK. */
void ampclient_pull_message_begin(struct arpc_call *call, size_t size);
void ampclient_pull_message_bytes(struct arpc_call *call, const uint8_t *data, size_t size);
void ampclient_pull_message_end(struct arpc_call *call);

#endif
