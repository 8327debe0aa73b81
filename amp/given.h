/*
 * The check for arguments that must not be NULL, which every function of the library with an error code makes in the
 * same way. Not installed.
 */
#ifndef AMP_GIVEN_H
#define AMP_GIVEN_H

#include "base/err.h"

#include <stddef.h>

/* 0; AMP_EINVAL with a text that names the argument if it is NULL. */
static inline int amp_given(const void *argument, const char *name, struct amp_error *error)
{
    if (argument != NULL)
        return 0;
    return amp_error_set(error, AMP_EINVAL, NULL, "the argument %s is NULL: it must be given", name);
}

/* Checks two arguments; the error names the first that is NULL. */
static inline int amp_both_given(const void *a, const char *a_name, const void *b, const char *b_name,
                                 struct amp_error *error)
{
    int rc = amp_given(a, a_name, error);
    return rc != 0 ? rc : amp_given(b, b_name, error);
}

#endif
