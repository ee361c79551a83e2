#include "tests/checkpoint/saved.h"

#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/folder.h"
#include "tests/support.h"

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *ftw)
{
    (void)info;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void scratch_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void scratch_make(char path[256], const char *name)
{
    const char *base = getenv("STRAIT_TEST_FOLDER");

    snprintf(path, 256, "%s/checkpoint-%s-%d", base != NULL ? base : "/var/tmp", name, (int)getpid());
    scratch_remove(path);
    require(mkdir(path, 0777) == 0);
}

static bool piece_is_box(const struct piece_of *piece)
{
    for (uint32_t d = 0; d < piece->dims; d++)
        if (piece->sizes[d] != 0 || piece->offsets[d] != 0)
            return true;
    return false;
}

enum strait_status add_piece(struct strait_checkpoint_save *save, const struct piece_of *piece)
{
    const bool whole = !piece_is_box(piece);
    const struct strait_checkpoint_tensor tensor = {.size = sizeof(tensor),
                                                    .name = piece->name,
                                                    .dtype = piece->dtype,
                                                    .shape = piece->shape,
                                                    .offsets = whole ? NULL : piece->offsets,
                                                    .sizes = whole ? NULL : piece->sizes,
                                                    .data = piece->data,
                                                    .dims = piece->dims,
                                                    .rounded_from = piece->rounded_from};
    return strait_checkpoint_save_add(save, &tensor);
}

struct strait_checkpoint_save_options save_options(uint32_t rank, uint32_t count, uint32_t seed)
{
    struct strait_checkpoint_save_options options = {.size = sizeof(options), .rank = rank, .rank_count = count};

    memset(options.save_id, 0x5A, sizeof(options.save_id));
    memcpy(options.save_id, &seed, sizeof(seed));
    options.threads = 2;
    return options;
}

struct strait_checkpoint_commit_options commit_options(uint32_t count, uint32_t seed)
{
    struct strait_checkpoint_commit_options options = {.size = sizeof(options), .rank_count = count};
    const struct strait_checkpoint_save_options save = save_options(0, count, seed);

    memcpy(options.save_id, save.save_id, sizeof(options.save_id));
    return options;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static float bell(struct rng *rng)
{
    float sum = -6;

    for (int i = 0; i < 12; i++)
        sum += (float)rng_below(rng, 1 << 16) / (1 << 16);
    return sum * 0.02f;
}

UNWATCHED void fill_values(uint32_t seed, const char *dtype, void *data, uint64_t bytes)
{
    struct rng rng = rng_init(seed);
    uint8_t *at = data;

    if (strcmp(dtype, "F32") != 0 && strcmp(dtype, "BF16") != 0) {
        rng_fill(&rng, data, bytes);
        return;
    }
    const uint32_t step = strcmp(dtype, "F32") == 0 ? 4 : 2;
    for (uint64_t i = 0; i + step <= bytes; i += step) {
        const float value = bell(&rng);
        uint32_t bits;
        memcpy(&bits, &value, 4);
        if (step == 2)
            bits >>= 16;
        memcpy(at + i, &bits, step);
    }
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

void saved_open(struct saved_file *file, const char *folder, uint32_t rank)
{
    char path[512], name[CHECKPOINT_FILE_NAME_BYTES], text[512] = "";
    uint8_t id[STRAIT_CHECKPOINT_ID_BYTES];
    struct checkpoint_tail tail;
    struct stat info;

    checkpoint_file_name(name, rank);
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    require(fd >= 0 && fstat(fd, &info) == 0);
    file->size = (uint64_t)info.st_size;
    require(file->size >= CHECKPOINT_FILE_BYTES_MIN);
    file->bytes = malloc(file->size);
    require(storage_read(fd, file->bytes, file->size, 0) == 0);
    close(fd);
    require(checkpoint_header_parse(id, file->bytes, file->size, text, sizeof(text)) == STRAIT_OK);
    require(checkpoint_tail_parse(&tail, file->bytes + file->size - CHECKPOINT_TAIL_BYTES, file->size, text,
                                  sizeof(text)) == STRAIT_OK);
    const enum strait_status status =
        checkpoint_footer_parse(&file->footer, file->bytes + tail.footer_offset, &tail, text, sizeof(text));
    if (status != STRAIT_OK)
        fprintf(stderr, "%s: %s\n", path, text);
    require(status == STRAIT_OK);
    require(file->footer.rank == rank && memcmp(id, file->footer.save_id, sizeof(id)) == 0);
}

void saved_close(struct saved_file *file)
{
    checkpoint_footer_free(&file->footer);
    free(file->bytes);
}

uint32_t saved_find(const struct saved_file *file, const char *name)
{
    for (uint32_t i = 0; i < file->footer.shard_count; i++)
        if (strcmp(file->footer.shards[i].name, name) == 0)
            return i;
    return UINT32_MAX;
}

/* Decodes one page of a chunk. Returns its length. */
static uint32_t decode_page(const struct saved_file *file, uint32_t chunk_index, uint32_t page, uint8_t *dst)
{
    const struct checkpoint_chunk *chunk = &file->footer.chunks[chunk_index];
    const uint8_t *src = file->bytes + chunk->offset;
    struct strait_page_info *pages = calloc(chunk->pages, sizeof(*pages));
    struct strait_chunk_info info;
    struct strait_result result;
    const struct strait_run run = {.size = sizeof(run), .result = &result};

    require(strait_chunk_info(src, chunk->bytes, &info) == STRAIT_OK && info.page_count == chunk->pages);
    require(memcmp(src + 40, &chunk->metadata_sum, 8) == 0);
    require(strait_chunk_pages(src, chunk->bytes, chunk->pages, pages) == STRAIT_OK);
    const uint32_t bytes = pages[page].page_bytes;
    const struct strait_region region = {.base = dst, .page_count = 1, .rows = 1, .row_bytes = bytes};
    const struct strait_pages to = {&region, NULL, 1, 1};
    require(strait_decode(NULL, NULL, &to, &page, src, chunk->bytes, &run) == STRAIT_OK);
    require(result.status == STRAIT_OK);
    free(pages);
    return bytes;
}

static void round_all(const uint8_t *from, uint8_t *to, uint64_t values)
{
    for (uint64_t i = 0; i < values; i++) {
        uint32_t bits;
        uint16_t half;
        memcpy(&bits, from + 4 * i, 4);
        if ((bits & 0x7FFFFFFF) > 0x7F800000)
            half = (uint16_t)(bits >> 16 | 0x40);
        else
            half = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
        memcpy(to + 2 * i, &half, 2);
    }
}

uint8_t *saved_shard(const struct saved_file *file, uint32_t index)
{
    const struct checkpoint_shard *shard = &file->footer.shards[index];
    uint8_t *bytes = malloc(shard->bytes + 1), *page_bytes = malloc(STRAIT_PAGE_BYTES_MAX);
    uint32_t chunk = shard->first_chunk, page = shard->first_page;

    if (shard->rounded_from > 0) {
        uint8_t *from = saved_shard(file, shard->rounded_from - 1);
        round_all(from, bytes, shard->bytes / 2);
        free(from);
        free(page_bytes);
        return bytes;
    }
    for (uint64_t at = 0; at < shard->bytes;) {
        const uint32_t length = decode_page(file, chunk, page, page_bytes) - shard->first_byte;
        const uint64_t part = length < shard->bytes - at ? length : shard->bytes - at;
        require(part == shard->bytes - at || part == shard->page_bytes);
        memcpy(bytes + at, page_bytes + shard->first_byte, part);
        at += part;
        if (++page == file->footer.chunks[chunk].pages) {
            page = 0;
            chunk++;
        }
    }
    free(page_bytes);
    return bytes;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

void save_all(const char *path, const struct piece_of *pieces, uint32_t count, uint32_t seed, uint32_t flags)
{
    struct strait_checkpoint_save_options options = save_options(0, 1, seed);
    struct strait_checkpoint_commit_options commit = commit_options(1, seed);
    struct strait_checkpoint_save *save = NULL;
    char text[1024] = "";

    options.flags = flags;
    commit.flags = STRAIT_CHECKPOINT_REPLACE;
    require(strait_checkpoint_save_begin(path, &options, &save, text, sizeof(text)) == STRAIT_OK);
    for (uint32_t i = 0; i < count; i++)
        require(add_piece(save, &pieces[i]) == STRAIT_OK);
    require(strait_checkpoint_save_end(save, NULL) == STRAIT_OK);
    strait_checkpoint_save_free(save);
    const enum strait_status status = strait_checkpoint_commit(path, &commit, text, sizeof(text));
    if (status != STRAIT_OK)
        fprintf(stderr, "%s\n", text);
    require(status == STRAIT_OK);
}

static uint64_t piece_bytes(const struct piece_of *piece)
{
    uint64_t bytes = strait_checkpoint_dtype_bytes(piece->dtype);

    for (uint32_t d = 0; d < piece->dims; d++)
        bytes *= piece_is_box(piece) ? piece->sizes[d] : piece->shape[d];
    return bytes;
}

/* The library's reader finds the same. */
static void require_loads(const char *path, const struct piece_of *pieces, uint32_t count)
{
    struct strait_checkpoint_reader *reader = NULL;
    struct strait_checkpoint_box *boxes = calloc(count + 1, sizeof(*boxes));
    char text[512] = "";

    if (strait_checkpoint_open(path, &reader, text, sizeof(text)) != STRAIT_OK)
        fprintf(stderr, "%s\n", text);
    require(reader != NULL);
    for (uint32_t i = 0; i < count; i++) {
        boxes[i].tensor = strait_checkpoint_find(reader, pieces[i].name);
        require(boxes[i].tensor != UINT32_MAX);
        boxes[i].data = malloc(piece_bytes(&pieces[i]) + 1);
        if (pieces[i].dims > 0 && piece_is_box(&pieces[i])) {
            boxes[i].offsets = pieces[i].offsets;
            boxes[i].sizes = pieces[i].sizes;
        }
    }
    if (strait_checkpoint_load(reader, boxes, count, NULL, text, sizeof(text)) != STRAIT_OK) {
        fprintf(stderr, "%s\n", text);
        require(false);
    }
    for (uint32_t i = 0; i < count; i++) {
        require(piece_bytes(&pieces[i]) == 0 || memcmp(boxes[i].data, pieces[i].data, piece_bytes(&pieces[i])) == 0);
        free(boxes[i].data);
    }
    free(boxes);
    strait_checkpoint_close(reader);
}

void require_holds(const char *path, const struct piece_of *pieces, uint32_t count)
{
    struct saved_file file;

    saved_open(&file, path, 0);
    require(file.footer.shard_count == count);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t bytes = piece_bytes(&pieces[i]);
        require(strcmp(file.footer.shards[i].name, pieces[i].name) == 0);
        require(file.footer.shards[i].bytes == bytes);
        uint8_t *found = saved_shard(&file, i);
        require(bytes == 0 || memcmp(found, pieces[i].data, bytes) == 0);
        free(found);
    }
    saved_close(&file);
    require_loads(path, pieces, count);
}
