/* A folder of a test's own below TMPDIR, or /tmp. */
#ifndef AMPD_TESTS_TEMP_FOLDER_H
#define AMPD_TESTS_TEMP_FOLDER_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* A socket in it is bound to less: 107 bytes. */
#define TEMP_FOLDER_MAX 128

static inline const char *temp_base(void)
{
    const char *base = getenv("TMPDIR");
    return base != NULL ? base : "/tmp";
}

/* Makes it, with `name` in its path; the caller removes it. False: it cannot be made, or TMPDIR is too long. */
static inline bool temp_folder(char path[TEMP_FOLDER_MAX], const char *name)
{
    int size = snprintf(path, TEMP_FOLDER_MAX, "%s/ampd-%s-XXXXXX", temp_base(), name);
    return size > 0 && size < TEMP_FOLDER_MAX && mkdtemp(path) != NULL;
}

#endif
