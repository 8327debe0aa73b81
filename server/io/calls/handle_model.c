/* CreateModel, GetModel and ListModels. */
#include "server/io/base/handlers.h"

#include "base/assert.h"
#include "server/io/auth/auth_gate.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/server.h"
#include "server/io/base/threads.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/convert_spec.h"
#include "server/io/calls/pages.h"
#include "server/io/calls/server_call.h"
#include "server/io/cluster/peers.h"
#include "server/io/host/model_files.h"
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/datadir.h"
#include "storage/vote_journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- CreateModel ---- */

static void create_reply(struct io_server_call *call, const struct ampd_reply *reply)
{
    struct ampd_model_info info;
    struct ampd_msg_create_model_response response;
    AMP_ASSERT(reply->kind == AMPD_REPLY_CREATE);
    ampd_core_model(call->server->core, reply->u.create.model, &info);
    memset(&response, 0, sizeof response);
    struct amp_buf buf = io_message_buf();
    response.has_spec = true;
    response.created = !reply->u.create.existed;
    response.state = (enum ampd_msg_model_state)info.state;
    int rc = io_spec_to_msg(info.spec, &response.spec);
    if (rc == 0)
        rc = ampd_msg_create_model_response_encode(&response, &buf);
    io_server_call_reply_buf(call, &buf, rc);
    ampd_msg_model_spec_free(&response.spec);
}

struct create {
    struct io_server_call call;
    struct io_task task;
    struct ampd_model_spec spec; /* the request's, owned; empty once the core has it */
    int code;                    /* result of create_look; if not 0, `error` has the text */
    struct amp_error error;
};

static struct create *create_of(struct io_server_call *call)
{
    return AMP_CONTAINER(call, struct create, call);
}

static void create_free(struct io_server_call *call)
{
    ampd_model_spec_clear(&create_of(call)->spec);
}

static const struct io_server_call_ops create_ops = {create_reply, NULL, create_free};

static void create_now(struct create *create)
{
    const struct ampd_auth *auth = create->call.server->auth;
    char owner[AMPD_ACTOR_MAX];
    struct amp_error error = {0};
    /* The token may have been removed, or have expired, since the call began. Then no quota would be found for it. */
    if (ampd_auth_admit_again(auth, create->call.rpc, &error) != 0) {
        io_server_call_fail(&create->call, &error);
        return;
    }
    ampd_auth_name(auth, create->call.rpc, owner, sizeof owner);
    const struct ampd_auth_quota quota = ampd_auth_quota(auth, create->call.rpc);
    struct ampd_event event = {
        .type = AMPD_EVENT_CREATE_MODEL,
        .u.create = {.spec = &create->spec, .owner = owner, .quota = {quota.models, quota.memory_bytes}}};
    io_server_call_ref(&create->call);
    io_server_call_event(&create->call, &event);
    ampd_model_spec_clear(&create->spec); /* the core has its own, and the call may wait for long */
    io_server_call_unref(&create->call);
}

/*
 * Looks for a journal under the name of a new model that is to have one: that of a deleted model, which could not be
 * removed. In another process epochs begin at 1 again, so that its votes could be taken for those of the new model.
 * One that cannot be looked at counts as well.
 */
static int look_for_journal(const struct ampd_server *server, const struct ampd_model_spec *spec,
                            struct amp_error *error)
{
    const struct ampd_checkpoint_path place = io_model_files_journal(server, spec->name);
    bool found = false;
    int rc = spec->durability == AMPD_DURABILITY_STEP ? ampd_vote_journal_find(&place, &found, error) : 0;
    if (!found && rc != AMP_EIO)
        return rc;
    return amp_error_set(error, AMP_ESTATE, "JOURNAL_EXISTS",
                         "an earlier model %s has left its journal in %s/models/%s/journal: move or remove that "
                         "directory, or give this model another name",
                         spec->name, place.data_dir, spec->name);
}

/*
 * On the thread for exports: looks for checkpoint files under the name of a new model. If there are some, the model is
 * known to another data directory, which may just not be mounted; a new model would overwrite and remove its files.
 */
static void create_look(struct io_task *task)
{
    struct create *create = AMP_CONTAINER(task, struct create, task);
    const struct ampd_server *server = create->call.server;
    const struct ampd_checkpoint_path place = io_model_files_place(server, create->spec.name);
    char file[512] = "";
    create->code = ampd_checkpoint_any(&place, file, sizeof file, &create->error);
    if (create->code == 0 && file[0] != 0)
        create->code = amp_error_set(&create->error, AMP_ESTATE, "CHECKPOINTS_EXIST",
                                     "a model %s has checkpoints in %s (%s), and this server does not know it: is "
                                     "its --data-dir the one that "
                                     "they were written from, and mounted? Else give this model another name, or the "
                                     "server another --checkpoint-dir",
                                     create->spec.name, server->data.checkpoint_dir, file);
    if (create->code == 0)
        create->code = look_for_journal(server, &create->spec, &create->error);
}

static void create_looked(struct io_task *task)
{
    struct create *create = AMP_CONTAINER(task, struct create, task);
    struct io_server_call *call = &create->call;
    /* What was found may be of a model that another call has created meanwhile. */
    if (create->code != 0 && ampd_core_find(call->server->core, create->spec.name) < 0)
        io_server_call_fail(call, &create->error);
    else if (!call->finished)
        create_now(create);
    io_server_call_unref(call);
}

static void create_decoded(struct create *create, struct ampd_msg_create_model_request *request)
{
    struct io_server_call *call = &create->call;
    const struct ampd_server *server = call->server;
    struct amp_error error = {0};
    if (!request->has_spec) {
        io_server_call_refuse(call, AMP_EINVAL, "INVALID_FIELD", "spec: it is missing; give the model's specification");
        return;
    }
    int rc = io_spec_from_msg(&request->spec, &create->spec, &error);
    if (rc != 0) {
        create->spec = (struct ampd_model_spec){0};
        io_server_call_fail(call, &error);
        return;
    }
    bool is_new = server->options->shard == 0 && ampd_core_synced(server->core) &&
                  ampd_datadir_name_ok(create->spec.name) && ampd_core_find(server->core, create->spec.name) < 0;
    if (!is_new) {
        create_now(create);
        return;
    }
    create->task = (struct io_task){.run_cb = create_look, .done_cb = create_looked};
    io_server_call_ref(call);
    io_threads_submit(server->pools.exports, &create->task);
}

static void create_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_create_model_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct create), &create_ops);
    if (call == NULL)
        return;
    if (ampd_msg_create_model_request_decode(&request, data, size, &error) != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    create_decoded(create_of(call), &request);
    ampd_msg_create_model_request_free(&request);
}

/* Takes the task back if no thread has begun it, since nobody wants the model any more. */
static void create_closed(struct arpc_call *rpc, const struct arpc_result *result)
{
    struct io_server_call *call = io_server_call_of(rpc);
    if (call != NULL && io_threads_take_back(call->server->pools.exports, &create_of(call)->task))
        io_server_call_unref(call); /* not the last reference: the rpc call has one */
    io_server_call_closed(rpc, result);
}

const struct arpc_handler ampd_handle_create_model = {.message = create_message, .closed = create_closed};

/* ---- GetModel ---- */

static void answer_get(struct io_server_call *call, uint32_t index, const struct ampd_model_info *info)
{
    const struct ampd_server *server = call->server;
    struct ampd_msg_get_model_response response;
    struct ampd_msg_shard shards[IO_PEERS_MAX];
    memset(&response, 0, sizeof response);
    response.has_spec = response.has_status = true;
    response.block_elements = (uint32_t)info->layout->block_elements;
    response.shards = io_shards(server, info->layout, shards);
    struct amp_buf buf = io_message_buf();
    int rc = io_spec_to_msg(info->spec, &response.spec);
    if (rc == 0)
        rc = io_model_status(server, index, true, &response.status);
    if (rc == 0)
        rc = ampd_msg_get_model_response_encode(&response, &buf);
    io_server_call_reply_buf(call, &buf, rc);
    free(response.status.workers.items);
    ampd_msg_model_spec_free(&response.spec);
}

static void get_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_get_model_request request;
    struct amp_error error = {0};
    struct ampd_model_info info;
    uint32_t index;
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &io_server_call_plain);
    if (call == NULL)
        return;
    if (ampd_msg_get_model_request_decode(&request, data, size, &error) != 0)
        io_server_call_fail(call, &error);
    else if (io_find_model(call, request.model, &index, &info))
        answer_get(call, index, &info);
}

const struct arpc_handler ampd_handle_get_model = {.message = get_message, .closed = io_server_call_closed};

/* ---- ListModels ---- */

/* A page token is this text and the first name of the page. No name has a '/', so that a bare name is not a token. */
#define TOKEN_HEAD      "models/"
#define TOKEN_HEAD_SIZE (sizeof TOKEN_HEAD - 1)

/* The first name of the page of a token; NULL: not a token of this server. */
static const char *token_name(const char *token)
{
    if (token[0] == 0)
        return "";
    bool ours = strncmp(token, TOKEN_HEAD, TOKEN_HEAD_SIZE) == 0 && ampd_datadir_name_ok(token + TOKEN_HEAD_SIZE);
    return ours ? token + TOKEN_HEAD_SIZE : NULL;
}

/* A model, to be sorted by name. */
struct named {
    const char *name;
    uint32_t index;
};

static int compare_named(const void *a, const void *b)
{
    const struct named *left = a, *right = b;
    return strcmp(left->name, right->name);
}

/* All models whose names are not before `from`, in order; the caller frees the array. NULL: out of memory. */
static struct named *names_from(const struct ampd_server *server, const char *from, size_t *count)
{
    uint32_t models = ampd_core_models_count(server->core);
    struct named *names = calloc(models + 1, sizeof *names);
    *count = 0;
    for (uint32_t i = 0; names != NULL && i < models; i++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, i, &info);
        if (!info.deleted && strcmp(info.spec->name, from) >= 0)
            names[(*count)++] = (struct named){info.spec->name, i};
    }
    if (names != NULL)
        qsort(names, *count, sizeof *names, compare_named);
    return names;
}

static void answer_list(struct io_server_call *call, const struct named *names, size_t count, uint32_t page_size)
{
    struct ampd_msg_list_models_response response;
    struct amp_buf buf = io_message_buf();
    memset(&response, 0, sizeof response);
    if (count > page_size) /* the next page begins with the first name that has no place on this one */
        (void)snprintf(response.next_page_token, sizeof response.next_page_token, TOKEN_HEAD "%s",
                       names[page_size].name);
    count = count > page_size ? page_size : count;
    response.models.items = calloc(count + 1, sizeof *response.models.items);
    int rc = response.models.items == NULL ? AMP_ENOMEM : 0;
    for (; rc == 0 && response.models.count < count; response.models.count++)
        rc = io_model_status(call->server, names[response.models.count].index, false,
                             &response.models.items[response.models.count]);
    if (rc == 0)
        rc = ampd_msg_list_models_response_encode(&response, &buf);
    io_server_call_reply_buf(call, &buf, rc);
    free(response.models.items);
}

static void list_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_list_models_request request;
    struct amp_error error = {0};
    uint32_t page_size = 0;
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &io_server_call_plain);
    if (call == NULL)
        return;
    int rc = ampd_msg_list_models_request_decode(&request, data, size, &error);
    if (rc == 0)
        rc = io_page_size(request.page_size, &page_size, &error);
    if (rc == 0 && token_name(request.page_token) == NULL)
        rc = amp_error_set(&error, AMP_EINVAL, "INVALID_FIELD",
                           "page_token: this server has not made it; give next_page_token of the page before");
    if (rc != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    size_t count;
    struct named *names = names_from(call->server, token_name(request.page_token), &count);
    if (names == NULL)
        io_server_call_refuse(call, AMP_ENOMEM, NULL, "out of memory for this page");
    else
        answer_list(call, names, count, page_size);
    free(names);
}

const struct arpc_handler ampd_handle_list_models = {.message = list_message, .closed = io_server_call_closed};
