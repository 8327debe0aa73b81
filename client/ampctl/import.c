/* ampctl checkpoint import: the first values of a model, out of a safetensors file that any program has written. */
#include "client/ampclient.h"
#include "client/ampctl/ctl.h"
#include "client/ampctl/safetensors.h"
#include "client/io/client.h"
#include "client/io/spec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Per shard: a file of many GB over a slow network; --timeout gives another. */
#define IMPORT_TIMEOUT_MS 3600000

struct importing {
    struct ampctl *ctl;
    uint64_t timeout_ms; /* as given; 0: not */
    char model[128];
    const char *file;
    void *bytes; /* of the file, mapped */
    size_t size;
    struct ampctl_safetensors tensors;
    float **values; /* of each parameter, and how many */
    uint64_t *elements;
    uint32_t count;
};

static int failed_by(const struct importing *x, const char *text)
{
    (void)fprintf(stderr, "ampctl: %s: %s: %s\n", x->ctl->verb, x->file, text);
    return AMPCTL_EXIT_FAILED;
}

static int map_file(struct importing *x)
{
    struct amp_error error = {0};
    struct stat status;
    int fd = open(x->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused below, not waited for */
    if (fd < 0 || fstat(fd, &status) != 0) {
        int code = failed_by(x, strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        return code;
    }
    if (!S_ISREG(status.st_mode) || status.st_size == 0) {
        (void)close(fd);
        return failed_by(x, "it is empty, or not a file");
    }
    x->size = (size_t)status.st_size;
    void *bytes = mmap(NULL, x->size, PROT_READ, MAP_PRIVATE, fd, 0);
    (void)close(fd); /* the mapping stays */
    if (bytes == MAP_FAILED)
        return failed_by(x, strerror(errno));
    x->bytes = bytes;
    return ampctl_safetensors_open(x->bytes, x->size, &x->tensors, &error) == 0 ? 0 : failed_by(x, error.text);
}

static int read_parameter(struct importing *x, const struct ampd_msg_parameter_spec *parameter, float **values)
{
    struct amp_error error = {0};
    uint64_t *elements = &x->elements[x->count++];
    if (ampclient_parameter_elements(parameter->shape, parameter->shape_count, elements) != 0)
        return failed_by(x, "the server describes a model that cannot be; is it an ampd?");
    *values = malloc((size_t)*elements * sizeof **values);
    if (*values == NULL)
        return failed_by(x, "there is no memory for its tensors");
    if (ampctl_safetensors_read(&x->tensors, parameter->name, parameter->shape, parameter->shape_count, *values,
                                &error) == 0)
        return 0;
    return failed_by(x, error.text);
}

static int read_values(struct importing *x)
{
    struct ampd_msg_get_model_response about;
    int code = ampctl_open(x->ctl);
    if (code == 0)
        code = ampctl_get_model(x->ctl, x->model, &about);
    ampctl_close(x->ctl);
    if (code != 0)
        return code;
    x->values = calloc(about.spec.parameters.count + 1, sizeof *x->values);
    x->elements = calloc(about.spec.parameters.count + 1, sizeof *x->elements);
    if (x->values == NULL || x->elements == NULL)
        code = failed_by(x, "there is no memory for its tensors");
    for (size_t i = 0; code == 0 && i < about.spec.parameters.count; i++)
        code = read_parameter(x, &about.spec.parameters.items[i], &x->values[i]);
    ampd_msg_get_model_response_free(&about);
    return code;
}

static int load(const struct importing *x)
{
    const struct ampclient_secure_options *secure = &x->ctl->secure;
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.cacert = secure->cacert;
    options.cert = secure->cert;
    options.key = secure->key;
    options.server_name = secure->server_name;
    options.token_file = secure->token_file;
    options.token_over_plaintext = secure->token_over_plaintext;
    options.connect_timeout_ms = AMPCTL_TIMEOUT_MS;
    options.reconnect_timeout_ms = AMPCTL_TIMEOUT_MS;
    options.call_timeout_ms = x->timeout_ms != 0 ? x->timeout_ms : IMPORT_TIMEOUT_MS;
    if (x->timeout_ms != 0 && x->timeout_ms < AMPCTL_TIMEOUT_MS)
        options.connect_timeout_ms = options.reconnect_timeout_ms = x->timeout_ms;
    struct ampclient *client = NULL;
    struct amp_error error = {0};
    bool already = false;
    int connected = ampclient_connect(x->ctl->endpoints, &options, &client, &error);
    if (connected != 0) {
        (void)fprintf(stderr, "ampctl: %s: %s\n", x->ctl->verb, error.text);
        return AMPCTL_EXIT_RPC + amp_err_grpc_status(connected);
    }
    int rc = ampclient_load_sized(client, x->model, (const float *const *)x->values, x->elements, x->count, &already);
    int code = 0;
    if (rc != 0) {
        (void)fprintf(stderr, "ampctl: %s: %s\n", x->ctl->verb, ampclient_error_text(client));
        code = AMPCTL_EXIT_RPC + amp_err_grpc_status(rc);
    } else if (already) {
        (void)fprintf(stderr, "ampctl: %s: %s has values already, and keeps them; create a new model to load others\n",
                      x->ctl->verb, x->model);
        code = AMPCTL_EXIT_FAILED;
    }
    ampclient_close(client);
    return code;
}

/* One row, or a sentence. */
static int say(const struct importing *x)
{
    static const struct ampctl_column columns[] = {{"model", "MODEL", false},
                                                   {"file", "FILE", false},
                                                   {"tensors", "TENSORS", true},
                                                   {"others", "OTHERS", true},
                                                   {NULL, NULL, false}};
    size_t others = ampctl_safetensors_count(&x->tensors) - x->count;
    if (x->ctl->json || x->ctl->csv)
        return ampctl_print_one(x->ctl, columns,
                                json_pack("{s:s, s:s, s:I, s:I}", "model", x->model, "file", x->file, "tensors",
                                          (json_int_t)x->count, "others", (json_int_t)others));
    (void)printf("%s: %u tensors of %s loaded, %zu others left alone\n", x->model, x->count, x->file, others);
    return 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct importing *x = state->input;
    return ampctl_model_and_file(key, arg, state, x->model, &x->file);
}

int ampctl_import(struct ampctl *ctl, int argc, char **argv)
{
    static char name[] = "checkpoint import";
    const struct argp own = {.parser = parse,
                             .args_doc = "MODEL FILE",
                             .doc =
                                 "Loads the first values of a model that was created and has none yet: each parameter "
                                 "from the tensor of its name and shape, F32, F16, BF16 or F64. Other tensors of the "
                                 "file are left alone: moments begin at zero, the loss scale at its first value."};
    struct importing x = {.ctl = ctl};
    argv[0] = name;
    ctl->verb = name;
    ampctl_parse(ctl, &own, &x, argc, argv);
    x.timeout_ms = ctl->timeout_ms;
    int code = map_file(&x);
    if (code == 0)
        code = read_values(&x);
    if (code == 0)
        code = load(&x);
    if (code == 0)
        code = say(&x);
    for (uint32_t i = 0; i < x.count; i++)
        free(x.values[i]);
    free(x.values);
    free(x.elements);
    ampctl_safetensors_close(&x.tensors);
    if (x.bytes != NULL)
        (void)munmap(x.bytes, x.size);
    return code;
}
