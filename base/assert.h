/* Asserts that stay on in release: a broken invariant ends the process before it can spread. */
#ifndef AMP_BASE_ASSERT_H
#define AMP_BASE_ASSERT_H

/* Prints where and what, and aborts. Never returns. */
_Noreturn void amp_assert_failed(const char *file, int line, const char *expression);

#define AMP_ASSERT(expression) ((expression) ? (void)0 : amp_assert_failed(__FILE__, __LINE__, #expression))

/*
 * Memory for what was promised and cannot be taken back is out: prints a sentence and ends the process, which goes on
 * from what is stored when it is started again. Never returns.
 */
_Noreturn void amp_memory_out(const char *file, int line);

#define AMP_NEED(expression) ((expression) ? (void)0 : amp_memory_out(__FILE__, __LINE__))

/* How amp_memory_out ends the process: a main's, set before any thread starts; NULL: abort. */
void amp_memory_out_set(void (*end)(void));

#endif
