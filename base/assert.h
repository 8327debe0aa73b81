/* Asserts that stay on in release: a broken invariant ends the process before it can spread. */
#ifndef AMP_BASE_ASSERT_H
#define AMP_BASE_ASSERT_H

/* Prints the place and the expression of a failed assert to stderr, and aborts. */
_Noreturn void amp_assert_failed(const char *file, int line, const char *expression);

#define AMP_ASSERT(expression) ((expression) ? (void)0 : amp_assert_failed(__FILE__, __LINE__, #expression))

/*
 * Ends the process because an allocation failed that must not fail: the program has already acknowledged something that
 * it cannot carry out without the memory. Prints a sentence to stderr. A process that is started again continues from
 * what is stored.
 */
_Noreturn void amp_memory_out(const char *file, int line);

#define AMP_NEED(expression) ((expression) ? (void)0 : amp_memory_out(__FILE__, __LINE__))

/* Sets how amp_memory_out ends the process; NULL: abort(). Called by a program's main before it starts any thread. */
void amp_memory_out_set(void (*end)(void));

#endif
