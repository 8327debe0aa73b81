/*
 * A lease in etcd: keys that are bound to it go away with it. It is granted, kept alive over the connections to all
 * endpoints at once, and lost at the latest when its time has passed since the last keepalive that etcd answered was
 * SENT, by a monotonic clock of this process: etcd counts from when it came, which is later. No wall clock is asked.
 *
 *   NONE -> GRANTING -> LIVE -> NONE (lost; or ended)
 */
#ifndef AMPD_IO_ETCD_LEASE_H
#define AMPD_IO_ETCD_LEASE_H

#include "server/io/etcd/etcd.h"

#include <stdbool.h>

struct io_etcd_lease;

struct io_etcd_lease_events {
    void (*granted_cb)(void *arg);
    /* From LIVE alone, once; nothing that the lease stood for may be claimed any more. */
    void (*lost_cb)(void *arg, const struct amp_error *why);
};

/*
 * A lease of `ttl_ms`, rounded up to seconds; nothing is asked for yet. `events` must outlive it. On success *out is
 * the caller's (io_etcd_lease_close). AMP_ENOMEM.
 */
int io_etcd_lease_new(struct io_etcd *etcd, int64_t ttl_ms, const struct io_etcd_lease_events *events, void *arg,
                      struct io_etcd_lease **out);

/* Asks for a lease until there is one, if it is NONE. */
void io_etcd_lease_start(struct io_etcd_lease *lease);

/* etcd's number of it; 0 unless LIVE. */
int64_t io_etcd_lease_id(const struct io_etcd_lease *lease);

/*
 * Whether it is LIVE and its time has not passed, by a clock that is read now: also when the process was stopped
 * meanwhile.
 */
bool io_etcd_lease_holds(const struct io_etcd_lease *lease);

/* Milliseconds that it holds still, if no keepalive is answered any more; 0: it does not. */
int64_t io_etcd_lease_left_ms(const struct io_etcd_lease *lease);

/* Ends it and tells etcd, so that its keys go at once; done_cb (may be NULL) when that is answered, or has failed. */
void io_etcd_lease_revoke(struct io_etcd_lease *lease, void (*done_cb)(void *arg), void *arg);

/* Frees it, once its handles are closed. The etcd must be closed after it; no callback comes any more. */
void io_etcd_lease_close(struct io_etcd_lease *lease);

#endif
