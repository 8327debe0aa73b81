/*
 * A configuration file: YAML, one option of ampd a line under its own name, as `listen: 0.0.0.0:7420`. A list is the
 * same as its values with commas between them. What is wrong is told for every line that can still be understood.
 */
#ifndef AMPD_CONFIG_FILE_H
#define AMPD_CONFIG_FILE_H

#include <stddef.h>

/* Every option with a path as long as the system's takes less. */
#define AMPD_CONFIG_FILE_MAX ((size_t)1 << 16)

/* Texts are valid during the call only; lines count from 1. */
struct ampd_config_file_ops {
    void (*value_cb)(void *arg, unsigned line, const char *name, const char *value);
    void (*fault_cb)(void *arg, unsigned line, const char *text);
};

/*
 * Reads a file of `size` bytes at `text`, without a final zero. Names come in the order of the file and no name twice:
 * a second one is a fault. A fault in the syntax is the last thing told: a reader of YAML cannot know what the rest
 * would mean.
 */
void ampd_config_file_read(const char *text, size_t size, const struct ampd_config_file_ops *ops, void *arg);

#endif
