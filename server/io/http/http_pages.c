/* The contents of /livez, /readyz and /metrics. */
#include "server/io/http/http_pages.h"

#include "server/io/base/server.h"
#include "server/io/cluster/membership.h"
#include "server/io/http/metrics.h"

#include <stdio.h>
#include <string.h>

/* ---- whether the server serves ---- */

static const char *not_draining(const struct ampd_server *server)
{
    return server->life.state >= SERVER_DRAINING ? "draining: this server is about to end, and takes no new calls"
                                                 : NULL;
}

static const char *has_place(const struct ampd_server *server)
{
    const char *why = io_membership_missing(server);
    if (server->life.state != SERVER_STARTING)
        return NULL; /* also while etcd does not answer: the process serves until its lease has ended */
    return why[0] != 0 ? why : "standby: this process waits for a place in its cluster";
}

static const char *is_found(const struct ampd_server *server)
{
    return server->life.found ? NULL : "starting: the stored models are being read";
}

static const char *is_synced(const struct ampd_server *server)
{
    bool synced = server->core != NULL && ampd_core_synced(server->core);
    return server->life.serving || synced ? NULL : "not synced: not all shards have reported what they hold";
}

static const char *is_serving(const struct ampd_server *server)
{
    return server->life.serving ? NULL : "recovering: not all models are ready";
}

/* In the order in which they become true at a start. The first that is not gives the reason. */
static const struct {
    const char *name;
    const char *(*check)(const struct ampd_server *server); /* NULL: the condition holds; else a sentence */
} conditions[] = {{"running", not_draining},
                {"place", has_place},
                {"found", is_found},
                {"synced", is_synced},
                {"models", is_serving}};

#define CONDITIONS (sizeof conditions / sizeof *conditions)

const char *io_http_unready(const struct ampd_server *server)
{
    const char *why = NULL;
    for (size_t i = 0; why == NULL && i < CONDITIONS; i++)
        why = conditions[i].check(server);
    return why;
}

/* ---- pages ---- */

static int say(struct io_http_page *page, int status, const char *text)
{
    page->status = status;
    page->type = "text/plain; charset=utf-8";
    return amp_buf_append(&page->text.buf, text, strlen(text));
}

/* A line for each condition, in Kubernetes' form: "[+]name ok" or "[-]name failed: why". */
static int say_verbose(const struct ampd_server *server, struct io_http_page *page, bool is_ready)
{
    char text[CONDITIONS * (AMP_ERROR_TEXT_MAX + 32)];
    size_t used = 0;
    for (size_t i = 0; i < CONDITIONS; i++) {
        const char *why = conditions[i].check(server);
        used += (size_t)snprintf(text + used, sizeof text - used, why == NULL ? "[+]%s ok\n" : "[-]%s failed: %s\n",
                                 conditions[i].name, why != NULL ? why : "");
    }
    (void)snprintf(text + used, sizeof text - used, "readyz check %s\n", is_ready ? "passed" : "failed");
    return say(page, is_ready ? IO_HTTP_OK : IO_HTTP_UNAVAILABLE, text);
}

static int show_ready(const struct ampd_server *server, struct io_http_query query, struct io_http_page *page)
{
    char text[AMP_ERROR_TEXT_MAX + 2];
    const char *why = io_http_unready(server);
    if (query.standby_ok && io_membership_stands_by(server))
        why = NULL;
    if (query.verbose)
        return say_verbose(server, page, why == NULL);
    (void)snprintf(text, sizeof text, "%s\n", why != NULL ? why : "ok");
    return say(page, why == NULL ? IO_HTTP_OK : IO_HTTP_UNAVAILABLE, text);
}

/* Always ok: if the loop did not run, there would be no answer. */
static int show_live(const struct ampd_server *server, struct io_http_query query, struct io_http_page *page)
{
    return say(page, IO_HTTP_OK, query.verbose ? "[+]loop ok\nlivez check passed\n" : "ok\n");
}

static int show_metrics(const struct ampd_server *server, struct io_http_query query, struct io_http_page *page)
{
    page->status = IO_HTTP_OK;
    page->type = AMP_METRIC_CONTENT_TYPE;
    io_metrics_write(server, &page->text);
    return page->text.error;
}

static const struct {
    const char *path;
    int (*show)(const struct ampd_server *server, struct io_http_query query, struct io_http_page *page);
} pages[] = {{"/livez", show_live}, {"/readyz", show_ready}, {IO_HTTP_METRICS, show_metrics}};

int io_http_show(const struct ampd_server *server, const char *path, struct io_http_query query,
                 struct io_http_page *page)
{
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strcmp(path, pages[i].path) == 0)
            return pages[i].show(server, query, page);
    return say(page, IO_HTTP_NOT_FOUND, "there are /livez, /readyz and /metrics, and a page at /\n");
}
