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
/* Bytes of a record around its event. */
#define AMPCTL_TFEVENTS_FRAME 16

/* A value of a summary: a text or, if that is NULL, a number. */
struct ampctl_tfvalue {
    const char *tag;
    float number;
    const char *text;
};

/* Each of the next three functions appends one record; wall_time in seconds since 1970. 0; a code of amp_buf_append. */

/* The first record of a file: it is an event file of version 2. */
int ampctl_tfevents_begin(struct amp_buf *out, double wall_time);
/* Makes TensorBoard drop this step and those after it, since a model that was rolled back goes on there. */
int ampctl_tfevents_restart(struct amp_buf *out, double wall_time, uint64_t step);
int ampctl_tfevents_values(struct amp_buf *out, double wall_time, uint64_t step, const struct ampctl_tfvalue *values,
                           size_t count);

/* An event that was read; `summary` is a view of its bytes. */
struct ampctl_tfevent {
    uint64_t step;
    bool restarts; /* it was written by ampctl_tfevents_restart */
    const uint8_t *summary;
    size_t summary_size;
};

/*
 * Reads the record at `data`. 1: *event and *used, the bytes of the record, are set. 0: the record is longer than
 * `size` bytes; *used is the least size it can have. AMP_EINVAL: this is no record, or it is damaged.
 */
int ampctl_tfevents_read(const uint8_t *data, size_t size, struct ampctl_tfevent *event, size_t *used);

/* Reads an event without the record around it. 1: *event is set. AMP_EINVAL: this is no event. */
int ampctl_tfevents_parse(const uint8_t *data, size_t size, struct ampctl_tfevent *event);

/* Get the value of a tag: its number, or a copy of its text, at most `capacity` - 1 bytes. False: there is none. */
bool ampctl_tfevents_number(const struct ampctl_tfevent *event, const char *tag, float *number);
bool ampctl_tfevents_text(const struct ampctl_tfevent *event, const char *tag, char *text, size_t capacity);

#endif
