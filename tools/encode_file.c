#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "internal/element.h"
#include "kernels/container.h"
#include "tools/decode_file.h"
#include "tools/encode_file.h"
#include "tools/input.h"
#include "tools/kinds.h"
#include "tools/pipeline.h"
#include "tools/util.h"
#include "tools/files.h"
#include "tools/report.h"

static bool put(struct file_writer *writer, const void *data, size_t size)
{
    writer->offset += size;
    return output_write(writer->output, data, size);
}

static bool put_tables(struct file_writer *writer, const struct strait_codebook *codebook)
{
    for (uint32_t t = 0; t < writer->header.table_count; t++)
        if (!put(writer, strait_codebook_ranking(codebook, t), CONTAINER_TABLE_BYTES))
            return false;
    return true;
}

static bool put_head(struct file_writer *writer, const void *preamble, const struct strait_codebook *codebook)
{
    static const uint8_t zeroes[16];
    const struct container_header *header = &writer->header;
    uint8_t bytes[CONTAINER_HEADER_BYTES];
    uint64_t padding = container_tables_offset(header) - CONTAINER_HEADER_BYTES - header->preamble_bytes;

    container_write_header(bytes, header);
    return put(writer, bytes, sizeof(bytes)) && put(writer, preamble, header->preamble_bytes) &&
           put(writer, zeroes, padding) && put_tables(writer, codebook);
}

bool file_writer_init(struct file_writer *writer, struct output *output, const void *preamble, uint64_t preamble_bytes,
                      const struct strait_codebook *codebook)
{
    *writer = (struct file_writer){.output = output, .header.preamble_bytes = preamble_bytes};
    if (codebook != NULL) {
        writer->header.table_count = strait_codebook_count(codebook);
        memcpy(writer->header.codebook_id, strait_codebook_id(codebook), STRAIT_CODEBOOK_ID_BYTES);
    }
    if (!digest_init(&writer->digest)) {
        print_error(NULL, "out of memory");
        return false;
    }
    digest_add(&writer->digest, preamble, preamble_bytes);
    return put_head(writer, preamble, codebook);
}

void file_writer_fini(struct file_writer *writer)
{
    digest_fini(&writer->digest);
    chunk_list_fini(&writer->chunks);
}

/* ---- Chunks and footer ----------------------------------------------------------------------------------------- */

bool file_writer_chunk(struct file_writer *writer, const void *chunk, uint32_t chunk_bytes, uint32_t page_count,
                       uint64_t raw_bytes)
{
    uint64_t raw_end = writer->digest.bytes - writer->header.preamble_bytes;

    return chunk_list_add(&writer->chunks, (struct container_chunk){.file_offset = writer->offset,
                                                                    .raw_offset = raw_end - raw_bytes,
                                                                    .chunk_bytes = chunk_bytes,
                                                                    .page_count = page_count}) &&
           put(writer, chunk, chunk_bytes);
}

bool file_writer_finish(struct file_writer *writer)
{
    struct container_tail tail = {.footer_offset = writer->offset, .original_bytes = writer->digest.bytes};
    uint64_t size = container_footer_bytes(writer->chunks.count);
    uint8_t *footer = malloc(size);
    bool ok = footer != NULL;

    if (!ok) {
        print_error(NULL, "out of memory");
    } else {
        digest_hash(&writer->digest, tail.hash);
        container_write_footer(footer, writer->chunks.list, writer->chunks.count, &tail);
        ok = put(writer, footer, size);
    }
    free(footer);
    return ok;
}

#define APART_BYTES (64u * 1024) /* where chunks choose: a tensor of so many bytes chooses for itself */

/* ---- The pipeline ---------------------------------------------------------------------------------------------- */

struct encode_job {
    const struct encode_task *task;
    struct cutter cutter; /* used by the taking thread */
    bool input_ended;     /* a pipe ended before its plan did */
    bool take_failed;
    struct file_writer writer; /* used by the giving thread, like everything below */
    struct totals totals;
    uint64_t chosen_bytes, base_bytes, table_bytes, kept_bytes;
    bool give_failed;
};

/* A chunk in the pipeline; the next one reuses its memory. */
struct encode_slot {
    struct cut cut;
    struct buffer raw;     /* the runs, each at a multiple of PLAN_PAGE_MULTIPLE */
    struct buffer regions; /* struct strait_region, one per page */
    struct buffer chunk;
    struct buffer other; /* the chunk in mode base */
    struct buffer scratch;
    struct buffer stats; /* struct strait_class_stats, one per table */
    struct buffer infos; /* struct strait_page_info, one per page */
    struct strait_result result;
    enum strait_status status; /* of everything but I/O */
    bool is_base;              /* the chunk has chosen base */
    uint64_t table_bytes;      /* of the chunk with tables */
    uint64_t kept_bytes;       /* of the smaller one of that and base */
    bool io_failed;            /* reported where it happened */
};

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + PLAN_PAGE_MULTIPLE - 1) / PLAN_PAGE_MULTIPLE * PLAN_PAGE_MULTIPLE;
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

static bool reserve_raw(struct encode_slot *slot)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < slot->cut.run_count; i++)
        bytes += round_up(slot->cut.runs[i].bytes);
    return buffer_reserve(&slot->raw, 0, bytes);
}

/* If the input ends early, the chunk ends there. */
static bool read_pipe(struct encode_job *job, struct encode_slot *slot)
{
    uint8_t *dst = slot->raw.data;

    for (uint32_t i = 0; i < slot->cut.run_count; i++) {
        struct run *run = &slot->cut.runs[i];
        size_t got;

        if (!source_read(job->task->source, dst, run->bytes, &got))
            return false;
        if (got < run->bytes) {
            job->input_ended = true;
            run->bytes = got;
            slot->cut.run_count = i + (got > 0);
        }
        dst += round_up(got);
    }
    return true;
}

static bool read_file(const struct encode_task *task, struct encode_slot *slot)
{
    uint8_t *dst = slot->raw.data;

    for (uint32_t i = 0; i < slot->cut.run_count; i++) {
        const struct run *run = &slot->cut.runs[i];
        if (!source_read_at(task->source, task->plan->preamble_bytes + run->offset, dst, run->bytes))
            return false;
        dst += round_up(run->bytes);
    }
    return true;
}

static bool take_fail(struct encode_job *job, const char *text)
{
    if (text != NULL)
        print_error(job->task->source->name, "%s", text);
    job->take_failed = true;
    return false;
}

/* Files are not read here but in the `work` step, in parallel. */
static bool encode_take(void *job_, void *slot_)
{
    struct encode_job *job = job_;
    struct encode_slot *slot = slot_;
    enum cut_result cut = job->input_ended ? CUT_END : cutter_next(&job->cutter, &slot->cut);

    if (cut == CUT_END)
        return false;
    if (cut == CUT_NO_MEMORY || !reserve_raw(slot))
        return take_fail(job, "out of memory");
    if (!job->task->source->seekable && !read_pipe(job, slot))
        return take_fail(job, NULL);
    return slot->cut.run_count > 0;
}

/* ---- Encoding -------------------------------------------------------------------------------------------------- */

/* Fills regions, from `region` on, with the pages of a run; returns the end. */
static struct strait_region *add_pages(struct strait_region *region, const struct run *run, uint8_t *base,
                                       uint64_t page_bytes)
{
    for (uint64_t at = 0; at < run->bytes; at += page_bytes) {
        uint64_t left = run->bytes - at;
        *region++ = (struct strait_region){
            .base = base + at,
            .page_count = 1,
            .rows = 1,
            .row_bytes = (uint32_t)(left < page_bytes ? left : page_bytes),
            .table = run->table,
        };
    }
    return region;
}

/* One region per page, so that pages of different lengths and tables share a chunk. */
static bool list_pages(struct encode_slot *slot, uint64_t page_bytes, struct strait_pages *pages)
{
    uint32_t count = cut_pages(&slot->cut, page_bytes);
    struct strait_region *region;
    uint8_t *base = slot->raw.data;

    if (!buffer_reserve(&slot->regions, 0, count * sizeof(*region)))
        return false;
    region = (struct strait_region *)slot->regions.data;
    *pages = (struct strait_pages){.regions = region, .region_count = count, .id_count = 1};
    for (uint32_t i = 0; i < slot->cut.run_count; i++) {
        region = add_pages(region, &slot->cut.runs[i], base, page_bytes);
        base += round_up(slot->cut.runs[i].bytes);
    }
    return true;
}

static uint32_t table_count(const struct encode_task *task)
{
    return task->codebook == NULL ? 0 : strait_codebook_count(task->codebook);
}

static bool measures(const struct encode_task *task, const struct encode_slot *slot)
{
    return task->spent != NULL && slot->cut.element == STRAIT_ELEMENT_BF16 && slot->cut.mode != STRAIT_MODE_TOP16 &&
           slot->cut.mode != STRAIT_MODE_RAW;
}

/* Looks what each page became, before the chunk may become another. */
static enum strait_status describe_pages(struct encode_slot *slot, uint32_t count)
{
    if (!buffer_reserve(&slot->infos, 0, count * sizeof(struct strait_page_info)))
        return STRAIT_ERR_NO_MEMORY;
    return strait_chunk_pages(slot->chunk.data, slot->result.bytes, count, (struct strait_page_info *)slot->infos.data);
}

static void add_spent(struct spent *spent, const struct encode_slot *slot, uint32_t count)
{
    const struct strait_page_info *info = (const struct strait_page_info *)slot->infos.data;

    for (uint32_t i = 0; i < count; i++, info++) {
        if ((info->block_modes & 1u << STRAIT_BLOCK_CONST) != 0)
            continue;
        spent[info->table].values += info->page_bytes / 2;
        spent[info->table].bytes += info->coded_bytes;
    }
}

/* Encodes the pages once more, in another mode, and keeps the smaller chunk. Sets *kept. */
static enum strait_status encode_again(const struct encode_task *task, struct encode_slot *slot, enum strait_mode mode,
                                       bool *kept)
{
    const bool by_tables = mode != STRAIT_MODE_BASE && task->codebook != NULL;
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = slot->cut.element,
                                                .mode = mode,
                                                .codebook = by_tables ? task->codebook : NULL};
    struct strait_pages pages;
    struct strait_result result;
    const struct strait_run run = {
        .size = sizeof(run), .scratch = slot->scratch.data, .scratch_size = slot->scratch.capacity, .result = &result};
    struct buffer chunk = slot->chunk;
    enum strait_status status;

    if (!list_pages(slot, task->page_bytes, &pages) || !buffer_reserve(&slot->other, 0, slot->chunk.capacity))
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t i = 0; !by_tables && i < pages.region_count; i++)
        ((struct strait_region *)slot->regions.data)[i].table = 0;
    status = strait_encode(task->codec, &params, slot->other.data, slot->other.capacity, &pages, &run);
    *kept = status == STRAIT_OK && result.status == STRAIT_OK && result.bytes < slot->result.bytes;
    if (!*kept)
        return status;
    slot->chunk = slot->other;
    slot->other = chunk;
    slot->result = result;
    memset(slot->stats.data, 0, slot->stats.capacity);
    return STRAIT_OK;
}

/* Gives a chunk the mode with which it is smallest: base, where it may choose that instead of tables, and parts. */
static enum strait_status choose_mode(const struct encode_task *task, struct encode_slot *slot)
{
    const bool tabled = slot->cut.mode == STRAIT_MODE_SPLIT, fp = element_bytes(slot->cut.element) > 1;
    enum strait_status status = STRAIT_OK;
    bool is_parts;

    if (task->chooses && tabled)
        status = encode_again(task, slot, STRAIT_MODE_BASE, &slot->is_base);
    slot->kept_bytes = slot->result.bytes;
    if (status == STRAIT_OK && task->tries_parts && fp && (tabled || slot->cut.mode == STRAIT_MODE_BASE))
        status = encode_again(task, slot, STRAIT_MODE_PARTS, &is_parts);
    return status;
}

static enum strait_status encode_chunk(const struct encode_task *task, struct encode_slot *slot)
{
    struct strait_encode_params params = {
        .size = sizeof(params),
        .element = slot->cut.element,
        .mode = slot->cut.mode,
        .codebook = task->codebook,
    };
    struct strait_run run = {
        .size = sizeof(run),
        .scratch_size = strait_scratch_size(task->codec),
        .result = &slot->result,
        .class_count = table_count(task),
    };
    struct strait_pages pages;
    enum strait_status status;

    if (!list_pages(slot, task->page_bytes, &pages) || !buffer_reserve(&slot->chunk, 0, strait_encode_bound(&pages)) ||
        !buffer_reserve(&slot->scratch, 0, run.scratch_size) ||
        !buffer_reserve_zeroes(&slot->stats, (run.class_count + 1) * sizeof(struct strait_class_stats)))
        return STRAIT_ERR_NO_MEMORY;
    run.scratch = slot->scratch.data;
    run.class_stats = (struct strait_class_stats *)slot->stats.data;
    status = strait_encode(task->codec, &params, slot->chunk.data, slot->chunk.capacity, &pages, &run);
    slot->is_base = false;
    slot->table_bytes = slot->result.bytes;
    if (status == STRAIT_OK && slot->result.status == STRAIT_OK && measures(task, slot))
        status = describe_pages(slot, pages.region_count);
    return status == STRAIT_OK && slot->result.status == STRAIT_OK ? choose_mode(task, slot) : status;
}

/* Runs whose class has no table, or does not tell what the values are like, get the table that fits them. */
static void fit_tables(const struct encode_task *task, struct encode_slot *slot)
{
    const uint8_t *values = slot->raw.data;

    if (!task->fits || (!element_uses_tables(slot->cut.element, slot->cut.mode) && slot->cut.mode != STRAIT_MODE_PARTS))
        return;
    for (uint32_t i = 0; i < slot->cut.run_count; i++) {
        struct run *run = &slot->cut.runs[i];
        uint64_t counts[256] = {0};
        if (run->fits) {
            strait_histogram_add_values(counts, slot->cut.element, values,
                                        run->bytes / element_bytes(slot->cut.element));
            run->table = kinds_find_table(task->codebook, counts);
        }
        values += round_up(run->bytes);
    }
}

static void encode_work(void *job_, void *slot_)
{
    const struct encode_job *job = job_;
    struct encode_slot *slot = slot_;

    slot->io_failed = job->task->source->seekable && !read_file(job->task, slot);
    if (slot->io_failed)
        return;
    fit_tables(job->task, slot);
    slot->status = encode_chunk(job->task, slot);
    if (slot->status == STRAIT_OK)
        slot->status = slot->result.status;
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

/* Adds the slot's bytes to the digest; returns their number. */
static uint64_t add_digest(struct file_writer *writer, const struct encode_slot *slot)
{
    const uint8_t *src = slot->raw.data;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < slot->cut.run_count; i++) {
        digest_add(&writer->digest, src, slot->cut.runs[i].bytes);
        src += round_up(slot->cut.runs[i].bytes);
        bytes += slot->cut.runs[i].bytes;
    }
    return bytes;
}

static bool give_chunk(struct encode_job *job, struct encode_slot *slot)
{
    const struct encode_task *task = job->task;
    uint32_t pages = cut_pages(&slot->cut, task->page_bytes);
    uint64_t raw_bytes;

    if (slot->io_failed)
        return false;
    if (slot->status != STRAIT_OK) {
        print_error(task->source->name, "cannot encode chunk %" PRIu64 ": %s", job->totals.chunks,
                    strait_status_string(slot->status));
        return false;
    }
    raw_bytes = add_digest(&job->writer, slot);
    if (!file_writer_chunk(&job->writer, slot->chunk.data, (uint32_t)slot->result.bytes, pages, raw_bytes))
        return false;
    if (measures(task, slot))
        add_spent(task->spent, slot, pages);
    totals_add(&job->totals, pages, &slot->result, (struct strait_class_stats *)slot->stats.data, table_count(task));
    job->totals.chunks++;
    job->base_bytes += slot->is_base ? raw_bytes : 0;
    if (task->chooses && slot->cut.mode == STRAIT_MODE_SPLIT) {
        job->chosen_bytes += raw_bytes;
        job->table_bytes += slot->table_bytes;
        job->kept_bytes += slot->kept_bytes;
    }
    progress_add(task->progress, raw_bytes);
    return true;
}

static bool encode_give(void *job_, void *slot)
{
    struct encode_job *job = job_;

    job->give_failed = !give_chunk(job, slot);
    return !job->give_failed;
}

/* ---- All of it ------------------------------------------------------------------------------------------------- */

static void slot_release(void *slot_)
{
    struct encode_slot *slot = slot_;

    cut_fini(&slot->cut);
    buffer_fini(&slot->raw);
    buffer_fini(&slot->regions);
    buffer_fini(&slot->chunk);
    buffer_fini(&slot->other);
    buffer_fini(&slot->scratch);
    buffer_fini(&slot->stats);
    buffer_fini(&slot->infos);
}

static bool encode_all(struct encode_job *job)
{
    static const struct ordered_steps steps = {encode_take, encode_work, encode_give, slot_release};

    return ordered_run(&steps, job, sizeof(struct encode_slot), job->task->threads) && !job->take_failed &&
           !job->give_failed && source_check_end(job->task->source) && file_writer_finish(&job->writer);
}

bool encode_file(const struct encode_task *task, struct encode_outcome *outcome)
{
    const struct plan *plan = task->plan;
    struct encode_job job = {
        .task = task,
        .cutter = {.plan = plan,
                   .page_bytes = task->page_bytes,
                   .chunk_bytes = task->chunk_bytes,
                   .apart_bytes = task->chooses ? APART_BYTES : 0},
    };
    bool ok =
        file_writer_init(&job.writer, task->output, task->source->head.data, plan->preamble_bytes, task->codebook);

    task->source->position = plan->preamble_bytes; /* the preamble was peeked at, so it is in the head */
    ok = ok && encode_all(&job);
    if (ok) {
        outcome->unplain_bytes = job.writer.digest.bytes;
        outcome->file_bytes = job.writer.offset;
        outcome->totals = job.totals;
        outcome->chosen_bytes = job.chosen_bytes;
        outcome->base_bytes = job.base_bytes;
        outcome->table_bytes = job.table_bytes;
        outcome->kept_bytes = job.kept_bytes;
        digest_hash(&job.writer.digest, outcome->hash);
    }
    file_writer_fini(&job.writer);
    return ok;
}
