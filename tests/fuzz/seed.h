/* How the programs that make a corpus write it. */
#ifndef STRAIT_TESTS_FUZZ_SEED_H
#define STRAIT_TESTS_FUZZ_SEED_H

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "tests/support.h"

/* Writes FOLDER/TARGET/NAME; makes the folder of the target. */
static inline void seed_write(const char *folder, const char *target, const char *name, const void *bytes, size_t size)
{
    char path[4096];
    require(snprintf(path, sizeof(path), "%s/%s", folder, target) < (int)sizeof(path));
    require(mkdir(path, 0777) == 0 || errno == EEXIST);
    require(snprintf(path, sizeof(path), "%s/%s/%s", folder, target, name) < (int)sizeof(path));
    FILE *file = fopen(path, "wb");
    require(file != NULL && fwrite(bytes, 1, size, file) == size);
    require(fclose(file) == 0);
}

#endif
