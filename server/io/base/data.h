/*
 * The data of the shard that this process is: its directory, the store in it, and where its checkpoint files lie.
 * Opened by io_data_open once it is known which directory that is.
 */
#ifndef AMPD_IO_DATA_H
#define AMPD_IO_DATA_H

#include "base/err.h"
#include "storage/datadir.h"
#include "storage/store.h"

struct ampd_server;

struct io_data {
    struct ampd_datadir dir;
    const char *checkpoint_dir; /* where checkpoint files lie; shards may share it */
    struct ampd_store *store;   /* of the writer, and before the core is there of who holds it */
    struct ampd_store *reader;  /* pages of history */
    unsigned deletions;         /* of models, under way (purge.h) */
};

/* Nothing is open yet. */
void io_data_init(struct io_data *data);

/*
 * Opens the store in this data directory, which is made if it is not there. The caller closes also what was opened by
 * half.
 */
int io_data_open(struct ampd_server *server, const char *path, struct amp_error *error);

/* Closes the store alone and opens it anew, with its reader, while its directory is being filled. */
void io_data_close_store(struct io_data *data);
int io_data_open_store(struct ampd_server *server, struct amp_error *error);

/* Also of what is not open. No thread uses it any more. */
void io_data_close(struct io_data *data);

#endif
