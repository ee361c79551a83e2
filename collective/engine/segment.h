/* Host memory that processes share: a file in memory, which one of them makes and the others find by way of /proc (as
 * in life.h). It has no name, so it is gone when the last process that has it ends. */
#ifndef STRAIT_COLLECTIVE_ENGINE_SEGMENT_H
#define STRAIT_COLLECTIVE_ENGINE_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first 8 bytes of the memory are a token that identifies it; the rest is zero at first. */
struct segment {
    uint8_t *memory; /* NULL: there is none */
    size_t size;
    int file; /* while others may still look for it; -1 afterwards */
};

/* How others find it. */
struct segment_card {
    uint64_t token, inode;
    int32_t process, file;
};

/* False: there is not enough memory, or no such file. All of the memory is allocated here, so that nobody is killed for
 * lack of it later. */
bool segment_make(struct segment *segment, size_t size, struct segment_card *card);
/* False: the segment cannot be seen from here, for example from another host. */
bool segment_open(struct segment *segment, size_t size, const struct segment_card *card);
/* Nobody will look for it any more. */
void segment_settle(struct segment *segment);
void segment_close(struct segment *segment);

#endif
