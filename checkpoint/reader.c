/* Checkpoints that are open for reading: their index. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/boxes.h"
#include "checkpoint/folder.h"
#include "checkpoint/reader.h"

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static int compare_boxes(const void *a, const void *b, void *shards)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const struct checkpoint_shard *x = (const struct checkpoint_shard *)shards + i,
                                  *y = (const struct checkpoint_shard *)shards + j;
    for (uint32_t d = 0; d < x->dims; d++)
        if (x->offsets[d] != y->offsets[d])
            return x->offsets[d] < y->offsets[d] ? -1 : 1;
    for (uint32_t d = 0; d < x->dims; d++)
        if (x->sizes[d] != y->sizes[d])
            return x->sizes[d] > y->sizes[d] ? -1 : 1;
    return i < j ? -1 : i > j;
}

/* Sorts the shards of each tensor by their boxes, larger ones first, and adds up sizes. */
static void survey_tensors(struct strait_checkpoint_reader *reader)
{
    struct checkpoint_index *index = &reader->index;
    for (uint32_t t = 0; t < index->tensor_count; t++) {
        uint32_t *order = index->order + index->tensors[t].first;
        const struct checkpoint_shard *first = &index->shards[order[0]];
        qsort_r(order, index->tensors[t].count, sizeof(*order), compare_boxes, index->shards);
        reader->raw_bytes += checkpoint_box_bytes(first->shape, first->dims, first->dtype->bytes);
        for (uint32_t i = 0; first->dims > 0 && i < index->tensors[t].count; i++)
            if (index->shards[order[i]].sizes[0] > reader->reach[t])
                reader->reach[t] = index->shards[order[i]].sizes[0];
    }
    for (uint32_t f = 0; f < index->file_count; f++)
        reader->stored_bytes += index->files[f].bytes;
}

/* Shards of an index are in the order of their files. */
static void find_shards_of_files(struct strait_checkpoint_reader *reader)
{
    for (uint32_t s = 0, f = 0; f < reader->index.file_count; f++) {
        reader->files[f].first_shard = s;
        while (s < reader->index.shard_count && reader->index.shards[s].file == f)
            s++;
        reader->files[f].shard_count = s - reader->files[f].first_shard;
    }
}

static enum strait_status open_index(struct strait_checkpoint_reader *reader, char *text, size_t text_size)
{
    const enum strait_status status =
        folder_read_index(reader->folder, reader->path, &reader->index, (struct storage_text){text, text_size});
    if (status != STRAIT_OK)
        return status;
    struct reader_file *files = calloc(reader->index.file_count + (size_t)1, sizeof(*files));
    reader->reach = calloc(reader->index.tensor_count + (size_t)1, sizeof(*reader->reach));
    for (uint32_t f = 0; files != NULL && f < reader->index.file_count; f++)
        pthread_mutex_init(&files[f].lock, NULL);
    reader->names = calloc(reader->index.file_count + (size_t)1, sizeof(*reader->names));
    for (uint32_t f = 0; reader->names != NULL && f < reader->index.file_count; f++)
        checkpoint_file_name(reader->names[f], f);
    reader->files = files;
    if (files == NULL || reader->reach == NULL || reader->names == NULL)
        return checkpoint_fail(text, text_size, STRAIT_ERR_NO_MEMORY, "%s: out of memory", reader->path);
    find_shards_of_files(reader);
    survey_tensors(reader);
    return STRAIT_OK;
}

enum strait_status strait_checkpoint_open(const char *path, struct strait_checkpoint_reader **reader, char *text,
                                          size_t text_size)
{
    if (path == NULL || reader == NULL)
        return checkpoint_fail(text, text_size, STRAIT_ERR_INVALID, "no path");
    *reader = NULL;
    struct strait_checkpoint_reader *made = calloc(1, sizeof(*made));
    if (made == NULL || (made->path = strdup(path)) == NULL) {
        free(made);
        return checkpoint_fail(text, text_size, STRAIT_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    made->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (made->folder < 0) {
        const enum strait_status failed =
            checkpoint_fail(text, text_size, STRAIT_ERR_IO, "%s: %s", path, strerror(errno));
        strait_checkpoint_close(made);
        return failed;
    }
    const enum strait_status status = open_index(made, text, text_size);
    if (status != STRAIT_OK)
        strait_checkpoint_close(made);
    else
        *reader = made;
    return status;
}

void strait_checkpoint_close(struct strait_checkpoint_reader *reader)
{
    if (reader == NULL)
        return;
    for (uint32_t f = 0; reader->files != NULL && f < reader->index.file_count; f++) {
        struct reader_file *file = &reader->files[f];
        pthread_mutex_destroy(&file->lock);
        free(file->chunks);
        free(file->first_page);
        free(file->by_page);
        free(file->pages);
    }
    free(reader->files);
    free(reader->names);
    free(reader->reach);
    checkpoint_index_free(&reader->index);
    if (reader->folder >= 0)
        close(reader->folder);
    free(reader->path);
    free(reader);
}

/* ---- What is in it ----------------------------------------------------------------------------------------------- */

void strait_checkpoint_describe(const struct strait_checkpoint_reader *reader, struct strait_checkpoint_info *info)
{
    *info = (struct strait_checkpoint_info){
        .save_id = reader->index.save_id,
        .committed_ns = reader->index.committed_ns,
        .tensor_count = reader->index.tensor_count,
        .file_count = reader->index.file_count,
        .attachment_count = reader->index.attachment_count,
        .raw_bytes = reader->raw_bytes,
        .stored_bytes = reader->stored_bytes,
    };
}

bool strait_checkpoint_tensor_at(const struct strait_checkpoint_reader *reader, uint32_t tensor,
                                 struct strait_checkpoint_tensor_info *info)
{
    if (tensor >= reader->index.tensor_count)
        return false;
    const struct checkpoint_shard *shard = &reader->index.shards[reader_shards(reader, tensor)[0]];
    *info = (struct strait_checkpoint_tensor_info){
        .name = shard->name,
        .dtype = shard->dtype->name,
        .shape = shard->shape,
        .dims = shard->dims,
        .shard_count = reader->index.tensors[tensor].count,
        .bytes = checkpoint_box_bytes(shard->shape, shard->dims, shard->dtype->bytes),
    };
    return true;
}

/* Bytes that pages of a shard take. Of a page that it shares, as many as it has of its values. */
static uint64_t stored_bytes(struct strait_checkpoint_reader *reader, const struct checkpoint_shard *shard)
{
    const struct reader_page *pages = reader_pages(reader, shard->file);
    if (pages == NULL)
        return UINT64_MAX;
    if (!checkpoint_shard_stored(shard))
        return 0;
    const struct reader_page *first = pages + reader_first_page(reader, shard);
    const uint64_t stored = first[checkpoint_shard_pages(shard)].stored_before - first->stored_before;
    if (shard->bytes >= shard->page_bytes || first->raw_bytes <= shard->bytes)
        return stored;
    return stored * shard->bytes / first->raw_bytes; /* both below 2^25 */
}

bool strait_checkpoint_shard_at(struct strait_checkpoint_reader *reader, uint32_t tensor, uint32_t number,
                                struct strait_checkpoint_shard_info *info)
{
    if (tensor >= reader->index.tensor_count || number >= reader->index.tensors[tensor].count)
        return false;
    const struct checkpoint_shard *shard = &reader->index.shards[reader_shards(reader, tensor)[number]];
    *info = (struct strait_checkpoint_shard_info){
        .offsets = shard->offsets,
        .sizes = shard->sizes,
        .file = reader->names[shard->file],
        .rounded_from = shard->rounded_from == 0 ? NULL : reader_source(reader, shard)->name,
        .bytes = shard->bytes,
        .stored_bytes = stored_bytes(reader, shard),
    };
    return true;
}

bool strait_checkpoint_attachment_at(const struct strait_checkpoint_reader *reader, uint32_t attachment,
                                     struct strait_checkpoint_attachment *found)
{
    if (attachment >= reader->index.attachment_count)
        return false;
    *found = reader->index.attachments[attachment];
    return true;
}

uint32_t strait_checkpoint_find(const struct strait_checkpoint_reader *reader, const char *name)
{
    uint32_t low = 0, high = reader->index.tensor_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = strcmp(name, reader->index.shards[reader_shards(reader, middle)[0]].name);
        if (order == 0)
            return middle;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return UINT32_MAX;
}
