/*
 * The entries are few (one a service), so that they are searched one by one. A watcher is a call; it gets a message
 * when the entry of its service differs from what was sent last. One that does not read is cut off when WATCH_QUEUE_MAX
 * bytes wait for it.
 */
#include "rpc/services/health.h"

#include "base/list.h"
#include "rpc/arpc_server.h"
#include "rpc/h2/call.h"

#include <pb_decode.h>
#include <pb_encode.h>

#include "grpc/health/v1/health.pb.h"

#include <stdlib.h>
#include <string.h>

#define SERVICE "grpc.health.v1.Health"

/* A request holds one name of at most 255 bytes. */
#define REQUEST_MAX 1024

/* Some hundred changes: a watcher that lets them wait is not watching. */
#define WATCH_QUEUE_MAX 4096

struct entry {
    const char *service;
    bool serving;
};

struct watcher {
    struct amp_list node;
    struct arpc_call *call;
    char service[sizeof(((grpc_health_v1_HealthCheckRequest *)0)->service)];
    int sent; /* the status that it got last; -1: none yet */
};

struct arpc_health {
    struct entry *entries;
    size_t count;
    struct amp_list watchers;
    bool draining;
};

static struct entry *find_entry(struct arpc_health *health, const char *service)
{
    for (size_t i = 0; i < health->count; i++)
        if (strcmp(health->entries[i].service, service) == 0)
            return &health->entries[i];
    return NULL;
}

int arpc_health_new(const struct arpc_method_row *rows, size_t count, struct arpc_health **out)
{
    struct arpc_health *health = calloc(1, sizeof *health);
    if (health == NULL)
        return AMP_ENOMEM;
    health->entries = calloc(count + 1, sizeof *health->entries);
    if (health->entries == NULL) {
        free(health);
        return AMP_ENOMEM;
    }
    amp_list_init(&health->watchers);
    health->entries[health->count++] = (struct entry){"", true};
    for (size_t i = 0; i < count; i++)
        if (find_entry(health, rows[i].method->service) == NULL)
            health->entries[health->count++] = (struct entry){rows[i].method->service, true};
    *out = health;
    return 0;
}

void arpc_health_free(struct arpc_health *health)
{
    if (health == NULL)
        return;
    free(health->entries);
    free(health);
}

static int entry_status(const struct entry *entry)
{
    if (entry == NULL)
        return grpc_health_v1_HealthCheckResponse_ServingStatus_SERVICE_UNKNOWN;
    return entry->serving ? grpc_health_v1_HealthCheckResponse_ServingStatus_SERVING
                          : grpc_health_v1_HealthCheckResponse_ServingStatus_NOT_SERVING;
}

static size_t encode_status(int status, uint8_t out[grpc_health_v1_HealthCheckResponse_size])
{
    grpc_health_v1_HealthCheckResponse response = grpc_health_v1_HealthCheckResponse_init_zero;
    response.status = (grpc_health_v1_HealthCheckResponse_ServingStatus)status;
    pb_ostream_t stream = pb_ostream_from_buffer(out, grpc_health_v1_HealthCheckResponse_size);
    /* It fits: the buffer has the size that the generator computed. */
    (void)pb_encode(&stream, grpc_health_v1_HealthCheckResponse_fields, &response);
    return stream.bytes_written;
}

static bool decode_request(struct arpc_call *call, const uint8_t *data, size_t size,
                           grpc_health_v1_HealthCheckRequest *request)
{
    *request = (grpc_health_v1_HealthCheckRequest)grpc_health_v1_HealthCheckRequest_init_zero;
    pb_istream_t stream = pb_istream_from_buffer(data, size);
    if (pb_decode(&stream, grpc_health_v1_HealthCheckRequest_fields, request))
        return true;
    arpc_call_finish(call, ARPC_STATUS_INVALID_ARGUMENT, "HealthCheckRequest: not a message, or service is too long",
                     NULL);
    return false;
}

static struct arpc_health *health_of(struct arpc_call *call)
{
    return call->link->config->health;
}

static void on_check(struct arpc_call *call, const uint8_t *data, size_t size)
{
    grpc_health_v1_HealthCheckRequest request;
    if (!decode_request(call, data, size, &request))
        return;
    const struct entry *entry = find_entry(health_of(call), request.service);
    if (entry == NULL) {
        arpc_call_finish(call, ARPC_STATUS_NOT_FOUND, "unknown service", NULL);
        return;
    }
    uint8_t out[grpc_health_v1_HealthCheckResponse_size];
    (void)arpc_call_reply(call, out, encode_status(entry_status(entry), out)); /* a failure fails the call */
}

static bool encode_key(pb_ostream_t *stream, const pb_field_t *field, void *const *arg)
{
    const char *key = *arg;
    return pb_encode_tag_for_field(stream, field) && pb_encode_string(stream, (const pb_byte_t *)key, strlen(key));
}

static bool encode_entries(pb_ostream_t *stream, const pb_field_t *field, void *const *arg)
{
    const struct arpc_health *health = *arg;
    for (size_t i = 0; i < health->count; i++) {
        grpc_health_v1_HealthListResponse_StatusesEntry entry =
            grpc_health_v1_HealthListResponse_StatusesEntry_init_zero;
        entry.key.funcs.encode = encode_key;
        entry.key.arg = (void *)(uintptr_t)health->entries[i].service;
        entry.has_value = true;
        entry.value.status = (grpc_health_v1_HealthCheckResponse_ServingStatus)entry_status(&health->entries[i]);
        if (!pb_encode_tag_for_field(stream, field) ||
            !pb_encode_submessage(stream, grpc_health_v1_HealthListResponse_StatusesEntry_fields, &entry))
            return false;
    }
    return true;
}

static void on_list(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)data; /* the request has no fields */
    (void)size;
    struct arpc_health *health = health_of(call);
    grpc_health_v1_HealthListResponse response = grpc_health_v1_HealthListResponse_init_zero;
    response.statuses.funcs.encode = encode_entries;
    response.statuses.arg = health;
    size_t need = 0;
    uint8_t *out = NULL;
    if (pb_get_encoded_size(&need, grpc_health_v1_HealthListResponse_fields, &response))
        out = malloc(need + 1);
    if (out == NULL) {
        arpc_call_finish(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for the answer", NULL);
        return;
    }
    pb_ostream_t stream = pb_ostream_from_buffer(out, need);
    if (pb_encode(&stream, grpc_health_v1_HealthListResponse_fields, &response))
        (void)arpc_call_reply(call, out, stream.bytes_written); /* a failure fails the call */
    else
        arpc_call_finish(call, ARPC_STATUS_INTERNAL, "the answer could not be encoded", NULL);
    free(out);
}

static void notify_watcher(struct arpc_health *health, struct watcher *watcher)
{
    int status = entry_status(find_entry(health, watcher->service));
    if (status == watcher->sent)
        return;
    uint8_t out[grpc_health_v1_HealthCheckResponse_size];
    size_t size = encode_status(status, out);
    watcher->sent = status;
    if (arpc_call_queued(watcher->call) > WATCH_QUEUE_MAX ||
        arpc_call_send(watcher->call, out, size, NULL, 0, NULL, NULL) != 0)
        arpc_call_finish(watcher->call, ARPC_STATUS_RESOURCE_EXHAUSTED, "the watcher does not read", NULL);
}

/* An open watch would make a drain last its whole grace: it ends when it has been told. */
static void end_watch(struct watcher *watcher)
{
    arpc_call_finish(watcher->call, ARPC_STATUS_UNAVAILABLE, "the server is draining", NULL);
}

static void on_watch(struct arpc_call *call, const uint8_t *data, size_t size)
{
    grpc_health_v1_HealthCheckRequest request;
    if (!decode_request(call, data, size, &request))
        return;
    struct watcher *watcher = calloc(1, sizeof *watcher);
    if (watcher == NULL) {
        arpc_call_finish(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for a watcher", NULL);
        return;
    }
    struct arpc_health *health = health_of(call);
    watcher->call = call;
    watcher->sent = -1;
    memcpy(watcher->service, request.service, sizeof watcher->service);
    amp_list_push(&health->watchers, &watcher->node);
    arpc_call_set_user(call, watcher);
    notify_watcher(health, watcher);
    if (health->draining)
        end_watch(watcher);
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)result;
    struct watcher *watcher = arpc_call_user(call);
    if (watcher == NULL)
        return;
    amp_list_remove(&watcher->node);
    free(watcher);
}

static void notify_all(struct arpc_health *health)
{
    AMP_LIST_EACH(it, safe, &health->watchers)
    {
        notify_watcher(health, AMP_CONTAINER(it, struct watcher, node));
    }
}

int arpc_health_set(struct arpc_health *health, const char *service, bool serving)
{
    struct entry *entry = find_entry(health, service);
    if (entry == NULL)
        return AMP_ENOTFOUND;
    entry->serving = serving;
    notify_all(health);
    return 0;
}

void arpc_health_drain(struct arpc_health *health)
{
    health->draining = true;
    for (size_t i = 0; i < health->count; i++)
        health->entries[i].serving = false;
    notify_all(health);
    AMP_LIST_EACH(it, safe, &health->watchers)
    {
        end_watch(AMP_CONTAINER(it, struct watcher, node));
    }
}

static const struct arpc_handler check_handler = {.message = on_check, .closed = on_closed};
static const struct arpc_handler list_handler = {.message = on_list, .closed = on_closed};
static const struct arpc_handler watch_handler = {.message = on_watch, .closed = on_closed};

const struct arpc_method arpc_health_methods[] = {
    {SERVICE, "Check", ARPC_UNARY, true, 0, REQUEST_MAX, &check_handler},
    {SERVICE, "List", ARPC_UNARY, true, 0, REQUEST_MAX, &list_handler},
    {SERVICE, "Watch", ARPC_SERVER_STREAM, true, 0, REQUEST_MAX, &watch_handler},
};
const size_t arpc_health_method_count = sizeof arpc_health_methods / sizeof *arpc_health_methods;
