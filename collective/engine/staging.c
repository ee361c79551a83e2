#include "collective/engine/staging.h"

#include <stdlib.h>

static void release(const struct gpu_ops *gpu, void *memory, bool hosted)
{
    if (hosted)
        gpu->release_pinned(memory);
    else
        gpu->release(memory);
}

static void destroy(struct coll_staging *staging, const struct gpu_ops *gpu)
{
    for (unsigned i = 0; i < staging->outgrown_count; i++)
        release(gpu, staging->outgrown[i].memory, staging->outgrown[i].hosted);
    release(gpu, staging->memory, staging->hosted);
    gpu_event const events[] = {staging->last, staging->fork, staging->join, staging->turn};
    for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i] != NULL)
            gpu->event_end(events[i]);
    if (staging->side != NULL)
        gpu->stream_end(staging->side);
    free(staging->outgrown);
    free(staging);
}

static struct coll_staging *make(const struct gpu_ops *gpu, uint64_t capture)
{
    struct coll_staging *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    made->capture = capture;
    made->side = gpu->stream_make();
    gpu_event *const events[] = {&made->last, &made->fork, &made->join, &made->turn};
    bool good = made->side != NULL;
    for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]) && good; i++)
        good = (*events[i] = gpu->event_make(false)) != NULL;
    if (good)
        return made;
    destroy(made, gpu);
    return NULL;
}

struct coll_staging *staging_get(struct staging_list *list, const struct gpu_ops *gpu, coll_stream stream)
{
    const uint64_t capture = gpu->stream_capture(stream);
    for (struct coll_staging *staging = list->first; staging != NULL; staging = staging->next)
        if (staging->capture == capture)
            return staging;
    struct coll_staging *made = make(gpu, capture);
    if (made == NULL)
        return NULL;
    made->next = list->first;
    __atomic_store_n(&list->first, made, __ATOMIC_RELEASE);
    return made;
}

/* Grows by powers of two, so outgrown memory adds up to no more than the current size. */
bool staging_grow(struct coll_staging *staging, const struct gpu_ops *gpu)
{
    size_t size = staging->size > 0 ? staging->size : (size_t)4 << 20;
    while (size < staging->reserved)
        size *= 2;
    if (size == staging->size)
        return true;
    if (staging->memory != NULL) {
        struct outgrown *outgrown = realloc(staging->outgrown, (staging->outgrown_count + 1) * sizeof(*outgrown));
        if (outgrown == NULL)
            return false;
        staging->outgrown = outgrown;
        outgrown[staging->outgrown_count++] = (struct outgrown){staging->memory, staging->hosted};
        staging->memory = NULL;
        staging->size = 0;
    }
    staging->memory = gpu->allocate(size, false);
    staging->hosted = staging->memory == NULL;
    if (staging->hosted)
        staging->memory = gpu->allocate_pinned(size);
    staging->size = staging->memory != NULL ? size : 0;
    return staging->memory != NULL;
}

void staging_end(struct staging_list *list, const struct gpu_ops *gpu)
{
    while (list->first != NULL) {
        struct coll_staging *next = list->first->next;
        destroy(list->first, gpu);
        list->first = next;
    }
}
