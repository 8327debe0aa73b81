/* Texts made from the table of verbs: --help, the manual page, and bash's completion. */
#ifndef AMPCTL_PAGES_H
#define AMPCTL_PAGES_H

/* The text above the options in ampctl --help, which the caller frees. NULL: there is no memory. */
char *ampctl_pages_doc(void);

/* Prints all verbs and options as `form` says: text for scdoc, or bash's completion. Returns an exit code. */
int ampctl_pages_print(const char *form);

#endif
