#include "base/size.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool amp_size_parse(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMG";
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || text[0] < '0' || text[0] > '9' || value == 0)
        return false;
    const char *unit = *end != 0 ? strchr(units, *end) : NULL;
    unsigned shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
    if (end[unit != NULL] != 0 || value > UINT64_MAX >> shift)
        return false;
    *bytes = (uint64_t)value << shift;
    return true;
}

bool amp_count_parse(const char *text, uint64_t *count)
{
    return text[strspn(text, "0123456789")] == 0 && amp_size_parse(text, count);
}
