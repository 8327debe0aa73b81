/*
 * A server of echo_service.h and a channel to it on one loop, and what a client saw of a call. For tests of channels.
 */
#ifndef TESTS_CONFORMANCE_CHANNEL_FIXTURE_H
#define TESTS_CONFORMANCE_CHANNEL_FIXTURE_H

#include "rpc/arpc_client.h"
#include "tests/conformance/echo_service.h"

#define MIB          ((size_t)1 << 20)
#define GUARD_MS     120000 /* a test that hangs ends here */
#define PATH(method) "/ampd.test.v1.Echo/" method

struct fixture;

/* What a client saw of one call. */
struct seen {
    struct fixture *fixture; /* for those that close it */
    struct arpc_call *call;
    int started;
    uint64_t messages;
    uint64_t bytes;
    uint32_t crc;
    uint8_t last[64];
    size_t last_size;
    int closed;
    int status;
    char message[256];
    char reason[32];
    char pair[32];
    int64_t retry_ms;
    bool from_peer;
    uint64_t pause_at; /* pauses when this many messages have come */
};

struct fixture {
    uv_loop_t loop;
    uv_timer_t guard;
    struct echo_state state;
    struct arpc_server *server;
    struct arpc_channel *channel;
    int port;
    char target[160];
    int states[16];
    size_t state_count;
    int released;
    bool server_closed;
    bool channel_closed;
};

/* Counts into a struct seen, which is the user pointer of its calls. */
extern const struct arpc_handler channel_client;

/* Runs the loop until the flag is set. */
void channel_run_until(struct fixture *fixture, const int *flag);
void channel_run_until_bool(struct fixture *fixture, const bool *flag);
void channel_set_flag(void *arg);

/* A server at the address, and its port. */
void channel_start_server(struct fixture *fixture, const char *address);
void channel_stop_server(struct fixture *fixture);

/* A channel to the target, with a short backoff. */
void channel_start_channel(struct fixture *fixture, const char *target);
void channel_stop_channel(struct fixture *fixture);

/* A loop with its guard, without server and channel; with both; and the end of each. */
int channel_setup_bare(void **state);
int channel_setup(void **state);
int channel_teardown(void **state);

/* Notes the result. */
void channel_on_closed(struct arpc_call *call, const struct arpc_result *result);

/* Calls: bare, with a request and the end of it, and one that the server lets wait. */
void channel_call(struct fixture *fixture, const char *path, const struct arpc_call_options *options,
                  struct seen *seen);
void channel_call_with(struct fixture *fixture, const char *path, const struct arpc_call_options *options,
                       struct seen *seen, const void *request, size_t size);
void channel_sleep_call(struct fixture *fixture, const struct arpc_call_options *options, struct seen *seen);

/* Runs until the server has `count` calls open. */
void channel_wait_open(struct fixture *fixture, uint64_t count);

/* A pull of messages of one size; and a release callback that counts. */
void channel_repeat_call(struct fixture *fixture, const struct arpc_call_options *options, struct seen *seen,
                         uint64_t messages, uint64_t size);
void channel_count_release(void *arg);

#endif
