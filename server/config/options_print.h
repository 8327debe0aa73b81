/* The options as text, from which the build makes the manual page, the completion for bash and the example file. */
#ifndef AMPD_CONFIG_OPTIONS_PRINT_H
#define AMPD_CONFIG_OPTIONS_PRINT_H

/*
 * Writes all options to stdout. `form` is "scdoc" (the section OPTIONS of a manual page), "bash" (a script of
 * completions) or "conf" (a configuration file with each option's default, commented out). 0; AMP_EINVAL: there is no
 * such form; AMP_ENOMEM; AMP_EIO: stdout cannot be written.
 */
int ampd_options_print(const char *form);

#endif
