/*
 * Inside of the codec: what codec_fields.h does with each form of a field, for an array of messages. Its .options file
 * bounds it (max_count), so that it needs no memory of its own; nor have its items lists or bytes.
 */
#ifndef AMPD_PROTO_CODEC_ITEMS_H
#define AMPD_PROTO_CODEC_ITEMS_H

/* A count beyond the array is given on as it is, so that nanopb refuses it. */
#define AMPD_OUT_ITEMS(T, f)                                                                                           \
    _Static_assert(AMPD_MAX_ARRAY(T, f) == sizeof m->f / sizeof m->f[0], "struct and .options disagree on " #f);       \
    p->f##_count = m->f##_count > UINT16_MAX ? UINT16_MAX : (pb_size_t)m->f##_count;                                   \
    for (size_t i = 0; i < m->f##_count && i < AMPD_MAX_ARRAY(T, f); i++)                                              \
        AMPD_CAT(ampd_codec_out_, AMPD_SUBTYPE(T, f))(&m->f[i], &p->f[i]);

#define AMPD_PREPARE_ITEMS(T, f)

#define AMPD_IN_ITEMS(T, f)                                                                                            \
    m->f##_count = p->f##_count;                                                                                       \
    for (size_t i = 0; i < p->f##_count; i++)                                                                          \
        AMPD_CAT(ampd_codec_in_, AMPD_SUBTYPE(T, f))(&p->f[i], &m->f[i]);

#define AMPD_FREE_ITEMS(T, f)

#define AMPD_MAX_ITEMS(T, f) AMPD_MAX_ARRAY(T, f)

#define AMPD_SUB_ITEMS(T, f) &AMPD_CAT(ampd_codec_desc_, AMPD_SUBTYPE(T, f))

#endif
