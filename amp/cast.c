/*
 * Casts and the cast cache.
 *
 * An entry is in two lists: the ring of all entries in the order of their last use, whose oldest is freed when the
 * bound is reached, and the chain of its slot in a hash table of (tensor id, dtype). An entry of another version than
 * the requested one is stale: it is cast again in place, which counts as a use. An entry of another size than the
 * tensor's is taken out of its chain, so that it is not found again; it is freed when it is the oldest and not before,
 * since the caller may still be reading it.
 *
 * The entries handed out during the present visit (see amp/cast_cache.h) are the newest in the ring, so if the oldest
 * is one of them, all are.
 */
#include "amp/cast_cache.h"

#include "base/list.h"
#include "base/wraps.h"

#include <stdbool.h>
#include <stdlib.h>

struct entry {
    struct amp_list node; /* in the cache's ring, oldest use first */
    struct entry *next;   /* in the chain of its slot */
    uint64_t id;
    uint64_t version;
    uint64_t visit; /* the last one in which it was handed out */
    enum amp_dtype dtype;
    bool retired; /* it is in no chain, and so is not found any more */
    size_t bytes;
    max_align_t data[]; /* one allocation, so that a look-up and its cast touch memory in one place */
};

struct amp_cast_cache {
    struct amp_list ring;
    size_t max_bytes;
    struct amp_cast_cache_stats stats;
    unsigned slot_bits;
    struct entry *slots[];
};

/* A slot for each 64 bytes of casts, so that chains are short for all but the smallest; 512 KiB of slots at most. */
#define SLOT_BYTES_LOG2 6
#define SLOT_BITS_MIN   4
#define SLOT_BITS_MAX   16

struct amp_cast_cache *amp_cast_cache_new(size_t max_bytes)
{
    unsigned bits = SLOT_BITS_MIN;
    while (bits < SLOT_BITS_MAX && max_bytes >> (bits + SLOT_BYTES_LOG2) != 0)
        bits++;
    struct amp_cast_cache *cache = calloc(1, sizeof *cache + ((size_t)1 << bits) * sizeof *cache->slots);
    if (cache == NULL)
        return NULL;
    amp_list_init(&cache->ring);
    cache->max_bytes = max_bytes;
    cache->slot_bits = bits;
    return cache;
}

/* The product wraps: a hash (Knuth's multiplicative one, whose upper bits are the good ones). */
AMP_WRAPS static struct entry **slot_of(struct amp_cast_cache *cache, uint64_t id, enum amp_dtype dtype)
{
    return &cache->slots[(id * 4 + (uint64_t)dtype) * 0x9e3779b97f4a7c15u >> (64 - cache->slot_bits)];
}

static struct entry *find(struct amp_cast_cache *cache, uint64_t id, enum amp_dtype dtype)
{
    for (struct entry *entry = *slot_of(cache, id, dtype); entry != NULL; entry = entry->next) {
        cache->stats.compared++;
        if (entry->id == id && entry->dtype == dtype)
            return entry;
    }
    return NULL;
}

/* Takes an entry out of its chain: it is not found any more. */
static void retire(struct amp_cast_cache *cache, struct entry *entry)
{
    struct entry **at = slot_of(cache, entry->id, entry->dtype);
    while (!entry->retired && *at != entry)
        at = &(*at)->next;
    if (!entry->retired)
        *at = entry->next;
    entry->retired = true;
}

static void drop(struct amp_cast_cache *cache, struct entry *entry)
{
    retire(cache, entry);
    amp_list_remove(&entry->node);
    cache->stats.entries--;
    cache->stats.bytes -= entry->bytes;
    free(entry);
}

void amp_cast_cache_free(struct amp_cast_cache *cache)
{
    if (cache == NULL)
        return;
    AMP_LIST_EACH(it, safe, &cache->ring)
    drop(cache, AMP_CONTAINER(it, struct entry, node));
    free(cache);
}

void amp_cast_cache_stats(const struct amp_cast_cache *cache, struct amp_cast_cache_stats *stats)
{
    *stats = cache->stats;
}

/*
 * Makes room for `bytes` more by freeing casts that were not handed out in this visit, the oldest first. False: there
 * is not enough.
 */
static bool make_room(struct amp_cast_cache *cache, uint64_t visit, size_t bytes)
{
    while (bytes > cache->max_bytes - cache->stats.bytes) {
        if (amp_list_empty(&cache->ring))
            return false;
        struct entry *oldest = AMP_CONTAINER(cache->ring.next, struct entry, node);
        if (oldest->visit == visit)
            return false;
        drop(cache, oldest);
    }
    return true;
}

/* Allocates an entry with room for `bytes`. NULL: out of memory. */
static struct entry *make(struct amp_cast_cache *cache, uint64_t id, enum amp_dtype dtype, size_t bytes)
{
    struct entry *entry = malloc(sizeof *entry + bytes);
    if (entry == NULL)
        return NULL;
    struct entry **slot = slot_of(cache, id, dtype);
    *entry = (struct entry){.id = id, .dtype = dtype, .bytes = bytes, .next = *slot};
    *slot = entry;
    amp_list_init(&entry->node);
    cache->stats.entries++;
    cache->stats.bytes += bytes;
    return entry;
}

int amp_cast_cache_get(struct amp_cast_cache *cache, uint64_t visit, const struct amp_kernels *kernels,
                       const struct amp_tensor_view *in, enum amp_dtype dtype, struct amp_tensor_view *out)
{
    size_t bytes = in->count * amp_dtype_size(dtype);
    struct entry *entry = find(cache, in->id, dtype);
    if (entry != NULL && entry->bytes != bytes) {
        retire(cache, entry);
        entry = NULL;
    }
    bool hit = entry != NULL && entry->version == in->version;
    if (entry == NULL) {
        if (bytes > cache->max_bytes || !make_room(cache, visit, bytes))
            return AMP_EEXHAUSTED;
        entry = make(cache, in->id, dtype, bytes);
        if (entry == NULL)
            return AMP_ENOMEM;
    }
    if (!hit)
        amp_cast(kernels, entry->data, dtype, in->data, in->dtype, in->count);
    cache->stats.hits += hit;
    cache->stats.misses += !hit;
    entry->version = in->version;
    entry->visit = visit;
    amp_list_remove(&entry->node);
    amp_list_push(&cache->ring, &entry->node);
    *out = (struct amp_tensor_view){entry->data, in->count, dtype, in->id, in->version};
    return 0;
}

/*
 * A destination of at least this size is written past the caches, as by the C library's memcpy: it would be displaced
 * from a core's caches before it is read, and such a write does not read the lines first.
 */
#define CAST_STREAM_BYTES (8u << 20)

void amp_cast(const struct amp_kernels *kernels, void *dst, enum amp_dtype to, const void *src, enum amp_dtype from,
              size_t count)
{
    bool stream = count >= CAST_STREAM_BYTES / amp_dtype_size(to);
    if (from == AMP_F32) {
        (void)(stream ? kernels->store_stream : kernels->store)[to](dst, src, count);
        kernels->store_fence();
        return;
    }
    if (to == AMP_F32) {
        (stream ? kernels->load_stream : kernels->load)[from](dst, src, count);
        kernels->store_fence();
        return;
    }
    /* Between the 16-bit types tile by tile through fp32, which is exact, so that the result is rounded once. */
    float tile[256];
    const char *s = src;
    char *d = dst;
    while (count > 0) {
        size_t n = count < 256 ? count : 256;
        kernels->load[from](tile, s, n);
        (void)kernels->store[to](d, tile, n);
        s += n * amp_dtype_size(from);
        d += n * amp_dtype_size(to);
        count -= n;
    }
}
