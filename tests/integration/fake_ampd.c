/* The fake's thread, its faults, and what tests ask of it. */
#include "base/assert.h"
#include "base/thread.h"
#include "tests/integration/fake_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVICE "ampd.v1.ParameterService"
#define ADMIN   "ampd.v1.AdminService"

struct fake *fake_of(struct arpc_call *call)
{
    return arpc_call_server_arg(call);
}

/* ---- faults ---- */

static void want_cut(struct fake *fake)
{
    (void)pthread_mutex_lock(&fake->mutex);
    fake->cut_wanted = true;
    (void)pthread_mutex_unlock(&fake->mutex);
    (void)uv_async_send(&fake->async);
}

void fake_die(struct fake *fake)
{
    fake->dead = true;
    want_cut(fake);
}

/* Counts a fault's number down; true when it comes to 0 now. */
bool fake_comes(struct fake *fake, uint32_t *left)
{
    (void)pthread_mutex_lock(&fake->mutex);
    bool now = *left > 0 && --*left == 0;
    (void)pthread_mutex_unlock(&fake->mutex);
    return now;
}

bool fake_take(struct fake *fake, bool *flag)
{
    (void)pthread_mutex_lock(&fake->mutex);
    bool was = *flag;
    *flag = false;
    (void)pthread_mutex_unlock(&fake->mutex);
    return was;
}

void fake_count(struct fake *fake, uint32_t *counter)
{
    (void)pthread_mutex_lock(&fake->mutex);
    ++*counter;
    (void)pthread_mutex_unlock(&fake->mutex);
}

void fake_stand(struct fake *fake)
{
    bool stands = fake_comes(fake, &fake->faults.stand_after);
    (void)pthread_mutex_lock(&fake->mutex);
    fake->stands = stands && !fake->stopping;
    while (fake->stands)
        (void)pthread_cond_wait(&fake->goes_on, &fake->mutex);
    (void)pthread_mutex_unlock(&fake->mutex);
}

void fake_go_on(struct fake *fake)
{
    (void)pthread_mutex_lock(&fake->mutex);
    fake->stands = false;
    (void)pthread_cond_broadcast(&fake->goes_on);
    (void)pthread_mutex_unlock(&fake->mutex);
}

static int admit(struct arpc_call *call, void *arg, struct amp_error *error)
{
    struct fake *fake = arg;
    (void)pthread_mutex_lock(&fake->mutex);
    bool refuse = fake->faults.unavailable > 0 && strcmp(arpc_call_method(call)->service, ADMIN) != 0;
    if (refuse)
        fake->faults.unavailable--;
    (void)pthread_mutex_unlock(&fake->mutex);
    return refuse ? amp_error_set(error, AMP_EUNAVAILABLE, "DRAINING", "not now") : 0;
}

/* ---- the server ---- */

static const struct arpc_method methods[] = {
    {SERVICE, "CreateModel", ARPC_UNARY, true, 0, 1 << 20, &fake_create},
    {ADMIN, "GetStatus", ARPC_UNARY, true, 0, 1 << 20, &fake_status},
    {ADMIN, "Drain", ARPC_UNARY, false, 0, 1 << 16, &fake_drain},
    {SERVICE, "GetModel", ARPC_UNARY, true, 0, 1 << 20, &fake_get},
    {SERVICE, "Join", ARPC_UNARY, true, 0, 1 << 20, &fake_join},
    {SERVICE, "KeepAlive", ARPC_UNARY, true, 0, 1 << 16, &fake_keep_alive},
    {SERVICE, "Leave", ARPC_UNARY, true, 0, 1 << 16, &fake_leave},
    {SERVICE, "GetPushState", ARPC_UNARY, true, 0, 1 << 16, &fake_push_state},
    {SERVICE, "AttachMemory", ARPC_SERVER_STREAM, true, 0, 1 << 16, &fake_attach},
    {SERVICE, "Pull", ARPC_SERVER_STREAM, true, 0, 1 << 16, &fake_pull},
    {SERVICE, "Load", ARPC_CLIENT_STREAM, true, 0, 1 << 20, &fake_stream},
    {SERVICE, "Push", ARPC_CLIENT_STREAM, true, 0, 1 << 20, &fake_stream},
};

static bool start_server(struct fake *fake)
{
    const struct arpc_server_options options = {.size = sizeof options, .arg = fake, .admit_cb = admit};
    struct amp_error error = {0};
    int port;
    if (arpc_server_new(&fake->loop, &options, methods, sizeof methods / sizeof *methods, &fake->server, &error) != 0 ||
        arpc_server_listen(fake->server, fake->endpoint, &port, &error) != 0) {
        (void)fprintf(stderr, "fake ampd: %s\n", error.text);
        return false;
    }
    if (fake->port == 0) {
        /* Before the thread starts; from then on the text is constant, and others read it. */
        fake->port = port;
        (void)snprintf(fake->endpoint, sizeof fake->endpoint, "127.0.0.1:%d", port);
    }
    return true;
}

static void on_relisten(uv_timer_t *timer)
{
    AMP_ASSERT(start_server(timer->data));
}

static void close_handles(struct fake *fake)
{
    uv_close((uv_handle_t *)&fake->relisten, NULL);
    uv_close((uv_handle_t *)&fake->verdict, NULL);
    uv_close((uv_handle_t *)&fake->async, NULL);
}

/* All is cut, as by kill -9; it starts again with or without what it had in memory. */
static void on_cut(void *arg)
{
    struct fake *fake = arg;
    (void)pthread_mutex_lock(&fake->mutex);
    fake->server = NULL;
    fake->cutting = fake->dead = false;
    fake->counts.cuts++;
    bool stopping = fake->stopping;
    if (fake->faults.roll_back) {
        fake->faults.roll_back = false;
        fake->epoch++;
        fake->step = 1;
        fake->version = fake->applied = 0;
        fake->complete = false;
        memset(fake->present, 0, sizeof fake->present);
        memset(&fake->last, 0, sizeof fake->last);
        memcpy(fake->values, fake->initial, fake->elements * sizeof(float));
    }
    uint64_t down_ms = fake->faults.down_ms;
    (void)pthread_mutex_unlock(&fake->mutex);
    if (stopping)
        close_handles(fake);
    else
        (void)uv_timer_start(&fake->relisten, on_relisten, down_ms, 0);
}

static void on_async(uv_async_t *async)
{
    struct fake *fake = async->data;
    (void)pthread_mutex_lock(&fake->mutex);
    bool stopping = fake->stopping, close_now = (fake->cut_wanted || stopping) && fake->server != NULL;
    bool under_way = fake->cutting; /* on_cut sees to the rest */
    fake->cut_wanted = false;
    fake->cutting = fake->cutting || close_now;
    (void)pthread_mutex_unlock(&fake->mutex);
    if (under_way)
        return;
    if (close_now)
        arpc_server_close(fake->server, on_cut, fake);
    else if (stopping)
        close_handles(fake);
}

static void *fake_main(void *arg)
{
    struct fake *fake = arg;
    (void)uv_run(&fake->loop, UV_RUN_DEFAULT);
    return NULL;
}

/* A port that is free now. */
static int free_port(uv_loop_t *loop)
{
    uv_tcp_t socket;
    struct sockaddr_in address;
    int size = sizeof address;
    AMP_ASSERT(uv_ip4_addr("127.0.0.1", 0, &address) == 0 && uv_tcp_init(loop, &socket) == 0 &&
               uv_tcp_bind(&socket, (const struct sockaddr *)&address, 0) == 0 &&
               uv_tcp_getsockname(&socket, (struct sockaddr *)&address, &size) == 0);
    uv_close((uv_handle_t *)&socket, NULL);
    (void)uv_run(loop, UV_RUN_DEFAULT);
    return (address.sin_port >> 8 | address.sin_port << 8) &
           0xffff; /* network order; little-endian only, as the wire */
}

struct fake *fake_new_later(uint64_t after_ms)
{
    struct fake *fake = calloc(1, sizeof *fake);
    AMP_ASSERT(fake != NULL && pthread_mutex_init(&fake->mutex, NULL) == 0 && uv_loop_init(&fake->loop) == 0);
    AMP_ASSERT(pthread_cond_init(&fake->goes_on, NULL) == 0);
    fake->epoch = fake->step = fake->scale_id = 1;
    fake->port = after_ms > 0 ? free_port(&fake->loop) : 0;
    (void)snprintf(fake->endpoint, sizeof fake->endpoint, "127.0.0.1:%d", fake->port);
    AMP_ASSERT(uv_async_init(&fake->loop, &fake->async, on_async) == 0);
    AMP_ASSERT(uv_timer_init(&fake->loop, &fake->relisten) == 0 && uv_timer_init(&fake->loop, &fake->verdict) == 0);
    fake->async.data = fake->relisten.data = fake->verdict.data = fake;
    if (after_ms > 0)
        (void)uv_timer_start(&fake->relisten, on_relisten, after_ms, 0);
    else if (!start_server(fake))
        return NULL;
    AMP_ASSERT(amp_thread_start(&fake->thread, NULL, fake_main, fake) == 0); /* no SIGPIPE comes to it */
    return fake;
}

struct fake *fake_new(void)
{
    return fake_new_later(0);
}

void fake_free(struct fake *fake)
{
    (void)pthread_mutex_lock(&fake->mutex);
    fake->stopping = true;
    (void)pthread_mutex_unlock(&fake->mutex);
    fake_go_on(fake);
    (void)uv_async_send(&fake->async);
    (void)pthread_join(fake->thread, NULL);
    AMP_ASSERT(uv_loop_close(&fake->loop) == 0);
    ampd_msg_model_spec_free(&fake->spec);
    free(fake->values);
    free(fake->initial);
    free(fake->staged);
    (void)pthread_cond_destroy(&fake->goes_on);
    (void)pthread_mutex_destroy(&fake->mutex);
    free(fake);
}

const char *fake_endpoint(const struct fake *fake)
{
    return fake->endpoint;
}

void fake_set(struct fake *fake, const struct fake_faults *faults)
{
    (void)pthread_mutex_lock(&fake->mutex);
    fake->faults = *faults;
    (void)pthread_mutex_unlock(&fake->mutex);
}

struct fake_counts fake_counts(struct fake *fake)
{
    (void)pthread_mutex_lock(&fake->mutex);
    struct fake_counts counts = fake->counts;
    (void)pthread_mutex_unlock(&fake->mutex);
    return counts;
}

void fake_cut(struct fake *fake)
{
    want_cut(fake);
}

float fake_value(struct fake *fake, uint64_t flat_index)
{
    (void)pthread_mutex_lock(&fake->mutex);
    float value = fake->values[flat_index];
    (void)pthread_mutex_unlock(&fake->mutex);
    return value;
}

size_t fake_user_state(struct fake *fake, void *data, size_t room)
{
    (void)pthread_mutex_lock(&fake->mutex);
    size_t size = fake->user_state_size;
    if (size <= room && size > 0)
        memcpy(data, fake->user_state, size);
    (void)pthread_mutex_unlock(&fake->mutex);
    return size;
}
