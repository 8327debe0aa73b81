/*
 * The folder of a backup, for `backup` and `restore`:
 *
 *   manifest.json                            what is in it; written last
 *   models/MODEL/specification.pb            CreateModelRequest, all defaults filled in
 *   models/MODEL/checkpoint.safetensors      of all shards as one, as `checkpoint export` writes it
 *   models/MODEL/history.json, overflows.json   rows up to the checkpoint's step, to be read
 *
 * A model without values has its specification alone. The manifest has size and XXH3-128 of each file; its own last
 * member, "hash", is that of all bytes before it.
 */
#ifndef AMPCTL_BACKUP_H
#define AMPCTL_BACKUP_H

#include "client/ampctl/ctl.h"

#define AMPCTL_BACKUP_FORMAT 1

/* Behind the folder's name as long as it is not whole. */
#define AMPCTL_BACKUP_PARTIAL ".partial"

/* Longest name of the folder: an export makes names of up to 250 bytes behind it, and Linux's PATH_MAX is 4,096. */
#define AMPCTL_BACKUP_FOLDER_MAX 3000
#define AMPCTL_BACKUP_PATH_MAX   4096

#define AMPCTL_BACKUP_SPECIFICATION "specification.pb"
#define AMPCTL_BACKUP_CHECKPOINT    "checkpoint.safetensors"
#define AMPCTL_BACKUP_HISTORY       "history.json"
#define AMPCTL_BACKUP_OVERFLOWS     "overflows.json"

/* For both verbs: DIR, without slashes at its end, and a model or "". */
struct ampctl_backup_arguments {
    char folder[AMPCTL_BACKUP_FOLDER_MAX];
    char model[128];
};
error_t ampctl_backup_argument(int key, char *arg, struct argp_state *state, struct ampctl_backup_arguments *to);

/* Says on stderr what is wrong with a path. AMPCTL_EXIT_FAILED. */
int ampctl_backup_failed(const struct ampctl *ctl, const char *path, const char *text);

/* The path of a model's file; "": of the model's folder. The folder is at most AMPCTL_BACKUP_FOLDER_MAX long. */
void ampctl_backup_path(char path[AMPCTL_BACKUP_PATH_MAX], const char *folder, const char *model, const char *file);

/* Whether a model's name can be that of a folder; another one comes from no ampd. */
bool ampctl_backup_name_ok(const char *model);

/* {"size", "hash"} of a file. NULL after a sentence on stderr. */
json_t *ampctl_backup_hash(const struct ampctl *ctl, const char *path);

/* Writes text or bytes to a new file, and syncs it. 0, or an exit code after a sentence. */
int ampctl_backup_write(const struct ampctl *ctl, const char *path, const void *data, size_t size);

/* Reads a file of at most `max` bytes; *data is the caller's to free when 0 is returned, and ends with a zero. */
int ampctl_backup_read(const struct ampctl *ctl, const char *path, size_t max, char **data, size_t *size);

/* Writes and syncs the manifest, with its hash. 0, or an exit code after a sentence. */
int ampctl_backup_manifest_write(const struct ampctl *ctl, const char *folder, const json_t *manifest);

/* The manifest, whose hash and format are right. NULL after a sentence on stderr. */
json_t *ampctl_backup_manifest_read(const struct ampctl *ctl, const char *folder);

#endif
