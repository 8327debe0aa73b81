/*
 * The speed of this machine's memory: two threads copy between arrays that are larger than any cache.
 *
 *     bench_copy BYTES     for each line on stdin copies BYTES and prints the seconds that it took
 */
#include "bench/measure.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arrays {
    uint8_t *to, *from;
};

static void copy(void *context, size_t first, size_t count)
{
    const struct arrays *arrays = context;
    memcpy(arrays->to + first, arrays->from + first, count);
}

int main(int argc, char **argv)
{
    size_t bytes = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    if (bytes == 0) {
        (void)fprintf(stderr, "usage: bench_copy BYTES\n");
        return 2;
    }
    struct arrays arrays = {bench_alloc(bytes), bench_alloc(bytes)};
    memset(arrays.from, 1, bytes);
    memset(arrays.to, 2, bytes);
    const struct bench_side side = {.name = "copy", .work = copy, .context = &arrays};
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        (void)printf("%.9f\n", bench_run(&side, bytes, 4096, BENCH_THREADS_MAX));
        (void)fflush(stdout);
    }
    bench_free(arrays.to, bytes);
    bench_free(arrays.from, bytes);
    return 0;
}
