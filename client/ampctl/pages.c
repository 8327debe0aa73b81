#include "client/ampctl/pages.h"

#include "base/usage.h"
#include "client/ampctl/ctl.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of all pages: a few lines for each verb and option. */
#define PAGES_MAX ((size_t)1 << 20)

/* Columns of a verb with its arguments in the list. */
#define VERB_WIDTH 29

static int append(struct amp_buf *out, const char *text)
{
    return amp_buf_append(out, text, strlen(text));
}

static void write_heading(const struct ampctl_verb *verb, char *text, size_t capacity)
{
    (void)snprintf(text, capacity, "%s%s%s", verb->name, verb->arguments != NULL ? " " : "",
                   verb->arguments != NULL ? verb->arguments : "");
}

char *ampctl_pages_doc(void)
{
    struct amp_buf out;
    amp_buf_init(&out, PAGES_MAX);
    int rc = append(&out, "Controls and inspects an ampd server.\n\n"
                          "Examples:\n"
                          "  ampctl status\n"
                          "  ampctl --endpoint 10.0.0.7:7420 history digits --plot\n"
                          "  ampctl -o json models\n"
                          "  ampctl history --help\n\n"
                          "Verbs:\n");
    for (const struct ampctl_verb *const *verb = ampctl_verbs; rc == 0 && *verb != NULL; verb++) {
        char heading[128], line[256];
        write_heading(*verb, heading, sizeof heading);
        (void)snprintf(line, sizeof line, "  %-*s %s\n", VERB_WIDTH, heading, (*verb)->summary);
        rc = append(&out, line);
    }
    if (rc == 0)
        rc = amp_buf_append(&out, "", 1);
    if (rc != 0)
        amp_buf_close(&out);
    return (char *)out.data;
}

static int man_verb(struct amp_buf *out, const struct ampctl_verb *verb)
{
    char heading[128];
    write_heading(verb, heading, sizeof heading);
    int rc = append(out, "## ");
    if (rc == 0)
        rc = append(out, heading); /* nothing is escaped in a heading */
    if (rc == 0)
        rc = append(out, "\n\n");
    if (rc == 0)
        rc = amp_usage_man_text(out, verb->doc);
    if (rc == 0)
        rc = append(out, "\n\n");
    if (rc == 0)
        rc = amp_usage_man_examples(out, verb->examples);
    return rc == 0 ? amp_usage_man_options(out, verb->options) : rc;
}

static int make_man(struct amp_buf *out)
{
    int rc = append(out, "# OPTIONS OF ALL VERBS\n\n");
    if (rc == 0)
        rc = amp_usage_man_options(out, ampctl_common_options);
    if (rc == 0)
        rc = append(out, "# VERBS\n\n");
    for (const struct ampctl_verb *const *verb = ampctl_verbs; rc == 0 && *verb != NULL; verb++)
        rc = man_verb(out, *verb);
    return rc;
}

static int make_bash(struct amp_buf *out)
{
    struct amp_buf names;
    amp_buf_init(&names, PAGES_MAX);
    int rc = amp_usage_bash_begin(out, "ampctl");
    if (rc == 0)
        rc = amp_usage_bash_verb(out, "", ampctl_common_options, NULL, NULL);
    for (const struct ampctl_verb *const *verb = ampctl_verbs; rc == 0 && *verb != NULL; verb++) {
        rc = amp_usage_bash_verb(out, (*verb)->name, (*verb)->options, (*verb)->arguments, (*verb)->first);
        if (rc == 0)
            rc = append(&names, (*verb)->name);
        if (rc == 0)
            rc = append(&names, "\n");
    }
    if (rc == 0)
        rc = amp_buf_append(&names, "", 1);
    if (rc == 0)
        rc = amp_usage_bash_end(out, "ampctl", (const char *)names.data);
    amp_buf_close(&names);
    return rc;
}

int ampctl_pages_print(const char *form)
{
    bool bash = strcmp(form, "bash") == 0;
    if (!bash && strcmp(form, "scdoc") != 0) {
        (void)ampctl_print(stderr, "ampctl: --usage-as is \"%s\"; give scdoc or bash", form);
        return AMPCTL_EXIT_USAGE;
    }
    struct amp_buf out;
    amp_buf_init(&out, PAGES_MAX);
    int rc = bash ? make_bash(&out) : make_man(&out);
    if (rc == 0 && fwrite(out.data, 1, out.size, stdout) != out.size)
        rc = AMP_EIO;
    amp_buf_close(&out);
    return rc == 0 ? 0 : AMPCTL_EXIT_FAILED;
}
