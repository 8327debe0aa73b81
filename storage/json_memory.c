#include "storage/json_memory.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * If memory runs out while a text is parsed, jansson's allocations are served from a reserve until it asks for more of
 * the text, at most PIECE_BYTES later; it then gets an error from the callback that gives it the text. One byte of JSON
 * makes jansson allocate less than 256 bytes (the most for the brace of an object). A token longer than the reserve
 * could still be cut; the names and numbers that ampd stores are shorter.
 */
#define PIECE_BYTES   64
#define RESERVE_BYTES (PIECE_BYTES * 256 + 8192)

static pthread_once_t hooked = PTHREAD_ONCE_INIT;
static _Thread_local bool failed, reading;
static _Thread_local size_t reserve_used;
static _Thread_local _Alignas(16) uint8_t reserve[RESERVE_BYTES];

static void *allocate(size_t size)
{
    void *memory = malloc(size);
    if (memory != NULL)
        return memory;
    failed = true;
    size = (size + 15) / 16 * 16;
    if (!reading || size > RESERVE_BYTES - reserve_used)
        return NULL;
    memory = reserve + reserve_used;
    reserve_used += size;
    return memory;
}

static void release(void *memory)
{
    uintptr_t at = (uintptr_t)memory, from = (uintptr_t)reserve;
    if (at < from || at >= from + RESERVE_BYTES)
        free(memory);
}

static void hook(void)
{
    json_set_alloc_funcs(allocate, release);
}

void ampd_json_begin(void)
{
    (void)pthread_once(&hooked, hook); /* fails for no argument that is valid */
    failed = false;
}

bool ampd_json_no_memory(void)
{
    return failed;
}

struct rest {
    const char *text;
    size_t size;
};

static size_t next_piece(void *buffer, size_t size, void *arg)
{
    struct rest *rest = arg;
    size_t piece = rest->size < PIECE_BYTES ? rest->size : PIECE_BYTES;
    if (failed)
        return (size_t)-1;
    piece = piece < size ? piece : size;
    memcpy(buffer, rest->text, piece);
    rest->text += piece;
    rest->size -= piece;
    return piece;
}

json_t *ampd_json_read(const char *text, size_t size)
{
    struct rest rest = {text, size};
    ampd_json_begin();
    reserve_used = 0;
    reading = true;
    json_t *value = json_load_callback(next_piece, &rest, JSON_REJECT_DUPLICATES, NULL);
    reading = false;
    if (!failed)
        return value;
    json_decref(value); /* bytes of it may be missing, or lie in the reserve */
    return NULL;
}
