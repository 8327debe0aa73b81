/* The handlers that server/methods.def names: one per method of ampd.v1, each in the file of its kind. */
#ifndef AMPD_IO_HANDLERS_H
#define AMPD_IO_HANDLERS_H

#include "rpc/method.h"

/* handle_model.c, handle_worker.c, handle_status.c */
extern const struct arpc_handler ampd_handle_create_model, ampd_handle_get_model, ampd_handle_list_models,
    ampd_handle_join, ampd_handle_keep_alive, ampd_handle_leave, ampd_handle_get_push_state, ampd_handle_get_scale,
    ampd_handle_get_status, ampd_handle_checkpoint;

/* receive.c, pull.c */
extern const struct arpc_handler ampd_handle_load, ampd_handle_push, ampd_handle_pull;

/* peers.c */
extern const struct arpc_handler ampd_handle_session;

/* fetch_rows.c */
extern const struct arpc_handler ampd_handle_fetch_rows;

/* handle_admin.c */
/* handle_cluster.c */
extern const struct arpc_handler ampd_handle_get_cluster;

extern const struct arpc_handler ampd_handle_drain, ampd_handle_set_log_level;

/* handle_acts.c */
extern const struct arpc_handler ampd_handle_set_scale, ampd_handle_reset_scale, ampd_handle_rollback,
    ampd_handle_delete_model;

/* read_checkpoint.c */
extern const struct arpc_handler ampd_handle_read_checkpoint;

/* history.c, watch.c, explain.c, replay.c, checkpoints.c */
extern const struct arpc_handler ampd_handle_list_scale_history, ampd_handle_list_overflows, ampd_handle_watch_steps,
    ampd_handle_explain_step, ampd_handle_replay_policy, ampd_handle_list_checkpoints;

/* The rows of server/methods.def; *count is set. They live for ever. */
const struct arpc_method *ampd_methods(size_t *count);

#endif
