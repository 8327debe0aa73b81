/* The formats of rpc/wire: framing, timeouts, percent and base64 text, statuses, rich errors. */
#include "base/err.h"
#include "rpc/wire/details.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/status.h"
#include "rpc/wire/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(array) (sizeof array / sizeof *(array))

/* What a stream of bytes was taken for: begins, bytes and ends as text, "B3 xyz E". */
struct trace {
    char text[512];
    size_t used;
};

static void trace_piece(struct trace *trace, const struct arpc_piece *piece)
{
    char *at = trace->text + trace->used;
    if (piece->kind == ARPC_PIECE_BEGIN)
        trace->used += (size_t)sprintf(at, "%s%zu(", piece->flag ? "C" : "B", piece->size);
    if (piece->kind == ARPC_PIECE_BYTES) {
        memcpy(at, piece->data, piece->size);
        trace->used += piece->size;
    }
    if (piece->kind == ARPC_PIECE_END)
        trace->used += (size_t)sprintf(at, ")");
    trace->text[trace->used] = 0;
}

static void deframe_all(struct arpc_deframer *deframer, const uint8_t *data, size_t size, struct trace *trace)
{
    struct arpc_piece piece;
    do {
        size_t used = arpc_deframe(deframer, data, size, &piece);
        assert_true(used <= size);
        data += used;
        size -= used;
        trace_piece(trace, &piece);
    } while (piece.kind != ARPC_PIECE_NONE);
    assert_int_equal(size, 0);
}

static const uint8_t stream[] = "\0\0\0\0\3abc" /* a message */
                                "\0\0\0\0\0"    /* an empty one */
                                "\1\0\0\0\2de"  /* one with the compressed flag */
                                "\0\0\0\0\1f";
static const char stream_trace[] = "B3(abc)B0()C2(de)B1(f)";

static void messages_are_the_same_for_every_split_in_two_and_for_single_bytes(void **state)
{
    (void)state;
    size_t size = sizeof stream - 1;
    for (size_t split = 0; split <= size; split++) {
        struct arpc_deframer deframer = {0};
        struct trace trace = {0};
        deframe_all(&deframer, stream, split, &trace);
        deframe_all(&deframer, stream + split, size - split, &trace);
        assert_string_equal(trace.text, stream_trace);
        assert_true(arpc_deframer_is_clean(&deframer));
    }
    struct arpc_deframer deframer = {0};
    struct trace trace = {0};
    for (size_t i = 0; i < size; i++)
        deframe_all(&deframer, stream + i, 1, &trace);
    assert_string_equal(trace.text, stream_trace);
}

static void a_stream_that_ends_inside_a_prefix_or_message_is_not_clean(void **state)
{
    (void)state;
    size_t ends[] = {0, 8, 13, 20, 26};
    for (size_t size = 0; size < sizeof stream; size++) {
        struct arpc_deframer deframer = {0};
        struct trace trace = {0};
        bool clean = false;
        deframe_all(&deframer, stream, size, &trace);
        for (size_t i = 0; i < COUNT(ends); i++)
            clean = clean || ends[i] == size;
        assert_int_equal(arpc_deframer_is_clean(&deframer), clean);
    }
}

static void the_largest_prefix_is_read_as_it_is_written(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {0, 1, 255, 256, 0x01020304, UINT32_MAX};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        uint8_t prefix[ARPC_PREFIX_SIZE];
        struct arpc_deframer deframer = {0};
        struct arpc_piece piece;
        arpc_prefix_write(prefix, (uint8_t)(i % 2), sizes[i]);
        assert_int_equal(arpc_deframe(&deframer, prefix, sizeof prefix, &piece), sizeof prefix);
        assert_int_equal(piece.kind, ARPC_PIECE_BEGIN);
        assert_int_equal(piece.size, sizes[i]);
        assert_int_equal(piece.flag, i % 2);
    }
}

static void timeouts_are_parsed_strictly(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t ns;
    } good[] = {{"0n", 0},
                {"1n", 1},
                {"5u", 5000},
                {"100m", 100000000},
                {"1S", INT64_C(1000000000)},
                {"2M", INT64_C(120000000000)},
                {"3H", INT64_C(10800000000000)},
                {"00000007m", 7000000},
                {"99999999S", INT64_C(99999999000000000)},
                {"99999999H", INT64_MAX}};
    for (size_t i = 0; i < COUNT(good); i++) {
        int64_t ns = -1;
        assert_int_equal(arpc_timeout_parse((const uint8_t *)good[i].text, strlen(good[i].text), &ns), 0);
        assert_true(ns == good[i].ns);
    }
    static const char *const bad[] = {"",   "1",  "S",    "-1S", "+1S",        "1 S", " 1S",
                                      "1s", "1h", "1.5S", "1SS", "100000000n", "0x1S"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        int64_t ns = -1;
        assert_int_equal(arpc_timeout_parse((const uint8_t *)bad[i], strlen(bad[i]), &ns), AMP_EINVAL);
    }
}

static void timeouts_are_written_so_that_they_are_never_shortened(void **state)
{
    (void)state;
    static const int64_t values[] = {
        0, 1, 999, 99999999, 100000000, 100000001, INT64_C(99999999) * 1000 + 1, INT64_C(99999999) * 60000 + 1};
    for (size_t i = 0; i < COUNT(values); i++) {
        char text[ARPC_TIMEOUT_TEXT_MAX];
        int64_t ns = -1;
        size_t size = arpc_timeout_write(values[i], text);
        assert_int_equal(arpc_timeout_parse((const uint8_t *)text, size, &ns), 0);
        assert_true(ns == INT64_MAX || ns / 1000000 >= values[i]);
    }
    char text[ARPC_TIMEOUT_TEXT_MAX];
    (void)arpc_timeout_write(INT64_MAX, text);
    assert_string_equal(text, "99999999H");
}

static void percent_coding_keeps_every_text(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "plain text",
                                        "100%",
                                        "\t\r\n",
                                        "%41",
                                        "caf\xc3\xa9",
                                        "\xe4\xb8\x96\xe7\x95\x8c",
                                        "\xf0\x9f\x98\x80",
                                        "\x7f\x01",
                                        " ",
                                        "  ",
                                        "\t outer spaces  ",
                                        "\xff broken"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        char wire[128];
        char back[128];
        size_t size = arpc_percent_encode(texts[i], wire, sizeof wire);
        for (size_t k = 0; k < size; k++)
            assert_true(wire[k] >= 0x20 && wire[k] <= 0x7e);
        assert_true(size == 0 || (wire[0] != ' ' && wire[size - 1] != ' '));
        (void)arpc_percent_decode((const uint8_t *)wire, size, back, sizeof back);
        assert_string_equal(back, texts[i]);
    }
}

static void percent_coding_cuts_between_characters(void **state)
{
    (void)state;
    for (size_t capacity = 0; capacity <= 20; capacity++) {
        char wire[20];
        size_t size = arpc_percent_encode("a\xe4\xb8\x96z", wire, capacity);
        assert_int_equal(size, capacity >= 11 ? 11 : capacity >= 10 ? 10 : capacity >= 1 ? 1 : 0);
    }
}

/* RFC 9113 8.2.1: a field's value neither begins nor ends with a space. */
static void a_percent_text_that_is_cut_ends_with_no_space(void **state)
{
    (void)state;
    static const size_t expected[] = {0, 1, 1, 1, 4, 4, 6, 6, 6, 9};
    for (size_t capacity = 0; capacity < COUNT(expected); capacity++) {
        char wire[COUNT(expected)];
        size_t size = arpc_percent_encode("a  b c ", wire, capacity);
        assert_int_equal(size, expected[capacity]);
        assert_memory_equal(wire, "a  b c%20", size);
    }
}

static void broken_percent_text_is_kept(void **state)
{
    (void)state;
    char back[16];
    (void)arpc_percent_decode((const uint8_t *)"%4", 2, back, sizeof back);
    assert_string_equal(back, "%4");
    (void)arpc_percent_decode((const uint8_t *)"%zz%41", 6, back, sizeof back);
    assert_string_equal(back, "%zzA");
    (void)arpc_percent_decode((const uint8_t *)"abcdef", 6, back, 4);
    assert_string_equal(back, "abc");
}

static void base64_goes_back_and_forth_padded_or_not(void **state)
{
    (void)state;
    uint8_t data[64];
    for (size_t size = 0; size < sizeof data; size++) {
        char text[96];
        uint8_t back[96];
        size_t back_size = 0;
        for (size_t i = 0; i < size; i++)
            data[i] = (uint8_t)(i * 37 + size);
        size_t text_size = arpc_base64_encode(data, size, text);
        assert_int_equal(text_size, ARPC_BASE64_SIZE(size));
        assert_int_equal(arpc_base64_decode((const uint8_t *)text, text_size, back, &back_size), 0);
        assert_int_equal(back_size, size);
        assert_memory_equal(back, data, size);
        while (text_size % 4 != 0)
            text[text_size++] = '=';
        assert_int_equal(arpc_base64_decode((const uint8_t *)text, text_size, back, &back_size), 0);
        assert_int_equal(back_size, size);
    }
}

static void bad_base64_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"A", "AA=", "AA===", "A-_A", "AA A", "====", "AAAAA", "=AAA"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        uint8_t out[16];
        size_t size;
        assert_int_equal(arpc_base64_decode((const uint8_t *)bad[i], strlen(bad[i]), out, &size), AMP_EINVAL);
    }
}

static void metadata_keys_and_values_are_checked(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "x-ampd_1.z-bin", "authorization"};
    static const char *const bad[] = {"", "A", "a b", "grpc-status", "content-type", "te", ":path", "\xc3\xa9"};
    for (size_t i = 0; i < COUNT(good); i++)
        assert_true(arpc_metadata_key_ok(good[i]));
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(arpc_metadata_key_ok(bad[i]));
    assert_true(arpc_metadata_text_ok((const uint8_t *)"a b~", 4));
    assert_false(arpc_metadata_text_ok((const uint8_t *)" a", 2));
    assert_false(arpc_metadata_text_ok((const uint8_t *)"a\n", 2));
    assert_true(arpc_metadata_is_binary("x-bin", 5));
    assert_false(arpc_metadata_is_binary("-bin", 4));
    assert_false(arpc_metadata_is_binary("bin", 3));
}

static void statuses_follow_the_tables_of_grpc(void **state)
{
    (void)state;
    static const int http[][2] = {{400, 13}, {401, 16}, {403, 7},  {404, 12}, {429, 14},
                                  {502, 14}, {503, 14}, {504, 14}, {200, 2},  {500, 2}};
    for (size_t i = 0; i < COUNT(http); i++)
        assert_int_equal(arpc_status_from_http(http[i][0]), http[i][1]);
    static const int h2[][2] = {{0, 13}, {1, 13}, {2, 13}, {7, 14}, {8, 1}, {11, 8}, {12, 7}, {99, 2}};
    for (size_t i = 0; i < COUNT(h2); i++)
        assert_int_equal(arpc_status_from_h2((uint32_t)h2[i][0]), h2[i][1]);
    static const char *const unknown[] = {"", "17", "-1", "1 ", "x", "001", "99999999999"};
    for (size_t i = 0; i < COUNT(unknown); i++)
        assert_int_equal(arpc_status_parse((const uint8_t *)unknown[i], strlen(unknown[i])), ARPC_STATUS_UNKNOWN);
    assert_int_equal(arpc_status_parse((const uint8_t *)"16", 2), 16);
    assert_string_equal(arpc_status_name(5), "NOT_FOUND");
    assert_string_equal(arpc_status_name(17), "UNKNOWN");
}

static void details_go_back_and_forth(void **state)
{
    (void)state;
    static const struct arpc_pair pairs[] = {{"epoch", "3"}, {"step", "41"}};
    struct arpc_details given = {.reason = "STALE_STEP",
                                 .pairs = pairs,
                                 .pair_count = 2,
                                 .retry_ms = 1234,
                                 .field = "header.step",
                                 .field_text = "is in the past"};
    uint8_t bytes[ARPC_STATUS_BYTES_MAX];
    size_t size = 0;
    struct arpc_details got;
    struct arpc_details_store *store;
    assert_int_equal(arpc_details_encode(10, "stale", &given, bytes, &size), 0);
    assert_true(size > 0);
    assert_int_equal(arpc_details_decode(bytes, size, &got, &store), 0);
    assert_string_equal(got.reason, "STALE_STEP");
    assert_string_equal(got.domain, "ampd");
    assert_int_equal(got.pair_count, 2);
    assert_string_equal(arpc_details_find(&got, "step"), "41");
    assert_null(arpc_details_find(&got, "nothing"));
    assert_int_equal(got.retry_ms, 1234);
    assert_string_equal(got.field, "header.step");
    assert_string_equal(got.field_text, "is in the past");
    arpc_details_free(store);
}

static void details_with_nothing_to_say_take_no_bytes(void **state)
{
    (void)state;
    struct arpc_details empty = {.reason = ""};
    uint8_t bytes[ARPC_STATUS_BYTES_MAX];
    size_t size = 1;
    assert_int_equal(arpc_details_encode(3, "m", &empty, bytes, &size), 0);
    assert_int_equal(size, 0);
    assert_int_equal(arpc_details_encode(3, "m", NULL, bytes, &size), 0);
    assert_int_equal(size, 0);
}

static void details_that_are_too_large_lose_their_pairs_first(void **state)
{
    (void)state;
    char value[1000];
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = 0;
    struct arpc_pair pairs[ARPC_DETAIL_PAIRS_MAX + 4];
    for (size_t i = 0; i < COUNT(pairs); i++)
        pairs[i] = (struct arpc_pair){"key", value};
    struct arpc_details given = {.reason = "LARGE", .pairs = pairs, .pair_count = COUNT(pairs)};
    uint8_t bytes[ARPC_STATUS_BYTES_MAX];
    size_t size;
    struct arpc_details got;
    struct arpc_details_store *store;
    assert_int_equal(arpc_details_encode(3, "m", &given, bytes, &size), 0);
    assert_int_equal(arpc_details_decode(bytes, size, &got, &store), 0);
    assert_string_equal(got.reason, "LARGE");
    assert_int_equal(got.pair_count, 0);
    arpc_details_free(store);
}

static void damaged_details_are_refused_or_read_in_part_but_never_trusted(void **state)
{
    (void)state;
    static const struct arpc_pair pair = {"key", "value"};
    struct arpc_details given = {.reason = "REASON", .pairs = &pair, .pair_count = 1, .retry_ms = 5, .field = "f"};
    uint8_t bytes[ARPC_STATUS_BYTES_MAX];
    size_t size;
    assert_int_equal(arpc_details_encode(3, "message", &given, bytes, &size), 0);
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *exact = malloc(cut + 1); /* on the heap, so that a sanitizer sees a read beyond it */
        struct arpc_details got;
        struct arpc_details_store *store = NULL;
        assert_non_null(exact);
        memcpy(exact, bytes, cut);
        if (arpc_details_decode(exact, cut, &got, &store) == 0)
            arpc_details_free(store);
        else
            assert_null(got.reason);
        free(exact);
    }
    for (size_t at = 0; at < size; at++) {
        struct arpc_details got;
        struct arpc_details_store *store = NULL;
        bytes[at] ^= 0xff;
        if (arpc_details_decode(bytes, size, &got, &store) == 0)
            arpc_details_free(store);
        bytes[at] ^= 0xff;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_the_same_for_every_split_in_two_and_for_single_bytes),
        cmocka_unit_test(a_stream_that_ends_inside_a_prefix_or_message_is_not_clean),
        cmocka_unit_test(the_largest_prefix_is_read_as_it_is_written),
        cmocka_unit_test(timeouts_are_parsed_strictly),
        cmocka_unit_test(timeouts_are_written_so_that_they_are_never_shortened),
        cmocka_unit_test(percent_coding_keeps_every_text),
        cmocka_unit_test(percent_coding_cuts_between_characters),
        cmocka_unit_test(a_percent_text_that_is_cut_ends_with_no_space),
        cmocka_unit_test(broken_percent_text_is_kept),
        cmocka_unit_test(base64_goes_back_and_forth_padded_or_not),
        cmocka_unit_test(bad_base64_is_refused),
        cmocka_unit_test(metadata_keys_and_values_are_checked),
        cmocka_unit_test(statuses_follow_the_tables_of_grpc),
        cmocka_unit_test(details_go_back_and_forth),
        cmocka_unit_test(details_with_nothing_to_say_take_no_bytes),
        cmocka_unit_test(details_that_are_too_large_lose_their_pairs_first),
        cmocka_unit_test(damaged_details_are_refused_or_read_in_part_but_never_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
