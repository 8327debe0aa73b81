/*
 * ampctl checkpoint import: the first values of a model, out of a safetensors file that any program has written. With
 * --full: import_full.c.
 */
#include "client/ampctl/ask.h"
#include "client/ampctl/files/import.h"
#include "client/ampctl/parse.h"

#include "client/io/client.h"
#include "client/io/client_spec.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the file ---- */

int ampctl_tensor_file_failed(const struct ampctl *ctl, const struct ampctl_tensor_file *file, const char *text)
{
    (void)ampctl_print(stderr, "ampctl: %s: %s: %s", ctl->verb, file->path, text);
    return AMPCTL_EXIT_FAILED;
}

int ampctl_tensor_file_open(const struct ampctl *ctl, const char *path, struct ampctl_tensor_file *file)
{
    struct amp_error error = {0};
    struct stat status;
    *file = (struct ampctl_tensor_file){.path = path};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused below, not waited for */
    if (fd < 0 || fstat(fd, &status) != 0) {
        int code = ampctl_tensor_file_failed(ctl, file, strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        return code;
    }
    if (!S_ISREG(status.st_mode) || status.st_size == 0) {
        (void)close(fd);
        return ampctl_tensor_file_failed(ctl, file, "it is empty, or not a file");
    }
    file->size = (size_t)status.st_size;
    void *bytes = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
    (void)close(fd); /* the mapping stays */
    if (bytes == MAP_FAILED)
        return ampctl_tensor_file_failed(ctl, file, strerror(errno));
    file->bytes = bytes;
    int rc = ampctl_safetensors_open(file->bytes, file->size, &file->tensors, &error);
    return rc == 0 ? 0 : ampctl_tensor_file_failed(ctl, file, error.text);
}

void ampctl_tensor_file_close(struct ampctl_tensor_file *file)
{
    ampctl_safetensors_close(&file->tensors);
    if (file->bytes != NULL)
        (void)munmap(file->bytes, file->size);
    file->bytes = NULL;
}

/* ---- its values ---- */

/* Those of each parameter of a model, in the model's order. */
struct values {
    float **of; /* each owned */
    uint64_t *elements;
    uint32_t count;
};

static void values_close(struct values *values)
{
    for (uint32_t i = 0; i < values->count; i++)
        free(values->of[i]);
    free(values->of);
    free(values->elements);
}

static int read_parameter(const struct ampctl *ctl, const struct ampctl_tensor_file *file,
                          const struct ampd_msg_parameter_spec *parameter, struct values *values)
{
    struct amp_error error = {0};
    float **of = &values->of[values->count];
    uint64_t *elements = &values->elements[values->count++];
    if (ampclient_parameter_elements(parameter->shape, parameter->shape_count, elements) != 0)
        return ampctl_tensor_file_failed(ctl, file, "the server describes an impossible model; is it an ampd?");
    *of = malloc((size_t)*elements * sizeof **of);
    if (*of == NULL)
        return ampctl_tensor_file_failed(ctl, file, "there is no memory for its tensors");
    if (ampctl_safetensors_read(&file->tensors, parameter->name, parameter->shape, parameter->shape_count, *of,
                                &error) == 0)
        return 0;
    return ampctl_tensor_file_failed(ctl, file, error.text);
}

static int read_values(struct ampctl *ctl, const char model[128], const struct ampctl_tensor_file *file,
                       struct values *values)
{
    struct ampd_msg_get_model_response about;
    int code = ampctl_get_model(ctl, model, &about);
    ampctl_close(ctl);
    if (code != 0)
        return code;
    values->of = calloc(about.spec.parameters.count + 1, sizeof *values->of);
    values->elements = calloc(about.spec.parameters.count + 1, sizeof *values->elements);
    if (values->of == NULL || values->elements == NULL)
        code = ampctl_tensor_file_failed(ctl, file, "there is no memory for its tensors");
    for (size_t i = 0; code == 0 && i < about.spec.parameters.count; i++)
        code = read_parameter(ctl, file, &about.spec.parameters.items[i], values);
    ampd_msg_get_model_response_free(&about);
    return code;
}

int ampctl_client(const struct ampctl *ctl, struct ampclient **client)
{
    const struct ampclient_secure_options *secure = &ctl->secure;
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.cacert = secure->cacert;
    options.cert = secure->cert;
    options.key = secure->key;
    options.server_name = secure->server_name;
    options.token_file = secure->token_file;
    options.token_over_plaintext = secure->token_over_plaintext;
    options.connect_timeout_ms = AMPCTL_TIMEOUT_MS;
    options.reconnect_timeout_ms = AMPCTL_TIMEOUT_MS;
    options.call_timeout_ms = ctl->timeout_ms;
    if (ctl->timeout_ms < AMPCTL_TIMEOUT_MS)
        options.connect_timeout_ms = options.reconnect_timeout_ms = ctl->timeout_ms;
    struct amp_error error = {0};
    int rc = ampclient_connect(ctl->endpoints, &options, client, &error);
    if (rc == 0)
        return 0;
    (void)ampctl_print(stderr, "ampctl: %s: %s", ctl->verb, error.text);
    return AMPCTL_EXIT_RPC + amp_err_grpc_status(rc);
}

static int load(const struct ampctl *ctl, const char model[128], const struct values *values, bool *already)
{
    struct ampclient *client = NULL;
    int code = ampctl_client(ctl, &client);
    if (code != 0)
        return code;
    const struct ampclient_load_source source = {
        .planes = {(const float *const *)values->of}, .count = values->count, .elements = values->elements};
    int rc = ampclient_load_from(client, model, &source, already);
    if (rc != 0) {
        (void)ampctl_print(stderr, "ampctl: %s: %s%s", ctl->verb, ampclient_error_text(client),
                           rc == AMP_EDEADLINE ? " (ampctl: --timeout)" : "");
        code = AMPCTL_EXIT_RPC + amp_err_grpc_status(rc);
    }
    ampclient_close(client);
    return code;
}

int ampctl_load_values(struct ampctl *ctl, const char model[128], const struct ampctl_tensor_file *file,
                       uint32_t *count, bool *already)
{
    struct values values = {0};
    *already = false;
    int code = read_values(ctl, model, file, &values);
    if (code == 0)
        code = load(ctl, model, &values, already);
    *count = values.count;
    values_close(&values);
    return code;
}

/* ---- the verb ---- */

enum { KEY_FULL = 256 };

struct importing {
    char model[128];
    const char *file;
    bool full;
};

/* One row, or a sentence. */
static int say(const struct ampctl *ctl, const struct importing *x, uint32_t count, size_t others)
{
    static const struct ampctl_column columns[] = {{"model", "MODEL", false},
                                                   {"file", "FILE", false},
                                                   {"tensors", "TENSORS", true},
                                                   {"others", "OTHERS", true},
                                                   {NULL, NULL, false}};
    if (ctl->json || ctl->csv)
        return ampctl_print_one(ctl, columns,
                                json_pack("{s:s, s:o, s:I, s:I}", "model", x->model, "file", ampctl_json_text(x->file),
                                          "tensors", (json_int_t)count, "others", (json_int_t)others));
    (void)ampctl_print(stdout, "%s: %u tensors of %s loaded, %zu others ignored", x->model, count, x->file, others);
    return 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct importing *x = state->input;
    if (key == KEY_FULL) {
        x->full = true;
        return 0;
    }
    return ampctl_model_and_file(key, arg, state, x->model, &x->file);
}

static int import_values(struct ampctl *ctl, const struct importing *x, bool *already)
{
    struct ampctl_tensor_file file;
    uint32_t count = 0;
    int code = ampctl_tensor_file_open(ctl, x->file, &file);
    if (code == 0)
        code = ampctl_load_values(ctl, x->model, &file, &count, already);
    if (code == 0 && !*already)
        code = say(ctl, x, count, ampctl_safetensors_count(&file.tensors) - count);
    ampctl_tensor_file_close(&file);
    return code;
}

/* One row, or a sentence. */
static int say_full(const struct ampctl *ctl, const struct importing *x, const struct ampctl_imported *made)
{
    static const struct ampctl_column columns[] = {
        {"model", "MODEL", false}, {"file", "FILE", false},      {"step", "STEP", true}, {"applied", "APPLIED", true},
        {"scale", "SCALE", true},  {"tensors", "TENSORS", true}, {NULL, NULL, false}};
    if (ctl->json || ctl->csv)
        return ampctl_print_one(ctl, columns,
                                json_pack("{s:s, s:o, s:I, s:I, s:f, s:I}", "model", x->model, "file",
                                          ampctl_json_text(x->file), "step", (json_int_t)made->step, "applied",
                                          (json_int_t)made->applied, "scale", (double)made->scale, "tensors",
                                          (json_int_t)made->tensors));
    (void)ampctl_print(stdout, "%s: %" PRIu64 " tensors of %s loaded; it goes on after step %" PRIu64, x->model,
                       made->tensors, x->file, made->step);
    return 0;
}

static int import_full(struct ampctl *ctl, const struct importing *x, bool *already)
{
    struct ampctl_imported made;
    int code = ampctl_import_full(ctl, x->model, x->file, &made, already);
    return code == 0 && !*already ? say_full(ctl, x, &made) : code;
}

static const struct argp_option import_options[] = {
    {"full", KEY_FULL, NULL, 0,
     "Load all of a file of \"checkpoint export\": also moments, loss scale, step and user states. Training continues "
     "after its step",
     0},
    {0},
};

static int run_import(struct ampctl *ctl, int argc, char **argv)
{
    struct importing x = {0};
    bool already = false;
    ampctl_parse(ctl, &ampctl_import_verb, &x, argc, argv);
    int code = x.full ? import_full(ctl, &x, &already) : import_values(ctl, &x, &already);
    if (code == 0 && already) {
        (void)ampctl_print(stderr,
                           "ampctl: %s: %s has values already, and keeps them; create a new model to load others",
                           ctl->verb, x.model);
        code = AMPCTL_EXIT_FAILED;
    }
    return code;
}

const struct ampctl_verb ampctl_import_verb = {
    .name = "checkpoint import",
    .arguments = "MODEL FILE",
    .summary = "values of a model from a safetensors file",
    .doc = "Loads the first values of a model that was created and has none yet: each parameter "
           "from the tensor of its name and shape, F32, F16, BF16 or F64. Other tensors of the file are ignored: "
           "moments begin at zero, the loss scale at its first value.",
    .examples = "ampctl checkpoint import digits weights.safetensors\n"
                "ampctl checkpoint import digits digits.safetensors --full",
    .options = import_options,
    .parser = parse,
    .timeout_ms = AMPCTL_FILE_TIMEOUT_MS,
    .run = run_import,
};
