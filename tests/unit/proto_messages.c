#include "tests/unit/proto_messages.h"

/* Items of a filled list: enough for the growth of the array to be seen. */
#define LIST_ITEMS_MAX 5

/* ---- values ---- */

static void fill_bytes(void *value, size_t size, struct amp_random *random, enum fill how)
{
    static const uint64_t ends[] = {
        0, UINT64_MAX, UINT64_C(0x8000000080000000), UINT64_C(0x7fc000007fc00001), UINT64_C(0x7f8000007f800000), 1};
    uint64_t bits = amp_random_next(random);
    if (how == FILL_EXTREME || bits % 4 == 0)
        bits = ends[amp_random_below(random, sizeof ends / sizeof ends[0])];
    memcpy(value, &bits, size);
}

/* UTF-8 of one to four bytes a character; EXTREME: up to the last byte that fits. */
static void fill_text(char *text, size_t size, struct amp_random *random, enum fill how)
{
    static const char *const characters[] = {
        "a", "-", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x8c\x8d", "\xf4\x8f\xbf\xbf"};
    size_t wanted = how == FILL_EXTREME ? size - 1 : amp_random_below(random, size);
    size_t used = 0;
    memset(text, 0, size);
    while (used < wanted) {
        const char *character = characters[amp_random_below(random, 6)];
        if (used + strlen(character) > wanted)
            character = "z";
        memcpy(text + used, character, strlen(character));
        used += strlen(character);
    }
}

static bool fill_flag(struct amp_random *random, enum fill how)
{
    return how == FILL_EXTREME || amp_random_below(random, 2) == 1;
}

/* ---- fill, by nanopb's lists ---- */

#define FILL_VALUE_BOOL(x)    x = fill_flag(random, how);
#define FILL_VALUE_UINT32(x)  fill_bytes(&x, sizeof x, random, how);
#define FILL_VALUE_UINT64(x)  fill_bytes(&x, sizeof x, random, how);
#define FILL_VALUE_FLOAT(x)   fill_bytes(&x, sizeof x, random, how);
#define FILL_VALUE_DOUBLE(x)  fill_bytes(&x, sizeof x, random, how);
#define FILL_VALUE_FIXED64(x) fill_bytes(&x, sizeof x, random, how);
#define FILL_VALUE_UENUM(x)   x = (unsigned)(amp_random_next(random) & INT32_MAX);

#define FILL(T, at, ht, lt, f, tag) AMPD_CAT(FILL_, AMPD_CLASS_##at##_##ht##_##lt)(T, f, lt)
#define FILL_SCALAR(T, f, lt)       FILL_VALUE_##lt(m->f)
#define FILL_ENUM(T, f, lt)         FILL_VALUE_##lt(m->f)
#define FILL_OPTIONAL(T, f, lt)                                                                                        \
    m->has_##f = fill_flag(random, how);                                                                               \
    if (m->has_##f)                                                                                                    \
    FILL_VALUE_##lt(m->f)
#define FILL_STRING(T, f, lt) fill_text(m->f, sizeof m->f, random, how);
#define FILL_ARRAY(T, f, lt)                                                                                           \
    m->f##_count = (uint32_t)(sizeof m->f / sizeof m->f[0]);                                                           \
    if (how == FILL_RANDOM)                                                                                            \
        m->f##_count = (uint32_t)amp_random_below(random, m->f##_count + 1u);                                          \
    for (size_t i = 0; i < m->f##_count; i++) {                                                                        \
        FILL_VALUE_##lt(m->f[i])                                                                                       \
    }
#define FILL_ITEMS(T, f, lt)                                                                                           \
    m->f##_count = (uint32_t)(sizeof m->f / sizeof m->f[0]);                                                           \
    if (how == FILL_RANDOM)                                                                                            \
        m->f##_count = (uint32_t)amp_random_below(random, m->f##_count + 1u);                                          \
    for (size_t i = 0; i < m->f##_count; i++)                                                                          \
        AMPD_CAT(fill_, AMPD_SUBTYPE(T, f))(&m->f[i], random, how);
#define FILL_MESSAGE(T, f, lt)                                                                                         \
    m->has_##f = fill_flag(random, how);                                                                               \
    if (m->has_##f)                                                                                                    \
        AMPD_CAT(fill_, AMPD_SUBTYPE(T, f))(&m->f, random, how);
#define FILL_LIST(T, f, lt) AMPD_CAT(fill_list_, AMPD_SUBTYPE(T, f))(&m->f, random, how);
#define FILL_BYTES(T, f, lt)                                                                                           \
    m->f.size = how == FILL_EXTREME ? AMPD_MSG_USER_STATE_MAX : amp_random_below(random, 300);                         \
    m->f.data = m->f.size > 0 ? malloc(m->f.size) : NULL;                                                              \
    for (size_t i = 0; i < m->f.size; i++)                                                                             \
        m->f.data[i] = (uint8_t)amp_random_next(random);

/* ---- compare ---- */

static bool same_bits(const void *a, const void *b, size_t size)
{
    return memcmp(a, b, size) == 0;
}

#define SAME(T, at, ht, lt, f, tag) AMPD_CAT(SAME_, AMPD_CLASS_##at##_##ht##_##lt)(T, f)
#define SAME_SCALAR(T, f)           &&same_bits(&a->f, &b->f, sizeof a->f)
#define SAME_ENUM(T, f)             &&a->f == b->f
#define SAME_OPTIONAL(T, f)         &&a->has_##f == b->has_##f SAME_SCALAR(T, f)
#define SAME_STRING(T, f)           &&strcmp(a->f, b->f) == 0
#define SAME_ARRAY(T, f)            &&a->f##_count == b->f##_count SAME_SCALAR(T, f)
#define SAME_ITEMS(T, f)                                                                                               \
    &&a->f##_count == b->f##_count &&AMPD_CAT(same_items_, AMPD_SUBTYPE(T, f))(a->f, b->f, a->f##_count)
#define SAME_MESSAGE(T, f)                                                                                             \
    &&a->has_##f == b->has_##f && (!a->has_##f || AMPD_CAT(same_, AMPD_SUBTYPE(T, f))(&a->f, &b->f))
#define SAME_LIST(T, f)  &&AMPD_CAT(same_list_, AMPD_SUBTYPE(T, f))(&a->f, &b->f)
#define SAME_BYTES(T, f) &&a->f.size == b->f.size && (a->f.size == 0 || same_bits(a->f.data, b->f.data, a->f.size))

static void fill_google_protobuf_Timestamp(struct ampd_msg_time *m, struct amp_random *random, enum fill how)
{
    /* The first and last microsecond of years 1 and 9999, and around 1970. */
    static const int64_t ends[] = {INT64_C(-62135596800000000), INT64_C(253402300799999999), -1, 0, 1};
    m->us = ends[amp_random_below(random, 5)];
    if (how == FILL_RANDOM)
        m->us = (int64_t)amp_random_below(random, INT64_C(4000000000000000));
}

static bool same_google_protobuf_Timestamp(const struct ampd_msg_time *a, const struct ampd_msg_time *b)
{
    return a->us == b->us;
}

#define FUNCTIONS(T, S)                                                                                                \
    static void fill_##T(struct S *m, struct amp_random *random, enum fill how)                                        \
    {                                                                                                                  \
        T##_FIELDLIST(FILL, T)                                                                                         \
    }                                                                                                                  \
    static bool same_##T(const struct S *a, const struct S *b)                                                         \
    {                                                                                                                  \
        return true T##_FIELDLIST(SAME, T);                                                                            \
    }                                                                                                                  \
    __attribute__((unused)) static bool same_items_##T(const struct S *a, const struct S *b, size_t count)             \
    {                                                                                                                  \
        bool same = true;                                                                                              \
        for (size_t i = 0; same && i < count; i++)                                                                     \
            same = same_##T(&a[i], &b[i]);                                                                             \
        return same;                                                                                                   \
    }

#define LIST_FUNCTIONS(T, S)                                                                                           \
    FUNCTIONS(T, S)                                                                                                    \
    static void fill_list_##T(struct S##_list *list, struct amp_random *random, enum fill how)                         \
    {                                                                                                                  \
        size_t count = how == FILL_EXTREME ? LIST_ITEMS_MAX : amp_random_below(random, LIST_ITEMS_MAX + 1);            \
        list->items = count > 0 ? calloc(count, sizeof *list->items) : NULL;                                           \
        list->count = count;                                                                                           \
        for (size_t i = 0; i < count; i++)                                                                             \
            fill_##T(&list->items[i], random, how);                                                                    \
    }                                                                                                                  \
    static bool same_list_##T(const struct S##_list *a, const struct S##_list *b)                                      \
    {                                                                                                                  \
        bool same = a->count == b->count;                                                                              \
        for (size_t i = 0; same && i < a->count; i++)                                                                  \
            same = same_##T(&a->items[i], &b->items[i]);                                                               \
        return same;                                                                                                   \
    }

PROTO_PARTS(FUNCTIONS, LIST_FUNCTIONS)
PROTO_MESSAGES(FUNCTIONS, FUNCTIONS)

/* Of each row of proto/methods.def: its request and its response, by what they are. */
#define AMPD_METHOD(service_, name_, c_name_, request_, response_, ...)                                                \
    OF_##request_(ampd_v1_##name_##Request, ampd_msg_##c_name_##_request)                                              \
        OF_##response_(ampd_v1_##name_##Response, ampd_msg_##c_name_##_response)
#define OF_NONE(T, S)
#define OF_PLAIN(T, S)  FUNCTIONS(T, S)
#define OF_OWNING(T, S) FUNCTIONS(T, S)
#include "proto/methods.def"
#undef OF_PLAIN
#undef OF_OWNING

/* ---- the table: the same functions behind void pointers ---- */

#define ROW_FUNCTIONS(T, S)                                                                                            \
    static void row_fill_##T(void *m, struct amp_random *random, enum fill how)                                        \
    {                                                                                                                  \
        memset(m, 0, sizeof(struct S));                                                                                \
        fill_##T(m, random, how);                                                                                      \
    }                                                                                                                  \
    static bool row_same_##T(const void *a, const void *b)                                                             \
    {                                                                                                                  \
        return same_##T(a, b);                                                                                         \
    }                                                                                                                  \
    static int row_encode_##T(const void *m, struct amp_buf *out)                                                      \
    {                                                                                                                  \
        return S##_encode(m, out);                                                                                     \
    }                                                                                                                  \
    static int row_decode_##T(void *m, const void *data, size_t size, struct amp_error *error)                         \
    {                                                                                                                  \
        return S##_decode(m, data, size, error);                                                                       \
    }
#define ROW_FUNCTIONS_FREE(T, S)                                                                                       \
    ROW_FUNCTIONS(T, S)                                                                                                \
    static void row_free_##T(void *m)                                                                                  \
    {                                                                                                                  \
        S##_free(m);                                                                                                   \
    }

PROTO_MESSAGES(ROW_FUNCTIONS, ROW_FUNCTIONS_FREE)

#define OF_PLAIN(T, S)  ROW_FUNCTIONS(T, S)
#define OF_OWNING(T, S) ROW_FUNCTIONS_FREE(T, S)
#include "proto/methods.def"
#undef OF_PLAIN
#undef OF_OWNING

static void free_nothing(void *message)
{
}

#define ROW(T, S)      {#T, sizeof(struct S), row_fill_##T, row_same_##T, row_encode_##T, row_decode_##T, free_nothing},
#define ROW_FREE(T, S) {#T, sizeof(struct S), row_fill_##T, row_same_##T, row_encode_##T, row_decode_##T, row_free_##T},

#define OF_PLAIN(T, S)  ROW(T, S)
#define OF_OWNING(T, S) ROW_FREE(T, S)

const struct proto_message proto_messages[] = {PROTO_MESSAGES(ROW, ROW_FREE)
#include "proto/methods.def"
};
const size_t proto_messages_count = sizeof proto_messages / sizeof proto_messages[0];
