/* Asserts that stay on in release: a broken invariant ends the process before it can spread. */
#ifndef AMP_BASE_ASSERT_H
#define AMP_BASE_ASSERT_H

/* Prints where and what, and aborts. Never returns. */
_Noreturn void amp_assert_failed(const char *file, int line, const char *expression);

#define AMP_ASSERT(expression) ((expression) ? (void)0 : amp_assert_failed(__FILE__, __LINE__, #expression))

#endif
