/* Counts and times that are taken here, and the text as a whole. */
#include "server/io/metrics.h"

#include "server/io/cluster.h"
#include "server/io/http.h"
#include "server/io/peers.h"
#include "server/io/server.h"
#include "server/io/trouble.h"

#include <stdio.h>

static const double timing_bounds[] = IO_TIMING_BOUNDS;
_Static_assert(sizeof timing_bounds / sizeof *timing_bounds + 1 == IO_TIMING_BUCKETS, "the last bucket has no end");

uint64_t io_metrics_now_us(void)
{
    return uv_hrtime() / 1000;
}

void io_timing_add(struct io_timing *timing, uint64_t from_us)
{
    uint64_t now_us = io_metrics_now_us();
    uint64_t took_us = now_us > from_us ? now_us - from_us : 0;
    size_t bucket = 0;
    while (bucket < IO_TIMING_BUCKETS - 1 && (double)took_us > timing_bounds[bucket] * 1e6)
        bucket++;
    atomic_fetch_add_explicit(&timing->counts[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&timing->total_us, took_us, memory_order_relaxed);
}

void io_metrics_row(struct ampd_server *server, uint32_t model, const struct ampd_step_row *row)
{
    struct io_model_counts *counts = &server->metrics.models[model];
    if (row->kind != AMPD_ROW_STEP)
        return;
    counts->applied += row->verdict == AMPD_VERDICT_APPLIED ? 1 : 0;
    counts->overflows += row->verdict == AMPD_VERDICT_SKIPPED_OVERFLOW ? 1 : 0;
    counts->empty += row->verdict == AMPD_VERDICT_SKIPPED_EMPTY ? 1 : 0;
}

void io_metrics_forget(struct ampd_server *server, uint32_t model)
{
    server->metrics.models[model] = (struct io_model_counts){0};
}

/* ---- writing ---- */

static void write_timing(struct amp_metric_text *text, const struct amp_metric *metric, const struct io_timing *timing)
{
    uint64_t counts[IO_TIMING_BUCKETS];
    for (size_t i = 0; i < IO_TIMING_BUCKETS; i++)
        counts[i] = atomic_load_explicit(&timing->counts[i], memory_order_relaxed);
    struct amp_metric_histogram histogram = {timing_bounds, IO_TIMING_BUCKETS - 1, counts,
                                             (double)atomic_load(&timing->total_us) / 1e6};
    amp_metric_head(text, metric);
    amp_metric_put_histogram(text, metric, NULL, 0, &histogram);
}

static void write_storage(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric commit = {"ampd_store_commit_seconds", AMP_METRIC_HISTOGRAM,
                                             "Transactions of the store, each with its sync where it has one"};
    static const struct amp_metric journal = {"ampd_journal_write_seconds", AMP_METRIC_HISTOGRAM,
                                              "Votes of models with durability step, each with its sync"};
    static const struct amp_metric checkpoint = {"ampd_checkpoint_write_seconds", AMP_METRIC_HISTOGRAM,
                                                 "Checkpoint files of this shard, from the first byte to the sync"};
    static const struct amp_metric bytes = {"ampd_checkpoint_written_bytes_total", AMP_METRIC_COUNTER,
                                            "Bytes of checkpoint files that were written whole"};
    static const struct amp_metric restore = {"ampd_checkpoint_read_seconds", AMP_METRIC_HISTOGRAM,
                                              "Checkpoints that were read back after a start or for a rollback"};
    static const struct amp_metric trouble = {"ampd_storage_trouble", AMP_METRIC_GAUGE,
                                              "1 while the disk is full and records wait for it"};
    const struct io_metrics *metrics = &server->metrics;
    char why[8];
    write_timing(text, &commit, &metrics->commit);
    write_timing(text, &journal, &metrics->journal);
    write_timing(text, &checkpoint, &metrics->checkpoint);
    amp_metric_one(text, &bytes, (double)atomic_load(&metrics->checkpoint_bytes));
    write_timing(text, &restore, &metrics->restore);
    io_trouble_text(server->trouble, why, sizeof why);
    amp_metric_one(text, &trouble, why[0] != 0);
}

static void write_build(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric build = {"ampd_build_info", AMP_METRIC_GAUGE, "1; version and kernels are labels"};
    static const struct amp_metric ready = {"ampd_ready", AMP_METRIC_GAUGE, "1 while /readyz says ok"};
    static const struct amp_metric draining = {"ampd_draining", AMP_METRIC_GAUGE, "1 while the server ends"};
    static const struct amp_metric boots = {"ampd_fence", AMP_METRIC_GAUGE,
                                            "Number of this process among those of its shard; the highest counts"};
    static const struct amp_metric memory = {"ampd_memory_max_bytes", AMP_METRIC_GAUGE,
                                             "What the tensors of all models may take; 0: no bound"};
    const struct amp_metric_label labels[] = {{"version", AMPD_VERSION}, {"isa", server->options->isa}};
    amp_metric_head(text, &build);
    amp_metric_put(text, &build, labels, 2, 1);
    amp_metric_one(text, &ready, io_http_unready(server) == NULL);
    amp_metric_one(text, &draining, server->state >= SERVER_DRAINING);
    amp_metric_one(text, &boots, (double)server->fence.counter);
    amp_metric_one(text, &memory, (double)server->options->memory_max);
}

static void write_cluster(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric own = {"ampd_shard", AMP_METRIC_GAUGE,
                                          "Index of this shard; -1: the process stands by"};
    static const struct amp_metric count = {"ampd_shards", AMP_METRIC_GAUGE, "Shards of the cluster"};
    static const struct amp_metric up = {
        "ampd_shard_session_up", AMP_METRIC_GAUGE,
        "1 while the session with the other shard stands; each shard has one with shard 0"};
    static const struct amp_metric lease = {
        "ampd_cluster_lease_left_seconds", AMP_METRIC_GAUGE,
        "Time for which etcd, if it is silent from now on, leaves this process its place; 0: it has none"};
    int64_t left_ms = server->cluster != NULL ? io_cluster_lease_left_ms(server->cluster) : -1;
    if (left_ms >= 0)
        amp_metric_one(text, &lease, (double)left_ms / 1000);
    amp_metric_one(text, &own, server->state == SERVER_STARTING ? -1 : (double)server->options->shard);
    amp_metric_one(text, &count, io_peers_shards(server));
    amp_metric_head(text, &up);
    for (uint32_t k = 0; k < io_peers_shards(server); k++) {
        char index[12];
        struct amp_metric_label label = {"shard", index};
        if (k == server->options->shard || (server->options->shard != 0 && k != 0))
            continue;
        (void)snprintf(index, sizeof index, "%u", k);
        amp_metric_put(text, &up, &label, 1, io_peers_session_up(server, k));
    }
}

void io_metrics_write(const struct ampd_server *server, struct amp_metric_text *text)
{
    write_build(server, text);
    write_cluster(server, text);
    io_metrics_write_models(server, text);
    write_storage(server, text);
    io_metrics_write_calls(server, text);
    io_http_write_metrics(server, text);
    io_metrics_write_process(text);
}
