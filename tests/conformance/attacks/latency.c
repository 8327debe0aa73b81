/*
 * latency PORT SECONDS PER_SECOND [PATH]: an honest client. Calls /ampd.test.v1.Echo/Unary, or PATH with an empty
 * message, on one connection, PER_SECOND times a second, whether or not the answers of earlier calls are here, and
 * measures from when each call was due. Prints one line:
 *
 *   calls N failed N p50 US p99 US max US
 *
 * and ends with 1 if the connection was lost or a call was not answered. Test only.
 */
#define _GNU_SOURCE /* ppoll: milliseconds are too coarse to pace by */

#include "tests/conformance/attacks/bytes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <netinet/tcp.h>
#include <time.h>
#include <unistd.h>

/* How long the last answers may take. */
#define TAIL_NS 5000000000
/* Calls that wait for their answer: the server allows 256. Others wait here, and their time runs. */
#define OUTSTANDING 200
/* Windows are opened again after this many answers. */
#define ANSWERS 100

static struct {
    int fd;
    struct frames_seen seen;
    struct bytes out;
    int64_t *due_ns; /* of each call; 0: answered */
    int64_t *took_ns;
    size_t sent;
    size_t answered;
    size_t failed;
    const char *path; /* NULL: the echo service's */
    size_t unopened;  /* bytes of DATA that the window was not opened for */
} run;

static int64_t now_ns(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void on_frame(struct frames_seen *seen, unsigned type, unsigned flags, uint32_t stream, size_t size)
{
    if (type == H2_PING && (flags & H2_ACK) == 0)
        bytes_frame(&run.out, H2_PING, H2_ACK, 0, seen->payload, 8);
    if (type == H2_DATA)
        run.unopened += size;
    size_t call = stream / 2;
    bool ends = (type == H2_HEADERS && (flags & H2_END_STREAM) != 0) || type == H2_RST_STREAM;
    if (!ends || stream == 0 || call >= run.sent || run.due_ns[call] == 0)
        return;
    run.took_ns[run.answered++] = now_ns() - run.due_ns[call];
    run.due_ns[call] = 0;
    run.failed += type == H2_RST_STREAM;
    if (run.unopened > 0 && run.answered % ANSWERS == 0) {
        bytes_u32_frame(&run.out, H2_WINDOW_UPDATE, 0, (uint32_t)run.unopened);
        run.unopened = 0;
    }
}

static bool flush(void)
{
    for (size_t at = 0; at < run.out.size;) {
        ssize_t size = write(run.fd, run.out.data + at, run.out.size - at);
        if (size <= 0)
            return false;
        at += (size_t)size;
    }
    run.out.size = 0;
    return true;
}

static bool take(void)
{
    uint8_t data[16384];
    ssize_t size = recv(run.fd, data, sizeof data, MSG_DONTWAIT);
    if (size < 0)
        return errno == EAGAIN;
    if (size > 0)
        frames_take(&run.seen, data, (size_t)size);
    return size > 0;
}

static bool wait_until(int64_t due_ns)
{
    struct pollfd poll_fd = {.fd = run.fd, .events = POLLIN};
    int64_t left_ns = due_ns - now_ns();
    if (left_ns < 0)
        left_ns = 0;
    struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
    int ready = ppoll(&poll_fd, 1, &left, NULL);
    return ready == 0 || take();
}

static int compare(const void *a, const void *b)
{
    const int64_t *left = a;
    const int64_t *right = b;
    return (*left > *right) - (*left < *right);
}

static bool measure(size_t count, int64_t step_ns)
{
    int64_t begin_ns = now_ns();
    while (run.answered < count) {
        int64_t due_ns = begin_ns + (int64_t)run.sent * step_ns;
        bool may = run.sent < count && run.sent - run.answered < OUTSTANDING;
        if (may && now_ns() >= due_ns) {
            uint32_t stream = (uint32_t)run.sent * 2 + 1;
            run.due_ns[run.sent++] = due_ns;
            bytes_request(&run.out, stream, run.path != NULL ? run.path : "/ampd.test.v1.Echo/Unary", 0);
            bytes_message(&run.out, stream, "\x0a\x05hello", run.path != NULL ? 0 : 7, H2_END_STREAM);
        } else if (run.sent == count && now_ns() > due_ns + TAIL_NS) {
            return true; /* the rest is told as failed */
        } else if (!wait_until(may ? due_ns : due_ns + TAIL_NS)) {
            return false;
        }
        if (!flush())
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    run.path = argc > 4 ? argv[4] : NULL;
    size_t per_second = (size_t)atoi(argv[3]);
    size_t count = (size_t)atoi(argv[2]) * per_second;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    run.fd = socket(AF_INET, SOCK_STREAM, 0);
    run.seen.frame_cb = on_frame;
    run.due_ns = calloc(count, sizeof *run.due_ns);
    run.took_ns = calloc(count, sizeof *run.took_ns);
    int one = 1;
    (void)setsockopt(run.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (run.due_ns == NULL || run.took_ns == NULL || connect(run.fd, (struct sockaddr *)&to, sizeof to) != 0)
        return 2;
    bytes_preface(&run.out);
    bool kept = measure(count, 1000000000 / (int64_t)per_second);
    size_t failed = run.failed + count - run.answered;
    qsort(run.took_ns, run.answered, sizeof *run.took_ns, compare);
    const int64_t *took = run.took_ns;
    size_t n = run.answered;
    (void)printf("calls %zu failed %zu p50 %lld p99 %lld max %lld\n", count, failed,
                 n > 0 ? (long long)took[n / 2] / 1000 : -1, n > 0 ? (long long)took[n * 99 / 100] / 1000 : -1,
                 n > 0 ? (long long)took[n - 1] / 1000 : -1);
    bytes_free(&run.out);
    free(run.due_ns);
    free(run.took_ns);
    return kept && failed == 0 ? 0 : 1;
}
