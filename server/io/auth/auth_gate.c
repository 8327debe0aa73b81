#include "server/io/auth/auth_gate.h"

#include "rpc/arpc_server.h"
#include "rpc/arpc_tls.h"
#include "server/io/auth/auth.h"
#include "server/io/auth/auth_rules.h"
#include "server/io/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AUTHORIZATION "authorization"

const char *const ampd_auth_metadata[] = {AUTHORIZATION, NULL};

/* ---- the token file ---- */

static int file_error(const char *path, int code, const char *what, struct amp_error *error)
{
    return amp_error_set(error, code, "TOKEN_FILE", "--token-file %.200s: %s", path, what);
}

/*
 * Checks the file's mode and owner: a user who can write it can let anybody in, and one who can read it sees names and
 * roles.
 */
static int check_file(const struct ampd_auth *auth, int fd, size_t *size, struct amp_error *error)
{
    const char *path = auth->options->token_file;
    struct stat file;
    if (fstat(fd, &file) != 0)
        return file_error(path, AMP_EIO, strerror(errno), error);
    if (!S_ISREG(file.st_mode))
        return file_error(path, AMP_EINVAL, "not a file", error);
    if ((file.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return file_error(path, AMP_EINVAL, "others can write it and so let anybody in; chmod go-w it", error);
    if (file.st_size > (off_t)AMPD_AUTH_FILE_MAX)
        return file_error(path, AMP_EINVAL, "longer than 512 KiB; is it a token file?", error);
    if ((file.st_mode & (S_IRGRP | S_IROTH)) != 0)
        amp_log(auth->log, AMP_LOG_WARN, "auth",
                "msg=\"others can read the token file and see who may call; chmod go-r it\" path=%s", path);
    if (file.st_uid != geteuid() && file.st_uid != 0)
        amp_log(auth->log, AMP_LOG_WARN, "auth",
                "msg=\"the token file belongs to another user, who can let anybody in; chown it\" path=%s uid=%u", path,
                (unsigned)file.st_uid);
    *size = (size_t)file.st_size;
    return 0;
}

static int read_all(const char *path, int fd, char *text, size_t *size, struct amp_error *error)
{
    size_t used = 0;
    while (used < *size) {
        ssize_t got = read(fd, text + used, *size - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return file_error(path, AMP_EIO, strerror(errno), error);
        if (got == 0)
            break; /* the file has become shorter meanwhile */
        used += (size_t)got;
    }
    *size = used;
    return 0;
}

static int load_rules(const struct ampd_auth *auth, struct ampd_auth_rules **rules, struct amp_error *error)
{
    const char *path = auth->options->token_file;
    char *text = NULL;
    size_t size = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe or terminal must not hold the loop */
    if (fd < 0 && errno == ENOENT)
        return file_error(path, AMP_ENOTFOUND, "No such file or directory; correct the path", error);
    if (fd < 0)
        return file_error(path, AMP_EINVAL, errno == EACCES ? "ampd's user may not read it; chown it" : strerror(errno),
                          error);
    int rc = check_file(auth, fd, &size, error);
    if (rc == 0 && (text = malloc(size + 1)) == NULL)
        rc = file_error(path, AMP_ENOMEM, "out of memory", error);
    if (rc == 0)
        rc = read_all(path, fd, text, &size, error);
    if (rc == 0)
        rc = ampd_auth_rules_parse(text, size, path, rules, error);
    free(text);
    (void)close(fd); /* only read */
    return rc;
}

static void use_rules(struct ampd_auth *auth, struct ampd_auth_rules *rules)
{
    free(auth->rules);
    auth->rules = rules;
    auth->policy.rules = rules;
    if (rules->count == 0)
        amp_log(auth->log, AMP_LOG_WARN, "auth", "msg=\"the token file has no rule in it\" path=%s",
                auth->options->token_file);
}

/* ---- life ---- */

static void warn_of_tls(const struct ampd_auth *auth)
{
    const char *warning = arpc_tls_warning(auth->tls);
    if (warning[0] != 0)
        amp_log(auth->log, AMP_LOG_WARN, "auth", "msg=\"%s\"", warning);
}

int ampd_auth_open(struct ampd_auth *auth, const struct ampd_auth_options *options, const struct amp_log *log,
                   struct amp_error *error)
{
    *auth = (struct ampd_auth){.options = options, .log = log};
    auth->policy = (struct ampd_auth_policy){
        .on = options->token_file != NULL || options->trusted_ca_file != NULL,
        .cert_roles = options->client_cert_role != NULL ? ampd_auth_roles_of(options->client_cert_role) : 0,
        .token_over_plaintext = options->insecure,
        .own_uid = (uint32_t)geteuid(),
    };
    int rc = 0;
    if (options->token_file != NULL) {
        struct ampd_auth_rules *rules;
        rc = load_rules(auth, &rules, error);
        if (rc == 0)
            use_rules(auth, rules);
    }
    if (rc == 0 && options->cert_file != NULL) {
        const struct arpc_tls_server_options tls = {.size = sizeof tls,
                                                    .cert_file = options->cert_file,
                                                    .key_file = options->key_file,
                                                    .trusted_ca_file = options->trusted_ca_file,
                                                    .client_cert_auth = options->client_cert_auth};
        rc = arpc_tls_server(&tls, &auth->tls, error);
        if (rc == 0)
            warn_of_tls(auth);
    }
    return rc;
}

void ampd_auth_reload(struct ampd_auth *auth)
{
    struct amp_error error = {0};
    struct ampd_auth_rules *rules;
    if (auth->rules == NULL && auth->tls == NULL)
        amp_log(auth->log, AMP_LOG_INFO, "auth", "msg=\"nothing to reload: no --token-file, no --cert-file\"");
    if (auth->rules != NULL) {
        if (load_rules(auth, &rules, &error) == 0) {
            use_rules(auth, rules);
            amp_log(auth->log, AMP_LOG_INFO, "auth", "msg=\"token file reloaded\" rules=%zu", rules->count);
        } else {
            amp_log(auth->log, AMP_LOG_ERROR, "auth",
                    "msg=\"the token file could not be reloaded; the old rules stay in force\" err=\"%s\"", error.text);
        }
    }
    if (auth->tls == NULL)
        return;
    if (arpc_tls_reload(auth->tls, &error) == 0) {
        amp_log(auth->log, AMP_LOG_INFO, "auth", "msg=\"certificates reloaded\"");
        warn_of_tls(auth);
    } else {
        amp_log(auth->log, AMP_LOG_ERROR, "auth",
                "msg=\"the certificates could not be reloaded; the old ones stay in force\" err=\"%s\"", error.text);
    }
}

size_t ampd_auth_expired(const struct ampd_auth *auth, bool *more)
{
    size_t expired = 0;
    int64_t now_us = io_clock_utc_us();
    *more = false;
    for (size_t i = 0; auth->rules != NULL && i < auth->rules->count; i++) {
        const struct ampd_auth_rule *rule = &auth->rules->rules[i];
        bool ends = rule->kind == AMPD_AUTH_TOKEN && rule->expires_us != INT64_MAX;
        expired += ends && now_us >= rule->expires_us;
        *more = *more || (ends && now_us < rule->expires_us);
    }
    return expired;
}

/* ---- refusals ---- */

/* Counts a refusal. True: a log line is due. */
static bool count_refusal(struct ampd_auth_refusals *refusals)
{
    int64_t now_us = io_clock_utc_us();
    refusals->count++;
    /* If the clock was set back, the log must not stay silent until it has caught up. */
    if (refusals->logged_us != 0 && now_us >= refusals->logged_us && now_us - refusals->logged_us < AMPD_AUTH_LOG_US)
        return false;
    refusals->logged_us = now_us;
    return true;
}

/* Marks all refusals as logged, and returns how many were not yet. */
static uint64_t mark_logged(struct ampd_auth_refusals *refusals)
{
    uint64_t suppressed = refusals->count - refusals->logged;
    refusals->logged = refusals->count;
    return suppressed;
}

static void refused(struct ampd_auth *auth, const struct arpc_method *method, const char *peer,
                    const struct amp_error *error)
{
    struct ampd_auth_refusals *refusals = error->code == AMP_EDENIED ? &auth->forbidden : &auth->unauthenticated;
    if (count_refusal(refusals))
        amp_log(auth->log, AMP_LOG_WARN, "auth",
                "msg=\"calls were refused\" count=%" PRIu64 " total=%" PRIu64 " reason=%s method=/%s/%s peer=%s",
                mark_logged(refusals), refusals->count, error->reason, method->service, method->name, peer);
}

void ampd_auth_handshake_failed(struct ampd_auth *auth, const char *peer, const struct amp_error *error)
{
    if (count_refusal(&auth->handshakes))
        amp_log(auth->log, AMP_LOG_WARN, "auth",
                "msg=\"TLS handshakes failed\" count=%" PRIu64 " total=%" PRIu64 " peer=%s err=\"%s\"",
                mark_logged(&auth->handshakes), auth->handshakes.count, peer, error->text);
}

void ampd_auth_close(struct ampd_auth *auth)
{
    uint64_t calls = mark_logged(&auth->unauthenticated) + mark_logged(&auth->forbidden);
    uint64_t handshakes = mark_logged(&auth->handshakes);
    if (calls + handshakes > 0)
        amp_log(auth->log, AMP_LOG_WARN, "auth",
                "msg=\"more calls or handshakes were refused since the last line about it\" calls=%" PRIu64
                " handshakes=%" PRIu64,
                calls, handshakes);
    free(auth->rules);
    arpc_tls_unref(auth->tls);
    *auth = (struct ampd_auth){0};
}

/* ---- each call ---- */

static enum ampd_auth_transport transport_of(const struct arpc_peer *peer)
{
    if (peer->transport == ARPC_TRANSPORT_UNIX)
        return AMPD_AUTH_UNIX;
    if (peer->encrypted)
        return AMPD_AUTH_TLS;
    return arpc_is_loopback(peer->address) ? AMPD_AUTH_LOOPBACK : AMPD_AUTH_PLAINTEXT;
}

/* What is known of a call's caller. `names` is the memory for the names of its certificate. */
static struct ampd_auth_caller caller_of(struct arpc_call *call, const char *names[2])
{
    const struct arpc_peer *peer = arpc_call_peer_info(call);
    size_t count = 0;
    if (peer->subject[0] != 0)
        names[count++] = peer->subject;
    if (peer->alternative[0] != 0)
        names[count++] = peer->alternative;
    const uint8_t *value = NULL, *second;
    size_t size = 0, second_size;
    bool there = arpc_call_metadata(call, AUTHORIZATION, 0, &value, &size);
    return (struct ampd_auth_caller){
        .transport = transport_of(peer),
        .uid_known = peer->uid >= 0,
        .uid = (uint32_t)peer->uid,
        .cert_names = names,
        .cert_name_count = count,
        .authorization = there ? (const char *)value : NULL,
        .authorization_size = size,
        .authorization_twice = there && arpc_call_metadata(call, AUTHORIZATION, 1, &second, &second_size),
    };
}

int ampd_auth_admit_again(const struct ampd_auth *auth, struct arpc_call *call, struct amp_error *error)
{
    const struct arpc_method *method = arpc_call_method(call);
    if (!auth->policy.on || ampd_auth_needed(method) == 0)
        return 0;
    const char *names[2];
    const struct ampd_auth_caller caller = caller_of(call, names);
    return ampd_auth_check(&auth->policy, &caller, method, io_clock_utc_us(), error);
}

int ampd_auth_admit(struct ampd_auth *auth, struct arpc_call *call, struct amp_error *error)
{
    int rc = ampd_auth_admit_again(auth, call, error);
    if (rc != 0)
        refused(auth, arpc_call_method(call), arpc_call_peer(call), error);
    return rc;
}

int ampd_auth_admit_http(struct ampd_auth *auth, const struct ampd_auth_caller *caller,
                         const struct arpc_method *method, const char *peer, bool again, struct amp_error *error)
{
    int rc = ampd_auth_check(&auth->policy, caller, method, io_clock_utc_us(), error);
    if (rc != 0 && !again)
        refused(auth, method, peer, error);
    return rc;
}

void ampd_auth_name(const struct ampd_auth *auth, struct arpc_call *call, char *name, size_t size)
{
    const char *names[2];
    const struct ampd_auth_caller caller = caller_of(call, names);
    ampd_auth_caller_name(&auth->policy, &caller, io_clock_utc_us(), name, size);
    if (name[0] == 0)
        (void)snprintf(name, size, "%s", arpc_call_peer(call));
}

struct ampd_auth_quota ampd_auth_quota(const struct ampd_auth *auth, struct arpc_call *call)
{
    const char *names[2];
    const struct ampd_auth_caller caller = caller_of(call, names);
    return ampd_auth_caller_quota(&auth->policy, &caller, io_clock_utc_us());
}
