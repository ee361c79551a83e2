#include "tools/decode_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/chunk_decoder.h"
#include "tools/chunk_list.h"
#include "tools/file_reader.h"
#include "tools/ordered.h"

#define PREAMBLE_STEP (1u << 20)

/* A chunk in the pipeline. */
struct decode_slot {
    struct chunk_decoder decoder;
    uint64_t file_offset;
};

struct decode_job {
    const struct decode_task *task;
    struct file_reader reader; /* used by the taking thread */
    bool take_failed;
    struct original original; /* used by the giving thread, like everything below */
    struct chunk_list chunks;
    struct totals totals;
    bool give_failed;
};

/* ---- Taking and working ---------------------------------------------------------------------------------------- */

static bool decode_take(void *job_, void *slot_)
{
    struct decode_job *job = job_;
    struct decode_slot *slot = slot_;
    enum file_part part;

    slot->file_offset = job->reader.offset;
    part = file_reader_chunk(&job->reader, &slot->decoder.chunk, &slot->decoder.info);
    job->take_failed = part == FILE_PART_FAILED;
    return part == FILE_PART_CHUNK;
}

/* Decodes the first piece, nearly always the whole chunk. The rest of a larger chunk is decoded in its turn. */
static void decode_work(void *job_, void *slot_)
{
    const struct decode_job *job = job_;
    struct chunk_decoder *decoder = &((struct decode_slot *)slot_)->decoder;

    chunk_decoder_begin(decoder);
    if (decoder->status == STRAIT_OK)
        chunk_decoder_piece(decoder, job->task->codec, job->reader.codebook);
}

/* ---- Giving ---------------------------------------------------------------------------------------------------- */

/* The reader has already checked that the chunk names the file's set. */
static const char *chunk_text(enum strait_status status)
{
    return status == STRAIT_ERR_CODEBOOK ? "it names a table that the codebook set lacks"
                                         : strait_status_string(status);
}

static bool tell_chunk(const struct decode_job *job, const struct decode_slot *slot)
{
    print_error(job->task->source->name,
                "chunk %" PRIu64 " at byte %" PRIu64 ", from byte %" PRIu64 " of the original: %s", job->totals.chunks,
                slot->file_offset, job->original.bytes, chunk_text(slot->decoder.status));
    return false;
}

/* Reports every page of the piece that failed. */
static void tell_pages(const struct decode_job *job, const struct decode_slot *slot)
{
    const struct chunk_decoder *decoder = &slot->decoder;
    const int32_t *status = (const int32_t *)decoder->page_status.data;
    uint64_t begin = job->original.bytes;

    for (uint32_t i = 0; i < decoder->count; i++) {
        uint64_t end = begin + chunk_decoder_page(decoder, decoder->first + i)->page_bytes;
        if (status[i] != STRAIT_OK)
            print_error(job->task->source->name,
                        "chunk %" PRIu64 " at byte %" PRIu64 ", page %" PRIu32 ", bytes %" PRIu64 "-%" PRIu64
                        " of the original: %s",
                        job->totals.chunks, slot->file_offset, decoder->first + i, begin, end - 1,
                        strait_status_string(status[i]));
        begin = end;
    }
}

/* Passes a decoded piece on. A check-only run continues after bad pages, so that it finds all of them. */
static bool give_piece(struct decode_job *job, struct decode_slot *slot)
{
    struct chunk_decoder *decoder = &slot->decoder;
    bool ok = decoder->result.status == STRAIT_OK;

    if (!ok) {
        tell_pages(job, slot);
        job->give_failed = true;
    }
    if (!ok && job->task->output != NULL)
        return false;
    original_add(&job->original, decoder->raw.data, decoder->piece_bytes);
    progress_add(job->task->progress, decoder->piece_bytes);
    return job->task->output == NULL || output_write(job->task->output, decoder->raw.data, decoder->piece_bytes);
}

static bool note_chunk(struct decode_job *job, const struct decode_slot *slot)
{
    const struct chunk_decoder *decoder = &slot->decoder;

    return chunk_list_add(&job->chunks, (struct container_chunk){
                                            .file_offset = slot->file_offset,
                                            .raw_offset = job->original.bytes - job->reader.header.preamble_bytes,
                                            .chunk_bytes = (uint32_t)decoder->info.chunk_bytes,
                                            .page_count = decoder->info.page_count,
                                        });
}

static bool give_chunk(struct decode_job *job, struct decode_slot *slot)
{
    struct chunk_decoder *decoder = &slot->decoder;
    struct strait_class_stats *stats = (struct strait_class_stats *)decoder->stats.data;

    if (decoder->status == STRAIT_OK && !note_chunk(job, slot))
        return false;
    do {
        if (decoder->status != STRAIT_OK)
            return tell_chunk(job, slot);
        if (!give_piece(job, slot))
            return false;
        totals_add(&job->totals, decoder->count, &decoder->result, stats, job->reader.header.table_count);
    } while (chunk_decoder_piece(decoder, job->task->codec, job->reader.codebook));
    job->totals.chunks++;
    return true;
}

static bool decode_give(void *job_, void *slot)
{
    struct decode_job *job = job_;
    bool given = give_chunk(job, slot);

    job->give_failed |= !given;
    return given;
}

/* ---- All of it ------------------------------------------------------------------------------------------------- */

static bool copy_preamble(struct decode_job *job)
{
    uint8_t *step = malloc(PREAMBLE_STEP);
    size_t got = 1;
    bool ok = step != NULL;

    if (!ok)
        print_error(NULL, "out of memory");
    while (ok && got > 0) {
        ok = file_reader_preamble(&job->reader, step, PREAMBLE_STEP, &got);
        if (ok) {
            original_add(&job->original, step, got);
            ok = job->task->output == NULL || output_write(job->task->output, step, got);
        }
    }
    free(step);
    return ok;
}

static void slots_destroy(struct decode_slot *slots, unsigned threads)
{
    for (unsigned t = 0; slots != NULL && t < threads; t++)
        chunk_decoder_fini(&slots[t].decoder);
    free(slots);
}

static struct decode_slot *slots_create(unsigned threads, uint32_t tables)
{
    size_t stats_bytes = (tables + 1) * sizeof(struct strait_class_stats);
    struct decode_slot *slots = calloc(threads, sizeof(*slots));

    for (unsigned t = 0; slots != NULL && t < threads; t++) {
        if (!buffer_reserve(&slots[t].decoder.stats, 0, stats_bytes)) {
            slots_destroy(slots, threads);
            return NULL;
        }
        memset(slots[t].decoder.stats.data, 0, stats_bytes);
    }
    return slots;
}

static bool decode_chunks(struct decode_job *job)
{
    static const struct ordered_steps steps = {decode_take, decode_work, decode_give};
    unsigned threads = job->task->threads;
    struct decode_slot *slots = slots_create(threads, job->reader.header.table_count);

    if (slots == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    ordered_run(&steps, job, slots, sizeof(*slots), threads);
    slots_destroy(slots, threads);
    return !job->take_failed && !job->give_failed;
}

static bool decode_all(struct decode_job *job)
{
    if (!original_init(&job->original)) {
        print_error(NULL, "out of memory");
        return false;
    }
    return file_reader_init(&job->reader, job->task->source) && copy_preamble(job) &&
           file_reader_tables(&job->reader) && decode_chunks(job) &&
           file_reader_finish(&job->reader, job->chunks.list, job->chunks.count, &job->original);
}

bool decode_file(const struct decode_task *task, struct decode_outcome *outcome)
{
    struct decode_job job = {.task = task};
    bool ok = decode_all(&job);

    if (ok) {
        outcome->original_bytes = job.original.bytes;
        outcome->file_bytes = job.reader.offset;
        outcome->table_count = job.reader.header.table_count;
        outcome->totals = job.totals;
        original_hash(&job.original, outcome->hash);
    }
    file_reader_fini(&job.reader);
    original_fini(&job.original);
    chunk_list_fini(&job.chunks);
    return ok;
}
