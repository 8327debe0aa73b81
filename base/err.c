#include "base/err.h"

#include <stdio.h>
#include <string.h>

const char *amp_strerror(int code)
{
    switch (code) {
    case AMP_OK:
        return "no error";
#define AMP_ERR_TEXT(name, value, grpc, text)                                                                          \
    case AMP_##name:                                                                                                   \
        return text;
        AMP_ERR_MAP(AMP_ERR_TEXT)
#undef AMP_ERR_TEXT
    default:
        return "unknown error code";
    }
}

int amp_err_grpc_status(int code)
{
    switch (code) {
    case AMP_OK:
        return 0;
#define AMP_ERR_GRPC(name, value, grpc, text)                                                                          \
    case AMP_##name:                                                                                                   \
        return grpc;
        AMP_ERR_MAP(AMP_ERR_GRPC)
#undef AMP_ERR_GRPC
    default:
        return 2;
    }
}

int amp_err_from_grpc_status(int status)
{
    static const int codes[] = {
        AMP_OK,        AMP_ECANCELLED,      AMP_EUNKNOWN,       AMP_EINVAL,     AMP_EDEADLINE,
        AMP_ENOTFOUND, AMP_EEXIST,          AMP_EDENIED,        AMP_EEXHAUSTED, AMP_ESTATE,
        AMP_EABORTED,  AMP_ERANGE,          AMP_EUNIMPLEMENTED, AMP_EINTERNAL,  AMP_EUNAVAILABLE,
        AMP_EDATALOSS, AMP_EUNAUTHENTICATED};
    if (status < 0 || status >= (int)(sizeof codes / sizeof *codes))
        return AMP_EUNKNOWN;
    return codes[status];
}

int amp_error_set(struct amp_error *error, int code, const char *reason, const char *format, ...)
{
    if (error == NULL)
        return code;
    error->code = code;
    (void)snprintf(error->reason, sizeof error->reason, "%s", reason != NULL ? reason : "");
    va_list args;
    va_start(args, format);
    (void)vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return code;
}

void amp_error_wrap(struct amp_error *error, const char *format, ...)
{
    if (error == NULL)
        return;
    char text[AMP_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (used < 0)
        return;
    const int longest = (int)sizeof text - 3; /* so that ": " and the zero follow */
    used = used < longest ? used : longest;
    text[used++] = ':';
    text[used++] = ' ';
    size_t rest = strnlen(error->text, sizeof text - (size_t)used - 1);
    memcpy(text + used, error->text, rest);
    text[(size_t)used + rest] = 0;
    memcpy(error->text, text, sizeof text);
}
