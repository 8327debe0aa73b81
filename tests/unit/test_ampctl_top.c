/* What ampctl top makes of two polls, the text of its screen, and how far a model is. */
#include "client/ampctl/view/progress.h"
#include "client/ampctl/view/top_view.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODELS_MAX 4

/* What a server says of models that have a name and have attempted so many steps. */
struct said {
    struct ampd_msg_model_status models[MODELS_MAX];
    struct ampd_msg_get_status_response status;
};

static struct said *say(size_t count, const char *const *names, const uint64_t *attempted)
{
    struct said *said = calloc(1, sizeof *said);
    assert_non_null(said);
    for (size_t i = 0; i < count; i++) {
        struct ampd_msg_model_status *model = &said->models[i];
        (void)snprintf(model->name, sizeof model->name, "%s", names[i]);
        model->epoch = 1;
        model->world_size = 2;
        model->has_scale = true;
        model->scale.scale = ldexpf(1, (int)attempted[i]);
        model->scale.attempted = attempted[i];
        model->scale.skipped = i;
    }
    said->status.models.items = said->models;
    said->status.models.count = count;
    return said;
}

static void take(struct ampctl_top *top, struct said *said, uint64_t uptime_ms)
{
    said->status.uptime_ms = uptime_ms;
    assert_int_equal(ampctl_top_take(top, &said->status), 0);
    free(said);
}

/* The screen, to be freed. */
static char *screen(const struct ampctl_top *top, int columns, int lines)
{
    struct amp_buf out;
    amp_buf_init(&out, 1 << 20);
    assert_int_equal(ampctl_top_render(top, columns, lines, &out), 0);
    assert_int_equal(amp_buf_append(&out, "", 1), 0);
    return (char *)out.data;
}

static void a_rate_is_of_two_looks_and_not_of_a_rollback(void **state)
{
    (void)state;
    static const char *const names[] = {"a"};
    struct ampctl_top top = {0};
    take(&top, say(1, names, (const uint64_t[]){4}), 1000);
    assert_true(isnan(top.models[0].rate));
    take(&top, say(1, names, (const uint64_t[]){9}), 3000);
    assert_true(top.models[0].rate == 2.5);
    struct said *rolled = say(1, names, (const uint64_t[]){20});
    rolled->models[0].epoch = 2;
    take(&top, rolled, 4000);
    assert_true(isnan(top.models[0].rate));
    take(&top, say(1, names, (const uint64_t[]){3}), 5000); /* of an epoch before: another server */
    assert_true(isnan(top.models[0].rate));
    take(&top, say(0, names, NULL), 6000);
    assert_int_equal(top.count, 0);
    ampctl_top_close(&top);
}

/* Another shard than 0 does not know them, and of very many there are none in the answer. */
static void workers_that_an_answer_does_not_have_are_not_told_to_be_away(void **state)
{
    (void)state;
    static const char *const names[] = {"a"};
    for (uint32_t i = 0; i < 4; i++) {
        struct ampd_msg_worker_status worker = {.live = true};
        struct ampctl_top top = {0};
        struct said *said = say(1, names, (const uint64_t[]){4});
        bool told = i < 2, trains = i % 2 == 0;
        said->status.shard = i == 3 ? 1 : 0;
        said->models[0].state = trains ? AMPD_MSG_MODEL_STATE_RUNNING : AMPD_MSG_MODEL_STATE_WAITING;
        if (i == 0)
            said->models[0].workers = (struct ampd_msg_worker_status_list){.items = &worker, .count = 1};
        take(&top, said, 1000);
        char *text = screen(&top, 140, 10);
        json_t *rows = ampctl_top_rows(&top);
        const json_t *workers = json_object_get(json_array_get(rows, 0), "workers");
        assert_non_null(strstr(text, told ? trains ? " 1/2" : " 0/2" : " -/2"));
        assert_int_equal(json_is_null(workers), !told);
        json_decref(rows);
        free(text);
        ampctl_top_close(&top);
    }
}

/* A laptop that has slept for an hour has not counted it; a server that took the place counts from another start. */
static void a_rate_is_by_the_clock_of_the_server_that_answers(void **state)
{
    (void)state;
    static const char *const names[] = {"a"};
    struct ampctl_top top = {0};
    take(&top, say(1, names, (const uint64_t[]){1}), 1000);
    take(&top, say(1, names, (const uint64_t[]){100}), 3601000);
    assert_true(top.models[0].rate == 99.0 / 3600);
    struct said *other = say(1, names, (const uint64_t[]){101});
    (void)snprintf(other->status.boot_id, sizeof other->status.boot_id, "another");
    take(&top, other, 3602000);
    assert_true(isnan(top.models[0].rate));
    ampctl_top_close(&top);
}

/* The models on the screen, by their names of one letter, and at the end whether the line above names them. */
static void assert_shown(const struct ampctl_top *top, const char *letters, const char *told)
{
    char *text = screen(top, 80, 5), shown[8] = "";
    size_t count = 0;
    const char *at = text;
    for (int line = 0; *at != 0; line++, at += strcspn(at, "\n") + 1)
        if (line >= 3 && *at != ' ')
            shown[count++] = *at;
    assert_string_equal(shown, letters);
    assert_non_null(strstr(text, told));
    free(text);
}

static void keys_show_the_models_for_which_there_is_no_room(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b", "c", "d"};
    struct ampctl_top top = {.lines = 5};
    take(&top, say(4, names, (const uint64_t[]){1, 1, 1, 1}), 1000);
    assert_shown(&top, "ab", "models 1 to 2 of 4: arrows");
    (void)ampctl_top_key(&top, AMPCTL_TOP_KEY_DOWN);
    assert_shown(&top, "bc", "models 2 to 3 of 4");
    for (int i = 0; i < 3; i++) /* there is an end */
        (void)ampctl_top_key(&top, AMPCTL_TOP_KEY_PAGE_DOWN);
    assert_shown(&top, "cd", "models 3 to 4 of 4");
    (void)ampctl_top_key(&top, AMPCTL_TOP_KEY_UP);
    assert_shown(&top, "bc", "models 2 to 3 of 4");
    take(&top, say(2, names, (const uint64_t[]){1, 1}), 2000); /* others were deleted */
    assert_shown(&top, "ab", "2 of 2 models");
    take(&top, say(4, names, (const uint64_t[]){1, 1, 1, 1}), 3000);
    (void)ampctl_top_key(&top, AMPCTL_TOP_KEY_PAGE_UP);
    assert_shown(&top, "ab", "models 1 to 2 of 4");
    ampctl_top_close(&top);
}

static void models_are_in_order_and_filtered(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b", "c"};
    struct ampctl_top top = {0};
    take(&top, say(3, names, (const uint64_t[]){1, 1, 1}), 1000);
    take(&top, say(3, names, (const uint64_t[]){2, 11, 6}), 2000);
    (void)ampctl_top_key(&top, 's');
    json_t *rows = ampctl_top_rows(&top);
    assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 0), "name")), "b");
    assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 2), "name")), "a");
    json_decref(rows);
    for (const char *key = "/c\n"; *key != 0; key++)
        assert_true(ampctl_top_key(&top, *key));
    rows = ampctl_top_rows(&top);
    assert_int_equal(json_array_size(rows), 1);
    json_decref(rows);
    for (size_t i = 0; i < 1000; i++) /* a filter has an end */
        (void)ampctl_top_key(&top, i == 0 ? '/' : 'q');
    assert_int_equal(strlen(top.filter), AMPCTL_TOP_FILTER_SIZE - 1);
    assert_true(ampctl_top_key(&top, AMPCTL_TOP_KEY_ESCAPE));
    assert_false(ampctl_top_key(&top, 'q'));
    ampctl_top_close(&top);
}

/* Bars from the lowest to the highest of the polls; a name of others does nothing to the terminal. */
static void bars_rise_with_the_looks_and_names_are_harmless(void **state)
{
    (void)state;
    static const char *const names[] = {"a\x1b[2J"};
    struct ampctl_top top = {0};
    for (uint64_t i = 1; i <= 8; i++)
        take(&top, say(1, names, (const uint64_t[]){i}), 1000 * i);
    char *text = screen(&top, 200, 5);
    assert_non_null(strstr(text, "a\\u001b[2J"));
    assert_null(strchr(text, '\x1b'));
    assert_non_null(strstr(text, "_.:-=+*#"));
    free(text);
    top.blocks = true;
    text = screen(&top, 200, 5);
    assert_non_null(strstr(text, "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"));
    free(text);
    ampctl_top_close(&top);
}

/* The line of the screen with a text, without its newline; to be freed. */
static char *line_with(const struct ampctl_top *top, int columns, const char *wanted)
{
    char *text = screen(top, columns, 6), *at = strstr(text, wanted);
    assert_non_null(at);
    while (at > text && at[-1] != '\n')
        at--;
    char *line = strndup(at, strcspn(at, "\n"));
    free(text);
    return line;
}

/* A terminal of 80 columns has every number whole, who is waited for, and how to get help; bars go first. */
static void numbers_are_whole_and_the_wait_is_seen_where_there_is_little_room(void **state)
{
    (void)state;
    static const struct {
        float scale;
        const char *shown;
    } scales[] = {{16777216, " 2^24 "},         {65536, " 65536 "},      {0.125f, " 0.125 "},
                  {3 * 1048576, " 3.146e+06 "}, {0x1p-149f, " 2^-149 "}, {1234567, " 1.235e+06 "}};
    static const char *const names[] = {"pair"};
    struct ampctl_top top = {.endpoint = "cluster-of-a-long-name.example.org:7420"};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        struct said *said = say(1, names, (const uint64_t[]){8});
        said->models[0].scale.scale = scales[i].scale;
        said->models[0].waiting_ms = 61999;
        (void)snprintf(said->models[0].waiting_for, sizeof said->models[0].waiting_for,
                       "rank 1 (b) of 2, whose lease has ended, for 61 s");
        take(&top, said, 1000 * (i + 1));
        for (int columns = 80; columns < 200; columns += 10) {
            char *line = line_with(&top, columns, "pair  ");
            assert_non_null(strstr(line, scales[i].shown));
            assert_non_null(strstr(line, "61 s, rank 1 (b) of"));
            free(line);
        }
    }
    char *title = line_with(&top, 80, "ampd "), *cut = line_with(&top, 80, "pair waits for");
    assert_string_equal(title + 80 - 8, "  ? help");
    assert_non_null(strstr(cut, "pair waits for rank 1 (b) of 2, whose lease has ended, for 61 s "));
    free(title);
    free(cut);
    ampctl_top_close(&top);
}

static void a_worker_that_has_gone_is_not_said_to_straggle(void **state)
{
    (void)state;
    static const char *const names[] = {"a"};
    struct ampctl_top top = {0};
    for (uint64_t poll = 1; poll <= 2; poll++) {
        struct ampd_msg_worker_status worker = {.name = "w1", .rank = 1, .live = poll == 1, .straggles = true};
        struct said *said = say(1, names, &poll);
        said->models[0].workers = (struct ampd_msg_worker_status_list){.items = &worker, .count = 1};
        take(&top, said, 1000 * poll);
        assert_string_equal(top.models[0].waiting, poll == 1 ? "rank 1 (w1) straggles" : "");
    }
    ampctl_top_close(&top);
}

static void any_key_leaves_the_help(void **state)
{
    (void)state;
    struct ampctl_top top = {0};
    for (const char *key = "?q\x1bsx"; *key != 0; key++) {
        assert_true(ampctl_top_key(&top, '?'));
        assert_true(top.help);
        assert_true(ampctl_top_key(&top, *key));
        assert_false(top.help);
        assert_int_equal(top.sort, AMPCTL_TOP_BY_NAME);
    }
    assert_false(ampctl_top_key(&top, 'q'));
}

static void a_screen_of_any_size_has_its_lines_and_no_more(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "\xe6\xa8\xa1\xe5\x9e\x8b", "\xff\xfe", "d"};
    struct ampctl_top top = {0};
    take(&top, say(4, names, (const uint64_t[]){1, 2, 3, 4}), 1000);
    for (int help = 0; help < 2; help++, top.help = true)
        for (int columns = 0; columns < 180; columns += 7)
            for (int lines = 0; lines < 14; lines++) {
                char *text = screen(&top, columns, lines);
                int found = 0;
                for (const char *at = text; *at != 0; found++) {
                    size_t size = strcspn(at, "\n");
                    assert_true(size <= 3 * (size_t)columns); /* bytes of a column */
                    at += size + 1;
                }
                assert_int_equal(found, lines);
                free(text);
            }
    ampctl_top_close(&top);
}

static void the_rest_is_told_at_the_pace_of_what_was_seen(void **state)
{
    (void)state;
    char done[16], left[24];
    struct ampctl_progress progress = {.last_step = 1000};
    ampctl_progress_text(&progress, done, left);
    assert_string_equal(done, "-");
    ampctl_progress_add(&progress, 100, 5000000);
    ampctl_progress_text(&progress, done, left);
    assert_string_equal(done, "10%");
    assert_string_equal(left, "-");
    ampctl_progress_add(&progress, 200, 405000000);
    assert_true(ampctl_progress_left_s(&progress) == 3200);
    ampctl_progress_text(&progress, done, left);
    assert_string_equal(left, "0:53:20");
    ampctl_progress_add(&progress, 150, 406000000); /* rolled back: the pace is that of what comes */
    assert_true(ampctl_progress_left_s(&progress) < 0);
    ampctl_progress_add(&progress, 1000, 407000000);
    ampctl_progress_text(&progress, done, left);
    assert_string_equal(done, "100%");
    assert_string_equal(left, "0:00:00");
    progress = (struct ampctl_progress){0}; /* a model without an end */
    ampctl_progress_add(&progress, 1, 1);
    ampctl_progress_add(&progress, 2, 2);
    ampctl_progress_text(&progress, done, left);
    assert_string_equal(left, "-");
}

int main(void)
{
    (void)setlocale(LC_CTYPE, "C.UTF-8");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rate_is_of_two_looks_and_not_of_a_rollback),
        cmocka_unit_test(workers_that_an_answer_does_not_have_are_not_told_to_be_away),
        cmocka_unit_test(a_rate_is_by_the_clock_of_the_server_that_answers),
        cmocka_unit_test(keys_show_the_models_for_which_there_is_no_room),
        cmocka_unit_test(models_are_in_order_and_filtered),
        cmocka_unit_test(bars_rise_with_the_looks_and_names_are_harmless),
        cmocka_unit_test(numbers_are_whole_and_the_wait_is_seen_where_there_is_little_room),
        cmocka_unit_test(a_worker_that_has_gone_is_not_said_to_straggle),
        cmocka_unit_test(any_key_leaves_the_help),
        cmocka_unit_test(a_screen_of_any_size_has_its_lines_and_no_more),
        cmocka_unit_test(the_rest_is_told_at_the_pace_of_what_was_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
