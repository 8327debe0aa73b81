#include "server/io/calls/slot_take.h"

#include "amp/pass.h"
#include "base/assert.h"
#include "base/failpoint.h"

#include <stdlib.h>

static size_t results_at(const struct io_slot_take *take, uint32_t i)
{
    return (size_t)i * take->layout->segments_max;
}

static void run(struct io_task *task)
{
    struct io_slot_take *take = AMP_CONTAINER(task, struct io_slot_take, task);
    for (uint32_t i = 0; i < take->count; i++) {
        uint64_t block = take->first + i, at = i * take->stride;
        if (at + ampd_layout_block_elements(take->layout, block) * amp_dtype_size(take->dtype) > take->left)
            return;
        AMP_FAILPOINT("push.block");
        take->segments[i] = ampd_take_block(take->layout, block, take->dtype, take->from + at, take->to + at,
                                            take->kernels, take->has_terms ? &take->terms : NULL,
                                            take->counts + results_at(take, i), take->votes + results_at(take, i));
        take->whole++;
    }
    AMP_FAILPOINT("push.checked");
}

int io_slot_take_open(struct io_slot_take *take)
{
    AMP_ASSERT(take->count > 0 && take->count <= IO_TAKE_MAX);
    take->task.run_cb = run;
    take->whole = 0;
    take->counts = calloc(results_at(take, take->count), sizeof *take->counts);
    take->votes = calloc(results_at(take, take->count), sizeof *take->votes);
    if (take->counts != NULL && take->votes != NULL)
        return 0;
    io_slot_take_close(take);
    return AMP_ENOMEM;
}

void io_slot_take_close(struct io_slot_take *take)
{
    free(take->counts);
    free(take->votes);
}

struct ampd_event io_slot_take_event(const struct io_slot_take *take, uint32_t i)
{
    AMP_ASSERT(i < take->whole);
    return (struct ampd_event){.type = AMPD_EVENT_PUSH_BLOCK,
                               .u.block = {.block = take->first + i,
                                           .counts_count = take->segments[i],
                                           .counts = take->counts + results_at(take, i),
                                           .terms = take->has_terms ? &take->terms : NULL,
                                           .votes = take->votes + results_at(take, i)}};
}
