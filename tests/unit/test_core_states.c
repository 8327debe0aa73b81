/* The diagrams in file essays say what the tables allow: no more, no less. */
#include "client/core/client_core.h"
#include "server/core/model/states.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STATES_MAX 32

static int index_of(const char *const *names, unsigned count, const char *word, size_t length)
{
    for (unsigned i = 0; i < count; i++) {
        if (strlen(names[i]) == length && memcmp(names[i], word, length) == 0)
            return (int)i;
    }
    return -1;
}

/* A line of a diagram: " *   FROM -> TO, TO   why"; fills allowed[from] and returns from, or -1. */
static int read_line(const char *line, const char *const *names, unsigned count, uint32_t *allowed)
{
    const char *at = line + strspn(line, " *");
    size_t length = strcspn(at, " ");
    int from = index_of(names, count, at, length);
    at += length;
    at += strspn(at, " ");
    if (from < 0 || strncmp(at, "->", 2) != 0)
        return -1;
    at += 2;
    for (;;) {
        at += strspn(at, " ");
        length = strcspn(at, " ,\n");
        int to = index_of(names, count, at, length);
        if (to < 0)
            break;
        *allowed |= 1u << to;
        at += length;
        if (*at != ',')
            break;
        at++;
    }
    return from;
}

/* `section`: of a page, from its heading to the next one; NULL: the essay of a source. */
static void compare(const char *path, const char *section, const char *const *names, unsigned count,
                    const uint32_t *table)
{
    char full[1024];
    (void)snprintf(full, sizeof(full), "%s/%s", AMPD_SOURCE_DIR, path);
    FILE *file = fopen(full, "r");
    assert_non_null(file);
    char line[512];
    uint32_t drawn[STATES_MAX] = {0};
    bool seen[STATES_MAX] = {false};
    bool inside = section == NULL;
    while (fgets(line, sizeof(line), file) != NULL && strncmp(line, " */", 3) != 0) {
        if (section != NULL && strncmp(line, "## ", 3) == 0)
            inside = strncmp(line + 3, section, strlen(section)) == 0 && line[3 + strlen(section)] == '\n';
        uint32_t allowed = 0;
        if (!inside)
            continue;
        int from = read_line(line, names, count, &allowed);
        if (from < 0)
            continue;
        drawn[from] |= allowed;
        seen[from] = true;
    }
    (void)fclose(file);
    for (unsigned s = 0; s < count; s++) {
        if (!seen[s] && table[s] != 0)
            fail_msg("%s: the diagram has no line for %s", path, names[s]);
        if (drawn[s] != table[s])
            fail_msg("%s: from %s the diagram allows %x, the table %x", path, names[s], drawn[s], table[s]);
    }
}

static void compare_machine(const char *path, const struct ampd_machine *machine)
{
    compare(path, NULL, machine->states, machine->count, machine->allowed);
    compare("docs/states.md", machine->name, machine->states, machine->count, machine->allowed);
}

static void the_diagrams_of_the_server_are_its_tables(void **state)
{
    (void)state;
    compare_machine("server/core/shard/shard.c", &ampd_machine_step);
    compare_machine("server/core/shard/decided.c", &ampd_machine_decided);
    compare_machine("server/core/shard/memory.c", &ampd_machine_memory);
    compare_machine("server/core/shard/checkpoint_part.c", &ampd_machine_part);
    compare_machine("server/core/shard/checkpoint_part.c", &ampd_machine_part_block);
    compare_machine("server/core/shard/push.c", &ampd_machine_block);
    compare_machine("server/core/coordinator/coord.c", &ampd_machine_coord);
    compare_machine("server/core/coordinator/workers.c", &ampd_machine_lease);
    compare_machine("server/core/base/calls.c", &ampd_machine_call);
}

static void the_diagram_of_the_client_is_its_table(void **state)
{
    (void)state;
    const char *names[AMPCLIENT_STATES_COUNT];
    uint32_t table[AMPCLIENT_STATES_COUNT] = {0};
    for (unsigned s = 0; s < AMPCLIENT_STATES_COUNT; s++) {
        names[s] = ampclient_state_name((enum ampclient_state)s);
        for (unsigned t = 0; t < AMPCLIENT_STATES_COUNT; t++) {
            if (ampclient_state_allowed((enum ampclient_state)s, (enum ampclient_state)t))
                table[s] |= 1u << t;
        }
    }
    compare("client/core/client_core.c", NULL, names, AMPCLIENT_STATES_COUNT, table);
}

static void the_diagram_of_a_clients_units_is_its_table(void **state)
{
    (void)state;
    const char *names[AMPCLIENT_UNIT_STATES_COUNT];
    uint32_t table[AMPCLIENT_UNIT_STATES_COUNT] = {0};
    for (unsigned s = 0; s < AMPCLIENT_UNIT_STATES_COUNT; s++) {
        names[s] = ampclient_unit_state_name((enum ampclient_unit_state)s);
        for (unsigned t = 0; t < AMPCLIENT_UNIT_STATES_COUNT; t++) {
            if (ampclient_unit_state_allowed((enum ampclient_unit_state)s, (enum ampclient_unit_state)t))
                table[s] |= 1u << t;
        }
    }
    compare("client/core/client_units.h", NULL, names, AMPCLIENT_UNIT_STATES_COUNT, table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_diagrams_of_the_server_are_its_tables),
        cmocka_unit_test(the_diagram_of_the_client_is_its_table),
        cmocka_unit_test(the_diagram_of_a_clients_units_is_its_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
