/* Memory that messages are encoded into and received in. There is one for all calls outside of graphs, and one for
 * every captured graph, as graphs may run beside other operations. Within one, memory is used in the order of its
 * operations. */
#ifndef STRAIT_COLLECTIVE_ENGINE_STAGING_H
#define STRAIT_COLLECTIVE_ENGINE_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/engine/gpu.h"

struct coll_staging {
    struct coll_staging *next;
    uint64_t capture; /* 0: for calls outside of graphs */
    uint8_t *memory;
    size_t size;
    bool hosted; /* `memory` is pinned host memory, as the GPU had none */
    struct outgrown {
        void *memory;
        bool hosted;
    } * outgrown; /* memory that was too small; running work may still use it */
    unsigned outgrown_count;
    gpu_event last; /* for a graph, if `used`: end of its work so far */
    bool used;
    /* A second stream, for overlap and for groups with sends. */
    coll_stream side;
    gpu_event fork, join, turn;
    /* For the group being prepared: its steps, and the memory they take, which begins with their jobs. */
    uint32_t steps;
    size_t reserved;
};

struct staging_list {
    struct coll_staging *first; /* readers without the lock see complete entries: new ones are only put in front */
};

/* The staging memory for a stream; NULL: no memory. The one for calls outside of graphs exists from the start, because
 * the driver may block a thread that makes a stream while another thread waits for a GPU, which may be waiting for this
 * very rank. */
struct coll_staging *staging_get(struct staging_list *list, const struct gpu_ops *gpu, coll_stream stream);

/* Grows the memory to `reserved` bytes, in GPU memory or, if there is no room, in host memory, which is slow. False:
 * neither can be had. */
bool staging_grow(struct coll_staging *staging, const struct gpu_ops *gpu);

void staging_end(struct staging_list *list, const struct gpu_ops *gpu);

#endif
