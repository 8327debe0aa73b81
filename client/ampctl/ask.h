/*
 * Questions to a server. For each RPC of proto/methods.def with one request and one answer there is
 *
 *   int ampctl_ask_X(struct ampctl *ctl, const struct ampd_msg_X_request *request,
 *                    struct ampd_msg_X_response *response)
 *
 * without the parameter whose message is empty. It asks as ampctl_ask does, with the time limit of `ctl`. 0, and
 * *response is the caller's (ampd_msg_X_response_free, where there is one), or an exit code after a sentence on stderr;
 * with a quiet `ctl` the sentence is in ctl->failure alone. What several verbs ask follows below them.
 */
#ifndef AMPCTL_ASK_H
#define AMPCTL_ASK_H

#include "client/ampctl/ctl.h"

#define AMPCTL_REQUEST_PLAIN(name)  , const struct ampd_msg_##name##_request *request
#define AMPCTL_REQUEST_OWNING(name) AMPCTL_REQUEST_PLAIN(name)
#define AMPCTL_REQUEST_NONE(name)
#define AMPCTL_RESPONSE_PLAIN(name)  , struct ampd_msg_##name##_response *response
#define AMPCTL_RESPONSE_OWNING(name) AMPCTL_RESPONSE_PLAIN(name)
#define AMPCTL_RESPONSE_NONE(name)
#define AMPCTL_ASK(name, request, response)                                                                            \
    int ampctl_ask_##name(struct ampctl *ctl AMPCTL_REQUEST_##request(name) AMPCTL_RESPONSE_##response(name))

#define AMPCTL_DECLARE_CLIENT_STREAM(name, request, response)
#define AMPCTL_DECLARE_SERVER_STREAM(name, request, response)
#define AMPCTL_DECLARE_BIDI(name, request, response)
#define AMPCTL_DECLARE_UNARY(name, request, response)                 AMPCTL_ASK(name, request, response);
#define AMPD_METHOD(service, rpc, name, request, response, kind, ...) AMPCTL_DECLARE_##kind(name, request, response)
#include "proto/methods.def"
#undef AMPD_METHOD

/* Whether the answer of the health check (`body`) says that the server accepts work. */
bool ampctl_is_serving(const struct amp_buf *body);

/* Names a checkpoint of a model; ampctl_find_checkpoint finds what is not given. */
struct ampctl_checkpoint_key {
    bool has_epoch, has_step;
    uint64_t epoch, step;
};

/* Fills in the newest checkpoint that has the given epoch or step. 0, or an exit code after a sentence on stderr. */
int ampctl_find_checkpoint(struct ampctl *ctl, const char model[128], struct ampctl_checkpoint_key *key);

/*
 * Calls GetModel. 0, and *response is the caller's (ampd_msg_get_model_response_free); or an exit code after a sentence
 * on stderr.
 */
int ampctl_get_model(struct ampctl *ctl, const char model[128], struct ampd_msg_get_model_response *response);

/* Adds the row (ampctl_model_row) of each model, ordered by name. 0, or an exit code after a sentence on stderr. */
int ampctl_all_models(struct ampctl *ctl, json_t *rows);

/*
 * Calls GetStatus for one model, or for all of them (""). 0, and *response is the caller's
 * (ampd_msg_get_status_response_free); or an exit code after a sentence on stderr.
 */
int ampctl_get_status(struct ampctl *ctl, const char model[128], struct ampd_msg_get_status_response *response);

#endif
