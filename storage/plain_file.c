#include "storage/plain_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* 0, or -1 with errno. */
static int check_mode(const struct stat *about)
{
    if (S_ISREG(about->st_mode))
        return 0;
    errno = S_ISLNK(about->st_mode) ? ELOOP : ENXIO; /* as open says of a link, and of a socket */
    return -1;
}

int ampd_plain_open(const char *path, int flags)
{
    int fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
    struct stat about;
    if (fd < 0 || (fstat(fd, &about) == 0 && check_mode(&about) == 0))
        return fd;
    int cause = errno;
    (void)close(fd); /* nothing was written */
    errno = cause;
    return -1;
}

int ampd_plain_check(const char *path)
{
    struct stat about;
    if (lstat(path, &about) != 0)
        return errno == ENOENT ? 0 : -1;
    return check_mode(&about);
}

const char *ampd_plain_strerror(int cause)
{
    if (cause == ELOOP)
        return "it is a symbolic link, which ampd does not follow to its own files; put the file itself there";
    if (cause == ENXIO || cause == EISDIR)
        return "it is not a regular file; remove it";
    return strerror(cause);
}
