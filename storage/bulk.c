#include "storage/bulk.h"

#include "base/large.h"

#include <stdlib.h>

uint8_t *bulk_memory(uint64_t windows)
{
    uint8_t *memory = aligned_alloc(BULK_WINDOW, windows * BULK_WINDOW);
    amp_large_advise(memory, windows * BULK_WINDOW);
    return memory;
}
