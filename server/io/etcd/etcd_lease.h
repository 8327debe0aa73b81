/*
 * A lease in etcd: keys that are bound to it are deleted when it ends. It is granted, and then kept alive over the
 * connections to all endpoints at once. It is lost at the latest when its time has passed since the sending of the last
 * keepalive that etcd has answered, by a monotonic clock of this process. etcd counts from the arrival of that
 * keepalive, which is later, so this process never believes in a lease that has ended. No wall clock is used.
 *
 *   NONE -> GRANTING -> LIVE -> NONE (lost or revoked)
 *           GRANTING -> NONE (revoked)
 *
 * All functions and callbacks run on the loop's thread.
 */
#ifndef AMPD_IO_ETCD_LEASE_H
#define AMPD_IO_ETCD_LEASE_H

#include "server/io/etcd/etcd.h"

#include <stdbool.h>

struct io_etcd_lease;

struct io_etcd_lease_events {
    /* The lease is LIVE. */
    void (*granted_cb)(void *arg);
    /* A lease that was LIVE is lost and NONE: what it stood for may not be claimed any more. Not after a revoke. */
    void (*lost_cb)(void *arg, const struct amp_error *why);
};

/*
 * Makes a lease of `ttl_ms`, rounded up to seconds, in NONE. `events` must outlive it. On success *out is the caller's
 * (io_etcd_lease_close). AMP_ENOMEM.
 */
int io_etcd_lease_new(struct io_etcd *etcd, int64_t ttl_ms, const struct io_etcd_lease_events *events, void *arg,
                      struct io_etcd_lease **out);

/* Requests a grant, again and again until granted_cb comes. No effect unless the state is NONE. */
void io_etcd_lease_start(struct io_etcd_lease *lease);

/* The number that etcd gave the lease; 0 unless LIVE. */
int64_t io_etcd_lease_id(const struct io_etcd_lease *lease);

/* Why the last request for a grant has failed, in a sentence; "": it has not, or none is made. */
const char *io_etcd_lease_failing(const struct io_etcd_lease *lease);

/*
 * Whether it is LIVE and its time has not passed, by a clock that is read now: the answer is right also after the
 * process was stopped for a while.
 */
bool io_etcd_lease_holds(const struct io_etcd_lease *lease);

/* Milliseconds for which the lease still holds if no further keepalive is answered; 0: it does not hold. */
int64_t io_etcd_lease_left_ms(const struct io_etcd_lease *lease);

/*
 * Ends the lease (NONE, no lost_cb) and asks etcd to revoke it, so that its keys are deleted at once. done_cb (may be
 * NULL) comes when etcd has answered or the call has failed, and at once where there is nothing to revoke or no memory.
 */
void io_etcd_lease_revoke(struct io_etcd_lease *lease, void (*done_cb)(void *arg), void *arg);

/*
 * Ends the lease without revoking it, and frees it once its handles are closed. No callback comes any more, except
 * done_cb of a revoke that is under way. The client (io_etcd_close) must be closed after it.
 */
void io_etcd_lease_close(struct io_etcd_lease *lease);

#endif
