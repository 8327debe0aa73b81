/*
 * The journal of one model on one shard, for `durability: step`: what the shard is about to vote for, written and
 * synced before the vote leaves, and kept until a checkpoint holds the step.
 *
 *   data_dir/models/<model>/journal/shard-<k>-of-<K>/slot-<3 digits>
 *
 * A slot is a file with room for one record: a head of one page (key, sizes, hashes), the notes of the core, and from
 * the next page on the gradient g as fp32. A record is valid when both hashes match; a torn one is as if it had never
 * been written, and nothing was told about it. A record that the disk cannot read is not torn: it is an error, and its
 * slot is not written over. Slots are written over once their record is not wanted any more, so that after the first
 * steps no file grows and a vote costs one fdatasync of data alone. A record is never written over the one of an older
 * try of its step: that one stays until the newer one is synced.
 *
 * One handle is used by one thread at a time. Calls block on the disk.
 */
#ifndef AMPD_VOTE_JOURNAL_H
#define AMPD_VOTE_JOURNAL_H

#include "base/err.h"
#include "storage/checkpoint.h"
#include "storage/records.h"

/*
 * Records kept at most. A coordinator cuts at least every AMPD_VOTE_JOURNAL_STEPS steps; the file of one cut may be
 * under way, that of the next wait for it, and steps that are skipped go on up to the cut behind both. So at most three
 * times as many steps, one vote and one older try of it are wanted at a time.
 */
#define AMPD_VOTE_JOURNAL_SLOTS_MAX (3 * AMPD_VOTE_JOURNAL_STEPS + 8)

/* Largest notes: 256 user states of 64 KiB, the vote's rows and sums, and room to spare. */
#define AMPD_VOTE_JOURNAL_NOTES_MAX ((uint64_t)64 << 20)

struct ampd_vote_journal;

/* One record. To write: borrowed. As read: notes are the caller's (free), g is where the caller said. */
struct ampd_vote_journal_record {
    struct ampd_vote_journal_key key;
    uint8_t *notes;
    uint64_t notes_size;
    const float *g;    /* NULL with 0 elements: the step cannot be applied, so that nobody will ask for it */
    uint64_t elements; /* all elements of the shard's blocks, or 0 */
};

/*
 * Finds the records that are there; makes nothing. On success *journal is the caller's (ampd_vote_journal_close).
 * AMP_EINVAL: a bad name; AMP_EIO: also if one head cannot be read; AMP_EEXHAUSTED, AMP_ENOMEM.
 */
int ampd_vote_journal_open(const struct ampd_checkpoint_path *where, struct ampd_vote_journal **journal,
                           struct amp_error *error);

/*
 * Makes the directory of a journal; after 0 it survives power loss. It says that the votes of this epoch, and of those
 * after it, are on this disk. AMP_EINVAL, AMP_EEXHAUSTED, AMP_EIO.
 */
int ampd_vote_journal_make(const struct ampd_checkpoint_path *where, struct amp_error *error);

/*
 * Whether that was done. If not, the store is not that of the process which voted: another shard has filled it.
 * AMP_EINVAL, AMP_EEXHAUSTED, AMP_EIO: nobody knows.
 */
int ampd_vote_journal_find(const struct ampd_checkpoint_path *where, bool *found, struct amp_error *error);

/* Closes the handle; NULL is allowed. */
void ampd_vote_journal_close(struct ampd_vote_journal *journal);

/*
 * Writes a record; after 0 it survives power loss. AMP_EEXHAUSTED: the disk is full (NO_SPACE), no more files can be
 * open (NO_DESCRIPTORS), or AMPD_VOTE_JOURNAL_SLOTS_MAX records wait for a checkpoint (JOURNAL_FULL): nothing was
 * written, try again; AMP_EIO (STORE_FAILED): a write or sync failed: the server must end; AMP_EINVAL: notes too large.
 */
int ampd_vote_journal_write(struct ampd_vote_journal *journal, const struct ampd_vote_journal_record *record,
                            struct amp_error *error);

/*
 * Reads the valid record of a step with the newest (fence, try). `g` has room for `elements` floats; record->elements
 * says whether it was filled. AMP_ENOTFOUND: there is none; AMP_EDATALOSS: it is of another size; AMP_EIO,
 * AMP_EEXHAUSTED, AMP_ENOMEM: it may be read later.
 */
int ampd_vote_journal_read(struct ampd_vote_journal *journal, uint64_t epoch, uint64_t step, float *g,
                           uint64_t elements, struct ampd_vote_journal_record *record, struct amp_error *error);

/* Records of other epochs, and those up to `step`, are not wanted any more: their slots may be written over. */
void ampd_vote_journal_prune(struct ampd_vote_journal *journal, uint64_t epoch, uint64_t step);

/*
 * Removes the journals of a model, whatever shard's. Names that are not a journal's stay, and so do their directories.
 * No handle may be in use that will write again. AMP_EIO.
 */
int ampd_vote_journal_remove(const char *data_dir, const char *model, struct amp_error *error);

/* Records that are wanted. */
uint32_t ampd_vote_journal_count(const struct ampd_vote_journal *journal);

#endif
