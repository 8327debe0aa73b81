/*
 * A FileDescriptorSet as it is: files are views into it, and symbols are looked for when they are asked for. Only names
 * are read (google/protobuf/descriptor.proto):
 *
 *     FileDescriptorSet    file = 1
 *     FileDescriptorProto  name = 1, package = 2, message_type = 4, enum_type = 5, service = 6, extension = 7
 *     DescriptorProto      name = 1, field = 2, nested_type = 3, enum_type = 4, extension = 6, oneof_decl = 8
 *     EnumDescriptorProto  name = 1, value = 2         ServiceDescriptorProto  name = 1, method = 2
 */
#include "rpc/services/descriptors.h"

#include <pb_decode.h>

#include <stdlib.h>
#include <string.h>

/* Kinds of descriptors, by what their nested fields are. */
enum kind { KIND_FILE, KIND_MESSAGE, KIND_ENUM, KIND_SERVICE, KIND_LEAF, KIND_NONE };

/* Nesting of messages; protoc itself stops at 32. */
#define DEPTH_MAX 40

static enum kind nested_kind(enum kind kind, uint32_t tag)
{
    static const struct {
        enum kind kind;
        uint32_t tag;
        enum kind nested;
    } table[] = {
        {KIND_FILE, 4, KIND_MESSAGE}, {KIND_FILE, 5, KIND_ENUM},    {KIND_FILE, 6, KIND_SERVICE},
        {KIND_FILE, 7, KIND_LEAF},    {KIND_MESSAGE, 2, KIND_LEAF}, {KIND_MESSAGE, 3, KIND_MESSAGE},
        {KIND_MESSAGE, 4, KIND_ENUM}, {KIND_MESSAGE, 6, KIND_LEAF}, {KIND_MESSAGE, 8, KIND_LEAF},
        {KIND_SERVICE, 2, KIND_LEAF}, {KIND_ENUM, 2, KIND_LEAF},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].kind == kind && table[i].tag == tag)
            return table[i].nested;
    return KIND_NONE;
}

bool arpc_descriptor_next(struct arpc_bytes *rest, uint32_t *tag, struct arpc_bytes *value, bool *broken)
{
    *broken = false;
    while (rest->size > 0) {
        pb_istream_t stream = pb_istream_from_buffer(rest->data, rest->size);
        pb_wire_type_t type;
        bool eof;
        uint32_t length = 0;
        bool ok = pb_decode_tag(&stream, &type, tag, &eof);
        if (ok && type == PB_WT_STRING) {
            ok = pb_decode_varint32(&stream, &length) && length <= stream.bytes_left;
            *value = (struct arpc_bytes){rest->data + (rest->size - stream.bytes_left), length};
            ok = ok && pb_read(&stream, NULL, length);
        } else {
            ok = ok && pb_skip_field(&stream, type);
        }
        if (!ok) {
            *broken = true;
            return false;
        }
        rest->data += rest->size - stream.bytes_left;
        rest->size = stream.bytes_left;
        if (type == PB_WT_STRING)
            return true;
    }
    return false;
}

struct arpc_bytes arpc_descriptor_field(struct arpc_bytes message, uint32_t wanted)
{
    uint32_t tag;
    struct arpc_bytes value;
    bool broken;
    while (arpc_descriptor_next(&message, &tag, &value, &broken))
        if (tag == wanted)
            return value;
    return (struct arpc_bytes){0};
}

/*
 * Takes "name" or "name." off the front of the symbol. False if it is not there; *rest is what follows, or NULL if
 * nothing does.
 */
static bool strip_name(const char *symbol, struct arpc_bytes name, const char **rest)
{
    /* The name may hold a zero byte, which no symbol does. */
    if (strnlen(symbol, name.size) < name.size || memcmp(symbol, name.data, name.size) != 0)
        return false;
    const char *after = symbol + name.size;
    *rest = *after == '.' ? after + 1 : NULL;
    return *after == '.' || *after == 0;
}

/* Whether `symbol`, a name relative to the container, is declared in it. */
static bool declares(struct arpc_bytes container, enum kind kind, const char *symbol, int depth)
{
    uint32_t tag;
    struct arpc_bytes value;
    bool broken;
    while (depth < DEPTH_MAX && arpc_descriptor_next(&container, &tag, &value, &broken)) {
        enum kind nested = nested_kind(kind, tag);
        struct arpc_bytes name = nested != KIND_NONE ? arpc_descriptor_field(value, 1) : (struct arpc_bytes){0};
        const char *rest;
        if (name.size == 0 || !strip_name(symbol, name, &rest))
            continue;
        if (rest == NULL || declares(value, nested, rest, depth + 1))
            return true;
    }
    return false;
}

bool arpc_descriptor_file_declares(struct arpc_bytes file, const char *symbol)
{
    struct arpc_bytes package = arpc_descriptor_field(file, 2);
    const char *rest = symbol;
    if (package.size > 0 && (!strip_name(symbol, package, &rest) || rest == NULL))
        return false;
    return declares(file, KIND_FILE, rest, 0);
}
