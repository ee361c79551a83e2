/* Verification: all pages of all files are decoded, and nothing is written. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/chunk_reader.h"
#include "checkpoint/crew.h"
#include "checkpoint/faults.h"
#include "checkpoint/load_plan.h"

struct verify {
    struct strait_checkpoint_reader *reader;
    const struct strait_checkpoint_load_options *options;
    uint32_t threads;
    struct open_files files;
    uint64_t *first_chunk; /* of each file, counted in the checkpoint; one more for the end */
    bool *known;           /* files whose footers are right */

    pthread_mutex_t lock; /* of what follows */
    struct faults faults;
    uint64_t done_bytes, all_bytes; /* of chunks */
    bool no_memory;
};

/* What a thread has. */
struct worker {
    struct chunk_reader chunk;
    int32_t *status; /* of pages */
    uint32_t room;
};

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

static void close_worker(void *context, void *state)
{
    struct worker *worker = state;
    (void)context;
    chunk_reader_fini(&worker->chunk);
    free(worker->status);
    free(worker);
}

static void *open_worker(void *context)
{
    (void)context;
    return calloc(1, sizeof(struct worker));
}

/* ---- Damage ------------------------------------------------------------------------------------------------------ */

static void add_fault(struct verify *verify, const struct fault *fault)
{
    pthread_mutex_lock(&verify->lock);
    verify->no_memory |= faults_add(&verify->faults, fault) == UINT32_MAX;
    pthread_mutex_unlock(&verify->lock);
}

/* The first stored shard of a file, in the order of pages, that ends behind a page. Shards that share a page follow one
 * another; no other two have one. */
static uint32_t first_shard_at(const struct strait_checkpoint_reader *reader, const struct reader_file *file,
                               uint64_t page)
{
    uint32_t low = 0, high = file->stored_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const struct checkpoint_shard *shard = &reader->index.shards[file->by_page[middle]];
        if (reader_first_page(reader, shard) + checkpoint_shard_pages(shard) <= page)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds the pages first..last of a chunk as faults: one for each shard that has values there, or one of the chunk. */
static void add_pages(struct verify *verify, uint32_t number, uint32_t chunk, uint32_t first, uint32_t last,
                      enum strait_status status, const char *why)
{
    const struct reader_file *file = &verify->reader->files[number];
    const uint64_t begin = file->first_page[chunk] + first, end = file->first_page[chunk] + last + 1;
    struct fault fault = {.file_offset = file->chunks[chunk].offset,
                          .shard = FAULT_NO_SHARD,
                          .file = number,
                          .status = status,
                          .lost = true};
    snprintf(fault.why, sizeof(fault.why), "%s", why);
    for (uint32_t s = first_shard_at(verify->reader, file, begin); s < file->stored_count; s++) {
        const struct checkpoint_shard *shard = &verify->reader->index.shards[file->by_page[s]];
        const uint64_t base = reader_first_page(verify->reader, shard),
                       shard_end = base + checkpoint_shard_pages(shard);
        uint64_t unused;
        if (base >= end)
            break;
        fault.shard = file->by_page[s];
        load_plan_page(shard, begin > base ? begin - base : 0, &fault.first, &unused);
        load_plan_page(shard, (end < shard_end ? end : shard_end) - 1 - base, &unused, &fault.end);
        add_fault(verify, &fault);
    }
    if (fault.shard == FAULT_NO_SHARD)
        add_fault(verify, &fault);
}

/* Sets the status of pages that are shorter or longer than their shards say. */
static void check_lengths(const struct strait_checkpoint_reader *reader, uint32_t number, uint32_t chunk,
                          const struct worker *worker)
{
    const struct reader_file *file = &reader->files[number];
    const uint64_t begin = file->first_page[chunk], end = file->first_page[chunk + 1];
    for (uint32_t s = first_shard_at(reader, file, begin); s < file->stored_count; s++) {
        const struct checkpoint_shard *shard = &reader->index.shards[file->by_page[s]];
        const uint64_t base = reader_first_page(reader, shard), count = checkpoint_shard_pages(shard);
        if (base >= end)
            break;
        for (uint64_t page = base > begin ? base : begin; page < base + count && page < end; page++) {
            const uint32_t there = worker->chunk.pages[page - begin].page_bytes;
            const uint64_t rest = shard->bytes - (page - base) * shard->page_bytes;
            const bool fits = shard->bytes < shard->page_bytes
                                  ? shard->first_byte + shard->bytes <= there
                                  : there == (rest < shard->page_bytes ? rest : shard->page_bytes);
            if (!fits || shard->dtype->element != worker->chunk.info.element)
                worker->status[page - begin] = STRAIT_ERR_CORRUPT;
        }
    }
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

/* Reads a chunk and verifies its pages; a status that is not OK is that of all of them. */
static enum strait_status verify_chunk(struct verify *verify, struct worker *worker, uint32_t number, uint32_t chunk,
                                       char *why)
{
    const struct checkpoint_chunk *told = &verify->reader->files[number].chunks[chunk];
    const struct page_run all = {0, told->pages - 1};
    struct strait_result result;
    int fd;
    if (worker->room < told->pages) {
        free(worker->status);
        worker->status = malloc(told->pages * sizeof(*worker->status));
        worker->room = worker->status != NULL ? told->pages : 0;
    }
    if (worker->status == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = open_files_take(&verify->files, number, &fd, why, FAULT_WHY_BYTES);
    if (status == STRAIT_OK)
        status = chunk_reader_read(&worker->chunk, fd, told, &all, 1, why, FAULT_WHY_BYTES);
    if (status != STRAIT_OK)
        return status;
    const struct strait_run run = {
        .size = sizeof(run), .result = &result, .page_status = worker->status, .page_status_count = told->pages};
    status = strait_verify(NULL, NULL, worker->chunk.bytes, told->bytes, &run);
    if (status == STRAIT_OK)
        status = (enum strait_status)result.chunk_status;
    if (status == STRAIT_OK)
        check_lengths(verify->reader, number, chunk, worker);
    return status;
}

static uint32_t file_of(const struct verify *verify, uint64_t job)
{
    uint32_t low = 0, high = verify->reader->index.file_count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (verify->first_chunk[middle] <= job)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void run_job(void *context, void *state, uint64_t job)
{
    struct verify *verify = context;
    struct worker *worker = state;
    const uint32_t number = file_of(verify, job), chunk = (uint32_t)(job - verify->first_chunk[number]);
    const struct checkpoint_chunk *told = &verify->reader->files[number].chunks[chunk];
    char why[FAULT_WHY_BYTES] = "";
    const enum strait_status status = verify_chunk(verify, worker, number, chunk, why);
    open_files_put(&verify->files, number);
    if (status != STRAIT_OK)
        add_pages(verify, number, chunk, 0, told->pages - 1, status, why);
    for (uint32_t first = 0, last; status == STRAIT_OK && first < told->pages; first = last + 1) {
        for (last = first; last + 1 < told->pages && worker->status[last + 1] == worker->status[first];)
            last++;
        if (worker->status[first] != STRAIT_OK)
            add_pages(verify, number, chunk, first, last, (enum strait_status)worker->status[first], "");
    }
    pthread_mutex_lock(&verify->lock);
    verify->no_memory |= status == STRAIT_ERR_NO_MEMORY;
    verify->done_bytes += told->bytes;
    if (verify->options->progress != NULL)
        verify->options->progress(verify->options->context, verify->done_bytes, verify->all_bytes);
    pthread_mutex_unlock(&verify->lock);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static void read_footer(void *context, void *state, uint64_t job)
{
    struct verify *verify = context;
    struct fault fault = {.shard = FAULT_NO_SHARD, .file = (uint32_t)job, .lost = true};
    char why[READER_TEXT_BYTES];
    (void)state;
    fault.status = reader_know(verify->reader, (uint32_t)job, why);
    verify->known[job] = fault.status == STRAIT_OK;
    if (verify->known[job])
        return;
    snprintf(fault.why, sizeof(fault.why), "%.*s", (int)sizeof(fault.why) - 1, why);
    add_fault(verify, &fault);
}

static enum strait_status verify_files(struct verify *verify)
{
    const uint32_t files = verify->reader->index.file_count;
    const struct crew_work footers = {.run = read_footer, .context = verify};
    const struct crew_work chunks = {.open = open_worker, .close = close_worker, .run = run_job, .context = verify};
    (void)crew_run(&footers, files, verify->threads);
    for (uint32_t f = 0; f < files; f++) {
        const struct reader_file *file = &verify->reader->files[f];
        const uint32_t count = verify->known[f] ? file->chunk_count : 0;
        verify->files.list[f].jobs = count;
        verify->first_chunk[f + 1] = verify->first_chunk[f] + count;
        for (uint32_t c = 0; c < count; c++)
            verify->all_bytes += file->chunks[c].bytes;
    }
    if (!crew_run(&chunks, verify->first_chunk[files], verify->threads) || verify->no_memory)
        return STRAIT_ERR_NO_MEMORY;
    return STRAIT_OK;
}

/* The error of the first fault in the order of files. */
static enum strait_status first_error(const struct verify *verify, char *text, size_t text_size)
{
    const struct fault *first = NULL;
    char why[READER_TEXT_BYTES];
    for (size_t f = 0; f < verify->faults.count; f++) {
        const struct fault *fault = &verify->faults.list[f];
        if (first == NULL || fault->file < first->file ||
            (fault->file == first->file && fault->file_offset < first->file_offset))
            first = fault;
    }
    if (first == NULL)
        return STRAIT_OK;
    fault_text(verify->reader, first, why, sizeof(why));
    return checkpoint_fail(text, text_size, first->status, "%s: %s", verify->reader->path, why);
}

enum strait_status strait_checkpoint_verify(struct strait_checkpoint_reader *reader,
                                            const struct strait_checkpoint_load_options *options, char *text,
                                            size_t text_size)
{
    static const struct strait_checkpoint_load_options defaults = {.size = sizeof(defaults)};
    if (reader == NULL || !reader_options_valid(options))
        return checkpoint_fail(text, text_size, STRAIT_ERR_INVALID, "reader or options: missing or unknown");
    struct verify verify = {.reader = reader, .options = options != NULL ? options : &defaults};
    verify.threads = crew_threads(verify.options->threads);
    verify.first_chunk = calloc(reader->index.file_count + (size_t)1, sizeof(*verify.first_chunk));
    verify.known = calloc(reader->index.file_count + (size_t)1, sizeof(*verify.known));
    pthread_mutex_init(&verify.lock, NULL);
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    const bool direct = (verify.options->flags & STRAIT_CHECKPOINT_CACHED) == 0;
    if (verify.first_chunk != NULL && verify.known != NULL && open_files_init(&verify.files, reader, direct))
        status = verify_files(&verify);
    if (status == STRAIT_OK) {
        faults_report(&verify.faults, reader, verify.options);
        status = first_error(&verify, text, text_size);
    } else {
        (void)checkpoint_fail(text, text_size, status, "%s: %s", reader->path, strait_status_string(status));
    }
    open_files_fini(&verify.files);
    free(verify.first_chunk);
    free(verify.known);
    free(verify.faults.list);
    pthread_mutex_destroy(&verify.lock);
    return status;
}
