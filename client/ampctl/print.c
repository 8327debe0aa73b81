#include "client/ampctl/print.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

char *ampctl_text(const char *text)
{
    size_t capacity = AMP_TEXT_ESCAPED_MAX * strlen(text) + 1;
    char *escaped = malloc(capacity);
    if (escaped != NULL)
        (void)amp_text_escape(text, "", escaped, capacity);
    return escaped;
}

json_t *ampctl_json_text(const char *text)
{
    char *copy = strdup(text);
    if (copy != NULL)
        amp_text_repair(copy);
    json_t *value = copy != NULL ? json_string(copy) : NULL;
    free(copy);
    return value;
}

int ampctl_print(FILE *out, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, args);
    char *line = size >= 0 ? malloc((size_t)size + 1) : NULL;
    if (line != NULL)
        (void)vsnprintf(line, (size_t)size + 1, format, again);
    va_end(again);
    va_end(args);
    char *escaped = line != NULL ? ampctl_text(line) : NULL;
    int rc = fprintf(out, "%s\n", escaped != NULL ? escaped : "ampctl: there is no memory for a line");
    free(escaped);
    free(line);
    return rc >= 0 && escaped != NULL ? 0 : -1;
}
