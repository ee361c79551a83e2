/* Memory that messages are encoded into and received in. One for all that is called straight, one for every graph that
 * is captured: graphs may run beside other operations. What one of them holds is used in the order of its operations.
 */
#ifndef STRAIT_COLLECTIVE_ENGINE_STAGING_H
#define STRAIT_COLLECTIVE_ENGINE_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/engine/gpu.h"

struct coll_staging {
    struct coll_staging *next;
    uint64_t capture; /* 0: what is called straight */
    uint8_t *memory;
    size_t size;
    bool hosted; /* `memory` is the host's, pinned, as the GPU had none */
    struct outgrown {
        void *memory;
        bool hosted;
    } * outgrown; /* memory that was too small: what runs may still use it */
    unsigned outgrown_count;
    gpu_event last; /* of what was asked for before on `stream`, when `used`; of a graph */
    coll_stream stream;
    bool used;
    /* Beside `stream`, for pieces and groups with sends. */
    coll_stream side;
    gpu_event fork, join, turn;
    /* Of the group that is being made ready: steps, and memory, which begins with their jobs. */
    uint32_t steps;
    size_t reserved;
};

struct staging_list {
    struct coll_staging *first; /* a reader without the lock sees whole ones: members are only put in front */
};

/* That of the stream; NULL: no memory. What is called straight has its own from the start: the driver may hold up who
 * makes a stream while another thread waits for a GPU, which may be waiting for this very rank. */
struct coll_staging *staging_get(struct staging_list *list, const struct gpu_ops *gpu, coll_stream stream);

/* Makes it as large as `reserved`: in the GPU's memory, or when that has no room in the host's, which is slow. False:
 * no memory at all. */
bool staging_grow(struct coll_staging *staging, const struct gpu_ops *gpu);

void staging_end(struct staging_list *list, const struct gpu_ops *gpu);

#endif
