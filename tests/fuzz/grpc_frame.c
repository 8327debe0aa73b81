/* The gRPC deframer and the inflating of messages: any split of the bytes gives the same messages. */
#include "tests/fuzz/fuzz.h"

#include "base/crc32c.h"
#include "base/err.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/inflate.h"

#include <stdlib.h>
#include <string.h>

/* Small, so that bombs meet it. */
#define INFLATED_MAX 4096

/* What a stream came to: a checksum over its messages, in the order in which they came. */
struct digest {
    uint32_t crc;
    size_t messages;
    size_t bytes;
    size_t failed; /* compressed messages that were refused, by code */
};

struct reading {
    struct arpc_deframer deframer;
    struct arpc_inflate *inflate;
    struct amp_buf inflated;
    uint32_t announced;
    uint32_t got;
    bool open;
    struct digest digest;
};

static void add(struct digest *digest, const void *data, size_t size)
{
    digest->crc = amp_crc32c(digest->crc, data, size);
}

static void begin(struct reading *reading, const struct arpc_piece *piece)
{
    AMP_ASSERT(!reading->open);
    reading->open = true;
    reading->announced = (uint32_t)piece->size;
    reading->got = 0;
    add(&reading->digest, &piece->flag, 1);
    add(&reading->digest, &reading->announced, sizeof reading->announced);
    if (piece->flag != 1)
        return;
    amp_buf_init(&reading->inflated, INFLATED_MAX);
    reading->inflate = arpc_inflate_new();
    AMP_ASSERT(reading->inflate != NULL);
}

static void over(struct reading *reading)
{
    arpc_inflate_free(reading->inflate);
    reading->inflate = NULL;
    amp_buf_close(&reading->inflated);
}

static void continues(struct reading *reading, const struct arpc_piece *piece)
{
    AMP_ASSERT(reading->open && piece->size > 0 && piece->size <= reading->announced - reading->got);
    reading->got += (uint32_t)piece->size;
    reading->digest.bytes += piece->size;
    add(&reading->digest, piece->data, piece->size);
    if (reading->inflate == NULL)
        return;
    int rc = arpc_inflate_take(reading->inflate, piece->data, piece->size, &reading->inflated);
    AMP_ASSERT(reading->inflated.size <= INFLATED_MAX && reading->inflated.capacity <= INFLATED_MAX);
    if (rc == 0)
        return;
    AMP_ASSERT(rc == AMP_EINVAL || rc == AMP_EEXHAUSTED);
    reading->digest.failed += rc == AMP_EINVAL ? 1 : 1000000;
    over(reading);
}

static void end(struct reading *reading)
{
    AMP_ASSERT(reading->open && reading->got == reading->announced);
    reading->open = false;
    reading->digest.messages++;
    if (reading->inflate == NULL)
        return;
    if (arpc_inflate_is_whole(reading->inflate) && reading->inflated.size > 0)
        add(&reading->digest, reading->inflated.data, reading->inflated.size);
    over(reading);
}

static void take(struct reading *reading, const uint8_t *data, size_t size)
{
    for (;;) {
        struct arpc_piece piece;
        size_t used = arpc_deframe(&reading->deframer, data, size, &piece);
        AMP_ASSERT(used <= size);
        if (piece.kind == ARPC_PIECE_NONE) {
            AMP_ASSERT(used == size);
            return;
        }
        if (piece.kind == ARPC_PIECE_BEGIN)
            begin(reading, &piece);
        if (piece.kind == ARPC_PIECE_BYTES) {
            AMP_ASSERT(piece.data == data && piece.size == used);
            continues(reading, &piece);
        }
        if (piece.kind == ARPC_PIECE_END)
            end(reading);
        data += used;
        size -= used;
    }
}

/* Where the stream stops: whether that is between two messages has to agree with what was told. */
static struct digest finish(struct reading *reading)
{
    bool clean = arpc_deframer_is_clean(&reading->deframer);
    AMP_ASSERT(!clean || !reading->open);
    add(&reading->digest, &clean, sizeof clean);
    if (reading->inflate != NULL)
        over(reading);
    return reading->digest;
}

static struct digest read_split(struct fuzz_script script, struct fuzz_input input)
{
    struct reading reading = {0};
    while (input.size > 0) {
        size_t size;
        uint8_t *segment = fuzz_segment(&input, fuzz_script_next(&script).size, &size);
        take(&reading, segment, size);
        free(segment);
    }
    return finish(&reading);
}

/* What is compressed here is inflated here to the same bytes. */
static void round_trip(const uint8_t *data, size_t size)
{
    struct amp_buf packed;
    struct amp_buf unpacked;
    amp_buf_init(&packed, size + 1024);
    amp_buf_init(&unpacked, size > 0 ? size : 1);
    AMP_ASSERT(arpc_deflate(data, size, &packed) == 0);
    struct arpc_inflate *inflate = arpc_inflate_new();
    AMP_ASSERT(inflate != NULL);
    AMP_ASSERT(arpc_inflate_take(inflate, packed.data, packed.size, &unpacked) == 0);
    AMP_ASSERT(arpc_inflate_is_whole(inflate));
    AMP_ASSERT(unpacked.size == size && (size == 0 || memcmp(unpacked.data, data, size) == 0));
    arpc_inflate_free(inflate);
    amp_buf_close(&packed);
    amp_buf_close(&unpacked);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size};
    struct fuzz_script script;
    fuzz_script_read(&script, &input);
    struct digest split = read_split(script, input);
    struct digest whole = read_split((struct fuzz_script){0}, input);
    AMP_ASSERT(split.crc == whole.crc && split.messages == whole.messages && split.bytes == whole.bytes);
    AMP_ASSERT(split.failed == whole.failed);
    round_trip(input.data, input.size);
}
