/* For LD_PRELOAD, in front of ampd's C library: no directory can be read, as on a disk that is damaged there. */
#include <dirent.h>
#include <errno.h>
#include <stddef.h>

__attribute__((visibility("default"))) struct dirent *readdir(DIR *dir)
{
    (void)dir;
    errno = EIO;
    return NULL;
}
