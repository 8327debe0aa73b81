/*
 * Server reflection. Requests are decoded into bounded names; responses are written field by field, with the descriptor
 * straight from where it lies. A client that sends requests without reading answers is paused at ANSWERS_HIGH.
 */
#include "rpc/services/reflection.h"

#include "base/buf.h"
#include "rpc/arpc_server.h"
#include "rpc/h2/call.h"
#include "rpc/services/descriptors.h"

#include <pb_decode.h>
#include <pb_encode.h>

#include "grpc/reflection/v1/reflection.pb.h"

#include <stdlib.h>
#include <string.h>

#define REQUEST_MAX 4096
/* Unsent bytes of a call; below it nobody would be told that there is room again. */
#define ANSWERS_HIGH ARPC_LOW_WATER

/* Fields of ServerReflectionResponse and below. */
enum {
    RESPONSE_VALID_HOST = 1,
    RESPONSE_ORIGINAL_REQUEST = 2,
    RESPONSE_FILE = 4,
    RESPONSE_SERVICES = 6,
    RESPONSE_ERROR = 7,
    FILE_PROTO = 1,
    SERVICES_SERVICE = 1,
    SERVICE_NAME = 1,
    ERROR_CODE = 1,
    ERROR_MESSAGE = 2
};

struct arpc_reflection {
    struct arpc_bytes *files;
    size_t count;
};

static size_t count_files(struct arpc_bytes set, bool *broken)
{
    size_t count = 0;
    uint32_t tag;
    struct arpc_bytes value;
    while (arpc_descriptor_next(&set, &tag, &value, broken))
        count += tag == 1;
    return count;
}

int arpc_reflection_new(const uint8_t *descriptors, size_t size, struct arpc_reflection **out, struct amp_error *error)
{
    struct arpc_bytes set = {descriptors, size};
    bool broken;
    size_t count = count_files(set, &broken);
    if (broken || count == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "the bytes are not a FileDescriptorSet");
    struct arpc_reflection *reflection = calloc(1, sizeof *reflection);
    if (reflection != NULL)
        reflection->files = calloc(count, sizeof *reflection->files);
    if (reflection == NULL || reflection->files == NULL) {
        free(reflection);
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory for the descriptors");
    }
    uint32_t tag;
    struct arpc_bytes value;
    while (arpc_descriptor_next(&set, &tag, &value, &broken))
        if (tag == 1)
            reflection->files[reflection->count++] = value;
    *out = reflection;
    return 0;
}

void arpc_reflection_free(struct arpc_reflection *reflection)
{
    if (reflection == NULL)
        return;
    free(reflection->files);
    free(reflection);
}

struct arpc_bytes arpc_reflection_file(const struct arpc_reflection *reflection, const char *name)
{
    for (size_t i = 0; i < reflection->count; i++) {
        struct arpc_bytes found = arpc_descriptor_field(reflection->files[i], 1);
        if (found.size > 0 && found.size == strlen(name) && memcmp(found.data, name, found.size) == 0)
            return reflection->files[i];
    }
    return (struct arpc_bytes){0};
}

struct arpc_bytes arpc_reflection_symbol(const struct arpc_reflection *reflection, const char *symbol)
{
    for (size_t i = 0; i < reflection->count; i++)
        if (arpc_descriptor_file_declares(reflection->files[i], symbol))
            return reflection->files[i];
    return (struct arpc_bytes){0};
}

/* An answer being written; `ok` goes false at the first append that fails. */
struct writer {
    struct amp_buf buf;
    bool ok;
};

static void put_bytes(struct writer *writer, const void *data, size_t size)
{
    writer->ok = writer->ok && amp_buf_append(&writer->buf, data, size) == 0;
}

static void put_varint(struct writer *writer, uint64_t value)
{
    uint8_t bytes[10];
    pb_ostream_t stream = pb_ostream_from_buffer(bytes, sizeof bytes);
    (void)pb_encode_varint(&stream, value); /* ten bytes hold any */
    put_bytes(writer, bytes, stream.bytes_written);
}

static void put_field(struct writer *writer, uint32_t tag, const void *data, size_t size)
{
    put_varint(writer, (uint64_t)tag << 3 | PB_WT_STRING);
    put_varint(writer, size);
    put_bytes(writer, data, size);
}

static void put_nested(struct writer *writer, uint32_t tag, struct writer *inner)
{
    put_field(writer, tag, inner->buf.data, inner->buf.size);
    writer->ok = writer->ok && inner->ok;
    amp_buf_close(&inner->buf);
}

static void writer_init(struct writer *writer)
{
    writer->ok = true;
    amp_buf_init(&writer->buf, SIZE_MAX / 2); /* as large as the descriptors of the program, not as a peer's wish */
}

static void put_error(struct writer *writer, int status, const char *message)
{
    struct writer inner;
    writer_init(&inner);
    put_varint(&inner, ERROR_CODE << 3 | PB_WT_VARINT);
    put_varint(&inner, (uint64_t)status);
    put_field(&inner, ERROR_MESSAGE, message, strlen(message));
    put_nested(writer, RESPONSE_ERROR, &inner);
}

static void put_file(struct writer *writer, struct arpc_bytes file)
{
    if (file.data == NULL) {
        put_error(writer, ARPC_STATUS_NOT_FOUND, "no file of that name, or with that symbol");
        return;
    }
    struct writer inner;
    writer_init(&inner);
    put_field(&inner, FILE_PROTO, file.data, file.size);
    put_nested(writer, RESPONSE_FILE, &inner);
}

static void put_services(struct writer *writer, const struct arpc_method_table *methods)
{
    struct writer list;
    writer_init(&list);
    for (size_t i = 0; i < methods->count; i++) {
        const char *service = methods->rows[i].method->service;
        if (i > 0 && strcmp(service, methods->rows[i - 1].method->service) == 0)
            continue; /* the rows are sorted */
        struct writer one;
        writer_init(&one);
        put_field(&one, SERVICE_NAME, service, strlen(service));
        put_nested(&list, SERVICES_SERVICE, &one);
    }
    put_nested(writer, RESPONSE_SERVICES, &list);
}

static void put_answer(struct writer *writer, const struct arpc_link_config *config,
                       const grpc_reflection_v1_ServerReflectionRequest *request)
{
    switch (request->which_message_request) {
    case grpc_reflection_v1_ServerReflectionRequest_file_by_filename_tag:
        put_file(writer, arpc_reflection_file(config->reflection, request->message_request.file_by_filename));
        break;
    case grpc_reflection_v1_ServerReflectionRequest_file_containing_symbol_tag:
        put_file(writer, arpc_reflection_symbol(config->reflection, request->message_request.file_containing_symbol));
        break;
    case grpc_reflection_v1_ServerReflectionRequest_list_services_tag:
        put_services(writer, &config->methods);
        break;
    case grpc_reflection_v1_ServerReflectionRequest_file_containing_extension_tag:
    case grpc_reflection_v1_ServerReflectionRequest_all_extension_numbers_of_type_tag:
        put_error(writer, ARPC_STATUS_NOT_FOUND, "there are no extensions");
        break;
    default:
        put_error(writer, ARPC_STATUS_UNIMPLEMENTED, "unknown kind of request");
        break;
    }
}

static void on_request(struct arpc_call *call, const uint8_t *data, size_t size)
{
    grpc_reflection_v1_ServerReflectionRequest request = grpc_reflection_v1_ServerReflectionRequest_init_zero;
    pb_istream_t stream = pb_istream_from_buffer(data, size);
    if (!pb_decode(&stream, grpc_reflection_v1_ServerReflectionRequest_fields, &request)) {
        arpc_call_finish(call, ARPC_STATUS_INVALID_ARGUMENT,
                         "ServerReflectionRequest: not a message, or a name is too long", NULL);
        return;
    }
    struct writer writer;
    writer_init(&writer);
    put_field(&writer, RESPONSE_VALID_HOST, request.host, strlen(request.host));
    put_field(&writer, RESPONSE_ORIGINAL_REQUEST, data, size);
    put_answer(&writer, call->link->config, &request);
    if (!writer.ok || arpc_call_send(call, writer.buf.data, writer.buf.size, NULL, 0, NULL, NULL) != 0)
        arpc_call_finish(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "no memory for the answer", NULL);
    amp_buf_close(&writer.buf);
    if (arpc_call_queued(call) > ANSWERS_HIGH)
        arpc_call_pause(call);
}

static void on_half_close(struct arpc_call *call)
{
    arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call; /* a call has no state of ours */
    (void)result;
}

static const struct arpc_handler handler = {
    .message = on_request, .half_close = on_half_close, .writable = arpc_call_resume, .closed = on_closed};

const struct arpc_method arpc_reflection_methods[] = {
    {"grpc.reflection.v1.ServerReflection", "ServerReflectionInfo", ARPC_BIDI, true, 0, REQUEST_MAX, &handler},
    {"grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo", ARPC_BIDI, true, 0, REQUEST_MAX, &handler},
};
const size_t arpc_reflection_method_count = sizeof arpc_reflection_methods / sizeof *arpc_reflection_methods;
