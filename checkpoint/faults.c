#include "checkpoint/faults.h"

#include <inttypes.h>
#include <stdlib.h>

#include "checkpoint/arena.h"

uint32_t faults_add(struct faults *faults, const struct fault *fault)
{
    if (faults->count >= UINT32_MAX || !list_grow((void **)&faults->list, faults->count, &faults->room, sizeof(*fault)))
        return UINT32_MAX;
    faults->list[faults->count] = *fault;
    return (uint32_t)faults->count++;
}

void fault_text(const struct strait_checkpoint_reader *reader, const struct fault *fault, char *text, size_t text_size)
{
    const char *file = reader->names[fault->file];
    const char *why = fault->why[0] != '\0' ? fault->why : strait_status_string(fault->status);
    if (fault->shard != FAULT_NO_SHARD)
        checkpoint_fail(text, text_size, fault->status,
                        "%s: %s: values %" PRIu64 " to %" PRIu64 " of the shard, in the chunk at byte %" PRIu64 ": %s",
                        file, reader->index.shards[fault->shard].name, fault->first, fault->end - 1, fault->file_offset,
                        why);
    else if (fault->file_offset != 0)
        checkpoint_fail(text, text_size, fault->status, "%s: chunk at byte %" PRIu64 ": %s", file, fault->file_offset,
                        why);
    else
        checkpoint_fail(text, text_size, fault->status, "%s: %s", file, why);
}

static int compare_faults(const void *a, const void *b)
{
    const struct fault *x = *(const struct fault *const *)a, *y = *(const struct fault *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->file_offset != y->file_offset)
        return x->file_offset < y->file_offset ? -1 : 1;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static void report(const struct fault *fault, const struct strait_checkpoint_reader *reader,
                   const struct strait_checkpoint_load_options *options)
{
    struct strait_checkpoint_damage damage = {.file = reader->names[fault->file],
                                              .file_offset = fault->file_offset,
                                              .status = fault->status,
                                              .replaced = !fault->lost};
    if (fault->shard != FAULT_NO_SHARD) {
        const struct checkpoint_shard *shard = &reader->index.shards[fault->shard];
        damage.tensor = shard->name;
        damage.offsets = shard->offsets;
        damage.sizes = shard->sizes;
        damage.first_value = fault->first;
        damage.value_count = fault->end - fault->first;
    }
    options->damage(options->context, &damage);
}

void faults_report(const struct faults *faults, const struct strait_checkpoint_reader *reader,
                   const struct strait_checkpoint_load_options *options)
{
    if (options->damage == NULL || faults->count == 0)
        return;
    const struct fault **order = malloc(faults->count * sizeof(*order));
    for (size_t i = 0; i < faults->count && order != NULL; i++)
        order[i] = &faults->list[i];
    if (order != NULL)
        qsort(order, faults->count, sizeof(*order), compare_faults);
    for (size_t i = 0; i < faults->count; i++)
        report(order != NULL ? order[i] : &faults->list[i], reader, options);
    free(order);
}
