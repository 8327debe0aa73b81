/*
 * message_seeds DIR: writes each message of ampd.v1, filled at random and with extremes, as an input of the target
 * messages.
 */
#include "tests/unit/proto_messages.h"

#include <stdio.h>
#include <stdlib.h>

/* Larger ones are slow to mutate and reach nothing more. */
#define SEED_MAX 2000

static void write_seed(const char *dir, size_t which, int round, const struct amp_buf *bytes)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/filled%zu-%d", dir, which, round);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fputc((int)which, file) == EOF || fwrite(bytes->data, 1, bytes->size, file) != bytes->size ||
        fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    struct amp_random random;
    amp_random_init(&random, 1);
    for (size_t i = 0; argc == 2 && i < proto_messages_count; i++) {
        const struct proto_message *row = &proto_messages[i];
        for (int round = 0; round < 12; round++) {
            void *message = malloc(row->size);
            struct amp_buf out;
            if (message == NULL)
                return 1;
            row->fill(message, &random, round == 0 ? FILL_EXTREME : FILL_RANDOM);
            amp_buf_init(&out, 4 * (size_t)AMPD_MSG_SIZE_MAX);
            if (row->encode(message, &out) == 0 && out.size > 0 && out.size <= SEED_MAX)
                write_seed(argv[1], i, round, &out);
            amp_buf_close(&out);
            row->release(message);
            free(message);
        }
    }
    return argc == 2 ? 0 : 2;
}
