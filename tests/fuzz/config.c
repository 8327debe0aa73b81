/* A configuration file of ampd: what is told of it makes sense, whatever it has. */
#include "tests/fuzz/fuzz.h"

#include "server/config/config_file.h"

#include <stdlib.h>
#include <string.h>

struct heard {
    unsigned lines; /* that the file has */
    unsigned last;  /* line of the last name */
    size_t told;
};

static void on_value(void *arg, unsigned line, const char *name, const char *value)
{
    struct heard *heard = arg;
    AMP_ASSERT(line >= heard->last && line <= heard->lines);
    AMP_ASSERT(name[0] != 0 && strlen(name) < AMPD_CONFIG_FILE_MAX && strlen(value) < AMPD_CONFIG_FILE_MAX);
    heard->last = line;
    heard->told++;
}

static void on_fault(void *arg, unsigned line, const char *text)
{
    struct heard *heard = arg;
    AMP_ASSERT(line >= 1 && line <= heard->lines && text[0] != 0);
    heard->told++;
}

void fuzz_one(const uint8_t *data, size_t size)
{
    static const struct ampd_config_file_ops ops = {on_value, on_fault};
    struct heard heard = {.lines = 2}; /* YAML ends lines in more ways than one, so all are counted */
    uint8_t *text = fuzz_exact(data, size);
    for (size_t i = 0; i < size; i++)
        heard.lines += data[i] == '\n' || data[i] == '\r' || data[i] == 0x85 || data[i] == 0xa8 || data[i] == 0xa9;
    ampd_config_file_read((const char *)text, size, &ops, &heard);
    AMP_ASSERT(heard.told <= size + 1);
    free(text);
}
