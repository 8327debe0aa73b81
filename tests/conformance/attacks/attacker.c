/*
 * attacker ROW PORT CONNECTIONS MS echo|ampd [once|warm]: attacks a server on the loopback interface with one row of
 * rows.c for so long; a connection that was ended comes back at once, with `once` it does not, and the program ends
 * when none is left. ROW may be @FILE: whole calls again and again, a line of FILE each, "PATH MESSAGE", the message in
 * hexadecimal digits or "-". Every 50 connections come from an address of their own (127.0.0.2 and on). `warm` is
 * `once` from other addresses. Prints:
 *
*   opened N ended N goaway N calm N code N resets N answers N sent BYTES
 *
 * `ended`: by the server. `calm`: of the GOAWAYs, those with ENHANCE_YOUR_CALM. `code`: of the last one. `resets`,
 * `answers`: streams that the server reset or answered. Test only.
 */
#define _GNU_SOURCE /* POLLRDHUP: the end of a connection that is not read */

#include "tests/conformance/attacks/rows.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PER_ADDRESS    50
#define SLOW_STEP_MS   20
#define WARM_ADDRESSES 256

struct attack {
    struct frames_seen seen; /* first, so that its callback finds the rest */
    int fd;                  /* -1: none */
    struct bytes first;
    struct bytes again;
    size_t at; /* of the two, one behind the other */
    uint32_t next_stream;
    int64_t next_ms; /* when a slow one sends its next byte */
    bool waits;      /* all was sent */
};

static const struct row *row;
static struct sockaddr_in server;
static struct attack *attacks;
static size_t attack_count;
static bool once;
static uint32_t first_address = INADDR_LOOPBACK + 1;
static unsigned long long opened, ended, goaways, calms, code, resets, answers, sent;

static int64_t now_ms(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void on_frame(struct frames_seen *seen, unsigned type, unsigned flags, uint32_t stream, size_t size)
{
    (void)stream;
    (void)size;
    resets += type == H2_RST_STREAM;
    answers += type == H2_HEADERS && (flags & H2_END_STREAM) != 0;
    if (type != H2_GOAWAY)
        return;
    goaways++;
    calms += seen->payload[7] == 11;
    code = seen->payload[7];
}

static void begin(struct attack *attack, size_t index)
{
    struct sockaddr_in from = {.sin_family = AF_INET};
    from.sin_addr.s_addr = htonl(first_address + (uint32_t)(index / PER_ADDRESS));
    attack->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    attack->seen = (struct frames_seen){.frame_cb = on_frame};
    attack->at = 0;
    attack->next_stream = 1;
    attack->next_ms = 0;
    attack->waits = false;
    bytes_set_round(&attack->again, 1);
    if (attack->fd < 0 || bind(attack->fd, (struct sockaddr *)&from, sizeof from) != 0)
        exit(2);
    if (connect(attack->fd, (struct sockaddr *)&server, sizeof server) != 0 && errno != EINPROGRESS)
        exit(2);
    opened++;
}

static void end(struct attack *attack)
{
    (void)close(attack->fd);
    attack->fd = -1;
    ended++;
}

/* What is still to be read may hold the reason. */
static bool read_some(struct attack *attack)
{
    static uint8_t data[65536];
    ssize_t size = read(attack->fd, data, sizeof data);
    if (size > 0)
        frames_take(&attack->seen, data, (size_t)size);
    return size > 0 || (size < 0 && errno == EAGAIN);
}

static void next_round(struct attack *attack)
{
    attack->at = attack->first.size;
    attack->waits = attack->again.size == 0 || (row->flags & ROW_ONCE) != 0;
    attack->next_stream += 2 * row->streams;
    bytes_set_round(&attack->again, attack->next_stream);
}

static bool write_some(struct attack *attack, int64_t time_ms)
{
    bool is_first = attack->at < attack->first.size;
    const struct bytes *bytes = is_first ? &attack->first : &attack->again;
    size_t at = is_first ? attack->at : attack->at - attack->first.size;
    size_t size = bytes->size - at;
    if (!is_first && (row->flags & ROW_SLOW) != 0) {
        size = size > 1 ? 1 : size;
        attack->next_ms = time_ms + SLOW_STEP_MS;
    }
    ssize_t done = write(attack->fd, bytes->data + at, size);
    if (done < 0)
        return errno == EAGAIN;
    attack->at += (size_t)done;
    sent += (unsigned long long)done;
    if (attack->at == attack->first.size + attack->again.size)
        next_round(attack);
    return true;
}

static short events_of(const struct attack *attack, int64_t time_ms)
{
    short events = (row->flags & ROW_UNREAD) == 0 ? POLLIN : POLLRDHUP;
    if (!attack->waits && attack->next_ms <= time_ms)
        events |= POLLOUT;
    return events;
}

static void handle(struct attack *attack, short events, int64_t time_ms)
{
    bool kept = (events & POLLRDHUP) == 0;
    if (kept && (events & (POLLIN | POLLHUP | POLLERR)) != 0)
        kept = read_some(attack);
    if (kept && (events & POLLOUT) != 0)
        kept = write_some(attack, time_ms);
    if (!kept) {
        while (read_some(attack) && errno != EAGAIN)
            ;
        end(attack);
    }
}

static size_t round_of_all(struct pollfd *fds)
{
    int64_t time_ms = now_ms();
    size_t left = 0;
    for (size_t i = 0; i < attack_count; i++) {
        if (attacks[i].fd < 0 && !once)
            begin(&attacks[i], i);
        fds[i] =
            (struct pollfd){.fd = attacks[i].fd, .events = attacks[i].fd >= 0 ? events_of(&attacks[i], time_ms) : 0};
        left += attacks[i].fd >= 0;
    }
    if (poll(fds, attack_count, 5) <= 0)
        return left;
    for (size_t i = 0; i < attack_count; i++)
        if (attacks[i].fd >= 0 && fds[i].revents != 0)
            handle(&attacks[i], fds[i].revents, time_ms);
    return left;
}

static struct bytes file_calls;
static struct row file_row = {.name = "@"};

static void add_call(struct bytes *bytes, const char *path, const char *digits)
{
    struct bytes message = {0};
    unsigned value;
    for (; sscanf(digits, "%2x", &value) == 1; digits += 2) {
        uint8_t byte = (uint8_t)value;
        bytes_add(&message, &byte, 1);
    }
    bytes_request(bytes, ROUND_STREAM(file_row.streams), path, 0);
    bytes_message(bytes, ROUND_STREAM(file_row.streams), message.data, message.size, H2_END_STREAM);
    file_row.streams++;
    bytes_free(&message);
}

static void build_from_file(struct bytes *first, struct bytes *again)
{
    (void)first;
    bytes_add(again, file_calls.data, file_calls.size);
    again->ids = calloc(file_calls.id_count, sizeof *again->ids);
    if (again->ids == NULL)
        abort();
    memcpy(again->ids, file_calls.ids, file_calls.id_count * sizeof *again->ids);
    again->id_count = again->id_capacity = file_calls.id_count;
}

static const struct row *read_row(const char *name)
{
    static char path[128];
    static char digits[8192];
    FILE *file = fopen(name, "r");
    if (file == NULL)
        return NULL;
    while (fscanf(file, "%127s %8191s", path, digits) == 2)
        add_call(&file_calls, path, digits);
    (void)fclose(file);
    file_row.build = build_from_file;
    return &file_row;
}

static const struct row *find_row(const char *name)
{
    for (size_t i = 0; i < row_count; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return name[0] == '@' ? read_row(name + 1) : NULL;
}

int main(int argc, char **argv)
{
    if (argc < 6 || !target_set(argv[5]))
        return 2;
    row = find_row(argv[1]);
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    attack_count = (size_t)atoi(argv[3]);
    once = argc > 6;
    if (once && strcmp(argv[6], "warm") == 0)
        first_address += WARM_ADDRESSES;
    attacks = calloc(attack_count, sizeof *attacks);
    struct pollfd *fds = calloc(attack_count, sizeof *fds);
    if (row == NULL || attacks == NULL || fds == NULL)
        return 2;
    (void)signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < attack_count; i++) {
        bytes_preface(&attacks[i].first);
        row->build(&attacks[i].first, &attacks[i].again);
        begin(&attacks[i], i);
    }
    int64_t until_ms = now_ms() + atoi(argv[4]);
    while (now_ms() < until_ms && round_of_all(fds) > 0)
        ;
    (void)printf("opened %llu ended %llu goaway %llu calm %llu code %llu resets %llu answers %llu sent %llu\n", opened,
                 ended, goaways, calms, code, resets, answers, sent);
    for (size_t i = 0; i < attack_count; i++) {
        bytes_free(&attacks[i].first);
        bytes_free(&attacks[i].again);
    }
    free(attacks);
    free(fds);
    return 0;
}
