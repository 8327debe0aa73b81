/*
 * Whose values an epoch has, and that a version names one state.
 *
 * Loaders race, and loads break off; then another one's values may come. Each of SIM_VALUES loaders has values of its own, so what is
 * seen of an epoch before its first step tells who may have loaded it. All that is seen of one epoch, on any shard, must be of one
 * loader: in files, in pulls, at any time.
 */
#include "tests/sim/sim.h"

#include "base/crc32c.h"
#include "server/core/shard/shard.h"

#include <stdlib.h>
#include <string.h>

void sim_values_init(struct sim *sim)
{
    uint32_t count = sim_has(sim->seed, SIM_LOADS) ? SIM_VALUES : 1;
    for (uint32_t v = 0; v < count; v++) {
        sim->values[v] = calloc(sim->model.layout->elements, sizeof(float));
        sim_model_first(&sim->model, v, sim->values[v]);
    }
    memset(sim->whose, (int)((1u << count) - 1), sizeof(sim->whose));
}

void sim_values_close(struct sim *sim)
{
    for (uint32_t v = 0; v < SIM_VALUES; v++)
        free(sim->values[v]);
}

/* The step after which the load of an epoch is: of the epoch that all before it go back to. */
static uint64_t base_of(const struct sim *sim, uint64_t epoch)
{
    while (sim->epochs[epoch].base_epoch != 0)
        epoch = sim->epochs[epoch].base_epoch;
    return sim->epochs[epoch].base_step;
}

bool sim_values_are_new(const struct sim *sim, uint64_t epoch, uint64_t version)
{
    return epoch < SIM_EPOCHS_MAX && version == (base_of(sim, epoch) == 0 ? 0 : sim->model.base.version);
}

bool sim_values_at(const struct sim *sim, uint64_t epoch, uint64_t step)
{
    return step == base_of(sim, epoch);
}

/* REF begins with what the epoch of shard 0 has. */
static void take(struct sim *sim, uint64_t epoch)
{
    uint32_t v = 0;
    struct sim_state *state = &sim->model.states[base_of(sim, epoch)];
    while ((sim->whose[epoch] >> v & 1) == 0)
        v++;
    if (epoch != sim->shard[0].store.epoch)
        return;
    memcpy(state->master, sim->values[v], sim->model.layout->elements * sizeof(float));
    if (state == sim->model.states)
        return;
    for (uint64_t i = 0; i < sim->model.layout->elements; i++) {
        state->m[i] = sim_model_moment(1, state->master[i]);
        state->v[i] = sim_model_moment(2, state->master[i]);
    }
    state->version = sim->model.base.version;
    state->carry = sim->model.base.carry;
}

void sim_values_epoch(struct sim *sim, const struct ampd_epoch_record *epoch)
{
    if (epoch->base_epoch != 0)
        sim->whose[epoch->epoch] &= sim->whose[epoch->base_epoch];
    take(sim, epoch->epoch);
}

static void narrow(struct sim *sim, uint64_t epoch, uint8_t seen)
{
    if ((sim->whose[epoch] & seen) == 0)
        sim_fail(sim, SIM_BITWISE, "epoch %llu has begun with the values of two loaders, or of none",
                 (unsigned long long)epoch);
    sim->whose[epoch] &= seen;
    take(sim, epoch);
}

void sim_values_masters(struct sim *sim, uint64_t epoch, uint64_t from, uint64_t to, const float *masters)
{
    uint8_t seen = 0;
    for (uint32_t v = 0; v < SIM_VALUES && sim->values[v] != NULL; v++)
        seen |= memcmp(masters, sim->values[v] + from, (to - from) * sizeof(float)) == 0 ? (uint8_t)(1u << v) : 0;
    narrow(sim, epoch, seen);
}

void sim_values_cast(struct sim *sim, uint64_t epoch, uint64_t from, uint64_t to, const void *bytes)
{
    enum amp_dtype cast = sim->model.spec.cast;
    uint32_t want[256];
    uint8_t seen = 0;
    for (uint32_t v = 0; v < SIM_VALUES && sim->values[v] != NULL; v++) {
        (void)amp_kernels_ref.store[cast](want, sim->values[v] + from, to - from);
        seen |= memcmp(bytes, want, (to - from) * amp_dtype_size(cast)) == 0 ? (uint8_t)(1u << v) : 0;
    }
    narrow(sim, epoch, seen);
}

void sim_values_pulled(struct sim *sim, uint64_t epoch, uint64_t version, uint32_t shard, const void *bytes)
{
    const struct sim_shard *from = &sim->shard[shard];
    if (epoch >= SIM_EPOCHS_MAX || version > SIM_STEPS_MAX)
        return;
    uint64_t *first = &sim->pulled[epoch][version][shard];
    size_t size = from->elements * amp_dtype_size(sim->model.spec.cast);
    uint64_t hash = 1 + (uint64_t)amp_crc32c(0, bytes, size);
    if (*first != 0 && *first != hash)
        sim_fail(sim, SIM_BITWISE, "epoch %llu, version %llu has other bytes on shard %u than it had before",
                 (unsigned long long)epoch, (unsigned long long)version, shard);
    *first = hash;
}
