/* The attacks: what each connection sends. Test only. */
#ifndef TESTS_ATTACKS_ROWS_H
#define TESTS_ATTACKS_ROWS_H

#include "tests/conformance/attacks/bytes.h"

/* How it is sent. */
#define ROW_UNREAD 1 /* nothing that the server sends is read */
#define ROW_ONCE   2 /* `again` is sent once, then the connection waits */
#define ROW_SLOW   4 /* `again` goes byte by byte, one each 20 ms */

struct row {
    const char *name;
    unsigned flags;
    void (*build)(struct bytes *first, struct bytes *again); /* sent at first, and then again and again */
    uint32_t streams;                                        /* that `again` uses each time */
};

/* What is attacked: methods of one kind each, and what begins a call of them. */
struct target {
    const char *unary;
    const char *sleep; /* an answer that does not come soon */
    struct {
        const char *bytes;
        size_t size;
    } sleep_message, repeat_message;
    const char *repeat;       /* a large answer */
    const char *collect;      /* a stream of messages */
    const char *confusing[4]; /* paths that look like `unary` */
};

/* "echo" (the echo service) or "ampd" (ampd with a model called "attacked"). */
extern const struct target *target;
bool target_set(const char *name);

extern const struct row rows[];
extern const size_t row_count;

#endif
