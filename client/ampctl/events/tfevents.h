/*
 * TensorBoard's event files: records of an Event each (tensorflow/core/util/event.proto), in the frame of TFRecord.
 * Only what ampctl writes is known here: scalars and texts of a step, and that a step and those after it come again.
 *
 * A record: its length in 8 bytes, the masked CRC32C of these, the event, the masked CRC32C of the event; all little
 * endian. The mask keeps the checksum of bytes that hold checksums themselves meaningful.
 */
#ifndef AMPCTL_TFEVENTS_H
#define AMPCTL_TFEVENTS_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* No event of ours is longer: a step has a few scalars and one explanation. A longer one is damage. */
#define AMPCTL_TFEVENTS_EVENT_MAX (1u << 20)
/* What stands around an event. */
#define AMPCTL_TFEVENTS_FRAME 16

/* A value of a summary: a text, or a number where there is none. */
struct ampctl_tfvalue {
    const char *tag;
    float number;
    const char *text;
};

/* Each appends one record; wall_time in seconds since 1970. 0 or an error of amp_buf_append. */

/* The first one of a file: that it is one of event files, version 2. */
int ampctl_tfevents_begin(struct amp_buf *out, double wall_time);
/* TensorBoard drops what it has of this step and those after it: a model that was rolled back goes on there. */
int ampctl_tfevents_restart(struct amp_buf *out, double wall_time, uint64_t step);
int ampctl_tfevents_values(struct amp_buf *out, double wall_time, uint64_t step, const struct ampctl_tfvalue *values,
                           size_t count);

/* An event that was read; a view of its bytes. */
struct ampctl_tfevent {
    uint64_t step;
    bool restarts;
    const uint8_t *summary;
    size_t summary_size;
};

/*
 * Reads the record at `data`. 1: *event is it, and *used its bytes; 0: it goes on behind the `size` bytes, in *used at
 * least, as far as is known; AMP_EINVAL: this is no record, or it is damaged.
 */
int ampctl_tfevents_read(const uint8_t *data, size_t size, struct ampctl_tfevent *event, size_t *used);

/* The same of the event's own bytes: 1 or AMP_EINVAL. */
int ampctl_tfevents_parse(const uint8_t *data, size_t size, struct ampctl_tfevent *event);

/* The value of a tag: its number, or its text of at most `capacity` - 1 bytes. False: the event has none. */
bool ampctl_tfevents_number(const struct ampctl_tfevent *event, const char *tag, float *number);
bool ampctl_tfevents_text(const struct ampctl_tfevent *event, const char *tag, char *text, size_t capacity);

#endif
