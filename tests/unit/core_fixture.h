/* A host for the server's core in unit tests: does what outputs ask for at once, and keeps what a test looks at. */
#ifndef AMPD_TEST_CORE_FIXTURE_H
#define AMPD_TEST_CORE_FIXTURE_H

#include "server/core/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define CORE_CALLS_MAX  1024
#define CORE_TASKS_MAX  64
#define CORE_BLOCKS_MAX 8
#define CORE_STEPS_MAX  72 /* that are kept: more than AMPD_VOTE_JOURNAL_STEPS */

/* What became of a call. */
struct core_call {
    bool answered, granted, revoked;
    struct ampd_reply reply; /* without its pointers */
    struct ampd_overflow_row rows[AMPD_OVERFLOW_ROWS_MAX];
    struct ampd_block_range ranges[CORE_BLOCKS_MAX];
    char taken_by[AMP_ERROR_TEXT_MAX];
    uint8_t listed[CORE_BLOCKS_MAX]; /* 1: receive or send, 2: drop */
    struct ampd_push_grant push;
    struct ampd_pull_grant pull;
    struct ampd_load_grant load;
};

/* A vote as the journal has it. */
struct core_record {
    struct ampd_vote_journal_key key;
    uint8_t notes[4096];
    uint64_t notes_size;
    bool has_g;
    float g[CORE_BLOCKS_MAX * AMPD_ALIGN_ELEMENTS];
};

struct core_host {
    struct ampd_core *core;
    uint64_t now_ms;
    int64_t utc_us; /* that events bring */
    uint64_t last_call;
    struct core_call calls[CORE_CALLS_MAX];
    bool hold_journal;
    uint8_t notes[4096];                        /* of the vote that is being written */
    struct core_record journal[CORE_STEPS_MAX]; /* as written, oldest first */
    uint32_t journal_count;
    int journal_code;                          /* what a read of it ends with; 0: it finds the record, or none */
    uint64_t pruned;                           /* newest step that was pruned */
    struct ampd_step_row rows[CORE_STEPS_MAX]; /* notified, oldest first */
    uint32_t rows_count;
    bool hold_jobs, hold_persists, hold_files; /* kept in tasks instead of done at once */
    struct ampd_output tasks[CORE_TASKS_MAX];
    unsigned tasks_count;
    unsigned persists[12]; /* by kind */
    unsigned cuts, notified, drained, dropped, cancelled;
    unsigned removed;           /* files of void checkpoints, */
    uint64_t removed_step;      /* the last of them, */
    unsigned removed_first;     /* and how many had been removed when the newest part began */
    bool hold_seal;             /* a part is not finished when its last block is in: core_cut_end does that */
    struct ampd_part_order cut; /* the part that is being written, */
    uint64_t cut_left;          /* and how many of its blocks are not */
    uint64_t timer_ms;
    struct ampd_step_row row;                          /* the last that was notified */
    struct ampd_epoch_record epoch;                    /* the last that was stored, */
    struct ampd_step_row epoch_row;                    /* and its row */
    struct ampd_step_row act_row;                      /* the last SET or RESET that was stored */
    char logged[AMP_ERROR_TEXT_MAX];                   /* the last line */
    char logged_before[AMP_ERROR_TEXT_MAX];            /* and the one before it */
    unsigned logged_count;                             /* lines */
    uint64_t instance;                                 /* of the process that joins; 1 */
    double lr;                                         /* of pushes, with schedule WORKER */
    const struct ampd_metrics *metrics;                /* that pushes tell; NULL: none */
    struct ampd_checkpoint_state restore_state;        /* what a restore finds; step 0: the scaler's first state */
    float file[CORE_BLOCKS_MAX * AMPD_ALIGN_ELEMENTS]; /* masters of the last part */
    struct ampd_checkpoint_state file_state;
    bool has_file;              /* a restore finds `file` */
    int restore_code;           /* what the next restore finds, */
    int restore_codes;          /* and all of them; 0: what is there */
    uint64_t restored_steps[8]; /* which checkpoints were asked for */
    unsigned restored_count;
};

/* Two parameters, "a" of 100 and "b" of 10 elements: blocks 0 and 1 hold a, block 2 holds b. SGD with rate 1. */
void core_spec(struct ampd_model_spec *spec, uint32_t world_size);

/* Where the hosts to come have their cast copies; NULL: from malloc. */
extern const struct ampd_copy_memory *core_copy_memory;

void core_host_init(struct core_host *host, uint64_t boot);
void core_host_close(struct core_host *host);

/* Sends one event, and does what comes of it. */
void core_event(struct core_host *host, struct ampd_event *event);
/* Does a task that was held back, and takes it off the list. */
void core_do_task(struct core_host *host, unsigned index);
void core_do_all(struct core_host *host);
/* Ends the part that is being written, with AMPD_EVENT_PART_WRITTEN. */
void core_cut_end(struct core_host *host, int code);
void core_tick(struct core_host *host, uint64_t now_ms);
struct core_call *core_call(struct core_host *host, uint64_t call);

/* ---- calls; each returns its number ---- */
uint64_t core_create(struct core_host *host, const struct ampd_model_spec *spec);
uint64_t core_load(struct core_host *host, float value); /* every element; all blocks and the end, if granted */
uint64_t core_join(struct core_host *host, const char *worker, int32_t rank);
struct ampd_incarnation core_joined(struct core_host *host, uint64_t call);
uint64_t core_pull_step(struct core_host *host, uint64_t epoch, uint64_t step);
uint64_t core_pull_version(struct core_host *host, uint64_t version);
uint64_t core_pull_latest(struct core_host *host);
uint64_t core_push_header(struct core_host *host, uint64_t step, uint32_t rank, struct ampd_incarnation incarnation);
/* As core_push_header, with every field given. */
uint64_t core_push_event(struct core_host *host, const struct ampd_event_push *push);
void core_push_block(struct core_host *host, uint64_t call, uint64_t block, float value);
void core_push_end(struct core_host *host, uint64_t call, const uint32_t *absent, uint32_t absent_count);
/* Header, all three blocks of one value, and the end. */
uint64_t core_push_all(struct core_host *host, uint64_t step, uint32_t rank, struct ampd_incarnation incarnation,
                       float value);
/* What operators ask for. `id`: the request id, or "". */
uint64_t core_set_scale(struct core_host *host, float scale, const char *id);
uint64_t core_reset_scale(struct core_host *host, const char *id);
uint64_t core_set_lr(struct core_host *host, double lr, const char *id);
uint64_t core_evict(struct core_host *host, uint32_t rank, const char *id);
uint64_t core_rollback(struct core_host *host, uint64_t epoch, uint64_t step, const char *id);
uint64_t core_delete(struct core_host *host, bool force);
uint64_t core_checkpoint(struct core_host *host);
uint64_t core_push_state(struct core_host *host, uint64_t epoch, uint64_t step, uint32_t rank,
                         struct ampd_incarnation incarnation);
void core_close_call(struct core_host *host, uint64_t call);
void core_revoked(struct core_host *host, uint64_t call);

/* A model with two ranks that have joined; step 1 is open. */
void core_running(struct core_host *host, struct ampd_incarnation incarnations[2]);

/* The call has failed with this code and reason, and a text that holds `word`. */
void core_assert_failed(struct core_host *host, uint64_t call, int code, const char *reason, const char *word);
void core_assert_held(struct core_host *host, uint64_t call);
struct ampd_model_info core_info(struct core_host *host);

#endif
