/*
 * The options of ampd: one table, by which the command line, the environment and the configuration file are read
 * (config.h), and what their texts mean.
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

/* More threads than that gain nothing: memory bandwidth is used up long before. */
#define AMPD_COMPUTE_THREADS_MAX 256

/*
 * Share of the machine's memory that models take by default. The rest is for what is queued, the store, and the pages
 * of checkpoint files on their way to the disk.
 */
#define AMPD_MEMORY_SHARE_PERCENT 75

/* Percent: from there on kubelet calls a disk short (nodefs.available < 10 %), and Elasticsearch moves data away. */
#define AMPD_CHECKPOINT_DISK_SHARE 90

/* More than there are. */
#define AMPD_OPTIONS_MAX 64

/* Ends with zeros, as argp wants it. */
extern const struct argp_option ampd_options[];

/* What the options mean. Texts are whoever's that gave them, and outlive it. */
struct ampd_arguments {
    struct ampd_server_options server; /* points to the next two */
    struct ampd_auth_options auth;
    struct io_etcd_access etcd;
    enum amp_log_level level;
    bool json; /* the log */
    bool has_shard;
    const char *cluster; /* as given */
    struct io_cluster_url url;
    /* Not of the server: */
    const char *config; /* the file that options were read from too; NULL: none */
    bool check_only;
    char wrong[AMP_ERROR_TEXT_MAX]; /* the first thing that is wrong; "" if nothing */
};

/* By its place in the table; NULL: none is called so. */
const struct argp_option *ampd_option_find(const char *name);

/* Of options that only the command line has, as there is no later point at which they could have an effect. */
bool ampd_option_is_flag_only(const struct argp_option *option);
/* Of those that a file may have: not these, nor the file's own name. */
bool ampd_option_is_for_file(const struct argp_option *option);

/* Whether a new value takes effect with SIGHUP. */
bool ampd_option_reloads(const struct argp_option *option);

/* What holds where nobody says anything; "": nothing, or the option is off. */
const char *ampd_option_default(const struct argp_option *option);

/* Before any is set. */
void ampd_arguments_init(struct ampd_arguments *arguments);

/*
 * Sets one; an option without a value has the texts "true" and "false". A later call replaces an earlier one.
 * arguments->wrong says what is wrong with it.
 */
void ampd_option_set(struct ampd_arguments *arguments, const struct argp_option *option, const char *text);

/* What must hold between options, when all are set; arguments->wrong is empty. */
void ampd_arguments_check(struct ampd_arguments *arguments);

#endif
