/*
 * Bytes of a client into the link of a server with a method of each kind, health and reflection. The input is a byte of
 * choices, a script and what the client says; between its segments the clock moves, and users of calls act.
 */
#include "tests/fuzz/h2.h"

#include "proto/descriptors.h"
#include "rpc/services/health.h"
#include "rpc/services/reflection.h"

#include <stdlib.h>

#define SERVICE     "t.T"
#define MESSAGE_MAX 4096

static const struct arpc_method rows[] = {{SERVICE, "Unary", ARPC_UNARY, true, 0, MESSAGE_MAX, &fuzz_collecting},
                                          {SERVICE, "Up", ARPC_CLIENT_STREAM, false, 0, MESSAGE_MAX, &fuzz_taking},
                                          {SERVICE, "Down", ARPC_SERVER_STREAM, true, 0, MESSAGE_MAX, &fuzz_collecting},
                                          {SERVICE, "Both", ARPC_BIDI, false, 0, MESSAGE_MAX, &fuzz_collecting},
                                          {SERVICE, "Bits", ARPC_BIDI, false, 0, MESSAGE_MAX, &fuzz_taking},
                                          {SERVICE, "None", ARPC_UNARY, true, 0, MESSAGE_MAX, NULL}};

static struct fuzz_conn conn;

static void open_server(unsigned choices)
{
    struct arpc_link_config *config = &fuzz_h2.config;
    fuzz_h2_open(true, choices);
    AMP_ASSERT(arpc_method_table_add(&config->methods, rows, sizeof rows / sizeof *rows, NULL) == 0);
    AMP_ASSERT(arpc_health_new(config->methods.rows, config->methods.count, &config->health) == 0);
    AMP_ASSERT(arpc_method_table_add(&config->methods, arpc_health_methods, arpc_health_method_count, NULL) == 0);
    AMP_ASSERT(arpc_reflection_new(ampd_descriptor_set, ampd_descriptor_set_size, &config->reflection, NULL) == 0);
    AMP_ASSERT(arpc_method_table_add(&config->methods, arpc_reflection_methods, arpc_reflection_method_count, NULL) ==
               0);
    fuzz_conn_open(&conn);
}

static void close_server(void)
{
    struct arpc_link_config *config = &fuzz_h2.config;
    fuzz_conn_close(&conn);
    fuzz_h2_close();
    arpc_method_table_close(&config->methods);
    arpc_health_free(config->health);
    arpc_reflection_free(config->reflection);
}

static void act(unsigned what)
{
    struct arpc_health *health = fuzz_h2.config.health;
    fuzz_h2_act(what);
    switch (what) {
    case FUZZ_ACT_DRAIN:
        arpc_link_drain(&conn.link);
        break;
    case FUZZ_ACT_EXPEL:
        arpc_link_expel(&conn.link, 0, "expelled");
        break;
    case FUZZ_ACT_PIECES:
        conn.batch.most = conn.batch.most == 0 ? 100 : 0;
        break;
    case FUZZ_ACT_OWN:
        (void)arpc_health_set(health, SERVICE, false);
        break;
    case FUZZ_ACT_OWN + 1:
        (void)arpc_health_set(health, "", true);
        break;
    case FUZZ_ACT_OWN + 2:
        arpc_health_drain(health);
        break;
    default:
        break;
    }
}

static void step(struct fuzz_input *input, struct fuzz_step step)
{
    size_t size;
    uint8_t *segment = fuzz_segment(input, step.size, &size);
    fuzz_link_receive(&conn.link, segment, size);
    free(segment);
    act(step.act);
    fuzz_h2.now_ms += fuzz_h2_wait_ms(step.act);
    arpc_link_tick(&conn.link);
    AMP_ASSERT(conn.link.next_due_ms > fuzz_h2.now_ms || conn.link.error != 0);
    fuzz_conn_pump(&conn, step.act == FUZZ_ACT_STUCK, step.act == FUZZ_ACT_LATE);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size};
    struct fuzz_script script;
    open_server(fuzz_byte(&input));
    fuzz_script_read(&script, &input);
    do
        step(&input, fuzz_script_next(&script));
    while (input.size > 0 && !arpc_link_is_over(&conn.link));
    /* What the script has not said yet happens after the last byte. */
    while (script.at < script.count && !arpc_link_is_over(&conn.link))
        step(&input, fuzz_script_next(&script));
    close_server();
}
