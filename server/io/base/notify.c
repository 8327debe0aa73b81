/* No answer is expected, and nothing here blocks: what cannot be sent at once is not sent. */
#include "server/io/base/notify.h"

#include "base/err.h"
#include "base/text.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/*
 * The address in NOTIFY_SOCKET, and its size. "@name" is an abstract socket, whose address begins with a zero byte. 0:
 * there is no such address, and nothing is sent.
 */
static socklen_t address_of(struct sockaddr_un *address)
{
    const char *path = getenv("NOTIFY_SOCKET");
    size_t size = path != NULL ? strlen(path) : 0;
    if (size < 2 || size >= sizeof address->sun_path || (path[0] != '/' && path[0] != '@'))
        return 0;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, size);
    if (path[0] == '@')
        address->sun_path[0] = 0;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
}

static void notify(const char *text)
{
    struct sockaddr_un address;
    socklen_t size = address_of(&address);
    int fd = size > 0 ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0)
        return;
    (void)sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&address, size);
    (void)close(fd); /* it is sent, or was given up */
}

/* Sends `lines` with `status` behind it. Cut between two characters: systemd refuses a line that is not UTF-8. */
static void notify_status(const char *lines, const char *status)
{
    char text[AMP_ERROR_TEXT_MAX + 64];
    size_t used = (size_t)snprintf(text, sizeof text, "%sSTATUS=", lines);
    (void)amp_text_escape(status, "", text + used, sizeof text - used);
    notify(text);
}

void io_notify_ready(const char *status)
{
    if (status != NULL)
        notify_status("READY=1\n", status);
    else
        notify("READY=1\n");
}

/* systemd requires the time, by which it tells this reload from an earlier one. */
void io_notify_reloading(void)
{
    char text[80];
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    (void)snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRId64 "\n",
                   (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000);
    notify(text);
}

void io_notify_stopping(uint64_t within_ms)
{
    char text[80];
    (void)snprintf(text, sizeof text, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRIu64 "\n", within_ms * 1000);
    notify(text);
}

void io_notify_status(const char *text)
{
    notify_status("", text);
}
