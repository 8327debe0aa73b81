/*
 * A client of etcd, version 3: several endpoints, each with a connection of its own, and calls with one answer. On top
 * of it etcd_lease.h keeps a lease alive, and etcd_watch.h follows keys.
 *
 * A call is sent once, to the preferred endpoint, with a deadline. If it fails, the next endpoint becomes the preferred
 * one. The call is not repeated here: only its caller knows whether that is safe, since a call without an answer may
 * have been carried out.
 *
 * All functions and callbacks run on the loop's thread.
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

/* Most endpoints. A cluster of etcd has 3 or 5 members; more make it no safer. */
#define IO_ETCD_ENDPOINTS_MAX 8

/* Longest "host:port" of an endpoint, with the final zero. */
#define IO_ETCD_ENDPOINT_MAX 256

/* Deadline of a call. An etcd that needs longer is unusable anyway: its own requests between members time out, too. */
#define IO_ETCD_CALL_MS 2000

/* Pause after a call that failed, before its caller tries again. */
#define IO_ETCD_AGAIN_MS 200

/* A call that is tried again and again is logged once in this many failures, which is every 10 s. */
#define IO_ETCD_LOG_EVERY 50

/* Largest message that is accepted. etcd's own bound is 1.5 MiB for requests; it has none for streams. */
#define IO_ETCD_MESSAGE_MAX ((size_t)4 << 20)

/* gRPC paths of the calls. */
#define IO_ETCD_RANGE        "/etcdserverpb.KV/Range"
#define IO_ETCD_TXN          "/etcdserverpb.KV/Txn"
#define IO_ETCD_LEASE_GRANT  "/etcdserverpb.Lease/LeaseGrant"
#define IO_ETCD_LEASE_REVOKE "/etcdserverpb.Lease/LeaseRevoke"
#define IO_ETCD_KEEP_ALIVE   "/etcdserverpb.Lease/LeaseKeepAlive"
#define IO_ETCD_WATCH        "/etcdserverpb.Watch/Watch"
#define IO_ETCD_AUTHENTICATE "/etcdserverpb.Auth/Authenticate"

/*
 * How a call ended: error->code 0 and the answer, which is valid during the callback only; or an error, after which it
 * is not known whether etcd has carried the call out.
 */
typedef void (*io_etcd_done_cb)(void *arg, const struct amp_error *error, const uint8_t *answer, size_t size);

/*
 * Makes a client of "host:port", or of up to IO_ETCD_ENDPOINTS_MAX of them with commas between. `access` must outlive
 * it; NULL: plaintext, without a user. It connects when the first call is made. On success *out is the caller's
 * (io_etcd_close). AMP_EINVAL, AMP_ENOMEM, and codes that say what is wrong with the files of `access`.
 */
int io_etcd_new(struct uv_loop_s *loop, const char *endpoints, const struct io_etcd_access *access,
                const struct amp_log *log, struct io_etcd **out, struct amp_error *error);

/* Reads the certificate files again, for connections that begin from now on, and logs the result. */
void io_etcd_reload(struct io_etcd *etcd);

/*
 * Ends all calls (AMP_ECANCELLED) and connections, and frees the client; to be called once. closed_cb (may be NULL)
 * comes from the loop when that is done. Leases and watches must be closed before.
 */
void io_etcd_close(struct io_etcd *etcd, void (*closed_cb)(void *arg), void *arg);

/*
 * Makes a call; `path` is a string literal, and the request is copied. 0: done_cb comes once, from the loop.
 * AMP_ENOMEM, AMP_EEXHAUSTED: done_cb does not come. Where a user is configured and there is no token, the call first
 * waits for one, which takes about as long as a call may take.
 */
int io_etcd_call(struct io_etcd *etcd, const char *path, const struct amp_buf *request, io_etcd_done_cb done_cb,
                 void *arg);

/* Its loop and log, the number of its endpoints, and the index of the preferred one. */
struct uv_loop_s *io_etcd_loop(const struct io_etcd *etcd);
const struct amp_log *io_etcd_log(const struct io_etcd *etcd);
uint32_t io_etcd_count(const struct io_etcd *etcd);
uint32_t io_etcd_preferred(const struct io_etcd *etcd);

/*
 * The connection to an endpoint, which is made if there is none. NULL: no memory for it, or the client is closing. Not
 * to be kept: it may be replaced in any turn of the loop.
 */
struct arpc_channel *io_etcd_channel(struct io_etcd *etcd, uint32_t index);

/*
 * Begins a stream to an endpoint, as arpc_channel_call does, with the present token if there is one. A stream does not
 * ask for a new token when it is refused: the calls that its user makes beside it do that, before the user begins the
 * stream again. AMP_ENOMEM, and the codes of arpc_channel_call.
 */
int io_etcd_stream(struct io_etcd *etcd, uint32_t index, const char *path, const struct arpc_handler *handler,
                   void *user, struct arpc_call **out);

/* To be called when a stream of this endpoint has failed: if it is the preferred one, calls go to the next one. */
void io_etcd_failed(struct io_etcd *etcd, uint32_t index);

/*
 * Drops the connection of this endpoint, which seems to be lost without an error: its calls end, and the next call
 * makes a new connection.
 */
void io_etcd_reconnect(struct io_etcd *etcd, uint32_t index);

/*
 * Milliseconds of a monotonic clock (CLOCK_BOOTTIME), read at the call and not once a turn of the loop. It goes on
 * while the machine is suspended, as etcd's clock does; by CLOCK_MONOTONIC a lease would seem to hold after it has
 * ended, for as long as the machine slept.
 */
int64_t io_etcd_now_ms(void);

#endif
