/*
 * The Status is small, its C structs are not (ErrorInfo alone is 5 KiB), so that both directions work in one
 * heap block. Status itself goes field by field: its message and details are a stream, each detail an Any
 * whose type is known or skipped.
 */
#include "rpc/wire/details.h"

#include "base/err.h"

#include <pb_decode.h>
#include <pb_encode.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(((google_rpc_ErrorInfo *)0)->reason) == 64, "error_details.options was not found");
_Static_assert(sizeof(((google_rpc_ErrorInfo_MetadataEntry *)0)->key) == ARPC_DETAIL_KEY_MAX, "sizes differ");
_Static_assert(sizeof(((google_rpc_ErrorInfo_MetadataEntry *)0)->value) == ARPC_DETAIL_VALUE_MAX, "sizes differ");
_Static_assert(sizeof(((google_rpc_ErrorInfo *)0)->metadata) / sizeof(google_rpc_ErrorInfo_MetadataEntry) ==
                   ARPC_DETAIL_PAIRS_MAX,
               "counts differ");

#define TYPE_ERROR_INFO  "type.googleapis.com/google.rpc.ErrorInfo"
#define TYPE_RETRY_INFO  "type.googleapis.com/google.rpc.RetryInfo"
#define TYPE_BAD_REQUEST "type.googleapis.com/google.rpc.BadRequest"

struct arpc_details_store {
    google_rpc_ErrorInfo info;
    google_rpc_RetryInfo retry;
    google_rpc_BadRequest bad;
    google_protobuf_Any any;
    struct arpc_pair pairs[ARPC_DETAIL_PAIRS_MAX];
    struct arpc_details *details; /* being filled, while decoding */
};

/* Copies a text, cut between two characters of UTF-8. */
static void copy_text(char *to, size_t capacity, const char *from)
{
    size_t size = strnlen(from, capacity);
    if (size == capacity) {
        size--;
        while (size > 0 && ((uint8_t)from[size] & 0xc0) == 0x80)
            size--;
    }
    memcpy(to, from, size);
    to[size] = 0;
}

static bool put_any(pb_ostream_t *stream, struct arpc_details_store *store, const char *type,
                    const pb_msgdesc_t *fields, const void *message)
{
    pb_ostream_t inner = pb_ostream_from_buffer(store->any.value.bytes, sizeof store->any.value.bytes);
    if (!pb_encode(&inner, fields, message))
        return false;
    store->any.value.size = (pb_size_t)inner.bytes_written;
    copy_text(store->any.type_url, sizeof store->any.type_url, type);
    return pb_encode_tag(stream, PB_WT_STRING, google_rpc_Status_details_tag) &&
           pb_encode_submessage(stream, google_protobuf_Any_fields, &store->any);
}

static void fill_info(google_rpc_ErrorInfo *info, const struct arpc_details *details, bool with_pairs)
{
    copy_text(info->reason, sizeof info->reason, details->reason);
    copy_text(info->domain, sizeof info->domain, details->domain != NULL ? details->domain : "ampd");
    info->metadata_count = 0;
    for (size_t i = 0; with_pairs && i < details->pair_count && i < ARPC_DETAIL_PAIRS_MAX; i++) {
        copy_text(info->metadata[i].key, sizeof info->metadata[i].key, details->pairs[i].key);
        copy_text(info->metadata[i].value, sizeof info->metadata[i].value, details->pairs[i].value);
        info->metadata_count++;
    }
}

static bool has_reason(const struct arpc_details *details)
{
    return details->reason != NULL && details->reason[0] != 0;
}

static bool put_details(pb_ostream_t *stream, struct arpc_details_store *store, const struct arpc_details *details,
                        bool with_pairs)
{
    if (has_reason(details)) {
        fill_info(&store->info, details, with_pairs);
        if (!put_any(stream, store, TYPE_ERROR_INFO, google_rpc_ErrorInfo_fields, &store->info))
            return false;
    }
    if (details->retry_ms > 0) {
        store->retry.has_retry_delay = true;
        store->retry.retry_delay.seconds = details->retry_ms / 1000;
        store->retry.retry_delay.nanos = (int32_t)(details->retry_ms % 1000) * 1000000;
        if (!put_any(stream, store, TYPE_RETRY_INFO, google_rpc_RetryInfo_fields, &store->retry))
            return false;
    }
    if (details->field != NULL) {
        google_rpc_BadRequest_FieldViolation *violation = &store->bad.field_violations[0];
        store->bad.field_violations_count = 1;
        copy_text(violation->field, sizeof violation->field, details->field);
        copy_text(violation->description, sizeof violation->description,
                  details->field_text != NULL ? details->field_text : "");
        return put_any(stream, store, TYPE_BAD_REQUEST, google_rpc_BadRequest_fields, &store->bad);
    }
    return true;
}

int arpc_details_encode(int status, const char *message, const struct arpc_details *details,
                        uint8_t out[ARPC_STATUS_BYTES_MAX], size_t *size)
{
    *size = 0;
    if (details == NULL || (!has_reason(details) && details->retry_ms <= 0 && details->field == NULL))
        return 0;
    struct arpc_details_store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return AMP_ENOMEM;
    for (int attempt = 0; attempt < 2 && *size == 0; attempt++) {
        pb_ostream_t stream = pb_ostream_from_buffer(out, ARPC_STATUS_BYTES_MAX);
        bool ok = pb_encode_tag(&stream, PB_WT_VARINT, google_rpc_Status_code_tag) &&
                  pb_encode_varint(&stream, (uint64_t)status) &&
                  pb_encode_tag(&stream, PB_WT_STRING, google_rpc_Status_message_tag) &&
                  pb_encode_string(&stream, (const pb_byte_t *)message, strlen(message)) &&
                  put_details(&stream, store, details, attempt == 0);
        if (ok)
            *size = stream.bytes_written;
    }
    free(store);
    return 0;
}

static void keep_info(struct arpc_details_store *store)
{
    struct arpc_details *details = store->details;
    details->reason = store->info.reason;
    details->domain = store->info.domain;
    for (size_t i = 0; i < store->info.metadata_count; i++) {
        store->pairs[i].key = store->info.metadata[i].key;
        store->pairs[i].value = store->info.metadata[i].value;
    }
    details->pairs = store->pairs;
    details->pair_count = store->info.metadata_count;
}

static void keep_retry(struct arpc_details_store *store)
{
    const google_protobuf_Duration *delay = &store->retry.retry_delay;
    if (store->retry.has_retry_delay && delay->seconds >= 0 && delay->seconds < INT32_MAX && delay->nanos >= 0)
        store->details->retry_ms = delay->seconds * 1000 + delay->nanos / 1000000;
}

static void keep_bad(struct arpc_details_store *store)
{
    if (store->bad.field_violations_count == 0)
        return;
    store->details->field = store->bad.field_violations[0].field;
    store->details->field_text = store->bad.field_violations[0].description;
}

/* Decodes one Any into its struct. What is unknown, too large or broken is left out: details only add to a
 * status. */
static void take_any(struct arpc_details_store *store)
{
    const google_protobuf_Any *any = &store->any;
    pb_istream_t inner = pb_istream_from_buffer(any->value.bytes, any->value.size);
    if (strcmp(any->type_url, TYPE_ERROR_INFO) == 0 && store->details->reason == NULL) {
        if (pb_decode(&inner, google_rpc_ErrorInfo_fields, &store->info))
            keep_info(store);
    } else if (strcmp(any->type_url, TYPE_RETRY_INFO) == 0) {
        if (pb_decode(&inner, google_rpc_RetryInfo_fields, &store->retry))
            keep_retry(store);
    } else if (strcmp(any->type_url, TYPE_BAD_REQUEST) == 0 && store->details->field == NULL) {
        if (pb_decode(&inner, google_rpc_BadRequest_fields, &store->bad))
            keep_bad(store);
    }
}

static bool take_field(pb_istream_t *stream, struct arpc_details_store *store, pb_wire_type_t type, uint32_t tag)
{
    if (tag != google_rpc_Status_details_tag || type != PB_WT_STRING)
        return pb_skip_field(stream, type);
    pb_istream_t inner;
    if (!pb_make_string_substream(stream, &inner))
        return false;
    if (pb_decode(&inner, google_protobuf_Any_fields, &store->any))
        take_any(store);
    return pb_close_string_substream(stream, &inner);
}

int arpc_details_decode(const uint8_t *data, size_t size, struct arpc_details *details,
                        struct arpc_details_store **store)
{
    *details = (struct arpc_details){0};
    struct arpc_details_store *new_store = calloc(1, sizeof *new_store);
    if (new_store == NULL)
        return AMP_ENOMEM;
    new_store->details = details;
    pb_istream_t stream = pb_istream_from_buffer(data, size);
    bool ok = true;
    while (ok) {
        pb_wire_type_t type;
        uint32_t tag;
        bool eof;
        if (!pb_decode_tag(&stream, &type, &tag, &eof)) {
            ok = eof;
            break;
        }
        ok = take_field(&stream, new_store, type, tag);
    }
    if (!ok) {
        free(new_store);
        *details = (struct arpc_details){0};
        return AMP_EINVAL;
    }
    *store = new_store;
    return 0;
}

void arpc_details_free(struct arpc_details_store *store)
{
    free(store);
}
