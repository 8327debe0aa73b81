#define _DEFAULT_SOURCE /* argp's flags */
#include "base/usage.h"

#include "base/err.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the longest name that is compared; nothing is suggested for a longer one. */
#define NAME_MAX_SIZE 48
/* For a word of up to so many bytes a suggestion must have the same first letter: "stop" is not meant by "top". */
#define NAME_SHORT 4
/* The most option names that are compared. */
#define NAMES_MAX 128

/* The options that argp itself adds to each command line. */
static const struct argp_option own_options[] = {
    {"help", '?', NULL, 0, NULL, 0}, {"usage", 0, NULL, 0, NULL, 0}, {"version", 'V', NULL, 0, NULL, 0}, {0}};

static bool is_end(const struct argp_option *option)
{
    return option->name == NULL && option->key == 0 && option->doc == NULL && option->group == 0;
}

static bool is_shown(const struct argp_option *option)
{
    return option->name != NULL && (option->flags & OPTION_HIDDEN) == 0;
}

static int append(struct amp_buf *out, const char *text)
{
    return amp_buf_append(out, text, strlen(text));
}

/* Appends several texts; the last is NULL. */
static int append_all(struct amp_buf *out, const char *const *texts)
{
    int rc = 0;
    for (; rc == 0 && *texts != NULL; texts++)
        rc = append(out, *texts);
    return rc;
}
#define APPEND(out, ...) append_all((out), (const char *const[]){__VA_ARGS__, NULL})

/* ---- which name was meant ---- */

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* The edit distance: letters inserted, left out or changed, or two neighbours swapped (Damerau 1964), each counts 1. */
static unsigned distance(const char *left, const char *right)
{
    unsigned rows[3][NAME_MAX_SIZE + 1];
    size_t n = strlen(left), m = strlen(right);
    for (size_t j = 0; j <= m; j++)
        rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned *now = rows[i % 3], *before = rows[(i + 2) % 3], *earlier = rows[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = least(least(before[j], now[j - 1]) + 1, before[j - 1] + (left[i - 1] != right[j - 1]));
            if (i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1])
                now[j] = least(now[j], earlier[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

const char *amp_usage_near(const char *wrong, const char *const *names, size_t count)
{
    const char *best = NULL, *begins = NULL;
    char lower[NAME_MAX_SIZE + 1]; /* as all names are */
    size_t size = strlen(wrong), begun = 0;
    /* One slip in a short name, one in three letters of a longer one. */
    unsigned most = size < 6 ? 1 : (unsigned)(size / 3);
    if (size == 0 || size > NAME_MAX_SIZE)
        return NULL;
    for (size_t i = 0; i <= size; i++)
        lower[i] = (char)tolower((unsigned char)wrong[i]);
    for (size_t i = 0; i < count; i++) {
        if (strncmp(names[i], lower, size) == 0) {
            begins = names[i];
            begun++;
        }
        if (strlen(names[i]) > NAME_MAX_SIZE || (size <= NAME_SHORT && names[i][0] != lower[0]))
            continue;
        unsigned one = distance(lower, names[i]);
        if (one <= most) {
            best = names[i];
            most = one > 0 ? one - 1 : 0; /* the first of those that are as near */
        }
    }
    return begun == 1 ? begins : best;
}

/* ---- options ---- */

struct known {
    const char *names[NAMES_MAX];
    size_t count;
    size_t matches;                 /* options whose name begins with the argument */
    const struct argp_option *last; /* the last of these; the equal one, if `exact` */
    bool exact;                     /* the argument is the whole name of an option */
};

static void compare_option(struct known *known, const struct argp_option *option, const char *name, size_t size)
{
    if (option->name == NULL)
        return;
    if (is_shown(option) && known->count < NAMES_MAX)
        known->names[known->count++] = option->name;
    if (known->exact || strncmp(option->name, name, size) != 0)
        return;
    known->exact = option->name[size] == 0;
    known->matches++;
    known->last = option;
}

/* Whether an option has this name or a longer one; false: `text` says so. *next: its value is the next argument. */
static bool is_known(const char *argument, const struct argp_option *const *tables, bool *next, char *text,
                     size_t capacity)
{
    struct known known = {.count = 0};
    const char *name = argument + 2;
    size_t size = strcspn(name, "=");
    for (; *tables != NULL; tables++)
        for (const struct argp_option *option = *tables; !is_end(option); option++)
            compare_option(&known, option, name, size);
    for (const struct argp_option *option = own_options; !is_end(option); option++)
        compare_option(&known, option, name, size);
    *next = name[size] == 0 && (known.exact || known.matches == 1) && known.last->arg != NULL;
    if (known.matches > 0) /* of several getopt says which */
        return true;
    char wrong[NAME_MAX_SIZE + 1];
    (void)snprintf(wrong, sizeof wrong, "%.*s", size < NAME_MAX_SIZE ? (int)size : NAME_MAX_SIZE, name);
    const char *near = amp_usage_near(wrong, known.names, known.count);
    (void)snprintf(text, capacity, "there is no option --%s%s%s%s", wrong, near != NULL ? "; did you mean --" : "",
                   near != NULL ? near : "", near != NULL ? "?" : "");
    return false;
}

bool amp_usage_takes_next(const struct argp_option *options, const char *argument)
{
    for (const struct argp_option *option = options; !is_end(option); option++) {
        if (option->arg == NULL)
            continue;
        if (argument[0] == '-' && argument[1] == option->key && argument[2] == 0)
            return true;
        if (option->name != NULL && strncmp(argument, "--", 2) == 0 && strcmp(argument + 2, option->name) == 0)
            return true;
    }
    return false;
}

bool amp_usage_options_known(int argc, char **argv, const struct argp_option *const *tables, bool mixed, char *text,
                             size_t capacity)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        bool next = false;
        if (strncmp(argv[i], "--", 2) == 0) {
            if (!is_known(argv[i], tables, &next, text, capacity))
                return false;
        } else if (argv[i][0] == '-' && argv[i][1] != 0) {
            for (const struct argp_option *const *table = tables; !next && *table != NULL; table++)
                next = amp_usage_takes_next(*table, argv[i]);
        } else if (!mixed) {
            break;
        }
        i += next;
    }
    return true;
}

/* ---- a manual page ---- */

int amp_usage_man_text(struct amp_buf *out, const char *text)
{
    int rc = 0;
    for (; rc == 0 && *text != 0; text++) {
        if (strchr("\\*_`#[]|~<>", *text) != NULL)
            rc = append(out, "\\");
        if (rc == 0)
            rc = amp_buf_append(out, text, 1);
    }
    return rc;
}

static int man_option(struct amp_buf *out, const struct argp_option *option)
{
    char letter[8] = "";
    if (option->key > ' ' && option->key < 0x7f)
        (void)snprintf(letter, sizeof letter, "*-%c*, ", option->key);
    int rc = APPEND(out, letter, "*--", option->name, "*");
    if (rc == 0 && option->arg != NULL) {
        rc = append(out, "=");
        if (rc == 0)
            rc = amp_usage_man_text(out, option->arg);
    }
    if (rc == 0)
        rc = append(out, "\n\t");
    if (rc == 0 && option->doc != NULL)
        rc = amp_usage_man_text(out, option->doc);
    return rc == 0 ? append(out, ".\n\n") : rc;
}

int amp_usage_man_options(struct amp_buf *out, const struct argp_option *options)
{
    int rc = 0;
    for (; rc == 0 && options != NULL && !is_end(options); options++)
        if (is_shown(options))
            rc = man_option(out, options);
    return rc;
}

int amp_usage_man_examples(struct amp_buf *out, const char *lines)
{
    return APPEND(out, "```\n", lines, "\n```\n\n");
}

/* ---- bash's completion ---- */

/*
 * The template of the script: @ stands for the program's name, @@ for an @. The list of a verb has a line for each
 * option: its name, and the kind of its value, which is nothing, "value", "file", or the possible words with bars
 * between them. It has such a line also for each argument, whose names are #1, #2 and so on, and whose kind may be
 * "model", too. bash splits an address at its colons, so the script first joins these words. Names of models come from
 * a server, so they are not given to compgen -W, which would expand them.
 */
static const char bash_head[] = "# bash completion for this program; made from the tables that its --help is made of.\n"
                                "\n"
                                "_@_options() {\n"
                                "    case $1 in\n";

static const char bash_tail[] =
    "    esac\n"
    "}\n"
    "\n"
    "# The kind of value that an option of a verb takes.\n"
    "_@_value() {\n"
    "    local name kind\n"
    "    while read -r name kind; do\n"
    "        if [[ $name == \"$2\" ]]; then\n"
    "            echo \"$kind\"\n"
    "            return\n"
    "        fi\n"
    "    done < <(_@_options \"$1\"; _@_options '')\n"
    "}\n"
    "\n"
    "# The models of the server that the options before lead to; none, without a word, where it does not answer.\n"
    "_@_models() {\n"
    "    @ \"$@@\" --output csv --timeout 1 models 2>/dev/null </dev/null | sed -n '2,$s/^\\([^\",]*\\),.*/\\1/p'\n"
    "}\n"
    "\n"
    "_@() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} words=() before=() asked=() word last='' verb='' kind='' i names\n"
    "    for word in \"${COMP_WORDS[@@]:0:COMP_CWORD}\"; do\n"
    "        if [[ ${#words[@@]} -gt 1 && ( $word == : || $last == : ) ]]; then\n"
    "            words[-1]+=$word\n"
    "        else\n"
    "            words+=(\"$word\")\n"
    "        fi\n"
    "        last=$word\n"
    "    done\n"
    "    for ((i = 1; i < ${#words[@@]}; i++)); do\n"
    "        word=${words[i]}\n"
    "        kind=''\n"
    "        if [[ $word == -* ]]; then\n"
    "            kind=$(_@_value \"$verb\" \"$word\")\n"
    "            if [[ -n $kind && $((i + 1)) -lt ${#words[@@]} ]]; then\n"
    "                ((i++))\n"
    "                [[ ${words[i]} == '=' && $((i + 1)) -lt ${#words[@@]} ]] && ((i++))\n"
    "                [[ -n $(_@_value '' \"$word\") ]] && asked+=(\"$word\" \"${words[i]}\")\n"
    "                kind=''\n"
    "            fi\n"
    "        elif [[ $word != '=' ]]; then\n"
    "            before+=(\"$word\")\n"
    "            if _@_verbs | grep -qxF -- \"${before[*]}\"; then\n"
    "                verb=${before[*]}\n"
    "            fi\n"
    "        fi\n"
    "    done\n"
    "    COMPREPLY=()\n"
    "    if [[ -z $kind && -n $verb && $cur != -* ]]; then\n"
    "        names=($verb)\n"
    "        kind=$(_@_value \"$verb\" \"#$((${#before[*]} - ${#names[*]} + 1))\")\n"
    "    fi\n"
    "    if [[ $kind == file ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
    "    elif [[ $kind == model ]]; then\n"
    "        while read -r word; do\n"
    "            [[ $word == \"$cur\"* ]] && COMPREPLY+=(\"$word\")\n"
    "        done < <(_@_models \"${asked[@@]}\")\n"
    "    elif [[ $kind == *'|'* ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"${kind//|/ }\" -- \"$cur\")\n"
    "    elif [[ -z $kind && $cur == -* ]]; then\n"
    "        names=$( (_@_options \"$verb\"; _@_options '') | sed -n 's/^\\(--[^ ]*\\).*/\\1/p' | sort -u)\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$names\" -- \"$cur\")\n"
    "    fi\n"
    "    if [[ -z ${kind/#model/} && $cur != -* && ${#before[*]} -lt 2 ]]; then\n"
    "        names=$(_@_verbs | sed -n \"s/^${before[*]}${before[*]:+ }\\\\([^ ]\\\\+\\\\).*/\\\\1/p\" | sort -u)\n"
    "        mapfile -t -O ${#COMPREPLY[@@]} COMPREPLY < <(compgen -W \"$names\" -- \"$cur\")\n"
    "    fi\n"
    "}\n"
    "\n";

/* Puts the program's name where the script has one @. */
static int bash_part(struct amp_buf *out, const char *part, const char *program)
{
    int rc = 0;
    while (rc == 0 && *part != 0) {
        size_t size = strcspn(part, "@");
        rc = amp_buf_append(out, part, size);
        part += size;
        if (rc == 0 && *part == '@') {
            bool twice = part[1] == '@';
            rc = append(out, twice ? "@" : program);
            part += 1 + twice;
        }
    }
    return rc;
}

int amp_usage_bash_begin(struct amp_buf *out, const char *program)
{
    return bash_part(out, bash_head, program);
}

static bool is_file(const char *argument)
{
    return strcmp(argument, "FILE") == 0 || strcmp(argument, "DIR") == 0 || strcmp(argument, "FOLDER") == 0;
}

static const char *bash_kind(const struct argp_option *option)
{
    if (option->arg == NULL)
        return "";
    if (is_file(option->arg))
        return "file";
    return strchr(option->arg, '|') != NULL ? option->arg : "value";
}

static int bash_arguments(struct amp_buf *out, const char *arguments, const char *first)
{
    int rc = first != NULL ? APPEND(out, "            '#1 ", first, "' \\\n") : 0;
    for (int position = 1; rc == 0 && arguments != NULL && *arguments != 0; position++) {
        char name[32], line[64];
        size_t size = strcspn(arguments, " ");
        const char *begin = arguments + strspn(arguments, "[");
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(begin, " ]"), begin);
        bool model = strcmp(name, "MODEL") == 0;
        (void)snprintf(line, sizeof line, "            '#%d %s' \\\n", position, model ? "model" : "file");
        if (model || is_file(name))
            rc = append(out, line);
        arguments += size + (arguments[size] != 0);
    }
    return rc;
}

int amp_usage_bash_verb(struct amp_buf *out, const char *verb, const struct argp_option *options, const char *arguments,
                        const char *first)
{
    int rc = APPEND(out, "    '", verb, "')\n        printf '%s\\n' \\\n");
    for (; rc == 0 && options != NULL && !is_end(options); options++) {
        if (!is_shown(options))
            continue;
        const char *kind = bash_kind(options);
        char letter[128] = ""; /* the option's letter, which the script knows, but does not offer */
        if (options->arg != NULL && options->key > ' ' && options->key < 0x7f)
            (void)snprintf(letter, sizeof letter, "            '-%c %s' \\\n", options->key, kind);
        rc = APPEND(out, "            '--", options->name, kind[0] != 0 ? " " : "", kind, "' \\\n", letter);
    }
    if (rc == 0)
        rc = bash_arguments(out, arguments, first);
    return rc == 0 ? append(out, "            --help\n        ;;\n") : rc;
}

int amp_usage_bash_end(struct amp_buf *out, const char *program, const char *verbs)
{
    int rc = bash_part(out, bash_tail, program);
    if (rc == 0)
        rc = bash_part(out, "_@_verbs() {\n    cat <<'END'\n", program);
    if (rc == 0)
        rc = append(out, verbs);
    return rc == 0 ? bash_part(out, "END\n}\n\ncomplete -o filenames -F _@ @\n", program) : rc;
}
