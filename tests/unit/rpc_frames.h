/* HTTP/2 frames by hand: what a scripted server says, and what a client said to it. For tests; no I/O. */
#ifndef TESTS_UNIT_RPC_FRAMES_H
#define TESTS_UNIT_RPC_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nghttp2_hd_inflater;

/* Frame types and flags of RFC 9113, and error codes. */
enum { FRAME_DATA = 0, FRAME_HEADERS = 1, FRAME_RST = 3, FRAME_SETTINGS = 4, FRAME_PING = 6, FRAME_GOAWAY = 7 };
enum { FLAG_ACK = 1, FLAG_END_STREAM = 1, FLAG_END_HEADERS = 4 };
enum { H2_NO_ERROR = 0, H2_INTERNAL = 2, H2_REFUSED = 7, H2_CANCEL_CODE = 8, H2_CALM = 11, H2_INADEQUATE = 12 };

#define FRAMES_OUT_MAX  8192
#define FRAMES_REQUESTS 64

/* Bytes to be said. */
struct frames_out {
    uint8_t bytes[FRAMES_OUT_MAX];
    size_t size;
};

void frames_settings(struct frames_out *out);
void frames_settings_ack(struct frames_out *out);
void frames_ping_ack(struct frames_out *out, const uint8_t opaque[8]);
void frames_goaway(struct frames_out *out, uint32_t last_id, uint32_t code, const char *debug);
void frames_rst(struct frames_out *out, uint32_t stream, uint32_t code);
void frames_data(struct frames_out *out, uint32_t stream, bool end, const void *data, size_t size);
/* A header block of name, value pairs, ended by NULL. */
void frames_headers(struct frames_out *out, uint32_t stream, bool end, const char *const *pairs);
/* Blocks that gRPC uses: a response's head; trailers; a Trailers-Only answer. `pushback` may be NULL. */
void frames_head(struct frames_out *out, uint32_t stream);
void frames_trailers(struct frames_out *out, uint32_t stream, const char *status);
void frames_trailers_only(struct frames_out *out, uint32_t stream, const char *status, const char *pushback);
/* A whole answer: head, one message, OK. */
void frames_answer(struct frames_out *out, uint32_t stream, const char *message);

/* One request as it was heard. */
struct frames_request {
    uint32_t stream;
    char path[64];
    char previous_attempts[8]; /* "" if there was no such field */
    char timeout[12];
    uint8_t data[256]; /* the first of its DATA */
    size_t size;       /* of all its DATA */
    bool ended;
    bool reset;
    uint32_t reset_code;
};

/* What was heard on one connection. */
struct frames_in {
    struct nghttp2_hd_inflater *inflater;
    uint8_t bytes[1 << 20]; /* an unfinished frame */
    size_t size;
    bool preface;
    struct frames_request requests[FRAMES_REQUESTS];
    size_t request_count;
    size_t pings; /* without those that are answers */
    uint8_t last_ping[8];
    size_t goaways;
};

void frames_in_open(struct frames_in *in);
void frames_in_close(struct frames_in *in);
/* Takes what the client sent. */
void frames_hear(struct frames_in *in, const uint8_t *data, size_t size);
/* The request of a stream. */
struct frames_request *frames_request_of(struct frames_in *in, uint32_t stream);

#endif
