/* What keeps the server from storing, for those who ask how it stands. Told by the threads that wait, read by the loop. */
#ifndef AMPD_IO_TROUBLE_H
#define AMPD_IO_TROUBLE_H

#include <stddef.h>

struct io_trouble;

/* Who waits. Each has one trouble at a time. */
enum io_trouble_of { IO_TROUBLE_STORE, IO_TROUBLE_JOURNAL, IO_TROUBLE_CHECKPOINT, IO_TROUBLE_COUNT };

/* NULL: out of memory. Freed by io_trouble_free, when no thread uses it any more; NULL is allowed. */
struct io_trouble *io_trouble_new(void);
void io_trouble_free(struct io_trouble *trouble);

/* Sets (or with "" ends) a trouble: what is wrong, in one sentence. Any thread. */
void io_trouble_set(struct io_trouble *trouble, enum io_trouble_of whose, const char *text);

/* The first trouble there is, cut to `size` bytes with the final zero; "": none. Any thread. */
void io_trouble_text(struct io_trouble *trouble, char *text, size_t size);

#endif
