/*
 * A bare nghttp2 client on one side, our server's link on the other: for requests that no good client sends. What is
 * compared is the answer on the wire. For unit tests.
 */
#ifndef TESTS_UNIT_RPC_RAW_H
#define TESTS_UNIT_RPC_RAW_H

#include "tests/unit/rpc_pair.h"

#include <nghttp2/nghttp2.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rpc_raw_header {
    const char *name;
    const char *value;
};

#define RPC_RAW_HEADERS_MAX 160

/* The answer to the last request, and the body of the next one. */
struct rpc_raw {
    nghttp2_session *session;
    struct rpc_side server;
    int64_t now_ms;
    const uint8_t *body;
    size_t body_size;
    size_t body_used;
    bool end_stream;
    char headers[4096]; /* of the answer, trailers too: "name: value\n" each */
    char status[8];
    char grpc_status[8];
    uint8_t data[4096]; /* the first bytes of the answer's body */
    size_t data_size;
    int ended;
    int closed;
    uint32_t reset_code;
    int resets; /* RST_STREAM frames that came */
    int goaways;
    int32_t goaway_stream; /* of the last GOAWAY */
    uint32_t goaway_code;
    char goaway_debug[64];
};

extern struct rpc_raw raw;

/* Both sides, with these rows, before the first byte. `prepare` (may be NULL) may change the server's configuration. */
void rpc_raw_open(const struct arpc_method *methods, size_t count, void (*prepare)(struct arpc_link_config *config));
/* Ends and frees both. Every call has then been told. */
void rpc_raw_close(void);

/* Gives the server bytes. */
void rpc_raw_feed(const void *data, size_t size);
/* Moves bytes until nothing happens any more, or the server's link has an error. */
void rpc_raw_run(void);
/* Moves the clock, and runs. */
void rpc_raw_pass(int64_t ms);

/*
 * Sends a request of these headers and this body (NULL: END_STREAM is on the HEADERS), and runs. Returns the stream's
 * id.
 */
int32_t rpc_raw_submit(const struct rpc_raw_header *headers, size_t count, const void *body, size_t size,
                       bool end_stream);
/*
 * A good request with one more header than it needs, or another value for one of its own; with value NULL, without it.
 */
int32_t rpc_raw_request(const char *path, const char *name, const char *value, const void *body, size_t size, bool end);

/* The index-th value that the answer has for this name, or "". Valid until the next call. */
const char *rpc_raw_value(const char *name, size_t index);

#endif
