#include "tests/conformance/proxy.h"

#include <stdio.h>
#include <stdlib.h>

/*
 * So that what a frozen proxy does not take stays with its peer: the kernel would keep up to tcp_rmem, more than a
 * window.
 */
#define RECEIVE_BUFFER (64 << 10)

static void need(int rc, const char *what)
{
    if (rc == 0)
        return;
    (void)fprintf(stderr, "proxy: %s: %s\n", what, uv_strerror(rc));
    abort();
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)handle;
    *buf = uv_buf_init(malloc(suggested), (unsigned)suggested);
}

static void on_written(uv_write_t *req, int status)
{
    (void)status;
    free(req->data);
    free(req);
}

static void forward(uv_tcp_t *to, ssize_t size, const uv_buf_t *buf)
{
    uv_write_t *req = size > 0 ? malloc(sizeof *req) : NULL;
    if (req == NULL) {
        free(buf->base);
        return;
    }
    uv_buf_t bytes = uv_buf_init(buf->base, (unsigned)size);
    req->data = buf->base;
    if (uv_write(req, (uv_stream_t *)to, &bytes, 1, on_written) != 0)
        on_written(req, -1);
}

static void on_near(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct proxy *proxy = stream->data;
    forward(&proxy->far, size, buf);
    if (size < 0)
        (void)uv_read_stop(stream);
}

static void on_far(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct proxy *proxy = stream->data;
    proxy->forwarded += size > 0 ? (size_t)size : 0;
    forward(&proxy->near, size, buf);
    if (size < 0)
        (void)uv_read_stop(stream);
}

static void on_connect(uv_connect_t *req, int status)
{
    struct proxy *proxy = req->data;
    if (proxy->closing)
        return;
    need(status, "connect");
    need(uv_read_start((uv_stream_t *)&proxy->near, on_alloc, on_near), "read");
    need(uv_read_start((uv_stream_t *)&proxy->far, on_alloc, on_far), "read");
}

static void on_client(uv_stream_t *stream, int status)
{
    struct proxy *proxy = stream->data;
    struct sockaddr_in address;
    need(status, "listen");
    if (proxy->connected)
        return; /* it waits in the backlog */
    need(uv_accept(stream, (uv_stream_t *)&proxy->near), "accept");
    need(uv_ip4_addr("127.0.0.1", proxy->target, &address), "address");
    proxy->connect.data = proxy;
    proxy->connected = true;
    need(uv_tcp_connect(&proxy->connect, &proxy->far, (const struct sockaddr *)&address, on_connect), "connect");
}

void proxy_start(struct proxy *proxy, uv_loop_t *loop, int target)
{
    struct sockaddr_in address;
    int size = sizeof address;
    *proxy = (struct proxy){.target = target, .open = 3};
    uv_tcp_t *all[] = {&proxy->listener, &proxy->near, &proxy->far};
    for (size_t i = 0; i < 3; i++) {
        need(uv_tcp_init_ex(loop, all[i], all[i] == &proxy->far ? AF_INET : AF_UNSPEC), "init");
        all[i]->data = proxy;
    }
    int buffer = RECEIVE_BUFFER;
    need(uv_recv_buffer_size((uv_handle_t *)&proxy->far, &buffer), "receive buffer");
    need(uv_ip4_addr("127.0.0.1", 0, &address), "address");
    need(uv_tcp_bind(&proxy->listener, (const struct sockaddr *)&address, 0), "bind");
    need(uv_listen((uv_stream_t *)&proxy->listener, 1, on_client), "listen");
    need(uv_tcp_getsockname(&proxy->listener, (struct sockaddr *)&address, &size), "getsockname");
    proxy->port = ntohs(address.sin_port);
}

void proxy_freeze(struct proxy *proxy)
{
    (void)uv_read_stop((uv_stream_t *)&proxy->far);
}

static void on_closed(uv_handle_t *handle)
{
    ((struct proxy *)handle->data)->open--;
}

void proxy_cut(struct proxy *proxy)
{
    uv_loop_t *loop = proxy->listener.loop;
    proxy->closing = true;
    uv_close((uv_handle_t *)&proxy->listener, on_closed);
    uv_close((uv_handle_t *)&proxy->near, on_closed);
    uv_close((uv_handle_t *)&proxy->far, on_closed);
    while (proxy->open > 0)
        (void)uv_run(loop, UV_RUN_ONCE);
}
