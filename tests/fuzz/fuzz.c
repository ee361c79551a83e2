/* Program of the target FUZZ_TARGET: for libFuzzer, or, with FUZZ_REPLAY, one that replays files and the files of
 * folders, with any compiler. */
#include <dirent.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_TARGET(data, size);
    return 0;
}

#ifdef FUZZ_REPLAY

static unsigned replayed;

/* The bytes lie in memory of exactly their size, so that sanitizers see one read too many. */
static void replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    require(file != NULL && fseek(file, 0, SEEK_END) == 0);
    long size = ftell(file);
    require(size >= 0 && fseek(file, 0, SEEK_SET) == 0);
    uint8_t *bytes = malloc((size_t)size > 0 ? (size_t)size : 1);
    require(bytes != NULL && fread(bytes, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    printf("%s\n", path);
    fflush(stdout);
    LLVMFuzzerTestOneInput(bytes, (size_t)size);
    free(bytes);
    replayed++;
}

static void replay_path(const char *path)
{
    DIR *folder = opendir(path);
    if (folder == NULL) {
        replay_file(path);
        return;
    }
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char name[4096];
        if (entry->d_name[0] == '.')
            continue;
        require(snprintf(name, sizeof(name), "%s/%s", path, entry->d_name) < (int)sizeof(name));
        replay_path(name);
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        replay_path(argv[i]);
    printf("%u replayed\n", replayed);
    return replayed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
