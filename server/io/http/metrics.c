/* The whole text of /metrics, and those metrics that no other file writes. */
#include "server/io/http/metrics.h"

#include "server/io/base/counts.h"
#include "server/io/base/options.h"
#include "server/io/base/server.h"
#include "server/io/base/storage_alert.h"
#include "server/io/calls/attach_memory.h"
#include "server/io/cluster/cluster.h"
#include "server/io/cluster/peers.h"
#include "server/io/http/http.h"
#include "server/io/http/http_pages.h"
#include "server/io/http/metrics_calls.h"
#include "server/io/http/metrics_models.h"
#include "server/io/http/metrics_process.h"

#include <stdio.h>

static void write_timing(struct amp_metric_text *text, const struct amp_metric *metric, const struct io_timing *timing)
{
    uint64_t counts[IO_TIMING_BUCKETS];
    for (size_t i = 0; i < IO_TIMING_BUCKETS; i++)
        counts[i] = atomic_load_explicit(&timing->counts[i], memory_order_relaxed);
    struct amp_metric_histogram histogram = {io_timing_bounds, IO_TIMING_BUCKETS - 1, counts,
                                             (double)atomic_load(&timing->total_us) / 1e6};
    amp_metric_head(text, metric);
    amp_metric_put_histogram(text, metric, NULL, 0, &histogram);
}

static void write_storage(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric commit = {"ampd_store_commit_seconds", AMP_METRIC_HISTOGRAM,
                                             "Time of the store's transactions, each with its sync if it has one"};
    static const struct amp_metric journal = {"ampd_journal_write_seconds", AMP_METRIC_HISTOGRAM,
                                              "Time to write votes of models with durability step, each with its sync"};
    static const struct amp_metric checkpoint = {
        "ampd_checkpoint_write_seconds", AMP_METRIC_HISTOGRAM,
        "Time to write a checkpoint file of this shard, from the first byte to the sync"};
    static const struct amp_metric bytes = {"ampd_checkpoint_written_bytes_total", AMP_METRIC_COUNTER,
                                            "Bytes of checkpoint files that were written completely"};
    static const struct amp_metric restore = {"ampd_checkpoint_read_seconds", AMP_METRIC_HISTOGRAM,
                                              "Time to read a checkpoint back, after a start or for a rollback"};
    static const struct amp_metric trouble = {"ampd_storage_trouble", AMP_METRIC_GAUGE,
                                              "1 while a record, a checkpoint or a removal waits for room or "
                                              "rights on a disk"};
    static const struct amp_metric share = {
        "ampd_checkpoint_disk_short", AMP_METRIC_GAUGE,
        "1 while the next checkpoint would fill its file system beyond checkpoint-disk-share"};
    static const struct amp_metric removed = {
        "ampd_history_removed_rows_total", AMP_METRIC_COUNTER,
        "Rows of histories that were removed because of history-rows or history-age"};
    const struct io_counts *metrics = &server->counts;
    bool waits = false;
    write_timing(text, &commit, &metrics->commit);
    write_timing(text, &journal, &metrics->journal);
    write_timing(text, &checkpoint, &metrics->checkpoint);
    amp_metric_one(text, &bytes, (double)atomic_load(&metrics->checkpoint_bytes));
    write_timing(text, &restore, &metrics->restore);
    for (int i = 0; i < IO_STORAGE_ALERT_SILENT; i++)
        waits = waits || io_storage_alert_is_on(server->storage_alert, (enum io_storage_alert_of)i);
    amp_metric_one(text, &trouble, waits);
    amp_metric_one(text, &share, io_storage_alert_is_on(server->storage_alert, IO_STORAGE_ALERT_SHARE));
    amp_metric_one(text, &removed, (double)atomic_load(&metrics->history_removed));
}

static void write_build(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric build = {"ampd_build_info", AMP_METRIC_GAUGE,
                                            "Always 1; version and kernels are labels"};
    static const struct amp_metric ready = {"ampd_ready", AMP_METRIC_GAUGE, "1 while /readyz says ok"};
    static const struct amp_metric draining = {"ampd_draining", AMP_METRIC_GAUGE, "1 while the server drains"};
    static const struct amp_metric boots = {
        "ampd_fence", AMP_METRIC_GAUGE,
        "Fence of this process: of the processes of one shard the one with the highest counts"};
    static const struct amp_metric memory = {"ampd_memory_max_bytes", AMP_METRIC_GAUGE,
                                             "Memory that the tensors of all models may take; 0: no limit"};
    static const struct amp_metric counted = {"ampd_memory_counted_bytes", AMP_METRIC_GAUGE,
                                              "Memory that counts against ampd_memory_max_bytes: what the models may "
                                              "come to need, and the slots of workers of this host"};
    static const struct amp_metric slots = {"ampd_shared_slots_bytes", AMP_METRIC_GAUGE,
                                            "Memory that workers of this host write their gradients into"};
    const struct amp_metric_label labels[] = {{"version", AMPD_VERSION}, {"isa", server->options->isa}};
    amp_metric_head(text, &build);
    amp_metric_put(text, &build, labels, 2, 1);
    amp_metric_one(text, &ready, io_http_unready(server) == NULL);
    amp_metric_one(text, &draining, server->life.state >= SERVER_DRAINING);
    amp_metric_one(text, &boots, (double)server->fence.counter);
    amp_metric_one(text, &memory, (double)server->options->memory_max);
    amp_metric_one(text, &counted, server->core != NULL ? (double)ampd_core_memory_counted(server->core) : 0);
    amp_metric_one(text, &slots, (double)io_attachments_bytes(server));
}

static void write_cluster(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric own = {"ampd_shard", AMP_METRIC_GAUGE,
                                          "Index of this shard; -1: the process stands by"};
    static const struct amp_metric count = {"ampd_shards", AMP_METRIC_GAUGE, "Shards of the cluster"};
    static const struct amp_metric up = {
        "ampd_shard_session_up", AMP_METRIC_GAUGE,
        "1 while the session with the other shard is established; each shard has one with shard 0"};
    static const struct amp_metric lease = {
        "ampd_cluster_lease_left_seconds", AMP_METRIC_GAUGE,
        "Time for which this process keeps its place if etcd is silent from now on; 0: it has no place"};
    static const struct amp_metric etcd = {"ampd_etcd_up", AMP_METRIC_GAUGE,
                                           "1 while etcd answers this process; only with --cluster"};
    static const struct amp_metric standbys = {"ampd_standbys", AMP_METRIC_GAUGE,
                                               "Processes that wait for a place, as etcd last listed them"};
    int64_t left_ms = server->cluster != NULL ? io_cluster_lease_left_ms(server->cluster) : -1;
    if (left_ms >= 0)
        amp_metric_one(text, &lease, (double)left_ms / 1000);
    amp_metric_head(text, &etcd);
    if (left_ms >= 0)
        amp_metric_put(text, &etcd, NULL, 0, io_cluster_trouble(server->cluster)[0] == 0);
    amp_metric_head(text, &standbys);
    if (left_ms >= 0)
        amp_metric_put(text, &standbys, NULL, 0, io_cluster_standbys(server->cluster));
    amp_metric_one(text, &own, server->life.state == SERVER_STARTING ? -1 : (double)server->options->shard);
    amp_metric_one(text, &count, io_peers_shards(server));
    amp_metric_head(text, &up);
    for (uint32_t k = 0; k < io_peers_shards(server) && server->life.state != SERVER_STARTING; k++) {
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
