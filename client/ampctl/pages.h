/* What is made of the table of verbs: the text of --help, the manual page, bash's completion. */
#ifndef AMPCTL_PAGES_H
#define AMPCTL_PAGES_H

/* What stands above the options in ampctl --help; the caller frees it, NULL: no memory. */
char *ampctl_pages_doc(void);

/* Prints all verbs and options as text for scdoc, or as bash's completion. An exit code. */
int ampctl_pages_print(const char *form);

#endif
