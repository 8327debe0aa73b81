/*
 * What a peer may do before a server or channel treats it as hostile: every limit and deadline against the known
 * attacks on HTTP/2 and gRPC, each with its meaning or reason, in this one place.
 *
 * A rate is a token bucket: `*_burst` tokens at most, of which `*_per_s` come back in a second. Names that end in `_ms`
 * are milliseconds. 0 means that there is no limit, except for these, which need a value: streams, queued, buffered,
 * write_stall_ms, calls_factor, metadata_*, settings_entries, frame_in (16 KiB at least), outbound_acks. A `*_per_s` of
 * 0 brings nothing back. 0 of hpack_table, spare_descriptors and what is a least time or rate is just that.
 */
#ifndef ARPC_LIMITS_H
#define ARPC_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, default, reason) */
#define ARPC_LIMITS(X)                                                                                                 \
    /* connections */                                                                                                  \
    X(connections, 1024, "open at a time; C-core has no limit, but an ampd serves workers, not the public")            \
    X(connections_per_address, 1000,                                                                                   \
      "of one address (IPv6: one /64; unix: one user), which many clients may share; the rest is for others")          \
    X(unadmitted, 256, "without an admitted call yet; one more closes the oldest of the address that has most")        \
    X(unadmitted_ms, 30000, "life of such a connection: TCP, TLS and the first call take a few round trips")           \
    X(unadmitted_least_ms, 1000, "a younger one is not closed for one of its own address: so some of a crowd get in")  \
    X(unadmitted_calls, 16, "calls of such a connection, each with up to 8 KiB of metadata: some health checks")       \
    X(strikes_burst, 16, "connections of one address that were ended as abuse, before others are refused")             \
    X(strikes_per_s, 1, "in a second: so an attacker that comes back costs one connection each second")                \
    X(refused_burst, 64, "connections closed as soon as they were accepted; more wait in the kernel's queue")          \
    X(refused_per_s, 4000, "in a second: each takes 25 us, and its bytes are read, while admitted clients wait")       \
    X(spare_descriptors, 64, "of the process that connections leave free, so that storage never lacks one")            \
    X(preface_ms, 5000, "for preface and first SETTINGS: one round trip, even if some packets are lost")               \
    X(settings_ack_ms, 10000, "for the acknowledgement of our SETTINGS; a peer need not obey them before")             \
    X(headers_ms, 10000, "for one header block: it has at most 64 KiB, and any modem is faster")                       \
    X(idle_ms, 300000, "without calls; gRPC clients connect again when they need to")                                  \
    X(goodbye_ms, 1000, "for the peer to take the GOAWAY that says why, or to close after its own")                    \
    /* queued bytes, both ways */                                                                                      \
    X(queued, 64 << 20, "unsent bytes of a connection: four tensors' blocks under way (CVE-2019-9517)")                \
    X(stream_queued, 32 << 20, "unsent bytes of a stream: half of that, so that one that is not read leaves room")     \
    X(write_stall_ms, 30000, "in which the peer takes less than write_min_rate of what waits (CVE-2016-1546)")         \
    X(write_min_rate, 1024, "bytes/s; a window that is opened byte by byte is no progress (CVE-2019-9511)")            \
    X(message_window_ms, 10000, "in which a message, or the wait for a unary's first, brings too few bytes")           \
    X(message_min_rate, 1024, "bytes/s that are enough; slower than any network between workers (slowloris)")          \
    X(buffered, 64 << 20, "bytes that a connection's paused calls keep before it is slowed down: 256 pushes")          \
    /* calls */                                                                                                        \
    X(streams, 256, "open at a time on a connection: pushes of 64 workers, four each")                                 \
    X(calls_factor, 2, "calls per allowed stream: one whose `closed` is due takes memory too (CVE-2025-8671)")         \
    X(metadata_bytes, 8192, "of a decoded header block, name + value + 32 each: gRPC's default (CVE-2016-6581)")       \
    X(metadata_count, 64, "fields of a header block; each part of a cookie counts as one (CVE-2026-49975)")            \
    X(metadata_hard_factor, 4, "above this many times the two the connection ends; the rest is not decoded")           \
    X(hpack_table, 4096, "bytes of the encoder's table, whatever the peer allows: the initial size of the protocol")   \
    X(header_block, 65536, "bytes of a compressed header block, or of a GOAWAY: 8 times the decoded limit")            \
    X(continuations, 8, "frames of a header block: 8 of 16 KiB are above header_block (CVE-2024-28182)")               \
    X(settings_entries, 32, "entries of a SETTINGS frame: six are defined (CVE-2020-11080)")                           \
    X(frame_in, 1 << 20, "bytes of a received frame: the data of a block need no frame header every 16 KiB")           \
    X(unfinished, 32 << 20, "bytes of incomplete messages on admitted connections: 32 of the largest")                 \
    X(unfinished_per_address, 16 << 20, "of one address; headers of 256 pushes at once with 64 KiB of user state")     \
    X(waiting, 256 << 20, "bytes of paused calls that have moved no bulk data: the initial window of each connection") \
    X(open, 256 << 20, "bytes of calls that are open, 4 KiB and the kept metadata of each: 65,536 of them")            \
    X(unsent, 256 << 20, "bytes of answers that were copied and have not left: 256 of the largest (CVE-2019-9517)")    \
    X(inflated_burst, 16 << 20,                                                                                        \
      "bytes of an address that gzip makes beyond 16 times what came: some 50 ms of the loop")                         \
    X(inflated_per_s, 16 << 20, "in a second; gradients shrink by less, only what is made to inflate by 1000 pays")    \
    /* frames that ask for work and bring nothing */                                                                   \
    X(empty_frames, 10, "in a row, without END_STREAM or END_HEADERS (CVE-2019-9518)")                                 \
    X(frames_burst, 2000, "frames with little payload: WINDOW_UPDATE, unknown, tiny DATA. nghttp2 allows 10,000")      \
    X(frames_per_s, 330, "in a second; each HEADERS or DATA allows 2 more, each 4 KiB 1 more, in both directions")     \
    X(pings_burst, 100, "PINGs; each HEADERS or DATA of ours allows one more: clients measure (CVE-2019-9512)")        \
    X(pings_per_s, 10, "far above any keepalive")                                                                      \
    X(settings_burst, 100, "SETTINGS frames: each may change every stream's window (CVE-2019-9515)")                   \
    X(settings_per_s, 10, "clients change their windows about once a second at most")                                  \
    X(priorities_burst, 100, "PRIORITY frames; each new stream allows ten more (CVE-2019-9513)")                       \
    X(priorities_per_s, 10, "no gRPC client sends any")                                                                \
    X(resets_burst, 512, "resets of calls that are not answered yet: twice all streams (CVE-2023-44487)")              \
    X(resets_per_s, 33, "the default of nghttp2; resets after the answer are not counted (nghttp2#1984)")              \
    X(faults_burst, 100, "frames that make us reset a stream or are invalid (CVE-2025-8671)")                          \
    X(faults_per_s, 10, "a correct peer causes none")                                                                  \
    X(bad_requests_burst, 200, "requests with an unknown method, bad metadata or a message over its limit")            \
    X(bad_requests_per_s, 50, "a client of another version sends one now and then")                                    \
    X(refusals_burst, 1000, "streams above the limit before our SETTINGS are acknowledged: of a client's start")       \
    X(refusals_per_s, 33, "as resets")                                                                                 \
    X(outbound_frames, 1000, "queued frames that the peer's own frames cause, and that it does not read")              \
    X(outbound_acks, 100, "of these, answers to PING and SETTINGS")                                                    \
    /* the log */                                                                                                      \
    X(reports_burst, 10, "abuse_cb calls at once, so that an attacker does not fill the disk with the log")            \
    X(reports_per_s, 1, "in a second")

struct arpc_limits {
#define ARPC_LIMIT_FIELD(name, value, reason) int64_t name;
    ARPC_LIMITS(ARPC_LIMIT_FIELD)
#undef ARPC_LIMIT_FIELD
};

extern const struct arpc_limits arpc_limits_default;

/* Largest value that arpc_limits_set takes: no machine has more of anything, and a thousand times it fits int64_t. */
#define ARPC_LIMIT_MAX ((int64_t)1 << 40)

/* How many of `most` file descriptors, the limit of the process, connections may use. A pure function. */
uint64_t arpc_limits_descriptors(const struct arpc_limits *limits, uint64_t most);

/* Sets a limit by its name; false if there is no such limit, or the value is negative or above ARPC_LIMIT_MAX. */
bool arpc_limits_set(struct arpc_limits *limits, const char *name, int64_t value);

/*
 * Why a connection was ended or refused, or a stream ended. X(NAME, name in metrics, text for the log and for GOAWAY)
 */
#define ARPC_ABUSES(X)                                                                                                 \
    X(PINGS, "pings", "too many PING frames")                                                                          \
    X(SETTINGS, "settings", "too many SETTINGS frames")                                                                \
    X(PRIORITIES, "priorities", "too many PRIORITY frames")                                                            \
    X(FRAMES, "frames", "too many frames without payload")                                                             \
    X(EMPTY_FRAMES, "empty_frames", "too many empty frames")                                                           \
    X(CONTINUATIONS, "continuations", "a header block in too many frames")                                             \
    X(HEADER_BLOCK, "header_block", "a header block or a GOAWAY of too many bytes")                                    \
    X(METADATA, "metadata", "a header block of too many fields or bytes")                                              \
    X(BAD_REQUESTS, "bad_requests", "too many requests that cannot be served")                                         \
    X(RESETS, "resets", "too many calls reset before their answer")                                                    \
    X(FAULTS, "faults", "too many faults")                                                                             \
    X(REFUSALS, "refusals", "too many streams above the limit")                                                        \
    X(PROTOCOL, "protocol", "a violation of HTTP/2 that ends the connection")                                          \
    X(UNREAD_ANSWERS, "unread_answers", "the peer asks for answers that it does not read")                             \
    X(SLOW_PREFACE, "slow_preface", "the peer did not begin HTTP/2 in time")                                           \
    X(SLOW_HEADERS, "slow_headers", "a header block did not end in time")                                              \
    X(SLOW_MESSAGE, "slow_message", "the message comes too slowly")                                                    \
    X(STALLED, "stalled", "the peer takes no data")                                                                    \
    X(UNFINISHED, "unfinished", "an address whose unfinished messages take too much memory")                           \
    X(WAITING, "waiting", "an address whose waiting calls take too much memory")                                       \
    X(OPEN, "open", "an address whose open calls take too much memory")                                                \
    X(UNSENT, "unsent", "an address whose unsent answers take too much memory")                                        \
    X(INFLATED, "inflated", "an address whose messages inflate to too much")                                           \
    X(UNADMITTED, "unadmitted", "too many connections without an admitted call")                                       \
    X(CONNECTIONS, "connections", "too many connections in all")                                                       \
    X(ADDRESS, "address", "too many connections of one address")                                                       \
    X(STRIKES, "strikes", "an address whose connections were ended as abuse")                                          \
    X(DESCRIPTORS, "descriptors", "no descriptors left for a connection")

enum arpc_abuse {
    ARPC_ABUSE_NONE,
#define ARPC_ABUSE_ENUM(name, metric, text) ARPC_ABUSE_##name,
    ARPC_ABUSES(ARPC_ABUSE_ENUM)
#undef ARPC_ABUSE_ENUM
        ARPC_ABUSE_COUNT
};

/* "pings" and "too many PING frames"; "none" and "" of ARPC_ABUSE_NONE. Constants. */
const char *arpc_abuse_name(enum arpc_abuse cause);
const char *arpc_abuse_text(enum arpc_abuse cause);

#endif
