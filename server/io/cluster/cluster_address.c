#include "server/io/cluster/cluster_address.h"

#include "server/io/etcd/etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Beginnings of --cluster where etcd is called in plaintext, and with TLS. */
#define SCHEME     "etcd://"
#define SCHEME_TLS "etcds://"

bool io_cluster_list_address(const char *list, uint32_t index, char address[IO_CLUSTER_ADDRESS_MAX])
{
    for (; index > 0; index--) {
        list = strchr(list, ',');
        if (list == NULL)
            return false;
        list++;
    }
    size_t size = strcspn(list, ",");
    if (size == 0 || size >= IO_CLUSTER_ADDRESS_MAX)
        return false;
    memcpy(address, list, size);
    address[size] = 0;
    return true;
}

uint32_t io_cluster_list_count(const char *list)
{
    char address[IO_CLUSTER_ADDRESS_MAX];
    uint32_t count = 1;
    for (const char *comma = list; (comma = strchr(comma, ',')) != NULL; comma++)
        count++;
    for (uint32_t i = 0; i < count && i < IO_CLUSTER_SHARDS_MAX; i++)
        if (!io_cluster_list_address(list, i, address))
            return 0;
    return count <= IO_CLUSTER_SHARDS_MAX ? count : 0;
}

/* "HOST:PORT" with a host, and a port of 1 to 65535. */
static bool is_host_port(const char *text)
{
    const char *colon = strrchr(text, ':');
    size_t digits = colon != NULL ? strspn(colon + 1, "0123456789") : 0;
    if (colon == NULL || colon == text || digits == 0 || digits > 5 || colon[1 + digits] != 0)
        return false;
    long port = strtol(colon + 1, NULL, 10);
    return port >= 1 && port <= 65535 && strpbrk(text, " /\t\",") == NULL;
}

bool io_cluster_address_ok(const char *address)
{
    static const char *const everywhere[] = {"0.0.0.0:", "[::]:", "*:"};
    if (strlen(address) >= IO_CLUSTER_ADDRESS_MAX)
        return false;
    if (strncmp(address, "unix:", 5) == 0)
        return address[5] == '/' && strpbrk(address, " \t\",") == NULL;
    for (size_t i = 0; i < sizeof everywhere / sizeof *everywhere; i++)
        if (strncmp(address, everywhere[i], strlen(everywhere[i])) == 0)
            return false;
    return is_host_port(address);
}

static bool is_name(const char *text)
{
    static const char may[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t size = strlen(text);
    return size > 0 && size < IO_CLUSTER_NAME_MAX && strspn(text, may) == size && strchr("._-", text[0]) == NULL;
}

int io_cluster_url_parse(const char *text, struct io_cluster_url *url, struct amp_error *error)
{
    char address[IO_CLUSTER_ADDRESS_MAX];
    url->tls = strncmp(text, SCHEME_TLS, strlen(SCHEME_TLS)) == 0;
    const char *list = text + strlen(url->tls ? SCHEME_TLS : SCHEME);
    if (!url->tls && strncmp(text, SCHEME, strlen(SCHEME)) != 0)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "%.200s: give etcd://HOST:PORT,.../NAME, or etcds:// where etcd speaks TLS", text);
    const char *slash = strchr(list, '/');
    if (slash == NULL || !is_name(slash + 1))
        return amp_error_set(
            error, AMP_EINVAL, NULL,
            "%.200s: give a name for the cluster behind the addresses, as in etcd://HOST:PORT/NAME: up to %d "
            "letters, digits, '.', '_' and '-', and first a letter or digit",
            text, IO_CLUSTER_NAME_MAX - 1);
    size_t size = (size_t)(slash - list);
    if (size >= sizeof url->endpoints)
        return amp_error_set(error, AMP_EINVAL, NULL, "%.200s: too many addresses", text);
    memcpy(url->endpoints, list, size);
    url->endpoints[size] = 0;
    (void)snprintf(url->name, sizeof url->name, "%s", slash + 1);
    uint32_t count = size > 0 ? io_cluster_list_count(url->endpoints) : 0;
    for (uint32_t i = 0; i < count; i++) {
        (void)io_cluster_list_address(url->endpoints, i, address);
        if (!is_host_port(address))
            count = 0;
    }
    if (count == 0 || count > IO_ETCD_ENDPOINTS_MAX)
        return amp_error_set(
            error, AMP_EINVAL, NULL,
            "%.200s: give the addresses of etcd's members as HOST:PORT with commas between them, at most %d", text,
            IO_ETCD_ENDPOINTS_MAX);
    return 0;
}
