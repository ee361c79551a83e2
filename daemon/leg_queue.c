#include "daemon/leg_queue.h"

#include <assert.h>
#include <stdlib.h>

/* Events of one leg that can be queued at once: one callback adds few, and a failed source answers each of its grants,
 * for which a local sink gets an event. */
#define LEG_EVENTS (SOURCE_GRANTS + 16u)

static bool grow(struct leg_queue *queue, uint32_t capacity)
{
    struct leg_post *posts = malloc(capacity * sizeof(*posts));
    if (posts == NULL)
        return false;
    for (uint32_t i = 0; i < queue->count; i++)
        posts[i] = queue->posts[(queue->first + i) % queue->capacity];
    free(queue->posts);
    queue->posts = posts;
    queue->first = 0;
    queue->capacity = capacity;
    return true;
}

bool leg_queue_reserve(struct leg_queue *queue)
{
    const uint32_t needed = (queue->legs + 1) * LEG_EVENTS;
    if (needed > queue->capacity && !grow(queue, 2 * needed))
        return false;
    queue->legs++;
    return true;
}

void leg_queue_release(struct leg_queue *queue)
{
    queue->legs--;
}

void leg_queue_fini(struct leg_queue *queue)
{
    free(queue->posts);
    *queue = (struct leg_queue){0};
}

void leg_queue_append(struct leg_queue *queue, const struct leg_post *post)
{
    assert(queue->count < queue->capacity);
    /* Not reached while LEG_EVENTS holds. A build without assertions makes room all the same, and overwrites nothing. */
    if (queue->count == queue->capacity && !grow(queue, 2 * queue->capacity + LEG_EVENTS))
        return;
    queue->posts[(queue->first + queue->count++) % queue->capacity] = *post;
}

bool leg_queue_take(struct leg_queue *queue, struct leg_post *post)
{
    if (queue->count == 0)
        return false;
    *post = queue->posts[queue->first++];
    if (--queue->count == 0 || queue->first == queue->capacity)
        queue->first = 0; /* an empty queue begins anew: its first posts are in the caches */
    return true;
}
