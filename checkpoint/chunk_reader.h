/* Reading of chunks: of each the metadata, and those blocks that are needed. */
#ifndef STRAIT_CHECKPOINT_CHUNK_READER_H
#define STRAIT_CHECKPOINT_CHUNK_READER_H

#include "checkpoint/reader.h"
#include "checkpoint/target.h"

/* Descriptors of the files that a call reads, each open while jobs of it are left. */
struct open_files {
    struct strait_checkpoint_reader *reader;
    struct open_file {
        int fd; /* below 0: not open */
        uint64_t jobs;
    } * list;
    bool direct; /* past the page cache */
};

/* False: no memory. Then the owner counts the jobs of each file, before threads start. */
bool open_files_init(struct open_files *files, struct strait_checkpoint_reader *reader, bool direct);
void open_files_fini(struct open_files *files);

/* The descriptor of a file for one of its jobs. */
enum strait_status open_files_take(struct open_files *files, uint32_t file, int *fd, char *text, size_t text_size);
/* Ends a job. */
void open_files_put(struct open_files *files, uint32_t file);

/* Pages first..last of a chunk. */
struct page_run {
    uint32_t first, last;
};

/* A chunk that was read; starts as zeroes, memory is reused. */
struct chunk_reader {
    uint8_t *bytes; /* owned; only what is written of it takes memory */
    uint64_t bytes_room;
    struct strait_chunk_info info;
    struct strait_page_info *pages; /* owned */
    uint32_t room;
};

/* Reads metadata, checks them, and reads the blocks of the pages in `runs`, which are in ascending order and do not
 * overlap. `bytes` of the reader then has the chunk, aligned to CHECKPOINT_ALIGNMENT. */
enum strait_status chunk_reader_read(struct chunk_reader *reader, int fd, const struct checkpoint_chunk *chunk,
                                     const struct page_run *runs, uint32_t count, char *text, size_t text_size);
void chunk_reader_fini(struct chunk_reader *reader);

#endif
