#include "server/io/base/storage_alert.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

struct io_storage_alert {
    uv_mutex_t mutex;
    char texts[IO_STORAGE_ALERT_COUNT][AMP_ERROR_TEXT_MAX];
};

struct io_storage_alert *io_storage_alert_new(void)
{
    struct io_storage_alert *alert = calloc(1, sizeof *alert);
    if (alert != NULL && uv_mutex_init(&alert->mutex) != 0) {
        free(alert);
        return NULL;
    }
    return alert;
}

void io_storage_alert_free(struct io_storage_alert *alert)
{
    if (alert == NULL)
        return;
    uv_mutex_destroy(&alert->mutex);
    free(alert);
}

void io_storage_alert_set(struct io_storage_alert *alert, enum io_storage_alert_of whose, const char *text)
{
    uv_mutex_lock(&alert->mutex);
    (void)snprintf(alert->texts[whose], sizeof alert->texts[whose], "%s", text);
    uv_mutex_unlock(&alert->mutex);
}

void io_storage_alert_text(struct io_storage_alert *alert, char *text, size_t size)
{
    text[0] = 0;
    uv_mutex_lock(&alert->mutex);
    for (int i = 0; i < IO_STORAGE_ALERT_SHARE && text[0] == 0; i++)
        (void)snprintf(text, size, "%s", alert->texts[i]);
    uv_mutex_unlock(&alert->mutex);
}

void io_storage_alert_share_text(struct io_storage_alert *alert, char *text, size_t size)
{
    uv_mutex_lock(&alert->mutex);
    (void)snprintf(text, size, "%s", alert->texts[IO_STORAGE_ALERT_SHARE]);
    uv_mutex_unlock(&alert->mutex);
}

bool io_storage_is_retried(int code)
{
    return code == AMP_EEXHAUSTED || code == AMP_ENOMEM || code == AMP_EDENIED;
}

bool io_storage_alert_is_on(struct io_storage_alert *alert, enum io_storage_alert_of whose)
{
    uv_mutex_lock(&alert->mutex);
    bool on = alert->texts[whose][0] != 0;
    uv_mutex_unlock(&alert->mutex);
    return on;
}
