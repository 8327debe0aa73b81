#include "rpc/io/gate.h"

#include "base/assert.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* Addresses without a connection that are remembered: as many as may have connections by default. */
#define IDLE_MAX 1024

struct arpc_gate_key arpc_gate_key_of_address(const struct sockaddr *address)
{
    struct arpc_gate_key key = {{0}};
    if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 six;
        memcpy(&six, address, sizeof six);
        /* An IPv4 address in a socket that takes both is still one host. */
        size_t size = IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) ? 16 : 8;
        memcpy(key.bytes, &six.sin6_addr, size);
    } else if (address->sa_family == AF_INET) {
        struct sockaddr_in four;
        memcpy(&four, address, sizeof four);
        key.bytes[10] = key.bytes[11] = 0xff;
        memcpy(key.bytes + 12, &four.sin_addr, 4);
    }
    return key;
}

struct arpc_gate_key arpc_gate_key_of_user(int64_t uid)
{
    /* No address begins so: multicast with an unassigned scope. */
    struct arpc_gate_key key = {{0xff, 0xff}};
    memcpy(key.bytes + 8, &uid, sizeof uid);
    return key;
}

static struct amp_list *row_of(struct arpc_gate *gate, const struct arpc_gate_key *key)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a; who makes collisions needs addresses, and only fills one row */
    for (size_t i = 0; i < sizeof key->bytes; i++)
        hash = (hash ^ key->bytes[i]) * 1099511628211u;
    return &gate->rows[(hash >> 20) % ARPC_GATE_ROWS];
}

void arpc_gate_init(struct arpc_gate *gate, const struct arpc_limits *limits)
{
    gate->limits = limits;
    gate->idle_count = 0;
    amp_list_init(&gate->idle);
    for (size_t i = 0; i < ARPC_GATE_ROWS; i++)
        amp_list_init(&gate->rows[i]);
}

static void forget(struct arpc_gate *gate, struct arpc_guest *guest)
{
    if (!amp_list_empty(&guest->in_idle))
        gate->idle_count--;
    amp_list_remove(&guest->in_idle);
    amp_list_remove(&guest->in_row);
    free(guest);
}

void arpc_gate_close(struct arpc_gate *gate)
{
    for (size_t i = 0; i < ARPC_GATE_ROWS; i++) {
        AMP_LIST_EACH(it, safe, &gate->rows[i])
        {
            forget(gate, AMP_CONTAINER(it, struct arpc_guest, in_row));
        }
    }
}

static struct arpc_guest *find(struct arpc_gate *gate, const struct arpc_gate_key *key, int64_t now_ms)
{
    struct amp_list *row = row_of(gate, key);
    AMP_LIST_EACH(it, safe, row)
    {
        struct arpc_guest *guest = AMP_CONTAINER(it, struct arpc_guest, in_row);
        if (memcmp(&guest->key, key, sizeof *key) == 0)
            return guest;
    }
    struct arpc_guest *guest = calloc(1, sizeof *guest);
    if (guest == NULL)
        return NULL;
    guest->key = *key;
    arpc_bucket_init(&guest->strikes, gate->limits->strikes_burst, now_ms);
    amp_list_init(&guest->in_idle);
    amp_list_push(row, &guest->in_row);
    return guest;
}

/* Remembers a guest without connections, if there is something to remember. */
static void rest(struct arpc_gate *gate, struct arpc_guest *guest)
{
    if (guest->connections > 0)
        return;
    if (guest->strikes.level >= gate->limits->strikes_burst * 1000) {
        forget(gate, guest);
        return;
    }
    if (!amp_list_empty(&guest->in_idle))
        return;
    amp_list_push(&gate->idle, &guest->in_idle);
    if (++gate->idle_count > IDLE_MAX)
        forget(gate, AMP_CONTAINER(gate->idle.next, struct arpc_guest, in_idle));
}

enum arpc_abuse arpc_gate_enter(struct arpc_gate *gate, const struct arpc_gate_key *key, int64_t now_ms,
                                struct arpc_guest **guest)
{
    const struct arpc_limits *limits = gate->limits;
    struct arpc_guest *found = find(gate, key, now_ms);
    enum arpc_abuse cause = ARPC_ABUSE_NONE;
    if (found == NULL)
        return ARPC_ABUSE_CONNECTIONS;
    arpc_bucket_fill(&found->strikes, limits->strikes_burst, limits->strikes_per_s, now_ms);
    if (limits->strikes_burst > 0 && found->strikes.level < 1000)
        cause = ARPC_ABUSE_STRIKES;
    else if (limits->connections_per_address > 0 && found->connections >= (size_t)limits->connections_per_address)
        cause = ARPC_ABUSE_ADDRESS;
    if (cause != ARPC_ABUSE_NONE) {
        rest(gate, found);
        return cause;
    }
    if (!amp_list_empty(&found->in_idle)) {
        amp_list_remove(&found->in_idle);
        gate->idle_count--;
    }
    found->connections++;
    *guest = found;
    return ARPC_ABUSE_NONE;
}

void arpc_gate_strike(struct arpc_gate *gate, struct arpc_guest *guest, int64_t now_ms)
{
    arpc_bucket_fill(&guest->strikes, gate->limits->strikes_burst, gate->limits->strikes_per_s, now_ms);
    (void)arpc_bucket_take(&guest->strikes, gate->limits->strikes_burst);
}

void arpc_gate_leave(struct arpc_gate *gate, struct arpc_guest *guest, int64_t now_ms)
{
    AMP_ASSERT(guest->connections > 0);
    guest->connections--;
    arpc_bucket_fill(&guest->strikes, gate->limits->strikes_burst, gate->limits->strikes_per_s, now_ms);
    rest(gate, guest);
}
