/*
 * replay DIR|FILE...: runs a fuzz target on inputs from files, without a fuzzer. Prints one line as the test programs
 * do.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Largest input of a corpus; libFuzzer's own default is 4 KiB, and what `--long fuzz` finds is at most this. */
#define INPUT_MAX ((size_t)1 << 20)

static uint8_t bytes[INPUT_MAX];

static void run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    size_t size = fread(bytes, 1, sizeof bytes, file);
    (void)fclose(file);
    /* The last line before a crash names the input. */
    (void)fprintf(stderr, "%s: %zu bytes\n", path, size);
    uint8_t *input = fuzz_exact(bytes, size);
    (void)LLVMFuzzerTestOneInput(input, size);
    free(input);
}

static size_t run_dir(const char *path, DIR *dir)
{
    size_t count = 0;
    char name[4096];
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        run_file(name);
        count++;
    }
    (void)closedir(dir);
    return count;
}

int main(int argc, char **argv)
{
    size_t count = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (dir != NULL) {
            count += run_dir(argv[i], dir);
        } else {
            run_file(argv[i]);
            count++;
        }
    }
    bool ok = count > 0;
    printf("[%s] %zu inputs of %s\n", ok ? "       OK " : "  FAILED  ", count, argc > 1 ? argv[1] : "nothing");
    return ok ? 0 : 1;
}
