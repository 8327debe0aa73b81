#define _GNU_SOURCE /* accept4, struct ucred */
#include "server/io/calls/memory_socket.h"

#include "base/assert.h"
#include "server/io/base/server.h"
#include "server/io/calls/attach_memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Time for a client from its connection to its nonce. It takes longer only if its process is stopped in between. */
#define CLIENT_MS 2000
/*
 * Most clients at a time; others wait to be accepted. Each usually takes less than a millisecond. When all places are
 * taken, clients whose process has no call that waits for descriptors are closed, else any user of the machine could
 * hold all places all the time; and the others get CROWDED_MS, else one worker could, by a call that it leaves waiting.
 */
#define CLIENTS_MAX 8
/* As CLIENT_MS, when all places are taken: a nonce follows its connection at once. */
#define CROWDED_MS 100
#define FDS        3
/* How many wait to be accepted. Others wait in connect(2), where libampclient does not ask interrupt_cb. */
#define BACKLOG    128
#define NONCE_SIZE 16
/* Pause after a failed accept: this process or the machine has reached its limit of open files. */
#define SHORT_MS 100

/* A client that has connected, and whose nonce is awaited. */
struct client {
    struct io_memory_socket *socket; /* NULL: this place is free */
    uv_poll_t poll;
    uv_timer_t timer;
    int fd;        /* the connection, owned */
    unsigned open; /* handles that are not closed yet */
};

struct io_memory_socket {
    struct ampd_server *server;
    uv_poll_t poll;
    uv_timer_t again; /* accepts again after SHORT_MS */
    int fd;           /* listens; owned */
    bool closing;
    unsigned open; /* clients, and handles of this struct, that are not closed yet; at 0 the memory is freed */
    struct client clients[CLIENTS_MAX];
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
};

const char *io_memory_socket_path(const struct io_memory_socket *socket)
{
    return socket->path;
}

static void on_ready(uv_poll_t *poll, int status, int events);

/* Watches for connections. The watch stops while all places are taken. */
static void listen_on(struct io_memory_socket *socket)
{
    if (!socket->closing)
        (void)uv_poll_start(&socket->poll, UV_READABLE, on_ready); /* fails on a closing handle alone */
}

static void socket_unref(struct io_memory_socket *socket)
{
    if (--socket->open == 0)
        free(socket);
}

/* ---- a client ---- */

static void client_closed(uv_handle_t *handle)
{
    struct client *client = handle->data;
    struct io_memory_socket *socket = client->socket;
    if (--client->open > 0)
        return;
    (void)close(client->fd);
    client->socket = NULL;
    listen_on(socket);
    socket_unref(socket);
}

static void client_end(struct client *client)
{
    if (client->socket == NULL || uv_is_closing((uv_handle_t *)&client->timer))
        return;
    uv_close((uv_handle_t *)&client->poll, client_closed);
    uv_close((uv_handle_t *)&client->timer, client_closed);
}

/* Whether the process that has connected is known; then *who is that. */
static bool peer_of(const struct client *client, struct ucred *who)
{
    socklen_t size = sizeof *who;
    return getsockopt(client->fd, SOL_SOCKET, SO_PEERCRED, who, &size) == 0;
}

static void on_late(uv_timer_t *timer)
{
    client_end(timer->data);
}

/* All places are taken. */
static void make_room(struct io_memory_socket *socket)
{
    struct ucred who;
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        struct client *client = &socket->clients[i];
        if (client->socket == NULL)
            continue;
        if (!peer_of(client, &who) || !io_attachment_awaits(socket->server, who.pid, who.uid))
            client_end(client);
        else if (uv_timer_get_due_in(&client->timer) > CROWDED_MS)
            (void)uv_timer_start(&client->timer, on_late, CROWDED_MS, 0); /* fails on a closing handle alone */
    }
}

static void give(int fd, const int fds[FDS])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * FDS)];
    } control = {0};
    char byte = 1;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * FDS);
    memcpy(CMSG_DATA(head), fds, sizeof(int) * FDS);
    (void)sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT); /* without it a worker attaches again */
}

static void on_nonce(uv_poll_t *poll, int status, int events)
{
    struct client *client = poll->data;
    uint8_t nonce[NONCE_SIZE];
    struct ucred who;
    int fds[FDS];
    (void)events;
    /* The nonce has to come in one piece, as docs/protocol.md says. */
    if (status == 0 && recv(client->fd, nonce, sizeof nonce, MSG_DONTWAIT) == (ssize_t)sizeof nonce &&
        peer_of(client, &who) && io_attachment_take(client->socket->server, nonce, who.pid, who.uid, fds))
        give(client->fd, fds);
    client_end(client);
}

static void client_open(struct io_memory_socket *socket, struct client *client, int fd)
{
    uv_loop_t *loop = &socket->server->loop;
    *client = (struct client){.socket = socket, .fd = fd, .open = 2};
    client->poll.data = client->timer.data = client;
    if (uv_poll_init(loop, &client->poll, fd) != 0) {
        (void)close(fd);
        client->socket = NULL;
        return;
    }
    (void)uv_timer_init(loop, &client->timer); /* cannot fail */
    socket->open++;
    (void)uv_poll_start(&client->poll, UV_READABLE, on_nonce);
    (void)uv_timer_start(&client->timer, on_late, CLIENT_MS, 0);
}

static struct client *free_place(struct io_memory_socket *socket)
{
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        if (socket->clients[i].socket == NULL)
            return &socket->clients[i];
    return NULL;
}

static void on_again(uv_timer_t *again)
{
    listen_on(again->data);
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    struct io_memory_socket *socket = poll->data;
    (void)events;
    for (struct client *client; status == 0 && (client = free_place(socket)) != NULL;) {
        int fd = accept4(socket->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
            return;
        if (fd < 0) { /* the socket stays readable: without a pause the loop would do nothing else */
            (void)uv_timer_start(&socket->again, on_again, SHORT_MS, 0);
            break;
        }
        client_open(socket, client, fd);
    }
    if (free_place(socket) == NULL)
        make_room(socket);
    (void)uv_poll_stop(poll); /* until a place is free, or the pause is over */
}

/* ---- life ---- */

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1);
    (void)unlink(path); /* left by an earlier process: this one holds the directory's lock */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && chmod(path, 0666) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    int why = errno;
    if (fd >= 0)
        (void)close(fd);
    errno = why;
    return -1;
}

void io_memory_socket_open(struct ampd_server *server, const char *directory)
{
    struct io_memory_socket *socket = calloc(1, sizeof *socket);
    if (server->options->no_shared_memory || socket == NULL) {
        free(socket);
        return;
    }
    char *whole = realpath(directory, NULL); /* absolute, since workers have other working directories */
    int length = snprintf(socket->path, sizeof socket->path, "%s/memory.sock", whole != NULL ? whole : directory);
    free(whole);
    errno = ENAMETOOLONG;
    socket->fd = length > 0 && (size_t)length < sizeof socket->path ? listen_at(socket->path) : -1;
    if (socket->fd < 0 || uv_poll_init(&server->loop, &socket->poll, socket->fd) != 0) {
        amp_log(server->log, AMP_LOG_WARN, "server",
                "msg=\"no shared memory with workers of this host\" err=\"%s/memory.sock: %s\"", directory,
                strerror(errno));
        if (socket->fd >= 0)
            (void)close(socket->fd);
        free(socket);
        return;
    }
    (void)uv_timer_init(&server->loop, &socket->again); /* cannot fail */
    socket->server = server;
    socket->open = 2;
    socket->poll.data = socket->again.data = socket;
    server->attachments->socket = socket;
    listen_on(socket);
}

static void listening_closed(uv_handle_t *handle)
{
    struct io_memory_socket *socket = handle->data;
    (void)close(socket->fd);
    socket_unref(socket);
}

static void again_closed(uv_handle_t *handle)
{
    socket_unref(handle->data);
}

void io_memory_socket_close(struct ampd_server *server)
{
    struct io_memory_socket *socket = server->attachments->socket;
    if (socket == NULL)
        return;
    server->attachments->socket = NULL;
    socket->closing = true;
    (void)unlink(socket->path);
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        client_end(&socket->clients[i]);
    uv_close((uv_handle_t *)&socket->poll, listening_closed);
    uv_close((uv_handle_t *)&socket->again, again_closed);
}
