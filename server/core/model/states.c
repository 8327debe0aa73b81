#include "server/core/model/states.h"

#define TO(state) (1u << (state))

static const char *const step_names[] = {"NONE", "OPEN", "CLOSED", "VOTED"};
static const uint32_t step_allowed[AMPD_STEP_STATES] = {
    [AMPD_STEP_NONE] = TO(AMPD_STEP_OPEN) | TO(AMPD_STEP_VOTED),
    [AMPD_STEP_OPEN] = TO(AMPD_STEP_OPEN) | TO(AMPD_STEP_CLOSED) | TO(AMPD_STEP_NONE),
    [AMPD_STEP_CLOSED] = TO(AMPD_STEP_OPEN) | TO(AMPD_STEP_VOTED) | TO(AMPD_STEP_NONE),
    [AMPD_STEP_VOTED] = TO(AMPD_STEP_OPEN) | TO(AMPD_STEP_NONE),
};
const struct ampd_machine ampd_machine_step = {"step", step_names, AMPD_STEP_STATES, step_allowed};

static const char *const decided_names[] = {"NONE", "APPLYING", "APPLIED"};
static const uint32_t decided_allowed[AMPD_DECIDED_STATES] = {
    [AMPD_DECIDED_NONE] = TO(AMPD_DECIDED_APPLYING) | TO(AMPD_DECIDED_APPLIED) | TO(AMPD_DECIDED_NONE),
    [AMPD_DECIDED_APPLYING] = TO(AMPD_DECIDED_APPLIED) | TO(AMPD_DECIDED_NONE),
    [AMPD_DECIDED_APPLIED] = TO(AMPD_DECIDED_APPLYING) | TO(AMPD_DECIDED_NONE),
};
const struct ampd_machine ampd_machine_decided = {"decided", decided_names, AMPD_DECIDED_STATES, decided_allowed};

static const char *const memory_names[] = {"LOST", "RESTORING", "REPLAYING", "RESTORED", "EMPTY", "LOADING", "READY"};
static const uint32_t memory_allowed[AMPD_MEMORY_STATES] = {
    [AMPD_MEMORY_LOST] = TO(AMPD_MEMORY_RESTORING) | TO(AMPD_MEMORY_EMPTY),
    [AMPD_MEMORY_RESTORING] = TO(AMPD_MEMORY_RESTORED) | TO(AMPD_MEMORY_REPLAYING) | TO(AMPD_MEMORY_LOST),
    [AMPD_MEMORY_REPLAYING] = TO(AMPD_MEMORY_READY) | TO(AMPD_MEMORY_LOST) | TO(AMPD_MEMORY_RESTORING),
    [AMPD_MEMORY_RESTORED] = TO(AMPD_MEMORY_READY) | TO(AMPD_MEMORY_RESTORING),
    [AMPD_MEMORY_EMPTY] = TO(AMPD_MEMORY_LOADING) | TO(AMPD_MEMORY_RESTORING),
    [AMPD_MEMORY_LOADING] = TO(AMPD_MEMORY_READY) | TO(AMPD_MEMORY_RESTORING),
    [AMPD_MEMORY_READY] = TO(AMPD_MEMORY_RESTORING),
};
const struct ampd_machine ampd_machine_memory = {"memory", memory_names, AMPD_MEMORY_STATES, memory_allowed};

static const char *const block_names[] = {"EMPTY", "RECEIVING", "PRESENT"};
static const uint32_t block_allowed[AMPD_BLOCK_STATES] = {
    [AMPD_BLOCK_EMPTY] = TO(AMPD_BLOCK_RECEIVING),
    [AMPD_BLOCK_RECEIVING] = TO(AMPD_BLOCK_PRESENT) | TO(AMPD_BLOCK_EMPTY),
    [AMPD_BLOCK_PRESENT] = TO(AMPD_BLOCK_EMPTY),
};
const struct ampd_machine ampd_machine_block = {"block", block_names, AMPD_BLOCK_STATES, block_allowed};

static const char *const part_names[] = {"FREE", "WRITING", "SEALING", "ENDING", "STORING"};
static const uint32_t part_allowed[AMPD_PART_STATES] = {
    [AMPD_PART_FREE] = TO(AMPD_PART_WRITING),
    [AMPD_PART_WRITING] = TO(AMPD_PART_SEALING) | TO(AMPD_PART_ENDING),
    [AMPD_PART_SEALING] = TO(AMPD_PART_STORING) | TO(AMPD_PART_ENDING),
    [AMPD_PART_ENDING] = TO(AMPD_PART_FREE),
    [AMPD_PART_STORING] = TO(AMPD_PART_FREE),
};
const struct ampd_machine ampd_machine_part = {"part", part_names, AMPD_PART_STATES, part_allowed};

static const char *const part_block_names[] = {"DONE", "WAITS", "SAVING", "SAVED", "OUT"};
static const uint32_t part_block_allowed[AMPD_PART_BLOCK_STATES] = {
    [AMPD_PART_BLOCK_DONE] = TO(AMPD_PART_BLOCK_WAITS),
    [AMPD_PART_BLOCK_WAITS] = TO(AMPD_PART_BLOCK_SAVING) | TO(AMPD_PART_BLOCK_OUT) | TO(AMPD_PART_BLOCK_DONE),
    [AMPD_PART_BLOCK_SAVING] = TO(AMPD_PART_BLOCK_SAVED) | TO(AMPD_PART_BLOCK_DONE),
    [AMPD_PART_BLOCK_SAVED] = TO(AMPD_PART_BLOCK_OUT) | TO(AMPD_PART_BLOCK_DONE),
    [AMPD_PART_BLOCK_OUT] = TO(AMPD_PART_BLOCK_DONE),
};
const struct ampd_machine ampd_machine_part_block = {"part_block", part_block_names, AMPD_PART_BLOCK_STATES,
                                                     part_block_allowed};

static const char *const coord_names[] = {"CREATING", "SYNCING", "RESTORING", "STORING",   "CREATED", "LOADED",
                                          "WAITING",  "RUNNING", "STALLED",   "FINISHING", "DONE",    "DELETING"};
/* A shard starts; or it is deleted. */
#define ANY_TIME (TO(AMPD_COORD_SYNCING) | TO(AMPD_COORD_DELETING))
static const uint32_t coord_allowed[AMPD_COORD_STATES] = {
    [AMPD_COORD_CREATING] = TO(AMPD_COORD_CREATED) | ANY_TIME,
    [AMPD_COORD_SYNCING] = TO(AMPD_COORD_RESTORING) | TO(AMPD_COORD_CREATED) | TO(AMPD_COORD_LOADED) |
                           TO(AMPD_COORD_WAITING) | TO(AMPD_COORD_RUNNING) | TO(AMPD_COORD_STALLED) |
                           TO(AMPD_COORD_FINISHING) | TO(AMPD_COORD_DONE) | TO(AMPD_COORD_DELETING),
    [AMPD_COORD_RESTORING] = TO(AMPD_COORD_RESTORING) | TO(AMPD_COORD_STORING) | ANY_TIME,
    [AMPD_COORD_STORING] = TO(AMPD_COORD_CREATED) | TO(AMPD_COORD_WAITING) | TO(AMPD_COORD_DONE) | ANY_TIME,
    [AMPD_COORD_CREATED] = TO(AMPD_COORD_LOADED) | TO(AMPD_COORD_RESTORING) | ANY_TIME,
    [AMPD_COORD_LOADED] = TO(AMPD_COORD_WAITING) | TO(AMPD_COORD_DONE) | ANY_TIME,
    [AMPD_COORD_WAITING] = TO(AMPD_COORD_RUNNING) | TO(AMPD_COORD_RESTORING) | ANY_TIME,
    [AMPD_COORD_RUNNING] = TO(AMPD_COORD_STALLED) | TO(AMPD_COORD_FINISHING) | TO(AMPD_COORD_RESTORING) | ANY_TIME,
    [AMPD_COORD_STALLED] = TO(AMPD_COORD_RUNNING) | TO(AMPD_COORD_RESTORING) | ANY_TIME,
    [AMPD_COORD_FINISHING] = TO(AMPD_COORD_DONE) | TO(AMPD_COORD_RESTORING) | ANY_TIME,
    [AMPD_COORD_DONE] = TO(AMPD_COORD_RESTORING) | ANY_TIME,
    [AMPD_COORD_DELETING] = 0,
};
const struct ampd_machine ampd_machine_coord = {"coord", coord_names, AMPD_COORD_STATES, coord_allowed};

static const char *const lease_names[] = {"NONE", "LIVE", "ENDED", "LEFT"};
static const uint32_t lease_allowed[AMPD_LEASE_STATES] = {
    [AMPD_LEASE_NONE] = TO(AMPD_LEASE_LIVE) | TO(AMPD_LEASE_LEFT),
    [AMPD_LEASE_LIVE] = TO(AMPD_LEASE_LIVE) | TO(AMPD_LEASE_ENDED) | TO(AMPD_LEASE_LEFT),
    [AMPD_LEASE_ENDED] = TO(AMPD_LEASE_LIVE) | TO(AMPD_LEASE_ENDED) | TO(AMPD_LEASE_LEFT),
    [AMPD_LEASE_LEFT] = TO(AMPD_LEASE_LIVE) | TO(AMPD_LEASE_ENDED) | TO(AMPD_LEASE_LEFT),
};
const struct ampd_machine ampd_machine_lease = {"lease", lease_names, AMPD_LEASE_STATES, lease_allowed};

static const char *const call_names[] = {"HELD", "STREAMING", "ENDED", "REVOKING"};
static const uint32_t call_allowed[AMPD_CALL_STATES] = {
    [AMPD_CALL_HELD] = TO(AMPD_CALL_STREAMING),
    [AMPD_CALL_STREAMING] = TO(AMPD_CALL_ENDED) | TO(AMPD_CALL_REVOKING),
    [AMPD_CALL_ENDED] = 0,
    [AMPD_CALL_REVOKING] = 0,
};
const struct ampd_machine ampd_machine_call = {"call", call_names, AMPD_CALL_STATES, call_allowed};

bool ampd_machine_allows(const struct ampd_machine *machine, unsigned from, unsigned to)
{
    return from < machine->count && to < machine->count && (machine->allowed[from] >> to & 1) != 0;
}
