/*
 * ampctl doctor: looks at all that a server needs of its surroundings and its clients, one line each, with what to do
 * where something is wrong. It changes nothing: what a role may do is found out by calls that are refused for what they
 * lack, behind the question of who calls.
 */
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"
#include "client/io/methods.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#define TEXT_SIZE 1024

/* Clocks that differ by more cannot be told from expired tokens and certificates for long. */
#define CLOCK_OFF_S 5.0
/* Above it a burst of connections finds none left. */
#define DESCRIPTORS_PERCENT 90

#define ETCD_REMEDY "see whether etcd runs (etcdctl endpoint health) and can be reached from there"

enum verdict { FINE, WRONG, UNKNOWN };

struct doctor {
    struct ampctl *ctl;
    json_t *rows;
    bool wrong;
    struct ampd_msg_get_status_response status;
    bool has_status;
};

static void find(struct doctor *doctor, const char *check, enum verdict verdict, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void find(struct doctor *doctor, const char *check, enum verdict verdict, const char *format, ...)
{
    static const char *const words[] = {"ok", "wrong", "unknown"};
    char text[TEXT_SIZE];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    doctor->wrong = doctor->wrong || verdict == WRONG;
    (void)json_array_append_new(doctor->rows,
                                json_pack("{s:s, s:s, s:s}", "check", check, "verdict", words[verdict], "text", text));
}

static double now(void)
{
    struct timespec at = {0};
    (void)clock_gettime(CLOCK_REALTIME, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* One try that tells nobody; *reply is the caller's to close. */
static int try_call(struct ampctl *ctl, const char *path, int encoded, struct amp_buf *body,
                    struct ampclient_reply *reply)
{
    ctl->quiet = true;
    int code = ampctl_ask(ctl, path, encoded, body, reply);
    ctl->quiet = false;
    amp_buf_close(body);
    return code;
}

/* ---- reaching it ---- */

static void find_tls(struct doctor *doctor)
{
    bool tls = doctor->ctl->link->channels.secure.tls != NULL;
    find(doctor, "tls", FINE, "%s",
         tls ? "the connection is TLS, and the certificate is for this address"
             : "plaintext, as the address says; tls://HOST:PORT would be TLS");
}

/* Why there is no answer: false, and nothing else can be looked at. */
static bool find_answer(struct doctor *doctor, const struct ampclient_reply *reply, double seconds)
{
    const char *asked = doctor->ctl->endpoints, *text = reply->error.text;
    if (reply->code == 0 || reply->from_peer) {
        find(doctor, "endpoint", FINE, "%s answers in %.1f ms", asked, seconds * 1000);
        find_tls(doctor);
        return true;
    }
    if (strstr(text, "TLS") != NULL || strstr(text, "certificate") != NULL) {
        find(doctor, "endpoint", FINE, "%s is reached", asked);
        find(doctor, "tls", WRONG, "%s%s", text,
             strstr(text, "certificate") != NULL   ? "; see --cacert and --server-name"
             : strstr(text, ARPC_USES_TLS) != NULL ? "; give --cacert, the certificate of its authority"
                                                   : "");
    } else if (reply->code == AMP_EDEADLINE) {
        find(doctor, "endpoint", WRONG,
             "%s has not answered within %g s; see whether a firewall is between, and whether TLS is meant (tls://)",
             asked, (double)doctor->ctl->timeout_ms / 1000);
    } else {
        find(doctor, "endpoint", WRONG, "%s%s", text,
             ampctl_nobody(reply) ? "; start ampd there, or name another address with --endpoint" : "");
    }
    return false;
}

static bool get_status(struct doctor *doctor, struct ampclient_reply *reply, double *began, double *ended)
{
    struct ampd_msg_get_status_request request = {0};
    struct amp_buf body;
    struct amp_error error = {0};
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    *began = now();
    int code = try_call(doctor->ctl, AMPCLIENT_ADMIN_SERVICE "GetStatus",
                        ampd_msg_get_status_request_encode(&request, &body), &body, reply);
    *ended = now();
    if (code == 0 &&
        ampd_msg_get_status_response_decode(&doctor->status, reply->body.data, reply->body.size, &error) != 0)
        find(doctor, "versions", WRONG, "the server's answer cannot be read (%s); are versions mixed?", error.text);
    else
        doctor->has_status = code == 0;
    return doctor->has_status;
}

/* ---- who calls ---- */

/* Whether a call was let in: what it lacks is told only then. */
static bool is_let_in(struct doctor *doctor, const char *path, int encoded, struct amp_buf *body)
{
    struct ampclient_reply reply;
    (void)try_call(doctor->ctl, path, encoded, body, &reply);
    bool in = reply.code == 0 || (reply.from_peer && reply.status != ARPC_STATUS_PERMISSION_DENIED &&
                                  reply.status != ARPC_STATUS_UNAUTHENTICATED);
    ampclient_reply_close(&reply);
    return in;
}

static bool is_operator(struct doctor *doctor)
{
    const struct ampd_msg_set_log_level_request none = {0}; /* refused: it names no level */
    struct amp_buf body;
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    return is_let_in(doctor, AMPCLIENT_ADMIN_SERVICE "SetLogLevel", ampd_msg_set_log_level_request_encode(&none, &body),
                     &body);
}

static bool is_worker(struct doctor *doctor)
{
    const struct ampd_msg_keep_alive_request none = {0}; /* refused: it names no model */
    struct amp_buf body;
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    return is_let_in(doctor, AMPCLIENT_PARAMETER_SERVICE "KeepAlive", ampd_msg_keep_alive_request_encode(&none, &body),
                     &body);
}

static void find_token(struct doctor *doctor, const struct ampclient_reply *reply)
{
    bool has = doctor->ctl->link->channels.secure.has_token;
    if (reply->status == ARPC_STATUS_UNAUTHENTICATED)
        find(doctor, "token", WRONG, "%s; %s", reply->error.text,
             has ? "\"ampctl token new\" makes another, and the server reloads its file at SIGHUP"
                 : "give --token-file; \"ampctl token new\" makes a token");
    else if (reply->status == ARPC_STATUS_PERMISSION_DENIED)
        find(doctor, "token", WRONG, "%s; a token of the role read, worker or operator is needed", reply->error.text);
    else
        find(doctor, "token", FINE, "%s has the role %s", has ? "the token" : "a caller without a token",
             is_operator(doctor) ? "operator"
             : is_worker(doctor) ? "worker"
                                 : "read");
}

/* ---- the server ---- */

static void find_version(struct doctor *doctor)
{
    const char *server = doctor->status.version, *dot = strrchr(server, '.');
    size_t size = dot != NULL ? (size_t)(dot - server) + 1 : 0; /* "major.minor." */
    if (size > 0 && strncmp(server, AMPCTL_VERSION, size) == 0)
        find(doctor, "versions", FINE, "ampctl %s, ampd %s", AMPCTL_VERSION, server);
    else
        find(doctor, "versions", WRONG, "ampctl is %s, and ampd %s; install the same version of both", AMPCTL_VERSION,
             server);
}

static void find_clock(struct doctor *doctor, double began, double ended)
{
    if (!doctor->status.has_server_time) {
        find(doctor, "clock", UNKNOWN, "the server does not say what time it has");
        return;
    }
    double off = (double)doctor->status.server_time.us / 1e6 - (began + ended) / 2;
    bool fine = fabs(off) <= CLOCK_OFF_S + (ended - began) / 2;
    find(doctor, "clock", fine ? FINE : WRONG, "the server's clock is %.3f s %s this one%s", fabs(off),
         off < 0 ? "behind" : "ahead of", fine ? "" : "; synchronise both (timedatectl, chrony)");
}

static void find_descriptors(struct doctor *doctor)
{
    uint64_t used = doctor->status.descriptors, most = doctor->status.descriptors_max;
    if (used == 0 || most == 0)
        find(doctor, "descriptors", FINE, "the server names no limit");
    else if (used > most / 100 * DESCRIPTORS_PERCENT + most % 100 * DESCRIPTORS_PERCENT / 100)
        find(doctor, "descriptors", WRONG, "%" PRIu64 " of %" PRIu64 " are open; raise the limit (LimitNOFILE=)", used,
             most);
    else
        find(doctor, "descriptors", FINE, "%" PRIu64 " of %" PRIu64 " are open", used, most);
}

/* False, once it has said so: the model does not train. */
static bool find_model(struct doctor *doctor, const struct ampd_msg_model_status *model)
{
    if (strstr(model->waiting_for, "an operator's help") != NULL || model->frozen)
        find(doctor, "models", WRONG, "%s waits for %s; see ampctl status %s", model->name,
             model->frozen ? "a scale above its floor (ampctl explain, scale set)" : model->waiting_for, model->name);
    else if (model->waiting_ms != 0)
        find(doctor, "models", WRONG,
             "%s waits for %s; start that worker, with that rank; \"ampctl evict %s RANK\" frees the rank of one "
             "that hangs, a model made with --on-loss shrink goes on without, and \"ampctl delete %s --force\" ends "
             "one that is given up",
             model->name, model->waiting_for, model->name, model->name);
    else if (model->unstable)
        find(doctor, "models", WRONG, "%s overflows in step after step; see ampctl explain %s %" PRIu64, model->name,
             model->name, model->step - 1);
    else
        return true;
    return false;
}

static void find_models(struct doctor *doctor)
{
    const struct ampd_msg_model_status_list *models = &doctor->status.models;
    size_t waiting = 0;
    bool fine = true;
    for (size_t i = 0; i < models->count; i++) {
        waiting += models->items[i].waiting_for[0] != 0;
        fine = find_model(doctor, &models->items[i]) && fine;
    }
    if (fine)
        find(doctor, "models", FINE, "%zu, of which %zu wait%s for somebody", models->count, waiting,
             waiting == 1 ? "s" : "");
}

/* `refusal`: why it does not tell its state, "" where it does or the caller may not ask. */
static void find_serving(struct doctor *doctor, const char *refusal)
{
    struct ampclient_reply reply;
    struct amp_buf body;
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    (void)try_call(doctor->ctl, AMPCLIENT_HEALTH_CHECK, 0, &body, &reply);
    bool serving = reply.code == 0 && ampctl_is_serving(&reply.body);
    if (serving)
        find(doctor, "serving", FINE, "it accepts work");
    else if (doctor->has_status && doctor->status.draining)
        find(doctor, "serving", WRONG, "it drains, and ends soon; start it again when it has ended");
    else if (refusal[0] != 0)
        find(doctor, "serving", WRONG, "%s; %s", refusal,
             strstr(refusal, "etcd") != NULL ? ETCD_REMEDY : "see its log");
    else
        find(doctor, "serving", WRONG, "it accepts no work yet; the lines below, or its log, say why");
    ampclient_reply_close(&reply);
}

/* ---- the cluster ---- */

/* Whether the process at an address can be reached from here, as workers have to. */
static void find_port(struct doctor *doctor, uint32_t shard, const char *endpoint)
{
    char asked[300];
    struct amp_error error = {0};
    struct ampclient_link *link = NULL;
    struct ampclient_reply reply = {0};
    bool tls = doctor->ctl->link->channels.secure.tls != NULL && strncmp(endpoint, "unix:", 5) != 0;
    const struct ampclient_link_options options = {.secure = doctor->ctl->secure,
                                                   .channel.connect_ms = (int64_t)doctor->ctl->timeout_ms};
    (void)snprintf(asked, sizeof asked, "%s%s", tls ? "tls://" : "", endpoint);
    if (ampclient_link_open(asked, &options, &link, &error) != 0) {
        find(doctor, "ports", WRONG, "shard %" PRIu32 " at %s: %s", shard, endpoint, error.text);
        return;
    }
    const struct ampclient_request request = {.path = AMPCLIENT_HEALTH_CHECK, .timeout_ms = doctor->ctl->timeout_ms};
    (void)ampclient_rpc(link, &request, &reply);
    if (reply.code == 0 || reply.from_peer)
        find(doctor, "ports", FINE, "shard %" PRIu32 " is reached at %s", shard, endpoint);
    else
        find(doctor, "ports", WRONG,
             "shard %" PRIu32 ": %s; workers must reach %s: open the port, or give that ampd an address "
             "that they reach (--advertise of a --cluster, --peers, or --listen)",
             shard, reply.error.text, endpoint);
    ampclient_reply_close(&reply);
    if (ampclient_link_close(link))
        ampclient_link_free(link);
}

/* What is wrong with etcd and with what is stored: a shard tells the first of both. */
static void find_troubles(struct doctor *doctor, const struct ampd_msg_get_cluster_response *cluster)
{
    bool etcd = false, disk = false;
    for (size_t i = 0; i < cluster->shards.count; i++) {
        const struct ampd_msg_cluster_shard *shard = &cluster->shards.items[i];
        bool about_etcd = strstr(shard->trouble, "etcd") != NULL;
        if (shard->trouble[0] == 0)
            continue;
        etcd = etcd || about_etcd;
        disk = disk || !about_etcd;
        find(doctor, about_etcd ? "etcd" : "disk", WRONG, "shard %" PRIu32 " at %s: %s; %s", shard->index,
             shard->endpoint, shard->trouble, about_etcd ? ETCD_REMEDY : "see its disk (df) and its log");
    }
    if (!disk)
        find(doctor, "disk", FINE, "nothing keeps it from storing");
    if (!etcd && cluster->shard_count == 1 && cluster->standbys.count == 0)
        find(doctor, "etcd", FINE, "no shard waits for it");
    else if (!etcd)
        find(doctor, "etcd", FINE, "no shard waits for it; %zu stand%s by", cluster->standbys.count,
             cluster->standbys.count == 1 ? "s" : "");
}

static void find_shards(struct doctor *doctor, const struct ampd_msg_get_cluster_response *cluster)
{
    size_t up = 0;
    for (size_t i = 0; i < cluster->shards.count; i++) {
        const struct ampd_msg_cluster_shard *shard = &cluster->shards.items[i];
        up += shard->up;
        if (!shard->up && !shard->unknown)
            find(doctor, "shards", WRONG, "shard %" PRIu32 " is not there; %sstart its ampd at %s%s", shard->index,
                 cluster->standbys.count > 0 ? "one that stands by takes its place when the lease is over; or " : "",
                 shard->endpoint[0] != 0 ? shard->endpoint : "any address of the cluster",
                 cluster->standbys.count > 0 ? "" : ", or let one stand by (docs/cluster.md)");
    }
    if (up == cluster->shards.count)
        find(doctor, "shards", FINE, "%zu of %" PRIu32 " are there", up, cluster->shard_count);
    /* Workers of one shard call the address they are given, as this has; it may listen at every one of its host. */
    if (cluster->shard_count == 1)
        find(doctor, "ports", FINE, "one shard, reached where it was asked for");
    for (size_t i = 0; cluster->shard_count > 1 && i < cluster->shards.count; i++)
        if (cluster->shards.items[i].endpoint[0] != 0 && cluster->shards.items[i].up)
            find_port(doctor, cluster->shards.items[i].index, cluster->shards.items[i].endpoint);
}

static void find_cluster(struct doctor *doctor)
{
    struct ampd_msg_get_cluster_request request = {0};
    struct ampd_msg_get_cluster_response cluster;
    struct amp_buf body;
    struct ampclient_reply reply;
    struct amp_error error = {0};
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    int code = try_call(doctor->ctl, AMPCLIENT_ADMIN_SERVICE "GetCluster",
                        ampd_msg_get_cluster_request_encode(&request, &body), &body, &reply);
    if (code != 0) {
        find(doctor, "shards", WRONG, "%s", reply.error.text);
    } else if (ampd_msg_get_cluster_response_decode(&cluster, reply.body.data, reply.body.size, &error) != 0) {
        find(doctor, "shards", WRONG, "the server's answer cannot be read (%s); are versions mixed?", error.text);
    } else {
        find_troubles(doctor, &cluster);
        find_shards(doctor, &cluster);
        ampd_msg_get_cluster_response_free(&cluster);
    }
    ampclient_reply_close(&reply);
}

/* ---- the verb ---- */

static void examine(struct doctor *doctor)
{
    struct ampclient_reply reply;
    double began, ended;
    bool answered = get_status(doctor, &reply, &began, &ended);
    if (answered) { /* once more: the first call has connected, and may have gone on from a standby to a shard */
        ampd_msg_get_status_response_free(&doctor->status);
        ampclient_reply_close(&reply);
        answered = get_status(doctor, &reply, &began, &ended);
    }
    if (find_answer(doctor, &reply, ended - began)) {
        find_token(doctor, &reply);
        bool refused = reply.code != 0 && reply.status == ARPC_STATUS_UNAVAILABLE;
        find_serving(doctor, refused ? reply.error.text : "");
    }
    ampclient_reply_close(&reply);
    if (!answered)
        return;
    find_version(doctor);
    find_clock(doctor, began, ended);
    find_descriptors(doctor);
    find_models(doctor);
    find_cluster(doctor);
    ampd_msg_get_status_response_free(&doctor->status);
}

static int print(const struct doctor *doctor)
{
    static const struct ampctl_column columns[] = {
        {"check", "CHECK", false}, {"verdict", "VERDICT", false}, {"text", "TEXT", false}, {NULL, NULL, false}};
    struct ampctl_list list = {.out = stdout, .json = doctor->ctl->json, .csv = doctor->ctl->csv, .columns = columns};
    if (list.json || list.csv)
        return ampctl_list_page(&list, doctor->rows) == 0 && ampctl_list_end(&list) == 0 ? 0 : -1;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(doctor->rows); i++) {
        const json_t *row = json_array_get(doctor->rows, i);
        rc = ampctl_print(stdout, "%-7s %-12s %s", json_string_value(json_object_get(row, "verdict")),
                          json_string_value(json_object_get(row, "check")),
                          json_string_value(json_object_get(row, "text")));
    }
    return rc;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    if (key == ARGP_KEY_ARG)
        argp_error(state, "doctor takes no argument, but got \"%.40s\"", arg);
    return ARGP_ERR_UNKNOWN;
}

static int run_doctor(struct ampctl *ctl, int argc, char **argv)
{
    struct doctor doctor = {.ctl = ctl, .rows = json_array()};
    ampctl_parse(ctl, &ampctl_doctor_verb, NULL, argc, argv);
    int code = doctor.rows != NULL ? ampctl_open(ctl) : AMPCTL_EXIT_FAILED;
    if (code == 0) {
        examine(&doctor);
        code = print(&doctor) == 0 && !doctor.wrong ? 0 : AMPCTL_EXIT_FAILED;
    }
    json_decref(doctor.rows);
    return code;
}

const struct ampctl_verb ampctl_doctor_verb = {
    .name = "doctor",
    .summary = "what is wrong with a server, and what to do",
    .doc = "Looks at the endpoint, TLS, the token and its role, versions, clocks, descriptors, models, disks, etcd, "
           "shards and their ports: one line each, with what to do where something is wrong. Ends with 0 if nothing "
           "is, 1 if something is.",
    .examples = "ampctl doctor\n"
                "ampctl -e tls://db.example:7420 --token-file root.token doctor",
    .parser = parse,
    .run = run_doctor,
};
