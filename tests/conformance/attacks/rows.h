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

extern const struct row rows[];
extern const size_t row_count;

#endif
