#include "server/io/trouble.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

struct io_trouble {
    uv_mutex_t mutex;
    char texts[IO_TROUBLE_COUNT][AMP_ERROR_TEXT_MAX];
};

struct io_trouble *io_trouble_new(void)
{
    struct io_trouble *trouble = calloc(1, sizeof *trouble);
    if (trouble != NULL && uv_mutex_init(&trouble->mutex) != 0) {
        free(trouble);
        return NULL;
    }
    return trouble;
}

void io_trouble_free(struct io_trouble *trouble)
{
    if (trouble == NULL)
        return;
    uv_mutex_destroy(&trouble->mutex);
    free(trouble);
}

void io_trouble_set(struct io_trouble *trouble, enum io_trouble_of whose, const char *text)
{
    uv_mutex_lock(&trouble->mutex);
    (void)snprintf(trouble->texts[whose], sizeof trouble->texts[whose], "%s", text);
    uv_mutex_unlock(&trouble->mutex);
}

void io_trouble_text(struct io_trouble *trouble, char *text, size_t size)
{
    text[0] = 0;
    uv_mutex_lock(&trouble->mutex);
    for (int i = 0; i < IO_TROUBLE_COUNT && text[0] == 0; i++)
        (void)snprintf(text, size, "%s", trouble->texts[i]);
    uv_mutex_unlock(&trouble->mutex);
}
