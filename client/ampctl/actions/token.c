/*
 * ampctl token new: makes a token and the line for ampd's token file. Asks no server.
 *
 * The token goes to stdout, alone, so that it can be sent into a file; the line, in which only the token's hash is,
 * goes to stderr, or by --append into the file. Nothing else keeps the token.
 */
#include "base/hex.h"
#include "base/size.h"
#include "base/text.h"
#include "base/utc.h"
#include "client/ampctl/ctl.h"
#include "client/ampctl/parse.h"
#include "client/ampctl/rows.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KEY_APPEND = 256, KEY_EXPIRES, KEY_MODELS, KEY_MEMORY };

/* role, name (at most 255 bytes), hash, time, quota (AMOUNT_MAX each), and what stands between them */
#define LINE_MAX_SIZE 512

struct token_input {
    const char *words[2]; /* role, name */
    const char *append;
    const char *expires;
    const char *models, *memory;
};

/* Digits of the largest number, and a unit: the line has room for no more. */
#define AMOUNT_MAX 21

/* What is written is read by ampd with the same functions: a line that it refuses takes the whole file out of force. */
static void check_options(struct argp_state *state, const struct token_input *input)
{
    int64_t expires_us = INT64_MAX;
    uint64_t amount;
    if (input->expires != NULL && !amp_utc_parse(input->expires, &expires_us))
        argp_error(
            state,
            "--expires is \"%.40s\"; give 2027-01-31 or 2027-01-31T12:00:00Z (UTC), an existing day from 1970 on",
            input->expires);
    if (input->models != NULL && (strlen(input->models) > AMOUNT_MAX || !amp_count_parse(input->models, &amount)))
        argp_error(state, "--models is \"%.40s\"; give a number from 1 to %" PRIu64, input->models, UINT64_MAX);
    if (input->memory != NULL && (strlen(input->memory) > AMOUNT_MAX || !amp_size_parse(input->memory, &amount)))
        argp_error(state,
                   "--memory is \"%.40s\"; give a number of bytes, also with K, M or G, from 1 to %" PRIu64 " bytes",
                   input->memory, UINT64_MAX);
    if (expires_us / 1000000 < (int64_t)time(NULL))
        (void)fprintf(stderr, "ampctl: token: --expires %s has passed: ampd will refuse this token\n", input->expires);
}

static void check(struct argp_state *state, const struct token_input *input)
{
    static const char *const roles[] = {"read", "worker", "operator", "peer"};
    const char *role = input->words[0], *name = input->words[1];
    bool known = false;
    if (name == NULL)
        argp_error(state, "give the role and a name: token new worker alice");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        known = known || strcmp(role, roles[i]) == 0;
    if (!known)
        argp_error(state, "there is no role \"%.40s\"; give read, worker, operator or peer", role);
    if (name[0] == 0 || strlen(name) > 255)
        argp_error(state, "a name has 1 to 255 bytes");
    if (!amp_text_is_name(name, 255, " \"\\"))
        argp_error(state, "a name is UTF-8 text without spaces, quotes, backslashes and control characters");
    check_options(state, input);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct token_input *input = state->input;
    switch (key) {
    case KEY_APPEND:
        input->append = arg;
        return 0;
    case KEY_EXPIRES:
        input->expires = arg;
        return 0;
    case KEY_MODELS:
        input->models = arg;
        return 0;
    case KEY_MEMORY:
        input->memory = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num >= 2)
            argp_error(state, "\"%.40s\" is too much", arg);
        input->words[state->arg_num] = arg;
        return 0;
    case ARGP_KEY_END:
        check(state, input);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int make_line(const struct token_input *input, const char *token, char line[LINE_MAX_SIZE])
{
    uint8_t hash[ARPC_TOKEN_HASH_SIZE];
    char hex[2 * ARPC_TOKEN_HASH_SIZE + 1];
    int rc = arpc_token_hash(token, strlen(token), hash);
    if (rc != 0)
        return rc;
    amp_hex_write(hash, sizeof hash, hex);
    const struct {
        const char *name, *value;
    } options[] = {{"expires", input->expires}, {"models", input->models}, {"memory", input->memory}};
    size_t used = (size_t)snprintf(line, LINE_MAX_SIZE, "token %s %s %s", input->words[0], input->words[1], hex);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].value != NULL)
            used += (size_t)snprintf(line + used, LINE_MAX_SIZE - used, " %s=%s", options[i].name, options[i].value);
    (void)snprintf(line + used, LINE_MAX_SIZE - used, "\n");
    return 0;
}

/* Whether the line must be kept apart from a last one without a newline. */
static bool ends_open(int fd)
{
    char last = '\n';
    off_t size = lseek(fd, 0, SEEK_END);
    return size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n';
}

static int append(const char *path, const char *line)
{
    char text[LINE_MAX_SIZE + 1];
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    bool done = false;
    if (fd >= 0) {
        int size = snprintf(text, sizeof text, "%s%s", ends_open(fd) ? "\n" : "", line);
        off_t before = lseek(fd, 0, SEEK_END);
        ssize_t written = write(fd, text, (size_t)size);
        done = written == size;
        if (written > 0 && !done) { /* half a line would take all of them out of force */
            (void)ftruncate(fd, before);
            errno = ENOSPC;
        }
        done = close(fd) == 0 && done;
    }
    if (done)
        return 0;
    (void)fprintf(stderr, "ampctl: token: %s cannot be written: %s\n", path, strerror(errno));
    return AMPCTL_EXIT_FAILED;
}

static int give(const struct ampctl *ctl, const struct token_input *input, const char *token, char *line)
{
    int code = input->append != NULL ? append(input->append, line) : 0;
    if (code != 0)
        return code;
    line[strlen(line) - 1] = 0;
    if (ctl->json) {
        json_t *row = json_pack("{s:s, s:s}", "token", token, "line", line);
        if (row == NULL || ampctl_print_json(stdout, row) != 0)
            code = AMPCTL_EXIT_FAILED;
        json_decref(row);
    } else {
        (void)printf("%s\n", token);
    }
    if (input->append != NULL)
        (void)fprintf(stderr, "Its line is in %s; send ampd a SIGHUP to have it read.\n", input->append);
    else if (!ctl->json)
        (void)fprintf(stderr, "Append this line to ampd's token file, then send ampd a SIGHUP:\n%s\n", line);
    return code;
}

static const struct argp_option token_options[] = {
    {"append", KEY_APPEND, "FILE", 0, "Append the line to ampd's token file", 0},
    {"expires", KEY_EXPIRES, "TIME", 0, "When the token expires: 2027-01-31 or 2027-01-31T12:00:00Z", 0},
    {"models", KEY_MODELS, "N", 0, "At most so many models created by this name", 0},
    {"memory", KEY_MEMORY, "BYTES", 0, "At most so much memory for them, also with K, M or G", 0},
    {0},
};

static int run_token(struct ampctl *ctl, int argc, char **argv)
{
    struct token_input input = {0};
    char token[ARPC_TOKEN_TEXT_SIZE], line[LINE_MAX_SIZE];
    ampctl_parse(ctl, &ampctl_token_verb, &input, argc, argv);
    if (arpc_token_new(token) != 0 || make_line(&input, token, line) != 0) {
        (void)fprintf(stderr, "ampctl: token: the system gives no random numbers\n");
        return AMPCTL_EXIT_FAILED;
    }
    int code = give(ctl, &input, token, line);
    arpc_token_wipe(token, sizeof token);
    return code;
}

const struct ampctl_verb ampctl_token_verb = {
    .name = "token new",
    .arguments = "ROLE NAME",
    .first = "read|worker|operator|peer",
    .summary = "makes a token, and its line for ampd",
    .doc = "Makes a token for a caller with the role read, worker, operator or peer, and the "
           "line by which ampd knows it. The token is printed once and not stored. (A file that a shell writes "
           "is readable by others; \"umask 077\" before it sees to that.)",
    .examples = "ampctl token new worker alice --append /etc/ampd/tokens > alice.token\n"
                "ampctl token new read grafana --expires 2027-01-31",
    .options = token_options,
    .parser = parse,
    .run = run_token,
};
