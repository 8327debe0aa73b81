/* ampctl status and ampctl models: how the server and its models stand. */
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- status ---- */

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
                       "ampd %s, up %" PRIu64 " s, fence %" PRIu64 ", shard %" PRIu32 " of %" PRIu32 ", kernels %s%s%s",
                       status->version, status->uptime_ms / 1000, status->fence, status->shard, status->shard_count,
                       status->isa, descriptors, status->draining ? ", draining" : "");
}

static int print_list(const struct ampctl_column *columns, const json_t *rows)
{
    struct ampctl_list list = {.out = stdout, .columns = columns};
    return ampctl_list_page(&list, rows);
}

/* null: none, or schedule WORKER, with which neither the model nor its specification has a rate. */
static json_t *rate_set_of(const struct ampd_msg_model_status *model, const json_t *spec)
{
    const json_t *own = json_object_get(json_object_get(spec, "optimizer"), "learning_rate");
    bool is_set = model->learning_rate > 0 && json_is_real(own) && model->learning_rate != json_real_value(own);
    return is_set ? ampctl_real(model->learning_rate) : json_null();
}

static int add_spec(json_t *row, const struct ampd_msg_model_status *model, json_t *spec)
{
    int rc = json_object_set_new(row, "learning_rate_set", rate_set_of(model, spec));
    return rc == 0 ? json_object_set(row, "specification", spec) : rc;
}

/* `spec`: of the one model that was asked for, or NULL. */
static int print_status(const struct ampctl *ctl, const struct ampd_msg_get_status_response *status, json_t *spec)
{
    json_t *server = server_object(status), *models = ampctl_model_rows(&status->models, true);
    int rc = server != NULL && models != NULL ? 0 : -1;
    json_t *row = json_array_get(models, 0);
    if (rc == 0 && spec != NULL)
        rc = row != NULL ? add_spec(row, &status->models.items[0], spec) : -1;
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
            ampctl_print_spec(stdout, spec, json_object_get(row, "learning_rate_set"));
            rc = print_list(ampctl_worker_columns, json_object_get(row, "workers"));
        }
    }
    json_decref(server);
    json_decref(models);
    return rc == 0 ? 0 : AMPCTL_EXIT_FAILED;
}

/* The specification of the one model that was asked for; *spec is the caller's. An exit code. */
static int get_spec(struct ampctl *ctl, const char model[128], json_t **spec)
{
    struct ampd_msg_get_model_response about;
    int code = ampctl_get_model(ctl, model, &about);
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
    struct ampd_msg_get_status_response status;
    json_t *spec = NULL;
    int code = ampctl_get_status(ctl, request.model, &status);
    if (code == 0) {
        if (request.model[0] != 0 && !ctl->csv)
            code = get_spec(ctl, request.model, &spec);
        if (code == 0)
            code = print_status(ctl, &status, spec);
        json_decref(spec);
        ampd_msg_get_status_response_free(&status);
    }
    return code;
}

const struct ampctl_verb ampctl_status_verb = {
    .name = "status",
    .arguments = "[MODEL]",
    .summary = "the server and its models",
    .doc = "Shows the server and its models; with MODEL also its specification and workers. A learning rate "
           "that an operator has set is shown after that of the specification.",
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

static int run_models(struct ampctl *ctl, int argc, char **argv)
{
    ampctl_parse(ctl, &ampctl_models_verb, NULL, argc, argv);
    json_t *rows = json_array();
    int code = rows != NULL ? ampctl_all_models(ctl, rows) : AMPCTL_EXIT_FAILED;
    if (code == 0)
        code = ampctl_print_rows(ctl, ampctl_model_columns, rows);
    else
        json_decref(rows);
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
