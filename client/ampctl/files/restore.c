/*
 * ampctl restore: makes the models of a backup again, on a server or a cluster that does not have them, with any number
 * of shards. All that is to be restored is compared with the manifest first (backup.h); then each model is created, and
 * loaded as `checkpoint import --full` does.
 */
#define _DEFAULT_SOURCE /* realpath */
#include "client/ampctl/ask.h"
#include "client/ampctl/files/backup.h"
#include "client/ampctl/files/import.h"
#include "client/ampctl/parse.h"
#include "client/io/methods.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct restoring {
    struct ampctl *ctl;
    struct ampctl_backup_arguments given;
    json_t *manifest;
    json_t *chosen; /* the models of it that are to be restored */
    json_t *rows;   /* what has been restored */
};

static const char *name_of(const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    return name != NULL ? name : "";
}

static bool has_values(const json_t *entry)
{
    return json_is_object(json_object_get(entry, "checkpoint"));
}

/* ---- before anything is sent ---- */

/* A name that a backup gives up when it is whole, however the folder was reached. */
static int check_name(const struct restoring *x)
{
    char *path = realpath(x->given.folder, NULL);
    if (path == NULL)
        return ampctl_backup_failed(x->ctl, x->given.folder, strerror(errno));
    size_t size = strlen(path), end = strlen(AMPCTL_BACKUP_PARTIAL);
    bool partial = size >= end && strcmp(path + size - end, AMPCTL_BACKUP_PARTIAL) == 0;
    free(path);
    return partial
               ? ampctl_backup_failed(x->ctl, x->given.folder, "the backup was not finished; restore a finished one")
               : 0;
}

static int choose(struct restoring *x)
{
    const json_t *models = json_object_get(x->manifest, "models");
    json_t *entry;
    size_t i;
    x->chosen = json_array();
    x->rows = json_array();
    bool ok = x->chosen != NULL && x->rows != NULL;
    json_array_foreach(models, i, entry) if (x->given.model[0] == 0 || strcmp(x->given.model, name_of(entry)) == 0) ok =
        ok && json_array_append(x->chosen, entry) == 0;
    if (!ok)
        return ampctl_backup_failed(x->ctl, x->given.folder, "there is no memory for its manifest");
    if (json_array_size(x->chosen) > 0)
        return 0;
    (void)ampctl_print(stderr, "ampctl: %s: %s: the backup has no model %s; its manifest.json names those that it has",
                       x->ctl->verb, x->given.folder, x->given.model);
    return AMPCTL_EXIT_FAILED;
}

static int check_file(const struct restoring *x, const char *path, const json_t *wanted)
{
    json_t *found = ampctl_backup_hash(x->ctl, path);
    if (found == NULL)
        return AMPCTL_EXIT_FAILED;
    bool same = json_equal(found, wanted);
    json_decref(found);
    return same ? 0
                : ampctl_backup_failed(x->ctl, path, "it is not the file that the manifest describes; it is damaged");
}

/* What CreateModel gets: *message is the caller's to free when 0 is returned. */
static int read_specification(const struct restoring *x, const char *model, char **message, size_t *size)
{
    char path[AMPCTL_BACKUP_PATH_MAX];
    struct ampd_msg_create_model_request request;
    struct amp_error error = {0};
    ampctl_backup_path(path, x->given.folder, model, AMPCTL_BACKUP_SPECIFICATION);
    int code = ampctl_backup_read(x->ctl, path, AMPD_MSG_SIZE_MAX, message, size);
    if (code != 0)
        return code;
    if (ampd_msg_create_model_request_decode(&request, *message, *size, &error) != 0)
        code = ampctl_backup_failed(x->ctl, path, error.text);
    else if (!request.has_spec || strcmp(request.spec.name, model) != 0)
        code = ampctl_backup_failed(x->ctl, path, "it is that of another model");
    ampd_msg_create_model_request_free(&request);
    if (code != 0)
        free(*message);
    return code;
}

static int check_model(const struct restoring *x, const json_t *entry)
{
    const char *model = name_of(entry), *file;
    json_t *files = json_object_get(entry, "files"), *wanted;
    char path[AMPCTL_BACKUP_PATH_MAX], *message;
    size_t size;
    int code = 0;
    if (!ampctl_backup_name_ok(model) || json_object_get(files, AMPCTL_BACKUP_SPECIFICATION) == NULL ||
        (has_values(entry) && json_object_get(files, AMPCTL_BACKUP_CHECKPOINT) == NULL))
        return ampctl_backup_failed(x->ctl, x->given.folder, "its manifest is not that of a backup");
    json_object_foreach(files, file, wanted)
    {
        if (strchr(file, '/') != NULL)
            return ampctl_backup_failed(x->ctl, x->given.folder, "its manifest is not that of a backup");
        ampctl_backup_path(path, x->given.folder, model, file);
        if (code == 0)
            code = check_file(x, path, wanted);
    }
    if (code == 0)
        code = read_specification(x, model, &message, &size);
    if (code == 0)
        free(message);
    return code;
}

/* None of the models may be there. */
static int check_server(const struct restoring *x)
{
    json_t *there = json_array(), *one, *entry;
    size_t i, j;
    int code = there == NULL ? AMPCTL_EXIT_FAILED : ampctl_all_models(x->ctl, there);
    ampctl_close(x->ctl);
    json_array_foreach(there, i, one) json_array_foreach(x->chosen, j, entry)
    {
        if (code != 0 || !json_equal(json_object_get(one, "name"), json_object_get(entry, "name")))
            continue;
        (void)ampctl_print(stderr,
                           "ampctl: %s: %s exists already, and is left as it is; nothing was restored. \"ampctl delete "
                           "%s\" removes it; restore DIR MODEL restores one model of several",
                           x->ctl->verb, name_of(entry), name_of(entry));
        code = AMPCTL_EXIT_FAILED;
    }
    json_decref(there);
    return code;
}

static int check(struct restoring *x)
{
    json_t *entry;
    size_t i;
    int code = check_name(x);
    if (code != 0)
        return code;
    x->manifest = ampctl_backup_manifest_read(x->ctl, x->given.folder);
    code = x->manifest == NULL ? AMPCTL_EXIT_FAILED : choose(x);
    json_array_foreach(x->chosen, i, entry) if (code == 0) code = check_model(x, entry);
    return code == 0 ? check_server(x) : code;
}

/* ---- what is sent ---- */

static int create(const struct restoring *x, const char *model)
{
    char *message;
    size_t size;
    int code = read_specification(x, model, &message, &size);
    if (code != 0)
        return code;
    struct amp_buf body;
    struct ampclient_reply reply = {0};
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    code = ampctl_ask(x->ctl, AMPCLIENT_PARAMETER_SERVICE "CreateModel", amp_buf_append(&body, message, size), &body,
                      &reply);
    ampclient_reply_close(&reply);
    ampctl_close(x->ctl);
    amp_buf_close(&body);
    free(message);
    return code;
}

static int load(const struct restoring *x, const char model[128], struct ampctl_imported *made)
{
    char path[AMPCTL_BACKUP_PATH_MAX];
    bool already = false;
    ampctl_backup_path(path, x->given.folder, model, AMPCTL_BACKUP_CHECKPOINT);
    int code = ampctl_import_full(x->ctl, model, path, made, &already);
    if (code != 0)
        (void)ampctl_print(stderr,
                           "ampctl: %s: %s was created, and has no values yet: \"ampctl delete %s\", then restore it "
                           "again",
                           x->ctl->verb, model, model);
    return code == 0 && already ? ampctl_backup_failed(x->ctl, model, "another client has loaded it meanwhile") : code;
}

static int restore_model(const struct restoring *x, const json_t *entry)
{
    struct ampctl_imported made = {0};
    char model[128];
    (void)snprintf(model, sizeof model, "%s", name_of(entry));
    int code = create(x, model);
    if (code == 0 && has_values(entry))
        code = load(x, model, &made);
    if (code != 0)
        return code;
    json_t *row = json_pack("{s:s, s:I, s:I, s:f, s:I}", "model", model, "step", (json_int_t)made.step, "applied",
                            (json_int_t)made.applied, "scale", (double)made.scale, "tensors", (json_int_t)made.tensors);
    return json_array_append_new(x->rows, row) == 0 ? 0 : AMPCTL_EXIT_FAILED;
}

/* ---- the verb ---- */

static int say(const struct restoring *x)
{
    static const struct ampctl_column columns[] = {{"model", "MODEL", false},    {"step", "STEP", true},
                                                   {"applied", "APPLIED", true}, {"scale", "SCALE", true},
                                                   {"tensors", "TENSORS", true}, {NULL, NULL, false}};
    return ampctl_print_rows(x->ctl, columns, json_incref(x->rows));
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct restoring *x = state->input;
    return ampctl_backup_argument(key, arg, state, &x->given);
}

/* Where one of several models could not be restored: how many are there, and how the others follow. */
static void say_partial(const struct restoring *x)
{
    size_t done = json_array_size(x->rows), all = json_array_size(x->chosen);
    if (done > 0)
        (void)ampctl_print(stderr,
                           "ampctl: %s: %zu of the %zu models are restored and stay, %s is not; when the cause is "
                           "gone, restore each that is missing with restore DIR MODEL",
                           x->ctl->verb, done, all, name_of(json_array_get(x->chosen, done)));
}

static int run_restore(struct ampctl *ctl, int argc, char **argv)
{
    struct restoring x = {.ctl = ctl};
    json_t *entry;
    size_t i;
    ampctl_parse(ctl, &ampctl_restore_verb, &x, argc, argv);
    int code = check(&x);
    json_array_foreach(x.chosen, i, entry) if (code == 0) code = restore_model(&x, entry);
    if (code != 0)
        say_partial(&x);
    /* What there is to be told of those before one that failed, too. */
    if (json_array_size(x.rows) > 0 && say(&x) != 0)
        code = AMPCTL_EXIT_FAILED;
    json_decref(x.rows);
    json_decref(x.chosen);
    json_decref(x.manifest);
    return code;
}

const struct ampctl_verb ampctl_restore_verb = {
    .name = "restore",
    .arguments = "DIR [MODEL]",
    .summary = "models from a backup",
    .doc = "Creates the models of a backup, or one of them, on a server or cluster that does not have them, with "
           "any number of shards. Nothing is sent before all of it has been compared with the backup's manifest. "
           "Training continues after the step of the checkpoint; the history starts again.",
    .examples = "ampctl restore /srv/backup/2026-11-23\n"
                "ampctl -e 10.0.0.7:7420 restore /srv/backup/2026-11-23 digits",
    .parser = parse,
    .timeout_ms = AMPCTL_FILE_TIMEOUT_MS,
    .run = run_restore,
};
