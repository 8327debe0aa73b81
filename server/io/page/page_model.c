/* /api/model?model=NAME: the status of a model, its workers, its checkpoints, and its specification. */
#include "amp/scaler.h"
#include "server/io/base/server.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/waiting.h"
#include "server/io/page/page_impl.h"

#include <stdlib.h>

/* Most checkpoints in the answer, the newest; `ampctl checkpoints` lists all. */
#define CHECKPOINTS_SHOWN 20

static void write_worker(const struct ampd_server *server, uint32_t index, uint32_t rank, struct io_json *json)
{
    struct ampd_worker_info worker;
    ampd_core_worker(server->core, index, rank, io_core_now(server), &worker);
    if (worker.name[0] == 0) /* no worker ever held the rank */
        return;
    io_json_open(json, NULL, '{');
    io_json_count(json, "rank", rank);
    io_json_text(json, "name", worker.name);
    io_json_text(json, "peer", worker.peer);
    io_json_truth(json, "live", io_worker_is_live(&worker));
    io_json_truth(json, "left", worker.left);
    io_json_count(json, "lease_ms", worker.lease_left_ms);
    io_json_count(json, "last_step", worker.last_step);
    io_json_count(json, "pushes", worker.pushes);
    io_json_count(json, "overflows", worker.overflow_pushes);
    io_json_count(json, "here", worker.blocks_present);
    io_json_count(json, "wanted", worker.blocks_wanted);
    io_json_truth(json, "awaited", worker.awaited);
    io_json_truth(json, "straggles", worker.straggles);
    io_json_count(json, "slow_steps", worker.slow_steps);
    io_json_count(json, "slow_ms", worker.slow_ms);
    io_json_truth(json, "nonfinite", worker.nonfinite);
    io_json_truth(json, "quarantined", worker.quarantined);
    io_json_count(json, "joins", worker.joins);
    io_json_shut(json, '}');
}

static void write_checkpoints(const struct ampd_model_info *info, struct io_json *json)
{
    uint32_t count = 0;
    io_json_open(json, "checkpoints", '[');
    for (uint32_t i = info->checkpoints_whole; i-- > 0;) {
        struct ampd_msg_checkpoint_info checkpoint;
        if (!ampd_core_is_whole(info, i) || ++count > CHECKPOINTS_SHOWN)
            continue;
        io_checkpoint_info(info->spec, &info->checkpoints[i], &checkpoint);
        io_json_open(json, NULL, '{');
        io_json_count(json, "epoch", checkpoint.epoch);
        io_json_count(json, "step", checkpoint.step);
        io_json_number(json, "scale", (double)checkpoint.scale);
        io_json_count(json, "bytes", checkpoint.size_bytes);
        io_json_count(json, "parts", checkpoint.parts);
        io_json_count(json, "at_ms", (uint64_t)checkpoint.create_time.us / 1000);
        io_json_text(json, "path", checkpoint.path);
        io_json_shut(json, '}');
    }
    io_json_shut(json, ']');
    io_json_count(json, "checkpoints_hidden", count > CHECKPOINTS_SHOWN ? count - CHECKPOINTS_SHOWN : 0);
}

static void write_model(const struct ampd_server *server, uint32_t index, bool with_workers, struct io_json *json)
{
    struct ampd_model_info info;
    ampd_core_model(server->core, index, &info);
    const struct amp_scaler_config *scaler = &info.spec->scaler;
    io_json_init(json, IO_PAGE_MODEL_BYTES);
    io_json_open(json, NULL, '{');
    io_json_text(json, "model", info.spec->name);
    io_json_count(json, "step", info.step);
    io_json_text(json, "policy", amp_scaler_policy_name(scaler->policy));
    io_json_count(json, "growth_tracker", info.scaler.growth_tracker);
    io_json_count(json, "growth_interval", scaler->growth_interval);
    io_json_number(json, "min_scale", (double)scaler->min_scale);
    io_json_number(json, "max_scale", (double)scaler->max_scale);
    io_page_model_status_write(server, index, &info, "status", json); /* /api/status does not have all of many models */
    io_json_open(json, "workers", '[');
    for (uint32_t rank = 0; rank < info.spec->world_size && with_workers; rank++)
        write_worker(server, index, rank, json);
    io_json_shut(json, ']');
    io_json_truth(json, "workers_hidden", !with_workers);
    write_checkpoints(&info, json);
    io_json_shut(json, '}');
}

void io_page_model_write(struct io_page *page, uint32_t model, struct io_json *json)
{
    write_model(page->server, model, true, json);
    if (json->error != AMP_EEXHAUSTED)
        return;
    io_json_close(json); /* many workers whose names are long and strange: without them it fits */
    write_model(page->server, model, false, json);
}

void io_page_about_model(struct io_page_ask *ask, const struct io_page_request *request)
{
    struct ampd_model_info info;
    struct io_json json;
    uint32_t model;
    if (!io_page_model(ask, request->argument_cb(request->arg, "model"), &model, &info))
        return;
    io_page_model_write(ask->page, model, &json);
    io_page_answer_json(ask, IO_PAGE_OK, &json);
}
