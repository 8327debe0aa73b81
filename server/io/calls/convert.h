/*
 * Conversions between the messages of ampd.v1 and the structs of the core. Functions that take the server read the
 * state of the core, and are called on the loop; the others are pure, and may be called on any thread.
 */
#ifndef AMPD_IO_CONVERT_H
#define AMPD_IO_CONVERT_H

#include "proto/msg.h"
#include "server/io/base/server.h"
#include "server/io/cluster/peers.h"

/*
 * Whether a request for shard `shard` has come to the right process. 0; AMP_EINVAL: this process is another shard;
 * AMP_EUNAVAILABLE (SHARD_MOVED): the same in a cluster whose shards move, where it may have been this one before.
 */
int io_check_shard(const struct ampd_server *server, uint32_t shard, struct amp_error *error);

/*
 * The core's form of an incarnation in a request. {0, 0}, which is no worker's, if it is absent or its numbers are too
 * large to be anybody's.
 */
struct ampd_incarnation io_incarnation(bool given, const struct ampd_msg_incarnation *message);
/* The message's form of an incarnation, for all to see: boot_id, which Join alone gives to the worker, is left 0. */
struct ampd_msg_incarnation io_msg_incarnation(struct ampd_incarnation incarnation);

/* The loss-scale record of a model with this specification and this state of its scaler. */
struct ampd_msg_scale_record io_scale_record(const struct ampd_model_spec *spec, const struct amp_scaler_state *scaler);
/* The state of a scaler from a record that a client sent. Nothing of it is checked. */
struct amp_scaler_state io_scaler_state(const struct ampd_msg_scale_record *record);

/*
 * Fills in the status of a model. With `with_workers` also that of each rank that ever had a worker, in an array that
 * the caller frees in any case (status->workers.items). 0 or AMP_ENOMEM.
 */
int io_model_status(const struct ampd_server *server, uint32_t model, bool with_workers,
                    struct ampd_msg_model_status *status);

/*
 * The list of all shards with their addresses, and with the ranges of blocks that they have in `layout`; without a
 * layout (NULL) the ranges are 0. The items of the list are in `shards`, the caller's memory.
 */
struct ampd_msg_shard_list io_shards(const struct ampd_server *server, const struct ampd_layout *layout,
                                     struct ampd_msg_shard shards[IO_PEERS_MAX]);

/* Fills in the message of one overflow row of a step; worker_name is left empty (io_name_workers). */
void io_overflow_row(const struct ampd_model_spec *spec, uint64_t epoch, uint64_t step,
                     const struct ampd_overflow_row *row, struct ampd_msg_overflow_row *message);

/*
 * Fills in worker_name of the overflow rows of one step: the name of the incarnation that contributed, where it is
 * still known, so that a worker which has taken the rank since is not blamed. `contributors` are those of the step.
 * Leaves all names empty when the model, whose specification was `spec`, has been deleted since.
 */
void io_name_workers(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                     struct ampd_msg_overflow_row *rows, size_t count, const struct ampd_contributor *contributors,
                     size_t contributors_count);

/* The loss and the metrics in the trailer of a push. */
struct ampd_metrics io_metrics(const struct ampd_msg_push_trailer *trailer);

/* Fills in the message of a row of the history. `epoch` belongs to a row of kind EPOCH; for other rows it is NULL. */
void io_history_row(const struct ampd_model_spec *spec, const struct ampd_step_row *row,
                    const struct ampd_epoch_record *epoch, struct ampd_msg_scale_history_row *message);

/*
 * Finds the newest complete checkpoint of a step whose epoch is at most `epoch`, or NULL. On the loop; the record is
 * valid until the core's next event.
 */
const struct ampd_checkpoint_record *io_find_checkpoint(const struct ampd_model_info *info, uint64_t epoch,
                                                        uint64_t step);

/* Fills in the message of a checkpoint from its record in the catalogue. */
void io_checkpoint_info(const struct ampd_model_spec *spec, const struct ampd_checkpoint_record *record,
                        struct ampd_msg_checkpoint_info *message);

/* Writes a PushResponse with this result. 0; AMP_ENOMEM, or what ampd_msg_push_response_encode returns. */
int io_encode_step_result(const struct ampd_server *server, uint32_t model, const struct ampd_step_result *result,
                          struct amp_buf *out);

/* The page size for a request that gives this one: 100 if it gives 0. 0, or AMP_EINVAL: it is above 1000. */
int io_page_size(uint32_t given, uint32_t *size, struct amp_error *error);

#endif
