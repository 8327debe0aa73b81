/* ampctl config. */
#include "base/usage.h"
#include "client/ampctl/ask.h"
#include "client/ampctl/parse.h"

#include <string.h>

struct asked {
    const char *name; /* NULL: all options */
    bool set;         /* only those that somebody has given */
};

enum { KEY_SET = 256 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct asked *asked = state->input;
    switch (key) {
    case KEY_SET:
        asked->set = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "config takes one option at most, but got \"%.40s\" too", arg);
        asked->name = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct ampctl_column columns[] = {{"option", "OPTION", false},
                                               {"value", "VALUE", false},
                                               {"where", "WHERE", false},
                                               {"reloads", "RELOADS", false},
                                               {NULL, NULL, false}};

static bool is_wanted(const struct asked *asked, const struct ampd_msg_config_value *value)
{
    if (asked->name != NULL)
        return strcmp(asked->name, value->name) == 0;
    return !asked->set || strcmp(value->where, "default") != 0;
}

/* Most options that are compared with a misspelled one; ampd has fewer. */
#define NAMES_MAX 128

static void tell_unknown(const char *wrong, const struct ampd_msg_config_value_list *values)
{
    const char *names[NAMES_MAX];
    size_t count = 0;
    for (; count < values->count && count < NAMES_MAX; count++)
        names[count] = values->items[count].name;
    const char *near = amp_usage_near(wrong, names, count);
    (void)ampctl_print(stderr, "ampctl: ampd has no option \"%.64s\"; %s%s%s", wrong,
                       near != NULL ? "did you mean " : "ampctl config shows all of them", near != NULL ? near : "",
                       near != NULL ? "?" : "");
}

static int print(const struct ampctl *ctl, const struct asked *asked, const struct ampd_msg_get_config_response *answer)
{
    json_t *rows = json_array();
    int rc = rows != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < answer->values.count; i++) {
        const struct ampd_msg_config_value *value = &answer->values.items[i];
        if (is_wanted(asked, value))
            rc = json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:b}", "option", value->name, "value",
                                                       value->value, "where", value->where, "reloads", value->reloads));
    }
    bool unknown = rc == 0 && asked->name != NULL && json_array_size(rows) == 0;
    if (unknown) {
        tell_unknown(asked->name, &answer->values);
    } else if (rc == 0) {
        struct ampctl_list list = {.out = stdout, .csv = ctl->csv, .columns = columns};
        rc = ctl->json ? ampctl_print_json(stdout, rows) : ampctl_list_page(&list, rows);
    }
    json_decref(rows);
    return unknown ? AMPCTL_EXIT_USAGE : rc == 0 ? 0 : AMPCTL_EXIT_FAILED;
}

static const struct argp_option config_options[] = {
    {"set", KEY_SET, NULL, 0, "Only options that were given", 0},
    {0},
};

static int run_config(struct ampctl *ctl, int argc, char **argv)
{
    struct asked asked = {0};
    ampctl_parse(ctl, &ampctl_config_verb, &asked, argc, argv);
    ctl->here = true;
    struct ampd_msg_get_config_response answer;
    int code = ampctl_ask_get_config(ctl, &answer);
    if (code == 0) {
        code = print(ctl, &asked, &answer);
        ampd_msg_get_config_response_free(&answer);
    }
    return code;
}

const struct ampctl_verb ampctl_config_verb = {
    .name = "config",
    .arguments = "[OPTION]",
    .summary = "the server's options, and where they are set",
    .doc = "Shows the options of the process at the endpoint: each value and where it comes from, a line of its "
           "configuration file, its environment, its command line or the default; and whether a new value takes effect "
           "with SIGHUP. SIGHUP reads the files of certificates and tokens again in any case.",
    .examples = "ampctl config\n"
                "ampctl config --set\n"
                "ampctl config worker-lease",
    .options = config_options,
    .parser = parse,
    .run = run_config,
};
