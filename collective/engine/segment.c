#include "collective/engine/segment.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "strait-coll-rings"

static bool map(struct segment *segment, int file)
{
    void *memory = mmap(NULL, segment->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    segment->memory = memory != MAP_FAILED ? memory : NULL;
    return segment->memory != NULL;
}

bool segment_make(struct segment *segment, size_t size, struct segment_card *card)
{
    struct stat status;
    *segment = (struct segment){.size = size, .file = memfd_create(NAME, MFD_CLOEXEC)};
    *card = (struct segment_card){.process = getpid(), .file = segment->file};
    if (segment->file >= 0 && getrandom(&card->token, sizeof(card->token), 0) == sizeof(card->token) &&
        posix_fallocate(segment->file, 0, (off_t)size) == 0 && fstat(segment->file, &status) == 0 &&
        map(segment, segment->file)) {
        card->inode = status.st_ino;
        memcpy(segment->memory, &card->token, sizeof(card->token));
        return true;
    }
    segment_close(segment);
    return false;
}

/* Reading the link has no effect on its target, which may be anything, on another host. */
static bool is_ours(const char *path)
{
    char name[64] = "";
    return readlink(path, name, sizeof(name) - 1) > 0 && strncmp(name, "/memfd:" NAME, strlen("/memfd:" NAME)) == 0;
}

static bool is_it(int file, size_t size, const struct segment_card *card)
{
    uint64_t token;
    struct stat status;
    return fstat(file, &status) == 0 && status.st_ino == card->inode && status.st_size == (off_t)size &&
           pread(file, &token, sizeof(token), 0) == sizeof(token) && token == card->token;
}

bool segment_open(struct segment *segment, size_t size, const struct segment_card *card)
{
    char path[64];
    *segment = (struct segment){.size = size, .file = -1};
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", card->process, card->file);
    if (!is_ours(path))
        return false;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return false;
    const bool good = is_it(file, size, card) && map(segment, file);
    close(file);
    return good;
}

void segment_settle(struct segment *segment)
{
    if (segment->file >= 0)
        close(segment->file);
    segment->file = -1;
}

void segment_close(struct segment *segment)
{
    segment_settle(segment);
    if (segment->memory != NULL)
        (void)munmap(segment->memory, segment->size);
    segment->memory = NULL;
}
