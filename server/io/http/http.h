/*
 * The HTTP/1.1 port for monitoring: /metrics, /livez, and /readyz (?verbose lists each condition; with ?standbyok a
 * process that stands by for a place is ready, too). It answers GET and HEAD, changes nothing, and asks no caller who
 * it is, as etcd's --listen-metrics-urls; so it listens on loopback by default. All other paths belong to the page,
 * which does ask (server/io/page/page.h).
 *
 * libmicrohttpd runs on the loop, without a thread of its own. What its clients can use is bounded:
 *
 *   connections   HTTP_CONNECTIONS_MAX; one more replaces the oldest. Event streams of the page are not counted here
 *   time          HTTP_REQUEST_MS from the connection, or from the last answer, until the next answer has been sent
 *   memory        HTTP_CONNECTION_BYTES for each connection; HTTP_TEXTS_MAX texts of metrics at a time
 *   the loop      a tenth of its time (HTTP_SHARE); a text of metrics is made at most every HTTP_FRESH_MS
 *
 * All functions are called on the loop's thread.
 */
#ifndef AMPD_IO_HTTP_H
#define AMPD_IO_HTTP_H

#include "base/err.h"
#include "base/metric.h"

struct ampd_server;

/* The default address, and the value of --metrics-listen with which the port is not opened. */
#define IO_HTTP_LISTEN "127.0.0.1:7421"
#define IO_HTTP_NONE   "none"

/*
 * Listens at options->metrics_listen; "" and IO_HTTP_NONE mean nowhere. NULL means IO_HTTP_LISTEN: if the server cannot
 * listen there, it goes on without the port, and the log says so. 0; AMP_EINVAL (no such address), AMP_EEXIST (in use),
 * AMP_EDENIED, AMP_EIO, AMP_ENOMEM. io_http_close and io_http_free are due after a failure, too.
 */
int io_http_open(struct ampd_server *server, struct amp_error *error);

/* Ends all connections. The loop must run until the handles are closed. No effect if the port is not open. */
void io_http_close(struct ampd_server *server);

/* Frees the memory of the port, after the loop has ended. No effect if it was never open. */
void io_http_free(struct ampd_server *server);

/* Writes the port's own metrics (ampd_http_*, ampd_page_*); all are 0 if it is not open. */
void io_http_write_metrics(const struct ampd_server *server, struct amp_metric_text *text);

#endif
