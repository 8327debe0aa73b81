/*
 * Bytes of a server into the links of a client with calls under way. The input is a byte of choices, a script and what
 * the server says; the script also begins calls, ends them, loses the connection and makes another.
 */
#include "tests/fuzz/h2.h"

#include "base/err.h"
#include "base/random.h"
#include "rpc/h2/request.h"
#include "rpc/wire/retry.h"

#include <stdlib.h>

#define CONNS_MAX   4 /* open at a time */
#define MADE_MAX    8 /* by one input: a new session costs more than most inputs */
#define CALLS_MAX   24
#define MESSAGE_MAX 4096

static struct fuzz_conn conns[CONNS_MAX];
static struct fuzz_conn *current; /* the newest */
static size_t made;
static struct arpc_link parking;
static struct amp_random retry_random;

static void wake(struct arpc_link *link)
{
    (void)link;
}

/* Another connection; those before it stay until they are over. */
static void connect_anew(void)
{
    for (size_t i = 0; i < CONNS_MAX; i++) {
        if (conns[i].open || made == MADE_MAX)
            continue;
        made++;
        current = &conns[i];
        fuzz_conn_open(current);
        arpc_link_tick(&parking);
        arpc_link_move(&parking, &current->link);
        return;
    }
}

static void begin_call(unsigned kind)
{
    static const char *const paths[] = {"/t.T/Unary", "/t.T/Up", "/t.T/Down", "/t.T/Both"};
    static const struct arpc_pair metadata[] = {{"x-text", "some text"}, {"x-data-bin", "AAEC"}};
    static const struct arpc_retry_policy policies[] = {{.retryable_status_codes = 0x1fffe, .max_attempts = 9},
                                                        {.initial_backoff_ms = 4000, .max_backoff_ms = 5000}};
    if (fuzz_h2.config.calls >= CALLS_MAX)
        return;
    struct fuzz_call *user = fuzz_call_new();
    AMP_ASSERT(user != NULL);
    bool takes = current->open && arpc_link_takes_calls(&current->link);
    struct arpc_link *link = takes ? &current->link : &parking;
    struct arpc_call *call;
    const struct arpc_handler *handler = kind % 4 == 2 ? &fuzz_collecting : &fuzz_taking;
    AMP_ASSERT(arpc_request_new(link, paths[kind % 4], metadata, kind % 3, handler, &call, NULL) == 0);
    user->call = call;
    call->user = user;
    call->in.max_message = MESSAGE_MAX;
    call->in.single_inbound = kind % 2 == 0;
    call->wait_for_ready = (kind & 4) != 0;
    if ((kind & 1) != 0)
        arpc_retry_init(&call->attempt.retry, &policies[kind / 2 % 2]);
    if ((kind & 2) != 0) {
        call->deadline_ms = fuzz_h2.now_ms + 8000;
        arpc_link_due(link, call->deadline_ms);
    }
    fuzz_call_send(user, kind % 4 == 3 ? 40000 : 10, kind == 5);
    if (kind % 4 != 3)
        arpc_call_half_close(call);
}

static void act(unsigned what)
{
    fuzz_h2_act(what);
    switch (what) {
    case FUZZ_ACT_DRAIN:
        arpc_link_drain(&current->link);
        break;
    case FUZZ_ACT_EXPEL:
        fuzz_conn_close(current);
        break;
    case FUZZ_ACT_PIECES:
        current->batch.most = current->batch.most == 0 ? 100 : 0;
        break;
    case 20:
        connect_anew();
        break;
    case 21:
        arpc_link_fail_parked(&parking, "no server answers");
        break;
    default:
        if (what >= FUZZ_ACT_OWN)
            begin_call(what - FUZZ_ACT_OWN);
    }
}

static void pump_all(bool stuck, bool late)
{
    size_t calls = 0;
    for (size_t i = 0; i < CONNS_MAX; i++) {
        if (!conns[i].open)
            continue;
        arpc_link_tick(&conns[i].link);
        fuzz_conn_pump(&conns[i], stuck, late);
        if (arpc_link_is_over(&conns[i].link))
            fuzz_conn_close(&conns[i]);
    }
    arpc_link_tick(&parking);
    if (current->open && arpc_link_takes_calls(&current->link))
        arpc_link_move(&parking, &current->link);
    while (arpc_link_flush(&parking))
        ;
    fuzz_link_check(&parking, false);
    for (size_t i = 0; i < CONNS_MAX; i++)
        calls += conns[i].open ? conns[i].link.call_count : 0;
    AMP_ASSERT(calls + parking.call_count == fuzz_h2.config.calls);
}

static void step(struct fuzz_input *input, struct fuzz_step step)
{
    size_t size;
    uint8_t *segment = fuzz_segment(input, step.size, &size);
    if (current->open)
        fuzz_link_receive(&current->link, segment, size);
    free(segment);
    act(step.act);
    fuzz_h2.now_ms += fuzz_h2_wait_ms(step.act);
    pump_all(step.act == FUZZ_ACT_STUCK, step.act == FUZZ_ACT_LATE);
    if (!current->open && input->size > 0)
        connect_anew();
}

static void open_client(unsigned choices)
{
    struct arpc_link_config *config = &fuzz_h2.config;
    fuzz_h2_open(false, choices);
    config->max_streams = 1024;
    config->parking = &parking;
    config->random = &retry_random;
    config->max_retained = 100000;
    config->max_retained_call = 50000;
    amp_random_init(&retry_random, choices);
    arpc_retry_throttle_init(&config->throttle, 10, 0.1);
    AMP_ASSERT(arpc_link_init(&parking, config, wake, false) == 0);
    made = 0;
    connect_anew();
    for (unsigned kind = 0; kind < 4; kind++)
        begin_call(kind + (choices & 4));
    pump_all(false, false);
}

static void close_client(void)
{
    for (size_t i = 0; i < CONNS_MAX; i++)
        fuzz_conn_close(&conns[i]);
    arpc_link_abort(&parking, ARPC_STATUS_CANCELLED, "the input is over");
    while (arpc_link_flush(&parking))
        ;
    AMP_ASSERT(parking.call_count == 0 && parking.buffered == 0);
    arpc_link_close(&parking);
    fuzz_h2_close();
}

void fuzz_one(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size};
    struct fuzz_script script;
    open_client(fuzz_byte(&input));
    fuzz_script_read(&script, &input);
    do
        step(&input, fuzz_script_next(&script));
    while (input.size > 0 && (current->open || made < MADE_MAX));
    while (script.at < script.count)
        step(&input, fuzz_script_next(&script));
    close_client();
}
