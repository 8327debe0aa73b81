/* grpc_server_*, with the names and labels of go-grpc-prometheus, so that dashboards made for etcd fit; connections. */
#include "server/io/http/metrics_calls.h"

#include "rpc/arpc_server.h"
#include "rpc/arpc_stats.h"
#include "server/io/auth/auth_gate.h"
#include "server/io/base/server.h"

static const char *const types[] = {[ARPC_UNARY] = "unary",
                                    [ARPC_CLIENT_STREAM] = "client_stream",
                                    [ARPC_SERVER_STREAM] = "server_stream",
                                    [ARPC_BIDI] = "bidi_stream"};

/* As grpc-go's codes.Code writes them. */
static const char *const codes[ARPC_STATUS_COUNT] = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

/* Number of the labels of a method. A fourth one, the status, is added where samples have it. */
#define METHOD_LABELS 3

static const struct arpc_method_stats *stats_of(const struct ampd_server *server, size_t index,
                                                struct amp_metric_label labels[METHOD_LABELS + 1])
{
    const struct arpc_method_stats *stats;
    const struct arpc_method *method = arpc_server_method(server->rpc, index, &stats);
    labels[0] = (struct amp_metric_label){"grpc_type", types[method->kind]};
    labels[1] = (struct amp_metric_label){"grpc_service", method->service};
    labels[2] = (struct amp_metric_label){"grpc_method", method->name};
    return stats;
}

/* Writes a metric with one sample for each method: the count at `offset` in its statistics. */
static void write_counts(const struct ampd_server *server, struct amp_metric_text *text,
                         const struct amp_metric *metric, size_t offset)
{
    struct amp_metric_label labels[METHOD_LABELS + 1];
    amp_metric_head(text, metric);
    for (size_t i = 0; i < arpc_server_methods(server->rpc); i++) {
        const struct arpc_method_stats *stats = stats_of(server, i, labels);
        uint64_t value = *(const uint64_t *)(const void *)((const char *)stats + offset);
        amp_metric_put(text, metric, labels, METHOD_LABELS, (double)value);
    }
}

static void write_handled(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric metric = {"grpc_server_handled_total", AMP_METRIC_COUNTER,
                                             "Calls that have ended, by status"};
    struct amp_metric_label labels[METHOD_LABELS + 1];
    amp_metric_head(text, &metric);
    for (size_t i = 0; i < arpc_server_methods(server->rpc); i++) {
        const struct arpc_method_stats *stats = stats_of(server, i, labels);
        for (int code = 0; code < ARPC_STATUS_COUNT; code++) {
            labels[METHOD_LABELS] = (struct amp_metric_label){"grpc_code", codes[code]};
            amp_metric_put(text, &metric, labels, METHOD_LABELS + 1, (double)stats->handled[code]);
        }
    }
}

static void write_durations(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric metric = {"grpc_server_handling_seconds", AMP_METRIC_HISTOGRAM,
                                             "Time from the headers of a call to its end; for Push, Pull, Load and "
                                             "Checkpoint it includes waiting for others"};
    static const double bounds[] = ARPC_STATS_BOUNDS;
    struct amp_metric_label labels[METHOD_LABELS + 1];
    amp_metric_head(text, &metric);
    for (size_t i = 0; i < arpc_server_methods(server->rpc); i++) {
        const struct arpc_method_stats *stats = stats_of(server, i, labels);
        struct amp_metric_histogram histogram = {bounds, sizeof bounds / sizeof *bounds, stats->buckets,
                                                 (double)stats->total_us / 1e6};
        _Static_assert(sizeof bounds / sizeof *bounds + 1 == ARPC_STATS_BUCKETS, "the last bucket has no end");
        amp_metric_put_histogram(text, &metric, labels, METHOD_LABELS, &histogram);
    }
}

static void write_methods(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct {
        struct amp_metric metric;
        size_t offset;
    } counts[] = {
        {{"grpc_server_started_total", AMP_METRIC_COUNTER, "Calls that have begun"},
         offsetof(struct arpc_method_stats, started)},
        {{"grpc_server_msg_received_total", AMP_METRIC_COUNTER,
          "Messages received from clients, each when it is complete"},
         offsetof(struct arpc_method_stats, received)},
        {{"grpc_server_msg_sent_total", AMP_METRIC_COUNTER, "Messages queued to be sent to clients"},
         offsetof(struct arpc_method_stats, sent)},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        write_counts(server, text, &counts[i].metric, counts[i].offset);
    write_handled(server, text);
    write_durations(server, text);
}

static void write_abuses(struct amp_metric_text *text, const struct arpc_server_stats *stats)
{
    static const struct amp_metric metric = {"ampd_client_abuses_total", AMP_METRIC_COUNTER,
                                             "Connections and calls that a limit has ended, by cause"};
    amp_metric_head(text, &metric);
    for (int cause = ARPC_ABUSE_NONE + 1; cause < ARPC_ABUSE_COUNT; cause++) {
        struct amp_metric_label label = {"cause", arpc_abuse_name((enum arpc_abuse)cause)};
        amp_metric_put(text, &metric, &label, 1, (double)stats->abuses[cause]);
    }
}

static void write_refusals(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric metric = {
        "ampd_auth_refusals_total", AMP_METRIC_COUNTER,
        "Refused calls of unknown callers, refused calls without the role, and refused TLS handshakes"};
    const struct {
        const char *kind;
        const struct ampd_auth_refusals *refusals;
    } kinds[] = {{"unauthenticated", &server->auth->unauthenticated},
                 {"forbidden", &server->auth->forbidden},
                 {"handshake", &server->auth->handshakes}};
    amp_metric_head(text, &metric);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct amp_metric_label label = {"kind", kinds[i].kind};
        amp_metric_put(text, &metric, &label, 1, (double)kinds[i].refusals->count);
    }
}

static void write_connections(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric open_now = {"ampd_connections", AMP_METRIC_GAUGE, "gRPC connections that are open"};
    static const struct amp_metric total = {"ampd_connections_accepted_total", AMP_METRIC_COUNTER,
                                            "gRPC connections that were accepted"};
    static const struct amp_metric calls = {"ampd_calls", AMP_METRIC_GAUGE, "Calls that are open"};
    static const struct amp_metric received = {"ampd_received_bytes_total", AMP_METRIC_COUNTER,
                                               "Bytes received on gRPC connections"};
    static const struct amp_metric sent = {"ampd_sent_bytes_total", AMP_METRIC_COUNTER,
                                           "Bytes sent on gRPC connections"};
    struct arpc_server_stats stats;
    arpc_server_stats(server->rpc, &stats);
    amp_metric_one(text, &open_now, (double)stats.connections);
    amp_metric_one(text, &total, (double)stats.connections_total);
    amp_metric_one(text, &calls, (double)stats.calls);
    amp_metric_one(text, &received, (double)stats.bytes_received);
    amp_metric_one(text, &sent, (double)stats.bytes_sent);
    write_abuses(text, &stats);
    write_refusals(server, text);
}

void io_metrics_write_calls(const struct ampd_server *server, struct amp_metric_text *text)
{
    if (server->rpc == NULL)
        return; /* it is being closed */
    write_methods(server, text);
    write_connections(server, text);
}
