/*
 * Taking up checkpoints at a start: the catalogue of the store may name files of another shard, if the store was copied
 * from that shard (refill.h), or files made with another number of shards. They are replaced by this shard's own parts.
 */
#ifndef AMPD_IO_TAKE_UP_H
#define AMPD_IO_TAKE_UP_H

#include "base/err.h"
#include "storage/records.h"

struct ampd_server;

/*
 * Goes through record->checkpoints. One that names a file of another shard gets this shard's part instead, which must
 * be in the checkpoint directory. The newest one made with another number of shards is converted: this shard's part is
 * read out of all its parts and written. The catalogue follows; what is missing or damaged leaves it if another
 * checkpoint could be taken up. Blocks on the disk; off the loop, before there is a core.
 *
 * 0. AMP_ESTATE, AMP_EDATALOSS: a part that is needed is missing or damaged, and the text says what to do; nothing was
 * changed that a start with the earlier configuration would need. AMP_EIO, AMP_EDENIED, AMP_ENOMEM, AMP_EEXHAUSTED.
 */
int io_take_up(struct ampd_server *server, struct ampd_model_record *record, struct amp_error *error);

#endif
