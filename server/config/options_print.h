/* The options as text, for what is made of them at build time: manual pages, completion, the commented file. */
#ifndef AMPD_CONFIG_OPTIONS_PRINT_H
#define AMPD_CONFIG_OPTIONS_PRINT_H

/*
 * Writes all options to stdout: "scdoc" as the OPTIONS of a manual page, "bash" as the script of the completion, "conf"
 * as a configuration file in which each option stands with its default, commented out. 0, or AMP_EINVAL: no such form,
 * AMP_ENOMEM, AMP_EIO.
 */
int ampd_options_print(const char *form);

#endif
