/*
 * ampctl checkpoint export: fetches a checkpoint's file from each shard, verifies them, and writes one safetensors
 * file, which does not depend on the number of shards: its bytes are those of the file that one shard alone would have
 * written, so that "ampctl checkpoint import --full" goes on from it. With --values-only it has the parameters alone,
 * by their names.
 *
 * All that is in the making lies in a folder beside FILE, which is gone at the end. Tensors are put together in a
 * mapped file there, so that a model may be larger than this machine's memory.
 */
#define _GNU_SOURCE /* renameat2 */
#include "amp/optim.h"
#include "client/ampctl/ask.h"
#include "client/ampctl/files/export.h"
#include "client/ampctl/files/fetch.h"
#include "client/ampctl/parse.h"
#include "client/io/client_spec.h"
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/records_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of a whole model, as the server takes them (docs/protocol.md). */
#define ELEMENTS_MAX ((uint64_t)1 << 40)

enum { KEY_STEP = 256, KEY_EPOCH, KEY_FORCE, KEY_VALUES_ONLY, KEY_FULL };

struct exporting {
    struct ampctl *ctl;
    char model[128];
    const char *file;
    bool force;
    bool values_only; /* masters alone */
    bool full;        /* the default, said in so many words */
    bool newest;      /* no checkpoint is named */
    struct ampctl_checkpoint_key key;
    struct ampd_msg_get_model_response about;
    unsigned moments;
    char folder[3800]; /* "": not made */
    char file_made[256];
    char parts_names[AMPCLIENT_SHARDS_MAX][24];
    uint8_t manifests[AMPCLIENT_SHARDS_MAX][16];
    float *memory; /* mapped; all tensors end to end, each its masters, m and v */
    size_t memory_size;
    struct ampctl_exported made;
};

/*
 * SIGINT, SIGTERM or SIGHUP has come: what is in the making is taken away in order. A second one ends the program at
 * once.
 */
static atomic_bool stopped;

static void on_signal(int number)
{
    (void)number;
    atomic_store(&stopped, true);
}

static void watch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction old;
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            (void)sigaction(numbers[i], &action, NULL);
    }
}

static int failed(const struct exporting *x, const char *what, const char *path)
{
    (void)ampctl_print(stderr, "ampctl: %s: %s %s: %s", x->ctl->verb, what, path, strerror(errno));
    return AMPCTL_EXIT_FAILED;
}

static int failed_by(const struct exporting *x, const struct amp_error *error)
{
    (void)ampctl_print(stderr, "ampctl: %s: %s", x->ctl->verb, error->text);
    return AMPCTL_EXIT_FAILED;
}

/* ---- what the server says of the model ---- */

/* The shapes have been looked at: check_shapes. */
static uint64_t elements_of(const struct ampd_msg_parameter_spec *parameter)
{
    uint64_t elements = 0;
    (void)ampclient_parameter_elements(parameter->shape, parameter->shape_count, &elements);
    return elements;
}

/* What a server says of a model's size is believed only within what a model can have. */
static int check_shapes(const struct exporting *x)
{
    uint64_t total = 0, one;
    for (size_t i = 0; i < x->about.spec.parameters.count; i++) {
        const struct ampd_msg_parameter_spec *parameter = &x->about.spec.parameters.items[i];
        if (ampclient_parameter_elements(parameter->shape, parameter->shape_count, &one) != 0 ||
            (total += one) > ELEMENTS_MAX) {
            (void)ampctl_print(stderr, "ampctl: %s: the server describes an impossible model; is it an ampd?",
                               x->ctl->verb);
            return AMPCTL_EXIT_FAILED;
        }
    }
    return 0;
}

/*
 * More than a shard's file can have: its tensors, the ranks' states, and the header, which is bounded. So a server that
 * is none cannot fill this disk with more than the model that it describes.
 */
static uint64_t part_size_max(const struct exporting *x)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < x->about.spec.parameters.count; i++)
        elements += elements_of(&x->about.spec.parameters.items[i]);
    return elements * (1u + x->moments) * sizeof(float) + (uint64_t)AMPD_WORLD_MAX * AMPD_USER_STATE_MAX +
           sizeof(uint64_t) + AMPD_CHECKPOINT_HEADER_MAX;
}

/* ---- one shard's file ---- */

static int fetch_part(struct exporting *x, uint32_t shard)
{
    char path[4096];
    (void)snprintf(x->parts_names[shard], sizeof x->parts_names[shard], "part-%u", shard);
    (void)snprintf(path, sizeof path, "%s/%s", x->folder, x->parts_names[shard]);
    struct ampctl_part part = {.model = x->model,
                               .key = &x->key,
                               .shard = shard,
                               .shards = (uint32_t)x->about.shards.count,
                               .path = path,
                               .stopped = &stopped,
                               .size_max = part_size_max(x)};
    int code = ampctl_fetch_part(x->ctl, &part);
    memcpy(x->manifests[shard], part.manifest, sizeof part.manifest);
    return code;
}

/* ---- putting them together ---- */

static int map_memory(struct exporting *x)
{
    char path[4096];
    uint64_t elements = 0;
    for (size_t i = 0; i < x->about.spec.parameters.count; i++)
        elements += elements_of(&x->about.spec.parameters.items[i]);
    x->memory_size = (size_t)(elements * (1u + x->moments) * sizeof(float));
    (void)snprintf(path, sizeof path, "%s/tensors", x->folder);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return failed(x, "cannot write", path);
    /* Allocated now: a full disk is an error here, and would be a signal later. */
    int rc = posix_fallocate(fd, 0, (off_t)x->memory_size);
    if (rc == 0) {
        void *memory = mmap(NULL, x->memory_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        rc = memory == MAP_FAILED ? errno : 0;
        x->memory = rc == 0 ? memory : NULL;
    }
    (void)close(fd); /* the mapping stays */
    (void)unlink(path);
    errno = rc;
    return rc == 0 ? 0 : failed(x, "cannot make room in", x->folder);
}

static void place_tensors(const struct exporting *x, struct ampd_checkpoint_target *targets,
                          struct ampd_checkpoint_tensor *tensors)
{
    float *at = x->memory;
    for (size_t i = 0; i < x->about.spec.parameters.count; i++) {
        const struct ampd_msg_parameter_spec *parameter = &x->about.spec.parameters.items[i];
        uint64_t elements = elements_of(parameter);
        float *m = x->moments > 0 ? at + elements : NULL, *v = x->moments > 1 ? at + 2 * elements : NULL;
        targets[i] = (struct ampd_checkpoint_target){.name = parameter->name,
                                                     .dimensions = parameter->shape_count,
                                                     .shape = parameter->shape,
                                                     .master = at,
                                                     .m = m,
                                                     .v = v};
        tensors[i] = (struct ampd_checkpoint_tensor){.name = parameter->name,
                                                     .dimensions = parameter->shape_count,
                                                     .shape = parameter->shape,
                                                     .master = at,
                                                     .m = x->values_only ? NULL : m,
                                                     .v = x->values_only ? NULL : v};
        at += elements * (1u + x->moments);
    }
}

/* What belongs to the parameters alone stays: the step, and where the scale was. */
static void drop_the_rest(struct ampd_checkpoint_state *state)
{
    for (uint32_t rank = 0; rank < state->world_size; rank++)
        state->user_states[rank].size = 0;
    state->optimizer = AMP_OPT_UNSET;
    state->centered = AMPD_CENTERED_UNKNOWN;
}

static void remember(struct exporting *x, const struct ampd_checkpoint_state *state)
{
    x->made.epoch = x->key.epoch;
    x->made.step = state->step;
    x->made.version = state->version;
    x->made.carry = state->carry;
    x->made.world_size = state->world_size; /* at most AMPD_WORLD_MAX: verified */
    for (uint32_t rank = 0; rank < state->world_size; rank++)
        x->made.user_states_sizes[rank] = state->user_states[rank].size;
}

/* Reads the parts, each tensor verified by its hash, and writes the merged file. */
static int merge(struct exporting *x)
{
    uint32_t count = (uint32_t)x->about.spec.parameters.count, shards = (uint32_t)x->about.shards.count;
    struct ampd_checkpoint_part parts[AMPCLIENT_SHARDS_MAX];
    for (uint32_t k = 0; k < shards; k++)
        parts[k] = (struct ampd_checkpoint_part){x->folder, x->parts_names[k], x->manifests[k]};
    struct ampd_checkpoint_target *targets = calloc(count + 1u, sizeof *targets);
    struct ampd_checkpoint_tensor *tensors = calloc(count + 1u, sizeof *tensors);
    struct ampd_checkpoint_state state = {0};
    struct ampd_checkpoint_record record;
    struct amp_error error = {0};
    int rc = targets == NULL || tensors == NULL ? AMP_ENOMEM : 0;
    if (rc != 0)
        (void)amp_error_set(&error, rc, NULL, "out of memory for the list of tensors");
    if (rc == 0) {
        place_tensors(x, targets, tensors);
        rc = ampd_checkpoint_read_parts(parts, shards, targets, count, &state, &error);
    }
    if (rc == 0) {
        const struct ampd_checkpoint_path place = {x->folder, x->model, 0, 1};
        if (x->values_only)
            drop_the_rest(&state);
        remember(x, &state);
        rc = ampd_checkpoint_write(&place, tensors, count, &state, &stopped, &record, &error);
        ampd_checkpoint_state_clear(&state);
    }
    free(tensors);
    free(targets);
    if (rc != 0)
        return failed_by(x, &error);
    (void)snprintf(x->file_made, sizeof x->file_made, "%s", record.file);
    return 0;
}

/* ---- the file and the folder ---- */

static int exists(const struct exporting *x)
{
    (void)ampctl_print(stderr, "ampctl: %s: %s exists; name another file, or give --force", x->ctl->verb, x->file);
    return AMPCTL_EXIT_FAILED;
}

static int make_folder(struct exporting *x)
{
    struct stat status;
    bool there = lstat(x->file, &status) == 0;
    if (there && !S_ISREG(status.st_mode)) {
        (void)ampctl_print(stderr, "ampctl: %s: %s is not a regular file, and is left as it is; name another",
                           x->ctl->verb, x->file);
        return AMPCTL_EXIT_FAILED;
    }
    if (there && !x->force)
        return exists(x);
    if ((size_t)snprintf(x->folder, sizeof x->folder, "%s.XXXXXX", x->file) >= sizeof x->folder) {
        errno = ENAMETOOLONG;
        x->folder[0] = 0;
        return failed(x, "cannot write", x->file);
    }
    if (mkdtemp(x->folder) != NULL)
        return 0;
    x->folder[0] = 0;
    return failed(x, "cannot make a folder beside", x->file);
}

/* Gives the file its name. Without --force what has come there meanwhile stays. 0, or -1 with errno. */
static int take_name(const struct exporting *x, const char *path)
{
    if (x->force)
        return rename(path, x->file);
    if (renameat2(AT_FDCWD, path, AT_FDCWD, x->file, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    return link(path, x->file); /* a file system without that flag, NFS for one; the first name goes with the folder */
}

/* The merged file is synced already; its new name is, too, before this says that all is well. */
static int move_file(const struct exporting *x)
{
    char path[4096], parent[4096];
    (void)snprintf(path, sizeof path, "%s/%s", x->folder, x->file_made);
    mode_t mask = umask(0); /* there is no call that only reads it */
    (void)umask(mask);
    if (chmod(path, 0666 & ~mask) != 0 || take_name(x, path) != 0)
        return errno == EEXIST ? exists(x) : failed(x, "cannot write", x->file);
    const char *slash = strrchr(x->file, '/');
    (void)snprintf(parent, sizeof parent, "%.*s",
                   slash == NULL      ? 1
                   : slash == x->file ? 1
                                      : (int)(slash - x->file),
                   slash == NULL ? "." : x->file);
    if (access(parent, R_OK) != 0)
        return 0; /* it may be written to but not read, as a drop folder: who made it so has its names synced */
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) != 0 ? failed(x, "cannot sync", parent) : 0;
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

static void remove_folder(const struct exporting *x)
{
    char path[4096];
    struct amp_error error;
    for (size_t k = 0; k < x->about.shards.count && x->parts_names[k][0] != 0; k++) {
        (void)snprintf(path, sizeof path, "%s/%s", x->folder, x->parts_names[k]);
        (void)unlink(path);
    }
    const struct ampd_checkpoint_path all = {.data_dir = x->folder, .model = x->model};
    (void)ampd_checkpoint_remove_model(&all, &error);
    (void)snprintf(path, sizeof path, "%s/models", x->folder);
    (void)rmdir(path);
    (void)rmdir(x->folder);
}

/* ---- the verb ---- */

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct exporting *x = state->input;
    switch (key) {
    case KEY_STEP:
        x->key.has_step = true;
        x->key.step = ampctl_number(state, "--step", arg, AMPCTL_NUMBER_MAX);
        return 0;
    case KEY_EPOCH:
        x->key.has_epoch = true;
        x->key.epoch = ampctl_number(state, "--epoch", arg, AMPCTL_NUMBER_MAX);
        return 0;
    case KEY_FORCE:
        x->force = true;
        return 0;
    case KEY_VALUES_ONLY:
        x->values_only = true;
        return 0;
    case KEY_FULL:
        x->full = true;
        return 0;
    case ARGP_KEY_END:
        if (x->values_only && x->full)
            argp_error(state, "--values-only and --full: give one of them");
        return ampctl_model_and_file(key, arg, state, x->model, &x->file);
    default:
        return ampctl_model_and_file(key, arg, state, x->model, &x->file);
    }
}

/* From now on each call goes to the shard that it names. 0, or an exit code after a sentence. */
static int reach_shards(struct exporting *x)
{
    const char *endpoints[AMPCLIENT_SHARDS_MAX];
    struct amp_error error = {0};
    if (x->about.shards.count == 0 || x->about.shards.count > AMPCLIENT_SHARDS_MAX) {
        (void)ampctl_print(stderr, "ampctl: %s: the model has %zu shards; this ampctl reaches at most %u", x->ctl->verb,
                           x->about.shards.count, AMPCLIENT_SHARDS_MAX);
        return AMPCTL_EXIT_FAILED;
    }
    if (x->about.shards.count == 1)
        return 0;
    for (size_t k = 0; k < x->about.shards.count; k++)
        endpoints[k] = x->about.shards.items[k].endpoint;
    int rc = ampclient_link_use_shards(x->ctl->link, endpoints, (uint32_t)x->about.shards.count, &error);
    return rc == 0 ? 0 : failed_by(x, &error);
}

/* The newest checkpoint may be older than the model's values, which nobody should find out later. */
static void say_if_older(const struct exporting *x, uint64_t decided)
{
    if (x->newest && x->key.step < decided)
        (void)ampctl_print(stderr,
                           "ampctl: %s: this is the checkpoint of step %" PRIu64 ", and %s is at step %" PRIu64
                           "; run \"ampctl checkpoint %s\" and export again for that one",
                           x->ctl->verb, x->key.step, x->model, decided, x->model);
}

/* One row, or a sentence. */
static int say(const struct exporting *x)
{
    static const struct ampctl_column columns[] = {
        {"file", "FILE", false}, {"model", "MODEL", false},         {"epoch", "EPOCH", true},
        {"step", "STEP", true},  {"decided_step", "DECIDED", true}, {"tensors", "TENSORS", true},
        {NULL, NULL, false}};
    size_t tensors = x->about.spec.parameters.count * (x->values_only ? 1u : 1u + x->moments);
    uint64_t decided = x->made.decided;
    say_if_older(x, decided);
    if (x->ctl->json || x->ctl->csv)
        return ampctl_print_one(x->ctl, columns,
                                json_pack("{s:o, s:s, s:I, s:I, s:I, s:I}", "file", ampctl_json_text(x->file), "model",
                                          x->model, "epoch", (json_int_t)x->key.epoch, "step", (json_int_t)x->key.step,
                                          "decided_step", (json_int_t)decided, "tensors", (json_int_t)tensors));
    (void)ampctl_print(stdout, "%s: %s, step %" PRIu64 " of epoch %" PRIu64 ", %zu tensor%s", x->file, x->model,
                       x->key.step, x->key.epoch, tensors, tensors == 1 ? "" : "s");
    return 0;
}

static int run(struct exporting *x)
{
    int code = check_shapes(x);
    x->newest = !x->key.has_step && !x->key.has_epoch;
    if (code == 0)
        code = ampctl_find_checkpoint(x->ctl, x->model, &x->key);
    if (code == 0)
        code = reach_shards(x);
    watch_signals();
    if (code == 0)
        code = make_folder(x);
    for (uint32_t k = 0; code == 0 && k < x->about.shards.count; k++)
        code = fetch_part(x, k);
    if (code == 0)
        code = map_memory(x);
    if (code == 0)
        code = merge(x);
    if (code == 0)
        code = move_file(x);
    if (x->memory != NULL)
        (void)munmap(x->memory, x->memory_size);
    if (x->folder[0] != 0)
        remove_folder(x);
    return code;
}

static int export_model(struct exporting *x)
{
    int code = ampctl_get_model(x->ctl, x->model, &x->about);
    if (code == 0) {
        const struct ampd_msg_optimizer_spec *optimizer = &x->about.spec.optimizer;
        struct amp_optim_config config = {.optimizer = (enum amp_optimizer)optimizer->kind,
                                          .momentum = optimizer->momentum,
                                          .centered = optimizer->centered};
        uint64_t next = x->about.status.step;
        x->made.decided = next > 0 ? next - 1 : 0;
        x->moments = amp_optim_config_moments(&config);
        code = run(x);
    }
    ampctl_close(x->ctl);
    return code;
}

int ampctl_export_full(struct ampctl *ctl, const char model[128], const char *file, struct ampctl_exported *made)
{
    struct exporting x = {.ctl = ctl, .file = file};
    memcpy(x.model, model, sizeof x.model);
    int code = export_model(&x);
    *made = x.made;
    ampd_msg_get_model_response_free(&x.about);
    return code;
}

static const struct argp_option export_options[] = {
    {"step", KEY_STEP, "STEP", 0, "Of the checkpoint (the newest)", 0},
    {"epoch", KEY_EPOCH, "EPOCH", 0, "Of the checkpoint (the newest of that step)", 0},
    {"force", KEY_FORCE, NULL, 0, "Replace FILE if it exists", 0},
    {"values-only", KEY_VALUES_ONLY, NULL, 0, "The parameters alone, in fp32, by their names", 0},
    {"full", KEY_FULL, NULL, 0, "All that \"checkpoint import --full\" needs to continue (the default)", 0},
    {0},
};

static int run_export(struct ampctl *ctl, int argc, char **argv)
{
    struct exporting x = {.ctl = ctl};
    ampctl_parse(ctl, &ampctl_export_verb, &x, argc, argv);
    int code = export_model(&x);
    if (code == 0)
        code = say(&x);
    ampd_msg_get_model_response_free(&x.about);
    return code;
}

const struct ampctl_verb ampctl_export_verb = {
    .name = "checkpoint export",
    .arguments = "MODEL FILE",
    .summary = "a checkpoint as one safetensors file",
    .doc = "Fetches a checkpoint from all shards as one safetensors file: masters, moments, the "
           "loss-scale record, step and counts, and the workers' user states; with "
           "--values-only the parameters alone. Its bytes do not depend on the number of "
           "shards.",
    .examples = "ampctl checkpoint export digits digits.safetensors\n"
                "ampctl checkpoint export digits weights.safetensors --values-only",
    .options = export_options,
    .parser = parse,
    .timeout_ms = AMPCTL_FILE_TIMEOUT_MS,
    .run = run_export,
};
