/*
 * The options of ampd: one table, by which the command line, the environment and the configuration file are read
 * (config.h), and the conversion of their texts to values. Help texts and defaults are in options.def.
 */
#ifndef AMPD_CONFIG_OPTIONS_H
#define AMPD_CONFIG_OPTIONS_H

#include "base/err.h"
#include "base/log.h"
#include "server/io/auth/auth_options.h"
#include "server/io/base/options.h"
#include "server/io/cluster/cluster_options.h"
#include "server/io/etcd/etcd_access.h"

#include <argp.h>
#include <stdbool.h>

/* Most threads for compute. More gain nothing, since the bandwidth of the memory is used up long before. */
#define AMPD_COMPUTE_THREADS_MAX 256

/*
 * Default of --memory-max, in percent of the memory that this process may use. The rest is for queues, the store, and
 * the page cache of checkpoint files that are being written.
 */
#define AMPD_MEMORY_SHARE_PERCENT 75

/*
 * Default of --checkpoint-disk-share, in percent of a disk. Above it kubelet calls the disk short of space
 * (nodefs.available < 10 %), and Elasticsearch moves data away.
 */
#define AMPD_CHECKPOINT_DISK_SHARE 90

/* Bound of arrays with an element for each option; there are fewer options. */
#define AMPD_OPTIONS_MAX 64

/* The table of all options. It ends with a row of zeros, as argp wants it; `option` below is a row of it. */
extern const struct argp_option ampd_options[];

/* The values of all options. Its texts are those that were given to ampd_option_set, and must outlive it. */
struct ampd_arguments {
    struct ampd_server_options server; /* server.auth and server.etcd point to the next two */
    struct ampd_auth_options auth;
    struct io_etcd_access etcd;
    enum amp_log_level level;       /* least level that is logged */
    bool json;                      /* log lines are JSON */
    bool has_shard;                 /* --shard was given */
    const char *cluster;            /* text of --cluster; NULL: not given */
    struct io_cluster_url url;      /* what that text means; filled in by ampd_arguments_check */
    const char *config;             /* path of the configuration file; NULL: not given */
    bool check_only;                /* --check-config: the options are checked, and no server is started */
    char wrong[AMP_ERROR_TEXT_MAX]; /* a sentence about the first fault; "": none so far */
};

/* The option of this name (without dashes), or NULL. */
const struct argp_option *ampd_option_find(const char *name);

/* Whether only the command line can have this option, since it could have no effect at any later time. */
bool ampd_option_is_flag_only(const struct argp_option *option);
/* Whether a configuration file can have it: all but those for the command line alone, and the path of the file. */
bool ampd_option_is_for_file(const struct argp_option *option);

/* Whether a new value takes effect with SIGHUP. */
bool ampd_option_reloads(const struct argp_option *option);

/* The text of the default; "": the option has none, or is off by default. */
const char *ampd_option_default(const struct argp_option *option);

/* Sets all defaults that are not zero; called before the first ampd_option_set. */
void ampd_arguments_init(struct ampd_arguments *arguments);

/*
 * Sets the value of an option from its text, in place of a value set before. An option that takes no value on the
 * command line has the texts "true" and "false". If the text is wrong, and nothing was before, arguments->wrong says
 * so.
 */
void ampd_option_set(struct ampd_arguments *arguments, const struct argp_option *option, const char *text);

/*
 * Checks what must hold between options, once all are set and arguments->wrong is empty; then arguments->wrong says
 * what does not. Fills in what follows from several options (the etcd cluster, the number of shards).
 */
void ampd_arguments_check(struct ampd_arguments *arguments);

#endif
