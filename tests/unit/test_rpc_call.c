/* Tables of rpc: the states of a call against the diagram that its essay draws, the rows, and descriptors. */
#include "rpc/h2/call.h"
#include "rpc/h2/link.h"
#include "rpc/services/descriptors.h"
#include "rpc/services/reflection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(a) (sizeof a / sizeof *(a))

static enum arpc_call_state state_named(const char *name)
{
    for (int state = 0; state < ARPC_CALL_STATE_COUNT; state++)
        if (strcmp(arpc_call_state_name((enum arpc_call_state)state), name) == 0)
            return (enum arpc_call_state)state;
    fail_msg("the diagram names \"%s\", which is no state", name);
    return ARPC_CALL_GONE;
}

/* Reads " *     NAME -> NAME NAME" lines of call.c into a table; returns how many there are. */
static int read_diagram(bool may[ARPC_CALL_STATE_COUNT][ARPC_CALL_STATE_COUNT])
{
    char line[256];
    int lines = 0;
    FILE *file = fopen(RPC_CALL_SOURCE, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL && strcmp(line, " */\n") != 0) {
        char *arrow = strstr(line, "->");
        if (arrow == NULL)
            continue;
        char from[32];
        assert_int_equal(sscanf(line, " * %31s", from), 1);
        lines++;
        for (char *word = strtok(arrow + 2, " \n"); word != NULL; word = strtok(NULL, " \n"))
            may[state_named(from)][state_named(word)] = true;
    }
    (void)fclose(file);
    return lines;
}

static void the_diagram_of_a_calls_states_equals_the_table(void **state)
{
    (void)state;
    bool may[ARPC_CALL_STATE_COUNT][ARPC_CALL_STATE_COUNT] = {{false}};
    assert_int_equal(read_diagram(may), ARPC_CALL_STATE_COUNT);
    for (int from = 0; from < ARPC_CALL_STATE_COUNT; from++)
        for (int to = 0; to < ARPC_CALL_STATE_COUNT; to++)
            assert_int_equal(arpc_call_state_may((enum arpc_call_state)from, (enum arpc_call_state)to), may[from][to]);
}

static void ignore(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
}

static const struct arpc_handler handler = {.closed = ignore};
static const struct arpc_handler no_closed = {0};

static const struct arpc_method rows[] = {
    {"b.B", "One", ARPC_UNARY, false, 0, 1, &handler},     {"a.A", "Two", ARPC_UNARY, false, 0, 1, &handler},
    {"a.A", "One", ARPC_UNARY, false, 0, 1, &handler},     {"a.AA", "One", ARPC_UNARY, false, 0, 1, &handler},
    {"a.A", "OneMore", ARPC_UNARY, false, 0, 1, &handler},
};

static void every_row_is_found_by_its_path_and_nothing_else_is(void **state)
{
    (void)state;
    struct arpc_method_table table = {0};
    assert_null(arpc_method_table_find(&table, (const uint8_t *)"/a/b", 4));
    assert_int_equal(arpc_method_table_add(&table, rows, 2, NULL), 0);
    assert_int_equal(arpc_method_table_add(&table, rows + 2, COUNT(rows) - 2, NULL), 0);
    for (size_t i = 0; i < COUNT(rows); i++) {
        char path[64];
        int size = snprintf(path, sizeof path, "/%s/%s", rows[i].service, rows[i].name);
        const struct arpc_method_row *whole = arpc_method_table_find(&table, (const uint8_t *)path, (size_t)size);
        assert_ptr_equal(whole->method, &rows[i]);
        for (int cut = 0; cut < size; cut++) {
            const struct arpc_method_row *found = arpc_method_table_find(&table, (const uint8_t *)path, (size_t)cut);
            assert_true(found == NULL || found->method != &rows[i]);
        }
    }
    arpc_method_table_close(&table);
}

static void rows_of_one_name_and_handlers_without_closed_are_refused(void **state)
{
    (void)state;
    static const struct arpc_method twice[] = {{"a.A", "One", ARPC_UNARY, false, 0, 1, &handler}};
    static const struct arpc_method bad[] = {{"c.C", "One", ARPC_UNARY, false, 0, 1, &no_closed}};
    struct arpc_method_table table = {0};
    struct amp_error error;
    assert_int_equal(arpc_method_table_add(&table, rows, COUNT(rows), &error), 0);
    assert_int_equal(arpc_method_table_add(&table, twice, 1, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "/a.A/One"));
    assert_int_equal(arpc_method_table_add(&table, bad, 1, &error), AMP_EINVAL);
    assert_int_equal(table.count, COUNT(rows));
    arpc_method_table_close(&table);
}

/*
 * FileDescriptorSet of "a.proto", package p.q, message M { field f; message N { enum E { V } } }, service S { rpc R },
 * and of "b.proto" without a package, message M.
 */
static const uint8_t descriptors[] = {
    0x0a, 61,                                                 /* file */
    0x0a, 7,  'a',  '.',  'p', 'r',  'o', 't', 'o',           /* name */
    0x12, 3,  'p',  '.',  'q',                                /* package */
    0x22, 29,                                                 /* message_type */
    0x0a, 1,  'M',                                            /*   name */
    0x12, 5,  0x0a, 1,    'f', 0x18, 1,                       /*   field f, number 1 */
    0x1a, 17,                                                 /*   nested_type */
    0x0a, 1,  'N',                                            /*     name */
    0x22, 12,                                                 /*     enum_type */
    0x0a, 1,  'E',  0x12, 7,   0x0a, 1,   'V', 0x10, 0, 0x18, /*       name, value V */
    1,                                                        /*       (a field of the value that nobody reads) */
    0x32, 8,                                                  /* service */
    0x0a, 1,  'S',  0x12, 3,   0x0a, 1,   'R',                /*   name, method R */
    0x62, 4,  'x',  'y',  'z', '!',                           /* another field */
    0x0a, 14,                                                 /* file */
    0x0a, 7,  'b',  '.',  'p', 'r',  'o', 't', 'o',           /* name */
    0x22, 3,  0x0a, 1,    'M',                                /* message_type */
};

static char file_of(const struct arpc_reflection *reflection, const char *symbol)
{
    struct arpc_bytes file = arpc_reflection_symbol(reflection, symbol);
    return file.data == NULL ? '-' : (char)arpc_descriptor_field(file, 1).data[0];
}

static void symbols_are_found_in_their_files(void **state)
{
    (void)state;
    static const struct {
        const char *symbol;
        char file;
    } cases[] = {
        {"p.q.M", 'a'},     {"p.q.M.f", 'a'}, {"p.q.M.N", 'a'},   {"p.q.M.N.E", 'a'}, {"p.q.M.N.E.V", 'a'},
        {"p.q.S", 'a'},     {"p.q.S.R", 'a'}, {"M", 'b'},         {"p.q", '-'},       {"p", '-'},
        {"p.q.", '-'},      {"", '-'},        {".p.q.M", '-'},    {"p.q.m", '-'},     {"p.q.M.", '-'},
        {"p.q.M.N.V", '-'}, {"p.q.MM", '-'},  {"p.q.S.R.x", '-'}, {"N", '-'},         {"M.f", '-'},
    };
    struct arpc_reflection *reflection;
    assert_int_equal(arpc_reflection_new(descriptors, sizeof descriptors, &reflection, NULL), 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char found = file_of(reflection, cases[i].symbol);
        if (found != cases[i].file)
            (void)fprintf(stderr, "symbol \"%s\"\n", cases[i].symbol);
        assert_int_equal(found, cases[i].file);
    }
    assert_non_null(arpc_reflection_file(reflection, "a.proto").data);
    assert_int_equal(arpc_reflection_file(reflection, "b.proto").size, 14);
    assert_null(arpc_reflection_file(reflection, "c.proto").data);
    arpc_reflection_free(reflection);
}

static void bytes_that_are_no_descriptor_set_are_refused(void **state)
{
    (void)state;
    struct arpc_reflection *reflection;
    static const uint8_t junk[] = {0x0a, 200, 1, 2, 3};
    assert_int_equal(arpc_reflection_new(junk, sizeof junk, &reflection, NULL), AMP_EINVAL);
    assert_int_equal(arpc_reflection_new(junk, 0, &reflection, NULL), AMP_EINVAL);
}

static void damaged_descriptors_are_searched_without_harm(void **state)
{
    (void)state;
    for (size_t cut = 1; cut <= sizeof descriptors; cut++) {
        uint8_t *copy = malloc(cut);
        struct arpc_reflection *reflection;
        assert_non_null(copy);
        memcpy(copy, descriptors, cut);
        for (size_t at = 0; at < cut; at++) {
            copy[at] ^= 0x55;
            if (arpc_reflection_new(copy, cut, &reflection, NULL) == 0) {
                (void)arpc_reflection_symbol(reflection, "p.q.M.N.E.V"); /* only that it reads nothing outside */
                arpc_reflection_free(reflection);
            }
            copy[at] ^= 0x55;
        }
        free(copy);
    }
}

/* Found by fuzzing: the first was compared with no bytes, the second read behind the symbol. */
static void names_that_are_empty_or_hold_a_zero_byte_match_nothing(void **state)
{
    (void)state;
    static const uint8_t set[] = {0x0a, 9, 0x22, 7, 0x0a, 5, 'M', 0, 'x', 'y', 'z'};
    struct arpc_reflection *reflection;
    assert_int_equal(arpc_reflection_new(set, sizeof set, &reflection, NULL), 0);
    assert_null(arpc_reflection_file(reflection, "").data);
    char *symbol = strdup("M"); /* of its own, so that a sanitizer sees the first byte beyond */
    assert_non_null(symbol);
    assert_null(arpc_reflection_symbol(reflection, symbol).data);
    free(symbol);
    arpc_reflection_free(reflection);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_diagram_of_a_calls_states_equals_the_table),
        cmocka_unit_test(every_row_is_found_by_its_path_and_nothing_else_is),
        cmocka_unit_test(rows_of_one_name_and_handlers_without_closed_are_refused),
        cmocka_unit_test(symbols_are_found_in_their_files),
        cmocka_unit_test(bytes_that_are_no_descriptor_set_are_refused),
        cmocka_unit_test(damaged_descriptors_are_searched_without_harm),
        cmocka_unit_test(names_that_are_empty_or_hold_a_zero_byte_match_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
