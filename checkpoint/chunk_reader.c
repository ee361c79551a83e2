#include "checkpoint/chunk_reader.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEAD_BYTES 65536u  /* read first: the metadata of ordinary chunks */
#define GAP_BYTES  131072u /* blocks that are not needed are read with others where they are fewer */

/* ---- Files ------------------------------------------------------------------------------------------------------- */

bool open_files_init(struct open_files *files, struct strait_checkpoint_reader *reader, bool direct)
{
    files->reader = reader;
    files->direct = direct;
    files->list = calloc(reader->index.file_count + (size_t)1, sizeof(*files->list));
    for (uint32_t f = 0; files->list != NULL && f < reader->index.file_count; f++)
        files->list[f].fd = -1;
    return files->list != NULL;
}

void open_files_fini(struct open_files *files)
{
    for (uint32_t f = 0; files->list != NULL && f < files->reader->index.file_count; f++)
        if (files->list[f].fd >= 0)
            close(files->list[f].fd);
    free(files->list);
    files->list = NULL;
}

enum strait_status open_files_take(struct open_files *files, uint32_t number, int *fd, char *text, size_t text_size)
{
    struct open_file *file = &files->list[number];
    pthread_mutex_t *lock = &files->reader->files[number].lock;
    enum strait_status status = STRAIT_OK;
    uint64_t bytes;
    pthread_mutex_lock(lock);
    if (file->fd < 0)
        status = reader_open_at(files->reader->folder, files->reader->names[number], files->direct, &file->fd, &bytes,
                                text, text_size);
    *fd = file->fd;
    pthread_mutex_unlock(lock);
    return status;
}

void open_files_put(struct open_files *files, uint32_t number)
{
    struct open_file *file = &files->list[number];
    pthread_mutex_t *lock = &files->reader->files[number].lock;
    pthread_mutex_lock(lock);
    if (--file->jobs == 0 && file->fd >= 0) {
        close(file->fd);
        file->fd = -1;
    }
    pthread_mutex_unlock(lock);
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

/* A chunk as it is read. */
struct reading {
    int fd;
    const struct checkpoint_chunk *chunk;
    uint8_t *bytes;
    char *text;
    size_t text_size;
};

/* Reads bytes begin..end-1 of the chunk to their place. */
static enum strait_status read_part(const struct reading *reading, uint64_t begin, uint64_t end)
{
    begin = begin / CHECKPOINT_ALIGNMENT * CHECKPOINT_ALIGNMENT;
    return reader_read(reading->fd, reading->chunk->offset + begin, reading->chunk->offset + end,
                       reading->bytes + begin, reading->text, reading->text_size);
}

/* Reads all metadata; `there` bytes have been read. */
static enum strait_status read_metadata(struct chunk_reader *reader, const struct reading *reading, uint64_t there)
{
    const struct checkpoint_chunk *chunk = reading->chunk;
    enum strait_status status = reader_check_chunk(chunk, reading->bytes, there, &reader->info);
    if (status == STRAIT_ERR_TRUNCATED && there < chunk->bytes) {
        status = read_part(reading, there, reader->info.metadata_bytes);
        if (status == STRAIT_OK)
            status = reader_check_chunk(chunk, reading->bytes, reader->info.metadata_bytes, &reader->info);
    }
    if (status != STRAIT_OK)
        return status;
    if (reader->room < chunk->pages) {
        free(reader->pages);
        reader->pages = malloc(chunk->pages * sizeof(*reader->pages));
        reader->room = reader->pages != NULL ? chunk->pages : 0;
        if (reader->pages == NULL)
            return STRAIT_ERR_NO_MEMORY;
    }
    return strait_chunk_pages(reading->bytes, chunk->bytes, chunk->pages, reader->pages);
}

/* Reads the blocks of runs of pages; those with small gaps between them at once. */
static enum strait_status read_blocks(const struct chunk_reader *reader, const struct reading *reading,
                                      const struct page_run *runs, uint32_t count)
{
    uint64_t at = reader->info.metadata_bytes, begin = 0, end = 0;
    enum strait_status status = STRAIT_OK;
    uint32_t page = 0;
    for (uint32_t r = 0; r < count && status == STRAIT_OK; r++) {
        for (; page < runs[r].first; page++)
            at += reader->pages[page].coded_bytes;
        if (at > end + GAP_BYTES || end == 0) {
            if (end > begin)
                status = read_part(reading, begin, end);
            begin = at;
        }
        for (; page <= runs[r].last; page++)
            at += reader->pages[page].coded_bytes;
        end = at;
    }
    return status == STRAIT_OK && end > begin ? read_part(reading, begin, end) : status;
}

static void unmap(struct chunk_reader *reader)
{
    if (reader->bytes != NULL)
        munmap(reader->bytes, reader->bytes_room);
    reader->bytes = NULL;
    reader->bytes_room = 0;
}

/* Memory for a chunk, and up to a multiple of CHECKPOINT_ALIGNMENT behind it. */
static bool reserve(struct chunk_reader *reader, const struct checkpoint_chunk *chunk)
{
    const uint64_t room =
        ((uint64_t)chunk->bytes + CHECKPOINT_ALIGNMENT - 1) / CHECKPOINT_ALIGNMENT * CHECKPOINT_ALIGNMENT;
    if (room <= reader->bytes_room)
        return true;
    unmap(reader);
    void *bytes = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED)
        return false;
    reader->bytes = bytes;
    reader->bytes_room = room;
    return true;
}

enum strait_status chunk_reader_read(struct chunk_reader *reader, int fd, const struct checkpoint_chunk *chunk,
                                     const struct page_run *runs, uint32_t count, char *text, size_t text_size)
{
    if (!reserve(reader, chunk))
        return STRAIT_ERR_NO_MEMORY;
    const struct reading reading = {
        .fd = fd, .chunk = chunk, .bytes = reader->bytes, .text = text, .text_size = text_size};
    uint64_t pages = 0;
    for (uint32_t r = 0; r < count; r++)
        pages += runs[r].last - runs[r].first + 1;
    const bool whole = 2 * pages >= chunk->pages || chunk->bytes <= 2 * HEAD_BYTES;
    const uint64_t first = whole ? chunk->bytes : HEAD_BYTES;
    reader->info = (struct strait_chunk_info){.chunk_bytes = 0};
    enum strait_status status = read_part(&reading, 0, first);
    if (status == STRAIT_OK)
        status = read_metadata(reader, &reading, first);
    return status == STRAIT_OK && !whole ? read_blocks(reader, &reading, runs, count) : status;
}

void chunk_reader_fini(struct chunk_reader *reader)
{
    unmap(reader);
    free(reader->pages);
    *reader = (struct chunk_reader){.bytes = NULL};
}
