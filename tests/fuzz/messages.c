/*
 * Every message that is decoded from a peer's bytes, chosen by the first byte: what is taken can be encoded again and
 * then means the same; what is refused leaves nothing behind.
 */
#include "tests/fuzz/fuzz.h"

#include "base/err.h"
#include "rpc/services/descriptors.h"
#include "rpc/wire/details.h"
#include "tests/unit/proto_messages.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"

#include <pb_decode.h>
#include <pb_encode.h>
#include <stdlib.h>
#include <string.h>

#define OUT_MAX (4 * AMPD_MSG_SIZE_MAX)

/* ---- ampd.v1: the codec ---- */

static bool all_zero(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (data[i] != 0)
            return false;
    return true;
}

static void run_codec(const struct proto_message *row, const uint8_t *data, size_t size)
{
    void *message = malloc(row->size);
    void *again = malloc(row->size);
    AMP_ASSERT(message != NULL && again != NULL);
    struct amp_error error = {.text = ""};
    struct amp_buf out;
    amp_buf_init(&out, OUT_MAX);
    int rc = row->decode(message, data, size, &error);
    if (rc == 0) {
        AMP_ASSERT(row->encode(message, &out) == 0);
        AMP_ASSERT(row->decode(again, out.data, out.size, NULL) == 0);
        AMP_ASSERT(row->same(message, again));
        row->release(message);
        row->release(again);
    } else {
        AMP_ASSERT(rc == AMP_EINVAL && error.text[0] != 0 && all_zero(message, row->size));
    }
    amp_buf_close(&out);
    free(message);
    free(again);
}

/* ---- health, reflection, google.rpc: nanopb's own structs ---- */

struct plain {
    const pb_msgdesc_t *fields;
    size_t size;
};

#define PLAIN(T)                                                                                                       \
    {                                                                                                                  \
        T##_fields, sizeof(T)                                                                                          \
    }

static const struct plain plains[] = {PLAIN(grpc_health_v1_HealthCheckRequest),
                                      PLAIN(grpc_health_v1_HealthCheckResponse),
                                      PLAIN(grpc_reflection_v1_ServerReflectionRequest),
                                      PLAIN(google_rpc_ErrorInfo),
                                      PLAIN(google_rpc_RetryInfo),
                                      PLAIN(google_rpc_BadRequest),
                                      PLAIN(google_protobuf_Any)};
#define PLAINS (sizeof plains / sizeof *plains)

static bool decode_plain(const struct plain *plain, const uint8_t *data, size_t size, void *message)
{
    pb_istream_t stream = pb_istream_from_buffer(data, size);
    return pb_decode(&stream, plain->fields, message);
}

static size_t encode_plain(const struct plain *plain, const void *message, uint8_t *out)
{
    pb_ostream_t stream = pb_ostream_from_buffer(out, OUT_MAX);
    AMP_ASSERT(pb_encode(&stream, plain->fields, message));
    return stream.bytes_written;
}

static void run_plain(const struct plain *plain, const uint8_t *data, size_t size)
{
    void *message = calloc(1, plain->size);
    uint8_t *first = malloc(OUT_MAX);
    uint8_t *second = malloc(OUT_MAX);
    AMP_ASSERT(message != NULL && first != NULL && second != NULL);
    if (decode_plain(plain, data, size, message)) {
        size_t first_size = encode_plain(plain, message, first);
        AMP_ASSERT(decode_plain(plain, first, first_size, message));
        AMP_ASSERT(encode_plain(plain, message, second) == first_size);
        AMP_ASSERT(memcmp(first, second, first_size) == 0);
    }
    free(message);
    free(first);
    free(second);
}

/* ---- grpc-status-details-bin ---- */

static bool same_text(const char *a, const char *b)
{
    return (a == NULL || b == NULL) ? a == b : strcmp(a, b) == 0;
}

static void same_details(const struct arpc_details *a, const struct arpc_details *b)
{
    AMP_ASSERT(same_text(a->reason, b->reason) && same_text(a->domain, b->domain));
    AMP_ASSERT(a->retry_ms == b->retry_ms);
    AMP_ASSERT(same_text(a->field, b->field) && same_text(a->field_text, b->field_text));
    AMP_ASSERT(a->pair_count == b->pair_count || b->pair_count == 0); /* pairs are left out where they do not fit */
    for (size_t i = 0; i < b->pair_count; i++)
        AMP_ASSERT(strcmp(a->pairs[i].key, b->pairs[i].key) == 0 && strcmp(a->pairs[i].value, b->pairs[i].value) == 0);
}

static void run_details(const uint8_t *data, size_t size)
{
    struct arpc_details details;
    struct arpc_details_store *store = NULL;
    int rc = arpc_details_decode(data, size, &details, &store);
    if (rc != 0) {
        AMP_ASSERT(rc == AMP_EINVAL && store == NULL && details.reason == NULL && details.field == NULL);
        return;
    }
    AMP_ASSERT(details.retry_ms >= 0 && details.pair_count <= ARPC_DETAIL_PAIRS_MAX);
    uint8_t out[ARPC_STATUS_BYTES_MAX];
    size_t out_size;
    AMP_ASSERT(arpc_details_encode(5, "a text", &details, out, &out_size) == 0);
    bool said = out_size > 0 && (details.reason == NULL || details.reason[0] != 0);
    if (said) {
        struct arpc_details again;
        struct arpc_details_store *again_store = NULL;
        AMP_ASSERT(arpc_details_decode(out, out_size, &again, &again_store) == 0);
        same_details(&details, &again);
        arpc_details_free(again_store);
    }
    arpc_details_free(store);
}

/* ---- descriptors: what reflection walks ---- */

static void run_descriptors(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size};
    char *symbol = fuzz_text(fuzz_part(&input));
    struct arpc_reflection *reflection = NULL;
    struct amp_error error;
    struct arpc_bytes file = {input.data, input.size};
    bool declares = arpc_descriptor_file_declares(file, symbol);
    if (arpc_reflection_new(input.data, input.size, &reflection, &error) == 0) {
        struct arpc_bytes found = arpc_reflection_symbol(reflection, symbol);
        AMP_ASSERT(found.size <= input.size);
        found = arpc_reflection_file(reflection, symbol);
        AMP_ASSERT(found.size <= input.size);
        arpc_reflection_free(reflection);
    }
    AMP_ASSERT(!declares || input.size > 0);
    free(symbol);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size};
    size_t which = fuzz_byte(&input) % (proto_messages_count + PLAINS + 2);
    uint8_t *exact = fuzz_exact(input.data, input.size);
    if (which < proto_messages_count)
        run_codec(&proto_messages[which], exact, input.size);
    else if (which < proto_messages_count + PLAINS)
        run_plain(&plains[which - proto_messages_count], exact, input.size);
    else if (which == proto_messages_count + PLAINS)
        run_details(exact, input.size);
    else
        run_descriptors(exact, input.size);
    free(exact);
}
