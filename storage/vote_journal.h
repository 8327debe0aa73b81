/*
 * The vote journal of one model on one shard, for durability STEP. Before a shard sends its vote on a step it writes
 * what it votes on into the journal and syncs it. The record is kept until a checkpoint holds the step, so that after a
 * crash the step can be replayed.
 *
 *   data_dir/models/<model>/journal/shard-<k>-of-<K>/slot-<3 digits>
 *
 * A slot is a file with room for one record: one page with the head (key, sizes, hashes), then the notes of the core (a
 * byte string that only the core reads), and from the next page boundary on the gradient g in fp32. A record is valid
 * if both of its hashes match. One whose write was interrupted is ignored, as if it had never been written: no vote was
 * sent for it. If the disk cannot read a record, that is an error instead, and its slot is not written over.
 *
 * A slot is used again once its record is not needed any more, so that after the first steps no file grows and a vote
 * costs one fdatasync of data alone. A record is never written over that of an older try of the same step; the older
 * one stays until the newer one is synced.
 *
 * A handle is used by one thread at a time. Calls block on the disk.
 */
#ifndef AMPD_VOTE_JOURNAL_H
#define AMPD_VOTE_JOURNAL_H

#include "base/err.h"
#include "storage/checkpoint.h"
#include "storage/records.h"

/*
 * The most records that a journal holds. A coordinator takes a checkpoint at least every AMPD_VOTE_JOURNAL_STEPS steps.
 * While the file of one checkpoint is being written, that of the next may wait for it, and skipped steps may go on
 * until the checkpoint after both. So a process needs at most three times as many steps at a time, and with them one
 * vote and an older try of it; 8 leaves some to spare. Processes that end hard while they write, one after the other,
 * may need more: then votes wait for the checkpoint that the last of them begins (coordinator/checkpoints.c).
 */
#define AMPD_VOTE_JOURNAL_SLOTS_MAX (3 * AMPD_VOTE_JOURNAL_STEPS + 8)

/* Slots from this index on are needed where a checkpoint took long: they are removed once they are not needed. */
#define AMPD_VOTE_JOURNAL_SLOTS_KEPT (2 * AMPD_VOTE_JOURNAL_STEPS)

/* The most bytes of notes in a record: 256 user states of 64 KiB, the vote's rows and sums, and room to spare. */
#define AMPD_VOTE_JOURNAL_NOTES_MAX ((uint64_t)64 << 20)

/* An open journal. */
struct ampd_vote_journal;

/*
 * One record. To be written, notes and g are borrowed until the call returns. As it is read, notes are the caller's
 * (free), and g is the memory that the caller gave.
 */
struct ampd_vote_journal_record {
    struct ampd_vote_journal_key key;
    uint8_t *notes;
    uint64_t notes_size; /* bytes */
    const float *g;      /* the gradient; NULL with 0 elements: the step cannot be applied, so g is never needed */
    uint64_t elements;   /* number of all elements of the shard's blocks, or 0 */
};

/*
 * Opens a journal and finds the records in it, which survive power loss from then on; makes no files. On success
 * *journal is the caller's (ampd_vote_journal_close), on failure it is NULL. AMP_EINVAL: the model's name cannot name a
 * directory, or the path is too long. AMP_EIO: a sync failed, or the head of a slot cannot be read. AMP_EDENIED
 * (NO_ACCESS): this user may not read it or write to it. AMP_EEXHAUSTED, AMP_ENOMEM. The call may be repeated.
 */
int ampd_vote_journal_open(const struct ampd_checkpoint_path *where, struct ampd_vote_journal **journal,
                           struct amp_error *error);

/*
 * Creates the directory of a journal, which may be there already; after 0 it survives power loss. A directory that is
 * there means that the votes of the epoch in which it was created, and of later ones, are on this disk
 * (ampd_vote_journal_find). AMP_EINVAL: the model's name cannot name a directory; AMP_EDENIED, AMP_EEXHAUSTED, AMP_EIO.
 */
int ampd_vote_journal_make(const struct ampd_checkpoint_path *where, struct amp_error *error);

/*
 * *found: whether the directory of a journal is there (ampd_vote_journal_make), or may be, since this user may not look
 * at it. If it is not, the votes of this shard were written elsewhere: this store was filled from that of another
 * shard. After an error (AMP_EINVAL, AMP_EEXHAUSTED, AMP_EIO) it is not known.
 */
int ampd_vote_journal_find(const struct ampd_checkpoint_path *where, bool *found, struct amp_error *error);

/* Closes a journal and frees the handle; the files stay. NULL is allowed. */
void ampd_vote_journal_close(struct ampd_vote_journal *journal);

/*
 * Writes a record; after 0 it survives power loss, and records of older tries of the same step are not needed any more.
 * AMP_EEXHAUSTED: the disk is full (NO_SPACE), no more files can be open (NO_DESCRIPTORS), or all slots have records
 * that wait for a checkpoint (JOURNAL_FULL). AMP_EDENIED (NO_ACCESS): this user may not write to the journal. After
 * these and AMP_ENOMEM no record was stored, and the call may be repeated. AMP_EIO (STORE_FAILED): a write or sync
 * failed, and the server must end. AMP_EINVAL: the notes are too large.
 */
int ampd_vote_journal_write(struct ampd_vote_journal *journal, const struct ampd_vote_journal_record *record,
                            struct amp_error *error);

/*
 * Reads the valid record of a step that has the highest (fence, try_number). `g` has room for `elements` floats; it is
 * filled if record->elements is not 0. On success record->notes is the caller's (free). AMP_ENOTFOUND
 * (JOURNAL_MISSING): there is no valid record. AMP_EDATALOSS (JOURNAL_DAMAGED): it has another number of elements.
 * AMP_EIO, AMP_EDENIED, AMP_EEXHAUSTED, AMP_ENOMEM: the call may be repeated. After an error `g` may hold anything.
 */
int ampd_vote_journal_read(struct ampd_vote_journal *journal, uint64_t epoch, uint64_t step, float *g,
                           uint64_t elements, struct ampd_vote_journal_record *record, struct amp_error *error);

/*
 * Releases the slots of all records of other epochs than `epoch` and of steps up to `step`, so that they are reused, or
 * removed from AMPD_VOTE_JOURNAL_SLOTS_KEPT on.
 */
void ampd_vote_journal_prune(struct ampd_vote_journal *journal, uint64_t epoch, uint64_t step);

/*
 * Removes the journals of all shards of a model, their directories and the model's. Files that are not a journal's are
 * left alone, and so are the directories they are in. No open handle of these journals may write any more. A journal
 * that is not there is success. If something cannot be removed, all the rest is, and the result is AMP_EIO with
 * AMPD_CHECKPOINT_NOT_REMOVED (checkpoint_remove.h). AMP_EINVAL, AMP_EEXHAUSTED.
 */
int ampd_vote_journal_remove(const char *data_dir, const char *model, struct amp_error *error);

#endif
