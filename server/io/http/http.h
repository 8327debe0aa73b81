/*
 * HTTP/1.1 for those who watch: /metrics, /livez, /readyz (?verbose: each condition; ?standbyok: ready, too, while it
 * stands by). It answers GET and HEAD, changes nothing and asks nobody who he is, as etcd's --listen-metrics-urls; so
 * it listens on loopback unless told otherwise. Everything else is the page's, which asks (server/io/page/page.h).
 *
 * libmicrohttpd runs on the loop, without a thread of its own. What clients of it can take is bounded:
 *
 *   connections   HTTP_CONNECTIONS_MAX; a further one takes the place of the oldest. Beside them those that hear events
 *   time          HTTP_REQUEST_MS from the connection, or from the last answer, until the next answer has left
 *   memory        HTTP_CONNECTION_BYTES for each connection; HTTP_TEXTS_MAX texts of metrics at a time
 *   the loop      a tenth of its time (HTTP_SHARE); a text of metrics is made at most every HTTP_FRESH_MS
 */
#ifndef AMPD_IO_HTTP_H
#define AMPD_IO_HTTP_H

#include "base/err.h"
#include "base/metric.h"

struct ampd_server;

/* Where it listens if nothing else is said; and the word for nowhere. */
#define IO_HTTP_LISTEN "127.0.0.1:7421"
#define IO_HTTP_NONE   "none"

/*
 * Listens as options->metrics_listen says; NULL is IO_HTTP_LISTEN, and should that address be in use, the server goes
 * on without and the log says so. 0, AMP_EINVAL (no such address), AMP_EEXIST (in use), AMP_EDENIED, AMP_EIO,
 * AMP_ENOMEM.
 */
int io_http_open(struct ampd_server *server, struct amp_error *error);

/* Ends all connections. The loop must run until the handles are closed. No effect when it is not open. On the loop. */
void io_http_close(struct ampd_server *server);

/* Frees the rest; the loop has ended. */
void io_http_free(struct ampd_server *server);

/* Its own part of the metrics. */
void io_http_write_metrics(const struct ampd_server *server, struct amp_metric_text *text);

#endif
