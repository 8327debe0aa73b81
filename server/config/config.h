/*
 * Reads the options from all sources, and keeps which source each value came from. The command line has precedence over
 * the environment (AMPD_LISTEN for --listen), the environment over the configuration file, and the file over defaults.
 * One thread.
 */
#ifndef AMPD_CONFIG_CONFIG_H
#define AMPD_CONFIG_CONFIG_H

#include "base/buf.h"
#include "server/config/options.h"

/* The value of one option. Both texts are owned. */
struct ampd_config_value {
    char *text;  /* as it was given; NULL: no source gives one, and the default holds */
    char *where; /* its source, as "/etc/ampd/ampd.conf:12", "AMPD_LISTEN" or "--listen"; NULL: no source */
};

struct ampd_config {
    char *path;                                        /* path of the configuration file, owned; NULL: there is none */
    struct ampd_config_value values[AMPD_OPTIONS_MAX]; /* indexed as ampd_options */
    char *flags[AMPD_OPTIONS_MAX];                     /* owned; what the command line gives, indexed as ampd_options */
    struct amp_buf faults;                             /* text: one line for each fault, ended by a newline */
    unsigned faults_count;                             /* number of faults, with those that faults had no room for */
    bool alone;                                        /* what must hold between options was not checked */
    bool memory_out;                                   /* there was no memory for a value or for the file */
};

/*
 * Reads and checks all options. 0; AMP_EINVAL: config->faults says all that is wrong; AMP_ENOMEM; or the result of
 * argp_parse for a wrong command line, about which it has written to stderr. On success *arguments has what the options
 * mean; its texts belong to the configuration, which must outlive it. ampd_config_close is due in any case.
 */
int ampd_config_read(struct ampd_config *config, int argc, char **argv, struct ampd_arguments *arguments);
void ampd_config_close(struct ampd_config *config);

/* Writes the name of an option's environment variable: AMPD_ and its name in capitals, with '_' for '-'. */
#define AMPD_CONFIG_ENV_MAX 64
void ampd_config_env_name(const struct argp_option *option, char name[AMPD_CONFIG_ENV_MAX]);

/*
 * Fills in all options with their values and sources, and returns how many there are. The texts belong to the
 * configuration, and are valid until ampd_config_reload or ampd_config_close.
 */
size_t ampd_config_values(const struct ampd_config *config, struct ampd_option_value values[AMPD_OPTIONS_MAX]);

/*
 * Reads the file again (SIGHUP); the environment and the command line are those of the start, and still win over it.
 * Options that can change while the server runs are set in *arguments, and each change is logged. Other options whose
 * values differ are logged, too; they take effect with the next start. If anything is wrong, no option changes, and the
 * faults are logged.
 */
void ampd_config_reload(struct ampd_config *config, struct ampd_arguments *arguments, struct amp_log *log);

#endif
