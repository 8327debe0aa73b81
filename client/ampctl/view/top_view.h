/*
 * What ampctl top shows: models as they stood at the last poll, with their rates, which take two polls. Pure: it is
 * given the answer of the server, and gives rows, or the text of a screen.
 */
#ifndef AMPCTL_TOP_VIEW_H
#define AMPCTL_TOP_VIEW_H

#include "base/buf.h"
#include "proto/msg.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Polls that a sparkline shows: more columns than a terminal has room for beside the numbers. */
#define AMPCTL_TOP_POLLS 24
/* Bytes of a filter: the part of a name that somebody types. */
#define AMPCTL_TOP_FILTER_SIZE 64
/* Bytes of who is waited for: as long as the sentence of a server. */
#define AMPCTL_TOP_WAITING_SIZE 512

enum ampctl_top_sort { AMPCTL_TOP_BY_NAME, AMPCTL_TOP_BY_RATE, AMPCTL_TOP_BY_SCALE, AMPCTL_TOP_BY_SKIPPED };
#define AMPCTL_TOP_SORTS 4

struct ampctl_top_model {
    char name[128];
    enum ampd_msg_model_state state;
    uint64_t epoch, step, attempted, skipped;
    double scale; /* NAN: it has none yet */
    double rate;  /* attempted steps a second between the last two polls; NAN: not known */
    uint32_t world, live; /* workers: how many it is for, and how many are there */
    bool live_known;
    char waiting[AMPCTL_TOP_WAITING_SIZE];
    uint64_t waiting_ms; /* for how long; 0: not long, or not known */
    bool seen;           /* at the last poll */
    /* The last polls, the newest last; NAN: not known. */
    float scales[AMPCTL_TOP_POLLS], rates[AMPCTL_TOP_POLLS];
};

struct ampctl_top {
    struct ampctl_top_model *models; /* by name */
    size_t count;
    char version[64]; /* of the server */
    char boot_id[sizeof((struct ampd_msg_get_status_response *)0)->boot_id];
    uint64_t uptime_ms; /* by which rates are measured: the clock of this machine stands while it sleeps */
    uint32_t shard_count;
    char trouble[512]; /* of the server; "": none */
    /* what keys change */
    enum ampctl_top_sort sort;
    bool reverse, help, typing; /* typing: the filter is being written */
    char filter[AMPCTL_TOP_FILTER_SIZE];
    size_t first; /* the first model that is shown, if there is no room for all */
    /* of the terminal */
    bool blocks;       /* it shows UTF-8 */
    int lines;         /* of the screen: by so much Page Up and Page Down move */
    char failure[512]; /* why the last poll failed; "": it did not */
    const char *endpoint;
};

/* A zeroed one is empty. */
void ampctl_top_close(struct ampctl_top *top);

/* Takes what the server says. 0, or AMP_ENOMEM and it is as it was. */
int ampctl_top_take(struct ampctl_top *top, const struct ampd_msg_get_status_response *status);

/* A key that was typed. False: the program is to end. Keys that mean nothing are passed over. */
bool ampctl_top_key(struct ampctl_top *top, int key);
#define AMPCTL_TOP_KEY_ESCAPE 27
#define AMPCTL_TOP_KEY_ENTER  '\n'
#define AMPCTL_TOP_KEY_ERASE  127
/* Above U+10FFFF: no character has these numbers. */
enum { AMPCTL_TOP_KEY_UP = 0x110000, AMPCTL_TOP_KEY_DOWN, AMPCTL_TOP_KEY_PAGE_UP, AMPCTL_TOP_KEY_PAGE_DOWN };

/* The models that pass the filter, sorted, as rows; NULL: no memory. */
json_t *ampctl_top_rows(const struct ampctl_top *top);

/*
 * The screen as `lines` lines of at most `columns` columns, each with a newline; what has no room is left out. 0 or an
 * error of amp_buf_append.
 */
int ampctl_top_render(const struct ampctl_top *top, int columns, int lines, struct amp_buf *out);
/* Which of these lines is the heading of the columns; -1: none. */
int ampctl_top_heading(const struct ampctl_top *top);

#endif
