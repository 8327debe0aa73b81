/*
 * Where the value of each option comes from: the command line goes before the environment (AMPD_LISTEN is --listen),
 * that before the configuration file, and that before the default.
 */
#ifndef AMPD_CONFIG_CONFIG_H
#define AMPD_CONFIG_CONFIG_H

#include "base/buf.h"
#include "server/config/options.h"

struct ampd_config_value {
    char *text;  /* NULL: nobody gives one */
    char *where; /* as struct ampd_option_value has it; NULL: by default */
};

struct ampd_config {
    char *path;                                        /* of the file; NULL: there is none */
    struct ampd_config_value values[AMPD_OPTIONS_MAX]; /* by place in ampd_options */
    char *flags[AMPD_OPTIONS_MAX];                     /* what the command line gives */
    struct amp_buf faults;                             /* lines of text, one each */
    unsigned faults_count;
    bool memory_out; /* there was none for a value */
};

/*
 * Reads all of them. Faults are in config->faults, all that can be found; 0, else AMP_EINVAL (faults), AMP_ENOMEM, or
 * what argp_parse says of the command line, which it has told on stderr. Texts in *arguments are the configuration's:
 * it is to outlive them.
 */
int ampd_config_read(struct ampd_config *config, int argc, char **argv, struct ampd_arguments *arguments);
void ampd_config_close(struct ampd_config *config);

/* The environment's name of an option; `name` has room for the longest. */
#define AMPD_CONFIG_ENV_MAX 64
void ampd_config_env_name(const struct argp_option *option, char name[AMPD_CONFIG_ENV_MAX]);

/* All options with what holds; how many. Texts are the configuration's, until a reload. */
size_t ampd_config_values(const struct ampd_config *config, struct ampd_option_value values[AMPD_OPTIONS_MAX]);

/*
 * Reads file and environment again. Options that can change while the server runs are set in *arguments; the log has
 * each change, and each other option whose value is another now, which the next start takes. With a fault in them
 * nothing changes, and the log has the faults.
 */
void ampd_config_reload(struct ampd_config *config, struct ampd_arguments *arguments, struct amp_log *log);

#endif
