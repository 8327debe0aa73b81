/*
 * A folder of event files that ampctl tensorboard writes: what is in it already, and the file that it is continued in.
 * Each run writes a file of its own behind the others, so that a record that an earlier run was cut off in stays as it
 * is, and readers pass over it.
 */
#ifndef AMPCTL_TFEVENTS_FOLDER_H
#define AMPCTL_TFEVENTS_FOLDER_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Tags that a folder is known again by: whose it is, and of which epoch a step is. */
#define AMPCTL_TFEVENTS_MODEL "ampd/model"
#define AMPCTL_TFEVENTS_EPOCH "ampd/epoch"

struct ampctl_tffolder {
    const char *path;
    char model[256];      /* whose events are in it; "": it has none yet */
    uint64_t epoch, step; /* of the newest step in it; 0: it has none */
    uint64_t newest_time; /* in the names of its files; 0: it has none */
    unsigned files;
    int lock; /* the folder, locked; -1: none */
    int file; /* that is written; -1: none yet */
};

/*
 * Makes the folder, and those above it, unless it is there, locks it against another ampctl, and reads what it has. 0,
 * or a code with a sentence, also when its event files are another program's or damaged. ampctl_tffolder_close in every
 * case.
 */
int ampctl_tffolder_open(struct ampctl_tffolder *folder, const char *path, struct amp_error *error);
void ampctl_tffolder_close(struct ampctl_tffolder *folder);

/* Writes records to the end of this run's file, which begins with the first of them. 0, or a code with a sentence. */
int ampctl_tffolder_write(struct ampctl_tffolder *folder, const struct amp_buf *records, struct amp_error *error);

#endif
