#include "client/ampctl/files/safetensors.h"

#include "amp/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"

/* Of the tensors that can be read, the bytes of an element. */
static const struct {
    const char *dtype;
    unsigned bytes;
} types[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}};

/* 0: a tensor of this type cannot be read. */
static unsigned type_bytes(const char *dtype)
{
    for (size_t i = 0; dtype != NULL && i < sizeof types / sizeof *types; i++)
        if (strcmp(dtype, types[i].dtype) == 0)
            return types[i].bytes;
    return 0;
}

/* The format is little-endian, and so is every machine that ampd runs on (docs/numerics.md). */
static uint64_t read_u64(const uint8_t *at)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < 8; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* Where one tensor begins and ends. */
struct extent {
    json_int_t begin, end;
};

static int compare_extents(const void *a, const void *b)
{
    const struct extent *left = a, *right = b;
    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    return left->end < right->end ? -1 : left->end > right->end;
}

/* The tensors follow each other without overlap or hole, and end with the file, as the format demands. */
static int check_extents(const struct ampctl_safetensors *file, struct amp_error *error)
{
    size_t count = 0;
    const char *name;
    json_t *entry;
    struct extent *extents = calloc(json_object_size(file->header) + 1, sizeof *extents);
    if (extents == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "there is no memory for the list of its tensors");
    json_object_foreach(file->header, name, entry)
    {
        const json_t *offsets = json_object_get(entry, "data_offsets");
        if (strcmp(name, METADATA) != 0)
            extents[count++] = (struct extent){json_integer_value(json_array_get(offsets, 0)),
                                               json_integer_value(json_array_get(offsets, 1))};
    }
    qsort(extents, count, sizeof *extents, compare_extents);
    json_int_t at = 0;
    bool good = true;
    for (size_t i = 0; good && i < count; at = extents[i++].end)
        good = extents[i].begin == at && extents[i].end >= at;
    free(extents);
    return good && (uint64_t)at == file->size
               ? 0
               : amp_error_set(error, AMP_EDATALOSS, NULL,
                               "its tensors overlap, leave a hole, or do not end where the file ends; is it cut off?");
}

int ampctl_safetensors_open(const void *bytes, uint64_t size, struct ampctl_safetensors *file, struct amp_error *error)
{
    const uint8_t *data = bytes;
    uint64_t length = size < 8 ? 0 : read_u64(data);
    *file = (struct ampctl_safetensors){0};
    if (size < 8 || length > size - 8 || length > AMPCTL_SAFETENSORS_HEADER_MAX)
        return amp_error_set(error, AMP_EDATALOSS, NULL,
                             "it is not a safetensors file: its first eight bytes are not the length of a header");
    json_error_t why;
    file->header = json_loadb((const char *)data + 8, (size_t)length, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(file->header)) {
        const char *reason = file->header != NULL ? "it is another value" : why.text;
        ampctl_safetensors_close(file);
        return amp_error_set(error, AMP_EDATALOSS, NULL, "its header is not a JSON object: %.100s", reason);
    }
    file->data = data + 8 + length;
    file->size = size - 8 - length;
    int rc = check_extents(file, error);
    if (rc != 0)
        ampctl_safetensors_close(file);
    return rc;
}

void ampctl_safetensors_close(struct ampctl_safetensors *file)
{
    json_decref(file->header);
    file->header = NULL;
}

size_t ampctl_safetensors_count(const struct ampctl_safetensors *file)
{
    return json_object_size(file->header) - (json_object_get(file->header, METADATA) != NULL ? 1 : 0);
}

static bool is_shape(const json_t *json, const uint64_t *shape, uint32_t dimensions)
{
    if (!json_is_array(json) || json_array_size(json) != dimensions)
        return false;
    for (uint32_t i = 0; i < dimensions; i++)
        if (!json_is_integer(json_array_get(json, i)) ||
            (uint64_t)json_integer_value(json_array_get(json, i)) != shape[i])
            return false;
    return true;
}

/* Where a tensor's bytes are: `bytes` of them must lie within the data. NULL: they do not. */
static const uint8_t *find_data(const struct ampctl_safetensors *file, const json_t *offsets, uint64_t bytes)
{
    const json_t *first = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(end))
        return NULL;
    json_int_t from = json_integer_value(first), to = json_integer_value(end);
    if (from < 0 || to < from || (uint64_t)to > file->size || (uint64_t)(to - from) != bytes)
        return NULL;
    return file->data + from;
}

/* False: a value that is finite as F64 is beyond F32. */
static bool widen(const char *dtype, const uint8_t *data, uint64_t count, float *values)
{
    if (strcmp(dtype, "F32") == 0) {
        memcpy(values, data, (size_t)count * sizeof *values);
    } else if (strcmp(dtype, "F64") == 0) {
        for (uint64_t i = 0; i < count; i++) {
            double value;
            memcpy(&value, data + i * sizeof value, sizeof value);
            values[i] = (float)value;
            if (isfinite(value) && !isfinite(values[i]))
                return false;
        }
    } else {
        enum amp_dtype from = strcmp(dtype, "F16") == 0 ? AMP_F16 : AMP_BF16;
        amp_kernels_ref.load[from](values, data, (size_t)count);
    }
    return true;
}

/* "[2, 3]"; what has no place is cut. */
static void add_dimension(char text[96], size_t *used, uint64_t dimension)
{
    int added = snprintf(text + *used, 96 - *used, "%s%llu", *used > 1 ? ", " : "", (unsigned long long)dimension);
    *used = added > 0 && *used + (size_t)added < 94 ? *used + (size_t)added : *used;
}

static int other_shape(const char *name, const json_t *have, const uint64_t *shape, uint32_t dimensions,
                       struct amp_error *error)
{
    char theirs[96] = "[", ours[96] = "[";
    size_t theirs_used = 1, ours_used = 1;
    for (size_t i = 0; i < json_array_size(have); i++)
        add_dimension(theirs, &theirs_used, (uint64_t)json_integer_value(json_array_get(have, i)));
    for (uint32_t i = 0; i < dimensions; i++)
        add_dimension(ours, &ours_used, shape[i]);
    return amp_error_set(error, AMP_EINVAL, NULL,
                         "tensor \"%.127s\" has another shape than the model's: %.*s] in the file, %.*s] in the model",
                         name, (int)theirs_used, theirs, (int)ours_used, ours);
}

int ampctl_safetensors_read(const struct ampctl_safetensors *file, const char *name, const uint64_t *shape,
                            uint32_t dimensions, float *values, struct amp_error *error)
{
    const json_t *entry = json_object_get(file->header, name);
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    unsigned bytes = type_bytes(dtype);
    uint64_t count = 1;
    if (!json_is_object(entry) || strcmp(name, METADATA) == 0)
        return amp_error_set(error, AMP_ENOTFOUND, NULL, "it has no tensor \"%.127s\"", name);
    if (bytes == 0)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "tensor \"%.127s\" has type %.16s; those that can be read are F32, F16, BF16 and F64",
                             name, dtype != NULL ? dtype : "none");
    if (!is_shape(json_object_get(entry, "shape"), shape, dimensions))
        return other_shape(name, json_object_get(entry, "shape"), shape, dimensions, error);
    for (uint32_t i = 0; i < dimensions; i++)
        count *= shape[i];
    const uint8_t *data = find_data(file, json_object_get(entry, "data_offsets"), count * bytes);
    if (data == NULL)
        return amp_error_set(error, AMP_EDATALOSS, NULL,
                             "tensor \"%.127s\" does not lie within the file with the bytes of its shape", name);
    if (!widen(dtype, data, count, values))
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "tensor \"%.127s\" has F64 values beyond the range of F32, which the model has", name);
    return 0;
}

/* The shape of an entry, each extent positive. */
static int read_shape(const char *name, const json_t *json, struct ampctl_safetensors_tensor *tensor,
                      struct amp_error *error)
{
    size_t dimensions = json_array_size(json);
    if (!json_is_array(json))
        return amp_error_set(error, AMP_EDATALOSS, NULL, "tensor \"%.127s\" has no shape", name);
    if (dimensions > sizeof tensor->shape / sizeof *tensor->shape)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "tensor \"%.127s\" has %zu dimensions; a parameter has at most %zu", name, dimensions,
                             sizeof tensor->shape / sizeof *tensor->shape);
    tensor->dimensions = (uint32_t)dimensions;
    for (size_t i = 0; i < dimensions; i++) {
        const json_t *extent = json_array_get(json, i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 1)
            return amp_error_set(error, AMP_EINVAL, NULL,
                                 "tensor \"%.127s\" has an extent that is not a positive number", name);
        tensor->shape[i] = (uint64_t)json_integer_value(extent);
    }
    return 0;
}

/* Whether the file is a checkpoint of ampd (storage/checkpoint.h). */
static bool is_checkpoint(const struct ampctl_safetensors *file)
{
    const char *format = json_string_value(json_object_get(json_object_get(file->header, METADATA), "format"));
    return format != NULL && strncmp(format, "ampd/", 5) == 0;
}

int ampctl_safetensors_list(const struct ampctl_safetensors *file, struct ampctl_safetensors_tensor **list,
                            uint32_t *count, struct amp_error *error)
{
    bool checkpoint = is_checkpoint(file);
    const char *name;
    json_t *entry;
    int rc = 0;
    *count = 0;
    *list = calloc(json_object_size(file->header) + 1, sizeof **list);
    if (*list == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "there is no memory for the list of its tensors");
    json_object_foreach(file->header, name, entry)
    {
        bool readable = type_bytes(json_string_value(json_object_get(entry, "dtype"))) != 0;
        if (rc != 0 || strcmp(name, METADATA) == 0 || !readable || (checkpoint && strchr(name, '#') != NULL))
            continue;
        (*list)[*count].name = name;
        rc = read_shape(name, json_object_get(entry, "shape"), &(*list)[(*count)++], error);
    }
    if (rc != 0) {
        free(*list);
        *list = NULL;
    }
    return rc;
}
