/* What the columns of proto/spec_fields.def mean in C. */
#ifndef AMPD_PROTO_SPEC_FIELDS_H
#define AMPD_PROTO_SPEC_FIELDS_H

/* Which rows are wanted. */
#define AMPD_SPEC_OPTIMIZER 1
#define AMPD_SPEC_SCHEDULE  2
#define AMPD_SPEC_CLIP      4
#define AMPD_SPEC_SCALER    8
#define AMPD_SPEC_MODEL     16
#define AMPD_SPEC_ALL       31

/* The type of a kind. */
#define AMPD_SPEC_TYPE_F64   double
#define AMPD_SPEC_TYPE_F32   float
#define AMPD_SPEC_TYPE_U64   uint64_t
#define AMPD_SPEC_TYPE_U32   uint32_t
#define AMPD_SPEC_TYPE_BOOL  bool
#define AMPD_SPEC_TYPE_RANKS uint32_t

/* What comes between a struct ampd_msg_model_spec and the field's name. */
#define AMPD_SPEC_IN_OPTIMIZER optimizer.
#define AMPD_SPEC_IN_SCHEDULE  schedule.
#define AMPD_SPEC_IN_CLIP      clip.
#define AMPD_SPEC_IN_SCALER    scaler.
#define AMPD_SPEC_IN_MODEL

/* The same in words: "optimizer.beta1". */
#define AMPD_SPEC_WORDS(part, field) AMPD_SPEC_WORDS_##part #field
#define AMPD_SPEC_WORDS_OPTIMIZER    "optimizer."
#define AMPD_SPEC_WORDS_SCHEDULE     "schedule."
#define AMPD_SPEC_WORDS_CLIP         "clip."
#define AMPD_SPEC_WORDS_SCALER       "scaler."
#define AMPD_SPEC_WORDS_MODEL        ""

/* The member of a struct ampd_model_spec. */
#define AMPD_SPEC_MEMBER_OPTIMIZER(field, name) name
#define AMPD_SPEC_MEMBER_SCHEDULE(field, name)  name
#define AMPD_SPEC_MEMBER_CLIP(field, name)      name
#define AMPD_SPEC_MEMBER_SCALER(field, name)    scaler.field
#define AMPD_SPEC_MEMBER_MODEL(field, name)     name

/*
 * What of an optional field of the message alone is there, its has_<field>; and what of a SET alone is there, its
 * <name>_set.
 */
#define AMPD_SPEC_IF_OPTIONAL_PLAIN(...)
#define AMPD_SPEC_IF_OPTIONAL_GIVEN(...) __VA_ARGS__
#define AMPD_SPEC_IF_OPTIONAL_OFF(...)   __VA_ARGS__
#define AMPD_SPEC_IF_OPTIONAL_SET(...)   __VA_ARGS__
#define AMPD_SPEC_IF_SET_PLAIN(...)
#define AMPD_SPEC_IF_SET_GIVEN(...)
#define AMPD_SPEC_IF_SET_OFF(...)
#define AMPD_SPEC_IF_SET_SET(...) __VA_ARGS__

/* Whether the message `m`, a struct ampd_msg_model_spec, has the field. */
#define AMPD_SPEC_HAS_PLAIN(m, part, field) true
#define AMPD_SPEC_HAS_GIVEN(m, part, field) (m)->AMPD_SPEC_IN_##part has_##field
#define AMPD_SPEC_HAS_OFF(m, part, field)   (m)->AMPD_SPEC_IN_##part has_##field
#define AMPD_SPEC_HAS_SET(m, part, field)   (m)->AMPD_SPEC_IN_##part has_##field

#endif
