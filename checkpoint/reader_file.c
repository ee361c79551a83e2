/* Files of a checkpoint that is open for reading: their bytes, footers, and the metadata of their chunks. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/folder.h"
#include "checkpoint/reader.h"
#include "internal/bytes.h"

/* ---- Bytes of files ---------------------------------------------------------------------------------------------- */

enum strait_status reader_open_at(int folder, const char *name, bool direct, int *fd, uint64_t *bytes, char *text,
                                  size_t text_size)
{
    const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK; /* a pipe of that name would block */
    struct stat info;
    *fd = direct ? openat(folder, name, flags | O_DIRECT) : -1;
    if (*fd < 0)
        *fd = openat(folder, name, flags);
    if (*fd < 0)
        return checkpoint_fail(text, text_size, errno == ENOENT ? STRAIT_ERR_TRUNCATED : STRAIT_ERR_IO, "%s",
                               errno == ENOENT ? "missing" : strerror(errno));
    if (fstat(*fd, &info) == 0 && S_ISREG(info.st_mode)) {
        *bytes = (uint64_t)info.st_size;
        return STRAIT_OK;
    }
    close(*fd);
    *fd = -1;
    return checkpoint_fail(text, text_size, STRAIT_ERR_IO, "not a regular file");
}

static bool is_direct(int fd)
{
    return (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
}

static void make_cached(int fd)
{
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
}

enum strait_status reader_read(int fd, uint64_t begin, uint64_t end, uint8_t *dst, char *text, size_t text_size)
{
    const uint64_t most = 1u << 30;
    while (begin < end) {
        const bool direct = is_direct(fd);
        uint64_t size = end - begin < most ? end - begin : most;
        if (direct)
            size = (size + CHECKPOINT_ALIGNMENT - 1) / CHECKPOINT_ALIGNMENT * CHECKPOINT_ALIGNMENT;
        const ssize_t got = pread(fd, dst, size, (off_t)begin);
        if (got < 0 && errno == EINTR)
            continue;
        if (direct && (got < 0 ? errno == EINVAL : got % CHECKPOINT_ALIGNMENT != 0)) {
            /* Some file systems open files so and read none of them, and what follows the end of a file is no page. */
            make_cached(fd);
            if (got < 0)
                continue;
        }
        if (got < 0)
            return checkpoint_fail(text, text_size, STRAIT_ERR_IO, "byte %" PRIu64 ": %s", begin, strerror(errno));
        if (got == 0)
            return checkpoint_fail(text, text_size, STRAIT_ERR_TRUNCATED, "ends at byte %" PRIu64, begin);
        begin += (uint64_t)got;
        dst += got;
    }
    return STRAIT_OK;
}

/* ---- Footers ----------------------------------------------------------------------------------------------------- */

/* Takes the chunks of a footer. */
static bool take_chunks(struct reader_file *file, const struct checkpoint_footer *footer)
{
    file->chunks = malloc((footer->chunk_count + (size_t)1) * sizeof(*file->chunks));
    file->first_page = malloc((footer->chunk_count + (size_t)1) * sizeof(*file->first_page));
    if (file->chunks == NULL || file->first_page == NULL)
        return false;
    file->chunk_count = footer->chunk_count;
    file->first_page[0] = 0;
    for (uint32_t c = 0; c < footer->chunk_count; c++) {
        file->chunks[c] = footer->chunks[c];
        file->first_page[c + 1] = file->first_page[c] + footer->chunks[c].pages;
    }
    return true;
}

/* Checks that the pages of a stored shard are there. */
static bool pages_are_there(const struct reader_file *file, const struct checkpoint_shard *shard)
{
    if (shard->page_bytes == 0 || shard->first_chunk >= file->chunk_count)
        return false;
    const uint64_t first = file->first_page[shard->first_chunk] + shard->first_page;
    return shard->first_page < file->chunks[shard->first_chunk].pages &&
           file->first_page[file->chunk_count] - first >= checkpoint_shard_pages(shard);
}

static int compare_places(const void *a, const void *b, void *reader)
{
    const struct strait_checkpoint_reader *of = reader;
    const struct checkpoint_shard *x = &of->index.shards[*(const uint32_t *)a];
    const struct checkpoint_shard *y = &of->index.shards[*(const uint32_t *)b];
    const uint32_t keys[][2] = {{x->first_chunk, y->first_chunk},
                                {x->first_page, y->first_page},
                                {x->first_byte, y->first_byte},
                                {*(const uint32_t *)a, *(const uint32_t *)b}};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

/* Lists the stored shards of a file by their pages. */
static enum strait_status order_shards(struct strait_checkpoint_reader *reader, struct reader_file *file, char *text)
{
    file->by_page = malloc((file->shard_count + (size_t)1) * sizeof(*file->by_page));
    if (file->by_page == NULL)
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t s = file->first_shard; s < file->first_shard + file->shard_count; s++) {
        const struct checkpoint_shard *shard = &reader->index.shards[s];
        if (!checkpoint_shard_stored(shard))
            continue;
        if (!pages_are_there(file, shard))
            return checkpoint_fail(text, READER_TEXT_BYTES, STRAIT_ERR_CORRUPT, "it lacks pages of %.200s",
                                   shard->name);
        file->by_page[file->stored_count++] = s;
    }
    qsort_r(file->by_page, file->stored_count, sizeof(*file->by_page), compare_places, reader);
    return STRAIT_OK;
}

static enum strait_status read_footer(struct strait_checkpoint_reader *reader, uint32_t number,
                                      struct reader_file *file, char *text)
{
    const struct checkpoint_entry *told = &reader->index.files[number];
    struct checkpoint_footer footer;
    struct checkpoint_entry entry;
    enum strait_status status = folder_read_footer(reader->folder, reader->path, number, reader->index.save_id, &footer,
                                                   &entry, (struct storage_text){text, READER_TEXT_BYTES});
    if (status != STRAIT_OK)
        return status;
    if (entry.bytes != told->bytes)
        status = checkpoint_fail(text, READER_TEXT_BYTES, STRAIT_ERR_CORRUPT,
                                 "has %" PRIu64 " bytes, not the %" PRIu64 " of the index", entry.bytes, told->bytes);
    else if (memcmp(entry.footer_sum, told->footer_sum, sizeof(told->footer_sum)) != 0)
        status = checkpoint_fail(text, READER_TEXT_BYTES, STRAIT_ERR_INTEGRITY, "the footer is not the index's");
    else
        status = checkpoint_index_compare(&reader->index, number, &footer, text, READER_TEXT_BYTES);
    if (status == STRAIT_OK && !take_chunks(file, &footer))
        status = STRAIT_ERR_NO_MEMORY;
    checkpoint_footer_free(&footer);
    return status == STRAIT_OK ? order_shards(reader, file, text) : status;
}

/* A text without the "PATH/FILE: " that it may begin with: the file is told beside it. */
static const char *without_name(const struct strait_checkpoint_reader *reader, uint32_t number, const char *text)
{
    const size_t path = strlen(reader->path), name = strlen(reader->names[number]);
    const bool named = strncmp(text, reader->path, path) == 0 && text[path] == '/' &&
                       strncmp(text + path + 1, reader->names[number], name) == 0 &&
                       strncmp(text + path + 1 + name, ": ", 2) == 0;
    return named ? text + path + name + 3 : text;
}

enum strait_status reader_know(struct strait_checkpoint_reader *reader, uint32_t number, char *why)
{
    struct reader_file *file = &reader->files[number];
    enum strait_status status = STRAIT_OK;
    char text[READER_TEXT_BYTES] = "";
    pthread_mutex_lock(&file->lock);
    if (!file->known) {
        file->stored_count = file->chunk_count = 0;
        status = read_footer(reader, number, file, text);
        file->known = status == STRAIT_OK;
    }
    if (!file->known) {
        free(file->chunks);
        free(file->first_page);
        free(file->by_page);
        file->chunks = NULL;
        file->first_page = NULL;
        file->by_page = NULL;
        snprintf(why, READER_TEXT_BYTES, "%s",
                 text[0] != '\0' ? without_name(reader, number, text) : strait_status_string(status));
    }
    pthread_mutex_unlock(&file->lock);
    return status;
}

uint64_t reader_first_page(const struct strait_checkpoint_reader *reader, const struct checkpoint_shard *shard)
{
    return reader->files[shard->file].first_page[shard->first_chunk] + shard->first_page;
}

uint32_t reader_chunk_of(const struct reader_file *file, uint64_t page)
{
    uint32_t low = 0, high = file->chunk_count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (file->first_page[middle] <= page)
            low = middle;
        else
            high = middle;
    }
    return low;
}

const struct checkpoint_shard *reader_source(const struct strait_checkpoint_reader *reader,
                                             const struct checkpoint_shard *shard)
{
    if (shard->rounded_from == 0)
        return shard;
    return &reader->index.shards[reader->files[shard->file].first_shard + shard->rounded_from - 1];
}

/* ---- Metadata of chunks ------------------------------------------------------------------------------------------ */

enum strait_status reader_check_chunk(const struct checkpoint_chunk *chunk, const uint8_t *src, uint64_t size,
                                      struct strait_chunk_info *info)
{
    static const uint8_t no_codebook[STRAIT_CODEBOOK_ID_BYTES];
    const enum strait_status status = strait_chunk_info(src, size, info);
    if (status != STRAIT_OK)
        return status;
    if (info->chunk_bytes != chunk->bytes || info->page_count != chunk->pages ||
        memcmp(info->codebook_id, no_codebook, sizeof(no_codebook)) != 0)
        return STRAIT_ERR_CORRUPT;
    if (load_le64(src + STRAIT_CHUNK_HEADER_BYTES - 8) != chunk->metadata_sum)
        return STRAIT_ERR_INTEGRITY;
    return size < info->metadata_bytes ? STRAIT_ERR_TRUNCATED : STRAIT_OK;
}

/* Memory that grows: bytes of a chunk, and what its pages are. */
struct survey {
    uint8_t *bytes;
    struct strait_page_info *infos;
};

/* Reads a chunk's metadata and describes its pages. */
static bool survey_chunk(struct survey *survey, int fd, const struct checkpoint_chunk *chunk)
{
    const uint64_t first = chunk->bytes < CHECKPOINT_ALIGNMENT ? chunk->bytes : CHECKPOINT_ALIGNMENT;
    struct strait_chunk_info info;
    uint8_t head[CHECKPOINT_ALIGNMENT];
    if (reader_read(fd, chunk->offset, chunk->offset + first, head, NULL, 0) != STRAIT_OK)
        return false;
    const enum strait_status status = reader_check_chunk(chunk, head, first, &info);
    if (status != STRAIT_OK && status != STRAIT_ERR_TRUNCATED)
        return false;
    free(survey->bytes);
    free(survey->infos);
    survey->bytes = malloc(info.metadata_bytes);
    survey->infos = malloc(info.page_count * sizeof(*survey->infos));
    return survey->bytes != NULL && survey->infos != NULL &&
           reader_read(fd, chunk->offset, chunk->offset + info.metadata_bytes, survey->bytes, NULL, 0) == STRAIT_OK &&
           reader_check_chunk(chunk, survey->bytes, info.metadata_bytes, &info) == STRAIT_OK &&
           strait_chunk_pages(survey->bytes, chunk->bytes, info.page_count, survey->infos) == STRAIT_OK;
}

static bool survey_file(struct reader_file *file, int fd)
{
    struct survey survey = {NULL, NULL};
    struct reader_page *pages = calloc(file->first_page[file->chunk_count] + 1, sizeof(*pages)), *page = pages;
    uint64_t stored = 0;
    bool read = pages != NULL;
    for (uint32_t c = 0; read && c < file->chunk_count; c++) {
        read = survey_chunk(&survey, fd, &file->chunks[c]);
        for (uint32_t p = 0; read && p < file->chunks[c].pages; p++, page++) {
            *page = (struct reader_page){stored, survey.infos[p].page_bytes, survey.infos[p].block_modes};
            stored += survey.infos[p].coded_bytes;
        }
    }
    free(survey.bytes);
    free(survey.infos);
    if (read) {
        page->stored_before = stored;
        file->pages = pages;
    } else {
        free(pages);
    }
    return read;
}

const struct reader_page *reader_pages(struct strait_checkpoint_reader *reader, uint32_t number)
{
    struct reader_file *file = &reader->files[number];
    char why[READER_TEXT_BYTES];
    uint64_t bytes;
    int fd;
    if (reader_know(reader, number, why) != STRAIT_OK)
        return NULL;
    pthread_mutex_lock(&file->lock);
    if (file->pages == NULL &&
        reader_open_at(reader->folder, reader->names[number], false, &fd, &bytes, NULL, 0) == STRAIT_OK) {
        (void)survey_file(file, fd);
        close(fd);
    }
    const struct reader_page *pages = file->pages;
    pthread_mutex_unlock(&file->lock);
    return pages;
}
