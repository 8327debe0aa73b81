#include "server/config/options_print.h"

#include "base/usage.h"
#include "server/config/options.h"

#include <stdio.h>
#include <string.h>

/* Most bytes of the text; all options together take a few thousand. */
#define PRINT_MAX ((size_t)1 << 16)

/* Width of comments in the example file, without the "# ". */
#define CONF_COLUMNS 100

static int append(struct amp_buf *out, const char *text)
{
    return amp_buf_append(out, text, strlen(text));
}

/* A description as lines of comment, broken between words. */
static int append_comment(struct amp_buf *out, const char *text)
{
    int rc = 0;
    while (rc == 0 && *text != 0) {
        size_t size = strlen(text);
        while (size > CONF_COLUMNS || (text[size] != 0 && text[size] != ' '))
            size--;
        rc = append(out, "# ");
        if (rc == 0)
            rc = amp_buf_append(out, text, size);
        if (rc == 0)
            rc = append(out, text[size] != 0 ? "\n" : ".\n");
        text += size + (text[size] == ' ');
    }
    return rc;
}

static int print_conf(struct amp_buf *out)
{
    int rc = append(
        out,
        "# The options of ampd. The environment (AMPD_LISTEN) and the command line (--listen) override this file.\n"
        "# ampd --config FILE --check-config reports all that is wrong with it.\n");
    for (const struct argp_option *option = ampd_options; rc == 0 && option->name != NULL; option++) {
        char line[256];
        struct ampd_arguments trial;
        const char *value = ampd_option_default(option);
        if (!ampd_option_is_for_file(option))
            continue;
        ampd_arguments_init(&trial);
        ampd_option_set(&trial, option, value);
        if (trial.wrong[0] != 0) /* none, or words, which are in the description too */
            value = "";
        (void)snprintf(line, sizeof line, "#%s: %s\n", option->name, value);
        rc = append(out, "\n");
        if (rc == 0)
            rc = append_comment(out, option->doc);
        if (rc == 0)
            rc = append(out, line);
    }
    return rc;
}

static int print_bash(struct amp_buf *out)
{
    int rc = amp_usage_bash_begin(out, "ampd");
    if (rc == 0)
        rc = amp_usage_bash_verb(out, "", ampd_options, NULL, NULL);
    return rc == 0 ? amp_usage_bash_end(out, "ampd", "") : rc;
}

int ampd_options_print(const char *form)
{
    struct amp_buf out;
    int rc = AMP_EINVAL;
    amp_buf_init(&out, PRINT_MAX);
    if (strcmp(form, "scdoc") == 0)
        rc = amp_usage_man_options(&out, ampd_options);
    else if (strcmp(form, "bash") == 0)
        rc = print_bash(&out);
    else if (strcmp(form, "conf") == 0)
        rc = print_conf(&out);
    if (rc == 0 && (fwrite(out.data, 1, out.size, stdout) != out.size || fflush(stdout) != 0))
        rc = AMP_EIO;
    amp_buf_close(&out);
    return rc;
}
