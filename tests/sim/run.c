/* The scheduler: of all that can happen next, one is chosen, and everything is a function of the seed. */
#include "server/core/base/model.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/workers.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "tests/sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INVARIANT_NAME(name, text) text,

static const char *const invariant_names[SIM_INVARIANTS_COUNT] = {SIM_INVARIANTS(INVARIANT_NAME)};

_Noreturn void sim_fail(const struct sim *sim, enum sim_invariant broken, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)fprintf(stderr, "seed %llu, event %llu, %llu ms: broken invariant %s: ", (unsigned long long)sim->seed,
                  (unsigned long long)sim->events, (unsigned long long)sim->now_ms, invariant_names[broken]);
    (void)vfprintf(stderr, format, arguments);
    (void)fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

void sim_trace(struct sim *sim, uint64_t a, uint64_t b)
{
    struct amp_random random;
    amp_random_init(&random, sim->trace ^ (a << 32) ^ b);
    sim->trace = amp_random_next(&random);
}

uint64_t sim_below(struct sim *sim, uint64_t bound)
{
    return amp_random_below(&sim->random, bound);
}

/* ---- what can happen ---- */

enum choice_kind {
    CHOICE_UP,
    CHOICE_DOWN,
    CHOICE_SEND,
    CHOICE_LET_GO,
    CHOICE_CLOSE,
    CHOICE_ACT,
    CHOICE_TASK,
    CHOICE_INBOX,
    CHOICE_OUTBOX,
    CHOICE_SESSION,
    CHOICE_LATE
};

struct choice {
    enum choice_kind kind;
    uint32_t shard;
    uint64_t index;
};

#define CHOICES_MAX (SIM_CALLS_MAX * 4 + 4096)

static uint64_t add_call(struct sim *sim, uint64_t i, struct choice *choices, uint64_t count)
{
    const struct sim_call *call = &sim->calls[i];
    bool here = sim_process(sim, call)->core != NULL;
    if (sim_call_can_go_up(sim, call))
        choices[count++] = (struct choice){CHOICE_UP, call->shard, i};
    if (!amp_list_empty(&call->down) && sim_net_down(sim, call))
        choices[count++] = (struct choice){CHOICE_DOWN, call->shard, i};
    if (call->to_send_count > 0 && !call->over && here)
        choices[count++] = (struct choice){CHOICE_SEND, call->shard, i};
    if (call->revoked && !call->over && here)
        choices[count++] = (struct choice){CHOICE_LET_GO, call->shard, i};
    bool pull = call->kind == SIM_PULL || call->kind == SIM_OBSERVE;
    bool all_sent = pull && call->granted && !call->over && !call->revoked &&
                    (call->pull.unchanged || call->sent == call->pull.count);
    bool orphan = call->lost && !call->over && sim_net_up(sim, call); /* the server notices it at any time */
    if ((all_sent || orphan) && here)
        choices[count++] = (struct choice){CHOICE_CLOSE, call->shard, i};
    return count;
}

static uint64_t add_shard(const struct sim *sim, const struct sim_shard *shard, struct choice *choices, uint64_t count)
{
    uint32_t position = sim_position(sim, shard);
    uint64_t tasks = shard->core == NULL ? 0 : sim_server_ready(sim, shard);
    for (uint64_t t = 0; t < tasks && count < CHOICES_MAX - 3; t++)
        choices[count++] = (struct choice){CHOICE_TASK, position, t};
    if (shard->core != NULL && !amp_list_empty(&shard->inbox) && sim_net_session_down(sim, shard->index))
        choices[count++] = (struct choice){CHOICE_INBOX, position, 0};
    if (sim->shard[shard->peer].core != NULL && !amp_list_empty(&shard->outbox) &&
        sim_net_session_up(sim, shard->index))
        choices[count++] = (struct choice){CHOICE_OUTBOX, position, 0};
    if (sim_session_can_begin(sim, shard))
        choices[count++] = (struct choice){CHOICE_SESSION, position, 0};
    return count;
}

static uint64_t list_choices(struct sim *sim, struct choice *choices)
{
    uint64_t count = 0;
    for (unsigned i = 0; i < sim->calls_end; i++) {
        if (sim->calls[i].used)
            count = add_call(sim, i, choices, count);
    }
    for (uint32_t w = 0; w < sim->model.spec.world_size; w++) {
        if (sim_worker_can_act(sim, w))
            choices[count++] = (struct choice){CHOICE_ACT, 0, w};
    }
    for (uint32_t k = 0; k < sim->shards; k++)
        count = add_shard(sim, &sim->shard[k], choices, count);
    if (sim->shard[SIM_ZOMBIE].core != NULL)
        count = add_shard(sim, &sim->shard[SIM_ZOMBIE], choices, count);
    if (count > 0 && !amp_list_empty(&sim->late)) /* never the last thing that can happen */
        choices[count++] = (struct choice){CHOICE_LATE, 0, 0};
    return count;
}

/* A pull that has sent everything ends with OK; a call whose client is gone is closed. */
static void close_call(struct sim *sim, struct sim_call *call)
{
    sim_call_close(sim, call);
    if (call->lost)
        return;
    struct sim_message *message = sim_message_new(SIM_ENDED);
    message->answer.type = AMPCLIENT_EVENT_ENDED;
    message->answer.u.ended.reason = "";
    message->answer.u.ended.text = "";
    amp_list_push(&call->down, &message->node);
}

/* Which life of a rank an incarnation belongs to is known when its Join is answered. */
static void note_join(struct sim *sim, const struct sim_call *call, const struct sim_message *message)
{
    const struct ampclient_join_answer *join = &message->answer.u.ended.u.join;
    if (message->type == SIM_ENDED && message->error.code == 0 && join->parameters_count != 0 &&
        join->incarnation.fence < SIM_BOOTS_MAX && join->incarnation.counter < SIM_ACTORS_MAX &&
        call->kind == SIM_UNARY)
        sim->actors[join->incarnation.fence][join->incarnation.counter] = call->life;
}

static void do_choice(struct sim *sim, const struct choice *choice)
{
    struct sim_call *call = choice->index < SIM_CALLS_MAX ? &sim->calls[choice->index] : NULL;
    struct sim_shard *shard = &sim->shard[choice->shard];
    sim_trace(sim, 5000 + choice->kind + 10000 * (uint64_t)choice->shard, choice->index);
    struct sim_message *message;
    switch (choice->kind) {
    case CHOICE_UP:
        sim_call_go_up(sim, call);
        break;
    case CHOICE_DOWN:
        message = AMP_CONTAINER(amp_list_shift(&call->down), struct sim_message, node);
        note_join(sim, call, message);
        sim_worker_answer(sim, call, message);
        break;
    case CHOICE_SEND:
        sim_call_send(sim, call);
        break;
    case CHOICE_LET_GO:
        sim_call_let_go(sim, call);
        break;
    case CHOICE_CLOSE:
        close_call(sim, call);
        break;
    case CHOICE_ACT:
        sim_worker_act(sim, (uint32_t)choice->index);
        break;
    case CHOICE_TASK:
        (void)sim_server_run_task(sim, shard, choice->index);
        break;
    case CHOICE_INBOX:
    case CHOICE_OUTBOX:
        sim_session_deliver(sim, shard, choice->kind == CHOICE_OUTBOX);
        break;
    case CHOICE_SESSION:
        sim_session_up(sim, shard);
        break;
    case CHOICE_LATE:
        if (sim_below(sim, sim->restarts && !sim->opens_late ? 4 : 40) == 0)
            sim_session_late(sim, sim_below(sim, sim_session_late_count(sim)));
        break;
    }
}

static void sweep_calls(struct sim *sim)
{
    for (unsigned i = 0; i < sim->calls_end; i++) {
        struct sim_call *call = &sim->calls[i];
        bool onlooker = call->kind == SIM_OBSERVE || call->kind == SIM_ACT;
        bool gone = call->client_gone || (!onlooker && call->life != sim->workers[call->worker].life);
        if (call->used && call->over && gone)
            sim_call_free(call);
    }
    while (sim->calls_end > 0 && !sim->calls[sim->calls_end - 1].used)
        sim->calls_end--;
}

/* ---- time ---- */

static uint64_t earliest(const struct sim *sim)
{
    uint64_t next = sim_net_next(sim), more = sim_kinds_next(sim);
    next = more < next ? more : next;
    uint64_t times[2 * SIM_WORLD_MAX + 2 * SIM_SHARDS_MAX + 3];
    unsigned count = 0;
    times[count++] = sim->end == SIM_DELETING && sim->operator.pause_ms> sim->now_ms ? sim->operator.pause_ms : 0;
    for (uint32_t k = 0; k < sim->shards; k++) {
        const struct sim_shard *shard = &sim->shard[k];
        times[count++] = shard->core == NULL ? shard->restart_ms : shard->timer_ms;
        times[count++] = sim_disk_is_full(sim, shard) ? shard->store.full_until_ms : 0;
    }
    const struct sim_shard *zombie = &sim->shard[SIM_ZOMBIE];
    times[count++] = zombie->core == NULL ? 0 : zombie->timer_ms;
    times[count++] = zombie->core == NULL ? 0 : zombie->restart_ms;
    for (uint32_t w = 0; w < sim->model.spec.world_size; w++) {
        const struct sim_worker *worker = &sim->workers[w];
        times[count++] = worker->core == NULL ? worker->restart_ms : worker->timer_ms;
        times[count++] = worker->core != NULL && worker->pause_ms > sim->now_ms ? worker->pause_ms : 0;
    }
    for (unsigned i = 0; i < count; i++) {
        if (times[i] != 0 && times[i] < next)
            next = times[i];
    }
    return next;
}

static void tick(struct sim *sim, struct sim_shard *shard)
{
    shard->timer_ms = 0;
    struct ampd_event event = {.type = AMPD_EVENT_TICK};
    sim_server_event(sim, shard, &event);
}

static void run_zombie(struct sim *sim)
{
    struct sim_shard *zombie = &sim->shard[SIM_ZOMBIE];
    if (zombie->core != NULL && zombie->restart_ms <= sim->now_ms)
        sim_server_kill(sim, zombie);
    else if (zombie->core != NULL && zombie->timer_ms != 0 && zombie->timer_ms <= sim->now_ms)
        tick(sim, zombie);
}

static bool run_timers(struct sim *sim)
{
    bool any = false;
    sim_net_run(sim);
    sim_kinds_run(sim);
    run_zombie(sim);
    for (uint32_t k = 0; k < sim->shards; k++) {
        struct sim_shard *shard = &sim->shard[k];
        if (shard->core == NULL && shard->restart_ms <= sim->now_ms) {
            sim_server_start(sim, shard);
            any = true;
        } else if (shard->core != NULL && shard->timer_ms != 0 && shard->timer_ms <= sim->now_ms) {
            tick(sim, shard);
            any = true;
        }
    }
    for (uint32_t w = 0; w < sim->model.spec.world_size; w++) {
        struct sim_worker *worker = &sim->workers[w];
        if (worker->core == NULL && worker->restart_ms != 0 && worker->restart_ms <= sim->now_ms) {
            sim_worker_start(sim, w);
            any = true;
        } else if (worker->core != NULL && worker->timer_ms != 0 && worker->timer_ms <= sim->now_ms) {
            sim_worker_tick(sim, w);
            any = true;
        }
    }
    return any;
}

/* ---- faults ---- */

static void break_one(struct sim *sim)
{
    uint64_t start = sim_below(sim, SIM_CALLS_MAX);
    for (unsigned i = 0; i < SIM_CALLS_MAX; i++) {
        struct sim_call *call = &sim->calls[(start + i) % SIM_CALLS_MAX];
        if (!call->used || call->lost || call->client_gone)
            continue;
        sim->breaks--;
        sim_call_lose(sim, call);
        return;
    }
}

static void kill_worker(struct sim *sim)
{
    uint32_t w = (uint32_t)sim_below(sim, sim->model.spec.world_size);
    if (sim->workers[w].core == NULL || sim->workers[w].program == SIM_FINISHED)
        return;
    sim->worker_kills--;
    sim_worker_kill(sim, w);
}

/* Of one machine, or of all of them. */
static void lose_power(struct sim *sim, const struct sim_shard *one)
{
    bool all = sim_below(sim, 3) == 0;
    sim->power_losses--;
    for (uint32_t k = 0; k < sim->shards; k++) {
        struct sim_shard *shard = &sim->shard[k];
        if (!all && shard != one)
            continue;
        if (shard->core != NULL)
            sim_server_kill(sim, shard);
        sim_disk_power_loss(sim, shard);
    }
}

static void fill_disk(struct sim *sim, struct sim_shard *shard)
{
    static const uint64_t times[] = {500, 5000, 35000, 700000};
    sim->disk_full--;
    shard->store.full_until_ms = sim->now_ms + times[sim_below(sim, 4)];
}

/*
 * Seeds that are there for one kind of moment, which the others hardly ever meet: a crash soon after a rollback, before the
 * next checkpoint; and one of a shard whose vote is in the journal, or is on its way to shard 0.
 */
static void maybe_crash(struct sim *sim)
{
    if (sim->server_kills == 0 || !(sim->rolls_back || sim->restarts) || sim_below(sim, 30) != 0)
        return;
    struct sim_shard *shard = &sim->shard[sim_below(sim, sim->shards)];
    if (!sim_server_knows(shard))
        return;
    const struct ampd_shard *inside = shard->core->models[0]->shard;
    bool rolled = inside->epoch == sim->rolled_back && inside->decided.step == inside->base_step;
    bool voted = shard->index != 0 && inside->step.state == AMPD_STEP_VOTED;
    if (sim->rolls_back ? !rolled : !voted)
        return;
    sim->server_kills--;
    sim_server_kill(sim, shard);
}

/* A worker that is replaced in the first try of a step brings another one, of another list. */
static void maybe_replace(struct sim *sim)
{
    const struct sim_shard *zero = &sim->shard[0];
    if (!sim->opens_late || sim->worker_kills == 0 || !sim_server_knows(zero) || sim_below(sim, 30) != 0)
        return;
    const struct ampd_coord *coord = zero->core->models[0]->coord;
    if (coord->step.state == AMPD_STEP_CLOSED && coord->step.open.try_number == 0)
        kill_worker(sim);
}

static void maybe_fault(struct sim *sim)
{
    sim_disk_check(sim);
    sim_kinds_fault(sim);
    maybe_crash(sim);
    maybe_replace(sim);
    if (sim->disks > 0 && sim_below(sim, 300) == 0)
        sim->disks -= sim_disk_lose(sim, &sim->shard[sim_below(sim, sim->shards)]) ? 1 : 0;
    if (sim_below(sim, 120) != 0)
        return;
    uint64_t which = sim_below(sim, 8);
    struct sim_shard *shard = &sim->shard[sim_below(sim, sim->shards)];
    if (which == 0 && sim->server_kills > 0 && shard->core != NULL) {
        sim->server_kills--;
        sim_server_kill(sim, shard);
    } else if (which == 1 && sim->worker_kills > 0) {
        kill_worker(sim);
    } else if (which == 2 && sim->breaks > 0) {
        break_one(sim);
    } else if (which == 3 && sim->cuts > 0 && shard->up) {
        sim->cuts--;
        sim_session_cut(sim, shard);
    } else if (which == 4 && sim->partitions > 0) {
        sim->partitions--;
        sim_net_partition(sim);
    } else if (which == 5 && sim->power_losses > 0) {
        lose_power(sim, shard);
    } else if (which == 6 && sim->disk_full > 0) {
        fill_disk(sim, shard);
    } else if (which == 7 && sim->takeovers > 0 && sim_zombie_can_rise(sim, shard)) {
        sim->takeovers--;
        sim_zombie_rise(sim, shard);
    }
}

/* A worker that has gone home comes back for a model that was rolled back. */
static void call_back(struct sim *sim)
{
    bool done = sim->shard[0].store.last_step == sim->model.spec.max_steps;
    done = done || sim->end >= SIM_DELETING;
    for (uint32_t w = 0; !done && w < sim->model.spec.world_size; w++) {
        if (sim->workers[w].program == SIM_FINISHED)
            sim_worker_kill(sim, w);
    }
}

static bool finished(const struct sim *sim)
{
    for (uint32_t w = 0; w < sim->model.spec.world_size; w++) {
        if (sim->workers[w].program != SIM_FINISHED)
            return false;
    }
    for (uint32_t k = 0; k < sim->shards; k++) {
        const struct sim_shard *shard = &sim->shard[k];
        if (shard->core == NULL || sim_server_tasks(shard) != 0)
            return false;
    }
    if (sim_ends_under_way(sim))
        return false;
    bool told = sim->end != SIM_DELETED || !sim->shard[0].core->sync.running; /* what all shards hold */
    return told && sim->end != SIM_DELETES && sim->end != SIM_DELETING;
}

/* ---- a run ---- */

static void one_event(struct sim *sim)
{
    static struct choice choices[CHOICES_MAX];
    maybe_fault(sim);
    sim_ends_act(sim);
    if (sim->opens_late && sim_below(sim, 4) == 0)
        sim_session_open_late(sim);
    if (sim->observers > 0 && sim_below(sim, 50) == 0)
        sim_observe(sim);
    if (sim_below(sim, 40) == 0)
        sim_operator_act(sim);
    uint64_t count = list_choices(sim, choices);
    bool wait = count == 0 || sim_below(sim, 200) == 0;
    if (wait) {
        uint64_t next = earliest(sim);
        bool asks = sim->end == SIM_DELETES || sim->end == SIM_DELETING; /* the operator, sooner or later */
        if (next == UINT64_MAX && count == 0 && !asks)
            sim_fail(sim, SIM_PROGRESS, "nothing can happen any more");
        if (next != UINT64_MAX) {
            if (next > sim->now_ms)
                sim->now_ms = next;
            (void)run_timers(sim);
        }
    } else {
        struct choice *choice = &choices[sim_below(sim, count)];
        /* An onlooker reads slowly, so that apply overtakes it. */
        bool slow = choice->kind == CHOICE_SEND && sim->calls[choice->index].kind == SIM_OBSERVE;
        if (!slow || sim_below(sim, 10) == 0)
            do_choice(sim, choice);
    }
    sim->events++;
    call_back(sim);
    sweep_calls(sim);
    sim_check_event(sim);
}

bool sim_rolls_back(uint64_t seed)
{
    return seed % 16 == 9;
}

bool sim_takes_back(uint64_t seed)
{
    return seed % 16 == 13;
}

bool sim_is_large(uint64_t seed)
{
    return seed % 16 == 1;
}

bool sim_restarts(uint64_t seed)
{
    return seed % 16 == 5;
}

bool sim_has_operator(uint64_t seed)
{
    return sim_rolls_back(seed) || sim_takes_back(seed) || seed % 5 == 2 || seed % 5 == 3 || seed % 10 == 0;
}

bool sim_ends_deleted(uint64_t seed)
{
    return sim_has_operator(seed) && !sim_rolls_back(seed) && !sim_takes_back(seed) && seed % 3 == 0;
}

bool sim_has_one_result(uint64_t seed)
{
    return !sim_model_by_actor(seed) && !sim_model_quorum(seed) && !sim_model_shrinks(seed) &&
           !sim_has_operator(seed) && !sim_has(seed, SIM_LOADS) && !sim_has(seed, SIM_FULL) &&
           !sim_has(seed, SIM_FLOORS);
}

uint64_t sim_run(uint64_t seed, enum sim_faults faults, bool verbose, uint64_t *result)
{
    struct sim *sim = calloc(1, sizeof(*sim));
    sim->seed = seed;
    sim->verbose = verbose;
    sim->rolls_back = sim_rolls_back(seed);
    sim->takes_back = sim_takes_back(seed);
    sim->restarts = sim_restarts(seed);
    sim->opens_late = sim->restarts && seed % 5 > 2;
    sim->now_ms = 1000;
    amp_random_init(&sim->random, seed);
    sim_model_init(&sim->model, seed);
    if (faults == SIM_DISTURBED && seed % 4 != 0) { /* every fourth seed is a run without faults */
        sim->server_kills = (uint32_t)sim_below(sim, 4);
        sim->worker_kills = (uint32_t)sim_below(sim, 4);
        sim->breaks = (uint32_t)sim_below(sim, 6);
        sim->flips = (uint32_t)sim_below(sim, 3);
        sim->cuts = (uint32_t)sim_below(sim, 5);
        sim->repeats = (uint32_t)sim_below(sim, 24);
        sim->partitions = (uint32_t)sim_below(sim, 4);
        sim->copies = (uint32_t)sim_below(sim, 16);
        sim->power_losses = (uint32_t)sim_below(sim, 2);
        sim->disk_full = (uint32_t)sim_below(sim, 2);
        sim->disk_errors = (uint32_t)sim_below(sim, 2);
        sim->takeovers = (uint32_t)sim_below(sim, 3);
    }
    if (faults == SIM_DISTURBED && sim->restarts) {
        sim->server_kills = 2 + (uint32_t)sim_below(sim, 6);
        sim->worker_kills = (uint32_t)sim_below(sim, 6);
        sim->repeats = 40;
    }
    if (faults == SIM_DISTURBED && sim->opens_late)
        sim->worker_kills += 6, sim->repeats = 200;
    if (faults == SIM_DISTURBED && sim->rolls_back)
        sim->server_kills = 1 + (uint32_t)sim_below(sim, 4);
    if (faults == SIM_DISTURBED && sim_ends_in_order(seed))
        sim->ends = 1 + (uint32_t)sim_below(sim, 4);
    if (faults == SIM_DISTURBED && sim_loses_disks(seed))
        sim->disks = 1 + (uint32_t)sim_below(sim, 2);
    sim->operator.left = sim_has_operator(seed) ? (uint32_t)sim_below(sim, 4) : 0;
    if (sim->rolls_back || sim->takes_back)
        sim->operator.left = 2 +(uint32_t) sim_below(sim, 4);
    if (sim_ends_deleted(seed)) {
        sim->end = SIM_DELETES;
        sim->delete_after = sim_below(sim, sim->model.spec.max_steps + 1);
    }
    sim->slow_disk = seed % 5 == 0;
    sim->observers = (uint32_t)sim_below(sim, 8);
    sim_values_init(sim);
    sim_server_init(sim, faults == SIM_DISTURBED && seed % 4 != 0);
    for (uint32_t w = 0; w < sim->model.spec.world_size; w++)
        sim_worker_start(sim, w);
    while (!finished(sim))
        one_event(sim);
    sim_check_end(sim);
    *result = sim_check_result_hash(sim);
    if (verbose)
        (void)fprintf(stderr, "seed %llu: %llu events, %llu ms, %llu steps decided, %llu skipped, %llu epochs\n",
                      (unsigned long long)seed, (unsigned long long)sim->events, (unsigned long long)sim->now_ms,
                      (unsigned long long)sim->steps_decided, (unsigned long long)sim->steps_skipped,
                      (unsigned long long)sim->epochs_seen);
    uint64_t trace = sim->trace;
    sim_check_close(sim);
    sim_values_close(sim);
    sim_server_close(sim);
    for (uint32_t w = 0; w < sim->model.spec.world_size; w++)
        sim_worker_close(sim, w);
    sim_model_close(&sim->model);
    free(sim);
    return trace;
}
