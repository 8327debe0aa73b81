#include "server/config/config_file.h"

#include "base/buf.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#define NAME_MAX_BYTES 64
#define FAULT_MAX      256
/* Deepest nesting of what is skipped. libyaml's time grows with the square of the depth. */
#define DEPTH_MAX 8

/* Where the parser is: outside of the mapping of options, before a name in it, before a value, or in a list. */
enum place { PLACE_OUTSIDE, PLACE_NAME, PLACE_VALUE, PLACE_LIST };

struct reading {
    const struct ampd_config_file_ops *ops;
    void *arg;
    const char *text;
    size_t size;
    enum place place;
    unsigned skipped; /* depth within a mapping or list that cannot be a value, and is a fault; 0: not in one */
    char name[NAME_MAX_BYTES];
    unsigned line; /* line of the name */
    bool over;     /* parsing has to stop */
    bool unwanted; /* the present value is not reported, as there was a fault in its name or in it */
    struct amp_buf list;
};

static unsigned line_of(const yaml_mark_t *mark)
{
    return (unsigned)mark->line + 1;
}

static void fault(struct reading *reading, unsigned line, const char *text)
{
    reading->ops->fault_cb(reading->arg, line, text);
}

static void take_name(struct reading *reading, const yaml_event_t *event)
{
    size_t size = event->data.scalar.length;
    const char *text = (const char *)event->data.scalar.value;
    reading->line = line_of(&event->start_mark);
    reading->place = PLACE_VALUE;
    reading->unwanted = size == 0 || size >= NAME_MAX_BYTES || memchr(text, 0, size) != NULL;
    if (reading->unwanted)
        fault(reading, reading->line,
              "this is not the name of an option; write NAME: VALUE, as in: listen: 127.0.0.1:7420");
    else
        memcpy(reading->name, text, size + 1); /* libyaml's texts end with a zero */
}

/* Whether a value is YAML's "nothing", which would else be taken for a path, a name or an empty text. */
static bool is_null(const yaml_event_t *event)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++)
        if (event->data.scalar.plain_implicit != 0 && strcmp((const char *)event->data.scalar.value, nulls[i]) == 0)
            return true;
    return false;
}

static void take_value(struct reading *reading, const yaml_event_t *event)
{
    size_t size = event->data.scalar.length;
    const char *text = (const char *)event->data.scalar.value;
    char wrong[FAULT_MAX];
    bool bad = memchr(text, 0, size) != NULL || is_null(event);
    if (reading->place == PLACE_LIST) {
        bad = bad || (reading->list.size > 0 && amp_buf_append(&reading->list, ",", 1) != 0) ||
              amp_buf_append(&reading->list, text, size) != 0;
        reading->unwanted = reading->unwanted || bad;
    } else {
        reading->place = PLACE_NAME;
        if (!bad && !reading->unwanted)
            reading->ops->value_cb(reading->arg, reading->line, reading->name, text);
    }
    if (!bad)
        return;
    (void)snprintf(wrong, sizeof wrong, "%s: its value cannot be read; write it as plain text, or leave the option out",
                   reading->name);
    fault(reading, line_of(&event->start_mark), wrong);
}

static void end_list(struct reading *reading)
{
    reading->place = PLACE_NAME;
    if (reading->unwanted)
        return;
    if (amp_buf_append(&reading->list, "", 1) != 0)
        fault(reading, reading->line, "out of memory");
    else
        reading->ops->value_cb(reading->arg, reading->line, reading->name, (const char *)reading->list.data);
}

/* Begins to skip a mapping or list that has no meaning in a configuration, and adds a fault. */
static void skip(struct reading *reading, const yaml_event_t *event, const char *what)
{
    char text[FAULT_MAX];
    (void)snprintf(text, sizeof text, "%s; write NAME: VALUE, one option a line", what);
    fault(reading, line_of(&event->start_mark), text);
    reading->skipped = 1;
    reading->unwanted = true; /* a list that contains it is not a value, either */
}

static void begin_mapping(struct reading *reading, const yaml_event_t *event)
{
    if (reading->place == PLACE_OUTSIDE)
        reading->place = PLACE_NAME;
    else
        skip(reading, event, "an option's value cannot be a mapping");
}

static void begin_list(struct reading *reading, const yaml_event_t *event)
{
    if (reading->place != PLACE_VALUE) {
        skip(reading, event,
             reading->place == PLACE_LIST ? "a list cannot be inside a list"
                                          : "a list needs the name of an option before it");
        return;
    }
    reading->place = PLACE_LIST;
    reading->list.size = 0;
}

/* Handles an event within what is skipped: only its end matters. */
static void skip_on(struct reading *reading, const yaml_event_t *event)
{
    bool begins = event->type == YAML_MAPPING_START_EVENT || event->type == YAML_SEQUENCE_START_EVENT;
    bool ends = event->type == YAML_MAPPING_END_EVENT || event->type == YAML_SEQUENCE_END_EVENT;
    reading->skipped += begins ? 1u : 0u;
    reading->skipped -= ends ? 1u : 0u;
    if (reading->skipped == DEPTH_MAX) {
        fault(reading, line_of(&event->start_mark), "nested too deeply; the rest of the file was not read");
        reading->over = true;
    }
    if (reading->skipped > 0 || reading->place == PLACE_OUTSIDE || reading->place == PLACE_LIST)
        return;
    /* It was in place of a value, or of a name whose value follows. */
    reading->unwanted = true;
    reading->place = reading->place == PLACE_VALUE ? PLACE_NAME : PLACE_VALUE;
}

static void take_event(struct reading *reading, const yaml_event_t *event)
{
    if (reading->skipped > 0) {
        skip_on(reading, event);
        return;
    }
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        if (reading->place == PLACE_NAME)
            take_name(reading, event);
        else if (reading->place != PLACE_OUTSIDE)
            take_value(reading, event);
        else if (event->data.scalar.length > 0) /* an empty file is an empty scalar */
            fault(reading, line_of(&event->start_mark), "this is not an option; write NAME: VALUE, one option a line");
        break;
    case YAML_ALIAS_EVENT:
        fault(reading, line_of(&event->start_mark), "aliases are not supported; write the value");
        reading->unwanted = true;
        if (reading->place != PLACE_LIST)
            reading->place = reading->place == PLACE_VALUE ? PLACE_NAME : PLACE_VALUE;
        break;
    case YAML_MAPPING_START_EVENT:
        begin_mapping(reading, event);
        break;
    case YAML_SEQUENCE_START_EVENT:
        begin_list(reading, event);
        break;
    case YAML_SEQUENCE_END_EVENT:
        end_list(reading);
        break;
    case YAML_MAPPING_END_EVENT:
        reading->place = PLACE_OUTSIDE;
        break;
    default:
        break;
    }
}

/*
 * The line of a fault of syntax: of what the scanner cannot end, that where it begins. For bytes that are not text
 * libyaml only gives an offset, from which it is counted.
 */
static unsigned line_of_problem(const yaml_parser_t *parser, const char *text, size_t size)
{
    unsigned line = 1;
    if (parser->error == YAML_SCANNER_ERROR && parser->context != NULL)
        return line_of(&parser->context_mark);
    if (parser->error != YAML_READER_ERROR)
        return line_of(&parser->problem_mark);
    for (size_t i = 0; i < size && i < parser->problem_offset; i++)
        line += text[i] == '\n' ? 1u : 0u;
    return line;
}

static void report_syntax(struct reading *reading, const yaml_parser_t *parser)
{
    char text[FAULT_MAX];
    (void)snprintf(text, sizeof text, "%s%s%s; the rest of the file was not read", parser->problem,
                   parser->context != NULL ? " " : "", parser->context != NULL ? parser->context : "");
    fault(reading, line_of_problem(parser, reading->text, reading->size), text);
}

static void read_all(struct reading *reading, yaml_parser_t *parser)
{
    unsigned documents = 0;
    for (bool goes_on = true; goes_on;) {
        yaml_event_t event;
        if (yaml_parser_parse(parser, &event) == 0) {
            report_syntax(reading, parser);
            return;
        }
        goes_on = event.type != YAML_STREAM_END_EVENT && !reading->over;
        if (event.type == YAML_DOCUMENT_START_EVENT && ++documents > 1) {
            fault(reading, line_of(&event.start_mark), "a second YAML document begins here; it was not read");
            goes_on = false;
        } else {
            take_event(reading, &event);
        }
        yaml_event_delete(&event);
    }
}

void ampd_config_file_read(const char *text, size_t size, const struct ampd_config_file_ops *ops, void *arg)
{
    /* A byte order mark, which YAML allows and libyaml skips only where it is not told the encoding. */
    size_t mark = size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    struct reading reading = {.ops = ops, .arg = arg, .text = text + mark, .size = size - mark};
    yaml_parser_t parser;
    if (size > AMPD_CONFIG_FILE_MAX) {
        fault(&reading, 1, "the file is longer than 64 KiB; is it a configuration file of ampd?");
        return;
    }
    if (yaml_parser_initialize(&parser) == 0) {
        fault(&reading, 1, "out of memory");
        return;
    }
    amp_buf_init(&reading.list, AMPD_CONFIG_FILE_MAX);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)reading.text, reading.size);
    read_all(&reading, &parser);
    amp_buf_close(&reading.list);
    yaml_parser_delete(&parser);
}
