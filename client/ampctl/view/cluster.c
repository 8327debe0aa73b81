/* ampctl cluster: the shards, who owns each, and how far it is. */
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/rows.h"

#include <inttypes.h>

enum { KEY_LOCAL = 256 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct ampd_msg_get_cluster_request *request = state->input;
    switch (key) {
    case KEY_LOCAL:
        request->local = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "one model is enough; \"%.40s\" is too much", arg);
        ampctl_name(state, request->model, arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Columns of a table and of csv: all models, and one. */
static const struct ampctl_column all_columns[] = {
    {"shard", "SHARD", true},   {"address", "ADDRESS", false}, {"state", "STATE", false},
    {"since", "SINCE", false},  {"fence", "FENCE", true},      {"blocks", "BLOCKS", true},
    {"behind", "BEHIND", true}, {"awaited", "AWAITED", true},  {"trouble", "TROUBLE", false},
    {NULL, NULL, false},
};
static const struct ampctl_column model_columns[] = {
    {"shard", "SHARD", true},
    {"address", "ADDRESS", false},
    {"state", "STATE", false},
    {"since", "SINCE", false},
    {"fence", "FENCE", true},
    {"blocks", "BLOCKS", true},
    {"decided_step", "DECIDED", true},
    {"applied_step", "APPLIED", true},
    {"lag", "LAG", true},
    {"trouble", "TROUBLE", false},
    {NULL, NULL, false},
};

/* Rows of the shards, then of the processes that stand by: the same objects are what JSON has, in two lists. */
static int make_rows(const struct ampd_msg_get_cluster_response *cluster, bool one_model, json_t *shards,
                     json_t *standbys)
{
    int rc = shards != NULL && standbys != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < cluster->shards.count; i++)
        rc = json_array_append_new(shards, ampctl_cluster_row(&cluster->shards.items[i], one_model));
    for (size_t i = 0; rc == 0 && i < cluster->standbys.count; i++)
        rc = json_array_append_new(standbys, ampctl_standby_row(&cluster->standbys.items[i]));
    return rc;
}

static int print(const struct ampctl *ctl, const struct ampd_msg_get_cluster_response *cluster, bool one_model)
{
    json_t *rows = json_array(), *standbys = json_array();
    int rc = make_rows(cluster, one_model, rows, standbys);
    if (rc == 0 && ctl->json) {
        json_t *all =
            json_pack("{s:i, s:i, s:s, s:O, s:O}", "told_by", (int)cluster->shard, "shard_count",
                      (int)cluster->shard_count, "trouble", cluster->trouble, "shards", rows, "standbys", standbys);
        rc = ampctl_print_json(stdout, all);
        json_decref(all);
    } else if (rc == 0) {
        struct ampctl_list list = {.out = stdout, .csv = ctl->csv, .columns = one_model ? model_columns : all_columns};
        rc = json_array_extend(rows, standbys);
        if (rc == 0)
            rc = ampctl_list_page(&list, rows);
        if (cluster->trouble[0] != 0)
            (void)ampctl_print(stderr, "trouble: %s", cluster->trouble);
        if (cluster->shard != 0)
            (void)ampctl_print(
                stderr, "This is what shard %" PRIu32 " knows, only of itself and of shard 0: shard 0 was not asked.",
                cluster->shard);
    }
    json_decref(rows);
    json_decref(standbys);
    return rc == 0 ? 0 : AMPCTL_EXIT_FAILED;
}

static const struct argp_option cluster_options[] = {
    {"local", KEY_LOCAL, NULL, 0, "Ask only the shard at the endpoint, and not shard 0", 0},
    {0},
};

static int run_cluster(struct ampctl *ctl, int argc, char **argv)
{
    struct ampd_msg_get_cluster_request request = {0};
    ampctl_parse(ctl, &ampctl_cluster_verb, &request, argc, argv);
    ctl->here = request.local;
    struct ampd_msg_get_cluster_response cluster;
    int code = ampctl_ask_get_cluster(ctl, &request, &cluster);
    if (code == 0) {
        code = print(ctl, &cluster, request.model[0] != 0);
        ampd_msg_get_cluster_response_free(&cluster);
    }
    return code;
}

const struct ampctl_verb ampctl_cluster_verb = {
    .name = "cluster",
    .arguments = "[MODEL]",
    .summary = "the shards: where each is, and how far",
    .doc = "Shows the shards: where each is, whether it is there and since when, its blocks, how many models wait for "
           "it, and what is wrong with it; with MODEL its last step "
           "beside that of shard 0; and where processes stand by. Any shard can be asked.",
    .examples = "ampctl cluster\n"
                "ampctl cluster digits\n"
                "ampctl -e 10.0.0.8:7420 cluster --local",
    .options = cluster_options,
    .parser = parse,
    .run = run_cluster,
};
