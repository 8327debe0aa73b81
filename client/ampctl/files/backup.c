/*
 * ampctl backup: the newest checkpoint of each model as `checkpoint export` writes it, with what it takes to make the
 * model again (backup.h). All is written to DIR.partial, which gets the name DIR when it is whole and synced.
 *
 * DIR.partial is locked by flock as long as a backup writes there, so that the next one sees whether it is left over.
 */
#define _GNU_SOURCE /* renameat2, flock, nftw */
#include "client/ampctl/ask.h"
#include "client/ampctl/files/backup.h"
#include "client/ampctl/files/export.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/view/history.h"
#include "client/io/methods.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <libgen.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/*
 * Exports of one model: where training is so fast that a checkpoint goes while it is read, a newer one is there, and a
 * model that is gone stays so.
 */
#define TRIES 3

/* Folders that nftw has open at once; those below DIR.partial are five deep. */
#define WALK_DESCRIPTORS 16

#define EXIT_NOT_FOUND (AMPCTL_EXIT_RPC + ARPC_STATUS_NOT_FOUND)

struct backing_up {
    struct ampctl *ctl;
    struct ampctl_backup_arguments given;
    char partial[AMPCTL_BACKUP_FOLDER_MAX + sizeof AMPCTL_BACKUP_PARTIAL];
    int lock;         /* DIR.partial, open to the end; -1: not yet */
    json_t *models;   /* rows of what the server has */
    json_t *manifest; /* what is made */
    json_t *list;     /* the member "models" of it, borrowed */
};

static int no_memory(const struct backing_up *x)
{
    return ampctl_backup_failed(x->ctl, x->given.folder, "there is no memory for its manifest");
}

/* ---- DIR.partial ---- */

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *at)
{
    (void)status;
    return at->level == 0 ? 0 : type == FTW_DP ? rmdir(path) : unlink(path);
}

/* Whether a backup has such a name below models/MODEL; with letters behind it, of one that a kill has cut off. */
static bool is_file_of_a_model(const char *name)
{
    static const char *const names[] = {AMPCTL_BACKUP_SPECIFICATION, AMPCTL_BACKUP_CHECKPOINT, AMPCTL_BACKUP_HISTORY,
                                        AMPCTL_BACKUP_OVERFLOWS};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* Ends the walk with 1 at what is of no backup: "manifest.json" and "models/MODEL/FILE" are. */
static int find_foreign(const char *path, const struct stat *status, int type, struct FTW *at)
{
    static const char manifest[] = "manifest.json";
    const char *name = path + at->base;
    (void)status;
    bool known = at->level == 0 || (type == FTW_D && at->level == 2) ||
                 (type == FTW_D && at->level == 1 && strcmp(name, "models") == 0) ||
                 (type == FTW_F && at->level == 1 && strncmp(name, manifest, sizeof manifest - 1) == 0) ||
                 ((type == FTW_F || type == FTW_D) && at->level == 3 && is_file_of_a_model(name)) ||
                 at->level > 3; /* below such a folder, where an export puts its parts together */
    return known ? 0 : 1;
}

/* Makes DIR.partial, or empties the one that an earlier backup has left. */
static int make_partial(struct backing_up *x)
{
    char models[AMPCTL_BACKUP_PATH_MAX];
    struct stat here, there;
    if (lstat(x->given.folder, &here) == 0)
        return ampctl_backup_failed(x->ctl, x->given.folder, "it exists; name another folder");
    if (mkdir(x->partial, 0700) != 0 && errno != EEXIST)
        return ampctl_backup_failed(x->ctl, x->partial, strerror(errno));
    x->lock = open(x->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (x->lock < 0)
        return ampctl_backup_failed(x->ctl, x->partial, strerror(errno));
    /* A file system without locks, of a network perhaps, goes without. */
    bool taken = flock(x->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    /* The other backup may have given it its name meanwhile. */
    if (taken || fstat(x->lock, &here) != 0 || lstat(x->partial, &there) != 0 || here.st_ino != there.st_ino)
        return ampctl_backup_failed(x->ctl, x->partial, "another backup is written there; wait for it");
    if (here.st_uid != geteuid())
        return ampctl_backup_failed(x->ctl, x->partial, "it is another user's; name another folder");
    if (nftw(x->partial, find_foreign, WALK_DESCRIPTORS, FTW_PHYS | FTW_MOUNT) != 0)
        return ampctl_backup_failed(x->ctl, x->partial, "it holds files that belong to no backup; remove them");
    ampctl_backup_path(models, x->partial, "", "");
    if (nftw(x->partial, remove_one, WALK_DESCRIPTORS, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) != 0 ||
        mkdir(models, 0700) != 0 || fchmod(x->lock, 0700) != 0)
        return ampctl_backup_failed(x->ctl, x->partial, strerror(errno));
    return 0;
}

/* What is not whole goes, as far as it can. */
static void drop_partial(const struct backing_up *x)
{
    struct stat status;
    if (lstat(x->partial, &status) != 0) /* it has its name */
        return;
    if (nftw(x->partial, remove_one, WALK_DESCRIPTORS, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) != 0 || rmdir(x->partial) != 0)
        (void)ampctl_print(stderr,
                           "ampctl: backup: %s is left behind and incomplete; the next backup of that name replaces it",
                           x->partial);
}

static int sync_folder(const struct backing_up *x, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = fd < 0 || fsync(fd) != 0 ? ampctl_backup_failed(x->ctl, path, strerror(errno)) : 0;
    if (fd >= 0)
        (void)close(fd);
    return code;
}

static int take_name(const struct backing_up *x)
{
    struct stat status;
    if (renameat2(AT_FDCWD, x->partial, AT_FDCWD, x->given.folder, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (lstat(x->given.folder, &status) == 0) { /* a file system without that flag, NFS for one */
        errno = EEXIST;
        return -1;
    }
    return rename(x->partial, x->given.folder);
}

static int finish(const struct backing_up *x)
{
    char path[AMPCTL_BACKUP_PATH_MAX];
    ampctl_backup_path(path, x->partial, "", "");
    int code = sync_folder(x, path);
    if (code == 0)
        code = ampctl_backup_manifest_write(x->ctl, x->partial, x->manifest);
    if (code == 0)
        code = sync_folder(x, x->partial);
    if (code == 0 && take_name(x) != 0)
        code = ampctl_backup_failed(x->ctl, x->given.folder, strerror(errno));
    (void)snprintf(path, sizeof path, "%s", x->given.folder);
    const char *parent = dirname(path);
    /* One that may be written to but not read, as a drop folder, cannot be synced. */
    return code == 0 && access(parent, R_OK) == 0 ? sync_folder(x, parent) : code;
}

/* ---- one model ---- */

static int write_specification(const struct backing_up *x, const char *path, const struct ampd_msg_model_spec *spec)
{
    const struct ampd_msg_create_model_request request = {.has_spec = true, .spec = *spec};
    struct amp_buf body;
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    int code = ampd_msg_create_model_request_encode(&request, &body) == 0
                   ? ampctl_backup_write(x->ctl, path, body.data, body.size)
                   : ampctl_backup_failed(x->ctl, path, "the specification cannot be encoded; are versions mixed?");
    amp_buf_close(&body);
    return code;
}

static int write_rows(const struct backing_up *x, const char *path, const char model[128], uint64_t step,
                      bool overflows)
{
    FILE *out = fopen(path, "wxe"); /* of glibc: x is O_EXCL, e is O_CLOEXEC */
    if (out == NULL)
        return ampctl_backup_failed(x->ctl, path, strerror(errno));
    int code = ampctl_history_write(x->ctl, model, step, overflows, out);
    ampctl_close(x->ctl);
    if (fflush(out) != 0 || ferror(out) || fsync(fileno(out)) != 0)
        code = ampctl_backup_failed(x->ctl, path, "it could not be written; is the disk full?");
    (void)fclose(out);
    return code;
}

static json_t *checkpoint_object(const struct ampctl_exported *made)
{
    const struct amp_scaler_state *scaler = &made->carry.scaler;
    json_t *states = json_array();
    for (uint32_t rank = 0; states != NULL && rank < made->world_size; rank++)
        if (json_array_append_new(states, json_pack("{s:I, s:I}", "rank", (json_int_t)rank, "size",
                                                    (json_int_t)made->user_states_sizes[rank])) != 0) {
            json_decref(states);
            states = NULL;
        }
    json_t *record = json_pack(
        "{s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "scale", (double)scaler->scale, "scale_id",
        (json_int_t)scaler->scale_id, "growth_tracker", (json_int_t)scaler->growth_tracker, "hysteresis_left",
        (json_int_t)scaler->hysteresis_left, "consecutive_overflows", (json_int_t)scaler->consecutive_overflows,
        "total_overflows", (json_int_t)scaler->total_overflows, "steps_since_overflow",
        (json_int_t)scaler->steps_since_overflow, "attempted", (json_int_t)scaler->attempted, "applied",
        (json_int_t)scaler->applied, "skipped", (json_int_t)scaler->skipped);
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o}", "epoch", (json_int_t)made->epoch, "step", (json_int_t)made->step,
                     "version", (json_int_t)made->version, "decided_step", (json_int_t)made->decided, "scale", record,
                     "user_states", states);
}

static int write_checkpoint(const struct backing_up *x, const char model[128], json_t *entry)
{
    char path[AMPCTL_BACKUP_PATH_MAX];
    struct ampctl_exported made;
    int code = EXIT_NOT_FOUND;
    ampctl_backup_path(path, x->partial, model, AMPCTL_BACKUP_CHECKPOINT);
    for (int tries = 0; code == EXIT_NOT_FOUND && tries < TRIES; tries++)
        code = ampctl_export_full(x->ctl, model, path, &made);
    if (code == 0 && json_object_set_new(entry, "checkpoint", checkpoint_object(&made)) != 0)
        code = no_memory(x);
    ampctl_backup_path(path, x->partial, model, AMPCTL_BACKUP_HISTORY);
    if (code == 0)
        code = write_rows(x, path, model, made.step, false);
    ampctl_backup_path(path, x->partial, model, AMPCTL_BACKUP_OVERFLOWS);
    return code == 0 ? write_rows(x, path, model, made.step, true) : code;
}

/* Size and hash of each file, as they can be read here. */
static int add_files(const struct backing_up *x, const char model[128], json_t *entry)
{
    static const char *const names[] = {AMPCTL_BACKUP_SPECIFICATION, AMPCTL_BACKUP_CHECKPOINT, AMPCTL_BACKUP_HISTORY,
                                        AMPCTL_BACKUP_OVERFLOWS};
    size_t count = json_is_null(json_object_get(entry, "checkpoint")) ? 1 : sizeof names / sizeof *names;
    json_t *files = json_object();
    if (files == NULL || json_object_set_new(entry, "files", files) != 0)
        return no_memory(x);
    for (size_t i = 0; i < count; i++) {
        char path[AMPCTL_BACKUP_PATH_MAX];
        ampctl_backup_path(path, x->partial, model, names[i]);
        json_t *hash = ampctl_backup_hash(x->ctl, path);
        if (hash == NULL)
            return AMPCTL_EXIT_FAILED;
        if (json_object_set_new(files, names[i], hash) != 0)
            return no_memory(x);
    }
    return 0;
}

static int write_model(const struct backing_up *x, const struct ampd_msg_get_model_response *about, json_t *entry)
{
    char path[AMPCTL_BACKUP_PATH_MAX];
    const char *model = about->spec.name;
    /* Of one that has just started nothing is known yet: a checkpoint must be found. */
    bool has_values = about->status.recovering || (about->status.state != AMPD_MSG_MODEL_STATE_CREATED &&
                                                   about->status.state != AMPD_MSG_MODEL_STATE_LOADING);
    ampctl_backup_path(path, x->partial, model, "");
    if (mkdir(path, 0700) != 0)
        return ampctl_backup_failed(x->ctl, path, strerror(errno));
    ampctl_backup_path(path, x->partial, model, AMPCTL_BACKUP_SPECIFICATION);
    int code = write_specification(x, path, &about->spec);
    if (code == 0 && has_values)
        code = write_checkpoint(x, model, entry);
    if (code == 0)
        code = add_files(x, model, entry);
    ampctl_backup_path(path, x->partial, model, "");
    return code == 0 ? sync_folder(x, path) : code;
}

static int back_up(struct backing_up *x, const char *name)
{
    struct ampd_msg_get_model_response about = {0};
    char model[128];
    (void)snprintf(model, sizeof model, "%s", name);
    int code = ampctl_get_model(x->ctl, model, &about);
    ampctl_close(x->ctl);
    if (code != 0)
        return code;
    json_t *entry = json_pack("{s:s, s:o, s:I, s:n}", "name", model, "specification", ampctl_spec_object(&about.spec),
                              "parameters", (json_int_t)about.spec.parameters.count, "checkpoint");
    if (entry == NULL || json_array_append_new(x->list, entry) != 0)
        code = no_memory(x);
    else if (!ampctl_backup_name_ok(model) || strcmp(model, about.spec.name) != 0)
        code = ampctl_backup_failed(x->ctl, model, "this is not a name for a model; is the server an ampd?");
    else
        code = write_model(x, &about, entry);
    ampd_msg_get_model_response_free(&about);
    return code;
}

/* ---- the verb ---- */

/* Which models there are, and of which version the server is. */
static int ask(struct backing_up *x)
{
    struct ampd_msg_get_status_response status;
    char created[32];
    time_t now = time(NULL);
    struct tm utc;
    (void)strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    int code = ampctl_get_status(x->ctl, x->given.model, &status);
    if (code != 0)
        return code;
    x->models = json_array();
    x->list = json_array();
    x->manifest = json_pack("{s:i, s:s, s:s, s:s, s:o}", "format", AMPCTL_BACKUP_FORMAT, "ampctl", AMPCTL_VERSION,
                            "server", status.version, "created", created, "models", x->list);
    ampd_msg_get_status_response_free(&status);
    if (x->models == NULL || x->manifest == NULL)
        code = no_memory(x);
    else if (x->given.model[0] == 0)
        code = ampctl_all_models(x->ctl, x->models);
    else if (json_array_append_new(x->models, json_pack("{s:s}", "name", x->given.model)) != 0)
        code = no_memory(x);
    ampctl_close(x->ctl);
    if (code == 0 && json_array_size(x->models) == 0)
        code = ampctl_backup_failed(x->ctl, x->given.folder, "the server has no models; there is nothing to back up");
    return code;
}

static json_t *row_of(const json_t *entry)
{
    const char *file;
    json_t *one, *files = json_object_get(entry, "files"), *checkpoint = json_object_get(entry, "checkpoint");
    json_t *row = json_object();
    json_int_t bytes = 0;
    json_object_foreach(files, file, one) bytes += json_integer_value(json_object_get(one, "size"));
    ampctl_put(&row, "model", json_incref(json_object_get(entry, "name")));
    static const char *const keys[] = {"epoch", "step", "decided_step"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        ampctl_put(&row, keys[i],
                   json_is_null(checkpoint) ? json_null() : json_incref(json_object_get(checkpoint, keys[i])));
    ampctl_put(&row, "bytes", json_integer(bytes));
    return row;
}

static int say(const struct backing_up *x)
{
    static const struct ampctl_column columns[] = {{"model", "MODEL", false}, {"epoch", "EPOCH", true},
                                                   {"step", "STEP", true},    {"decided_step", "DECIDED", true},
                                                   {"bytes", "BYTES", true},  {NULL, NULL, false}};
    json_t *rows = json_array(), *entry;
    bool ok = rows != NULL;
    size_t i;
    json_array_foreach(x->list, i, entry) ok = ok && json_array_append_new(rows, row_of(entry)) == 0;
    if (ok)
        return ampctl_print_rows(x->ctl, columns, rows);
    json_decref(rows);
    return AMPCTL_EXIT_FAILED;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct backing_up *x = state->input;
    const char *folder = x->given.folder;
    size_t size = strlen(folder), end = strlen(AMPCTL_BACKUP_PARTIAL);
    if (key == ARGP_KEY_END && size >= end && strcmp(folder + size - end, AMPCTL_BACKUP_PARTIAL) == 0)
        argp_error(state,
                   "names that end in " AMPCTL_BACKUP_PARTIAL " are for incomplete backups; name another folder");
    return ampctl_backup_argument(key, arg, state, &x->given);
}

static int run_backup(struct ampctl *ctl, int argc, char **argv)
{
    struct backing_up x = {.ctl = ctl, .lock = -1};
    json_t *row;
    size_t i;
    ampctl_parse(ctl, &ampctl_backup_verb, &x, argc, argv);
    (void)snprintf(x.partial, sizeof x.partial, "%s" AMPCTL_BACKUP_PARTIAL, x.given.folder);
    int code = ask(&x);
    if (code == 0)
        code = make_partial(&x);
    bool is_mine = code == 0;
    json_array_foreach(x.models, i, row) if (code == 0) code =
        back_up(&x, json_string_value(json_object_get(row, "name")));
    if (code == 0)
        code = finish(&x);
    if (is_mine && code != 0)
        drop_partial(&x);
    if (code == 0)
        code = say(&x);
    json_decref(x.models);
    json_decref(x.manifest);
    if (x.lock >= 0)
        (void)close(x.lock);
    return code;
}

const struct ampctl_verb ampctl_backup_verb = {
    .name = "backup",
    .arguments = "DIR [MODEL]",
    .summary = "the newest checkpoints as a folder",
    .doc = "Copies the newest checkpoint of every model, or of one, from all shards into a new folder, with the "
           "specification and the history up to it, while training goes on. An incomplete backup is called "
           "DIR.partial; the next backup replaces it.",
    .examples = "ampctl backup /srv/backup/2026-11-23\n"
                "ampctl checkpoint digits && ampctl backup digits-now digits",
    .parser = parse,
    .timeout_ms = AMPCTL_FILE_TIMEOUT_MS,
    .run = run_backup,
};
