/* Taking up at start what another process has left: checkpoints of another shard, or of another number of shards. */
#ifndef AMPD_IO_TAKE_UP_H
#define AMPD_IO_TAKE_UP_H

#include "base/err.h"
#include "storage/records.h"

struct ampd_server;

/*
 * At start: checkpoints in the catalogue that are another shard's part, or were cut for another number of shards,
 * become this shard's: record->checkpoints are then its own. AMP_ESTATE, AMP_EDATALOSS: that cannot be, and the text
 * says what is missing; nothing has changed that a start as before would miss. AMP_EIO, AMP_ENOMEM, AMP_EEXHAUSTED.
 */
int io_take_up(struct ampd_server *server, struct ampd_model_record *record, struct amp_error *error);

#endif
