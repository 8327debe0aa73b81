/* Checks of what must hold between options. */
#include "server/config/options.h"

#include "server/io/cluster/cluster_address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Whether an address to listen on does not say how others reach this process: a wildcard, or a socket below the folder
 * in which it was started.
 */
static bool is_for_itself(const char *listen)
{
    static const char *const hosts[] = {"0.0.0.0:", "[::]:", "*:"};
    if (strncmp(listen, "unix:", 5) == 0)
        return listen[5] != '/';
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if (strncmp(listen, hosts[i], strlen(hosts[i])) == 0)
            return true;
    return false;
}

/* Checks the options of a cluster whose members register in etcd. */
static void check_etcd(struct ampd_arguments *arguments)
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
        (void)snprintf(arguments->wrong, size, "--shard: give which of the %u --shards this process is, 0 to %u",
                       server->shards, server->shards - 1);
    else if (lease_ms != 0 && (lease_ms < IO_CLUSTER_LEASE_MIN_MS || lease_ms > IO_CLUSTER_LEASE_MAX_MS))
        (void)snprintf(arguments->wrong, size,
                       "--cluster-lease: give a time from 2s, which an election of etcd may take, to 60s");
    else if (server->advertise != NULL && !io_cluster_address_ok(server->advertise))
        (void)snprintf(arguments->wrong, size, "--advertise %.200s: give HOST:PORT that others can connect to",
                       server->advertise);
    else if (server->advertise == NULL && is_for_itself(server->listen))
        (void)snprintf(
            arguments->wrong, size,
            "--listen %.100s with --cluster: others cannot connect to this address; add --advertise HOST:PORT",
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

/* Finds the first address of --peers to which nobody could connect. */
static bool find_bad_peer(const char *peers, char address[IO_CLUSTER_ADDRESS_MAX])
{
    for (uint32_t i = 0; io_cluster_list_address(peers, i, address); i++)
        if (!io_cluster_address_ok(address))
            return true;
    return false;
}

static void check_cluster(struct ampd_arguments *arguments)
{
    char bad[IO_CLUSTER_ADDRESS_MAX];
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
                       "--etcd-cacert, --etcd-cert, --etcd-key and --etcd-user-file need --cluster");
    else if (server->shards != 0 || server->advertise != NULL || server->times_ms[AMPD_TIME_CLUSTER_LEASE] != 0)
        (void)snprintf(arguments->wrong, size, "--shards, --advertise and --cluster-lease need --cluster");
    else if (server->peers == NULL && arguments->has_shard)
        (void)snprintf(arguments->wrong, size, "--shard needs --cluster, or --peers, the addresses of all shards");
    else if (server->peers == NULL && server->refills)
        (void)snprintf(arguments->wrong, size, "--epoch-above needs --peers or --cluster");
    else if (server->peers == NULL && server->fence_above != 0)
        (void)snprintf(arguments->wrong, size, "--fence-above needs --peers");
    else if (server->peers != NULL && count < 2)
        (void)snprintf(arguments->wrong, size, "--peers %.100s: give 2 to %d addresses with commas between them",
                       server->peers, IO_CLUSTER_SHARDS_MAX);
    else if (server->peers != NULL && find_bad_peer(server->peers, bad))
        (void)snprintf(arguments->wrong, size,
                       "--peers: %.200s: give HOST:PORT that the others can connect to, or unix:/PATH", bad);
    else if (server->peers != NULL && (!arguments->has_shard || server->shard >= count))
        (void)snprintf(arguments->wrong, size, "--shard: give which of the %u --peers this is, 0 to %u", count,
                       count - 1);
    else if (ampd_auth_peers_check(&arguments->auth, server->peers, &error) != 0)
        (void)snprintf(arguments->wrong, size, "%s", error.text);
    server->shards = server->peers != NULL ? count : 1;
}

void ampd_arguments_check(struct ampd_arguments *arguments)
{
    struct ampd_server_options *server = &arguments->server;
    struct amp_error error = {0};
    if (server->data_dir == NULL)
        (void)snprintf(arguments->wrong, sizeof arguments->wrong, "--data-dir is missing; name a directory");
    else if (ampd_auth_options_check(&arguments->auth, server->listen, &error) != 0)
        (void)snprintf(arguments->wrong, sizeof arguments->wrong, "%s", error.text);
    else if (server->times_ms[AMPD_TIME_CONNECTION_AGE_GRACE] != 0 && server->times_ms[AMPD_TIME_CONNECTION_AGE] == 0)
        (void)snprintf(arguments->wrong, sizeof arguments->wrong,
                       "--max-connection-age-grace needs --max-connection-age, after which a connection is drained");
    else
        check_cluster(arguments);
}
