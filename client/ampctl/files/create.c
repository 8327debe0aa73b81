/*
 * ampctl create: a model whose parameters are the tensors of a safetensors file, with their values. What can be told in
 * a line is an option; parameter groups are for a program (client/ampclient.h) or for CreateModel itself.
 */
#include "client/ampctl/files/import.h"
#include "client/ampctl/parse.h"

#include "base/assert.h"
#include "proto/msg_common.h"
#include "proto/spec_fields.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_EMPTY = 256, KEY_FIRST_FIELD };

struct creating {
    struct ampclient_spec spec;
    char model[128];
    const char *file;
    bool empty;     /* no values */
    uint64_t given; /* bit i: fields[i] */
};

/* ---- options that are fields of the specification ---- */

enum kind { KIND_F64, KIND_F32, KIND_U32, KIND_U64, KIND_RANKS, KIND_BOOL, KIND_CHOICE };

/*
 * A choice's value is its place in the list, from 1; '-' and '_' are the same in it. One list for each name of a
 * choice. --help shows, and bash completes, a list of at most CHOICES_WIDTH bytes; for a longer one --help has WHICH.
 */
#define CHOICES_WIDTH 48
static const char optimizer_choices[] = "sgd|adamw|adam|adagrad|rmsprop|lion";
static const char schedule_choices[] = "constant|linear-warmup|step|cosine|worker";
static const char clip_scope_choices[] = "";
static const char scaler_choices[] =
    "dynamic|static|none|megatron|deepspeed|deepspeed_consecutive|apex_hysteresis|paddle";
static const char cast_choices[] = "f32|f16|bf16";
static const char cast_overflow_choices[] = "";
static const char sync_choices[] = "";
static const char on_loss_choices[] = "wait|shrink";
static const char weighting_choices[] = "";
static const char floor_policy_choices[] = "";
static const char durability_choices[] = "checkpoint|step";

/* The rows of proto/spec_fields.def. */
static const struct field {
    const char *name, *doc; /* NULL: it is no option */
    enum kind kind;
    size_t offset;
    const char *choices;
    bool nonzero; /* 0 means "not given" (client/ampclient.h), and something else holds then */
} fields[] = {
#define OPTION(name, doc) name, doc
#define NO_OPTION         NULL, NULL
#define NONZERO_PLAIN     false
#define NONZERO_GIVEN     true
#define NONZERO_OFF       false
#define NONZERO_SET       false
#define AT(member)        offsetof(struct ampclient_spec, member)
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, default_, bound, since, shown, option, meaning)            \
    {option, KIND_##kind, AT(name), NULL, NONZERO_##presence},
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, default_, last, since, option, meaning)                         \
    {option, KIND_CHOICE, AT(name), name##_choices, false},
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE
#undef AT
};
#define FIELDS (sizeof fields / sizeof *fields)
_Static_assert(FIELDS <= 64, "creating.given has a bit for each");

/* Options that mean something with some choices of another one alone, as proto/ampd/v1/model.proto has it. */
#define WITH(choice) (1u << AMPCLIENT_##choice)
#define ADAMS        (WITH(ADAMW) | WITH(ADAM))
static const struct use {
    const char *option, *choice;
    unsigned without;  /* what the choice is when it is not given */
    unsigned with;     /* bits of the choices that the option is for */
    const char *names; /* of these */
    bool needed;       /* by them */
} uses[] = {
    {"beta1", "optimizer", AMPCLIENT_ADAMW, ADAMS | WITH(LION), "adamw, adam or lion", false},
    {"beta2", "optimizer", AMPCLIENT_ADAMW, ADAMS | WITH(LION), "adamw, adam or lion", false},
    {"eps", "optimizer", AMPCLIENT_ADAMW, ADAMS | WITH(ADAGRAD) | WITH(RMSPROP), "adamw, adam, adagrad or rmsprop",
     false},
    {"momentum", "optimizer", AMPCLIENT_ADAMW, WITH(SGD) | WITH(RMSPROP), "sgd or rmsprop", false},
    {"lr", "schedule", AMPCLIENT_CONSTANT, ~WITH(WORKER), "another than worker", false},
    {"warmup-steps", "schedule", AMPCLIENT_CONSTANT, ~WITH(WORKER), "another than worker", false},
    {"step-every", "schedule", AMPCLIENT_CONSTANT, WITH(STEP), "step", true},
    {"step-factor", "schedule", AMPCLIENT_CONSTANT, WITH(STEP), "step", false},
    {"total-steps", "schedule", AMPCLIENT_CONSTANT, WITH(COSINE), "cosine", true},
    {"lr-min", "schedule", AMPCLIENT_CONSTANT, WITH(COSINE), "cosine", false},
    {"growth-interval", "scaler", AMPCLIENT_SCALER_DYNAMIC, ~(WITH(SCALER_STATIC) | WITH(SCALER_NONE)),
     "dynamic or another that grows", false},
};
#undef ADAMS
#undef WITH
#define USES (sizeof uses / sizeof *uses)

static void refuse(struct argp_state *state, const struct field *field, const char *arg, const char *wanted)
{
    argp_error(state, "--%s is \"%.40s\"; give %s", field->name, arg, wanted);
}

static bool is_beta(const struct field *field)
{
    return field->offset == offsetof(struct ampclient_spec, beta1) ||
           field->offset == offsetof(struct ampclient_spec, beta2);
}

static void take_number(struct argp_state *state, const struct field *field, const char *arg, void *to)
{
    char *end;
    double value = strtod(arg, &end);
    if (end == arg || *end != 0 || !isfinite(value))
        refuse(state, field, arg, "a finite number");
    if (value == 0 && is_beta(field))
        value = AMPCLIENT_BETA_ZERO;
    else if (value == 0 && field->nonzero)
        refuse(state, field, arg, "another number: 0 would mean the same as leaving the option out");
    if (field->kind == KIND_F32) {
        float narrow = (float)value;
        if (!isfinite(narrow) || (narrow == 0 && value != 0))
            refuse(state, field, arg, "a number within the range of fp32");
        memcpy(to, &narrow, sizeof narrow);
    } else {
        memcpy(to, &value, sizeof value);
    }
}

static void take_count(struct argp_state *state, const struct field *field, const char *arg, void *to)
{
    char option[64];
    (void)snprintf(option, sizeof option, "--%s", field->name);
    bool wide = field->kind == KIND_U64;
    uint64_t value = ampctl_number(state, option, arg, wide ? AMPCTL_NUMBER_MAX : UINT32_MAX);
    if (value == 0 && field->nonzero)
        refuse(state, field, arg, "at least 1");
    uint32_t narrow = (uint32_t)value;
    if (wide)
        memcpy(to, &value, sizeof value);
    else
        memcpy(to, &narrow, sizeof narrow);
}

static void take_ranks(struct argp_state *state, const struct field *field, const char *arg, void *to)
{
    char *end;
    unsigned long value = strtoul(arg, &end, 10);
    uint32_t ranks = value >= 1 && value <= AMPD_MSG_WORKERS_MAX ? (uint32_t)value : 0;
    char wanted[64];
    (void)snprintf(wanted, sizeof wanted, "a number from 1 to %d", AMPD_MSG_WORKERS_MAX);
    if (arg[0] < '0' || arg[0] > '9' || *end != 0 || ranks == 0)
        refuse(state, field, arg, wanted);
    memcpy(to, &ranks, sizeof ranks);
}

/* The list of choices behind its first one; NULL: there are no more. */
static const char *next_choice(const char *choices)
{
    const char *bar = strchr(choices, '|');
    return bar != NULL ? bar + 1 : NULL;
}

/* Whether the first of the choices is meant. */
static bool same_choice(const char *choice, const char *arg)
{
    size_t at = 0;
    for (; choice[at] != 0 && choice[at] != '|'; at++)
        if (choice[at] != arg[at] && (strchr("-_", choice[at]) == NULL || (arg[at] != '-' && arg[at] != '_')))
            return false;
    return arg[at] == 0;
}

/* The other names that people have for a dtype: PyTorch's, and those of papers. */
static bool same_dtype(unsigned value, const char *arg)
{
    static const char *const names[][3] = {
        {"fp32", "float32", "float"}, {"fp16", "float16", "half"}, {"bfloat16", "bfloat16", "bfloat16"}};
    for (size_t i = 0; i < 3; i++)
        if (strcmp(names[value - 1][i], arg) == 0)
            return true;
    return false;
}

static void take_choice(struct argp_state *state, const struct field *field, const char *arg, void *to)
{
    unsigned value = 1; /* as the enums of ampclient.h count */
    for (const char *choice = field->choices; choice != NULL; choice = next_choice(choice), value++)
        if (same_choice(choice, arg) || (field->choices == cast_choices && same_dtype(value, arg))) {
            memcpy(to, &value, sizeof value);
            return;
        }
    char wanted[160];
    (void)snprintf(wanted, sizeof wanted, "one of: %s", field->choices);
    for (char *at = strchr(wanted, '|'); at != NULL; at = strchr(at, '|'))
        *at = ' ';
    refuse(state, field, arg, wanted);
}

static void take_field(struct argp_state *state, const struct field *field, const char *arg,
                       struct ampclient_spec *spec)
{
    void *to = (char *)spec + field->offset;
    if (field->kind == KIND_CHOICE)
        take_choice(state, field, arg, to);
    else if (field->kind == KIND_RANKS)
        take_ranks(state, field, arg, to);
    else if (field->kind == KIND_U32 || field->kind == KIND_U64)
        take_count(state, field, arg, to);
    else
        take_number(state, field, arg, to);
    spec->weight_decay_set = spec->weight_decay_set || to == &spec->weight_decay;
}

static size_t field_named(const char *name)
{
    size_t i = 0;
    while (fields[i].name == NULL || strcmp(fields[i].name, name) != 0)
        i++;
    return i;
}

/* What would go unheard, or is missing, is told here: the server does not know what was given. */
static void check_use(struct argp_state *state, const struct creating *x, const struct use *use)
{
    const struct field *choice = &fields[field_named(use->choice)];
    unsigned value;
    memcpy(&value, (const char *)&x->spec + choice->offset, sizeof value);
    if (value == 0)
        value = use->without;
    bool given = (x->given >> field_named(use->option) & 1) != 0, fits = (use->with >> value & 1) != 0;
    const char *chosen = choice->choices;
    while (--value > 0)
        chosen = next_choice(chosen);
    int size = (int)strcspn(chosen, "|");
    if (given && !fits)
        argp_error(state, "--%s has no meaning with --%s %.*s; leave it out, or give --%s %s", use->option, use->choice,
                   size, chosen, use->choice, use->names);
    if (!given && fits && use->needed)
        argp_error(state, "--%s %.*s needs --%s", use->choice, size, chosen, use->option);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct creating *x = state->input;
    if (key >= KEY_FIRST_FIELD && key < KEY_FIRST_FIELD + (int)FIELDS) {
        take_field(state, &fields[key - KEY_FIRST_FIELD], arg, &x->spec);
        x->given |= UINT64_C(1) << (key - KEY_FIRST_FIELD);
        return 0;
    }
    if (key == KEY_EMPTY) {
        x->empty = true;
        return 0;
    }
    for (size_t i = 0; key == ARGP_KEY_END && i < USES; i++)
        check_use(state, x, &uses[i]);
    return ampctl_model_and_file(key, arg, state, x->model, &x->file);
}

/* ---- the model ---- */

static int create(struct ampctl *ctl, struct creating *x, bool *existed)
{
    struct ampclient *client = NULL;
    int code = ampctl_client(ctl, &client);
    if (code != 0)
        return code;
    int rc = ampclient_create(client, &x->spec, existed);
    if (rc != 0) {
        (void)ampctl_print(stderr, "ampctl: %s: %s", ctl->verb, ampclient_error_text(client));
        code = AMPCTL_EXIT_RPC + amp_err_grpc_status(rc);
    }
    ampclient_close(client);
    return code;
}

static int create_from(struct ampctl *ctl, struct creating *x, const struct ampctl_tensor_file *file, bool *existed)
{
    struct ampctl_safetensors_tensor *list = NULL;
    struct amp_error error = {0};
    uint32_t count = 0;
    if (ampctl_safetensors_list(&file->tensors, &list, &count, &error) != 0)
        return ampctl_tensor_file_failed(ctl, file, error.text);
    struct ampclient_parameter_spec *parameters = calloc((size_t)count + 1, sizeof *parameters);
    int code = parameters == NULL ? ampctl_tensor_file_failed(ctl, file, "there is no memory for its tensors")
               : count == 0       ? ampctl_tensor_file_failed(ctl, file, "it has no tensor of F32, F16, BF16 or F64")
                                  : 0;
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        parameters[i].name = list[i].name;
        parameters[i].dimensions = list[i].dimensions;
        memcpy(parameters[i].shape, list[i].shape, sizeof parameters[i].shape);
    }
    x->spec.name = x->model;
    x->spec.parameters = parameters;
    x->spec.parameters_count = count;
    if (code == 0)
        code = create(ctl, x, existed);
    free(parameters);
    free(list);
    return code;
}

/* One row, or a sentence. */
static int say(const struct ampctl *ctl, const struct creating *x, bool existed, bool already, uint32_t loaded,
               size_t others)
{
    const char *values = already      ? "which keep the values they have"
                         : loaded > 0 ? "with the values of the file"
                         : existed    ? "whose values, if it has any, stay as they are"
                                      : "without values: ampctl checkpoint import, or a worker, loads them";
    static const struct ampctl_column columns[] = {{"model", "MODEL", false},          {"created", "CREATED", false},
                                                   {"parameters", "PARAMETERS", true}, {"loaded", "LOADED", true},
                                                   {"others", "OTHERS", true},         {NULL, NULL, false}};
    if (ctl->json || ctl->csv)
        return ampctl_print_one(ctl, columns,
                                json_pack("{s:s, s:b, s:I, s:I, s:I}", "model", x->model, "created", !existed,
                                          "parameters", (json_int_t)x->spec.parameters_count, "loaded",
                                          (json_int_t)loaded, "others", (json_int_t)others));
    (void)ampctl_print(stdout, "%s: %s, %" PRIu32 " parameter%s, %s; %zu other tensor%s ignored", x->model,
                       existed ? "existed with the same specification" : "created", x->spec.parameters_count,
                       x->spec.parameters_count == 1 ? "" : "s", values, others, others == 1 ? "" : "s");
    return 0;
}

static struct argp_option create_options[FIELDS + 3] = {
    {"empty", KEY_EMPTY, NULL, 0, "Do not load the values of the file", 0},
};

static const char *value_of(const struct field *field)
{
    return field->kind != KIND_CHOICE ? "NUMBER" : strlen(field->choices) <= CHOICES_WIDTH ? field->choices : "WHICH";
}

/* The fields that have a name as an option, each behind the one before; zeros end the table. */
static void prepare(void)
{
    size_t used = 1;
    for (size_t i = 0; i < FIELDS; i++) {
        AMP_ASSERT(fields[i].name == NULL || fields[i].kind != KIND_BOOL);
        if (fields[i].name != NULL)
            create_options[used++] = (struct argp_option){.name = fields[i].name,
                                                          .key = KEY_FIRST_FIELD + (int)i,
                                                          .arg = value_of(&fields[i]),
                                                          .doc = fields[i].doc};
    }
    create_options[used] = (struct argp_option){.name = "world-size", /* as PyTorch calls it */
                                                .key = KEY_FIRST_FIELD + (int)field_named("workers"),
                                                .arg = "NUMBER",
                                                .flags = OPTION_HIDDEN};
}

static int run_create(struct ampctl *ctl, int argc, char **argv)
{
    struct creating x = {.spec = AMPCLIENT_SPEC_INIT};
    struct ampctl_tensor_file file;
    bool existed = false, already = false;
    uint32_t loaded = 0;
    x.spec.world_size = 1;
    ampctl_parse(ctl, &ampctl_create_verb, &x, argc, argv);
    int code = ampctl_tensor_file_open(ctl, x.file, &file);
    if (code == 0)
        code = create_from(ctl, &x, &file, &existed);
    if (code == 0 && !x.empty) { /* also one that was there: an earlier run may have been cut off */
        code = ampctl_load_values(ctl, x.model, &file, &loaded, &already);
        if (code != 0 && existed)
            (void)ampctl_print(stderr, "ampctl: create: %s existed before, and keeps the values that it has", x.model);
        else if (code != 0)
            (void)ampctl_print(
                stderr,
                "ampctl: create: %s exists and has no values; create it again with a file that has them, or "
                "ampctl delete %s",
                x.model, x.model);
    }
    if (code == 0)
        code = say(ctl, &x, existed, already, already ? 0 : loaded,
                   ampctl_safetensors_count(&file.tensors) - x.spec.parameters_count);
    ampctl_tensor_file_close(&file);
    return code;
}

const struct ampctl_verb ampctl_create_verb = {
    .name = "create",
    .arguments = "MODEL FILE",
    .summary = "creates a model from a safetensors file",
    .doc = "Creates a model whose parameters are the tensors of a safetensors file (F32, F16, "
           "BF16 and F64; of a checkpoint of ampd its masters), and loads their values. "
           "A model that exists with the same specification keeps the values it has.",
    .examples = "ampctl create digits first.safetensors --workers 2 --optimizer sgd --lr 0.1\n"
                "ampctl create net net.safetensors --schedule cosine --total-steps 20000",
    .options = create_options,
    .parser = parse,
    .timeout_ms = AMPCTL_FILE_TIMEOUT_MS,
    .run = run_create,
    .prepare = prepare,
};
