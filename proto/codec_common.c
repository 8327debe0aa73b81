#include "proto/codec_messages.h"

/* The first and last second of years 1 and 9999, as google.protobuf.Timestamp bounds them. */
#define SECONDS_MIN INT64_C(-62135596800)
#define SECONDS_MAX INT64_C(253402300799)

#define US_PER_SECOND 1000000
#define NS_PER_US     1000

/* One array field, so that .options files that were not found are noticed: strings and arrays would be callbacks. */
_Static_assert(sizeof(((ampd_v1_StepResult *)0)->clip_coefficients) == AMPD_MSG_GROUPS_MAX * sizeof(float),
               "common.options was not read");

static const struct ampd_codec_field time_fields[] = {
    google_protobuf_Timestamp_FIELDLIST(AMPD_ROW, google_protobuf_Timestamp)};

static const char *time_check(const uint8_t *data, size_t size)
{
    google_protobuf_Timestamp time = google_protobuf_Timestamp_init_zero;
    pb_istream_t stream = pb_istream_from_buffer(data, size);
    if (!pb_decode(&stream, google_protobuf_Timestamp_fields, &time))
        return "is not a time";
    if (time.seconds < SECONDS_MIN || time.seconds > SECONDS_MAX)
        return "seconds are outside of years 1 to 9999";
    return time.nanos < 0 || time.nanos > 999999999 ? "nanos are not in 0 to 999999999" : NULL;
}

const struct ampd_codec_desc ampd_codec_desc_google_protobuf_Timestamp = {
    .name = "google_protobuf_Timestamp", .fields = time_fields, .count = 2, .check_cb = time_check};

void ampd_codec_out_google_protobuf_Timestamp(const struct ampd_msg_time *m, google_protobuf_Timestamp *p)
{
    int64_t seconds = m->us / US_PER_SECOND;
    int64_t rest = m->us % US_PER_SECOND;
    if (rest < 0) {
        rest += US_PER_SECOND;
        seconds--;
    }
    *p = (google_protobuf_Timestamp){.seconds = seconds, .nanos = (int32_t)rest * NS_PER_US};
}

void ampd_codec_prepare_google_protobuf_Timestamp(struct ampd_msg_time *m, google_protobuf_Timestamp *p)
{
    *m = (struct ampd_msg_time){0};
    *p = (google_protobuf_Timestamp)google_protobuf_Timestamp_init_zero;
}

void ampd_codec_in_google_protobuf_Timestamp(const google_protobuf_Timestamp *p, struct ampd_msg_time *m)
{
    m->us = p->seconds * US_PER_SECOND + p->nanos / NS_PER_US;
}

void ampd_codec_free_google_protobuf_Timestamp(struct ampd_msg_time *m)
{
}

AMPD_CODEC(ampd_v1_Incarnation, ampd_msg_incarnation)
AMPD_CODEC(ampd_v1_BlockRange, ampd_msg_block_range)
AMPD_CODEC_PUBLIC(ampd_v1_BlockRange, ampd_msg_block_range)
AMPD_CODEC_LIST(ampd_v1_BlockRange, ampd_msg_block_range)
AMPD_CODEC(ampd_v1_Shard, ampd_msg_shard)
AMPD_CODEC_LIST(ampd_v1_Shard, ampd_msg_shard)
AMPD_CODEC(ampd_v1_ScaleRecord, ampd_msg_scale_record)
AMPD_CODEC(ampd_v1_Metric, ampd_msg_metric)
AMPD_CODEC(ampd_v1_OverflowTotals, ampd_msg_overflow_totals)
AMPD_CODEC(ampd_v1_OverflowRow, ampd_msg_overflow_row)
AMPD_CODEC_LIST(ampd_v1_OverflowRow, ampd_msg_overflow_row)
AMPD_CODEC(ampd_v1_RangeWarning, ampd_msg_range_warning)
AMPD_CODEC_LIST(ampd_v1_RangeWarning, ampd_msg_range_warning)
