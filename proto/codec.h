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
 * and AMPD_CODEC_LIST(T, S, MAX) the callbacks of a list of them.
 *
 * Bytes from a peer are first walked by ampd_codec_check, which knows the names; nanopb sees only what has passed.
 */
#ifndef AMPD_PROTO_CODEC_H
#define AMPD_PROTO_CODEC_H

#include "base/buf.h"
#include "base/err.h"
#include "proto/msg.h"

#include "ampd/v1/common.pb.h"

#include <pb_decode.h>
#include <pb_encode.h>
#include <stdlib.h>
#include <string.h>

/* Most fields of a message: the walk counts them on its stack. ModelSpec has 23. */
#define AMPD_CODEC_FIELDS_MAX 32

enum ampd_codec_kind {
    AMPD_CODEC_BOOL,
    AMPD_CODEC_INT32,
    AMPD_CODEC_INT64,
    AMPD_CODEC_UINT32,
    AMPD_CODEC_UINT64,
    AMPD_CODEC_UENUM,
    AMPD_CODEC_FLOAT,
    AMPD_CODEC_FIXED64,
    AMPD_CODEC_DOUBLE,
    AMPD_CODEC_STRING,
    AMPD_CODEC_BYTES,
    AMPD_CODEC_MESSAGE,
};

struct ampd_codec_desc;

/* One field of a message. */
struct ampd_codec_field {
    uint32_t tag;
    const char *name;
    enum ampd_codec_kind kind;
    bool repeated;
    size_t max;                        /* bytes of a string or of bytes; elements of a repeated field; else 0 */
    const struct ampd_codec_desc *sub; /* of a submessage */
};

/* One message. */
struct ampd_codec_desc {
    const char *name; /* "ampd_v1_JoinRequest" */
    const struct ampd_codec_field *fields;
    size_t count;
    /* What the types do not say; may be NULL. NULL, or what is wrong. The bytes have passed all other tests. */
    const char *(*check_cb)(const uint8_t *data, size_t size);
};

/*
 * Walks a serialized message and all of its submessages. 0, or AMP_EINVAL with a text that names the field: not the
 * wire format, a wrong type, a value or text or list beyond its bound, a text that is no UTF-8 or holds a zero
 * byte, a submessage that comes twice.
 */
int ampd_codec_check(const struct ampd_codec_desc *desc, const uint8_t *data, size_t size, struct amp_error *error);

/* Serializes nanopb's struct behind *out. */
int ampd_codec_encode(const struct ampd_codec_desc *desc, const pb_msgdesc_t *fields, const void *from,
                      struct amp_buf *out);

/*
 * Checks, then decodes into nanopb's prepared struct. On failure, what the callbacks allocated is the caller's to
 * free.
 */
int ampd_codec_decode(const struct ampd_codec_desc *desc, const pb_msgdesc_t *fields, void *to, const void *data,
                      size_t size, struct amp_error *error);

/*
 * Makes room for one more item in a list of `count` items of `item_size`: NULL without memory, and items is
 * unchanged.
 */
void *ampd_codec_grow(void *items, size_t count, size_t item_size);

/* What a callback says without memory; ampd_codec_decode knows it by its address. */
extern const char ampd_codec_no_memory[];

/* Callbacks of bytes; the argument is a struct ampd_msg_bytes. */
bool ampd_codec_bytes_out(pb_ostream_t *stream, const pb_field_t *field, void *const *arg);
bool ampd_codec_bytes_in(pb_istream_t *stream, const pb_field_t *field, void **arg);

/* ---- which treatment each of nanopb's forms gets ---- */

#define AMPD_CLASS_STATIC_SINGULAR_BOOL      SCALAR
#define AMPD_CLASS_STATIC_SINGULAR_INT32     SCALAR
#define AMPD_CLASS_STATIC_SINGULAR_INT64     SCALAR
#define AMPD_CLASS_STATIC_SINGULAR_UINT32    SCALAR
#define AMPD_CLASS_STATIC_SINGULAR_UINT64    SCALAR
#define AMPD_CLASS_STATIC_SINGULAR_FLOAT     SCALAR
#define AMPD_CLASS_STATIC_SINGULAR_FIXED64   SCALAR
#define AMPD_CLASS_STATIC_SINGULAR_DOUBLE    SCALAR
#define AMPD_CLASS_STATIC_SINGULAR_UENUM     ENUM
#define AMPD_CLASS_STATIC_OPTIONAL_INT64     OPTIONAL
#define AMPD_CLASS_STATIC_OPTIONAL_UINT32    OPTIONAL
#define AMPD_CLASS_STATIC_OPTIONAL_UINT64    OPTIONAL
#define AMPD_CLASS_STATIC_OPTIONAL_FLOAT     OPTIONAL
#define AMPD_CLASS_STATIC_OPTIONAL_DOUBLE    OPTIONAL
#define AMPD_CLASS_STATIC_OPTIONAL_MESSAGE   MESSAGE
#define AMPD_CLASS_STATIC_SINGULAR_STRING    STRING
#define AMPD_CLASS_STATIC_REPEATED_UINT32    ARRAY
#define AMPD_CLASS_STATIC_REPEATED_UINT64    ARRAY
#define AMPD_CLASS_STATIC_REPEATED_FLOAT     ARRAY
#define AMPD_CLASS_STATIC_REPEATED_UENUM     ARRAY
#define AMPD_CLASS_CALLBACK_SINGULAR_BYTES   BYTES
#define AMPD_CLASS_CALLBACK_REPEATED_MESSAGE LIST

#define AMPD_CAT2(x, y) x##y
#define AMPD_CAT(x, y)  AMPD_CAT2(x, y)

/* The nanopb type of a submessage field. */
#define AMPD_SUBTYPE(T, f) T##_##f##_MSGTYPE

#define AMPD_SAME_SIZE(x, y) _Static_assert(sizeof x == sizeof y, "struct and .options disagree on " #x)

/* ---- struct to nanopb ---- */

#define AMPD_OUT(T, at, ht, lt, f, tag) AMPD_CAT(AMPD_OUT_, AMPD_CLASS_##at##_##ht##_##lt)(T, f)
#define AMPD_OUT_SCALAR(T, f)                                                                                          \
    AMPD_SAME_SIZE(p->f, m->f);                                                                                        \
    p->f = m->f;
#define AMPD_OUT_ENUM(T, f) p->f = (unsigned)m->f;
#define AMPD_OUT_OPTIONAL(T, f)                                                                                        \
    p->has_##f = m->has_##f;                                                                                           \
    AMPD_OUT_SCALAR(T, f)
#define AMPD_OUT_STRING(T, f)                                                                                          \
    AMPD_SAME_SIZE(p->f, m->f);                                                                                        \
    memcpy(p->f, m->f, sizeof p->f);
/* A count beyond the array is given on as it is, so that nanopb refuses it. */
#define AMPD_OUT_ARRAY(T, f)                                                                                           \
    AMPD_SAME_SIZE(p->f, m->f);                                                                                        \
    p->f##_count = m->f##_count > UINT16_MAX ? UINT16_MAX : (pb_size_t)m->f##_count;                                   \
    memcpy(p->f, m->f, sizeof p->f);
#define AMPD_OUT_MESSAGE(T, f)                                                                                         \
    p->has_##f = m->has_##f;                                                                                           \
    if (m->has_##f)                                                                                                    \
        AMPD_CAT(ampd_codec_out_, AMPD_SUBTYPE(T, f))(&m->f, &p->f);
#define AMPD_OUT_LIST(T, f)                                                                                            \
    p->f.funcs.encode = AMPD_CAT(ampd_codec_list_out_, AMPD_SUBTYPE(T, f));                                            \
    p->f.arg = (void *)(uintptr_t)&m->f;
#define AMPD_OUT_BYTES(T, f)                                                                                           \
    p->f.funcs.encode = ampd_codec_bytes_out;                                                                          \
    p->f.arg = (void *)(uintptr_t)&m->f;

/* ---- before nanopb decodes ---- */

#define AMPD_PREPARE(T, at, ht, lt, f, tag) AMPD_CAT(AMPD_PREPARE_, AMPD_CLASS_##at##_##ht##_##lt)(T, f)
#define AMPD_PREPARE_SCALAR(T, f)
#define AMPD_PREPARE_ENUM(T, f)
#define AMPD_PREPARE_OPTIONAL(T, f)
#define AMPD_PREPARE_STRING(T, f)
#define AMPD_PREPARE_ARRAY(T, f)
#define AMPD_PREPARE_MESSAGE(T, f) AMPD_CAT(ampd_codec_prepare_, AMPD_SUBTYPE(T, f))(&m->f, &p->f);
#define AMPD_PREPARE_LIST(T, f)                                                                                        \
    p->f.funcs.decode = AMPD_CAT(ampd_codec_list_in_, AMPD_SUBTYPE(T, f));                                             \
    p->f.arg = &m->f;
#define AMPD_PREPARE_BYTES(T, f)                                                                                       \
    p->f.funcs.decode = ampd_codec_bytes_in;                                                                           \
    p->f.arg = &m->f;

/* ---- nanopb to struct ---- */

#define AMPD_IN(T, at, ht, lt, f, tag) AMPD_CAT(AMPD_IN_, AMPD_CLASS_##at##_##ht##_##lt)(T, f)
#define AMPD_IN_SCALAR(T, f)           m->f = p->f;
#define AMPD_IN_ENUM(T, f)             m->f = (unsigned)p->f;
#define AMPD_IN_OPTIONAL(T, f)                                                                                         \
    m->has_##f = p->has_##f;                                                                                           \
    m->f = p->f;
#define AMPD_IN_STRING(T, f) memcpy(m->f, p->f, sizeof m->f);
#define AMPD_IN_ARRAY(T, f)                                                                                            \
    m->f##_count = p->f##_count;                                                                                       \
    memcpy(m->f, p->f, sizeof m->f);
#define AMPD_IN_MESSAGE(T, f)                                                                                          \
    m->has_##f = p->has_##f;                                                                                           \
    if (p->has_##f)                                                                                                    \
        AMPD_CAT(ampd_codec_in_, AMPD_SUBTYPE(T, f))(&p->f, &m->f);
#define AMPD_IN_LIST(T, f)
#define AMPD_IN_BYTES(T, f)

/* ---- freeing ---- */

#define AMPD_FREE(T, at, ht, lt, f, tag) AMPD_CAT(AMPD_FREE_, AMPD_CLASS_##at##_##ht##_##lt)(T, f)
#define AMPD_FREE_SCALAR(T, f)
#define AMPD_FREE_ENUM(T, f)
#define AMPD_FREE_OPTIONAL(T, f)
#define AMPD_FREE_STRING(T, f)
#define AMPD_FREE_ARRAY(T, f)
#define AMPD_FREE_MESSAGE(T, f) AMPD_CAT(ampd_codec_free_, AMPD_SUBTYPE(T, f))(&m->f);
#define AMPD_FREE_LIST(T, f)    AMPD_CAT(ampd_codec_list_free_, AMPD_SUBTYPE(T, f))(&m->f);
#define AMPD_FREE_BYTES(T, f)                                                                                          \
    free(m->f.data);                                                                                                   \
    m->f.data = NULL;                                                                                                  \
    m->f.size = 0;

/* ---- the description ---- */

#define AMPD_IS_REPEATED 1
#define AMPD_IS_SINGULAR 0
#define AMPD_IS_OPTIONAL 0

#define AMPD_MAX_SCALAR(T, f)   0
#define AMPD_MAX_ENUM(T, f)     0
#define AMPD_MAX_OPTIONAL(T, f) 0
#define AMPD_MAX_MESSAGE(T, f)  0
#define AMPD_MAX_STRING(T, f)   (sizeof(((T *)0)->f) - 1)
#define AMPD_MAX_ARRAY(T, f)    (sizeof(((T *)0)->f) / sizeof(((T *)0)->f[0]))
#define AMPD_MAX_LIST(T, f)     AMPD_CAT(ampd_codec_list_max_, AMPD_SUBTYPE(T, f))
#define AMPD_MAX_BYTES(T, f)    AMPD_MSG_USER_STATE_MAX

#define AMPD_SUB_SCALAR(T, f)   NULL
#define AMPD_SUB_ENUM(T, f)     NULL
#define AMPD_SUB_OPTIONAL(T, f) NULL
#define AMPD_SUB_STRING(T, f)   NULL
#define AMPD_SUB_ARRAY(T, f)    NULL
#define AMPD_SUB_BYTES(T, f)    NULL
#define AMPD_SUB_MESSAGE(T, f)  &AMPD_CAT(ampd_codec_desc_, AMPD_SUBTYPE(T, f))
#define AMPD_SUB_LIST(T, f)     &AMPD_CAT(ampd_codec_desc_, AMPD_SUBTYPE(T, f))

#define AMPD_ROW(T, at, ht, lt, f, number)                                                                             \
    {.tag = (number),                                                                                                  \
     .name = #f,                                                                                                       \
     .kind = AMPD_CODEC_##lt,                                                                                          \
     .repeated = AMPD_IS_##ht,                                                                                         \
     .max = AMPD_CAT(AMPD_MAX_, AMPD_CLASS_##at##_##ht##_##lt)(T, f),                                                  \
     .sub = AMPD_CAT(AMPD_SUB_, AMPD_CLASS_##at##_##ht##_##lt)(T, f)},

/* ---- what a message gets ---- */

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
AMPD_CODEC_DECLARE(ampd_v1_OverflowTotals, ampd_msg_overflow_totals)
AMPD_CODEC_DECLARE(ampd_v1_OverflowRow, ampd_msg_overflow_row)
AMPD_CODEC_LIST_DECLARE(ampd_v1_OverflowRow, ampd_msg_overflow_row, AMPD_MSG_ROWS_MAX)
AMPD_CODEC_DECLARE(ampd_v1_RangeWarning, ampd_msg_range_warning)
AMPD_CODEC_LIST_DECLARE(ampd_v1_RangeWarning, ampd_msg_range_warning, AMPD_MSG_STEP_ROWS_MAX)

#endif
