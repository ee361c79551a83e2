#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "checkpoint/arena.h"
#include "checkpoint/boxes.h"
#include "checkpoint/checkpoint.pb-c.h"
#include "checkpoint/format.h"
#include "internal/bytes.h"

#define INDEX_VERSION 1u

static const uint8_t magic_index[4] = {'S', 'T', 'C', 'I'};
static const uint64_t zeroes[STRAIT_CHECKPOINT_DIMS_MAX];

static unsigned long long wide(uint64_t number)
{
    return number;
}

/* ---- Memory of what is parsed ------------------------------------------------------------------------------------ */

/* What protobuf-c allocates for a message: blocks that are freed together, of at most a fixed multiple of the message's
 * length. The shortest message that is valid needs a third of it. */
#define BUDGET_FIXED  65536u
#define BUDGET_FACTOR 128u

struct limited {
    struct arena arena;
    uint64_t budget;
    bool no_memory;
};

static void *take(void *context, size_t bytes)
{
    struct limited *limited = context;

    if (bytes > limited->budget || arena_rounded(bytes) > limited->budget)
        return NULL;
    limited->budget -= arena_rounded(bytes);
    void *taken = arena_take(&limited->arena, bytes);
    limited->no_memory |= taken == NULL;
    return taken;
}

static void keep(void *context, void *pointer)
{
    (void)context;
    (void)pointer;
}

static void blocks_free(void *blocks)
{
    struct arena arena = {.blocks = blocks};
    arena_free(&arena);
}

/* The message, or NULL with *status and text; *blocks are its memory. */
static void *unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *message, size_t bytes, void **blocks,
                    enum strait_status *status, char *text, size_t text_size)
{
    struct limited limited = {.budget = BUDGET_FIXED + (uint64_t)BUDGET_FACTOR * bytes};
    ProtobufCAllocator allocator = {.alloc = take, .free = keep, .allocator_data = &limited};
    void *found = protobuf_c_message_unpack(descriptor, &allocator, bytes, message);

    if (found == NULL) {
        *status = limited.no_memory ? checkpoint_fail(text, text_size, STRAIT_ERR_NO_MEMORY, "out of memory")
                                    : checkpoint_fail(text, text_size, STRAIT_ERR_CORRUPT, "is no message %s",
                                                      descriptor->short_name);
        arena_free(&limited.arena);
        return NULL;
    }
    *blocks = limited.arena.blocks;
    return found;
}

/* ---- Shards ------------------------------------------------------------------------------------------------------ */

struct told {
    char *text;
    size_t size;
};

#define CORRUPT(told, ...) checkpoint_fail((told).text, (told).size, STRAIT_ERR_CORRUPT, __VA_ARGS__)

static const char *text_of(const char *string)
{
    return string != NULL ? string : "";
}

/* Shape, offsets and sizes of a shard. */
static enum strait_status read_box(struct checkpoint_shard *shard, const Strait__CheckpointShard *src, uint32_t place,
                                   struct told told)
{
    const size_t dims = src->n_shape;

    if (dims > STRAIT_CHECKPOINT_DIMS_MAX)
        return CORRUPT(told, "shard %u has %zu dimensions", place, dims);
    if ((src->n_offsets != 0 && src->n_offsets != dims) || (src->n_sizes != 0 && src->n_sizes != dims))
        return CORRUPT(told, "shard %u has a box of other dimensions than its shape", place);
    shard->dims = (uint32_t)dims;
    shard->shape = dims > 0 ? src->shape : zeroes;
    shard->offsets = src->n_offsets > 0 ? src->offsets : zeroes;
    shard->sizes = src->n_sizes > 0 ? src->sizes : shard->shape;
    if (checkpoint_box_bytes(shard->shape, shard->dims, shard->dtype->bytes) == UINT64_MAX)
        return CORRUPT(told, "shard %u has a shape of 2^63 bytes or more", place);
    if (!checkpoint_box_inside(shard->shape, shard->offsets, shard->sizes, shard->dims))
        return CORRUPT(told, "shard %u has a box outside its shape", place);
    shard->bytes = checkpoint_box_bytes(shard->sizes, shard->dims, shard->dtype->bytes);
    return STRAIT_OK;
}

/* Where a shard's pages are, as far as it alone tells. */
static enum strait_status read_place(const struct checkpoint_shard *shard, uint32_t place, struct told told)
{
    if (!checkpoint_shard_stored(shard)) {
        if (shard->first_chunk != 0 || shard->first_page != 0 || shard->first_byte != 0 || shard->page_bytes != 0)
            return CORRUPT(told, "shard %u has pages of nothing", place);
        return STRAIT_OK;
    }
    if (shard->page_bytes == 0 || shard->page_bytes % 64 != 0 || shard->page_bytes > STRAIT_PAGE_BYTES_MAX)
        return CORRUPT(told, "shard %u has pages of %u bytes", place, shard->page_bytes);
    if (shard->first_byte % shard->dtype->bytes != 0 ||
        (shard->first_byte > 0 && shard->first_byte + shard->bytes > shard->page_bytes))
        return CORRUPT(told, "shard %u begins at byte %u of a page", place, shard->first_byte);
    return STRAIT_OK;
}

static enum strait_status read_shard(struct checkpoint_shard *shard, const Strait__CheckpointShard *src, uint32_t place,
                                     struct told told)
{
    *shard = (struct checkpoint_shard){.name = text_of(src->name),
                                       .dtype = checkpoint_dtype_find(text_of(src->dtype)),
                                       .first_chunk = src->first_chunk,
                                       .first_page = src->first_page,
                                       .first_byte = src->first_byte,
                                       .page_bytes = src->page_bytes,
                                       .rounded_from = src->rounded_from,
                                       .file = src->file};
    if (!checkpoint_name_valid(shard->name))
        return CORRUPT(told, "shard %u has no name, or one that is no UTF-8 or too long", place);
    if (shard->dtype == NULL)
        return CORRUPT(told, "shard %u has a type that is unknown", place);
    const enum strait_status status = read_box(shard, src, place, told);
    return status != STRAIT_OK ? status : read_place(shard, place, told);
}

static bool same(const uint64_t *a, const uint64_t *b, uint32_t dims)
{
    return dims == 0 || memcmp(a, b, dims * sizeof(*a)) == 0;
}

/* Whether a shard that is a rounding names one of its file (its list begins at `list`, of `count`) that it can be of.
 */
static enum strait_status check_rounding(const struct checkpoint_shard *list, uint32_t count, uint32_t place,
                                         struct told told)
{
    const struct checkpoint_shard *shard = &list[place];

    if (shard->rounded_from == 0)
        return STRAIT_OK;
    if (shard->rounded_from > count)
        return CORRUPT(told, "shard %u is the rounding of a shard that is not there", place);
    const struct checkpoint_shard *from = &list[shard->rounded_from - 1];
    if (shard->dtype->element != STRAIT_ELEMENT_BF16 || from->dtype->element != STRAIT_ELEMENT_FP32 ||
        from->rounded_from != 0 || from->dims != shard->dims || !same(from->shape, shard->shape, shard->dims) ||
        !same(from->offsets, shard->offsets, shard->dims) || !same(from->sizes, shard->sizes, shard->dims))
        return CORRUPT(told, "shard %u cannot be the rounding of shard %u", place, shard->rounded_from - 1);
    return STRAIT_OK;
}

static enum strait_status read_shards(struct checkpoint_shard **list, Strait__CheckpointShard *const *src, size_t count,
                                      struct told told)
{
    enum strait_status status = STRAIT_OK;

    *list = count <= UINT32_MAX ? calloc(count > 0 ? count : 1, sizeof(**list)) : NULL;
    if (*list == NULL)
        return checkpoint_fail(told.text, told.size, STRAIT_ERR_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < count && status == STRAIT_OK; i++)
        status = read_shard(&(*list)[i], src[i], i, told);
    return status;
}

static void write_shard(Strait__CheckpointShard *dst, const struct checkpoint_shard *shard)
{
    strait__checkpoint_shard__init(dst);
    dst->name = (char *)shard->name;
    dst->dtype = (char *)shard->dtype->name;
    dst->n_shape = shard->dims;
    dst->shape = (uint64_t *)shard->shape;
    if (!same(shard->offsets, zeroes, shard->dims)) {
        dst->n_offsets = shard->dims;
        dst->offsets = (uint64_t *)shard->offsets;
    }
    if (!same(shard->sizes, shard->shape, shard->dims)) {
        dst->n_sizes = shard->dims;
        dst->sizes = (uint64_t *)shard->sizes;
    }
    dst->first_chunk = shard->first_chunk;
    dst->first_page = shard->first_page;
    dst->first_byte = shard->first_byte;
    dst->page_bytes = shard->page_bytes;
    dst->rounded_from = shard->rounded_from;
    dst->file = shard->file;
}

/* `count` messages and the list of pointers that protobuf-c wants, in one block; NULL: out of memory. */
static void *message_list(uint32_t count, size_t message_bytes, void ***pointers)
{
    uint8_t *list = malloc(count * (message_bytes + sizeof(void *)) + 1);

    if (list == NULL)
        return NULL;
    *pointers = (void **)(list + count * message_bytes);
    for (uint32_t i = 0; i < count; i++)
        (*pointers)[i] = list + i * message_bytes;
    return list;
}

static Strait__CheckpointShard *write_shards(const struct checkpoint_shard *shards, uint32_t count, void ***pointers)
{
    Strait__CheckpointShard *list = message_list(count, sizeof(*list), pointers);

    for (uint32_t i = 0; list != NULL && i < count; i++)
        write_shard(&list[i], &shards[i]);
    return list;
}

/* ---- Footer ------------------------------------------------------------------------------------------------------ */

enum strait_status checkpoint_footer_build(const struct checkpoint_footer *footer, uint8_t **message, size_t *bytes)
{
    Strait__CheckpointFile file = STRAIT__CHECKPOINT_FILE__INIT;
    void **chunk_list = NULL, **shard_list = NULL;
    Strait__CheckpointChunk *chunks = message_list(footer->chunk_count, sizeof(*chunks), &chunk_list);
    Strait__CheckpointShard *shards = write_shards(footer->shards, footer->shard_count, &shard_list);
    enum strait_status status = STRAIT_ERR_NO_MEMORY;

    if (chunks == NULL || shards == NULL)
        goto end;
    for (uint32_t i = 0; i < footer->chunk_count; i++) {
        const struct checkpoint_chunk *chunk = &footer->chunks[i];
        strait__checkpoint_chunk__init(&chunks[i]);
        chunks[i].offset = chunk->offset;
        chunks[i].bytes = chunk->bytes;
        chunks[i].pages = chunk->pages;
        chunks[i].metadata_sum = chunk->metadata_sum;
    }
    file.rank = footer->rank;
    file.rank_count = footer->rank_count;
    file.save_id = (ProtobufCBinaryData){STRAIT_CHECKPOINT_ID_BYTES, (uint8_t *)footer->save_id};
    file.n_chunks = footer->chunk_count;
    file.chunks = (Strait__CheckpointChunk **)chunk_list;
    file.n_shards = footer->shard_count;
    file.shards = (Strait__CheckpointShard **)shard_list;
    *bytes = strait__checkpoint_file__get_packed_size(&file);
    if (*bytes > UINT32_MAX) {
        status = STRAIT_ERR_INVALID;
        goto end;
    }
    *message = malloc(*bytes + 1);
    if (*message != NULL) {
        strait__checkpoint_file__pack(&file, *message);
        status = STRAIT_OK;
    }
end:
    free(chunks);
    free(shards);
    return status;
}

static enum strait_status read_chunks(struct checkpoint_footer *footer, const Strait__CheckpointFile *file,
                                      uint64_t footer_offset, struct told told)
{
    uint64_t end = CHECKPOINT_HEADER_BYTES;

    footer->chunks = calloc(file->n_chunks > 0 ? file->n_chunks : 1, sizeof(*footer->chunks));
    if (footer->chunks == NULL)
        return checkpoint_fail(told.text, told.size, STRAIT_ERR_NO_MEMORY, "out of memory");
    footer->chunk_count = (uint32_t)file->n_chunks;
    for (uint32_t i = 0; i < footer->chunk_count; i++) {
        const Strait__CheckpointChunk *chunk = file->chunks[i];
        if (chunk->offset % CHECKPOINT_ALIGNMENT != 0 || chunk->offset < end)
            return CORRUPT(told, "chunk %u begins at %llu, the one before ends at %llu", i, wide(chunk->offset),
                           wide(end));
        if (chunk->bytes <= STRAIT_CHUNK_HEADER_BYTES || chunk->bytes % STRAIT_CHUNK_ALIGNMENT != 0 ||
            chunk->pages == 0 || chunk->pages > STRAIT_CHUNK_PAGES_MAX)
            return CORRUPT(told, "chunk %u has %u bytes and %u pages", i, chunk->bytes, chunk->pages);
        if (chunk->offset > footer_offset || chunk->bytes > footer_offset - chunk->offset)
            return CORRUPT(told, "chunk %u ends behind the footer's beginning", i);
        end = chunk->offset + chunk->bytes;
        footer->chunks[i] = (struct checkpoint_chunk){chunk->offset, chunk->bytes, chunk->pages, chunk->metadata_sum};
    }
    return STRAIT_OK;
}

/* Bytes of a shard in the pages of all chunks, which are counted from 0. */
struct extent {
    uint64_t first_page, pages;
    uint64_t first_byte, end_byte; /* in first_page, of one that has a single page */
    uint32_t shard;
};

static int by_page(const void *left, const void *right)
{
    const struct extent *a = left, *b = right;

    if (a->first_page != b->first_page)
        return a->first_page < b->first_page ? -1 : 1;
    if (a->first_byte != b->first_byte)
        return a->first_byte < b->first_byte ? -1 : 1;
    return (a->shard > b->shard) - (a->shard < b->shard);
}

/* Whether two neighbours in the order of pages share nothing that is one's own. */
static bool apart(const struct extent *a, const struct extent *b)
{
    if (b->first_page >= a->first_page + a->pages)
        return true;
    return a->pages == 1 && b->pages == 1 && b->first_byte >= a->end_byte;
}

/* Each stored shard's pages exist, and no two shards have the same bytes. */
static enum strait_status check_extents(const struct checkpoint_footer *footer, const uint64_t *pages_before,
                                        struct extent *extents, struct told told)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < footer->shard_count; i++) {
        const struct checkpoint_shard *shard = &footer->shards[i];
        const uint64_t pages = checkpoint_shard_pages(shard);
        if (pages == 0)
            continue;
        if (shard->first_chunk >= footer->chunk_count || shard->first_page >= footer->chunks[shard->first_chunk].pages)
            return CORRUPT(told, "shard %u begins in page %u of chunk %u, which is not there", i, shard->first_page,
                           shard->first_chunk);
        const uint64_t first = pages_before[shard->first_chunk] + shard->first_page;
        if (pages > pages_before[footer->chunk_count] - first)
            return CORRUPT(told, "shard %u has more pages than the file", i);
        extents[count++] = (struct extent){first, pages, shard->first_byte, shard->first_byte + shard->bytes, i};
    }
    qsort(extents, count, sizeof(*extents), by_page);
    for (uint32_t i = 1; i < count; i++)
        if (!apart(&extents[i - 1], &extents[i]))
            return CORRUPT(told, "shards %u and %u overlap in the file", extents[i - 1].shard, extents[i].shard);
    return STRAIT_OK;
}

/* All shards of a chunk have one element type. In the order of pages, which `extents` are in. */
static enum strait_status check_elements(const struct checkpoint_footer *footer, const uint64_t *pages_before,
                                         const struct extent *extents, uint32_t count, struct told told)
{
    uint32_t known = UINT32_MAX; /* the last chunk that the shard before has pages of */
    enum strait_element element = STRAIT_ELEMENT_BYTES;

    for (uint32_t i = 0; i < count; i++) {
        const struct checkpoint_shard *shard = &footer->shards[extents[i].shard];
        uint32_t last = shard->first_chunk;
        if (known == shard->first_chunk && element != shard->dtype->element)
            return CORRUPT(told, "chunk %u has shards of two element types", known);
        while (pages_before[last + 1] < extents[i].first_page + extents[i].pages)
            last++;
        known = last;
        element = shard->dtype->element;
    }
    return STRAIT_OK;
}

static enum strait_status check_pages(const struct checkpoint_footer *footer, struct told told)
{
    uint64_t *pages_before = malloc(((size_t)footer->chunk_count + 1) * sizeof(*pages_before));
    struct extent *extents = malloc((size_t)footer->shard_count * sizeof(*extents) + 1);
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    uint32_t stored = 0;

    if (pages_before == NULL || extents == NULL) {
        checkpoint_fail(told.text, told.size, status, "out of memory");
        goto end;
    }
    pages_before[0] = 0;
    for (uint32_t i = 0; i < footer->chunk_count; i++)
        pages_before[i + 1] = pages_before[i] + footer->chunks[i].pages;
    for (uint32_t i = 0; i < footer->shard_count; i++)
        stored += checkpoint_shard_stored(&footer->shards[i]);
    status = check_extents(footer, pages_before, extents, told);
    if (status == STRAIT_OK)
        status = check_elements(footer, pages_before, extents, stored, told);
end:
    free(pages_before);
    free(extents);
    return status;
}

static enum strait_status read_footer(struct checkpoint_footer *footer, const Strait__CheckpointFile *file,
                                      uint64_t footer_offset, struct told told)
{
    enum strait_status status;

    if (file->save_id.len != STRAIT_CHECKPOINT_ID_BYTES)
        return CORRUPT(told, "the save id has %zu bytes", file->save_id.len);
    if (file->rank_count == 0 || file->rank_count > STRAIT_CHECKPOINT_RANKS_MAX || file->rank >= file->rank_count)
        return CORRUPT(told, "is of rank %u of %u", file->rank, file->rank_count);
    memcpy(footer->save_id, file->save_id.data, STRAIT_CHECKPOINT_ID_BYTES);
    footer->rank = file->rank;
    footer->rank_count = file->rank_count;
    status = read_chunks(footer, file, footer_offset, told);
    if (status == STRAIT_OK)
        status = read_shards(&footer->shards, file->shards, file->n_shards, told);
    if (status != STRAIT_OK)
        return status;
    footer->shard_count = (uint32_t)file->n_shards;
    for (uint32_t i = 0; i < footer->shard_count && status == STRAIT_OK; i++)
        status = footer->shards[i].file != 0 ? CORRUPT(told, "shard %u names a file", i)
                                             : check_rounding(footer->shards, footer->shard_count, i, told);
    return status == STRAIT_OK ? check_pages(footer, told) : status;
}

enum strait_status checkpoint_footer_parse(struct checkpoint_footer *footer, const uint8_t *message,
                                           const struct checkpoint_tail *tail, char *text, size_t text_size)
{
    struct checkpoint_footer found = {0};
    void *blocks = NULL;
    enum strait_status status = STRAIT_OK;
    uint8_t sum[16];

    checkpoint_sum(sum, message, tail->footer_bytes);
    if (memcmp(sum, tail->footer_sum, sizeof(sum)) != 0)
        return checkpoint_fail(text, text_size, STRAIT_ERR_INTEGRITY, "the footer's checksum differs");
    const Strait__CheckpointFile *file =
        unpack(&strait__checkpoint_file__descriptor, message, tail->footer_bytes, &blocks, &status, text, text_size);
    if (file == NULL)
        return status;
    found.memory = blocks;
    status = read_footer(&found, file, tail->footer_offset, (struct told){text, text_size});
    if (status == STRAIT_OK)
        *footer = found;
    else
        checkpoint_footer_free(&found);
    return status;
}

void checkpoint_footer_free(struct checkpoint_footer *footer)
{
    free(footer->chunks);
    free(footer->shards);
    blocks_free(footer->memory);
    *footer = (struct checkpoint_footer){0};
}

/* ---- Index ------------------------------------------------------------------------------------------------------- */

struct index_lists {
    Strait__CheckpointFileEntry *files;
    Strait__CheckpointShard *shards;
    Strait__CheckpointAttachment *attachments;
    char (*names)[CHECKPOINT_FILE_NAME_BYTES];
};

static bool write_lists(struct index_lists *lists, const struct checkpoint_index *index,
                        Strait__CheckpointIndex *message)
{
    void **files = NULL, **shards = NULL, **attachments = NULL;

    lists->files = message_list(index->file_count, sizeof(*lists->files), &files);
    lists->shards = write_shards(index->shards, index->shard_count, &shards);
    lists->attachments = message_list(index->attachment_count, sizeof(*lists->attachments), &attachments);
    lists->names = malloc((size_t)index->file_count * sizeof(*lists->names) + 1);
    if (lists->files == NULL || lists->shards == NULL || lists->attachments == NULL || lists->names == NULL)
        return false;
    for (uint32_t i = 0; i < index->file_count; i++) {
        strait__checkpoint_file_entry__init(&lists->files[i]);
        checkpoint_file_name(lists->names[i], i);
        lists->files[i].name = lists->names[i];
        lists->files[i].bytes = index->files[i].bytes;
        lists->files[i].footer_sum = (ProtobufCBinaryData){16, index->files[i].footer_sum};
    }
    for (uint32_t i = 0; i < index->attachment_count; i++) {
        const struct strait_checkpoint_attachment *attachment = &index->attachments[i];
        strait__checkpoint_attachment__init(&lists->attachments[i]);
        lists->attachments[i].name = (char *)attachment->name;
        lists->attachments[i].data = (ProtobufCBinaryData){attachment->bytes, (uint8_t *)attachment->data};
    }
    message->n_files = index->file_count;
    message->files = (Strait__CheckpointFileEntry **)files;
    message->n_shards = index->shard_count;
    message->shards = (Strait__CheckpointShard **)shards;
    message->n_attachments = index->attachment_count;
    message->attachments = (Strait__CheckpointAttachment **)attachments;
    return true;
}

enum strait_status checkpoint_index_build(const struct checkpoint_index *index, uint8_t **file, size_t *bytes)
{
    Strait__CheckpointIndex message = STRAIT__CHECKPOINT_INDEX__INIT;
    struct index_lists lists = {0};
    enum strait_status status = STRAIT_ERR_NO_MEMORY;

    message.save_id = (ProtobufCBinaryData){STRAIT_CHECKPOINT_ID_BYTES, (uint8_t *)index->save_id};
    message.committed_ns = index->committed_ns;
    if (write_lists(&lists, index, &message)) {
        const size_t length = strait__checkpoint_index__get_packed_size(&message);
        uint8_t *dst = malloc(CHECKPOINT_INDEX_HEAD_BYTES + length);
        if (dst != NULL) {
            memset(dst, 0, CHECKPOINT_INDEX_HEAD_BYTES);
            memcpy(dst, magic_index, sizeof(magic_index));
            dst[4] = INDEX_VERSION;
            store_le64(dst + 8, length);
            strait__checkpoint_index__pack(&message, dst + CHECKPOINT_INDEX_HEAD_BYTES);
            checkpoint_sum(dst + 16, dst + CHECKPOINT_INDEX_HEAD_BYTES, length);
            *file = dst;
            *bytes = CHECKPOINT_INDEX_HEAD_BYTES + length;
            status = STRAIT_OK;
        }
    }
    free(lists.files);
    free(lists.shards);
    free(lists.attachments);
    free(lists.names);
    return status;
}

enum strait_status checkpoint_index_size(uint64_t *bytes, const uint8_t *src, uint64_t size, char *text,
                                         size_t text_size)
{
    if (size < CHECKPOINT_INDEX_HEAD_BYTES)
        return checkpoint_fail(text, text_size, STRAIT_ERR_TRUNCATED, "has %llu bytes, less than a head", wide(size));
    if (memcmp(src, magic_index, sizeof(magic_index)) != 0)
        return checkpoint_fail(text, text_size, STRAIT_ERR_CORRUPT, "does not begin with STCI");
    if (src[4] != INDEX_VERSION)
        return checkpoint_fail(text, text_size, STRAIT_ERR_UNSUPPORTED, "has version %u, not %u", src[4],
                               INDEX_VERSION);
    if (src[5] != 0 || src[6] != 0 || src[7] != 0)
        return checkpoint_fail(text, text_size, STRAIT_ERR_CORRUPT, "reserved bytes of the head are not zero");
    if (load_le64(src + 8) > INT64_MAX - CHECKPOINT_INDEX_HEAD_BYTES)
        return checkpoint_fail(text, text_size, STRAIT_ERR_CORRUPT, "has a message of %llu bytes",
                               wide(load_le64(src + 8)));
    *bytes = load_le64(src + 8) + CHECKPOINT_INDEX_HEAD_BYTES;
    return STRAIT_OK;
}

static enum strait_status read_files(struct checkpoint_index *index, const Strait__CheckpointIndex *message,
                                     struct told told)
{
    char name[CHECKPOINT_FILE_NAME_BYTES];

    if (message->n_files == 0 || message->n_files > STRAIT_CHECKPOINT_RANKS_MAX)
        return CORRUPT(told, "names %zu files", message->n_files);
    index->files = calloc(message->n_files, sizeof(*index->files));
    if (index->files == NULL)
        return checkpoint_fail(told.text, told.size, STRAIT_ERR_NO_MEMORY, "out of memory");
    index->file_count = (uint32_t)message->n_files;
    for (uint32_t i = 0; i < index->file_count; i++) {
        const Strait__CheckpointFileEntry *entry = message->files[i];
        checkpoint_file_name(name, i);
        if (strcmp(text_of(entry->name), name) != 0)
            return CORRUPT(told, "file %u is not named %s", i, name);
        if (entry->bytes < CHECKPOINT_FILE_BYTES_MIN || entry->bytes > INT64_MAX || entry->footer_sum.len != 16)
            return CORRUPT(told, "%s has %llu bytes, or no checksum", name, wide(entry->bytes));
        index->files[i].bytes = entry->bytes;
        memcpy(index->files[i].footer_sum, entry->footer_sum.data, 16);
    }
    return STRAIT_OK;
}

static enum strait_status read_index_shards(struct checkpoint_index *index, const Strait__CheckpointIndex *message,
                                            struct told told)
{
    enum strait_status status = read_shards(&index->shards, message->shards, message->n_shards, told);
    uint32_t first = 0; /* of the file's */

    if (status != STRAIT_OK)
        return status;
    index->shard_count = (uint32_t)message->n_shards;
    for (uint32_t i = 1; i <= index->shard_count && status == STRAIT_OK; i++) {
        if (i < index->shard_count && index->shards[i].file == index->shards[first].file)
            continue;
        if (i < index->shard_count && index->shards[i].file < index->shards[first].file)
            return CORRUPT(told, "shard %u is of file %u, the one before of file %u", i, index->shards[i].file,
                           index->shards[i - 1].file);
        if (index->shards[first].file >= index->file_count)
            return CORRUPT(told, "shard %u is of file %u, which is not there", first, index->shards[first].file);
        for (uint32_t k = first; k < i && status == STRAIT_OK; k++)
            status = check_rounding(&index->shards[first], i - first, k - first, told);
        first = i;
    }
    return status;
}

static enum strait_status read_attachments(struct checkpoint_index *index, const Strait__CheckpointIndex *message,
                                           struct told told)
{
    index->attachments = calloc(message->n_attachments > 0 ? message->n_attachments : 1, sizeof(*index->attachments));
    if (index->attachments == NULL)
        return checkpoint_fail(told.text, told.size, STRAIT_ERR_NO_MEMORY, "out of memory");
    index->attachment_count = (uint32_t)message->n_attachments;
    for (uint32_t i = 0; i < index->attachment_count; i++) {
        const Strait__CheckpointAttachment *attachment = message->attachments[i];
        if (!checkpoint_name_valid(text_of(attachment->name)))
            return CORRUPT(told, "attachment %u has no name, or one that is no UTF-8 or too long", i);
        index->attachments[i] =
            (struct strait_checkpoint_attachment){attachment->name, attachment->data.data, attachment->data.len};
    }
    return STRAIT_OK;
}

static enum strait_status read_index(struct checkpoint_index *index, const Strait__CheckpointIndex *message,
                                     struct told told)
{
    enum strait_status status;

    if (message->save_id.len != STRAIT_CHECKPOINT_ID_BYTES)
        return CORRUPT(told, "the save id has %zu bytes", message->save_id.len);
    memcpy(index->save_id, message->save_id.data, STRAIT_CHECKPOINT_ID_BYTES);
    index->committed_ns = message->committed_ns;
    status = read_files(index, message, told);
    if (status == STRAIT_OK)
        status = read_index_shards(index, message, told);
    if (status == STRAIT_OK)
        status = read_attachments(index, message, told);
    return status == STRAIT_OK ? checkpoint_index_group(index, told.text, told.size) : status;
}

enum strait_status checkpoint_index_parse(struct checkpoint_index *index, const uint8_t *src, uint64_t size, char *text,
                                          size_t text_size)
{
    struct checkpoint_index found = {0};
    void *blocks = NULL;
    uint64_t bytes = 0;
    uint8_t sum[16];
    enum strait_status status = checkpoint_index_size(&bytes, src, size, text, text_size);

    if (status != STRAIT_OK)
        return status;
    if (size < bytes)
        return checkpoint_fail(text, text_size, STRAIT_ERR_TRUNCATED, "has %llu bytes of %llu", wide(size),
                               wide(bytes));
    if (size > bytes)
        return checkpoint_fail(text, text_size, STRAIT_ERR_CORRUPT, "has %llu bytes, its message ends at %llu",
                               wide(size), wide(bytes));
    src += CHECKPOINT_INDEX_HEAD_BYTES;
    size -= CHECKPOINT_INDEX_HEAD_BYTES;
    checkpoint_sum(sum, src, size);
    if (memcmp(sum, src - 16, sizeof(sum)) != 0)
        return checkpoint_fail(text, text_size, STRAIT_ERR_INTEGRITY, "the index's checksum differs");
    const Strait__CheckpointIndex *message =
        unpack(&strait__checkpoint_index__descriptor, src, size, &blocks, &status, text, text_size);
    if (message == NULL)
        return status;
    found.memory = blocks;
    status = read_index(&found, message, (struct told){text, text_size});
    if (status == STRAIT_OK)
        *index = found;
    else
        checkpoint_index_free(&found);
    return status;
}

void checkpoint_index_free(struct checkpoint_index *index)
{
    free(index->files);
    free(index->shards);
    free(index->attachments);
    free(index->tensors);
    free(index->order);
    blocks_free(index->memory);
    *index = (struct checkpoint_index){0};
}

enum strait_status checkpoint_index_compare(const struct checkpoint_index *index, uint32_t file,
                                            const struct checkpoint_footer *footer, char *text, size_t text_size)
{
    const struct told told = {text, text_size};
    uint32_t first = 0, last = index->shard_count;

    if (memcmp(index->save_id, footer->save_id, STRAIT_CHECKPOINT_ID_BYTES) != 0)
        return CORRUPT(told, "is of another save");
    if (footer->rank != file || footer->rank_count != index->file_count)
        return CORRUPT(told, "is of rank %u of %u", footer->rank, footer->rank_count);
    while (first < last) { /* the first shard of the file */
        const uint32_t middle = first + (last - first) / 2;
        if (index->shards[middle].file < file)
            first = middle + 1;
        else
            last = middle;
    }
    for (uint32_t i = 0; i < footer->shard_count; i++) {
        const struct checkpoint_shard *a = &footer->shards[i], *b = &index->shards[first + i];
        if (i >= index->shard_count - first || b->file != file || strcmp(a->name, b->name) != 0 ||
            a->dtype != b->dtype || a->dims != b->dims || !same(a->shape, b->shape, a->dims) ||
            !same(a->offsets, b->offsets, a->dims) || !same(a->sizes, b->sizes, a->dims) ||
            a->first_chunk != b->first_chunk || a->first_page != b->first_page || a->first_byte != b->first_byte ||
            a->page_bytes != b->page_bytes || a->rounded_from != b->rounded_from)
            return CORRUPT(told, "shard %u is not the index's", i);
    }
    first += footer->shard_count;
    if (first < index->shard_count && index->shards[first].file == file)
        return CORRUPT(told, "lacks shards that the index has");
    return STRAIT_OK;
}
