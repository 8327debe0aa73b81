/*
 * Inside of the codec: how a plain struct and nanopb's struct of the same message become each other.
 *
 * nanopb describes each message by a list, X(a, allocation, rule, type, name, number), and the plain structs keep its
 * field names. So the conversion of a message is that list, expanded with the macros below, and a new field costs its
 * line in the .proto and its line in the struct; a field whose sizes differ does not compile.
 *
 * For a message T (ampd_v1_X) and its struct S (ampd_msg_x), AMPD_CODEC(T, S) makes
 *   ampd_codec_out_T      S to T. Lists and bytes become callbacks that read from S, which must outlive T.
 *   ampd_codec_prepare_T  zeroes both and sets the callbacks that will read lists and bytes into S
 *   ampd_codec_in_T       what nanopb decoded into T, but lists and bytes, to S
 *   ampd_codec_free_T     frees the lists and bytes of S
 *   ampd_codec_desc_T     names, types and bounds of the fields, for codec_check.c
 * and AMPD_CODEC_LIST(T, S, MAX) the callbacks of a list of them. A message whose field has a max_count in its .options
 * is an array in the struct, as numbers are, and needs no list; it holds no lists and bytes itself.
 */
#ifndef AMPD_PROTO_CODEC_MESSAGES_H
#define AMPD_PROTO_CODEC_MESSAGES_H

#include "proto/codec_fields.h"

#define AMPD_ROW(T, at, ht, lt, f, number)                                                                             \
    {.tag = (number),                                                                                                  \
     .name = #f,                                                                                                       \
     .kind = AMPD_CODEC_##lt,                                                                                          \
     .repeated = AMPD_IS_##ht,                                                                                         \
     .max = AMPD_CAT(AMPD_MAX_, AMPD_CLASS_##at##_##ht##_##lt)(T, f),                                                  \
     .sub = AMPD_CAT(AMPD_SUB_, AMPD_CLASS_##at##_##ht##_##lt)(T, f)},

#define AMPD_CODEC_DECLARE(T, S)                                                                                       \
    extern const struct ampd_codec_desc ampd_codec_desc_##T;                                                           \
    void ampd_codec_out_##T(const struct S *m, T *p);                                                                  \
    void ampd_codec_prepare_##T(struct S *m, T *p);                                                                    \
    void ampd_codec_in_##T(const T *p, struct S *m);                                                                   \
    void ampd_codec_free_##T(struct S *m);

#define AMPD_CODEC(T, S)                                                                                               \
    AMPD_CODEC_DECLARE(T, S)                                                                                           \
    static const struct ampd_codec_field fields_##T[] = {T##_FIELDLIST(AMPD_ROW, T)};                                  \
    _Static_assert(sizeof fields_##T / sizeof fields_##T[0] <= AMPD_CODEC_FIELDS_MAX, "too many fields");              \
    const struct ampd_codec_desc ampd_codec_desc_##T = {                                                               \
        .name = #T, .fields = fields_##T, .count = sizeof fields_##T / sizeof fields_##T[0]};                          \
    void ampd_codec_out_##T(const struct S *m, T *p)                                                                   \
    {                                                                                                                  \
        memset(p, 0, sizeof *p);                                                                                       \
        T##_FIELDLIST(AMPD_OUT, T)                                                                                     \
    }                                                                                                                  \
    void ampd_codec_prepare_##T(struct S *m, T *p)                                                                     \
    {                                                                                                                  \
        memset(m, 0, sizeof *m);                                                                                       \
        memset(p, 0, sizeof *p);                                                                                       \
        T##_FIELDLIST(AMPD_PREPARE, T)                                                                                 \
    }                                                                                                                  \
    void ampd_codec_in_##T(const T *p, struct S *m)                                                                    \
    {                                                                                                                  \
        T##_FIELDLIST(AMPD_IN, T)                                                                                      \
    }                                                                                                                  \
    void ampd_codec_free_##T(struct S *m)                                                                              \
    {                                                                                                                  \
        T##_FIELDLIST(AMPD_FREE, T)                                                                                    \
    }

#define AMPD_CODEC_LIST_DECLARE(T, S, MAX)                                                                             \
    enum { ampd_codec_list_max_##T = (MAX) };                                                                          \
    bool ampd_codec_list_out_##T(pb_ostream_t *stream, const pb_field_t *field, void *const *arg);                     \
    bool ampd_codec_list_in_##T(pb_istream_t *stream, const pb_field_t *field, void **arg);                            \
    void ampd_codec_list_free_##T(struct S##_list *list);

#define AMPD_CODEC_LIST(T, S)                                                                                          \
    bool ampd_codec_list_out_##T(pb_ostream_t *stream, const pb_field_t *field, void *const *arg)                      \
    {                                                                                                                  \
        const struct S##_list *list = *arg;                                                                            \
        bool ok = true;                                                                                                \
        for (size_t i = 0; i < list->count && ok; i++) {                                                               \
            T p;                                                                                                       \
            ampd_codec_out_##T(&list->items[i], &p);                                                                   \
            ok = pb_encode_tag_for_field(stream, field) && pb_encode_submessage(stream, T##_fields, &p);               \
        }                                                                                                              \
        return ok;                                                                                                     \
    }                                                                                                                  \
    bool ampd_codec_list_in_##T(pb_istream_t *stream, const pb_field_t *field, void **arg)                             \
    {                                                                                                                  \
        struct S##_list *list = *arg;                                                                                  \
        struct S *items = ampd_codec_grow(list->items, list->count, sizeof *items);                                    \
        if (items != NULL)                                                                                             \
            list->items = items;                                                                                       \
        else                                                                                                           \
            stream->errmsg = ampd_codec_no_memory;                                                                     \
        T p;                                                                                                           \
        struct S item;                                                                                                 \
        ampd_codec_prepare_##T(&item, &p);                                                                             \
        bool ok = items != NULL && pb_decode_ex(stream, T##_fields, &p, PB_DECODE_NOINIT);                             \
        if (ok) {                                                                                                      \
            ampd_codec_in_##T(&p, &item);                                                                              \
            list->items[list->count++] = item;                                                                         \
        } else {                                                                                                       \
            ampd_codec_free_##T(&item);                                                                                \
        }                                                                                                              \
        return ok;                                                                                                     \
    }                                                                                                                  \
    void ampd_codec_list_free_##T(struct S##_list *list)                                                               \
    {                                                                                                                  \
        for (size_t i = 0; i < list->count; i++)                                                                       \
            ampd_codec_free_##T(&list->items[i]);                                                                      \
        free(list->items);                                                                                             \
        list->items = NULL;                                                                                            \
        list->count = 0;                                                                                               \
    }

/* The public pair of a message, and its free. */
#define AMPD_CODEC_PUBLIC(T, S)                                                                                        \
    int S##_encode(const struct S *message, struct amp_buf *out)                                                       \
    {                                                                                                                  \
        T p;                                                                                                           \
        ampd_codec_out_##T(message, &p);                                                                               \
        return ampd_codec_encode(&ampd_codec_desc_##T, T##_fields, &p, out);                                           \
    }                                                                                                                  \
    int S##_decode(struct S *message, const void *data, size_t size, struct amp_error *error)                          \
    {                                                                                                                  \
        T p;                                                                                                           \
        ampd_codec_prepare_##T(message, &p);                                                                           \
        int rc = ampd_codec_decode(&ampd_codec_desc_##T, T##_fields, &p, data, size, error);                           \
        if (rc == 0)                                                                                                   \
            ampd_codec_in_##T(&p, message);                                                                            \
        else                                                                                                           \
            ampd_codec_free_##T(message);                                                                              \
        return rc;                                                                                                     \
    }
#define AMPD_CODEC_PUBLIC_FREE(T, S)                                                                                   \
    void S##_free(struct S *message)                                                                                   \
    {                                                                                                                  \
        ampd_codec_free_##T(message);                                                                                  \
    }

/* What several files need of each other. */
AMPD_CODEC_DECLARE(google_protobuf_Timestamp, ampd_msg_time)
AMPD_CODEC_DECLARE(ampd_v1_Incarnation, ampd_msg_incarnation)
AMPD_CODEC_DECLARE(ampd_v1_BlockRange, ampd_msg_block_range)
AMPD_CODEC_LIST_DECLARE(ampd_v1_BlockRange, ampd_msg_block_range, AMPD_MSG_RANGES_MAX)
AMPD_CODEC_DECLARE(ampd_v1_Shard, ampd_msg_shard)
AMPD_CODEC_LIST_DECLARE(ampd_v1_Shard, ampd_msg_shard, AMPD_MSG_SHARDS_MAX)
AMPD_CODEC_DECLARE(ampd_v1_ScaleRecord, ampd_msg_scale_record)
AMPD_CODEC_DECLARE(ampd_v1_Metric, ampd_msg_metric)
AMPD_CODEC_DECLARE(ampd_v1_OverflowTotals, ampd_msg_overflow_totals)
AMPD_CODEC_DECLARE(ampd_v1_OverflowRow, ampd_msg_overflow_row)
AMPD_CODEC_LIST_DECLARE(ampd_v1_OverflowRow, ampd_msg_overflow_row, AMPD_MSG_ROWS_MAX)
AMPD_CODEC_DECLARE(ampd_v1_RangeWarning, ampd_msg_range_warning)
AMPD_CODEC_LIST_DECLARE(ampd_v1_RangeWarning, ampd_msg_range_warning, AMPD_MSG_STEP_ROWS_MAX)

#endif
