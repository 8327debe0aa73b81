#include "rpc/io/admission.h"

#include "base/assert.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* Addresses without a connection that are remembered: as many as may have connections by default. */
#define IDLE_MAX 1024

struct arpc_admission_key arpc_admission_key_of_address(const struct sockaddr *address)
{
    struct arpc_admission_key key = {{0}};
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

struct arpc_admission_key arpc_admission_key_of_user(int64_t uid)
{
    /* No address begins so: multicast with an unassigned scope. */
    struct arpc_admission_key key = {{0xff, 0xff}};
    memcpy(key.bytes + 8, &uid, sizeof uid);
    return key;
}

uint32_t arpc_admission_hash(const struct arpc_admission_key *key)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a; who makes collisions needs addresses, and only fills one row */
    for (size_t i = 0; i < sizeof key->bytes; i++)
        hash = (hash ^ key->bytes[i]) * 1099511628211u;
    /* The last byte, in which neighbours differ, has reached the lowest and the highest bits alone. */
    return (uint32_t)hash;
}

static struct amp_list *row_of(struct arpc_admission *admission, const struct arpc_admission_key *key)
{
    return &admission->rows[arpc_admission_hash(key) % ARPC_ADMISSION_ROWS];
}

void arpc_admission_init(struct arpc_admission *admission, const struct arpc_limits *limits, size_t most)
{
    admission->limits = limits;
    admission->idle_count = 0;
    admission->most = most;
    admission->admitted = 0;
    arpc_budget_init(&admission->unadmitted, limits->unadmitted, 0, limits->unadmitted_least_ms);
    arpc_memory_budgets_init(&admission->memory, limits);
    amp_list_init(&admission->idle);
    for (size_t i = 0; i < ARPC_ADMISSION_ROWS; i++)
        amp_list_init(&admission->rows[i]);
}

static void forget(struct arpc_admission *admission, struct arpc_source *source)
{
    if (!amp_list_empty(&source->in_idle))
        admission->idle_count--;
    amp_list_remove(&source->in_idle);
    amp_list_remove(&source->in_row);
    free(source);
}

void arpc_admission_close(struct arpc_admission *admission)
{
    for (size_t i = 0; i < ARPC_ADMISSION_ROWS; i++) {
        AMP_LIST_EACH(it, safe, &admission->rows[i])
        {
            forget(admission, AMP_CONTAINER(it, struct arpc_source, in_row));
        }
    }
}

static struct arpc_source *find(struct arpc_admission *admission, const struct arpc_admission_key *key, int64_t now_ms)
{
    struct amp_list *row = row_of(admission, key);
    AMP_LIST_EACH(it, safe, row)
    {
        struct arpc_source *source = AMP_CONTAINER(it, struct arpc_source, in_row);
        if (memcmp(&source->key, key, sizeof *key) == 0)
            return source;
    }
    struct arpc_source *source = calloc(1, sizeof *source);
    if (source == NULL)
        return NULL;
    source->key = *key;
    arpc_bucket_init(&source->strikes, admission->limits->strikes_burst, now_ms);
    arpc_account_init(&source->unadmitted, &admission->unadmitted);
    arpc_host_init(&source->host, &admission->memory, admission->limits, now_ms);
    amp_list_init(&source->in_idle);
    amp_list_push(row, &source->in_row);
    return source;
}

/* Remembers a source without connections, if there is something to remember. */
static void rest(struct arpc_admission *admission, struct arpc_source *source, int64_t now_ms)
{
    const struct arpc_limits *limits = admission->limits;
    if (source->connections > 0)
        return;
    arpc_bucket_fill(&source->strikes, limits->strikes_burst, limits->strikes_per_s, now_ms);
    arpc_bucket_fill(&source->host.inflated, limits->inflated_burst, limits->inflated_per_s, now_ms);
    if (arpc_bucket_is_full(&source->strikes, limits->strikes_burst) &&
        arpc_bucket_is_full(&source->host.inflated, limits->inflated_burst)) {
        forget(admission, source);
        return;
    }
    if (!amp_list_empty(&source->in_idle))
        return;
    amp_list_push(&admission->idle, &source->in_idle);
    if (++admission->idle_count > IDLE_MAX)
        forget(admission, AMP_CONTAINER(admission->idle.next, struct arpc_source, in_idle));
}

/* Finds a place for an unadmitted connection: NONE, and who has to go for it, or NULL. */
static enum arpc_abuse take_place(struct arpc_admission *admission, struct arpc_admission_conn *conn, int64_t now_ms,
                                  struct arpc_admission_conn **out)
{
    const struct arpc_limits *limits = admission->limits;
    struct arpc_budget *places = &admission->unadmitted;
    if (admission->admitted >= admission->most)
        return ARPC_ABUSE_CONNECTIONS;
    places->most = (int64_t)(admission->most - admission->admitted);
    if (limits->unadmitted > 0 && limits->unadmitted < places->most)
        places->most = limits->unadmitted;
    arpc_charge_set(&conn->unadmitted, &conn->source->unadmitted, 1, now_ms);
    struct arpc_charge *excess = arpc_charge_excess(&conn->unadmitted, now_ms);
    if (excess == NULL)
        return ARPC_ABUSE_NONE;
    arpc_charge_set(excess, excess->account, 0, now_ms);
    if (excess == &conn->unadmitted)
        return ARPC_ABUSE_UNADMITTED;
    *out = AMP_CONTAINER(excess, struct arpc_admission_conn, unadmitted);
    return ARPC_ABUSE_NONE;
}

enum arpc_abuse arpc_admission_enter(struct arpc_admission *admission, const struct arpc_admission_key *key,
                                     int64_t now_ms, struct arpc_admission_conn *conn, struct arpc_admission_conn **out)
{
    const struct arpc_limits *limits = admission->limits;
    struct arpc_source *found = find(admission, key, now_ms);
    enum arpc_abuse cause = ARPC_ABUSE_NONE;
    *conn = (struct arpc_admission_conn){.source = found};
    *out = NULL;
    if (found == NULL)
        return ARPC_ABUSE_CONNECTIONS;
    arpc_bucket_fill(&found->strikes, limits->strikes_burst, limits->strikes_per_s, now_ms);
    if (limits->strikes_burst > 0 && found->strikes.level < 1000)
        cause = ARPC_ABUSE_STRIKES;
    else if (limits->connections_per_address > 0 && found->connections >= (size_t)limits->connections_per_address)
        cause = ARPC_ABUSE_ADDRESS;
    else
        cause = take_place(admission, conn, now_ms, out);
    if (cause != ARPC_ABUSE_NONE) {
        conn->source = NULL;
        rest(admission, found, now_ms);
        return cause;
    }
    if (!amp_list_empty(&found->in_idle)) {
        amp_list_remove(&found->in_idle);
        admission->idle_count--;
    }
    found->connections++;
    return ARPC_ABUSE_NONE;
}

void arpc_admission_admit(struct arpc_admission *admission, struct arpc_admission_conn *conn)
{
    if (conn->admitted)
        return;
    conn->admitted = true;
    admission->admitted++;
    arpc_charge_set(&conn->unadmitted, &conn->source->unadmitted, 0, 0);
}

void arpc_admission_strike(struct arpc_admission *admission, struct arpc_source *source, int64_t now_ms)
{
    arpc_bucket_fill(&source->strikes, admission->limits->strikes_burst, admission->limits->strikes_per_s, now_ms);
    (void)arpc_bucket_take(&source->strikes, admission->limits->strikes_burst);
}

void arpc_admission_leave(struct arpc_admission *admission, struct arpc_admission_conn *conn, int64_t now_ms)
{
    struct arpc_source *source = conn->source;
    AMP_ASSERT(source->connections > 0);
    source->connections--;
    admission->admitted -= conn->admitted;
    arpc_charge_set(&conn->unadmitted, &source->unadmitted, 0, now_ms);
    *conn = (struct arpc_admission_conn){0};
    rest(admission, source, now_ms);
}
