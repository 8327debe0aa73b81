/* Between the messages of ampd.v1 and the structs of the core. Pure but for what asks the core how it stands. */
#ifndef AMPD_IO_CONVERT_H
#define AMPD_IO_CONVERT_H

#include "proto/msg.h"
#include "server/io/base/server.h"
#include "server/io/cluster/peers.h"

/* 0, or AMP_EINVAL: this server is another shard. */
int io_check_shard(const struct ampd_server *server, uint32_t shard, struct amp_error *error);

/* The core's incarnation of a message's; {0, 0} if it is absent, or can be nobody's. */
struct ampd_incarnation io_incarnation(bool given, const struct ampd_msg_incarnation *message);
/* And back, for all to see: without its secret, which Join alone answers with. */
struct ampd_msg_incarnation io_msg_incarnation(struct ampd_incarnation incarnation);

/* The scale record of a model. */
struct ampd_msg_scale_record io_scale_record(const struct ampd_model_spec *spec, const struct amp_scaler_state *scaler);
struct amp_scaler_state io_scaler_state(const struct ampd_msg_scale_record *record); /* as given: not checked */

/* How a model stands; `workers` are allocated if wanted (free(status->workers.items)). AMP_ENOMEM. */
int io_model_status(const struct ampd_server *server, uint32_t model, bool with_workers,
                    struct ampd_msg_model_status *status);

/* All shards, in `shards`; without a layout their blocks are left at 0. */
struct ampd_msg_shard_list io_shards(const struct ampd_server *server, const struct ampd_layout *layout,
                                     struct ampd_msg_shard shards[IO_PEERS_MAX]);

/* An overflow row; worker_name is left empty. Any thread: the spec of a model does not change. */
void io_overflow_row(const struct ampd_model_spec *spec, uint64_t epoch, uint64_t step,
                     const struct ampd_overflow_row *row, struct ampd_msg_overflow_row *message);

/*
 * Fills in the names of workers, each as far as it is known under the incarnation that contributed: whoever has taken a
 * rank since is not blamed. Of a model that has been deleted meanwhile, none.
 */
void io_name_workers(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                     struct ampd_msg_overflow_row *rows, size_t count, const struct ampd_contributor *contributors,
                     size_t contributors_count);

/* What a push tells of its step. */
struct ampd_metrics io_metrics(const struct ampd_msg_push_trailer *trailer);

/* A row of the history. `epoch` is of a row of kind EPOCH, else NULL. Any thread. */
void io_history_row(const struct ampd_model_spec *spec, const struct ampd_step_row *row,
                    const struct ampd_epoch_record *epoch, struct ampd_msg_scale_history_row *message);

/*
 * The newest checkpoint of a step in the catalogue whose epoch is at most `epoch`, or NULL. On the loop; valid until
 * the next event.
 */
const struct ampd_checkpoint_record *io_find_checkpoint(const struct ampd_model_info *info, uint64_t epoch,
                                                        uint64_t step);

/* What the catalogue knows of a checkpoint; the scale is left 0. Any thread. */
void io_checkpoint_info(const struct ampd_model_spec *spec, const struct ampd_checkpoint_record *record,
                        struct ampd_msg_checkpoint_info *message);

/* PushResponse with the result. As ampd_msg_..._encode; AMP_ENOMEM. */
int io_encode_step_result(const struct ampd_server *server, uint32_t model, const struct ampd_step_result *result,
                          struct amp_buf *out);

/* The page size a request asks for: its own, 100 if it is 0. AMP_EINVAL above 1000. */
int io_page_size(uint32_t given, uint32_t *size, struct amp_error *error);

#endif
