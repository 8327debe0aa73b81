/* Where the files of a model lie, and whose they may be. */
#ifndef AMPD_IO_MODEL_FILES_H
#define AMPD_IO_MODEL_FILES_H

#include "storage/checkpoint.h"

#include <stdbool.h>

struct ampd_server;

/* Where this shard's files of a model lie. */
struct ampd_checkpoint_path io_model_files_place(const struct ampd_server *server, const char *model);

/* Where the journal of a model is: on the disk of this process, whatever is shared. */
struct ampd_checkpoint_path io_model_files_journal(const struct ampd_server *server, const char *model);

/*
 * Whether other processes may have been this shard, on other disks, and have left their checkpoint files where this
 * one's are. Then a start removes none: its catalogue may be of before them.
 */
bool io_model_files_shared(const struct ampd_server *server);

#endif
