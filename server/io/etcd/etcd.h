/*
 * A client of etcd, version 3: several endpoints, each with a connection of its own, and calls with one answer. What is
 * kept alive on top of it: etcd_lease.h, etcd_watch.h.
 *
 * A call goes to the preferred endpoint, once, with a deadline. One that fails makes the next endpoint the preferred
 * one; whether it is made again is its caller's affair, since only he knows what a call that may have been done means.
 *
 * All functions and callbacks are on the loop's thread.
 */
#ifndef AMPD_IO_ETCD_H
#define AMPD_IO_ETCD_H

#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"

#include <stdint.h>

struct uv_loop_s;
struct arpc_call;
struct arpc_channel;
struct arpc_handler;
struct io_etcd;
struct io_etcd_access;

/* A cluster of etcd has 3 or 5 members; more are of no use. */
#define IO_ETCD_ENDPOINTS_MAX 8

/* Longest "host:port" with the final zero. */
#define IO_ETCD_ENDPOINT_MAX 256

/* Deadline of a call. An etcd that needs longer for one is as good as none: its own requests time out then, too. */
#define IO_ETCD_CALL_MS 2000

/* From a call that failed to the next try. */
#define IO_ETCD_AGAIN_MS 200

/* How often the log says that what is tried again and again does not work: each 10 s. */
#define IO_ETCD_TOLD_EVERY 50

/* Largest answer that is taken; etcd's own bound for requests is 1.5 MiB, for streams it has none. */
#define IO_ETCD_MESSAGE_MAX ((size_t)4 << 20)

/* Paths of the calls. */
#define IO_ETCD_RANGE        "/etcdserverpb.KV/Range"
#define IO_ETCD_TXN          "/etcdserverpb.KV/Txn"
#define IO_ETCD_LEASE_GRANT  "/etcdserverpb.Lease/LeaseGrant"
#define IO_ETCD_LEASE_REVOKE "/etcdserverpb.Lease/LeaseRevoke"
#define IO_ETCD_KEEP_ALIVE   "/etcdserverpb.Lease/LeaseKeepAlive"
#define IO_ETCD_WATCH        "/etcdserverpb.Watch/Watch"
#define IO_ETCD_AUTHENTICATE "/etcdserverpb.Auth/Authenticate"

/*
 * How a call ended: error->code 0 and its answer, which is valid during the callback only; or why there is none. Then
 * it may have been done all the same.
 */
typedef void (*io_etcd_done_cb)(void *arg, const struct amp_error *error, const uint8_t *answer, size_t size);

/*
 * A client of "host:port", or up to IO_ETCD_ENDPOINTS_MAX of them with commas. `access` must outlive it; NULL:
 * plaintext, as nobody. Connects when the first call is made. On success *out is the caller's (io_etcd_close).
 * AMP_EINVAL, AMP_ENOMEM, and what is wrong with the files of `access`.
 */
int io_etcd_new(struct uv_loop_s *loop, const char *endpoints, const struct io_etcd_access *access,
                const struct amp_log *log, struct io_etcd **out, struct amp_error *error);

/* Reads the files of TLS anew, for connections that begin from now on, and logs what comes of it. */
void io_etcd_reload(struct io_etcd *etcd);

/* Ends all calls (AMP_ECANCELLED), then all connections; then closed_cb, after which nothing of it is used any more. */
void io_etcd_close(struct io_etcd *etcd, void (*closed_cb)(void *arg), void *arg);

/*
 * Makes a call; `path` is a literal. 0: done_cb comes, once. Else it does not: AMP_ENOMEM, AMP_EEXHAUSTED. The request
 * is copied. Where a user is named and no token is known, the call waits for it first, for about as long as a call may
 * take.
 */
int io_etcd_call(struct io_etcd *etcd, const char *path, const struct amp_buf *request, io_etcd_done_cb done_cb,
                 void *arg);

struct uv_loop_s *io_etcd_loop(const struct io_etcd *etcd);
const struct amp_log *io_etcd_log(const struct io_etcd *etcd);
uint32_t io_etcd_count(const struct io_etcd *etcd);
uint32_t io_etcd_preferred(const struct io_etcd *etcd);
const char *io_etcd_endpoint(const struct io_etcd *etcd, uint32_t index);

/* The connection of an endpoint. Not to be kept: it may be another one after any turn of the loop. */
struct arpc_channel *io_etcd_channel(struct io_etcd *etcd, uint32_t index);

/*
 * Begins a stream to an endpoint, as arpc_channel_call does, with the token that is known. Who uses streams makes
 * calls, too, and begins a stream that has ended again: calls see to a new token. AMP_ENOMEM, and what
 * arpc_channel_call says.
 */
int io_etcd_stream(struct io_etcd *etcd, uint32_t index, const char *path, const struct arpc_handler *handler,
                   void *user, struct arpc_call **out);

/* A stream of this endpoint has failed: calls go to the next one, if this is the preferred one. */
void io_etcd_failed(struct io_etcd *etcd, uint32_t index);

/* The connection of this endpoint is as good as lost, though nobody has said so: its calls end, a new one is made. */
void io_etcd_reconnect(struct io_etcd *etcd, uint32_t index);

/*
 * Milliseconds of a monotonic clock, read now and not once a turn of the loop. It goes on while the machine is
 * suspended, as etcd's does: CLOCK_MONOTONIC would hold a lease that has ended for as long as the machine slept.
 */
int64_t io_etcd_now_ms(void);

#endif
