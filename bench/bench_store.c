/*
 * The rows of bench/run.sh for the store and the checkpoint files, each beside a simple program on the same disk with
 * which it takes turns.
 *
 *     bench_store --list    prints the names of the rows
 *     bench_store ROW       measures the row and prints it
 *
 *     storage_verdicts_full_8, _1    thousands of verdicts a second from 8 models and from 1, each durable (FULL)
 *                                    before its model goes on, through the server's queue for the store and back to a
 *                                    loop as the server's. Peer: appends as many bytes as a row takes in the database
 *                                    to a file, and calls fdatasync, the same number of times
 *     storage_verdicts_normal        the same from 8 models, not synced (NORMAL). Peer: one prepared INSERT of the same
 *                                    row after the other into a table of the same schema, each a transaction of its
 *                                    own, with SQLite's own settings (it checkpoints the log every 1,000 pages, the
 *                                    store every 4,000)
 *     storage_verdicts_normal_call   the same from 1 model, by calls of the store in a loop, without the queue
 *     storage_checkpoint_write       GB/s of writing a durable checkpoint of 64 M parameters with two moments. Peer: dd
 *                                    with fsync, the fastest of several ways
 *     storage_checkpoint_restore     GB/s of reading the same file, which is not in the page cache, into memory that
 *                                    was touched before, with every hash checked. Peer: dd from the file, the fastest
 *                                    of several ways
 */
#define _GNU_SOURCE /* affinity */
#include "base/assert.h"
#include "bench/measure.h"
#include "rpc/io/deferred.h"
#include "server/io/base/threads.h"
#include "storage/checkpoint.h"
#include "storage/store.h"
#include "storage/sqlite/sqlite_statements.h"

#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <stdbool.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#define MODELS_MAX 8
#define ELEMENTS   ((uint64_t)64 << 20)
/* Rows for the size of one. */
#define SAMPLE 4000

static char folder[256];
static cpu_set_t all_cores;

/* ---- the disk ---- */

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

static void clean_up(void)
{
    (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_folder(void)
{
    const char *base = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%s/ampd-bench.XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(folder) == NULL)
        bench_fail("no folder can be made");
    (void)atexit(clean_up);
}

static void check(int rc, const char *what)
{
    if (rc != 0)
        bench_fail(what);
}

/* Lets this thread run on all cores again: bench_run has pinned it, and threads that it starts would inherit that. */
static void unpin(void *context)
{
    (void)context;
    check(sched_setaffinity(0, sizeof all_cores, &all_cores), "a thread cannot be unpinned");
}

/* ---- verdicts ---- */

struct verdicts;

struct model {
    struct io_task task;
    struct arpc_deferred_item answer;
    struct verdicts *side;
    char name[16];
    struct ampd_step_row row;
};

struct verdicts {
    bool full;
    unsigned count;
    struct ampd_store *store;
    struct io_threads *writer;
    uv_loop_t loop;
    struct arpc_deferred deferred; /* as the server's loop has it, which looks for more before it sleeps */
    size_t to_begin, left;
    struct model models[MODELS_MAX];
};

static void group_run(struct amp_list *tasks)
{
    struct ampd_verdict_put puts[IO_GROUP_MAX];
    struct verdicts *side = AMP_CONTAINER(tasks->next, struct model, task.node)->side;
    uint32_t count = 0, stored;
    AMP_LIST_EACH(it, safe, tasks)
    {
        const struct model *model = AMP_CONTAINER(it, struct model, task.node);
        puts[count++] = (struct ampd_verdict_put){model->name, &model->row};
    }
    check(ampd_store_put_verdicts(side->store, puts, count, side->full, &stored, NULL), "a verdict cannot be stored");
}

static void begin_next(struct model *model)
{
    if (model->side->to_begin == 0)
        return;
    model->side->to_begin--;
    model->row.step++;
    io_threads_submit(model->side->writer, &model->task);
}

static void verdict_done(struct io_task *task)
{
    struct model *model = AMP_CONTAINER(task, struct model, task);
    if (--model->side->left == 0)
        uv_stop(&model->side->loop);
    arpc_deferred_add(&model->side->deferred, &model->answer);
    begin_next(model);
}

static void answer(struct arpc_deferred_item *item)
{
    (void)item; /* here it would leave */
}

static void verdicts_run(void *context, size_t first, size_t count)
{
    struct verdicts *side = context;
    (void)first;
    side->to_begin = side->left = count;
    for (unsigned m = 0; m < side->count; m++)
        begin_next(&side->models[m]);
    (void)uv_run(&side->loop, UV_RUN_DEFAULT);
}

static void fill_row(struct ampd_step_row *row)
{
    *row = (struct ampd_step_row){.kind = AMPD_ROW_STEP,
                                  .epoch = 1,
                                  .verdict = AMPD_VERDICT_APPLIED,
                                  .tries = 1,
                                  .contributors_hash = 0x123456789abcdef,
                                  .contributors_count = 2,
                                  .scale = 65536,
                                  .scale_id = 3,
                                  .after.scaler = {65536, 3, .attempted = 100000, .applied = 99990},
                                  .coefficient = 1.0f / 3,
                                  .norm = 0.12345,
                                  .clip = 0.98765f,
                                  .clips_count = 1,
                                  .lr = 1e-4,
                                  .version = 100000,
                                  .durable_step = 99900,
                                  .at_us = 1790000000000000};
    for (uint32_t i = 0; i < row->contributors_count; i++)
        row->contributors[i] = (struct ampd_contributor){.rank = i, .incarnation = {1, 2 + i}, .weight = 1};
}

/* Makes a store in a directory of its own, with models that have an epoch. */
static struct ampd_store *open_store(const char *name, unsigned models)
{
    char path[300];
    struct ampd_store *store;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    check(mkdir(path, 0700), "no folder can be made");
    check(ampd_store_sqlite_open(path, &store, NULL), "the store cannot be opened");
    for (unsigned m = 0; m < models; m++) {
        struct ampd_parameter_spec parameter = {.name = "w", .dimensions = 1, .shape = {64}};
        struct ampd_model_spec spec = {.parameters = &parameter, .parameters_count = 1, .groups_count = 1};
        struct ampd_epoch_record epoch = {.epoch = 1, .reason = "CREATED"};
        struct ampd_step_row *row = calloc(1, sizeof *row);
        (void)snprintf(spec.name, sizeof spec.name, "model-%u", m);
        row->kind = AMPD_ROW_EPOCH;
        row->epoch = 1;
        check(ampd_store_put_model(store, &spec, 1, NULL), "a model cannot be stored");
        check(ampd_store_put_epoch(store, spec.name, &epoch, row, NULL), "an epoch cannot be stored");
        free(row);
    }
    return store;
}

static struct verdicts *verdicts_new(unsigned models, bool full)
{
    struct verdicts *side = calloc(1, sizeof *side);
    side->full = full;
    side->count = models;
    side->store = open_store("store", models);
    check(uv_loop_init(&side->loop), "no loop");
    check(arpc_deferred_init(&side->deferred, &side->loop), "no loop");
    check(io_threads_new(&side->loop, 1, IO_THREADS_SPINNING, &side->writer), "no thread");
    for (unsigned m = 0; m < models; m++) {
        struct model *model = &side->models[m];
        model->side = side;
        model->task = (struct io_task){.done_cb = verdict_done, .group_cb = group_run};
        arpc_deferred_item_init(&model->answer, answer);
        (void)snprintf(model->name, sizeof model->name, "model-%u", m);
        fill_row(&model->row);
    }
    return side;
}

static void deferred_closed(struct arpc_deferred *deferred)
{
    (void)deferred;
}

static void verdicts_free(struct verdicts *side)
{
    for (unsigned m = 0; m < side->count; m++)
        arpc_deferred_remove(&side->models[m].answer);
    arpc_deferred_close(&side->deferred, deferred_closed);
    io_threads_close(side->writer);
    (void)uv_run(&side->loop, UV_RUN_DEFAULT);
    check(uv_loop_close(&side->loop), "the loop is busy");
    ampd_store_close(side->store);
    free(side);
}

/* The number of bytes that a row takes in the database file. */
static size_t row_bytes(void)
{
    struct ampd_store *store = open_store("sample", 1);
    struct ampd_step_row *row = calloc(1, sizeof *row);
    struct stat before, after;
    char path[300];
    (void)snprintf(path, sizeof path, "%s/sample/ampd.db", folder);
    fill_row(row);
    for (unsigned i = 0; i <= SAMPLE; i++) {
        row->step = i + 1;
        check(ampd_store_put_verdict(store, "model-0", row, false, NULL), "a verdict cannot be stored");
        if (i == 0) {
            ampd_store_close(store); /* moves the log into the file */
            check(stat(path, &before), "no file");
            check(ampd_store_sqlite_open(strcat(strcpy(path, folder), "/sample"), &store, NULL), "cannot be opened");
        }
    }
    ampd_store_close(store);
    check(stat(strcat(path, "/ampd.db"), &after), "no file");
    free(row);
    return (size_t)(after.st_size - before.st_size) / SAMPLE;
}

struct appends {
    int fd;
    size_t bytes;
    uint8_t *data;
};

static void appends_run(void *context, size_t first, size_t count)
{
    const struct appends *side = context;
    (void)first;
    for (size_t i = 0; i < count; i++)
        if (write(side->fd, side->data, side->bytes) != (ssize_t)side->bytes || fdatasync(side->fd) != 0)
            bench_fail("the peer cannot write");
}

static void full_row(const char *name, unsigned models, double goal)
{
    struct verdicts *ours = verdicts_new(models, true);
    struct appends appends = {.bytes = row_bytes()};
    char path[300];
    (void)snprintf(path, sizeof path, "%s/appended", folder);
    appends.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    appends.data = calloc(1, appends.bytes);
    if (appends.fd < 0 || appends.data == NULL)
        bench_fail("no file");
    (void)fprintf(stderr, "# %s: a row takes %zu bytes\n", name, appends.bytes);
    const size_t count = 800;
    const struct bench_row row = {
        .name = name, .goal = goal, .bytes = (double)count * 1e6, .elements = count, .grain = 1, .threads = 1};
    const struct bench_side a = {"ampd", verdicts_run, ours, unpin}, b = {"append", appends_run, &appends, unpin};
    bench_pairs(&row, &a, &b, NULL);
    verdicts_free(ours);
    free(appends.data);
    (void)close(appends.fd);
}

/* ---- the bare loop of INSERTs ---- */

struct inserts {
    sqlite3 *db;
    sqlite3_stmt *insert;
    uint64_t step;
};

/* As put_row of the store binds them: numbers, blobs, texts; only the step changes. */
static void inserts_run(void *context, size_t first, size_t count)
{
    struct inserts *side = context;
    (void)first;
    for (size_t i = 0; i < count; i++) {
        (void)sqlite3_bind_int64(side->insert, 3, (sqlite3_int64)++side->step);
        if (sqlite3_step(side->insert) != SQLITE_DONE)
            bench_fail("the peer cannot insert");
        (void)sqlite3_reset(side->insert);
    }
}

/* Takes a row that the store has written, which the peer then inserts again and again. */
static void inserts_open(struct inserts *side)
{
    char path[300];
    struct ampd_store *store = open_store("bare", 1);
    struct ampd_step_row *first = calloc(1, sizeof *first);
    fill_row(first);
    first->step = 1;
    check(ampd_store_put_verdict(store, "model-0", first, false, NULL), "no first row");
    free(first);
    ampd_store_close(store);
    (void)snprintf(path, sizeof path, "%s/bare/ampd.db", folder);
    check(sqlite3_open_v2(path, &side->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL), "no database");
    check(sqlite3_exec(side->db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA secure_delete=OFF", NULL,
                       NULL, NULL),
          "no WAL");
    check(sqlite3_prepare_v3(side->db, store_sql(STMT_ROW_PUT), -1, SQLITE_PREPARE_PERSISTENT, &side->insert, NULL),
          "no statement");
    sqlite3_stmt *row;
    check(sqlite3_prepare_v2(
              side->db, "SELECT model_id,epoch,step,sequence," STORE_ROW_COLUMNS " FROM steps WHERE step=1 AND kind=1",
              -1, &row, NULL),
          "no row");
    if (sqlite3_step(row) != SQLITE_ROW)
        bench_fail("no row");
    for (int i = 0; i < sqlite3_column_count(row); i++)
        check(sqlite3_bind_value(side->insert, i + 1, sqlite3_column_value(row, i)), "cannot bind");
    (void)sqlite3_finalize(row);
    side->step = 1;
}

/* The store's call alone, without the queue. */
static void calls_run(void *context, size_t first, size_t count)
{
    struct verdicts *side = context;
    struct model *model = &side->models[0];
    (void)first;
    for (size_t i = 0; i < count; i++) {
        model->row.step++;
        check(ampd_store_put_verdict(side->store, model->name, &model->row, side->full, NULL), "cannot be stored");
    }
}

static void normal_row(const char *name, unsigned models, void (*run)(void *, size_t, size_t))
{
    struct verdicts *ours = verdicts_new(models, false);
    struct inserts inserts = {0};
    inserts_open(&inserts);
    const size_t count = 8000;
    const struct bench_row row = {
        .name = name, .goal = 0.8, .bytes = (double)count * 1e6, .elements = count, .grain = 1, .threads = 1};
    const struct bench_side a = {"ampd", run, ours, unpin}, b = {"inserts", inserts_run, &inserts, unpin};
    bench_pairs(&row, &a, &b, NULL);
    verdicts_free(ours);
    (void)sqlite3_finalize(inserts.insert);
    (void)sqlite3_close(inserts.db);
}

static void verdicts_normal(const char *name)
{
    normal_row(name, 8, verdicts_run);
}

static void verdicts_normal_call(const char *name)
{
    normal_row(name, 1, calls_run);
}

/* ---- checkpoint files ---- */

struct files {
    float *tensors[3];
    struct ampd_checkpoint_record record;
    char path[600], other[300];
};

static const uint64_t shape[] = {ELEMENTS};

static void forget(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fdatasync(fd);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    (void)close(fd);
}

/* Removes the files of the run before and syncs, so that no writing of that run is left. */
static void before_write(void *context)
{
    const struct files *files = context;
    unpin(NULL);
    (void)unlink(files->path);
    (void)unlink(files->other);
    sync();
}

static void before_read(void *context)
{
    const struct files *files = context;
    unpin(NULL);
    forget(files->path);
}

static void write_run(void *context, size_t first, size_t count)
{
    struct files *files = context;
    const struct ampd_checkpoint_path place = {folder, "m", 0, 1};
    const struct ampd_checkpoint_tensor tensor = {.name = "w",
                                                  .dimensions = 1,
                                                  .shape = shape,
                                                  .master = files->tensors[0],
                                                  .m = files->tensors[1],
                                                  .v = files->tensors[2]};
    const struct ampd_checkpoint_state state = {.step = 1, .carry.scaler.scale = 1, .world_size = 1};
    (void)first;
    (void)count;
    check(ampd_checkpoint_write(&place, &tensor, 1, &state, NULL, &files->record, NULL), "no checkpoint was written");
    (void)snprintf(files->path, sizeof files->path, "%s/%s", folder, files->record.file);
}

static void read_run(void *context, size_t first, size_t count)
{
    struct files *files = context;
    const struct ampd_checkpoint_target target = {.name = "w",
                                                  .dimensions = 1,
                                                  .shape = shape,
                                                  .master = files->tensors[0],
                                                  .m = files->tensors[1],
                                                  .v = files->tensors[2]};
    struct ampd_checkpoint_state state;
    (void)first;
    (void)count;
    check(ampd_checkpoint_read(folder, files->record.file, files->record.manifest, &target, 1, &state, NULL),
          "no checkpoint was read");
    ampd_checkpoint_state_clear(&state);
}

static void dd(const struct files *files, bool reads, const char *how)
{
    char command[1200];
    const char *from = reads ? files->path : "/dev/zero", *to = reads ? "/dev/null" : files->other;
    (void)snprintf(command, sizeof command, "dd if=%s of=%s %s 2>/dev/null", from, to, how);
    check(system(command), "dd failed");
}

#define PEER(name, reads, how)                                                                                         \
    static void name(void *context, size_t first, size_t count)                                                        \
    {                                                                                                                  \
        (void)first;                                                                                                   \
        (void)count;                                                                                                   \
        dd(context, reads, how);                                                                                       \
    }
PEER(dd_write, false, "bs=1M count=768 conv=fsync")
PEER(dd_write_1m, false, "bs=1M count=768 oflag=direct conv=fsync")
PEER(dd_write_4m, false, "bs=4M count=192 oflag=direct conv=fsync")
PEER(dd_read, true, "bs=1M")
PEER(dd_read_1m, true, "bs=1M iflag=direct")
PEER(dd_read_4m, true, "bs=4M iflag=direct")

static void file_row(const char *name, bool reads)
{
    struct files files = {0};
    for (unsigned k = 0; k < 3; k++) {
        files.tensors[k] = bench_alloc(ELEMENTS * sizeof(float));
        for (uint64_t i = 0; i < ELEMENTS; i++)
            files.tensors[k][i] = (float)i;
    }
    (void)snprintf(files.other, sizeof files.other, "%s/dd", folder);
    write_run(&files, 0, 0);
    void (*before)(void *) = reads ? before_read : before_write;
    const struct bench_side ours = {"ampd", reads ? read_run : write_run, &files, before};
    const struct bench_side peers[] = {{"dd", reads ? dd_read : dd_write, &files, before},
                                       {"dd_direct_1m", reads ? dd_read_1m : dd_write_1m, &files, before},
                                       {"dd_direct_4m", reads ? dd_read_4m : dd_write_4m, &files, before}};
    const struct bench_row row = {.name = name,
                                  .goal = 0.9,
                                  .bytes = (double)(3 * ELEMENTS * sizeof(float)),
                                  .elements = ELEMENTS,
                                  .grain = 1,
                                  .threads = 1};
    bench_pairs(&row, &ours, bench_fastest("peer", peers, sizeof peers / sizeof *peers, &row), NULL);
    for (unsigned k = 0; k < 3; k++)
        bench_free(files.tensors[k], ELEMENTS * sizeof(float));
}

static void verdicts_full_8(const char *name)
{
    full_row(name, 8, 0.9);
}

static void verdicts_full_1(const char *name)
{
    full_row(name, 1, 0.6);
}

static void checkpoint_write(const char *name)
{
    file_row(name, false);
}

static void checkpoint_restore(const char *name)
{
    file_row(name, true);
}

static const struct {
    const char *name;
    void (*run)(const char *name);
} rows[] = {
    {"storage_verdicts_full_8", verdicts_full_8},   {"storage_verdicts_full_1", verdicts_full_1},
    {"storage_verdicts_normal", verdicts_normal},   {"storage_verdicts_normal_call", verdicts_normal_call},
    {"storage_checkpoint_write", checkpoint_write}, {"storage_checkpoint_restore", checkpoint_restore},
};

int main(int argc, char **argv)
{
    if (argc != 2) {
        (void)fprintf(stderr, "usage: bench_store --list | ROW\n");
        return 2;
    }
    check(sched_getaffinity(0, sizeof all_cores, &all_cores), "the cores of this process cannot be asked for");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(argv[1], "--list") == 0) {
            (void)puts(rows[i].name);
        } else if (strcmp(argv[1], rows[i].name) == 0) {
            make_folder();
            rows[i].run(rows[i].name);
            return 0;
        }
    }
    return strcmp(argv[1], "--list") == 0 ? 0 : 2;
}
