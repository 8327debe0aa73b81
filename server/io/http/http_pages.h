/*
 * The contents of the monitoring pages (/livez, /readyz, /metrics); server/io/http/http.h sends them. All on the loop.
 */
#ifndef AMPD_IO_HTTP_PAGES_H
#define AMPD_IO_HTTP_PAGES_H

#include "base/metric.h"

#include <stdbool.h>

struct ampd_server;

#define IO_HTTP_OK          200
#define IO_HTTP_NOT_FOUND   404
#define IO_HTTP_UNAVAILABLE 503

#define IO_HTTP_METRICS "/metrics"

/* One answer. */
struct io_http_page {
    int status;                  /* HTTP status: IO_HTTP_... */
    const char *type;            /* Content-Type; lives as long as the process */
    struct amp_metric_text text; /* the body; the caller initialises and closes it */
};

/* Arguments of the URL. */
struct io_http_query {
    bool verbose;    /* "verbose": a line for each condition */
    bool standby_ok; /* "standbyok": a process that stands by, and could take a place, is ready, too */
};

/* One sentence that says why the server does not serve calls; NULL: it serves them. */
const char *io_http_unready(const struct ampd_server *server);

/*
 * Fills *page with the answer for `path`; an unknown path gets IO_HTTP_NOT_FOUND. 0; AMP_ENOMEM or AMP_EEXHAUSTED: the
 * text is incomplete, and must not be sent.
 */
int io_http_show(const struct ampd_server *server, const char *path, struct io_http_query query,
                 struct io_http_page *page);

#endif
