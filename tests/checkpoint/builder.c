#include "tests/checkpoint/builder.h"

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal/bytes.h"

/* ---- Files ------------------------------------------------------------------------------------------------------- */

void scratch_make(char folder[SCRATCH_BYTES])
{
    const char *of = getenv("STRAIT_TEST_FOLDER");
    snprintf(folder, SCRATCH_BYTES, "%s/strait.XXXXXX", of != NULL ? of : "/dev/shm"); /* in memory */
    if (of == NULL && access("/dev/shm", W_OK) != 0)
        snprintf(folder, SCRATCH_BYTES, "/tmp/strait.XXXXXX");
    require(mkdtemp(folder) != NULL);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

void scratch_remove(const char *folder)
{
    require(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0);
}

uint8_t *file_read(const char *folder, const char *name, size_t *size)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    require(file != NULL && fseek(file, 0, SEEK_END) == 0);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size + 1);
    require(bytes != NULL && fread(bytes, 1, *size, file) == *size && fclose(file) == 0);
    return bytes;
}

void file_write(const char *folder, const char *name, const void *bytes, size_t size)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    require(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

uint16_t reference_round(uint32_t value)
{
    const uint32_t exponent = value >> 23 & 255, low = value & 0xffff, high = value >> 16;
    if (exponent == 255)
        return (uint16_t)((value & 0x7fffff) != 0 ? high | 0x40 : high);
    if (low > 0x8000 || (low == 0x8000 && high % 2 == 1))
        return (uint16_t)(high + 1);
    return (uint16_t)high;
}

static void fill(struct rng *rng, struct built_tensor *tensor)
{
    const size_t size = tensor->values * tensor->dtype->bytes;
    uint8_t ranking[256];
    test_ranking(ranking, 0);
    if (tensor->dtype->element == STRAIT_ELEMENT_FP32) {
        for (uint64_t i = 0; i < tensor->values; i++)
            store_le32(tensor->bytes + 4 * i, rng_below(rng, 50) == 0
                                                  ? (uint32_t)rng_next(rng)
                                                  : (118 + rng_below(rng, 8)) << 23 | (rng_next(rng) & 0x807fffff));
        return;
    }
    fill_pattern(rng, rng_below(rng, 3) == 0 ? PATTERN_NOISE : PATTERN_FALLING, ranking, tensor->bytes, size);
}

uint32_t built_tensor_add(struct built *built, struct rng *rng, const char *name, const char *dtype,
                          const uint64_t *shape, uint32_t dims, uint32_t of)
{
    struct built_tensor *tensor = &built->tensors[built->tensor_count];
    require(built->tensor_count < BUILT_TENSORS_MAX && dims <= STRAIT_CHECKPOINT_DIMS_MAX);
    snprintf(tensor->name, sizeof(tensor->name), "%s", name);
    tensor->dtype = checkpoint_dtype_find(dtype);
    require(tensor->dtype != NULL);
    tensor->dims = dims;
    tensor->values = 1;
    for (uint32_t d = 0; d < dims; d++)
        tensor->values *= tensor->shape[d] = shape[d];
    tensor->bytes = malloc(tensor->values * tensor->dtype->bytes + 1);
    require(tensor->bytes != NULL);
    if (of == UINT32_MAX)
        fill(rng, tensor);
    for (uint64_t i = 0; of != UINT32_MAX && i < tensor->values; i++)
        put_value(tensor->bytes, i, reference_round(load_le32(built->tensors[of].bytes + 4 * i)));
    return built->tensor_count++;
}

static void add_shard(struct built *built, const struct built_shard *shard)
{
    require(built->shard_count < BUILT_SHARDS_MAX);
    built->shards[built->shard_count++] = *shard;
}

/* Cuts a box in two along a random dimension, again and again. */
static void split(struct built *built, struct rng *rng, struct built_shard *shard, uint32_t dims, uint32_t pieces,
                  uint32_t replicas)
{
    const uint32_t d = dims > 0 ? rng_below(rng, dims) : 0;
    if (pieces > 1 && dims > 0 && shard->size[d] > 1) {
        struct built_shard other = *shard;
        const uint64_t first = 1 + rng_below(rng, (uint32_t)(shard->size[d] - 1));
        other.at[d] += first;
        other.size[d] -= first;
        shard->size[d] = first;
        split(built, rng, shard, dims, pieces / 2, replicas);
        split(built, rng, &other, dims, pieces - pieces / 2, replicas);
        return;
    }
    shard->file = rng_below(rng, built->file_count);
    add_shard(built, shard);
    if (replicas > 0 && rng_below(rng, replicas) == 0 && built->file_count > 1) {
        shard->file = (shard->file + 1 + rng_below(rng, built->file_count - 1)) % built->file_count;
        add_shard(built, shard);
    }
}

void built_split(struct built *built, struct rng *rng, uint32_t tensor, uint32_t pieces, uint32_t replicas)
{
    struct built_shard shard = {.tensor = tensor};
    memcpy(shard.size, built->tensors[tensor].shape, sizeof(shard.size));
    split(built, rng, &shard, built->tensors[tensor].dims, pieces, replicas);
}

void built_round(struct built *built, uint32_t tensor, uint32_t of)
{
    for (uint32_t s = 0, count = built->shard_count; s < count; s++) {
        struct built_shard shard = built->shards[s];
        if (shard.tensor != of)
            continue;
        shard.tensor = tensor;
        shard.rounded_from = s + 1;
        add_shard(built, &shard);
    }
}

void built_fini(struct built *built)
{
    for (uint32_t t = 0; t < built->tensor_count; t++)
        free(built->tensors[t].bytes);
    *built = (struct built){.tensor_count = 0};
}

void built_random(struct built *built, struct rng *rng, uint32_t files, uint32_t replicas)
{
    static const char *const dtypes[] = {"BF16", "F32", "F16", "F8_E4M3", "I64", "BOOL", "F64", "F8_E5M2", "BYTES"};
    static const uint64_t ones[5] = {1, 1, 1, 1, 1}, none[2] = {3, 0};
    *built = (struct built){.file_count = files, .committed_ns = 1000 + rng_below(rng, 1000)};
    rng_fill(rng, built->save_id, sizeof(built->save_id));
    for (uint32_t t = 0; t < 18; t++) {
        const uint32_t dims = rng_below(rng, 6), limit = dims <= 1 ? 60000 : dims == 2 ? 240 : dims == 3 ? 40 : 11;
        uint64_t shape[5];
        char name[64];
        for (uint32_t d = 0; d < dims; d++)
            shape[d] = 1 + rng_below(rng, limit);
        snprintf(name, sizeof(name), "layers.%u.%s", t, rng_below(rng, 2) == 0 ? "weight" : "bias");
        const uint32_t tensor = built_tensor_add(built, rng, name, dtypes[t % COUNT(dtypes)], shape, dims, UINT32_MAX);
        built_split(built, rng, tensor, 1 + rng_below(rng, 12), replicas);
        if (built->tensors[tensor].dtype->element == STRAIT_ELEMENT_FP32) {
            snprintf(name, sizeof(name), "rounded.%u", t);
            built_round(built, built_tensor_add(built, rng, name, "BF16", shape, dims, tensor), tensor);
        }
    }
    built_split(built, rng, built_tensor_add(built, rng, "scalar", "F32", ones, 0, UINT32_MAX), 1, replicas);
    built_split(built, rng, built_tensor_add(built, rng, "one", "BF16", ones, 5, UINT32_MAX), 1, replicas);
    built_split(built, rng, built_tensor_add(built, rng, "empty", "F32", none, 2, UINT32_MAX), 1, replicas);
}

/* ---- A rank's file ----------------------------------------------------------------------------------------------- */

enum { PAGES_MAX = 4096, CHUNKS_MAX = 1024 };

/* Pages of a file as they are cut: those of the current chunk are not encoded yet. */
struct writer {
    struct rng *rng;
    const struct built *built;
    uint8_t *file;
    size_t size, room;
    struct checkpoint_chunk chunks[CHUNKS_MAX];
    uint32_t chunk_count;
    enum strait_element element; /* of the current chunk */
    uint8_t *pages[PAGES_MAX];
    uint32_t lengths[PAGES_MAX];
    uint32_t count;     /* pages of the current chunk */
    uint32_t shared_of; /* page_bytes of the last page when small shards may still share it; 0: they may not */
};

static uint8_t *append(struct writer *writer, size_t bytes)
{
    while (writer->size + bytes > writer->room) {
        writer->room = writer->room == 0 ? 65536 : 2 * writer->room;
        writer->file = realloc(writer->file, writer->room);
        require(writer->file != NULL);
    }
    memset(writer->file + writer->size, 0, bytes);
    writer->size += bytes;
    return writer->file + writer->size - bytes;
}

static void align(struct writer *writer)
{
    append(writer, (CHECKPOINT_ALIGNMENT - writer->size % CHECKPOINT_ALIGNMENT) % CHECKPOINT_ALIGNMENT);
}

static void end_chunk(struct writer *writer)
{
    static const enum strait_mode modes[] = {STRAIT_MODE_PARTS, STRAIT_MODE_BASE, STRAIT_MODE_RAW};
    struct strait_region *regions = calloc(writer->count + 1, sizeof(*regions));
    struct strait_result result;
    const struct strait_run run = {.size = sizeof(run), .result = &result};
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = writer->element, .mode = modes[rng_below(writer->rng, COUNT(modes))]};
    const struct strait_pages pages = {.regions = regions, .region_count = writer->count, .id_count = 1};
    if (writer->count == 0) {
        free(regions);
        return;
    }
    for (uint32_t p = 0; p < writer->count; p++)
        regions[p] = (struct strait_region){
            .base = writer->pages[p], .page_count = 1, .rows = 1, .row_bytes = writer->lengths[p]};
    const uint64_t bound = strait_encode_bound(&pages);
    uint8_t *bytes = malloc(bound);
    require(bytes != NULL && strait_encode(NULL, &params, bytes, bound, &pages, &run) == STRAIT_OK);
    require(result.status == STRAIT_OK && writer->chunk_count < CHUNKS_MAX);
    align(writer);
    writer->chunks[writer->chunk_count++] = (struct checkpoint_chunk){.offset = writer->size,
                                                                      .bytes = (uint32_t)result.bytes,
                                                                      .pages = writer->count,
                                                                      .metadata_sum = load_le64(bytes + 40)};
    memcpy(append(writer, result.bytes), bytes, result.bytes);
    for (uint32_t p = 0; p < writer->count; p++)
        free(writer->pages[p]);
    writer->count = writer->shared_of = 0;
    free(regions);
    free(bytes);
}

static bool chunk_ends(const struct writer *writer)
{
    const uint32_t most = writer->built->chunk_pages;
    return writer->count == PAGES_MAX || (most != 0 ? writer->count >= most : rng_below(writer->rng, 9) == 0);
}

static uint8_t *add_page(struct writer *writer, uint32_t bytes)
{
    uint8_t *page = calloc(1, bytes);
    require(page != NULL);
    writer->pages[writer->count] = page;
    writer->lengths[writer->count++] = bytes;
    return page;
}

/* Bytes of a shard's box, in its order. */
static uint8_t *shard_bytes(const struct built *built, const struct built_shard *shard, uint64_t *bytes)
{
    const struct built_tensor *tensor = &built->tensors[shard->tensor];
    const uint32_t value = tensor->dtype->bytes;
    uint64_t values = 1, index[STRAIT_CHECKPOINT_DIMS_MAX] = {0};
    for (uint32_t d = 0; d < tensor->dims; d++)
        values *= shard->size[d];
    *bytes = values * value;
    uint8_t *copy = malloc(*bytes + 1);
    require(copy != NULL);
    for (uint64_t i = 0; i < values; i++) {
        uint64_t at = 0;
        for (uint32_t d = 0; d < tensor->dims; d++)
            at = at * tensor->shape[d] + shard->at[d] + index[d];
        memcpy(copy + i * value, tensor->bytes + at * value, value);
        for (uint32_t d = tensor->dims; d-- > 0 && ++index[d] == shard->size[d];)
            index[d] = 0;
    }
    return copy;
}

/* Puts a small shard into the last page, which others have begun, if it has room. */
static bool share_page(struct writer *writer, struct checkpoint_shard *made, const uint8_t *bytes)
{
    const uint32_t last = writer->count - 1;
    if (writer->count == 0 || writer->shared_of == 0)
        return false;
    const uint32_t value = made->dtype->bytes, at = (writer->lengths[last] + value - 1) / value * value;
    if (at + made->bytes > writer->shared_of)
        return false;
    writer->pages[last] = realloc(writer->pages[last], at + made->bytes);
    require(writer->pages[last] != NULL);
    memset(writer->pages[last] + writer->lengths[last], 0, at - writer->lengths[last]);
    memcpy(writer->pages[last] + at, bytes, made->bytes);
    writer->lengths[last] = at + (uint32_t)made->bytes;
    made->first_chunk = writer->chunk_count;
    made->first_page = last;
    made->first_byte = at;
    made->page_bytes = writer->shared_of;
    return true;
}

static void add_pages(struct writer *writer, struct checkpoint_shard *made, const uint8_t *bytes)
{
    made->page_bytes =
        writer->built->page_bytes != 0 ? writer->built->page_bytes : 64 * (1 + rng_below(writer->rng, 600));
    if (writer->element != made->dtype->element || chunk_ends(writer))
        end_chunk(writer);
    writer->element = made->dtype->element;
    if (made->bytes < made->page_bytes && share_page(writer, made, bytes))
        return;
    made->first_chunk = writer->chunk_count;
    made->first_page = writer->count;
    for (uint64_t at = 0; at < made->bytes; at += made->page_bytes) {
        const uint64_t left = made->bytes - at;
        const uint32_t size = left < made->page_bytes ? (uint32_t)left : made->page_bytes;
        if (at > 0 && chunk_ends(writer))
            end_chunk(writer);
        memcpy(add_page(writer, size), bytes + at, size);
    }
    writer->shared_of = made->bytes < made->page_bytes ? made->page_bytes : 0;
}

/* Writes a file and takes its shards to the index. */
static void write_file(const struct built *built, struct rng *rng, const char *folder, uint32_t number,
                       struct checkpoint_index *index)
{
    struct writer *writer = calloc(1, sizeof(*writer));
    struct checkpoint_footer footer = {.rank = number, .rank_count = built->file_count};
    struct checkpoint_shard *shards = index->shards + index->shard_count;
    uint32_t place[BUILT_SHARDS_MAX];
    uint8_t *message;
    size_t message_bytes;
    char name[CHECKPOINT_FILE_NAME_BYTES];
    require(writer != NULL);
    writer->rng = rng;
    writer->built = built;
    checkpoint_header_build(append(writer, CHECKPOINT_HEADER_BYTES), built->save_id);
    for (uint32_t s = 0; s < built->shard_count; s++) {
        const struct built_shard *shard = &built->shards[s];
        const struct built_tensor *tensor = &built->tensors[shard->tensor];
        struct checkpoint_shard *made = &shards[footer.shard_count];
        if (shard->file != number)
            continue;
        *made = (struct checkpoint_shard){.name = tensor->name,
                                          .dtype = tensor->dtype,
                                          .shape = tensor->shape,
                                          .offsets = shard->at,
                                          .sizes = shard->size,
                                          .dims = tensor->dims};
        place[s] = footer.shard_count++;
        uint8_t *bytes = shard_bytes(built, shard, &made->bytes);
        if (shard->rounded_from != 0 && made->bytes > 0)
            made->rounded_from = 1 + place[shard->rounded_from - 1];
        else if (made->bytes > 0)
            add_pages(writer, made, bytes);
        free(bytes);
    }
    end_chunk(writer);
    align(writer);
    memcpy(footer.save_id, built->save_id, sizeof(footer.save_id));
    footer.chunks = writer->chunks;
    footer.chunk_count = writer->chunk_count;
    footer.shards = shards;
    require(checkpoint_footer_build(&footer, &message, &message_bytes) == STRAIT_OK);
    const size_t footer_at = writer->size;
    memcpy(append(writer, message_bytes), message, message_bytes);
    checkpoint_tail_build(append(writer, CHECKPOINT_TAIL_BYTES), footer_at, message, (uint32_t)message_bytes);
    index->files[number].bytes = writer->size;
    checkpoint_sum(index->files[number].footer_sum, message, message_bytes);
    for (uint32_t s = 0; s < footer.shard_count; s++)
        shards[s].file = number;
    index->shard_count += footer.shard_count;
    checkpoint_file_name(name, number);
    file_write(folder, name, writer->file, writer->size);
    free(message);
    free(writer->file);
    free(writer);
}

void built_write(const struct built *built, struct rng *rng, const char *folder)
{
    static const char planner[] = "{\"step\": 7}";
    const struct strait_checkpoint_attachment attachment = {"planner", planner, sizeof(planner) - 1};
    struct checkpoint_index index = {.committed_ns = built->committed_ns,
                                     .files = calloc(built->file_count, sizeof(*index.files)),
                                     .shards = calloc(built->shard_count + 1, sizeof(*index.shards)),
                                     .attachments = (struct strait_checkpoint_attachment *)&attachment,
                                     .file_count = built->file_count,
                                     .attachment_count = 1};
    uint8_t *bytes;
    size_t size;
    require(index.files != NULL && index.shards != NULL && mkdir(folder, 0777) == 0);
    memcpy(index.save_id, built->save_id, sizeof(index.save_id));
    for (uint32_t f = 0; f < built->file_count; f++)
        write_file(built, rng, folder, f, &index);
    require(checkpoint_index_build(&index, &bytes, &size) == STRAIT_OK);
    file_write(folder, CHECKPOINT_INDEX_NAME, bytes, size);
    free(bytes);
    free(index.files);
    free(index.shards);
}
