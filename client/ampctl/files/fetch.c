#include "client/ampctl/files/fetch.h"

#include "base/hex.h"
#include "client/io/link.h"
#include "client/io/methods.h"
#include "proto/block.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From malloc, with all that the client's thread uses. */
struct fetch {
    struct ampclient_request request;
    struct amp_buf body;
    struct ampd_block_reader reader;
    struct ampd_msg_read_checkpoint_header header;
    const atomic_bool *stopped;
    uint64_t size_max;
    int fd;
    uint64_t written;
    struct amp_error error;
    uint8_t block[AMPD_BLOCK_DATA_MAX];
};

static int failed(const struct ampctl *ctl, const char *text)
{
    (void)ampctl_print(stderr, "ampctl: %s: %s", ctl->verb, text);
    return AMPCTL_EXIT_FAILED;
}

/* ---- on the client's thread, while the main thread waits ---- */

static int on_part(void *arg, enum ampd_block_part part, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct fetch *fetch = arg;
    (void)part; /* there is no trailer */
    int rc = ampd_msg_read_checkpoint_header_decode(&fetch->header, data, size, error);
    if (rc == 0 && fetch->header.size_bytes > fetch->size_max)
        rc = amp_error_set(error, AMP_EDATALOSS, NULL,
                           "the server announces %" PRIu64 " bytes, and a file of this model has %" PRIu64
                           " at most; is it an ampd?",
                           fetch->header.size_bytes, fetch->size_max);
    return rc;
}

static int on_begin(void *arg, const struct ampd_block *block, uint8_t **destination, struct amp_error *error)
{
    struct fetch *fetch = arg;
    uint64_t left = fetch->header.size_bytes - fetch->written;
    if (block->index != fetch->written / AMPD_BLOCK_DATA_MAX ||
        block->size != (left < AMPD_BLOCK_DATA_MAX ? left : AMPD_BLOCK_DATA_MAX))
        return amp_error_set(error, AMP_EINTERNAL, NULL, "block %u is not the one that follows; are versions mixed?",
                             block->index);
    *destination = fetch->block;
    return 0;
}

static int on_end(void *arg, const struct ampd_block *block, bool intact, struct amp_error *error)
{
    struct fetch *fetch = arg;
    if (!intact)
        return amp_error_set(error, AMP_EDATALOSS, NULL, "block %u was damaged on its way here; try again",
                             block->index);
    for (uint32_t done = 0; done < block->size;) {
        ssize_t n = write(fetch->fd, fetch->block + done, block->size - done);
        if (n < 0 && errno != EINTR)
            return amp_error_set(error, AMP_EIO, NULL, "a part cannot be written here: %s", strerror(errno));
        done += n > 0 ? (uint32_t)n : 0;
    }
    fetch->written += block->size;
    return 0;
}

static const struct ampd_block_reader_ops fetch_ops = {.part_cb = on_part, .begin_cb = on_begin, .end_cb = on_end};

static int on_message(void *arg, const uint8_t *data, size_t size)
{
    struct fetch *fetch = arg;
    if (atomic_load(fetch->stopped))
        return amp_error_set(&fetch->error, AMP_ECANCELLED, NULL, "it was interrupted; nothing of it was kept");
    int rc = ampd_block_reader_begin(&fetch->reader, size, &fetch->error);
    if (rc == 0)
        rc = ampd_block_reader_bytes(&fetch->reader, data, size, &fetch->error);
    return rc == 0 ? ampd_block_reader_end(&fetch->reader, &fetch->error) : rc;
}

/* ---- on the main thread ---- */

static const char *address_of(const struct ampctl *ctl, uint32_t shard)
{
    return shard < ctl->link->channels.shards_count ? ctl->link->channels.endpoints[shard] : ctl->endpoints;
}

static int call(struct ampctl *ctl, const struct ampctl_part *part, struct fetch *fetch)
{
    struct ampd_msg_read_checkpoint_request message = {.epoch = part->key->epoch, .step = part->key->step};
    struct ampclient_reply reply = {0};
    (void)snprintf(message.model, sizeof message.model, "%s", part->model);
    if (ampd_msg_read_checkpoint_request_encode(&message, &fetch->body) != 0)
        return failed(ctl, "there is no memory for a call");
    fetch->request = (struct ampclient_request){.path = AMPCLIENT_ADMIN_SERVICE "ReadCheckpoint",
                                                .shard = part->shard,
                                                .body = &fetch->body,
                                                .timeout_ms = ctl->timeout_ms,
                                                .message_cb = on_message,
                                                .arg = fetch};
    int code = 0;
    if (ampclient_rpc(ctl->link, &fetch->request, &reply) != 0) {
        code = AMPCTL_EXIT_RPC + amp_err_grpc_status(reply.code);
        /* What this side found wrong comes back as a cancelled call. */
        if (!ctl->link->broken && fetch->error.text[0] != 0)
            code = failed(ctl, fetch->error.text);
        else
            ampctl_print_failure(ctl, address_of(ctl, part->shard), &reply);
    }
    ampclient_reply_close(&reply);
    return code;
}

static int fetch_into(struct ampctl *ctl, struct ampctl_part *part, struct fetch *fetch)
{
    fetch->fd = open(part->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fetch->fd < 0) {
        (void)ampctl_print(stderr, "ampctl: %s: cannot write %s: %s", ctl->verb, part->path, strerror(errno));
        return AMPCTL_EXIT_FAILED;
    }
    int code = call(ctl, part, fetch);
    if (code != 0)
        return code;
    const struct ampd_msg_read_checkpoint_header *header = &fetch->header;
    if (fetch->written == header->size_bytes && header->shard == part->shard && header->parts == part->shards &&
        amp_hex_parse(header->manifest_hash, part->manifest, sizeof part->manifest))
        return 0;
    (void)ampctl_print(stderr, "ampctl: %s: shard %u sent something other than its part of %u; are versions mixed?",
                       ctl->verb, part->shard, part->shards);
    return AMPCTL_EXIT_FAILED;
}

int ampctl_fetch_part(struct ampctl *ctl, struct ampctl_part *part)
{
    struct fetch *fetch = calloc(1, sizeof *fetch);
    if (fetch == NULL)
        return failed(ctl, "there is no memory for a block of a file");
    fetch->fd = -1;
    fetch->stopped = part->stopped;
    fetch->size_max = part->size_max;
    amp_buf_init(&fetch->body, AMPD_MSG_SIZE_MAX);
    ampd_block_reader_init(&fetch->reader, &fetch_ops, fetch, false);
    int code = fetch_into(ctl, part, fetch);
    if (ctl->link->broken)
        return code;
    ampd_block_reader_close(&fetch->reader);
    amp_buf_close(&fetch->body);
    if (fetch->fd >= 0)
        (void)close(fetch->fd); /* what it holds is verified when it is read */
    free(fetch);
    return code;
}
