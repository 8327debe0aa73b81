/* What the verbs of ampctl share: options, the connection, and how things are printed. */
#ifndef AMPCTL_CTL_H
#define AMPCTL_CTL_H

#include "client/ampctl/rows.h"
#include "client/io/rpc.h"
#include "proto/msg.h"

#include <argp.h>
#include <stdbool.h>

/* Exit codes. An RPC that fails ends with AMPCTL_EXIT_RPC plus its gRPC status, as grpcurl does. */
#define AMPCTL_EXIT_FAILED 1
#define AMPCTL_EXIT_USAGE  2
#define AMPCTL_EXIT_RPC    64
/* Wrong usage of `ready`, whose codes are those of pg_isready. */
#define AMPCTL_EXIT_NO_ATTEMPT 3

/* Options that come before or after the verb. */
struct ampctl {
    const char *endpoints;
    struct ampclient_secure_options secure;
    bool json, csv;      /* neither: tables */
    uint64_t timeout_ms; /* of each call; 0: the verb's own */
    struct ampclient_link *link;
    const char *verb;
};

#define AMPCTL_TIMEOUT_MS 10000

/*
 * Parses a verb's arguments: `own` (input: `input`) and the common options. A usage error ends the program with
 * argp_err_exit_status.
 */
void ampctl_parse(struct ampctl *ctl, const struct argp *own, void *input, int argc, char **argv);

/* Connects nowhere yet. 0, or an exit code after a sentence on stderr. */
int ampctl_open(struct ampctl *ctl);
void ampctl_close(struct ampctl *ctl);

/*
 * One RPC; the next address is tried when one cannot be reached. `encoded` is what the encoding of the request returned.
 * 0, or an exit code after a sentence on stderr; *reply is the caller's to close in every case.
 */
int ampctl_ask(struct ampctl *ctl, const char *path, int encoded, const struct amp_buf *request,
               struct ampclient_reply *reply);
/* Nobody listens at any of the endpoints: the request has reached no server. */
bool ampctl_nobody(const struct ampclient_reply *reply);

/* Says on stderr why a call has failed, with what to do; `asked`: the address, or several. */
void ampctl_say_why(const struct ampctl *ctl, const char *asked, const struct ampclient_reply *reply);

/* The same as ampctl_ask for a request with a message_cb. */
int ampctl_call(struct ampctl *ctl, const struct ampclient_request *request, struct ampclient_reply *reply);

/* One row in the form that was asked for; takes the row, NULL: there was no memory for it. An exit code. */
int ampctl_print_one(const struct ampctl *ctl, const struct ampctl_column *columns, json_t *row);

/* The answer could not be decoded: says so. An exit code. */
int ampctl_bad_answer(const struct amp_error *error);

/* Copies an argument into a field of a message, or ends the program with a usage error. */
void ampctl_name(struct argp_state *state, char field[128], const char *value);
/* For verbs that take one model: ARGP_KEY_ARG and ARGP_KEY_NO_ARGS; ARGP_ERR_UNKNOWN for every other key. */
error_t ampctl_one_model(int key, char *arg, struct argp_state *state, char field[128]);
/* The same for verbs that take one model and one file. */
error_t ampctl_model_and_file(int key, char *arg, struct argp_state *state, char field[128], const char **file);
/* An argument that is a number from 0 to 2^63 - 1, or a usage error that names the option. */
uint64_t ampctl_number(struct argp_state *state, const char *option, const char *value);

/* A checkpoint of a model; what is not given is for ampctl_find_checkpoint to find. */
struct ampctl_checkpoint_key {
    bool has_epoch, has_step;
    uint64_t epoch, step;
};

/* Fills the key with the newest checkpoint that has what is given. 0, or an exit code after a sentence on stderr. */
int ampctl_find_checkpoint(struct ampctl *ctl, const char model[128], struct ampctl_checkpoint_key *key);

/* What the server says of a model: *response is the caller's (ampd_msg_get_model_response_free) when 0 is returned. */
int ampctl_get_model(struct ampctl *ctl, const char model[128], struct ampd_msg_get_model_response *response);

/* ---- verbs: argv[0] is the verb. They return the exit code ---- */

int ampctl_ready(struct ampctl *ctl, int argc, char **argv);
int ampctl_status(struct ampctl *ctl, int argc, char **argv);
int ampctl_models(struct ampctl *ctl, int argc, char **argv);
int ampctl_cluster(struct ampctl *ctl, int argc, char **argv);
int ampctl_history(struct ampctl *ctl, int argc, char **argv);
int ampctl_overflows(struct ampctl *ctl, int argc, char **argv);
int ampctl_watch(struct ampctl *ctl, int argc, char **argv);
int ampctl_checkpoint(struct ampctl *ctl, int argc, char **argv);
int ampctl_export(struct ampctl *ctl, int argc, char **argv); /* checkpoint export */
int ampctl_import(struct ampctl *ctl, int argc, char **argv); /* checkpoint import */
int ampctl_explain(struct ampctl *ctl, int argc, char **argv);
int ampctl_replay(struct ampctl *ctl, int argc, char **argv);
int ampctl_checkpoints(struct ampctl *ctl, int argc, char **argv);
int ampctl_drain(struct ampctl *ctl, int argc, char **argv);
int ampctl_log_level(struct ampctl *ctl, int argc, char **argv);
int ampctl_scale(struct ampctl *ctl, int argc, char **argv);
int ampctl_rollback(struct ampctl *ctl, int argc, char **argv);
int ampctl_create(struct ampctl *ctl, int argc, char **argv);
int ampctl_delete(struct ampctl *ctl, int argc, char **argv);
int ampctl_token(struct ampctl *ctl, int argc, char **argv);

#endif
