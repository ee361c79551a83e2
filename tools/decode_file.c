#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kernels/container.h"
#include "tools/decode_file.h"
#include "tools/pipeline.h"
#include "tools/util.h"
#include "tools/files.h"
#include "tools/report.h"

#define GROW_STEP (16u * 1024 * 1024)

static bool fail(const struct file_reader *reader, const char *where, enum strait_status status)
{
    print_error(reader->source->name, "%s: %s", where, strait_status_string(status));
    return false;
}

static bool truncated(const struct file_reader *reader, const char *where)
{
    print_error(reader->source->name, "truncated: the file ends at byte %" PRIu64 ", inside %s", reader->offset, where);
    return false;
}

/* Reads exactly `size` bytes of the part that `where` names. */
static bool get(struct file_reader *reader, void *dst, size_t size, const char *where)
{
    size_t got;

    if (!source_read(reader->source, dst, size, &got))
        return false;
    reader->offset += got;
    return got == size || truncated(reader, where);
}

/* Appends to a buffer that has `used` bytes. Memory grows only as bytes arrive, because `size` is untrusted. */
static bool get_into(struct file_reader *reader, struct buffer *buffer, size_t used, uint64_t size, const char *where)
{
    while (size > 0) {
        size_t step = size < GROW_STEP ? (size_t)size : GROW_STEP;
        uint64_t room = used + step;

        if (room > buffer->capacity && !buffer_reserve(buffer, used, step == size ? room : room * 2))
            return fail(reader, where, STRAIT_ERR_NO_MEMORY);
        if (!get(reader, buffer->data + used, step, where))
            return false;
        used += step;
        size -= step;
    }
    return true;
}

/* ---- Head ------------------------------------------------------------------------------------------------------ */

bool file_reader_init(struct file_reader *reader, struct source *source)
{
    uint8_t bytes[CONTAINER_HEADER_BYTES];
    enum strait_status status;
    size_t got;

    *reader = (struct file_reader){.source = source};
    if (!source_read(source, bytes, sizeof(bytes), &got))
        return false;
    if (!container_is_file(bytes, got)) {
        print_error(source->name, got < 4 ? "truncated: too short to be a Strait file" : "not a Strait file");
        return false;
    }
    reader->offset = got;
    status = container_read_header(&reader->header, bytes, got);
    if (status == STRAIT_ERR_TRUNCATED)
        return truncated(reader, "the file header");
    reader->preamble_left = reader->header.preamble_bytes;
    return status == STRAIT_OK || fail(reader, "file header", status);
}

void file_reader_fini(struct file_reader *reader)
{
    strait_codebook_destroy(reader->codebook);
    reader->codebook = NULL;
}

bool file_reader_preamble(struct file_reader *reader, uint8_t *dst, size_t size, size_t *got)
{
    *got = reader->preamble_left < size ? (size_t)reader->preamble_left : size;
    reader->preamble_left -= *got;
    return get(reader, dst, *got, "the preamble");
}

static bool skip_padding(struct file_reader *reader)
{
    uint8_t bytes[16];
    size_t size = (size_t)(container_tables_offset(&reader->header) - reader->offset);

    if (!get(reader, bytes, size, "the padding of the preamble"))
        return false;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != 0)
            return fail(reader, "padding of the preamble", STRAIT_ERR_CORRUPT);
    return true;
}

static bool make_codebook(struct file_reader *reader, const struct buffer *tables)
{
    enum strait_status status = strait_codebook_create((const uint8_t(*)[256])tables->data, NULL,
                                                       reader->header.table_count, &reader->codebook);

    if (status != STRAIT_OK) /* a table that is not a permutation is the file's fault, not the caller's */
        return fail(reader, "tables", status == STRAIT_ERR_NO_MEMORY ? status : STRAIT_ERR_CORRUPT);
    if (memcmp(strait_codebook_id(reader->codebook), reader->header.codebook_id, STRAIT_CODEBOOK_ID_BYTES) != 0)
        return fail(reader, "tables", STRAIT_ERR_INTEGRITY);
    return true;
}

bool file_reader_tables(struct file_reader *reader)
{
    struct buffer tables = {0};
    uint64_t size = (uint64_t)reader->header.table_count * CONTAINER_TABLE_BYTES;
    bool ok = skip_padding(reader) && get_into(reader, &tables, 0, size, "the tables");

    if (ok && size > 0)
        ok = make_codebook(reader, &tables);
    buffer_fini(&tables);
    return ok;
}

/* ---- Chunks ---------------------------------------------------------------------------------------------------- */

static bool chunk_fail(const struct file_reader *reader, uint64_t begin, const char *what)
{
    print_error(reader->source->name, "chunk %" PRIu32 " at byte %" PRIu64 ": %s", reader->chunk_count, begin, what);
    return false;
}

static bool is_zero_id(const uint8_t id[STRAIT_CODEBOOK_ID_BYTES])
{
    static const uint8_t none[STRAIT_CODEBOOK_ID_BYTES];
    return memcmp(id, none, sizeof(none)) == 0;
}

static bool check_info(const struct file_reader *reader, uint64_t begin, const uint8_t *head,
                       struct strait_chunk_info *info)
{
    enum strait_status status = strait_chunk_info(head, STRAIT_CHUNK_HEADER_BYTES, info);

    if (status != STRAIT_OK)
        return chunk_fail(reader, begin, strait_status_string(status));
    if (!is_zero_id(info->codebook_id) &&
        memcmp(info->codebook_id, reader->header.codebook_id, STRAIT_CODEBOOK_ID_BYTES) != 0)
        return chunk_fail(reader, begin, "it names another codebook set than the file's");
    return reader->chunk_count < UINT32_MAX || chunk_fail(reader, begin, "too many chunks");
}

enum file_part file_reader_chunk(struct file_reader *reader, struct buffer *chunk, struct strait_chunk_info *info)
{
    uint64_t begin = reader->offset;
    uint8_t head[STRAIT_CHUNK_HEADER_BYTES];
    char where[64];

    snprintf(where, sizeof(where), "chunk %" PRIu32 " or before the footer", reader->chunk_count);
    if (!get(reader, head, sizeof(head), where))
        return FILE_PART_FAILED;
    if (container_is_footer(head, sizeof(head))) {
        memcpy(reader->footer_head, head, sizeof(head));
        return FILE_PART_FOOTER;
    }
    if (!check_info(reader, begin, head, info))
        return FILE_PART_FAILED;
    if (!buffer_reserve(chunk, 0, sizeof(head))) {
        chunk_fail(reader, begin, strait_status_string(STRAIT_ERR_NO_MEMORY));
        return FILE_PART_FAILED;
    }
    memcpy(chunk->data, head, sizeof(head));
    snprintf(where, sizeof(where), "chunk %" PRIu32, reader->chunk_count);
    if (!get_into(reader, chunk, sizeof(head), info->chunk_bytes - sizeof(head), where))
        return FILE_PART_FAILED;
    reader->chunk_count++;
    return FILE_PART_CHUNK;
}

/* ---- Footer ---------------------------------------------------------------------------------------------------- */

/* The footer does not match what was read: reports the part that explains most. */
static bool footer_differs(const struct file_reader *reader, const uint8_t *footer, uint64_t size,
                           const struct container_tail *seen)
{
    struct container_tail tail;
    uint32_t count;
    enum strait_status status = container_check_footer(footer, size, &reader->header, &count, &tail);

    if (status == STRAIT_ERR_TRUNCATED) /* nothing is missing, but it does not end as it should */
        status = STRAIT_ERR_CORRUPT;
    if (status != STRAIT_OK)
        return fail(reader, "footer", status);
    if (tail.original_bytes == seen->original_bytes && memcmp(tail.hash, seen->hash, sizeof(tail.hash)) != 0)
        print_error(reader->source->name, "the decoded bytes are not the original ones: XXH3-128 mismatch");
    else
        print_error(reader->source->name, "footer: it does not describe the chunks of this file");
    return false;
}

static bool check_end(struct file_reader *reader)
{
    uint8_t byte;
    size_t got;

    if (!source_read(reader->source, &byte, 1, &got))
        return false;
    if (got > 0)
        print_error(reader->source->name, "bytes follow the end of the file at %" PRIu64, reader->offset);
    return got == 0;
}

static bool compare_footer(struct file_reader *reader, struct buffer *found, const struct container_chunk *chunks,
                           uint32_t count, const struct container_tail *seen)
{
    struct buffer expected = {0};
    uint64_t size = container_footer_bytes(count);
    bool ok;

    if (!buffer_reserve(found, 0, size) || !buffer_reserve(&expected, 0, size)) {
        ok = fail(reader, "footer", STRAIT_ERR_NO_MEMORY);
    } else {
        size_t held = sizeof(reader->footer_head);
        container_write_footer(expected.data, chunks, count, seen);
        memcpy(found->data, reader->footer_head, held);
        ok = get_into(reader, found, held, size - held, "the footer") &&
             (memcmp(found->data, expected.data, size) == 0 || footer_differs(reader, found->data, size, seen));
    }
    buffer_fini(&expected);
    return ok;
}

bool file_reader_finish(struct file_reader *reader, const struct container_chunk *chunks, uint32_t count,
                        const struct digest *digest)
{
    struct container_tail seen = {
        .footer_offset = reader->offset - sizeof(reader->footer_head),
        .original_bytes = digest->bytes,
    };
    struct buffer found = {0};
    bool ok;

    digest_hash(digest, seen.hash);
    ok = compare_footer(reader, &found, chunks, count, &seen) && check_end(reader);
    buffer_fini(&found);
    return ok;
}

static bool grow(struct chunk_list *chunks)
{
    uint64_t capacity = (uint64_t)chunks->capacity * 2 + 64;
    struct container_chunk *grown =
        capacity > UINT32_MAX ? NULL : realloc(chunks->list, (size_t)capacity * sizeof(*grown));

    if (grown == NULL)
        return false;
    chunks->list = grown;
    chunks->capacity = (uint32_t)capacity;
    return true;
}

bool chunk_list_add(struct chunk_list *chunks, struct container_chunk chunk)
{
    if (chunks->count == chunks->capacity && !grow(chunks)) {
        print_error(NULL, "out of memory after %" PRIu32 " chunks", chunks->count);
        return false;
    }
    chunks->list[chunks->count++] = chunk;
    return true;
}

void chunk_list_fini(struct chunk_list *chunks)
{
    free(chunks->list);
    *chunks = (struct chunk_list){0};
}

#define PIECE_BYTES    (64u * 1024 * 1024) /* a piece ends with the page that reaches this */
#define PAGE_ALIGNMENT 16u                 /* in memory, of pages that are being decoded */

void chunk_decoder_fini(struct chunk_decoder *decoder)
{
    buffer_fini(&decoder->chunk);
    buffer_fini(&decoder->pages);
    buffer_fini(&decoder->raw);
    buffer_fini(&decoder->page_status);
    buffer_fini(&decoder->stats);
    buffer_fini(&decoder->regions);
    buffer_fini(&decoder->select);
    buffer_fini(&decoder->scratch);
}

static enum strait_status read_pages(struct chunk_decoder *decoder)
{
    uint32_t count = decoder->info.page_count;

    if (!buffer_reserve(&decoder->pages, 0, (uint64_t)count * sizeof(struct strait_page_info)))
        return STRAIT_ERR_NO_MEMORY;
    return strait_chunk_pages(decoder->chunk.data, decoder->info.chunk_bytes, count,
                              (struct strait_page_info *)decoder->pages.data);
}

void chunk_decoder_begin(struct chunk_decoder *decoder)
{
    decoder->first = 0;
    decoder->count = 0;
    decoder->raw_bytes = 0;
    decoder->end = decoder->info.page_count;
    decoder->status = read_pages(decoder);
    if (decoder->status != STRAIT_OK)
        return;
    for (uint32_t i = 0; i < decoder->info.page_count; i++)
        decoder->raw_bytes += chunk_decoder_page(decoder, i)->page_bytes;
}

/* ---- Pieces ---------------------------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + PAGE_ALIGNMENT - 1) / PAGE_ALIGNMENT * PAGE_ALIGNMENT;
}

/* Advances to the next piece; returns the bytes of memory that its pages take when each begins aligned. */
static uint64_t next_piece(struct chunk_decoder *decoder)
{
    uint64_t room = 0;

    decoder->first += decoder->count;
    decoder->count = 0;
    decoder->piece_bytes = 0;
    while (decoder->first + decoder->count < decoder->end && room < PIECE_BYTES) {
        uint32_t bytes = chunk_decoder_page(decoder, decoder->first + decoder->count)->page_bytes;
        decoder->piece_bytes += bytes;
        decoder->count++;
        room += aligned(bytes);
    }
    return room;
}

static bool reserve(struct chunk_decoder *decoder, uint64_t room, size_t scratch)
{
    return buffer_reserve(&decoder->raw, 0, room) && buffer_reserve(&decoder->scratch, 0, scratch) &&
           buffer_reserve(&decoder->regions, 0, decoder->count * sizeof(struct strait_region)) &&
           buffer_reserve(&decoder->select, 0, decoder->count * sizeof(uint32_t)) &&
           buffer_reserve(&decoder->page_status, 0, decoder->count * sizeof(int32_t));
}

/* One region per page, as pages may differ in length. */
static void list_pages(struct chunk_decoder *decoder)
{
    struct strait_region *regions = (struct strait_region *)decoder->regions.data;
    uint32_t *select = (uint32_t *)decoder->select.data;
    uint8_t *base = decoder->raw.data;

    for (uint32_t i = 0; i < decoder->count; i++) {
        uint32_t bytes = chunk_decoder_page(decoder, decoder->first + i)->page_bytes;
        regions[i] = (struct strait_region){.base = base, .page_count = 1, .rows = 1, .row_bytes = bytes};
        select[i] = decoder->first + i;
        base += aligned(bytes);
    }
}

/* Closes the gaps behind pages of odd lengths. */
static void compact(struct chunk_decoder *decoder)
{
    const struct strait_region *regions = (const struct strait_region *)decoder->regions.data;
    uint8_t *dst = decoder->raw.data;

    for (uint32_t i = 0; i < decoder->count; i++) {
        if (dst != regions[i].base)
            memmove(dst, regions[i].base, regions[i].row_bytes);
        dst += regions[i].row_bytes;
    }
}

static enum strait_status decode_piece(struct chunk_decoder *decoder, uint64_t room, const struct strait_codec *codec,
                                       const struct strait_codebook *codebook)
{
    struct strait_pages pages = {.region_count = decoder->count, .id_count = 1};
    struct strait_run run = {
        .size = sizeof(run),
        .scratch_size = strait_scratch_size(codec),
        .result = &decoder->result,
        .class_stats = (struct strait_class_stats *)decoder->stats.data,
        .class_count = codebook == NULL ? 0 : strait_codebook_count(codebook),
    };
    enum strait_status status;

    if (!reserve(decoder, room, run.scratch_size))
        return STRAIT_ERR_NO_MEMORY;
    list_pages(decoder);
    pages.regions = (const struct strait_region *)decoder->regions.data;
    run.scratch = decoder->scratch.data;
    run.page_status = (int32_t *)decoder->page_status.data;
    run.page_status_count = decoder->count;
    status = strait_decode(codec, codebook, &pages, (const uint32_t *)decoder->select.data, decoder->chunk.data,
                           decoder->info.chunk_bytes, &run);
    if (status != STRAIT_OK)
        return status;
    if (decoder->result.status == STRAIT_ERR_CODEBOOK)
        return STRAIT_ERR_CODEBOOK; /* the chunk's fault: it names a table that the set lacks */
    compact(decoder);
    return STRAIT_OK;
}

bool chunk_decoder_piece(struct chunk_decoder *decoder, const struct strait_codec *codec,
                         const struct strait_codebook *codebook)
{
    uint64_t room = next_piece(decoder);

    if (decoder->count == 0)
        return false;
    decoder->status = decode_piece(decoder, room, codec, codebook);
    return true;
}

bool digest_init(struct digest *digest)
{
    *digest = (struct digest){.state = XXH3_createState()};
    return digest->state != NULL && XXH3_128bits_reset(digest->state) == XXH_OK;
}

void digest_fini(struct digest *digest)
{
    XXH3_freeState(digest->state);
    digest->state = NULL;
}

void digest_add(struct digest *digest, const void *data, size_t size)
{
    if (size > 0)
        XXH3_128bits_update(digest->state, data, size);
    digest->bytes += size;
}

void digest_hash(const struct digest *digest, uint8_t hash[16])
{
    XXH128_hash_t sum = XXH3_128bits_digest(digest->state);
    container_store_hash(hash, sum.low64, sum.high64);
}

void digest_hex(char hex[DIGEST_HEX_BYTES], const uint8_t hash[16])
{
    for (unsigned i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[15 - i]);
}

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
    struct digest digest; /* used by the giving thread, like everything below */
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
    if (!buffer_reserve_zeroes(&decoder->stats,
                               (job->reader.header.table_count + 1) * sizeof(struct strait_class_stats)))
        decoder->status = STRAIT_ERR_NO_MEMORY;
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
                slot->file_offset, job->digest.bytes, chunk_text(slot->decoder.status));
    return false;
}

/* Reports every page of the piece that failed. */
static void tell_pages(const struct decode_job *job, const struct decode_slot *slot)
{
    const struct chunk_decoder *decoder = &slot->decoder;
    const int32_t *status = (const int32_t *)decoder->page_status.data;
    uint64_t begin = job->digest.bytes;

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
    digest_add(&job->digest, decoder->raw.data, decoder->piece_bytes);
    progress_add(job->task->progress, decoder->piece_bytes);
    return job->task->output == NULL || output_write(job->task->output, decoder->raw.data, decoder->piece_bytes);
}

static bool note_chunk(struct decode_job *job, const struct decode_slot *slot)
{
    const struct chunk_decoder *decoder = &slot->decoder;

    return chunk_list_add(&job->chunks, (struct container_chunk){
                                            .file_offset = slot->file_offset,
                                            .raw_offset = job->digest.bytes - job->reader.header.preamble_bytes,
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
    } while (chunk_decoder_piece(decoder, job->task->codec, job->reader.codebook));
    totals_add(&job->totals, decoder->chunk.data, decoder->info.chunk_bytes, decoder->info.page_count, stats,
               job->reader.header.table_count);
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
            digest_add(&job->digest, step, got);
            ok = job->task->output == NULL || output_write(job->task->output, step, got);
        }
    }
    free(step);
    return ok;
}

static void slot_release(void *slot)
{
    chunk_decoder_fini(&((struct decode_slot *)slot)->decoder);
}

static bool decode_chunks(struct decode_job *job)
{
    static const struct ordered_steps steps = {decode_take, decode_work, decode_give, slot_release};

    return ordered_run(&steps, job, sizeof(struct decode_slot), job->task->threads) && !job->take_failed &&
           !job->give_failed;
}

static bool decode_all(struct decode_job *job)
{
    if (!digest_init(&job->digest)) {
        print_error(NULL, "out of memory");
        return false;
    }
    return file_reader_init(&job->reader, job->task->source) && copy_preamble(job) &&
           file_reader_tables(&job->reader) && decode_chunks(job) &&
           file_reader_finish(&job->reader, job->chunks.list, job->chunks.count, &job->digest);
}

bool decode_file(const struct decode_task *task, struct decode_outcome *outcome)
{
    struct decode_job job = {.task = task};
    bool ok = decode_all(&job);

    if (ok) {
        outcome->unplain_bytes = job.digest.bytes;
        outcome->file_bytes = job.reader.offset;
        outcome->table_count = job.reader.header.table_count;
        outcome->totals = job.totals;
        digest_hash(&job.digest, outcome->hash);
    }
    file_reader_fini(&job.reader);
    digest_fini(&job.digest);
    chunk_list_fini(&job.chunks);
    return ok;
}
