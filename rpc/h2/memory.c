#include "rpc/h2/memory.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* In front of each block. */
struct block {
    struct amp_list node;
    _Alignas(max_align_t) uint8_t bytes[];
};

static struct block *block_of(void *data)
{
    return AMP_CONTAINER(data, struct block, bytes);
}

static void *on_malloc(size_t size, void *arg)
{
    struct arpc_memory *memory = arg;
    const nghttp2_mem *under = memory->under;
    if (size > SIZE_MAX - sizeof(struct block))
        return NULL;
    size += sizeof(struct block);
    struct block *block = under != NULL ? under->malloc(size, under->mem_user_data) : malloc(size);
    if (block == NULL)
        return NULL;
    amp_list_push(&memory->blocks, &block->node);
    return block->bytes;
}

static void on_free(void *data, void *arg)
{
    const struct arpc_memory *memory = arg;
    const nghttp2_mem *under = memory->under;
    if (data == NULL)
        return;
    struct block *block = block_of(data);
    amp_list_remove(&block->node);
    if (under != NULL)
        under->free(block, under->mem_user_data);
    else
        free(block);
}

static void *on_calloc(size_t count, size_t size, void *arg)
{
    if (size > 0 && count > SIZE_MAX / size)
        return NULL;
    void *data = on_malloc(count * size, arg);
    if (data != NULL)
        memset(data, 0, count * size);
    return data;
}

static void *on_realloc(void *data, size_t size, void *arg)
{
    struct arpc_memory *memory = arg;
    const nghttp2_mem *under = memory->under;
    if (data == NULL)
        return on_malloc(size, arg);
    if (size > SIZE_MAX - sizeof(struct block))
        return NULL;
    size += sizeof(struct block);
    struct block *block = block_of(data);
    amp_list_remove(&block->node);
    struct block *moved = under != NULL ? under->realloc(block, size, under->mem_user_data) : realloc(block, size);
    if (moved != NULL)
        amp_list_init(&moved->node);
    block = moved != NULL ? moved : block;
    amp_list_push(&memory->blocks, &block->node);
    return moved != NULL ? moved->bytes : NULL;
}

struct arpc_memory *arpc_memory_new(const nghttp2_mem *under)
{
    struct arpc_memory *memory = malloc(sizeof *memory);
    if (memory == NULL)
        return NULL;
    memory->mem = (nghttp2_mem){
        .mem_user_data = memory, .malloc = on_malloc, .free = on_free, .calloc = on_calloc, .realloc = on_realloc};
    memory->under = under;
    amp_list_init(&memory->blocks);
    return memory;
}

void arpc_memory_free(struct arpc_memory *memory)
{
    if (memory == NULL)
        return;
    while (!amp_list_empty(&memory->blocks))
        on_free(AMP_CONTAINER(memory->blocks.next, struct block, node)->bytes, memory);
    free(memory);
}
