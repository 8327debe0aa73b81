/*
 * Inside of the codec: what each form of a field gets when a message is converted, checked and freed
 * (codec_messages.h). The form is nanopb's: allocation, rule, type.
 */
#ifndef AMPD_PROTO_CODEC_FIELDS_H
#define AMPD_PROTO_CODEC_FIELDS_H

#include "proto/codec.h"
#include "proto/codec_items.h"

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
#define AMPD_CLASS_STATIC_REPEATED_MESSAGE   ITEMS
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

#endif
