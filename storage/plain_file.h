/*
 * Files by their names in directories that others may have written to: a symbolic link is not followed to something
 * that is none of ampd's, and what is no regular file (a pipe would hold whoever opens it) is not opened.
 */
#ifndef AMPD_PLAIN_FILE_H
#define AMPD_PLAIN_FILE_H

/*
 * As open, with mode 0600 for one that is made; close-on-exec. -1: errno; ELOOP: a symbolic link, ENXIO: no regular
 * file. Any thread.
 */
int ampd_plain_open(const char *path, int flags);

/*
 * Whether a name is that of a regular file, or of nothing: 0, or -1 as above. For files that others open by name. Any
 * thread.
 */
int ampd_plain_check(const char *path);

/* What an errno of these says, as part of a sentence. */
const char *ampd_plain_why(int cause);

#endif
