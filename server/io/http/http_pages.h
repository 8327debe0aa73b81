/* The pages of server/io/http/http.h, without HTTP. */
#ifndef AMPD_IO_HTTP_PAGES_H
#define AMPD_IO_HTTP_PAGES_H

#include "base/metric.h"

#include <stdbool.h>

struct ampd_server;

#define IO_HTTP_OK          200
#define IO_HTTP_NOT_FOUND   404
#define IO_HTTP_UNAVAILABLE 503

#define IO_HTTP_METRICS "/metrics"

struct io_http_page {
    int status;
    const char *type;
    struct amp_metric_text text; /* made by the caller */
};

/* What is behind the question mark. */
struct io_http_query {
    bool verbose;    /* each condition */
    bool standby_ok; /* a process that stands by, and could take a place, is ready too */
};

/* Why the server does not serve calls, in one sentence; NULL: it serves. */
const char *io_http_unready(const struct ampd_server *server);

/* Fills page with what is at `path`. 0, AMP_ENOMEM, AMP_EEXHAUSTED: the text is not whole. On the loop. */
int io_http_show(const struct ampd_server *server, const char *path, struct io_http_query query,
                 struct io_http_page *page);

#endif
