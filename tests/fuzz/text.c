/*
 * The small parsers of text, chosen by the first byte: metadata, grpc-timeout, percent-encoding, base64, token files,
 * addresses, the headers of checkpoint files and the JSON of specifications.
 */
#include "tests/fuzz/fuzz.h"

#include "base/err.h"
#include "rpc/arpc_token.h"
#include "rpc/h2/fields.h"
#include "rpc/io/endpoints.h"
#include "rpc/wire/retry.h"
#include "rpc/wire/status.h"
#include "rpc/wire/text.h"
#include "server/io/auth/auth_rules.h"
#include "storage/checkpoint_format.h"
#include "storage/spec_json.h"
#include "storage/store.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void run_timeout(struct fuzz_input input)
{
    int64_t ns;
    if (arpc_timeout_parse(input.data, input.size, &ns) != 0)
        return;
    AMP_ASSERT(ns >= 0 && input.size >= 2 && input.size <= 9);
    int64_t ms = ns / 1000000 + (ns % 1000000 != 0);
    char text[ARPC_TIMEOUT_TEXT_MAX];
    size_t size = arpc_timeout_write(ms, text);
    int64_t again;
    AMP_ASSERT(size == strlen(text) && arpc_timeout_parse((const uint8_t *)text, size, &again) == 0);
    /* Rounded up, by less than an hour; 99999999H is the longest that can be said. */
    AMP_ASSERT(again >= ns && (again == INT64_MAX || again - ns < INT64_C(3600) * 1000000000));
}

static void run_percent(struct fuzz_input input)
{
    uint8_t choice = fuzz_byte(&input);
    char *text = fuzz_text(fuzz_part(&input));
    size_t size = strlen(text);
    size_t capacity = choice < 128 ? 3 * size + 1 : choice % (3 * size + 1);
    uint8_t *encoded = malloc(capacity > 0 ? capacity : 1);
    char *decoded = malloc(3 * size + 2);
    AMP_ASSERT(encoded != NULL && decoded != NULL);
    size_t used = arpc_percent_encode(text, (char *)encoded, capacity);
    AMP_ASSERT(used <= capacity);
    for (size_t i = 0; i < used; i++)
        AMP_ASSERT(encoded[i] >= 0x20 && encoded[i] <= 0x7e);
    AMP_ASSERT(used == 0 || (encoded[0] != ' ' && encoded[used - 1] != ' '));
    size_t got = arpc_percent_decode(encoded, used, decoded, 3 * size + 2);
    AMP_ASSERT(got <= size && memcmp(decoded, text, got) == 0 && decoded[got] == 0);
    AMP_ASSERT(capacity < 3 * size || got == size);
    free(encoded);
    free(decoded);
    /* What a peer sends need not have been encoded by anyone. */
    capacity = 1 + choice;
    char *raw = malloc(capacity);
    AMP_ASSERT(raw != NULL);
    used = arpc_percent_decode((const uint8_t *)text, size, raw, capacity);
    AMP_ASSERT(used < capacity && used <= size && raw[used] == 0);
    free(raw);
    free(text);
}

static void run_base64(struct fuzz_input input)
{
    char *text = malloc(ARPC_BASE64_SIZE(input.size) + 1);
    uint8_t *raw = malloc(input.size + 1);
    AMP_ASSERT(text != NULL && raw != NULL);
    size_t size;
    size_t got;
    size = arpc_base64_encode(input.data, input.size, text);
    AMP_ASSERT(size == ARPC_BASE64_SIZE(input.size));
    AMP_ASSERT(arpc_base64_decode((const uint8_t *)text, size, raw, &got) == 0);
    AMP_ASSERT(got == input.size && (got == 0 || memcmp(raw, input.data, got) == 0));
    if (arpc_base64_decode(input.data, input.size, raw, &got) == 0)
        AMP_ASSERT(got <= input.size * 3 / 4);
    free(text);
    free(raw);
}

static void check_fields(const struct arpc_fields *fields)
{
    size_t cursor = 0;
    size_t count = 0;
    struct arpc_field field;
    while (arpc_fields_next(fields, &cursor, &field)) {
        AMP_ASSERT(field.name[field.name_size] == 0 && field.value[field.value_size] == 0);
        count++;
    }
    AMP_ASSERT(count == fields->count && count <= ARPC_FIELDS_MAX);
}

/* Pairs of a key and a value, each up to a zero byte: first as a peer's, then as this program's. */
static void run_metadata(struct fuzz_input input)
{
    struct arpc_fields kept;
    struct arpc_fields sent;
    arpc_fields_init(&kept, 1024);
    arpc_fields_init(&sent, ARPC_FIELDS_BYTES_MAX);
    while (input.size > 0) {
        char *key = fuzz_text(fuzz_part(&input));
        struct fuzz_input value = fuzz_part(&input);
        uint8_t *exact = fuzz_exact(value.data, value.size);
        int rc = arpc_fields_keep(&kept, key, exact, value.size);
        AMP_ASSERT(rc == 0 || rc == AMP_EINVAL || rc == AMP_EEXHAUSTED);
        rc = arpc_fields_add_metadata(&sent, key, exact, value.size, false);
        AMP_ASSERT(rc == 0 || rc == AMP_EINVAL || rc == AMP_EEXHAUSTED);
        (void)arpc_fields_add_metadata(&sent, key, exact, value.size, true);
        (void)arpc_list_has(exact, value.size, "gzip");
        (void)arpc_status_parse(exact, value.size);
        int64_t after_ms = 0;
        if (arpc_pushback_parse(exact, value.size, &after_ms) == ARPC_PUSHBACK_AFTER)
            AMP_ASSERT(after_ms >= 0);
        (void)arpc_token_valid((const char *)exact, value.size);
        free(exact);
        free(key);
    }
    check_fields(&kept);
    check_fields(&sent);
    arpc_fields_close(&kept);
    arpc_fields_close(&sent);
}

static void run_token_file(struct fuzz_input input)
{
    struct ampd_auth_rules *rules;
    struct amp_error error = {.text = ""};
    int rc = ampd_auth_rules_parse((const char *)input.data, input.size, "tokens", &rules, &error);
    if (rc != 0) {
        AMP_ASSERT(rc == AMP_EINVAL && rules == NULL && strncmp(error.text, "tokens", 6) == 0);
        return;
    }
    AMP_ASSERT(rules->count <= AMPD_AUTH_RULES_MAX);
    for (size_t i = 0; i < rules->count; i++) {
        const struct ampd_auth_rule *rule = &rules->rules[i];
        AMP_ASSERT(rule->roles != 0 && rule->line > 0 && strlen(rule->name) < AMPD_AUTH_NAME_MAX);
        AMP_ASSERT(rule->kind == AMPD_AUTH_UID || rule->name[0] != 0);
        AMP_ASSERT(rule->kind != AMPD_AUTH_TOKEN || rule->expires_us >= 0);
    }
    free(rules);
}

static void run_address(struct fuzz_input input)
{
    char *text = fuzz_text(fuzz_part(&input));
    struct arpc_endpoints *endpoints = malloc(sizeof *endpoints);
    struct amp_error error = {.text = ""};
    AMP_ASSERT(endpoints != NULL);
    int rc = arpc_endpoints_parse(text, endpoints, &error);
    AMP_ASSERT(rc == 0 || (rc == AMP_EINVAL && error.text[0] != 0));
    for (size_t i = 0; rc == 0 && i < endpoints->count; i++) {
        const struct arpc_endpoint *endpoint = &endpoints->list[i];
        struct arpc_address again;
        AMP_ASSERT(endpoint->address.host[0] != 0 && strchr(endpoint->text, ',') == NULL);
        AMP_ASSERT(arpc_address_parse(endpoint->text, &again, NULL) == 0);
        AMP_ASSERT(memcmp(&again, &endpoint->address, sizeof again) == 0);
    }
    free(endpoints);
    free(text);
}

static void run_spec(struct fuzz_input input)
{
    char *text = fuzz_text(fuzz_part(&input));
    struct ampd_model_spec *spec = calloc(1, sizeof *spec);
    AMP_ASSERT(spec != NULL);
    if (ampd_spec_from_json(text, spec) == 0) {
        char *first = NULL;
        char *second = NULL;
        AMP_ASSERT(spec->groups_count >= 1 && spec->groups_count <= AMPD_GROUPS_MAX);
        /* A double beyond a float's range became infinite, which is not written. */
        if (ampd_spec_to_json(spec, &first) == 0) {
            AMP_ASSERT(ampd_spec_from_json(first, spec) == 0);
            AMP_ASSERT(ampd_spec_to_json(spec, &second) == 0 && strcmp(first, second) == 0);
        }
        free(first);
        free(second);
    }
    free(spec);
    struct ampd_parameter_spec parameter = {.dimensions = 0};
    if (ampd_shape_from_text(text, &parameter) == 0) {
        char shape[AMPD_SHAPE_TEXT_MAX];
        struct ampd_parameter_spec again = {.dimensions = 0};
        ampd_shape_to_text(&parameter, shape);
        AMP_ASSERT(parameter.dimensions <= AMPD_DIMENSIONS_MAX);
        /* Extents above 2^63 are no JSON integers; no model has them. */
        if (ampd_shape_from_text(shape, &again) == 0)
            AMP_ASSERT(memcmp(&parameter, &again, sizeof again) == 0);
    }
    free(text);
}

/* ---- headers of checkpoint files ---- */

static void read_header(const char *json, size_t size, uint64_t data_size)
{
    static const uint64_t weight[] = {2, 3};
    static const uint64_t bias[] = {3};
    static float values[6];
    const struct ampd_checkpoint_target targets[] = {
        {.name = "w", .dimensions = 2, .shape = weight, .master = values, .m = values, .v = values},
        {.name = "b", .dimensions = 1, .shape = bias, .master = values}};
    struct checkpoint_pieces pieces;
    struct ampd_checkpoint_state state;
    struct amp_error error = {.text = ""};
    const struct ampd_checkpoint_tensor tensors[] = {{.name = "w", .dimensions = 2, .shape = weight},
                                                     {.name = "b", .dimensions = 1, .shape = bias}};
    int rc = checkpoint_header_read(json, size, data_size, targets, 2, &pieces, &state, &error);
    AMP_ASSERT(rc == 0 || ((rc == AMP_EDATALOSS || rc == AMP_EVERSION) && error.text[0] != 0));
    if (rc == 0) {
        uint8_t *header = NULL;
        size_t header_size = 0;
        uint64_t at = 0;
        for (uint32_t i = 0; i < pieces.count; at = pieces.items[i++].end)
            AMP_ASSERT(pieces.items[i].begin == at && pieces.items[i].end >= at && pieces.items[i].end <= data_size);
        AMP_ASSERT(at == data_size && state.world_size <= AMPD_WORLD_MAX);
        AMP_ASSERT(checkpoint_header_write(&pieces, tensors, &state, &header, &header_size, NULL) == 0);
        free(header);
    }
    ampd_checkpoint_state_clear(&state);
    free(pieces.items);
}

/* The same header with the hash of itself that it should have, or nothing behind that check would ever be reached. */
static char *with_hash(const char *json, size_t size)
{
    json_t *object = json_loadb(json, size, JSON_REJECT_DUPLICATES, NULL);
    json_t *metadata = json_object_get(object, "__metadata__");
    char *fixed = NULL;
    if (json_is_object(metadata)) {
        (void)json_object_del(metadata, "hash");
        char *dump = json_dumps(object, JSON_SORT_KEYS | JSON_COMPACT);
        XXH128_canonical_t canonical;
        char hash[33];
        if (dump != NULL) {
            XXH128_canonicalFromHash(&canonical, XXH3_128bits(dump, strlen(dump)));
            for (int i = 0; i < 16; i++)
                (void)snprintf(hash + 2 * i, 3, "%02x", canonical.digest[i]);
            (void)json_object_set_new(metadata, "hash", json_string(hash));
            fixed = json_dumps(object, JSON_SORT_KEYS | JSON_COMPACT);
        }
        free(dump);
    }
    json_decref(object);
    return fixed;
}

static void run_checkpoint(struct fuzz_input input)
{
    uint64_t data_size = 84 + (uint64_t)fuzz_byte(&input); /* the tensors' 84 bytes, and user states */
    read_header((const char *)input.data, input.size, data_size);
    char *fixed = with_hash((const char *)input.data, input.size);
    if (fixed != NULL)
        read_header(fixed, strlen(fixed), data_size);
    free(fixed);
}

static void (*const parsers[])(struct fuzz_input) = {run_timeout, run_percent,    run_base64, run_metadata,
                                                     run_address, run_token_file, run_spec,   run_checkpoint};

void fuzz_one(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size};
    size_t which = fuzz_byte(&input) % (sizeof parsers / sizeof *parsers);
    uint8_t *exact = fuzz_exact(input.data, input.size);
    parsers[which]((struct fuzz_input){exact, input.size});
    free(exact);
}
