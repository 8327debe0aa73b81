#include "rpc/arpc_limits.h"

#include <string.h>

const struct arpc_limits arpc_limits_default = {
#define LIMIT_VALUE(name, value, reason) .name = value,
    ARPC_LIMITS(LIMIT_VALUE)
#undef LIMIT_VALUE
};

uint64_t arpc_limits_descriptors(const struct arpc_limits *limits, uint64_t most)
{
    uint64_t spare = (uint64_t)limits->spare_descriptors;
    return most > 2 * spare ? most - spare : most / 2;
}

bool arpc_limits_set(struct arpc_limits *limits, const char *name, int64_t value)
{
    static const struct {
        const char *name;
        size_t offset;
    } rows[] = {
#define LIMIT_ROW(limit, value, reason) {#limit, offsetof(struct arpc_limits, limit)},
        ARPC_LIMITS(LIMIT_ROW)
#undef LIMIT_ROW
    };
    if (value < 0 || value > ARPC_LIMIT_MAX)
        return false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].name, name) != 0)
            continue;
        memcpy((char *)limits + rows[i].offset, &value, sizeof value);
        return true;
    }
    return false;
}

const char *arpc_abuse_name(enum arpc_abuse cause)
{
    static const char *const names[] = {"none",
#define ABUSE_NAME(name, metric, text) metric,
                                        ARPC_ABUSES(ABUSE_NAME)
#undef ABUSE_NAME
    };
    return names[cause];
}

const char *arpc_abuse_text(enum arpc_abuse cause)
{
    static const char *const texts[] = {"",
#define ABUSE_TEXT(name, metric, text) text,
                                        ARPC_ABUSES(ABUSE_TEXT)
#undef ABUSE_TEXT
    };
    return texts[cause];
}
