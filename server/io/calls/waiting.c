/* What a model waits for, in one sentence. */
#include "server/io/calls/waiting.h"

#include "base/text.h"
#include "server/io/base/server.h"
#include "server/io/cluster/peers.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Most ranks that are named; the others are counted, so that the sentence fits its field. */
#define RANKS_NAMED 8

bool io_worker_is_live(const struct ampd_worker_info *worker)
{
    return worker->joined && !worker->left && worker->lease_left_ms > 0;
}

/* Whether the rank has no live worker; *worker is filled in. */
static bool is_missing(const struct ampd_server *server, uint32_t model, uint32_t rank, struct ampd_worker_info *worker)
{
    ampd_core_worker(server->core, model, rank, io_core_now(server), worker);
    return !io_worker_is_live(worker);
}

static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t size, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + used, size - used, format, args); /* truncated if it does not fit */
    va_end(args);
}

/*
 * Writes the ranks that have no live worker, as "rank 1 (trainer-1), rank 3 and 12 more of 16"; "" if there are none.
 * With only_lost those whose workers never came or have left do not count.
 */
static void missing_ranks(const struct ampd_server *server, uint32_t model, uint32_t world_size, bool only_lost,
                          char *text, size_t size)
{
    uint32_t missing = 0;
    text[0] = 0;
    for (uint32_t rank = 0; rank < world_size; rank++) {
        struct ampd_worker_info worker;
        bool lost = is_missing(server, model, rank, &worker);
        if (!lost || (only_lost && (!worker.joined || worker.left)) || missing++ >= RANKS_NAMED)
            continue;
        append(text, size, "%srank %u", missing > 1 ? ", " : "", rank);
        if (worker.name[0] != 0 && !worker.left)
            append(text, size, " (%.24s)", worker.name);
    }
    if (missing > RANKS_NAMED)
        append(text, size, " and %u more", missing - RANKS_NAMED);
    if (missing > 0)
        append(text, size, " of %u", world_size);
}

/*
 * For a model that goes on with fewer workers, as long as there are enough: whether there are, and if not, how many
 * more.
 */
static void waiting_for_enough(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                               char *text, size_t size)
{
    char ranks[256];
    uint32_t live = 0, least = spec->on_loss == AMPD_ON_LOSS_SHRINK ? spec->min_workers : 0;
    if (spec->sync == AMPD_SYNC_QUORUM && spec->quorum > least)
        least = spec->quorum;
    for (uint32_t rank = 0; rank < spec->world_size; rank++) {
        struct ampd_worker_info worker;
        live += is_missing(server, model, rank, &worker) ? 0 : 1;
    }
    if (live >= least)
        return;
    missing_ranks(server, model, spec->world_size, false, ranks, sizeof ranks);
    (void)snprintf(text, size, "%u more of %.200s, since a step needs %u workers", least - live, ranks, least);
}

/* Workers whose leases run, and whose pushes are missing long after another worker's push was complete. */
static void waiting_for_pushes(const struct ampd_server *server, uint32_t model, const struct ampd_model_info *info,
                               char *text, size_t size)
{
    uint64_t now = io_core_now(server);
    uint32_t count = 0;
    if (info->waits.awaited_late_ms == 0 || now < info->waits.awaited_late_ms)
        return;
    for (uint32_t rank = 0; rank < info->spec->world_size; rank++) {
        struct ampd_worker_info worker;
        ampd_core_worker(server->core, model, rank, now, &worker);
        if (worker.awaited && count++ < RANKS_NAMED)
            append(text, size, "%srank %u (%.16s)", count > 1 ? ", " : "", rank, worker.name);
    }
    if (count > RANKS_NAMED)
        append(text, size, " and %u more", count - RANKS_NAMED);
    append(text, size, " to push step %llu", (unsigned long long)info->step);
}

static void waiting_for_ranks(const struct ampd_server *server, uint32_t model, const struct ampd_model_info *info,
                              char *text, size_t size)
{
    const struct ampd_model_spec *spec = info->spec;
    char ranks[256];
    bool running = info->state == AMPD_MODEL_RUNNING;
    if (running && spec->max_steps != 0 && info->scaler.attempted >= spec->max_steps) {
        (void)snprintf(text, size, "the last checkpoint, which is being written");
        return;
    }
    if (server->options->shard != 0) { /* leases are known to shard 0 alone */
        if (!running)
            (void)snprintf(text, size, "the first step, which shard 0 opens");
        return;
    }
    if (running && (spec->sync != AMPD_SYNC_ALL || spec->on_loss != AMPD_ON_LOSS_WAIT)) {
        waiting_for_enough(server, model, spec, text, size);
        if (text[0] == 0)
            waiting_for_pushes(server, model, info, text, size);
        return;
    }
    missing_ranks(server, model, spec->world_size, running, ranks, sizeof ranks);
    if (running && ranks[0] != 0) {
        (void)snprintf(text, size, "%.200s, whose lease has ended", ranks);
        return;
    }
    if (running) /* then name those that have left */
        missing_ranks(server, model, spec->world_size, false, ranks, sizeof ranks);
    if (ranks[0] != 0)
        (void)snprintf(text, size, "%.200s to join", ranks);
    else if (!running)
        (void)snprintf(text, size, "the first step to open");
    else
        waiting_for_pushes(server, model, info, text, size);
}

uint64_t io_waiting_ms(const struct ampd_server *server, uint32_t model, const struct ampd_model_info *info)
{
    const struct ampd_model_spec *spec = info->spec;
    uint64_t now = io_core_now(server), since = info->waits.awaited_since_ms, gone = 0;
    bool in_steps =
        info->state == AMPD_MODEL_WAITING || info->state == AMPD_MODEL_RUNNING || info->state == AMPD_MODEL_STALLED;
    if (!in_steps || info->recovering || info->deleting || info->frozen || server->options->shard != 0 ||
        io_peers_missing(server) != UINT32_MAX)
        return 0;
    /* A model that needs all ranks waits since the first was lost; one that goes on with fewer, since the last was. */
    bool all = spec->sync == AMPD_SYNC_ALL && spec->on_loss == AMPD_ON_LOSS_WAIT;
    for (uint32_t rank = 0; rank < spec->world_size; rank++) {
        struct ampd_worker_info worker;
        ampd_core_worker(server->core, model, rank, now, &worker);
        uint64_t lost = worker.left ? 0 : worker.lost_since_ms;
        if (lost != 0 && (gone == 0 || (all ? lost < gone : lost > gone)))
            gone = lost;
    }
    if (gone != 0 && (since == 0 || gone < since))
        since = gone;
    return since != 0 && now >= since + AMPD_AWAITED_MS ? now - since : 0;
}

static void find_text(const struct ampd_server *server, uint32_t model, const struct ampd_model_info *info, char *text,
                      size_t size)
{
    text[0] = 0;
    if (info->recovering) {
        (void)snprintf(text, size, "%s%s", info->trouble != NULL ? "an operator's help: " : "",
                       info->trouble != NULL ? info->trouble : "the end of recovery");
        return;
    }
    if (info->deleting) {
        (void)snprintf(text, size, "the end of its deletion");
        return;
    }
    if (info->frozen) {
        (void)snprintf(text, size,
                       "an operator: the scale is at its floor after %u overflows in a row; set or reset it",
                       info->scaler.consecutive_overflows);
        return;
    }
    uint32_t missing = info->state != AMPD_MODEL_DONE ? io_peers_missing(server) : UINT32_MAX;
    if (missing != UINT32_MAX) {
        (void)snprintf(text, size, "a session with shard %u%s%s", missing,
                       io_peers_address(server, missing)[0] != 0 ? " at " : "", io_peers_address(server, missing));
        return;
    }
    switch (info->state) {
    case AMPD_MODEL_CREATED:
        (void)snprintf(text, size, "a Load of the initial values");
        break;
    case AMPD_MODEL_LOADING:
        (void)snprintf(text, size, "the end of the Load under way");
        break;
    case AMPD_MODEL_STALLED:
        (void)snprintf(text, size, "rank %u, which has been gone for longer than loss_timeout_ms",
                       info->waits.missing_rank);
        break;
    case AMPD_MODEL_WAITING:
    case AMPD_MODEL_RUNNING:
        waiting_for_ranks(server, model, info, text, size);
        break;
    case AMPD_MODEL_DONE:
        break;
    }
}

void io_waiting_text(const struct ampd_server *server, uint32_t model, const struct ampd_model_info *info, char *text,
                     size_t size)
{
    find_text(server, model, info, text, size);
    uint64_t waited_ms = text[0] != 0 ? io_waiting_ms(server, model, info) : 0;
    if (waited_ms != 0)
        append(text, size, ", for %llu s", (unsigned long long)waited_ms / 1000);
    amp_text_repair(text); /* a name may have been truncated within a character */
}
