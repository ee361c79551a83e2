/* Memory of the host that processes share: a file in memory, which one of them makes and the others find by way of
 * /proc, as life.h has it. It has no name, so when the last process that has it ends, it is gone. */
#ifndef STRAIT_COLLECTIVE_ENGINE_SEGMENT_H
#define STRAIT_COLLECTIVE_ENGINE_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of which the first 8 bytes are a token that says which one it is; the rest begins as zeros. */
struct segment {
    uint8_t *memory; /* NULL: there is none */
    size_t size;
    int file; /* while others may still look for it; else -1 */
};

/* How others find it. */
struct segment_card {
    uint64_t token, inode;
    int32_t process, file;
};

/* False: there is not so much memory, or no such file. All of it is there then, so that nobody is ended for lack of it
 * later. */
bool segment_make(struct segment *segment, size_t size, struct segment_card *card);
/* False: it cannot be seen from here, as another host's. */
bool segment_open(struct segment *segment, size_t size, const struct segment_card *card);
/* Nobody will look for it any more. */
void segment_settle(struct segment *segment);
void segment_close(struct segment *segment);

#endif
