/*
 * ampctl top: the models of a server, in place, as they train. What is shown is in top_view.c; here are the terminal,
 * the clock and the calls. Where stdout is no terminal, or rows are asked for, it polls twice and prints one table.
 */
#define _XOPEN_SOURCE 700
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/view/top_view.h"

#include <langinfo.h>
#include <ncurses.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KEY_INTERVAL = 256 };

#define INTERVAL_MS    1000
#define INTERVAL_MIN_S 0.1
#define INTERVAL_MAX_S 3600.0
/* Keys wait while a poll is under way. */
#define LOOK_TIMEOUT_MS 2000
/* The text of a screen: larger ones are cut. */
#define SCREEN_MAX ((size_t)1 << 20)
/* After Esc: the rest of a key that begins with it comes at once. */
#define ESCAPE_MS 25

struct polling {
    struct ampctl *ctl;
    struct ampctl_top top;
    uint64_t interval_ms;
};

/* Asks the server once. An exit code; with a quiet ctl top->failure says why. */
static int poll_server(struct polling *x)
{
    const struct ampd_msg_get_status_request request = {0};
    struct ampd_msg_get_status_response status;
    int code = ampctl_ask_get_status(x->ctl, &request, &status);
    if (code != 0) {
        (void)snprintf(x->top.failure, sizeof x->top.failure, "%s", x->ctl->failure.text);
        return code;
    }
    if (ampctl_top_take(&x->top, &status) != 0) {
        code = AMPCTL_EXIT_FAILED;
        (void)snprintf(x->top.failure, sizeof x->top.failure, "there is no memory for what it has answered");
    }
    ampd_msg_get_status_response_free(&status);
    return code;
}

/* ---- the terminal ---- */

static void paint(const struct ampctl_top *top)
{
    struct amp_buf text;
    int row = 0;
    amp_buf_init(&text, SCREEN_MAX);
    (void)erase();
    if (ampctl_top_render(top, COLS, LINES, &text) == 0) {
        const char *at = (const char *)text.data, *stop = at + text.size;
        for (; row < LINES && at < stop; row++) {
            const char *newline = memchr(at, '\n', (size_t)(stop - at));
            bool heading = row == ampctl_top_heading(top);
            if (heading)
                (void)attron(A_REVERSE);
            (void)mvaddnstr(row, 0, at, (int)(newline - at));
            if (heading)
                (void)attroff(A_REVERSE);
            at = newline + 1;
        }
    }
    amp_buf_close(&text);
    (void)refresh();
}

static int key_of(int key)
{
    return key == KEY_ENTER || key == '\r'       ? AMPCTL_TOP_KEY_ENTER
           : key == KEY_BACKSPACE || key == '\b' ? AMPCTL_TOP_KEY_ERASE
           : key == KEY_UP                       ? AMPCTL_TOP_KEY_UP
           : key == KEY_DOWN                     ? AMPCTL_TOP_KEY_DOWN
           : key == KEY_PPAGE                    ? AMPCTL_TOP_KEY_PAGE_UP
           : key == KEY_NPAGE                    ? AMPCTL_TOP_KEY_PAGE_DOWN
                                                 : key;
}

/* Until somebody ends it. */
static void show(struct polling *x)
{
    uint64_t next = ampclient_now_ms() + x->interval_ms;
    bool goes_on = true;
    while (goes_on) {
        uint64_t now = ampclient_now_ms();
        x->top.lines = LINES;
        paint(&x->top);
        timeout(next > now ? (int)(next - now) : 0);
        int key = getch(); /* at KEY_RESIZE the next painting has the new size */
        if (key != ERR && key != KEY_RESIZE)
            goes_on = ampctl_top_key(&x->top, key_of(key));
        if (ampclient_now_ms() < next)
            continue;
        (void)poll_server(x);
        next = ampclient_now_ms() + x->interval_ms;
    }
}

/* False: the terminal cannot do it. */
static bool show_full(struct polling *x)
{
    char *type = getenv("TERM");
    SCREEN *screen = newterm(type, stdout, stdin);
    if (screen == NULL)
        return false;
    (void)set_escdelay(ESCAPE_MS);
    (void)cbreak();
    (void)noecho();
    (void)keypad(stdscr, true);
    (void)curs_set(0);
    x->ctl->quiet = true; /* what is wrong stands on the screen */
    show(x);
    x->ctl->quiet = false;
    (void)endwin();
    delscreen(screen);
    return true;
}

/* ---- one table ---- */

static const struct ampctl_column columns[] = {
    {"name", "MODEL", false},     {"state", "STATE", false},
    {"step", "STEP", true},       {"steps_per_second", "STEPS/S", true},
    {"scale", "SCALE", true},     {"attempted", "ATTEMPTED", true},
    {"skipped", "SKIPPED", true}, {"workers", "WORKERS", true},
    {"world_size", "OF", true},   {"waiting_for", "WAITS FOR", false},
    {NULL, NULL, false},
};

static int print_once(struct polling *x)
{
    const struct timespec pause = {.tv_sec = (time_t)(x->interval_ms / 1000),
                                   .tv_nsec = (long)(x->interval_ms % 1000) * 1000000};
    (void)nanosleep(&pause, NULL);
    int code = poll_server(x);
    if (code != 0)
        return code;
    return ampctl_print_rows(x->ctl, columns, ampctl_top_rows(&x->top));
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct polling *x = state->input;
    char *end;
    double seconds;
    switch (key) {
    case KEY_INTERVAL:
        seconds = strtod(arg, &end);
        if (end == arg || *end != 0 || !(seconds >= INTERVAL_MIN_S && seconds <= INTERVAL_MAX_S))
            argp_error(state, "--interval is \"%.40s\"; give seconds, 0.1 to 3600", arg);
        x->interval_ms = (uint64_t)(seconds * 1000);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "top takes no argument, but got \"%.40s\"; type / in it to choose models", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int run_top(struct ampctl *ctl, int argc, char **argv)
{
    struct polling x = {.ctl = ctl, .interval_ms = INTERVAL_MS};
    ampctl_parse(ctl, &ampctl_top_verb, &x, argc, argv);
    x.top.blocks = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    x.top.endpoint = ctl->endpoints;
    int code = poll_server(&x); /* a wrong address is reported as by any other verb */
    bool terminal = isatty(STDOUT_FILENO) && isatty(STDIN_FILENO) && !ctl->json && !ctl->csv;
    if (code == 0 && !(terminal && show_full(&x)))
        code = print_once(&x);
    ampctl_top_close(&x.top);
    return code;
}

static const struct argp_option top_options[] = {
    {"interval", KEY_INTERVAL, "SECONDS", 0, "Seconds between two updates (1)", 0},
    {0},
};

const struct ampctl_verb ampctl_top_verb = {
    .name = "top",
    .summary = "the models as they train, in place",
    .doc = "Shows the models as they train, with steps a second and who is waited for; ? has the keys. If its output "
           "is not a terminal, it asks twice and prints one table.",
    .examples = "ampctl top\n"
                "ampctl top --interval 5 | cat\n"
                "ampctl -o json top",
    .options = top_options,
    .parser = parse,
    .timeout_ms = LOOK_TIMEOUT_MS,
    .run = run_top,
};
