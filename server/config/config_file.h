/*
 * The parser of a configuration file: YAML, one option of ampd a line under its own name, as `listen: 0.0.0.0:7420`. A
 * list means the same as its values with commas between them. A fault is reported for each line that is wrong, as far
 * as the rest can still be understood.
 */
#ifndef AMPD_CONFIG_FILE_H
#define AMPD_CONFIG_FILE_H

#include <stddef.h>

/* Most bytes of a file. All options together, each with a path of the longest kind, take less. */
#define AMPD_CONFIG_FILE_MAX ((size_t)1 << 16)

/* What the parser calls. Lines count from 1; the texts are valid during the callback alone. */
struct ampd_config_file_ops {
    void (*value_cb)(void *arg, unsigned line, const char *name, const char *value); /* an option and its value */
    void (*fault_cb)(void *arg, unsigned line, const char *text);                    /* a sentence about a fault */
};

/*
 * Parses the `size` bytes of a file; no final zero is needed. Calls value_cb in the order of the file. Whether an
 * option of that name exists, or has come before, is for the caller to check. Parsing stops at a fault of YAML's
 * syntax, after which the meaning of the rest cannot be known.
 */
void ampd_config_file_read(const char *text, size_t size, const struct ampd_config_file_ops *ops, void *arg);

#endif
