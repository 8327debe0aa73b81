/* ampd: parses the command line, prepares the process, and runs the server. */
#define _DEFAULT_SOURCE /* struct rlimit's and argp's helpers */
#include "amp/cpu.h"
#include "base/assert.h"
#include "base/usage.h"
#include "server/io/auth/auth_options.h"
#include "server/io/base/clock.h"
#include "server/io/base/options.h"
#include "server/io/base/peer_bytes.h"
#include "server/io/cluster/cluster_address.h"
#include "server/io/cluster/cluster_options.h"
#include "server/io/etcd/etcd_access.h"
#include "server/io/http/http.h"
#include "server/io/process/memory_limit.h"
#include "server/io/process/start.h"
#include "storage/datadir.h"
#include "storage/store.h"

#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LISTEN_DEFAULT "127.0.0.1:7420"

/* More threads than that gain nothing: memory bandwidth is used up long before. */
#define COMPUTE_THREADS_MAX 256

/*
 * SIGTERM, SIGINT and SIGHUP wait from the first instant until the server watches for them, so that one that comes
 * while it starts has its effect then, and does not end it half-way. Threads made meanwhile keep them blocked: the
 * loop's thread takes them.
 */
static void hold_signals(void)
{
    sigset_t signals;
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &signals, NULL);
}

/*
 * Share of the machine's memory that models take by default. The rest is for what is queued, the store, and the pages
 * of checkpoint files on their way to the disk.
 */
#define MEMORY_SHARE_PERCENT 75

/* The text of a number that a macro names. */
#define TEXT_OF(number)          TEXT_OF_EXPANDED(number)
#define TEXT_OF_EXPANDED(number) #number

/* What says which versions run beside each other, and which can go back to another one (docs/operations.md). */
static char version[128];
__attribute__((visibility("default"))) /* the C library looks for it */
const char *argp_program_version = version;

static void write_version(void)
{
    (void)snprintf(version, sizeof version, "ampd %s\nshards: format %d\ndata: format %d.%d", AMPD_VERSION,
                   AMPD_PEER_FORMAT, AMPD_DATADIR_VERSION, AMPD_STORE_SCHEMA);
}

enum {
    OPTION_DATA_DIR = 'd',
    OPTION_LISTEN = 'l',
    OPTION_THREADS = 256,
    OPTION_METRICS_LISTEN,
    OPTION_MEMORY_MAX,
    OPTION_SHARED_MEMORY,
    OPTION_LOG_LEVEL,
    OPTION_INSECURE,
    OPTION_CERT_FILE,
    OPTION_KEY_FILE,
    OPTION_TRUSTED_CA_FILE,
    OPTION_CLIENT_CERT_AUTH,
    OPTION_CLIENT_CERT_ROLE,
    OPTION_ADVERTISE,
    OPTION_CLUSTER,
    OPTION_ETCD_CACERT,
    OPTION_ETCD_CERT,
    OPTION_ETCD_KEY,
    OPTION_ETCD_USER_FILE,
    OPTION_SHARDS,
    OPTION_CHECKPOINT_DIR,
    OPTION_EPOCH_ABOVE,
    OPTION_FENCE_ABOVE,
    OPTION_PEERS,
    OPTION_PEER_TOKEN_FILE,
    OPTION_PEER_CERT_FILE,
    OPTION_PEER_KEY_FILE,
    OPTION_PEER_TRUSTED_CA_FILE,
    OPTION_SHARD,
    OPTION_TOKEN_FILE,
    OPTION_USAGE_AS,
    OPTION_TIMES /* the first of AMPD_TIMES_COUNT, in the order of enum ampd_time */
};

static const struct argp_option options_table[] = {
    {"data-dir", OPTION_DATA_DIR, "DIR", 0, "Directory of models, history and checkpoints; made if it is not there", 0},
    {"listen", OPTION_LISTEN, "HOST:PORT", 0,
     "Address to listen on, also unix:/PATH, default " LISTEN_DEFAULT "; port 0: a free one", 0},
    {"metrics-listen", OPTION_METRICS_LISTEN, "HOST:PORT", 0,
     "Address of /metrics, /livez and /readyz, in HTTP, open to everybody; none: nowhere; default " IO_HTTP_LISTEN, 0},
    {"compute-threads", OPTION_THREADS, "N", 0, "Threads for the passes of a step, default: one for each processor", 0},
    {"memory-max", OPTION_MEMORY_MAX, "BYTES", 0,
     "Memory for the tensors of all models, 2M or more, a number with K, M or G; default: " TEXT_OF(
         MEMORY_SHARE_PERCENT) " % of what this process may use",
     0},
    {"shared-memory", OPTION_SHARED_MEMORY, "on|off", 0,
     "Share memory with workers of this host that connect by the unix socket, default on", 0},
    {"log-level", OPTION_LOG_LEVEL, "LEVEL", 0, "debug, info (default), warn or error", 0},
    {"cert-file", OPTION_CERT_FILE, "FILE", 0, "The server's certificate, PEM; with it the server speaks TLS", 0},
    {"key-file", OPTION_KEY_FILE, "FILE", 0, "The private key of the certificate", 0},
    {"token-file", OPTION_TOKEN_FILE, "FILE", 0, "Who may call, and as what (docs/security.md)", 0},
    {"trusted-ca-file", OPTION_TRUSTED_CA_FILE, "FILE", 0, "Authorities whose client certificates are believed", 0},
    {"client-cert-auth", OPTION_CLIENT_CERT_AUTH, NULL, 0, "Connect no client that shows no certificate", 0},
    {"client-cert-role", OPTION_CLIENT_CERT_ROLE, "ROLE", 0,
     "read, worker, operator or peer: for client certificates that the token file does not name", 0},
    {"keepalive-time", OPTION_TIMES + AMPD_TIME_KEEPALIVE, "TIME", 0,
     "Ask a client that sent nothing for this long whether it lives, default 2h", 1},
    {"keepalive-timeout", OPTION_TIMES + AMPD_TIME_KEEPALIVE_TIMEOUT, "TIME", 0,
     "Close its connection when it has not answered by then, default 20s", 1},
    {"min-ping-interval", OPTION_TIMES + AMPD_TIME_MIN_PING_INTERVAL, "TIME", 0,
     "Clients that ask more often than this, default 5m, are disconnected at the third time", 1},
    {"max-connection-idle", OPTION_TIMES + AMPD_TIME_CONNECTION_IDLE, "TIME", 0,
     "Close connections without a call for this long, default 5m", 1},
    {"max-connection-age", OPTION_TIMES + AMPD_TIME_CONNECTION_AGE, "TIME", 0,
     "Let connections of this age, 10 % more or less, end; default: none", 1},
    {"max-connection-age-grace", OPTION_TIMES + AMPD_TIME_CONNECTION_AGE_GRACE, "TIME", 0,
     "Cut the calls that are still open on them so much later, default: never", 1},
    {"worker-lease", OPTION_TIMES + AMPD_TIME_WORKER_LEASE, "TIME", 0,
     "A worker that is silent for this long has to join again, default 30s", 1},
    {"cluster", OPTION_CLUSTER, "etcd://HOST:PORT,.../NAME", 0,
     "The cluster of this name, whose shards find each other in etcd, etcds://... where that speaks TLS; the data "
     "directory "
     "is then for whatever shard this process is",
     2},
    {"etcd-cacert", OPTION_ETCD_CACERT, "FILE", 0, "Authorities by which etcd's certificate is believed (the system's)",
     2},
    {"etcd-cert", OPTION_ETCD_CERT, "FILE", 0, "Show etcd this certificate, PEM", 2},
    {"etcd-key", OPTION_ETCD_KEY, "FILE", 0, "The private key of --etcd-cert", 2},
    {"etcd-user-file", OPTION_ETCD_USER_FILE, "FILE", 0,
     "Be the user of etcd whose NAME:PASSWORD is the one line of this file", 2},
    {"shards", OPTION_SHARDS, "K", 0, "How many shards the cluster has", 2},
    {"advertise", OPTION_ADVERTISE, "HOST:PORT", 0,
     "Where the others of the cluster, and its clients, find this process; default: the address of --listen", 2},
    {"cluster-lease", OPTION_TIMES + AMPD_TIME_CLUSTER_LEASE, "TIME", 0,
     "A process that etcd has not heard of for this long, 2s to 60s, is no shard any more, default 5s", 2},
    {"checkpoint-dir", OPTION_CHECKPOINT_DIR, "DIR", 0,
     "Directory of checkpoint files, default: the data directory. Shards that have one directory, on one machine or a "
     "file "
     "system that all see, can start again in another number, and one that has lost its disk gets its part from there",
     2},
    {"peers", OPTION_PEERS, "ADDRESS,...", 0,
     "Instead of --cluster: where all shards are, by index; each is an ampd with the same list, its --shard and a data "
     "directory of its own",
     2},
    {"peer-token-file", OPTION_PEER_TOKEN_FILE, "FILE", 0, "Show the other shards the token in this file", 2},
    {"peer-cert-file", OPTION_PEER_CERT_FILE, "FILE", 0,
     "Show the other shards this certificate, PEM (--cert-file, where shards ask for one and no token is shown)", 2},
    {"peer-key-file", OPTION_PEER_KEY_FILE, "FILE", 0, "The private key of --peer-cert-file", 2},
    {"peer-trusted-ca-file", OPTION_PEER_TRUSTED_CA_FILE, "FILE", 0,
     "Authorities by which the other shards' certificates are believed (--trusted-ca-file, else the system's)", 2},
    {"shard", OPTION_SHARD, "K", 0,
     "Which of them this is, from 0; of a --cluster by default any that is free, and else it stands by", 2},
    {"epoch-above", OPTION_EPOCH_ABOVE, "N", 0,
     "An empty data directory, of a shard that is new or has lost its own, is filled from the other shards and "
     "--checkpoint-dir; new epochs are above N, the highest that ampctl has shown of any model; --cluster does both "
     "by itself",
     2},
    {"fence-above", OPTION_FENCE_ABOVE, "N", 0,
     "With --peers: the other shards believe this process although one with fence N, which was none of the cluster's, "
     "has spoken in its place; the log says N",
     2},
    {"insecure", OPTION_INSECURE, NULL, 0, "Listen beyond loopback without encryption, or without asking who calls", 0},
    {"usage-as", OPTION_USAGE_AS, "scdoc|bash", OPTION_HIDDEN,
     "For the build: print the options as its manual page and its completion have them", 0},
    {0},
};

struct arguments {
    struct ampd_server_options server; /* points to the next two */
    struct ampd_auth_options auth;
    struct io_etcd_access etcd;
    enum amp_log_level level;
    bool has_shard;
    const char *cluster; /* as given */
    const char *usage_as;
    struct io_cluster_url url;
    char wrong[AMP_ERROR_TEXT_MAX]; /* what is wrong with the command line; "" if nothing */
};

static bool parse_threads(const char *text, unsigned *threads)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    *threads = (unsigned)value;
    return errno == 0 && end != text && *end == 0 && value >= 1 && value <= COMPUTE_THREADS_MAX;
}

/* "1073741824", "1048576K", "1024M" and "1G" are the same. */
static bool parse_bytes(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMG";
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || text[0] < '0' || text[0] > '9' || value == 0)
        return false;
    const char *unit = *end != 0 ? strchr(units, *end) : NULL;
    unsigned shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
    *bytes = (uint64_t)value << shift;
    return end[unit != NULL] == 0 && *bytes >> shift == value;
}

/* "1500ms", "90s", "5m" and "2h": at least 1 ms, at most ten years. */
static bool parse_time(const char *text, int64_t *ms)
{
    static const struct {
        const char *name;
        int64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 60 * 60 * 1000}};
    const int64_t most_ms = INT64_C(10) * 365 * 24 * 60 * 60 * 1000;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || text[0] < '0' || text[0] > '9' || value < 1)
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].name) != 0)
            continue;
        *ms = value <= most_ms / units[i].ms ? value * units[i].ms : 0;
        return *ms > 0;
    }
    return false;
}

static bool parse_number(const char *text, uint64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == 0 && *number <= (uint64_t)1 << 62;
}

static bool parse_shard(const char *text, uint32_t *shard)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    *shard = (uint32_t)value;
    return errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == 0 && value < IO_CLUSTER_SHARDS_MAX;
}

static bool parse_level(const char *text, enum amp_log_level *level)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i]) == 0) {
            *level = (enum amp_log_level)i;
            return true;
        }
    }
    return false;
}

/* False: the key is none of these. */
static bool parse_time_option(int key, const char *arg, struct arguments *arguments)
{
    if (key < OPTION_TIMES || key >= OPTION_TIMES + AMPD_TIMES_COUNT)
        return false;
    if (parse_time(arg, &arguments->server.times_ms[key - OPTION_TIMES]))
        return true;
    for (const struct argp_option *option = options_table; option->name != NULL; option++)
        if (option->key == key)
            (void)snprintf(arguments->wrong, sizeof arguments->wrong,
                           "--%s %.40s: give a time of 1ms to ten years, a number with ms, s, m or h", option->name,
                           arg);
    return true;
}

/* False: the key is none of these. */
static bool parse_cluster_option(int key, const char *arg, struct arguments *arguments)
{
    char *wrong = arguments->wrong;
    uint32_t most = 0;
    switch (key) {
    case OPTION_CLUSTER:
        arguments->cluster = arg;
        return true;
    case OPTION_ADVERTISE:
        arguments->server.advertise = arg;
        return true;
    case OPTION_PEERS:
        arguments->server.peers = arg;
        return true;
    case OPTION_SHARDS:
        if (!parse_shard(arg, &most) && strcmp(arg, TEXT_OF(IO_CLUSTER_SHARDS_MAX)) != 0)
            (void)snprintf(wrong, sizeof arguments->wrong, "--shards %.40s: give 1 to %d", arg, IO_CLUSTER_SHARDS_MAX);
        arguments->server.shards = (uint32_t)strtoul(arg, NULL, 10);
        return true;
    case OPTION_SHARD:
        arguments->has_shard = true;
        if (!parse_shard(arg, &arguments->server.shard))
            (void)snprintf(wrong, sizeof arguments->wrong, "--shard %.40s: give the index of a shard, 0 to %d", arg,
                           IO_CLUSTER_SHARDS_MAX - 1);
        return true;
    default:
        return false;
    }
}

/* False: the key is none of these. */
static bool parse_etcd_option(int key, const char *arg, struct io_etcd_access *etcd)
{
    const char **file = key == OPTION_ETCD_CACERT      ? &etcd->cacert_file
                        : key == OPTION_ETCD_CERT      ? &etcd->cert_file
                        : key == OPTION_ETCD_KEY       ? &etcd->key_file
                        : key == OPTION_ETCD_USER_FILE ? &etcd->user_file
                                                       : NULL;
    if (file != NULL)
        *file = arg;
    return file != NULL;
}

/* False: the key is none of these. */
static bool parse_auth_option(int key, const char *arg, struct ampd_auth_options *auth)
{
    switch (key) {
    case OPTION_INSECURE:
        auth->insecure = true;
        return true;
    case OPTION_CERT_FILE:
        auth->cert_file = arg;
        return true;
    case OPTION_KEY_FILE:
        auth->key_file = arg;
        return true;
    case OPTION_TRUSTED_CA_FILE:
        auth->trusted_ca_file = arg;
        return true;
    case OPTION_CLIENT_CERT_AUTH:
        auth->client_cert_auth = true;
        return true;
    case OPTION_CLIENT_CERT_ROLE:
        auth->client_cert_role = arg;
        return true;
    case OPTION_TOKEN_FILE:
        auth->token_file = arg;
        return true;
    case OPTION_PEER_TOKEN_FILE:
        auth->peer_token_file = arg;
        return true;
    case OPTION_PEER_CERT_FILE:
        auth->peer_cert_file = arg;
        return true;
    case OPTION_PEER_KEY_FILE:
        auth->peer_key_file = arg;
        return true;
    case OPTION_PEER_TRUSTED_CA_FILE:
        auth->peer_trusted_ca_file = arg;
        return true;
    default:
        return false;
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    char *wrong = arguments->wrong;
    switch (key) {
    case ARGP_KEY_INIT:
        state->err_stream = NULL; /* getopt tells what is wrong in one line; argp's second one is left out */
        return 0;
    case OPTION_DATA_DIR:
        arguments->server.data_dir = arg;
        return 0;
    case OPTION_USAGE_AS:
        arguments->usage_as = arg;
        return 0;
    case OPTION_EPOCH_ABOVE:
        arguments->server.refills = parse_number(arg, &arguments->server.epoch_above);
        if (!arguments->server.refills)
            (void)snprintf(wrong, sizeof arguments->wrong, "--epoch-above %.40s: give a number of 0 to 2^62", arg);
        return 0;
    case OPTION_FENCE_ABOVE:
        if (!parse_number(arg, &arguments->server.fence_above))
            (void)snprintf(wrong, sizeof arguments->wrong, "--fence-above %.40s: give a number of 0 to 2^62", arg);
        return 0;
    case OPTION_CHECKPOINT_DIR:
        arguments->server.checkpoint_dir = arg;
        return 0;
    case OPTION_LISTEN:
        arguments->server.listen = arg;
        return 0;
    case OPTION_METRICS_LISTEN:
        arguments->server.metrics_listen = arg;
        return 0;
    case OPTION_THREADS:
        if (!parse_threads(arg, &arguments->server.compute_threads))
            (void)snprintf(wrong, sizeof arguments->wrong, "--compute-threads %.40s: give 1 to %d", arg,
                           COMPUTE_THREADS_MAX);
        return 0;
    case OPTION_MEMORY_MAX:
        if (!parse_bytes(arg, &arguments->server.memory_max) || arguments->server.memory_max < IO_MEMORY_LEAST)
            (void)snprintf(wrong, sizeof arguments->wrong,
                           "--memory-max %.40s: give %dM or more, which the smallest model needs, in bytes or with K, "
                           "M or G",
                           arg, IO_MEMORY_LEAST >> 20);
        return 0;
    case OPTION_SHARED_MEMORY:
        arguments->server.no_shared_memory = strcmp(arg, "off") == 0;
        if (!arguments->server.no_shared_memory && strcmp(arg, "on") != 0)
            (void)snprintf(wrong, sizeof arguments->wrong, "--shared-memory %.40s: give on or off", arg);
        return 0;
    case OPTION_LOG_LEVEL:
        if (!parse_level(arg, &arguments->level))
            (void)snprintf(wrong, sizeof arguments->wrong, "--log-level %.40s: give debug, info, warn or error", arg);
        return 0;
    case ARGP_KEY_ARG:
        (void)snprintf(wrong, sizeof arguments->wrong, "unexpected argument %.100s", arg);
        return 0;
    default:
        if (parse_auth_option(key, arg, &arguments->auth) || parse_time_option(key, arg, arguments) ||
            parse_cluster_option(key, arg, arguments) || parse_etcd_option(key, arg, &arguments->etcd))
            return 0;
        return ARGP_ERR_UNKNOWN;
    }
}

/* Whether an address ends in a port; the rest is looked at when it is listened on. */
static bool has_port(const char *address)
{
    const char *colon = strrchr(address, ':');
    size_t digits = colon != NULL ? strspn(colon + 1, "0123456789") : 0;
    if (strncmp(address, "unix:", 5) == 0)
        return true;
    return colon != NULL && colon != address && digits > 0 && digits <= 5 && colon[1 + digits] == 0 &&
           strtol(colon + 1, NULL, 10) <= 65535;
}

/* An address to listen on that says nothing about where that is. */
static bool is_everywhere(const char *listen)
{
    static const char *const hosts[] = {"0.0.0.0:", "[::]:", "*:", ":"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if (strncmp(listen, hosts[i], strlen(hosts[i])) == 0)
            return true;
    return false;
}

/* Where the places are kept in etcd. */
static void check_etcd(struct arguments *arguments)
{
    struct ampd_server_options *server = &arguments->server;
    struct amp_error error = {0};
    size_t size = sizeof arguments->wrong;
    int64_t lease_ms = server->times_ms[AMPD_TIME_CLUSTER_LEASE];
    const char *address = server->advertise != NULL ? server->advertise : server->listen;
    if (io_cluster_url_parse(arguments->cluster, &arguments->url, &error) != 0)
        (void)snprintf(arguments->wrong, size, "--cluster %.450s", error.text);
    else if (server->peers != NULL)
        (void)snprintf(arguments->wrong, size, "--cluster and --peers: give one of them");
    else if (server->shards == 0)
        (void)snprintf(arguments->wrong, size, "--cluster needs --shards, how many shards it has");
    else if (arguments->has_shard && server->shard >= server->shards)
        (void)snprintf(arguments->wrong, size, "--shard: give which of the %u --shards this is to be, 0 to %u",
                       server->shards, server->shards - 1);
    else if (lease_ms != 0 && (lease_ms < IO_CLUSTER_LEASE_MIN_MS || lease_ms > IO_CLUSTER_LEASE_MAX_MS))
        (void)snprintf(arguments->wrong, size, "--cluster-lease: give a time of 2s, an election of etcd, to 60s");
    else if (server->advertise != NULL && !io_cluster_address_ok(server->advertise))
        (void)snprintf(arguments->wrong, size, "--advertise %.200s: give HOST:PORT, as others can connect to it",
                       server->advertise);
    else if (server->advertise == NULL && is_everywhere(server->listen))
        (void)snprintf(arguments->wrong, size,
                       "--listen %.100s with --cluster: tell the others where this process is by --advertise HOST:PORT",
                       server->listen);
    else if (ampd_auth_peers_check(&arguments->auth, address, &error) != 0)
        (void)snprintf(arguments->wrong, size, "%s", error.text);
    arguments->etcd.tls = arguments->url.tls;
    if (arguments->wrong[0] == 0 &&
        io_etcd_access_check(&arguments->etcd, arguments->url.endpoints, arguments->auth.insecure, &error) != 0)
        (void)snprintf(arguments->wrong, size, "%s", error.text);
    server->cluster = &arguments->url;
    if (!arguments->has_shard)
        server->shard = IO_CLUSTER_ANY;
}

static void check_cluster(struct arguments *arguments)
{
    struct ampd_server_options *server = &arguments->server;
    struct amp_error error = {0};
    size_t size = sizeof arguments->wrong;
    uint32_t count = server->peers != NULL ? io_cluster_list_count(server->peers) : 0;
    if (arguments->cluster != NULL && server->fence_above != 0) {
        (void)snprintf(arguments->wrong, size, "--fence-above is for --peers: a --cluster raises fences by itself");
        return;
    }
    if (arguments->cluster != NULL) {
        check_etcd(arguments);
        return;
    }
    if (arguments->etcd.cacert_file != NULL || arguments->etcd.cert_file != NULL || arguments->etcd.key_file != NULL ||
        arguments->etcd.user_file != NULL)
        (void)snprintf(arguments->wrong, size,
                       "--etcd-cacert, --etcd-cert, --etcd-key and --etcd-user-file are for a --cluster");
    else if (server->shards != 0 || server->advertise != NULL || server->times_ms[AMPD_TIME_CLUSTER_LEASE] != 0)
        (void)snprintf(arguments->wrong, size, "--shards, --advertise and --cluster-lease are for a --cluster");
    else if (server->peers == NULL && arguments->has_shard)
        (void)snprintf(arguments->wrong, size, "--shard needs --cluster, or --peers, the addresses of all shards");
    else if (server->peers == NULL && server->refills)
        (void)snprintf(arguments->wrong, size, "--epoch-above needs --peers or --cluster");
    else if (server->peers == NULL && server->fence_above != 0)
        (void)snprintf(arguments->wrong, size, "--fence-above needs --peers");
    else if (server->peers != NULL && count < 2)
        (void)snprintf(arguments->wrong, size, "--peers %.100s: give 2 to %d addresses with commas between them",
                       server->peers, IO_CLUSTER_SHARDS_MAX);
    else if (server->peers != NULL && (!arguments->has_shard || server->shard >= count))
        (void)snprintf(arguments->wrong, size, "--shard: give which of the %u --peers this is, 0 to %u", count,
                       count - 1);
    else if (ampd_auth_peers_check(&arguments->auth, server->peers, &error) != 0)
        (void)snprintf(arguments->wrong, size, "%s", error.text);
    server->shards = server->peers != NULL ? count : 1;
}

static void check_arguments(struct arguments *arguments)
{
    struct ampd_server_options *server = &arguments->server;
    struct amp_error error = {0};
    if (arguments->wrong[0] != 0)
        return;
    if (server->data_dir == NULL)
        (void)snprintf(arguments->wrong, sizeof arguments->wrong, "--data-dir is missing; name a directory");
    else if (!has_port(server->listen))
        (void)snprintf(arguments->wrong, sizeof arguments->wrong,
                       "--listen %.100s: give HOST:PORT with a port of 0 to 65535", server->listen);
    else if (ampd_auth_options_check(&arguments->auth, server->listen, &error) != 0)
        (void)snprintf(arguments->wrong, sizeof arguments->wrong, "%s", error.text);
    else
        check_cluster(arguments);
}

/* One line on stderr and exit code 2 for whatever is wrong. */
static int usage_error(const char *text)
{
    (void)fprintf(stderr, "ampd: %s (see ampd --help)\n", text);
    return AMPD_EXIT_USAGE;
}

/* Options of all groups are a few thousand bytes. */
#define USAGE_MAX ((size_t)1 << 16)

/* What the manual page or bash's completion is made of. */
static int print_usage_as(const char *form)
{
    struct amp_buf out;
    amp_buf_init(&out, USAGE_MAX);
    bool bash = strcmp(form, "bash") == 0;
    int rc = bash ? amp_usage_bash_begin(&out, "ampd") : amp_usage_man_options(&out, options_table);
    if (rc == 0 && bash)
        rc = amp_usage_bash_verb(&out, "", options_table);
    if (rc == 0 && bash)
        rc = amp_usage_bash_end(&out, "ampd", "");
    if (rc == 0 && (fwrite(out.data, 1, out.size, stdout) != out.size || fflush(stdout) != 0))
        rc = AMP_EIO;
    amp_buf_close(&out);
    return rc == 0 ? AMPD_EXIT_OK : AMPD_EXIT_FAILED;
}

static int parse(int argc, char **argv, struct arguments *arguments)
{
    static const struct argp parser = {
        .options = options_table,
        .parser = parse_option,
        .doc = "A parameter server for mixed-precision training, with one authoritative loss scale."};
    const struct argp_option *const tables[] = {options_table, NULL};
    char wrong[128];
    if (!amp_usage_options_known(argc, argv, tables, true, wrong, sizeof wrong))
        return usage_error(wrong);
    if (argp_parse(&parser, argc, argv, 0, NULL, arguments) != 0)
        return AMPD_EXIT_USAGE;
    if (arguments->usage_as != NULL)
        return AMPD_EXIT_OK;
    check_arguments(arguments);
    return arguments->wrong[0] != 0 ? usage_error(arguments->wrong) : AMPD_EXIT_OK;
}

/* ---- the process ---- */

/* One write per line, so that lines of different threads do not mix. */
static void write_line(void *arg, enum amp_log_level level, const char *line)
{
    char text[AMP_LOG_LINE_MAX + 1];
    int size = snprintf(text, sizeof text, "%s\n", line);
    if (size > 0 && write(STDERR_FILENO, text, (size_t)size) < 0)
        return; /* nobody reads the log */
}

static int64_t log_now(void *arg)
{
    return io_clock_utc_us();
}

/* A connection is a descriptor: take as many as the system lets us. */
static void raise_descriptors(const struct amp_log *log)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        amp_log(log, AMP_LOG_WARN, "server", "msg=\"cannot raise the limit of open files\"");
}

/* Nothing is acknowledged after it. */
static void end_at_once(void)
{
    _Exit(AMPD_EXIT_FAILED);
}

static unsigned processors(void)
{
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count > COMPUTE_THREADS_MAX ? COMPUTE_THREADS_MAX : (unsigned)count;
}

int main(int argc, char **argv)
{
    struct arguments arguments = {.server = {.listen = LISTEN_DEFAULT}, .level = AMP_LOG_INFO};
    struct amp_error error = {0};
    arguments.server.auth = &arguments.auth;
    arguments.server.etcd = &arguments.etcd;
    hold_signals();
    amp_memory_out_set(end_at_once);
    write_version();
    int code = parse(argc, argv, &arguments);
    if (code == AMPD_EXIT_OK && arguments.usage_as != NULL)
        code = print_usage_as(arguments.usage_as);
    if (code != AMPD_EXIT_OK || arguments.usage_as != NULL)
        return code;
    const char *isa = getenv("AMPD_ISA");
    if (amp_cpu_select(isa, &arguments.server.kernels, &error) != 0)
        return usage_error(error.text);
    if (amp_fp_env_check(&error) != 0) {
        (void)fprintf(stderr, "ampd: %s\n", error.text);
        return AMPD_EXIT_FAILED;
    }
    struct amp_log log = {.level = arguments.level, .write_cb = write_line, .now_us_cb = log_now};
    arguments.server.log = &log;
    arguments.server.isa = arguments.server.kernels->isa;
    if (arguments.server.compute_threads == 0)
        arguments.server.compute_threads = processors();
    if (arguments.server.memory_max == 0)
        arguments.server.memory_max = io_memory_limit() / 100 * MEMORY_SHARE_PERCENT;
    raise_descriptors(&log);
    (void)signal(SIGPIPE, SIG_IGN); /* a lost connection is an error of a write */
    return ampd_server_run(&arguments.server);
}
