/* ampctl status and ampctl models: how the server and its models stand. */
#include "client/ampctl/ctl.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/rows.h"
#include "client/io/methods.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- status ---- */

int ampctl_get_status(struct ampctl *ctl, const char model[128], struct ampd_msg_get_status_response *response)
{
    struct ampd_msg_get_status_request request = {0};
    struct amp_buf body;
    struct ampclient_reply reply;
    struct amp_error error = {0};
    memcpy(request.model, model, sizeof request.model);
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    int code = ampctl_ask(ctl, AMPCLIENT_ADMIN_SERVICE "GetStatus", ampd_msg_get_status_request_encode(&request, &body),
                          &body, &reply);
    amp_buf_close(&body);
    if (code == 0 && ampd_msg_get_status_response_decode(response, reply.body.data, reply.body.size, &error) != 0)
        code = ampctl_bad_answer(&error);
    ampclient_reply_close(&reply);
    return code;
}

static error_t parse_status(int key, char *arg, struct argp_state *state)
{
    struct ampd_msg_get_status_request *request = state->input;
    if (key != ARGP_KEY_ARG || state->arg_num > 0)
        return ARGP_ERR_UNKNOWN;
    ampctl_name(state, request->model, arg);
    return 0;
}

static json_t *server_object(const struct ampd_msg_get_status_response *status)
{
    return json_pack("{s:s, s:I, s:I, s:s, s:i, s:i, s:b, s:s, s:s, s:I, s:I}", "version", status->version, "uptime_ms",
                     (json_int_t)status->uptime_ms, "fence", (json_int_t)status->fence, "boot_id", status->boot_id,
                     "shard", (int)status->shard, "shard_count", (int)status->shard_count, "draining",
                     (int)status->draining, "isa", status->isa, "trouble", status->trouble, "descriptors",
                     (json_int_t)status->descriptors, "descriptors_max", (json_int_t)status->descriptors_max);
}

static void print_server(const struct ampd_msg_get_status_response *status)
{
    char descriptors[64] = ""; /* an older server does not tell it */
    if (status->descriptors > 0 && status->descriptors_max > 0)
        (void)snprintf(descriptors, sizeof descriptors, ", %" PRIu64 " of %" PRIu64 " descriptors", status->descriptors,
                       status->descriptors_max);
    else if (status->descriptors > 0)
        (void)snprintf(descriptors, sizeof descriptors, ", %" PRIu64 " descriptors", status->descriptors);
    (void)ampctl_print(stdout,
                       "ampd %s, up %" PRIu64 " s, boot %" PRIu64 ", shard %" PRIu32 " of %" PRIu32 ", kernels %s%s%s",
                       status->version, status->uptime_ms / 1000, status->fence, status->shard, status->shard_count,
                       status->isa, descriptors, status->draining ? ", draining" : "");
}

static json_t *model_objects(const struct ampd_msg_model_status_list *models, bool with_workers)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < models->count; i++)
        if (json_array_append_new(rows, ampctl_model_row(&models->items[i], with_workers)) != 0) {
            json_decref(rows);
            return NULL;
        }
    return rows;
}

static int print_list(const struct ampctl_column *columns, const json_t *rows)
{
    struct ampctl_list list = {.out = stdout, .columns = columns};
    return ampctl_list_page(&list, rows);
}

/* `spec`: of the one model that was asked for, or NULL. */
static int print_status(const struct ampctl *ctl, const struct ampd_msg_get_status_response *status, json_t *spec)
{
    json_t *server = server_object(status), *models = model_objects(&status->models, true);
    int rc = server != NULL && models != NULL ? 0 : -1;
    if (rc == 0 && spec != NULL)
        rc = json_object_set(json_array_get(models, 0), "specification", spec);
    if (rc == 0 && ctl->json) {
        json_t *all = json_pack("{s:O, s:O}", "server", server, "models", models);
        rc = ampctl_print_json(stdout, all);
        json_decref(all);
    } else if (rc == 0 && ctl->csv) {
        struct ampctl_list list = {.out = stdout, .csv = true, .columns = ampctl_model_columns};
        rc = ampctl_list_page(&list, models);
    } else if (rc == 0) {
        print_server(status);
        if (status->trouble[0] != 0)
            (void)ampctl_print(stdout, "trouble: %s", status->trouble);
        if (status->shard != 0 && status->shards.count > 0)
            (void)ampctl_print(stderr, "This is shard %" PRIu32 "; workers and decisions are with shard 0, at %s.",
                               status->shard, status->shards.items[0].endpoint);
        rc = print_list(ampctl_model_columns, models);
        if (rc == 0 && spec != NULL) {
            ampctl_print_spec(stdout, spec);
            rc = print_list(ampctl_worker_columns, json_object_get(json_array_get(models, 0), "workers"));
        }
    }
    json_decref(server);
    json_decref(models);
    return rc == 0 ? 0 : AMPCTL_EXIT_FAILED;
}

/* The specification of the one model that was asked for; *spec is the caller's. An exit code. */
static int get_spec(struct ampctl *ctl, const struct ampd_msg_get_status_request *request, json_t **spec)
{
    struct ampd_msg_get_model_response about;
    int code = ampctl_get_model(ctl, request->model, &about);
    if (code != 0)
        return code;
    *spec = ampctl_spec_object(&about.spec);
    ampd_msg_get_model_response_free(&about);
    return *spec != NULL ? 0 : AMPCTL_EXIT_FAILED;
}

static int run_status(struct ampctl *ctl, int argc, char **argv)
{
    struct ampd_msg_get_status_request request = {0};
    ampctl_parse(ctl, &ampctl_status_verb, &request, argc, argv);
    int code = ampctl_open(ctl);
    if (code != 0)
        return code;
    struct ampd_msg_get_status_response status;
    json_t *spec = NULL;
    code = ampctl_get_status(ctl, request.model, &status);
    if (code == 0) {
        if (request.model[0] != 0 && !ctl->csv)
            code = get_spec(ctl, &request, &spec);
        if (code == 0)
            code = print_status(ctl, &status, spec);
        json_decref(spec);
        ampd_msg_get_status_response_free(&status);
    }
    ampctl_close(ctl);
    return code;
}

const struct ampctl_verb ampctl_status_verb = {
    .name = "status",
    .arguments = "[MODEL]",
    .summary = "the server and its models",
    .doc = "Shows the server and its models; with MODEL also its specification and workers.",
    .examples = "ampctl status\n"
                "ampctl -o json status digits",
    .parser = parse_status,
    .run = run_status,
};

/* ---- models ---- */

static error_t parse_models(int key, char *arg, struct argp_state *state)
{
    if (key == ARGP_KEY_ARG)
        argp_error(state, "models takes no argument, but got \"%.40s\"", arg);
    return ARGP_ERR_UNKNOWN;
}

/* One page; the token of the next goes into request. */
static int models_page(struct ampctl *ctl, struct ampd_msg_list_models_request *request,
                       int (*take)(void *arg, json_t *rows), void *arg)
{
    struct amp_buf body;
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    struct ampclient_reply reply;
    struct amp_error error = {0};
    int code = ampctl_ask(ctl, AMPCLIENT_PARAMETER_SERVICE "ListModels",
                          ampd_msg_list_models_request_encode(request, &body), &body, &reply);
    if (code == 0) {
        struct ampd_msg_list_models_response page;
        if (ampd_msg_list_models_response_decode(&page, reply.body.data, reply.body.size, &error) != 0) {
            code = ampctl_bad_answer(&error);
        } else {
            json_t *rows = model_objects(&page.models, false);
            if (rows == NULL || take(arg, rows) != 0)
                code = AMPCTL_EXIT_FAILED;
            json_decref(rows);
            (void)snprintf(request->page_token, sizeof request->page_token, "%s", page.next_page_token);
        }
        ampd_msg_list_models_response_free(&page);
    }
    ampclient_reply_close(&reply);
    amp_buf_close(&body);
    return code;
}

static int walk_models(struct ampctl *ctl, int (*take)(void *arg, json_t *rows), void *arg)
{
    struct ampd_msg_list_models_request request = {0};
    int code;
    do {
        code = models_page(ctl, &request, take, arg);
    } while (code == 0 && request.page_token[0] != 0);
    return code;
}

static int print_models(void *arg, json_t *rows)
{
    return ampctl_list_page(arg, rows);
}

static int add_models(void *arg, json_t *rows)
{
    return json_array_extend(arg, rows);
}

int ampctl_all_models(struct ampctl *ctl, json_t *rows)
{
    return walk_models(ctl, add_models, rows);
}

static int run_models(struct ampctl *ctl, int argc, char **argv)
{
    ampctl_parse(ctl, &ampctl_models_verb, NULL, argc, argv);
    int code = ampctl_open(ctl);
    if (code != 0)
        return code;
    struct ampctl_list list = {.out = stdout, .json = ctl->json, .csv = ctl->csv, .columns = ampctl_model_columns};
    code = walk_models(ctl, print_models, &list);
    if (code == 0 && ampctl_list_end(&list) != 0)
        code = AMPCTL_EXIT_FAILED;
    ampctl_close(ctl);
    return code;
}

const struct ampctl_verb ampctl_models_verb = {
    .name = "models",
    .summary = "all models",
    .doc = "Lists all models of the server.",
    .examples = "ampctl models",
    .parser = parse_models,
    .run = run_models,
};
