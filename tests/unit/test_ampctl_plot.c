/* The picture of the loss scale. */
#include "client/ampctl/view/plot.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct ampctl_plot_style plain = {0};

/* The picture as a string, to be freed. */
static char *draw(const struct ampctl_plot *plot, const struct ampctl_plot_style *style)
{
    struct amp_buf out;
    amp_buf_init(&out, 1 << 20);
    assert_int_equal(ampctl_plot_render(plot, style, &out), 0);
    assert_int_equal(amp_buf_append(&out, "", 1), 0);
    return (char *)out.data;
}

static size_t count_of(const char *text, char mark)
{
    size_t count = 0;
    for (; *text != 0; text++)
        count += *text == mark;
    return count;
}

/* No line is longer than the label, the frame and the columns. */
static void assert_fits(const char *text)
{
    size_t lines = 0;
    while (*text != 0) {
        size_t length = strcspn(text, "\n");
        assert_true(length <= 9 + AMPCTL_PLOT_COLUMNS + 6);
        text += length + (text[length] == '\n');
        lines++;
    }
    assert_true(lines <= AMPCTL_PLOT_ROWS + 3);
}

static struct ampctl_plot *new_plot(void)
{
    struct ampctl_plot *plot = malloc(sizeof *plot);
    assert_non_null(plot);
    ampctl_plot_init(plot);
    return plot;
}

static void the_first_steps_that_back_off_are_drawn_as_stairs(void **state)
{
    (void)state;
    struct ampctl_plot *plot = new_plot();
    for (uint64_t step = 1; step <= 4; step++)
        ampctl_plot_add(plot, step, ldexp(1, 25 - (int)step), true);
    for (uint64_t step = 5; step <= 12; step++)
        ampctl_plot_add(plot, step, ldexp(1, 20), false);
    char *text = draw(plot, &plain);
    assert_string_equal(text, "loss scale over 12 steps, 4 skipped (x)\n"
                              "   2^24 |x\n"
                              "   2^23 | x\n"
                              "   2^22 |  x\n"
                              "   2^21 |   x\n"
                              "   2^20 |    --------\n"
                              "        +------------\n"
                              "         1         12  step\n");
    free(text);
    free(plot);
}

static void one_step_is_a_picture(void **state)
{
    (void)state;
    struct ampctl_plot *plot = new_plot();
    ampctl_plot_add(plot, 1, 65536, false);
    char *text = draw(plot, &plain);
    assert_string_equal(text, "loss scale over 1 step, 0 skipped\n"
                              "   2^16 |-\n"
                              "        +-\n"
                              "         1  step\n");
    free(text);
    free(plot);
}

static void no_line_is_longer_than_a_narrow_terminal(void **state)
{
    (void)state;
    for (int columns = 25; columns <= 80; columns++) {
        struct ampctl_plot *plot = new_plot();
        for (uint64_t step = 1; step <= 2000; step++)
            ampctl_plot_add(plot, step, 65536, step == 700);
        const struct ampctl_plot_style style = {.columns = columns};
        char *text = draw(plot, &style);
        for (const char *at = strchr(text, '\n') + 1; *at != 0; at += strcspn(at, "\n") + 1)
            assert_in_range(strcspn(at, "\n"), 0, columns);
        assert_int_equal(count_of(strchr(text, '\n'), 'x'), 1);
        free(text);
        free(plot);
    }
}

static void no_step_says_so(void **state)
{
    (void)state;
    struct ampctl_plot *plot = new_plot();
    char *text = draw(plot, &plain);
    assert_string_equal(text, "No step has been decided yet.\n");
    free(text);
    free(plot);
}

static void a_million_steps_fit_and_none_that_was_skipped_is_lost(void **state)
{
    (void)state;
    struct ampctl_plot *plot = new_plot();
    for (uint64_t step = 1; step <= 1000000; step++)
        ampctl_plot_add(plot, step, step < 500000 ? 65536 : 1024, step == 700001);
    assert_int_equal(plot->steps, 1000000);
    char *text = draw(plot, &plain);
    assert_fits(text);
    const char *picture = strchr(text, '\n');
    assert_int_equal(count_of(picture, 'x'), 1);
    assert_non_null(strstr(text, "1000000  step"));
    assert_non_null(strstr(text, "2^16 |-----"));
    free(text);
    free(plot);
}

static void any_number_of_steps_fits(void **state)
{
    (void)state;
    for (uint64_t count = 1; count < 20000; count += 1 + count / 7) {
        struct ampctl_plot *plot = new_plot();
        for (uint64_t step = 1; step <= count; step++)
            ampctl_plot_add(plot, step, ldexp(1, (int)(step % 90) - 30), step % 5 == 0);
        char *text = draw(plot, &plain);
        assert_fits(text);
        assert_true(plot->cells_count <= AMPCTL_PLOT_CELLS);
        free(text);
        free(plot);
    }
}

static void far_apart_steps_and_odd_scales_do_no_harm(void **state)
{
    (void)state;
    struct ampctl_plot *plot = new_plot();
    ampctl_plot_add(plot, 5, 3, false);
    ampctl_plot_add(plot, 4, 8, false); /* not rising */
    ampctl_plot_add(plot, 6, 0, false); /* no power of two reaches it */
    ampctl_plot_add(plot, 6, NAN, false);
    ampctl_plot_add(plot, 6, INFINITY, false);
    ampctl_plot_add(plot, UINT64_MAX, 1e-30, true);
    assert_int_equal(plot->steps, 2);
    char *text = draw(plot, &plain);
    assert_fits(text);
    free(text);
    free(plot);
}

static void blocks_and_colour_are_used_only_where_they_show(void **state)
{
    (void)state;
    struct ampctl_plot *plot = new_plot();
    ampctl_plot_add(plot, 1, 4, true);
    ampctl_plot_add(plot, 2, 2, false);
    const struct ampctl_plot_style rich = {.blocks = true, .colour = true};
    char *text = draw(plot, &rich);
    assert_non_null(strstr(text, "\x1b[31mx\x1b[0m"));
    assert_non_null(strstr(text, "\xe2\x96\x84"));
    free(text);
    text = draw(plot, &plain);
    for (const char *at = text; *at != 0; at++)
        assert_true(*at == '\n' || (*at >= ' ' && *at <= '~'));
    free(text);
    free(plot);
}

static void an_svg_file_marks_each_skipped_cell_and_holds_no_name_that_is_markup(void **state)
{
    (void)state;
    struct ampctl_plot *plot = new_plot();
    struct amp_buf out;
    amp_buf_init(&out, 1 << 20);
    assert_int_equal(ampctl_plot_svg(plot, "none", &out), 0); /* no step: a title alone */
    amp_buf_consume(&out, out.size);
    for (uint64_t step = 1; step <= 5; step++)
        ampctl_plot_add(plot, step, ldexp(1, 16), step > 3);
    assert_int_equal(ampctl_plot_svg(plot, "a<b>&\x1b", &out), 0);
    assert_int_equal(amp_buf_append(&out, "", 1), 0);
    const char *text = (const char *)out.data;
    assert_non_null(strstr(text, ">a&#60;b>&#38;?: loss scale over 5 steps, 2 skipped<"));
    assert_int_equal(count_of(strstr(text, "class=\"skipped\""), 'M'), 2);
    assert_int_equal(count_of(strstr(text, "class=\"scale\""), 'H'), 5);
    amp_buf_close(&out);
    free(plot);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_svg_file_marks_each_skipped_cell_and_holds_no_name_that_is_markup),
        cmocka_unit_test(the_first_steps_that_back_off_are_drawn_as_stairs),
        cmocka_unit_test(one_step_is_a_picture),
        cmocka_unit_test(no_step_says_so),
        cmocka_unit_test(no_line_is_longer_than_a_narrow_terminal),
        cmocka_unit_test(a_million_steps_fit_and_none_that_was_skipped_is_lost),
        cmocka_unit_test(any_number_of_steps_fits),
        cmocka_unit_test(far_apart_steps_and_odd_scales_do_no_harm),
        cmocka_unit_test(blocks_and_colour_are_used_only_where_they_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
