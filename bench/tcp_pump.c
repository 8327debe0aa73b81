/*
 * The peer (pump) of the rows of push and pull: how fast plain TCP on loopback moves bytes between two processes if the
 * receiver does only what any receiver must do, which is to read each byte once. And the bound of the rows rpc_unary_.
 *
 *     tcp_pump serve [unix:PATH]                            prints "port N" and serves one connection
 *     tcp_pump push|pull PORT|unix:PATH BYTES [arrays]      for each line on stdin moves BYTES and prints the seconds
 *                                                           it took
 *     tcp_pump echo PORT CALLS                              for each line on stdin sends 64 bytes CALLS times, gets
 *                                                           them back each time, and prints the median of the seconds
 *                                                           of these exchanges and their 99th percentile
 *
 * Both ends use one buffer of 256 KiB, so that the sender's data stays in cache; the receiver adds up all 64-bit words.
 * With `arrays`, for the bounds of rows, the bytes come from an array of BYTES and are kept in another one, as a
 * gradient is kept until the vote, and a worker's parameters until the next step. In `echo`, for bounds too, both ends
 * wait in epoll_wait, as whoever has more than one connection does, so that an exchange is three system calls at each.
 *
 * A request is three words: direction, whether with arrays, number of bytes. The sum of all words is compared with what
 * it must be: after a push the receiver sends it back, and its arrival ends the measured time; after a pull the
 * receiver compares it itself. Words are in host byte order, as both ends are on one machine.
 */
#include "base/large.h"
#include "bench/measure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define BUFFER_BYTES (256u * 1024u)
#define BUFFER_WORDS (BUFFER_BYTES / sizeof(uint64_t))

/*
 * With the socket buffers that the kernel chooses, a connection has by chance one of two speeds, 1.4 times apart, for
 * all its life; the cause is most likely whether the sender's core sends, or the receiver's core does so when an
 * acknowledgement opens the window. With a small send buffer and a large receive window the speed is within 3 % from
 * run to run, and nearly the higher one: a peer that is strong and reproducible.
 */
#define SEND_BUFFER_BYTES    (128 * 1024)
#define RECEIVE_BUFFER_BYTES (4096 * 1024)

/* Bytes that an exchange of `echo` sends, and gets back. */
#define ECHO_BYTES 64

/* Seconds after which an end gives up waiting for the other one. */
#define SILENCE_S 30

enum direction { PUSH = 1, PULL = 2, ECHO = 3 };

#define UNIX "unix:"

struct request {
    uint64_t direction;
    uint64_t arrays; /* 1 or 0 */
    uint64_t bytes;  /* a multiple of BUFFER_BYTES; of ECHO how many exchanges */
};

static uint64_t buffer[BUFFER_WORDS];

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "tcp_pump: %s: %s\n", what, errno != 0 ? strerror(errno) : "unexpected end");
    exit(1);
}

static void configure(int fd, bool tcp)
{
    struct timeval silence = {.tv_sec = SILENCE_S};
    int one = 1, send_bytes = SEND_BUFFER_BYTES, receive_bytes = RECEIVE_BUFFER_BYTES;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof silence) != 0)
        die("setsockopt");
    if (!tcp)
        return;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        die("setsockopt");
}

static void send_all(int fd, const void *data, size_t size)
{
    const char *at = data;
    while (size > 0) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
        if (sent <= 0)
            die("send");
        at += sent;
        size -= (size_t)sent;
    }
}

/* False: the stream ended before the first byte. */
static bool receive_all(int fd, void *data, size_t size)
{
    char *at = data;
    size_t have = 0;
    while (have < size) {
        errno = 0;
        ssize_t got = recv(fd, at + have, size - have, 0);
        if (got == 0 && have == 0)
            return false;
        if (got <= 0)
            die("recv");
        have += (size_t)got;
    }
    return true;
}

/* An epoll descriptor of its own. */
static int watch(int fd)
{
    struct epoll_event readable = {.events = EPOLLIN};
    int set = epoll_create1(0);
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &readable) != 0)
        die("epoll");
    return set;
}

static void receive_echo(int set, int fd)
{
    struct epoll_event event;
    char bytes[ECHO_BYTES];
    if (epoll_wait(set, &event, 1, SILENCE_S * 1000) != 1 || !receive_all(fd, bytes, sizeof bytes))
        die("an exchange");
}

static void send_echo(int fd)
{
    static const char bytes[ECHO_BYTES];
    send_all(fd, bytes, sizeof bytes);
}

static void fill_buffer(void)
{
    for (size_t i = 0; i < BUFFER_WORDS; i++)
        buffer[i] = (uint64_t)i * 0x9e3779b97f4a7c15u;
}

static uint64_t sum_words(const uint64_t *words, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += words[i];
    return sum;
}

/* The sum of the words in `bytes` bytes of filled buffers. */
static uint64_t expected_sum(uint64_t bytes)
{
    fill_buffer();
    return sum_words(buffer, BUFFER_WORDS) * (bytes / BUFFER_BYTES);
}

/* Sends from the array, or if that is NULL from the buffer again and again. */
static void send_bytes(int fd, const uint64_t *array, uint64_t bytes)
{
    if (array != NULL)
        send_all(fd, array, bytes);
    for (uint64_t left = array != NULL ? 0 : bytes; left > 0; left -= BUFFER_BYTES)
        send_all(fd, buffer, BUFFER_BYTES);
}

/* Touches every byte of each read while it is in cache; a read may end inside a word, whose head is then kept. */
static uint64_t receive_buffers(int fd, uint64_t bytes)
{
    uint64_t sum = 0;
    size_t kept = 0;
    for (uint64_t left = bytes; left > 0;) {
        ssize_t got = recv(fd, (char *)buffer + kept, BUFFER_BYTES - kept, 0);
        if (got <= 0)
            die("recv");
        left -= (uint64_t)got;
        size_t have = kept + (size_t)got;
        size_t words = have / sizeof(uint64_t);
        sum += sum_words(buffer, words);
        kept = have % sizeof(uint64_t);
        memmove(buffer, buffer + words, kept);
    }
    return sum;
}

/* Receives into an array that holds all bytes; each portion is added up while it is in cache. */
static uint64_t receive_array(int fd, uint64_t *array, uint64_t bytes)
{
    uint64_t sum = 0, have = 0, words = 0;
    while (have < bytes) {
        uint64_t most = bytes - have < BUFFER_BYTES ? bytes - have : BUFFER_BYTES;
        ssize_t got = recv(fd, (char *)array + have, most, 0);
        if (got <= 0)
            die("recv");
        have += (uint64_t)got;
        sum += sum_words(array + words, have / sizeof *array - words);
        words = have / sizeof *array;
    }
    return sum;
}

static uint64_t receive_bytes(int fd, uint64_t *array, uint64_t bytes)
{
    return array != NULL ? receive_array(fd, array, bytes) : receive_buffers(fd, bytes);
}

static uint64_t *new_array(uint64_t bytes)
{
    fill_buffer();
    uint64_t *array = amp_large_new(bytes);
    if (array == NULL)
        die("no memory for the bytes");
    for (uint64_t at = 0; at < bytes / sizeof *array; at += BUFFER_WORDS)
        memcpy(array + at, buffer, BUFFER_BYTES);
    return array;
}

static struct sockaddr_un unix_address(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        die("the path of a socket is too long");
    memcpy(address.sun_path, path, strlen(path) + 1);
    return address;
}

static int listen_unix(const char *path)
{
    struct sockaddr_un address = unix_address(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 1) != 0)
        die("listen");
    (void)printf("port 0\n");
    (void)fflush(stdout);
    return fd;
}

static int listen_loopback(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, 1) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        die("listen");
    (void)printf("port %u\n", ntohs(address.sin_port));
    (void)fflush(stdout);
    return fd;
}

static void echo(int fd, uint64_t exchanges)
{
    int set = watch(fd);
    for (uint64_t i = 0; i < exchanges; i++) {
        receive_echo(set, fd);
        send_echo(fd);
    }
    (void)close(set);
}

/* *array: NULL until a request wants one. */
static void answer(int fd, const struct request *request, uint64_t **array)
{
    if (request->direction == ECHO) {
        echo(fd, request->bytes);
        return;
    }
    if (request->arrays != 0 && *array == NULL)
        *array = new_array(request->bytes);
    if (request->direction == PULL) {
        send_bytes(fd, *array, request->bytes);
        return;
    }
    uint64_t sum = receive_bytes(fd, *array, request->bytes);
    send_all(fd, &sum, sizeof sum);
    fill_buffer();
}

/* path: of a unix socket; NULL: TCP. */
static void serve(const char *path)
{
    int listener = path != NULL ? listen_unix(path) : listen_loopback();
    struct pollfd waiting = {.fd = listener, .events = POLLIN};
    if (poll(&waiting, 1, SILENCE_S * 1000) != 1)
        die("nobody connected");
    int fd = accept(listener, NULL, NULL);
    if (fd < 0)
        die("accept");
    configure(fd, path == NULL);
    fill_buffer();
    uint64_t *array = NULL; /* until the process ends */
    struct request request;
    while (receive_all(fd, &request, sizeof request))
        answer(fd, &request, &array);
    (void)close(fd);
    (void)close(listener);
}

static double move_once(int fd, const struct request *request, uint64_t *array)
{
    uint64_t expected = expected_sum(request->bytes), sum = 0;
    double begin = bench_now_s();
    send_all(fd, request, sizeof *request);
    if (request->direction == PULL) {
        sum = receive_bytes(fd, array, request->bytes);
    } else {
        send_bytes(fd, array, request->bytes);
        if (!receive_all(fd, &sum, sizeof sum))
            die("acknowledgement");
    }
    double seconds = bench_now_s() - begin;
    if (sum != expected) {
        (void)fprintf(stderr, "tcp_pump: the bytes that arrived are not those sent\n");
        exit(1);
    }
    return seconds;
}

static void exchange(int fd, const struct request *request, double *times)
{
    int set = watch(fd);
    send_all(fd, request, sizeof *request);
    for (uint64_t i = 0; i < request->bytes; i++) {
        double begin = bench_now_s();
        send_echo(fd);
        receive_echo(set, fd);
        times[i] = bench_now_s() - begin;
    }
    (void)close(set);
    double median = bench_median(times, request->bytes);
    (void)printf("%.9f %.9f\n", median, times[request->bytes * 99 / 100]);
}

static int connect_unix(const char *path)
{
    struct sockaddr_un address = unix_address(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("connect");
    return fd;
}

static int connect_loopback(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("connect");
    return fd;
}

static void drive(const struct request *request, int fd)
{
    /* Both until the process ends. */
    uint64_t *array = request->arrays != 0 ? new_array(request->bytes) : NULL;
    double *times = request->direction == ECHO ? calloc(request->bytes, sizeof *times) : NULL;
    if (request->direction == ECHO && times == NULL)
        die("no memory for the times");
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (times != NULL)
            exchange(fd, request, times);
        else
            (void)printf("%.9f\n", move_once(fd, request, array));
        (void)fflush(stdout);
    }
    (void)close(fd);
}

/* False: not in the usage. */
static bool take_request(int argc, char **argv, struct request *request)
{
    static const char *const names[] = {[PUSH] = "push", [PULL] = "pull", [ECHO] = "echo"};
    bool arrays = argc == 5 && strcmp(argv[4], "arrays") == 0;
    *request = (struct request){0, arrays, argc >= 4 ? strtoull(argv[3], NULL, 10) : 0};
    for (uint64_t i = PUSH; argc == (arrays ? 5 : 4) && i <= ECHO; i++)
        if (strcmp(argv[1], names[i]) == 0)
            request->direction = i;
    return request->direction != 0 && request->bytes > 0 &&
           (request->direction == ECHO ? !arrays : request->bytes % BUFFER_BYTES == 0);
}

int main(int argc, char **argv)
{
    const char *path = argc >= 3 && strncmp(argv[2], UNIX, strlen(UNIX)) == 0 ? argv[2] + strlen(UNIX) : NULL;
    if (argc == (path != NULL ? 3 : 2) && strcmp(argv[1], "serve") == 0) {
        serve(path);
        return 0;
    }
    struct request request;
    bool asks = take_request(argc, argv, &request);
    unsigned long port = asks && path == NULL ? strtoul(argv[2], NULL, 10) : 1;
    if (!asks || port == 0 || port > UINT16_MAX) {
        (void)fprintf(stderr,
                      "usage: tcp_pump serve [unix:PATH] | push|pull PORT|unix:PATH BYTES [arrays] | echo PORT CALLS\n"
                      "BYTES is a multiple of %u\n",
                      BUFFER_BYTES);
        return 2;
    }
    int fd = path != NULL ? connect_unix(path) : connect_loopback((uint16_t)port);
    configure(fd, path == NULL);
    drive(&request, fd);
    return 0;
}
