#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "checkpoint/boxes.h"
#include "checkpoint/format.h"

/* A tensor while shards are told apart by their names. */
struct named {
    uint64_t hash;
    uint32_t first; /* its first shard */
    uint32_t count;
    uint32_t place; /* among tensors in the order of their names */
};

struct naming {
    const struct checkpoint_shard *shards;
    struct named *tensors;
    uint32_t *slots;     /* hash table of 1 + a tensor's place, a power of two of them */
    uint32_t *tensor_of; /* each shard's */
    uint64_t mask;
    uint32_t count;
};

/* The tensor of a shard, new if it is the first of its name. */
static struct named *find(struct naming *naming, uint32_t shard)
{
    const char *name = naming->shards[shard].name;
    /* A file cannot know the seed, hence not choose names that all meet in one place. */
    const uint64_t hash = XXH3_64bits_withSeed(name, strlen(name), (uintptr_t)naming);

    for (uint64_t at = hash & naming->mask;; at = (at + 1) & naming->mask) {
        if (naming->slots[at] == 0) {
            naming->slots[at] = ++naming->count;
            naming->tensors[naming->count - 1] = (struct named){.hash = hash, .first = shard};
        }
        struct named *tensor = &naming->tensors[naming->slots[at] - 1];
        if (tensor->hash == hash && strcmp(naming->shards[tensor->first].name, name) == 0)
            return tensor;
    }
}

static int by_name(const void *left, const void *right, void *context)
{
    const struct naming *naming = context;
    const struct named *a = &naming->tensors[*(const uint32_t *)left], *b = &naming->tensors[*(const uint32_t *)right];

    return strcmp(naming->shards[a->first].name, naming->shards[b->first].name);
}

static bool naming_init(struct naming *naming, const struct checkpoint_index *index)
{
    const size_t count = index->shard_count;
    size_t slots = 16;

    while (slots < 2 * count)
        slots *= 2;
    *naming = (struct naming){.shards = index->shards, .mask = slots - 1};
    naming->tensors = malloc(count * sizeof(*naming->tensors) + 1);
    naming->tensor_of = malloc(count * sizeof(*naming->tensor_of) + 1);
    naming->slots = calloc(slots, sizeof(*naming->slots));
    return naming->tensors != NULL && naming->tensor_of != NULL && naming->slots != NULL;
}

static void naming_fini(struct naming *naming)
{
    free(naming->tensors);
    free(naming->tensor_of);
    free(naming->slots);
}

static enum strait_status collect(struct naming *naming, uint32_t count, char *text, size_t text_size)
{
    for (uint32_t i = 0; i < count; i++) {
        struct named *tensor = find(naming, i);
        const struct checkpoint_shard *first = &naming->shards[tensor->first], *shard = &naming->shards[i];
        if (first->dtype != shard->dtype || first->dims != shard->dims ||
            (first->dims > 0 && memcmp(first->shape, shard->shape, first->dims * sizeof(*first->shape)) != 0))
            return checkpoint_fail(text, text_size, STRAIT_ERR_CORRUPT,
                                   "tensor %s differs in type or shape between files %u and %u", shard->name,
                                   first->file, shard->file);
        tensor->count++;
        naming->tensor_of[i] = (uint32_t)(tensor - naming->tensors);
    }
    return STRAIT_OK;
}

/* Sets the index's tensors and order from the naming. */
static bool arrange(struct checkpoint_index *index, struct naming *naming)
{
    uint32_t *sorted = malloc((size_t)naming->count * sizeof(*sorted) + 1), at = 0;

    index->tensors = calloc((size_t)naming->count + 1, sizeof(*index->tensors));
    index->order = malloc((size_t)index->shard_count * sizeof(*index->order) + 1);
    if (sorted == NULL || index->tensors == NULL || index->order == NULL) {
        free(sorted);
        return false;
    }
    for (uint32_t i = 0; i < naming->count; i++)
        sorted[i] = i;
    qsort_r(sorted, naming->count, sizeof(*sorted), by_name, naming);
    index->tensor_count = naming->count;
    for (uint32_t i = 0; i < naming->count; i++) {
        naming->tensors[sorted[i]].place = i;
        index->tensors[i].first = at;
        at += naming->tensors[sorted[i]].count;
    }
    for (uint32_t i = 0; i < index->shard_count; i++) {
        struct checkpoint_group *group = &index->tensors[naming->tensors[naming->tensor_of[i]].place];
        index->order[group->first + group->count++] = i;
    }
    free(sorted);
    return true;
}

static enum strait_status check_cover(const struct checkpoint_index *index, const struct checkpoint_group *group,
                                      struct checkpoint_box *boxes, uint64_t *budget, char *text, size_t text_size)
{
    const struct checkpoint_shard *first = &index->shards[index->order[group->first]];
    uint64_t gap[STRAIT_CHECKPOINT_DIMS_MAX] = {0};
    char at[STRAIT_CHECKPOINT_DIMS_MAX * 22] = "";
    size_t length = 0;

    for (uint32_t i = 0; i < group->count; i++) {
        const struct checkpoint_shard *shard = &index->shards[index->order[group->first + i]];
        boxes[i] = (struct checkpoint_box){shard->offsets, shard->sizes, shard->dims};
    }
    switch (checkpoint_boxes_cover(boxes, group->count, first->shape, first->dims, budget, gap)) {
    case CHECKPOINT_COVERED:
        return STRAIT_OK;
    case CHECKPOINT_INTRICATE:
        return checkpoint_fail(text, text_size, STRAIT_ERR_CORRUPT, "tensor %s has too many shards that overlap",
                               first->name);
    default:
        for (uint32_t d = 0; d < first->dims; d++)
            length += (size_t)snprintf(at + length, sizeof(at) - length, "%s%llu", d > 0 ? ", " : "",
                                       (unsigned long long)gap[d]);
        return checkpoint_fail(text, text_size, STRAIT_ERR_CORRUPT, "tensor %s: no shard has its value at [%s]",
                               first->name, at);
    }
}

enum strait_status checkpoint_index_group(struct checkpoint_index *index, char *text, size_t text_size)
{
    struct naming naming;
    struct checkpoint_box *boxes = malloc((size_t)index->shard_count * sizeof(*boxes) + 1);
    uint64_t budget = CHECKPOINT_COVER_BUDGET;
    enum strait_status status = STRAIT_ERR_NO_MEMORY;

    if (naming_init(&naming, index) && boxes != NULL) {
        status = collect(&naming, index->shard_count, text, text_size);
        if (status == STRAIT_OK && !arrange(index, &naming))
            status = STRAIT_ERR_NO_MEMORY;
        for (uint32_t i = 0; status == STRAIT_OK && i < index->tensor_count; i++)
            status = check_cover(index, &index->tensors[i], boxes, &budget, text, text_size);
    }
    if (status == STRAIT_ERR_NO_MEMORY)
        checkpoint_fail(text, text_size, status, "out of memory");
    naming_fini(&naming);
    free(boxes);
    return status;
}
