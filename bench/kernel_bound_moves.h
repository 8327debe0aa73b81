/* The loops of kernel_bounds.c that only move: a part of kernel_bound_loops.h, for its vectors. */

LOOP uint32_t NAME(read)(enum ahead ahead, const uint16_t *g, size_t n)
{
    NAME(bits) all = {0};
    uint32_t one = 0;
    for (size_t i = 0; i < n; i += 4 * LANES) {
        NAME(bits) x, y; /* not an array, which GCC 12 fills by halves and waits for */
        ask(ahead, g + i, VECTOR / 32);
        memcpy(&x, g + i, sizeof x);
        memcpy(&y, g + i + 2 * LANES, sizeof y);
        all |= x | y;
    }
    for (size_t i = 0; i < LANES; i++)
        one |= all[i];
    return one;
}

LOOP void NAME(halve)(enum ahead ahead, void *dst, const void *src, size_t n)
{
    const float *from = src;
    for (size_t i = 0; i < n; i += LINE) {
        ask(ahead, from + i, 2);
        for (size_t j = i; j < i + LINE; j += 2 * LANES)
            NAME(stream)((char *)dst + 2 * j, NAME(load)(from + j) + NAME(load)(from + j + LANES));
    }
    _mm_sfence();
}

LOOP void NAME(twice)(enum ahead ahead, void *dst, const void *src, size_t n)
{
    const float *from = src; /* two elements each */
    for (size_t i = 0; i < n; i += LINE) {
        ask(ahead, from + i / 2, 1);
        for (size_t j = i; j < i + LINE; j += 2 * LANES) {
            NAME(vec) x = NAME(load)(from + j / 2);
            NAME(stream)((float *)dst + j, x);
            NAME(stream)((float *)dst + j + LANES, x);
        }
    }
    _mm_sfence();
}
