/*
 * ampctl checkpoint import --full: a model goes on from a file of `ampctl checkpoint export` as if it had never moved.
 * The file is verified whole, as a server verifies its own checkpoints, before anything of it is sent.
 */
#define _DEFAULT_SOURCE /* realpath */
#include "amp/optim.h"
#include "client/ampctl/ask.h"
#include "client/ampctl/files/import.h"
#include "client/io/client.h"
#include "client/io/client_spec.h"
#include "storage/checkpoint.h"
#include "storage/records_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What is read, and where it goes: each array has one for each parameter. */
struct restoring {
    struct ampctl *ctl;
    const char *model, *file;
    struct ampd_msg_get_model_response about;
    unsigned moments;
    uint32_t count;
    uint64_t *elements;
    float **planes[3]; /* masters, m, v; each array owned */
    struct ampd_checkpoint_target *targets;
    struct ampd_checkpoint_state state; /* owned */
};

static int failed(const struct restoring *x, const char *text)
{
    (void)ampctl_print(stderr, "ampctl: %s: %s: %s", x->ctl->verb, x->file, text);
    return AMPCTL_EXIT_FAILED;
}

static int no_memory(const struct restoring *x)
{
    return failed(x, "there is no memory for its tensors");
}

static void close_all(struct restoring *x)
{
    for (unsigned plane = 0; plane < 3; plane++) {
        for (uint32_t i = 0; x->planes[plane] != NULL && i < x->count; i++)
            free(x->planes[plane][i]);
        free(x->planes[plane]);
    }
    free(x->elements);
    free(x->targets);
    ampd_checkpoint_state_clear(&x->state);
    ampd_msg_get_model_response_free(&x->about);
}

/* ---- the file ---- */

static int make_target(struct restoring *x, uint32_t i)
{
    const struct ampd_msg_parameter_spec *parameter = &x->about.spec.parameters.items[i];
    if (ampclient_parameter_elements(parameter->shape, parameter->shape_count, &x->elements[i]) != 0)
        return failed(x, "the server describes an impossible model; is it an ampd?");
    for (unsigned plane = 0; plane <= x->moments; plane++) {
        x->planes[plane][i] = malloc((size_t)x->elements[i] * sizeof(float));
        if (x->planes[plane][i] == NULL)
            return no_memory(x);
    }
    x->targets[i] = (struct ampd_checkpoint_target){.name = parameter->name,
                                                    .dimensions = parameter->shape_count,
                                                    .shape = parameter->shape,
                                                    .master = x->planes[0][i],
                                                    .m = x->moments > 0 ? x->planes[1][i] : NULL,
                                                    .v = x->moments > 1 ? x->planes[2][i] : NULL};
    return 0;
}

static int make_room(struct restoring *x)
{
    const struct ampd_msg_optimizer_spec *optimizer = &x->about.spec.optimizer;
    const struct amp_optim_config config = {.optimizer = (enum amp_optimizer)optimizer->kind,
                                            .momentum = optimizer->momentum,
                                            .centered = optimizer->centered};
    x->moments = amp_optim_config_moments(&config);
    x->count = (uint32_t)x->about.spec.parameters.count;
    x->elements = calloc(x->count + 1u, sizeof *x->elements);
    x->targets = calloc(x->count + 1u, sizeof *x->targets);
    if (x->elements == NULL || x->targets == NULL)
        return no_memory(x);
    for (unsigned plane = 0; plane <= x->moments; plane++) {
        x->planes[plane] = calloc(x->count + 1u, sizeof *x->planes[plane]);
        if (x->planes[plane] == NULL)
            return no_memory(x);
    }
    int code = 0;
    for (uint32_t i = 0; code == 0 && i < x->count; i++)
        code = make_target(x, i);
    return code;
}

/* Whose moments they are. A file of an older ampd does not say so. */
static int check_optimizer(const struct restoring *x)
{
    enum amp_optimizer had = x->state.optimizer, has = (enum amp_optimizer)x->about.spec.optimizer.kind;
    enum ampd_centered centered = x->about.spec.optimizer.centered ? AMPD_CENTERED : AMPD_CENTERED_NOT;
    if (had == has && x->state.centered != AMPD_CENTERED_UNKNOWN && x->state.centered != centered)
        return failed(x, centered == AMPD_CENTERED
                             ? "its moments are those of rmsprop that is not centered, and the model's is; create it "
                               "without centered"
                             : "its moments are those of rmsprop that is centered, and the model's is not; create it "
                               "centered");
    if (had == AMP_OPT_UNSET || had == has)
        return 0;
    char text[256];
    (void)snprintf(text, sizeof text, "its moments are those of %s, and %.128s is trained with %s; create it with %s",
                   amp_optim_name(had), x->model, amp_optim_name(has), amp_optim_name(had));
    return failed(x, text);
}

/* Of a file that could not be read: whether it is a whole checkpoint but for the moments. */
static bool has_values_alone(struct restoring *x, const char *folder, const char *name)
{
    struct amp_error error = {0};
    for (uint32_t i = 0; i < x->count; i++)
        x->targets[i].m = x->targets[i].v = NULL;
    return x->moments > 0 && ampd_checkpoint_read(folder, name, NULL, x->targets, x->count, &x->state, &error) == 0;
}

static int say_unread(struct restoring *x, const char *folder, const char *name, const struct amp_error *error)
{
    if (strcmp(error->reason, AMPD_CHECKPOINT_FOREIGN) == 0)
        return failed(x, "it is not a checkpoint of ampd, and --full loads no other file; leave --full out to load the "
                         "values of its tensors");
    if (has_values_alone(x, folder, name)) {
        int code = check_optimizer(x); /* sgd without momentum has no moments */
        return code != 0 ? code : failed(x, "it has values alone, without moments; leave --full out to load them");
    }
    return failed(x, error->text);
}

static int read_file(struct restoring *x)
{
    char path[PATH_MAX];
    struct stat status;
    struct amp_error error = {0};
    if (realpath(x->file, path) == NULL) /* ampd itself follows no link to a checkpoint */
        return failed(x, strerror(errno));
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) /* a FIFO is not waited for */
        return failed(x, "it is not a file");
    char *name = strrchr(path, '/');
    *name++ = 0;
    const char *folder = path[0] == 0 ? "/" : path;
    if (ampd_checkpoint_read(folder, name, NULL, x->targets, x->count, &x->state, &error) != 0)
        return say_unread(x, folder, name, &error);
    return check_optimizer(x);
}

/* ---- what is sent ---- */

static int send_full(const struct restoring *x, const struct ampclient_full *full, bool *already)
{
    struct ampclient *client = NULL;
    int code = ampctl_client(x->ctl, &client);
    if (code != 0)
        return code;
    const struct ampclient_load_source source = {
        .planes = {full->values, full->m, full->v}, .count = x->count, .elements = x->elements, .full = full};
    int rc = ampclient_load_from(client, x->model, &source, already);
    if (rc != 0) {
        (void)ampctl_print(stderr, "ampctl: %s: %s", x->ctl->verb, ampclient_error_text(client));
        code = AMPCTL_EXIT_RPC + amp_err_grpc_status(rc);
    }
    ampclient_close(client);
    return code;
}

static int load(const struct restoring *x, bool *already)
{
    const struct ampd_checkpoint_state *state = &x->state;
    const struct amp_scaler_state *record = &state->carry.scaler;
    const uint8_t *states[AMPD_WORLD_MAX] = {0};
    uint32_t sizes[AMPD_WORLD_MAX] = {0};
    for (uint32_t rank = 0; rank < state->world_size; rank++) { /* at most AMPD_WORLD_MAX: verified */
        states[rank] = state->user_states[rank].data;
        sizes[rank] = state->user_states[rank].size;
    }
    struct ampclient_full full = AMPCLIENT_FULL_INIT;
    full.step = state->step;
    full.version = state->version;
    full.values = (const float *const *)x->planes[0];
    full.m = (const float *const *)x->planes[1];
    full.v = (const float *const *)x->planes[2];
    full.parameters_count = x->count;
    full.scale = record->scale;
    full.scale_id = record->scale_id;
    full.growth_tracker = record->growth_tracker;
    full.hysteresis_left = record->hysteresis_left;
    full.consecutive_overflows = record->consecutive_overflows;
    full.total_overflows = record->total_overflows;
    full.steps_since_overflow = record->steps_since_overflow;
    full.attempted = record->attempted;
    full.applied = record->applied;
    full.skipped = record->skipped;
    full.learning_rate = state->carry.lr;
    full.user_states = states;
    full.user_states_sizes = sizes;
    full.user_states_count = state->world_size;
    return send_full(x, &full, already);
}

int ampctl_import_full(struct ampctl *ctl, const char model[128], const char *path, struct ampctl_imported *made,
                       bool *already)
{
    struct restoring x = {.ctl = ctl, .model = model, .file = path};
    *already = false;
    int code = ampctl_get_model(ctl, model, &x.about);
    ampctl_close(ctl);
    if (code != 0)
        return code;
    code = make_room(&x);
    if (code == 0)
        code = read_file(&x);
    if (code == 0)
        code = load(&x, already);
    *made = (struct ampctl_imported){.step = x.state.step,
                                     .applied = x.state.carry.scaler.applied,
                                     .tensors = (uint64_t)x.count * (1u + x.moments),
                                     .scale = x.state.carry.scaler.scale};
    close_all(&x);
    return code;
}
