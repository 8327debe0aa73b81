/*
 * Error codes of every folder, and an error with a text.
 *
 * A function returns 0 or one of the negative codes. Where a text helps, it takes a `struct amp_error *` (may be
 * NULL) and fills it. Peer, disk and configuration faults are errors; a fault of the program is an assert.
 */
#ifndef AMP_BASE_ERR_H
#define AMP_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One row for each code: name, value, gRPC status (google.rpc.Code), text. */
#define AMP_ERR_MAP(X)                                                                                       \
    X(EINVAL, -1, 3, "invalid argument")                                                                     \
    X(ENOMEM, -2, 8, "out of memory")                                                                        \
    X(ENOTFOUND, -3, 5, "not found")                                                                         \
    X(EEXIST, -4, 6, "already exists")                                                                       \
    X(EABORTED, -5, 10, "aborted: read the state again and retry")                                           \
    X(ESTATE, -6, 9, "not possible in this state")                                                           \
    X(EEXHAUSTED, -7, 8, "a limit is reached")                                                               \
    X(ERANGE, -8, 11, "out of range")                                                                        \
    X(EUNIMPLEMENTED, -9, 12, "not implemented")                                                             \
    X(EINTERNAL, -10, 13, "internal error")                                                                  \
    X(EUNAVAILABLE, -11, 14, "unavailable: retry later")                                                     \
    X(EDATALOSS, -12, 15, "data lost or corrupted")                                                          \
    X(EUNAUTHENTICATED, -13, 16, "not authenticated")                                                        \
    X(EDENIED, -14, 7, "not allowed")                                                                        \
    X(ECANCELLED, -15, 1, "cancelled")                                                                       \
    X(EDEADLINE, -16, 4, "deadline exceeded")                                                                \
    X(EUNKNOWN, -17, 2, "unknown error")                                                                     \
    X(EUNSTABLE, -18, 9, "training is unstable: the loss scale is at its floor")                             \
    X(EIO, -19, 13, "input/output error")                                                                    \
    X(ELOCKED, -20, 9, "locked by another process")                                                          \
    X(EVERSION, -21, 9, "written by a newer version")

enum amp_err {
    AMP_OK = 0,
#define AMP_ERR_ENUM(name, value, grpc, text) AMP_##name = value,
    AMP_ERR_MAP(AMP_ERR_ENUM)
#undef AMP_ERR_ENUM
};

/* Longest text and reason of an error, with the final zero: a text is one sentence, a reason one UPPER_SNAKE word. */
#define AMP_ERROR_TEXT_MAX 512
#define AMP_ERROR_REASON_MAX 32

/*
 * An error with a text for users. `text` is a sentence that names the thing that failed and the remedy; `reason` is the
 * reason of a google.rpc.ErrorInfo, or "".
 */
struct amp_error {
    int code;
    char reason[AMP_ERROR_REASON_MAX];
    char text[AMP_ERROR_TEXT_MAX];
};

/* The constant text of a code; never NULL. Any thread. */
const char *amp_strerror(int code);

/* The gRPC status of a code: 0 for 0, 2 (UNKNOWN) for a number that is not a code. Any thread. */
int amp_err_grpc_status(int code);

/* The code for a gRPC status from 0 to 16; AMP_EUNKNOWN for other numbers. Any thread. */
int amp_err_from_grpc_status(int status);

/*
 * Fills *error (if not NULL) and returns `code`, for `return amp_error_set(error, AMP_EINVAL, NULL, "...", ...)`. A
 * text that is too long is truncated. `reason` may be NULL.
 */
int amp_error_set(struct amp_error *error, int code, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/*
 * Puts the formatted text and ": " in front of error->text, and truncates the result if needed. Does nothing if error
 * is NULL.
 */
void amp_error_wrap(struct amp_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif

#endif
