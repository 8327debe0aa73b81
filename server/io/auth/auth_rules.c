#include "server/io/auth/auth_rules.h"

#include "base/hex.h"
#include "base/size.h"
#include "base/text.h"
#include "base/utc.h"
#include "server/io/base/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE " \t\r"

/* From the lowest role to the highest. `peer` includes no other role: it is for shards, which need nothing else. */
static const struct {
    const char *name;
    uint32_t roles;
} roles_table[] = {
    {"read", AMPD_ROLE_READER},
    {"worker", AMPD_ROLE_READER | AMPD_ROLE_WORKER},
    {"operator", AMPD_ROLE_READER | AMPD_ROLE_WORKER | AMPD_ROLE_OPERATOR},
    {"peer", AMPD_ROLE_PEER},
};
#define ROLES_COUNT (sizeof roles_table / sizeof *roles_table)

uint32_t ampd_auth_roles_of(const char *name)
{
    for (size_t i = 0; i < ROLES_COUNT; i++)
        if (strcmp(name, roles_table[i].name) == 0)
            return roles_table[i].roles;
    return 0;
}

const char *ampd_auth_role_name(uint32_t roles)
{
    for (size_t i = ROLES_COUNT; i-- > 0;)
        if ((roles & roles_table[i].roles) == roles_table[i].roles)
            return roles_table[i].name;
    return "none";
}

/* A line of the file. Reading a word ends it by a zero byte in the text. */
struct line {
    char *at;        /* the next character that was not read */
    unsigned number; /* of the line, from 1 */
    const char *path;
    struct amp_error *error;
};

static int bad_line(const struct line *line, const char *what)
{
    return amp_error_set(line->error, AMP_EINVAL, "TOKEN_FILE", "%.200s, line %u: %s", line->path, line->number, what);
}

/* The next word of the line; "" at its end. */
static char *next_word(struct line *line)
{
    char *word = line->at + strspn(line->at, SPACE);
    line->at = word + strcspn(word, SPACE);
    if (*line->at != 0)
        *line->at++ = 0;
    return word;
}

/* The rest of the line, without spaces at its ends. */
static char *rest_of(struct line *line)
{
    char *rest = line->at + strspn(line->at, SPACE);
    size_t size = strlen(rest);
    while (size > 0 && strchr(SPACE, rest[size - 1]) != NULL)
        size--;
    rest[size] = 0;
    line->at = rest + size;
    return rest;
}

static int take_name(const struct line *line, const char *name, struct ampd_auth_rule *rule)
{
    size_t size = strlen(name);
    if (size == 0 || size >= sizeof rule->name)
        return bad_line(line, "the name is missing or longer than 255 bytes");
    if (!amp_text_is_name(name, sizeof rule->name - 1, ""))
        return bad_line(line, "the name must be UTF-8 text without control characters");
    memcpy(rule->name, name, size + 1);
    return 0;
}

/* The value in NAME=VALUE, or NULL if the word is not of this form. */
static const char *value_of(const char *word, const char *name)
{
    size_t size = strlen(name);
    return strncmp(word, name, size) == 0 && word[size] == '=' ? word + size + 1 : NULL;
}

static int parse_token_option(const struct line *line, const char *word, struct ampd_auth_rule *rule)
{
    const char *time = value_of(word, "expires"), *models = value_of(word, "models"),
               *memory = value_of(word, "memory");
    if ((time != NULL && rule->expires_us != INT64_MAX) || (models != NULL && rule->quota.models != 0) ||
        (memory != NULL && rule->quota.memory_bytes != 0))
        return bad_line(line, "expires, models and memory may each be given once");
    if (time != NULL && amp_utc_parse(time, &rule->expires_us))
        return 0;
    if (models != NULL && amp_count_parse(models, &rule->quota.models))
        return 0;
    if (memory != NULL && amp_size_parse(memory, &rule->quota.memory_bytes))
        return 0;
    return bad_line(line, "after the hash only expires=2027-01-31 or expires=2027-01-31T12:00:00Z, models=N and "
                          "memory=BYTES, a number with K, M or G, may follow, none of them 0");
}

static int parse_token(struct line *line, struct ampd_auth_rule *rule)
{
    int rc = take_name(line, next_word(line), rule);
    if (rc != 0)
        return rc;
    if (!amp_hex_parse(next_word(line), rule->hash, sizeof rule->hash))
        return bad_line(line, "the name must be followed by the SHA-256 of the token, 64 hexadecimal digits "
                              "(ampctl token new prints the line)");
    rule->expires_us = INT64_MAX;
    for (const char *word = next_word(line); rc == 0 && *word != 0; word = next_word(line))
        rc = parse_token_option(line, word, rule);
    return rc;
}

static int parse_uid(struct line *line, struct ampd_auth_rule *rule)
{
    const char *word = next_word(line);
    char *end;
    unsigned long long uid = strtoull(word, &end, 10);
    rule->any_uid = strcmp(word, "*") == 0;
    rule->uid = (uint32_t)uid;
    /* For the system the greatest number means "no user". */
    if (!rule->any_uid && (*word < '0' || *word > '9' || strlen(word) > 10 || *end != 0 || uid >= UINT32_MAX))
        return bad_line(line, "the number of a user, or * for all others, is expected");
    return *next_word(line) == 0 ? 0 : bad_line(line, "unexpected text after the number");
}

static int parse_rule(struct line *line, const char *kind, struct ampd_auth_rule *rule)
{
    static const char *const kinds[] = {"token", "cert", "uid"};
    size_t which = 0;
    while (which < 3 && strcmp(kind, kinds[which]) != 0)
        which++;
    if (which == 3)
        return bad_line(
            line, "a line begins with token, cert or uid, or with # if it is a comment; ampctl token new ROLE NAME "
                  "--append FILE writes one");
    rule->kind = (enum ampd_auth_kind)which;
    rule->line = line->number;
    rule->roles = ampd_auth_roles_of(next_word(line));
    if (rule->roles == 0)
        return bad_line(line, "the second word is the role: read, worker, operator or peer");
    switch (rule->kind) {
    case AMPD_AUTH_TOKEN:
        return parse_token(line, rule);
    case AMPD_AUTH_CERT:
        return take_name(line, rest_of(line), rule);
    default:
        return parse_uid(line, rule);
    }
}

static bool same_subject(const struct ampd_auth_rule *a, const struct ampd_auth_rule *b)
{
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case AMPD_AUTH_TOKEN: /* one name may have two tokens: an old one and its successor */
        return memcmp(a->hash, b->hash, sizeof a->hash) == 0;
    case AMPD_AUTH_CERT:
        return strcmp(a->name, b->name) == 0;
    default:
        return a->any_uid == b->any_uid && a->uid == b->uid;
    }
}

/* Refuses a second line for the same caller: it would be unclear which of them counts. */
static int check_new(const struct line *line, const struct ampd_auth_rules *rules)
{
    const struct ampd_auth_rule *last = &rules->rules[rules->count - 1];
    char text[96];
    for (size_t i = 0; i + 1 < rules->count; i++) {
        if (!same_subject(&rules->rules[i], last))
            continue;
        (void)snprintf(text, sizeof text, "the same token, name or user as in line %u; leave one of them out",
                       rules->rules[i].line);
        return bad_line(line, text);
    }
    return 0;
}

static int parse_line(struct line *line, struct ampd_auth_rules *rules)
{
    for (const char *at = line->at; *at != 0; at++)
        if ((unsigned char)*at < ' ' && strchr(SPACE, *at) == NULL)
            return bad_line(line, "the line contains a control character");
    const char *kind = next_word(line);
    if (*kind == 0 || *kind == '#')
        return 0;
    if (rules->count == AMPD_AUTH_RULES_MAX)
        return bad_line(line, "there are more than 1024 rules; remove those of callers that no longer exist");
    struct ampd_auth_rule *rule = &rules->rules[rules->count];
    *rule = (struct ampd_auth_rule){0};
    int rc = parse_rule(line, kind, rule);
    if (rc != 0)
        return rc;
    rules->count++;
    return check_new(line, rules);
}

int ampd_auth_rules_parse(const char *text, size_t size, const char *path, struct ampd_auth_rules **out,
                          struct amp_error *error)
{
    *out = NULL;
    struct line line = {.path = path, .error = error};
    if (size > AMPD_AUTH_FILE_MAX)
        return amp_error_set(error, AMP_EINVAL, "TOKEN_FILE", "%.200s: longer than %zu bytes; is it a token file?",
                             path, AMPD_AUTH_FILE_MAX);
    char *copy = malloc(size + 1);
    struct ampd_auth_rules *rules = malloc(sizeof *rules + AMPD_AUTH_RULES_MAX * sizeof *rules->rules);
    int rc = 0;
    if (copy == NULL || rules == NULL) {
        rc = amp_error_set(error, AMP_ENOMEM, NULL, "%.200s: out of memory", path);
        goto done;
    }
    memcpy(copy, text, size);
    copy[size] = 0;
    rules->count = 0;
    for (char *at = copy, *end = copy + size; rc == 0 && at < end; at = line.at) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        char *line_end = newline != NULL ? newline : end;
        *line_end = 0;
        line.at = at;
        line.number++;
        rc = strlen(at) == (size_t)(line_end - at) ? parse_line(&line, rules)
                                                   : bad_line(&line, "the line contains a zero byte");
        line.at = line_end + 1;
    }
    if (rc == 0) {
        struct ampd_auth_rules *fit = realloc(rules, sizeof *rules + rules->count * sizeof *rules->rules);
        *out = fit != NULL ? fit : rules;
        rules = NULL;
    }
done:
    free(rules);
    free(copy);
    return rc;
}
