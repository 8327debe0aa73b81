#include "storage/vote_journal.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "storage/checkpoint_files.h"
#include "storage/checkpoint_remove.h"
#include "storage/datadir.h"
#include "storage/plain_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* The head of a slot, and what g is aligned to. */
#define PAGE ((uint64_t)4096)

/* Bytes of one read or write at most. */
#define CHUNK_BYTES ((size_t)4 << 20)

/* Bytes of the path of a shard's journal relative to the data directory: a model's name, two numbers and fixed text. */
#define DIRECTORY_MAX (AMPD_NAME_MAX + 128)

#define MAGIC   "ampdJRNL"
#define VERSION 1

/* The head of a slot as it is stored: little-endian, in a page whose rest is zero. */
struct head {
    char magic[8];
    uint32_t version, try_number;
    uint64_t epoch, step, fence;
    uint64_t notes_size, elements;
    uint8_t body[16]; /* XXH3-128 of notes and g */
    uint8_t own[16];  /* XXH3-128 of all fields above; last, so that it does not cover itself */
};
_Static_assert(sizeof(struct head) <= 4096, "the head fits its page");

struct slot {
    bool made;                        /* the file is there, and its directory entry is synced */
    bool wanted;                      /* it holds a record that is still needed; if not, it may be written over */
    uint64_t room;                    /* bytes of the file */
    struct ampd_vote_journal_key key; /* of the last record in it */
};

struct ampd_vote_journal {
    char data_dir[AMPD_DATADIR_PATH_MAX];
    char file[DIRECTORY_MAX]; /* the journal's directory relative to data_dir, with a final slash */
    struct slot slots[AMPD_VOTE_JOURNAL_SLOTS_MAX];
};

/* ---- places ---- */

static void slot_path(const struct ampd_vote_journal *journal, unsigned i, char path[CHECKPOINT_PATH_MAX])
{
    int used = snprintf(path, CHECKPOINT_PATH_MAX, "%s/%sslot-%03u", journal->data_dir, journal->file, i);
    AMP_ASSERT(used > 0 && used < CHECKPOINT_PATH_MAX); /* both parts are bounded */
}

/* Offset of g in a slot: the first page boundary after the notes. */
static uint64_t g_offset(uint64_t notes_size)
{
    return PAGE + (notes_size + PAGE - 1) / PAGE * PAGE;
}

/* Bytes of the file up to the record's last one: no more are there where the file system has no fallocate. */
static uint64_t bytes_of(uint64_t notes_size, uint64_t elements)
{
    return elements > 0 ? g_offset(notes_size) + elements * sizeof(float) : PAGE + notes_size;
}

static void hash_head(const struct head *head, uint8_t hash[16])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(head, offsetof(struct head, own)));
    memcpy(hash, canonical.digest, 16);
}

static int hash_body(const struct ampd_vote_journal_record *record, uint8_t hash[16], struct amp_error *error)
{
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the journal");
    (void)XXH3_128bits_reset(state);
    if (record->notes_size > 0)
        (void)XXH3_128bits_update(state, record->notes, record->notes_size);
    if (record->elements > 0)
        (void)XXH3_128bits_update(state, record->g, record->elements * sizeof(float));
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    memcpy(hash, canonical.digest, 16);
    (void)XXH3_freeState(state);
    return 0;
}

/* ---- bytes ---- */

static int put_all(int fd, const void *data, uint64_t size, uint64_t offset, const char *path, struct amp_error *error)
{
    const uint8_t *at = data;
    while (size > 0) {
        ssize_t put = pwrite(fd, at, size < CHUNK_BYTES ? (size_t)size : CHUNK_BYTES, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return checkpoint_system_error(error, "cannot write", path);
        at += put;
        offset += (uint64_t)put;
        size -= (uint64_t)put;
    }
    return 0;
}

/*
 * Reads exactly `size` bytes. AMP_ENOTFOUND: the file is shorter, so that it has no whole record. A disk that cannot
 * read its data is AMP_EIO instead: it must not be taken for a record that was never written.
 */
static int get_all(int fd, void *data, uint64_t size, uint64_t offset, const char *path, struct amp_error *error)
{
    uint8_t *at = data;
    while (size > 0) {
        ssize_t got = pread(fd, at, size < CHUNK_BYTES ? (size_t)size : CHUNK_BYTES, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return checkpoint_system_error(error, "cannot read", path);
        if (got == 0)
            return AMP_ENOTFOUND;
        at += got;
        offset += (uint64_t)got;
        size -= (uint64_t)got;
    }
    return 0;
}

/*
 * Makes the first `size` bytes of a slot durable. After a failed sync the system may take them for written although the
 * disk does not have them, so that a later sync would do nothing. So they are written again here, and the sync by
 * which the next start opens the slot (look_at_slot) takes them to the disk, or fails.
 */
static int sync_slot(int fd, uint64_t size, const char *path, struct amp_error *error)
{
    uint8_t page[PAGE];
    if (fdatasync(fd) == 0)
        return 0;
    int rc = checkpoint_final_error(error, "cannot fsync", path), again = 0;
    for (uint64_t at = 0; again == 0 && at < size; at += PAGE) {
        uint64_t rest = size - at < PAGE ? size - at : PAGE;
        again = get_all(fd, page, rest, at, path, NULL);
        if (again == 0)
            again = put_all(fd, page, rest, at, path, NULL);
    }
    return rc;
}

/* ---- life ---- */

/* Reads the head of a slot and checks it. AMP_ENOTFOUND: the slot has no valid head. */
static int read_head(int fd, struct head *head, const char *path, struct amp_error *error)
{
    uint8_t own[16];
    int rc = get_all(fd, head, sizeof *head, 0, path, error);
    if (rc != 0)
        return rc;
    hash_head(head, own);
    bool whole = memcmp(head->magic, MAGIC, sizeof head->magic) == 0 && memcmp(own, head->own, sizeof own) == 0 &&
                 head->version == VERSION && head->notes_size <= AMPD_VOTE_JOURNAL_NOTES_MAX &&
                 head->elements <= AMPD_ELEMENTS_MAX;
    return whole ? 0 : AMP_ENOTFOUND;
}

static int look_at_slot(struct ampd_vote_journal *journal, unsigned i, struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    slot_path(journal, i, path);
    int fd = ampd_plain_open(path, O_RDWR);
    if (fd < 0)
        return errno == ENOENT ? 0 : checkpoint_not_opened(error, "cannot open", path);
    struct stat info;
    struct head head;
    struct slot *slot = &journal->slots[i];
    int rc = fstat(fd, &info) == 0 ? 0 : checkpoint_system_error(error, "cannot get the status of", path);
    slot->made = true; /* once look_at_slots has synced its name */
    slot->room = rc == 0 ? (uint64_t)info.st_size : 0;
    if (rc == 0)
        rc = read_head(fd, &head, path, error);
    if (rc == 0 && bytes_of(head.notes_size, head.elements) <= slot->room) {
        slot->wanted = true;
        slot->key = (struct ampd_vote_journal_key){head.epoch, head.step, head.fence, head.try_number};
        rc = sync_slot(fd, bytes_of(head.notes_size, head.elements), path, error);
    }
    (void)close(fd); /* what counts is synced */
    return rc == AMP_ENOTFOUND ? 0 : rc;
}

/*
 * Finds the records, and makes them and the names of their files durable. A run that ended before they were durable may
 * have left them, and the caller votes on them as they are.
 */
static int look_at_slots(struct ampd_vote_journal *journal, struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    bool any = false;
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < AMPD_VOTE_JOURNAL_SLOTS_MAX; i++) {
        rc = look_at_slot(journal, i, error);
        any = any || journal->slots[i].made;
    }
    if (rc == 0 && any)
        rc = checkpoint_directories_make(journal->data_dir, journal->file, true, error);
    slot_path(journal, 0, path);
    return rc == 0 && any ? checkpoint_directory_sync(path, error) : rc;
}

/* The journal's directory, relative to the data directory, with a slash at its end. False: it is too long. */
static bool directory_of(const struct ampd_checkpoint_path *where, char *file, size_t size)
{
    int used = snprintf(file, size, "models/%s/journal/shard-%" PRIu32 "-of-%" PRIu32 "/", where->model, where->shard,
                        where->shards);
    return (size_t)used < size;
}

int ampd_vote_journal_make(const struct ampd_checkpoint_path *where, struct amp_error *error)
{
    char file[DIRECTORY_MAX];
    if (!ampd_datadir_name_ok(where->model))
        return amp_error_set(error, AMP_EINVAL, NULL, "model name \"%.100s\" cannot name a directory", where->model);
    bool fits = directory_of(where, file, sizeof file);
    AMP_ASSERT(fits);
    return checkpoint_directories_make(where->data_dir, file, true, error);
}

int ampd_vote_journal_find(const struct ampd_checkpoint_path *where, bool *found, struct amp_error *error)
{
    char file[DIRECTORY_MAX], path[CHECKPOINT_PATH_MAX];
    struct stat info;
    *found = false;
    if (!directory_of(where, file, sizeof file) ||
        (size_t)snprintf(path, sizeof path, "%s/%s", where->data_dir, file) >= sizeof path)
        return amp_error_set(error, AMP_EINVAL, NULL, "the path of the journal of %.100s is too long", where->model);
    *found = stat(path, &info) == 0 || errno == EACCES;
    return *found || errno == ENOENT ? 0 : checkpoint_system_error(error, "cannot get the status of", path);
}

int ampd_vote_journal_open(const struct ampd_checkpoint_path *where, struct ampd_vote_journal **out,
                           struct amp_error *error)
{
    *out = NULL;
    if (!ampd_datadir_name_ok(where->model))
        return amp_error_set(error, AMP_EINVAL, NULL, "model name \"%.100s\" cannot name a directory", where->model);
    struct ampd_vote_journal *journal = calloc(1, sizeof *journal);
    if (journal == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the journal of %s", where->model);
    int dir = snprintf(journal->data_dir, sizeof journal->data_dir, "%s", where->data_dir);
    int rc = 0;
    AMP_FAILPOINT("journal.open");
    bool fits = directory_of(where, journal->file, sizeof journal->file);
    AMP_ASSERT(fits);
    if ((size_t)dir >= sizeof journal->data_dir)
        rc = amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    if (rc == 0)
        rc = look_at_slots(journal, error);
    if (rc != 0) {
        free(journal);
        return rc;
    }
    *out = journal;
    return 0;
}

void ampd_vote_journal_close(struct ampd_vote_journal *journal)
{
    free(journal);
}

/* ---- writing ---- */

static bool same_step(const struct ampd_vote_journal_key *a, const struct ampd_vote_journal_key *b)
{
    return a->epoch == b->epoch && a->step == b->step;
}

/*
 * A slot whose record is not needed: if possible one with enough room, and of these one that needs no sync of its name.
 * AMPD_VOTE_JOURNAL_SLOTS_MAX: there is none.
 */
static unsigned free_slot(const struct ampd_vote_journal *journal, uint64_t bytes)
{
    unsigned best = AMPD_VOTE_JOURNAL_SLOTS_MAX;
    for (unsigned i = 0; i < AMPD_VOTE_JOURNAL_SLOTS_MAX; i++) {
        const struct slot *slot = &journal->slots[i];
        if (slot->wanted)
            continue;
        if (slot->made && slot->room >= bytes)
            return i;
        if (best == AMPD_VOTE_JOURNAL_SLOTS_MAX || (slot->room >= bytes && journal->slots[best].room < bytes))
            best = i;
    }
    return best;
}

static int write_slot(int fd, struct slot *slot, const struct ampd_vote_journal_record *record, const char *path,
                      struct amp_error *error)
{
    struct head head = {.version = VERSION,
                        .try_number = record->key.try_number,
                        .epoch = record->key.epoch,
                        .step = record->key.step,
                        .fence = record->key.fence,
                        .notes_size = record->notes_size,
                        .elements = record->elements};
    memcpy(head.magic, MAGIC, sizeof head.magic);
    int rc = hash_body(record, head.body, error);
    if (rc != 0)
        return rc;
    hash_head(&head, head.own);
    uint64_t bytes = bytes_of(record->notes_size, record->elements);
    rc = slot->room >= bytes ? 0 : checkpoint_make_room(fd, bytes, path, error);
    if (rc == 0)
        rc = put_all(fd, &head, sizeof head, 0, path, error);
    if (rc == 0)
        rc = put_all(fd, record->notes, record->notes_size, PAGE, path, error);
    AMP_FAILPOINT("journal.half");
    if (rc == 0)
        rc = put_all(fd, record->g, record->elements * sizeof(float), g_offset(record->notes_size), path, error);
    AMP_FAILPOINT("journal.unsynced");
    if (rc == 0)
        rc = sync_slot(fd, bytes, path, error);
    AMP_FAILPOINT("journal.synced");
    if (rc == 0 && slot->room < bytes)
        slot->room = bytes;
    if (rc == AMP_EEXHAUSTED)
        (void)ftruncate(fd, (off_t)slot->room); /* the last room on the disk is not held while this waits for more */
    return rc;
}

/* Writes a record into a slot. A new slot's directory entry is synced, too, before its first record counts. */
static int write_to(struct ampd_vote_journal *journal, unsigned i, const struct ampd_vote_journal_record *record,
                    struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    struct slot *slot = &journal->slots[i];
    slot_path(journal, i, path);
    AMP_FAILPOINT(slot->made ? "journal.reuse" : "journal.first");
    int rc = slot->made ? 0 : checkpoint_directories_make(journal->data_dir, journal->file, true, error);
    if (rc != 0)
        return rc;
    int fd = ampd_plain_open(path, O_RDWR | O_CREAT);
    if (fd < 0)
        return checkpoint_not_opened(error, "cannot create", path);
    rc = write_slot(fd, slot, record, path, error);
    if (close(fd) != 0 && rc == 0)
        rc = checkpoint_final_error(error, "cannot close", path);
    if (rc == 0 && !slot->made)
        rc = checkpoint_directory_sync(path, error);
    slot->made = slot->made || rc == 0;
    AMP_FAILPOINT("journal.named");
    return rc;
}

int ampd_vote_journal_write(struct ampd_vote_journal *journal, const struct ampd_vote_journal_record *record,
                            struct amp_error *error)
{
    if (record->notes_size > AMPD_VOTE_JOURNAL_NOTES_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "a journal record has %" PRIu64 " bytes of notes",
                             record->notes_size);
    unsigned i = free_slot(journal, bytes_of(record->notes_size, record->elements));
    if (i == AMPD_VOTE_JOURNAL_SLOTS_MAX)
        return amp_error_set(error, AMP_EEXHAUSTED, "JOURNAL_FULL",
                             "the journal holds %d steps: step %" PRIu64 " waits until a checkpoint is written",
                             AMPD_VOTE_JOURNAL_SLOTS_MAX, record->key.step);
    int rc = write_to(journal, i, record, error);
    if (rc != 0)
        return rc;
    for (unsigned j = 0; j < AMPD_VOTE_JOURNAL_SLOTS_MAX; j++) { /* older tries */
        if (journal->slots[j].wanted && same_step(&journal->slots[j].key, &record->key))
            journal->slots[j].wanted = false;
    }
    journal->slots[i].wanted = true;
    journal->slots[i].key = record->key;
    AMP_FAILPOINT("journal.kept");
    return 0;
}

/* ---- reading ---- */

/* The slot with the newest try of a step, without those that `passed` marks; AMPD_VOTE_JOURNAL_SLOTS_MAX: none. */
static unsigned newest(const struct ampd_vote_journal *journal, uint64_t epoch, uint64_t step, const bool *passed)
{
    unsigned best = AMPD_VOTE_JOURNAL_SLOTS_MAX;
    for (unsigned i = 0; i < AMPD_VOTE_JOURNAL_SLOTS_MAX; i++) {
        const struct ampd_vote_journal_key *key = &journal->slots[i].key;
        if (passed[i] || !journal->slots[i].wanted || key->epoch != epoch || key->step != step)
            continue;
        const struct ampd_vote_journal_key *than =
            best == AMPD_VOTE_JOURNAL_SLOTS_MAX ? NULL : &journal->slots[best].key;
        if (than == NULL || key->fence > than->fence ||
            (key->fence == than->fence && key->try_number > than->try_number))
            best = i;
    }
    return best;
}

static int read_body(int fd, const struct head *head, const char *path, float *g,
                     struct ampd_vote_journal_record *record, struct amp_error *error)
{
    uint8_t body[16];
    record->notes = malloc(head->notes_size + 1);
    if (record->notes == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading the journal");
    record->notes_size = head->notes_size;
    record->elements = head->elements;
    record->g = head->elements > 0 ? g : NULL;
    int rc = get_all(fd, record->notes, head->notes_size, PAGE, path, error);
    if (rc == 0)
        rc = get_all(fd, g, head->elements * sizeof(float), g_offset(head->notes_size), path, error);
    if (rc == 0)
        rc = hash_body(record, body, error);
    if (rc == 0 && memcmp(body, head->body, sizeof body) == 0)
        return 0;
    free(record->notes);
    record->notes = NULL;
    return rc != 0 ? rc : AMP_ENOTFOUND;
}

/* Reads and verifies the record in a slot. AMP_ENOTFOUND: it is not valid. */
static int read_slot(const struct ampd_vote_journal *journal, unsigned i, float *g, uint64_t elements,
                     struct ampd_vote_journal_record *record, struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    slot_path(journal, i, path);
    int fd = ampd_plain_open(path, O_RDONLY);
    if (fd < 0)
        return errno == ENOENT ? AMP_ENOTFOUND : checkpoint_not_opened(error, "cannot open", path);
    struct head head;
    int rc = read_head(fd, &head, path, error);
    if (rc == 0 && head.elements != 0 && head.elements != elements)
        rc =
            amp_error_set(error, AMP_EDATALOSS, "JOURNAL_DAMAGED",
                          "%s has %" PRIu64 " elements, the model has %" PRIu64 " here", path, head.elements, elements);
    if (rc == 0)
        rc = read_body(fd, &head, path, g, record, error);
    (void)close(fd); /* only read */
    if (rc == 0)
        record->key = (struct ampd_vote_journal_key){head.epoch, head.step, head.fence, head.try_number};
    return rc;
}

int ampd_vote_journal_read(struct ampd_vote_journal *journal, uint64_t epoch, uint64_t step, float *g,
                           uint64_t elements, struct ampd_vote_journal_record *record, struct amp_error *error)
{
    bool passed[AMPD_VOTE_JOURNAL_SLOTS_MAX] = {false};
    memset(record, 0, sizeof *record);
    AMP_FAILPOINT("journal.read");
    for (;;) {
        unsigned i = newest(journal, epoch, step, passed);
        if (i == AMPD_VOTE_JOURNAL_SLOTS_MAX)
            return amp_error_set(error, AMP_ENOTFOUND, "JOURNAL_MISSING",
                                 "the journal has no whole record of epoch %" PRIu64 ", step %" PRIu64, epoch, step);
        int rc = read_slot(journal, i, g, elements, record, error);
        if (rc != AMP_ENOTFOUND)
            return rc;
        passed[i] = true; /* torn: an older try may be whole */
    }
}

/* Removes a slot whose record is not needed. If it stays, no harm is done. */
static void remove_slot(struct ampd_vote_journal *journal, unsigned i)
{
    char path[CHECKPOINT_PATH_MAX];
    slot_path(journal, i, path);
    if (unlink(path) == 0)
        journal->slots[i] = (struct slot){0};
}

void ampd_vote_journal_prune(struct ampd_vote_journal *journal, uint64_t epoch, uint64_t step)
{
    AMP_FAILPOINT("journal.prune");
    for (unsigned i = 0; i < AMPD_VOTE_JOURNAL_SLOTS_MAX; i++) {
        struct slot *slot = &journal->slots[i];
        if (slot->key.epoch != epoch || slot->key.step <= step)
            slot->wanted = false;
        if (!slot->wanted && slot->room > 0 && i >= AMPD_VOTE_JOURNAL_SLOTS_KEPT)
            remove_slot(journal, i);
    }
}

/* Empties one shard's directory, and removes it if nothing else is in it. Where a slot stays, the others go. */
static int remove_shard(const char *path, struct amp_error *error)
{
    char slot[CHECKPOINT_PATH_MAX];
    int rc = 0;
    for (unsigned i = 0; (rc == 0 || ampd_checkpoint_only_stays(rc, error)) && i < AMPD_VOTE_JOURNAL_SLOTS_MAX; i++) {
        if ((size_t)snprintf(slot, sizeof slot, "%s/slot-%03u", path, i) >= sizeof slot)
            return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
        if (unlink(slot) != 0 && errno != ENOENT && errno != ENOTDIR)
            rc = checkpoint_not_removed(error, "cannot remove", slot);
    }
    (void)rmdir(path); /* fails if a slot or files of others are in it */
    return rc;
}

int ampd_vote_journal_remove(const char *data_dir, const char *model, struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX], shard[CHECKPOINT_PATH_MAX];
    struct amp_error own = {0};
    int used = snprintf(path, sizeof path, "%s/models/%s/journal", data_dir, model);
    if (!ampd_datadir_name_ok(model) || (size_t)used >= sizeof path)
        return amp_error_set(error, AMP_EINVAL, NULL, "model name \"%.100s\" cannot name a directory", model);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return errno == ENOENT ? 0 : checkpoint_not_removed(error, "cannot open", path);
    int rc = 0;
    for (struct dirent *entry;
         (rc == 0 || ampd_checkpoint_only_stays(rc, &own)) && (entry = checkpoint_next_entry(dir)) != NULL;) {
        if (strncmp(entry->d_name, "shard-", 6) != 0 ||
            (size_t)snprintf(shard, sizeof shard, "%s/%s", path, entry->d_name) >= sizeof shard)
            continue;
        int one = remove_shard(shard, &own);
        rc = one != 0 ? one : rc;
    }
    if (rc == 0 && errno != 0)
        rc = checkpoint_not_removed(&own, "cannot read", path);
    (void)closedir(dir); /* only read */
    (void)rmdir(path);   /* fails if something is left in it; so does the next one, if checkpoints are */
    *strrchr(path, '/') = 0;
    (void)rmdir(path);
    return rc != 0 ? amp_error_set(error, rc, own.reason, "%s", own.text) : 0;
}
