/*
 * Opens regular files only, for paths in directories that other users may have written to. A symbolic link as the last
 * part of a path is not followed, since it could lead to a file that is not ampd's; other kinds of files are refused (a
 * pipe would block the process that opens it). Any thread.
 */
#ifndef AMPD_PLAIN_FILE_H
#define AMPD_PLAIN_FILE_H

/*
 * Opens a file as open(2) does, close-on-exec; a file that O_CREAT creates has mode 0600. Returns the descriptor, which
 * is the caller's, or -1 with errno; ELOOP: it is a symbolic link; ENXIO: it is no regular file.
 */
int ampd_plain_open(const char *path, int flags);

/*
 * Checks that a path names a regular file or nothing: 0, or -1 with the errno values of ampd_plain_open. For files that
 * a library opens by their paths, as SQLite does.
 */
int ampd_plain_check(const char *path);

/* The text for an errno of these two functions, as part of a sentence; valid as long as that of strerror(3). */
const char *ampd_plain_strerror(int cause);

#endif
