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

/* A chunk to be; the next one in its place reuses its memory. */
struct coded {
    struct cut cut;
    uint8_t *raw; /* the runs, each at a multiple of PLAN_PAGE_MULTIPLE */
    uint64_t raw_bytes;
    struct buffer regions; /* struct strait_region, one per page */
    struct buffer chunk;
    struct buffer other; /* the chunk in another mode */
    struct buffer stats; /* struct strait_class_stats, one per table */
    struct buffer infos; /* struct strait_page_info, one per page */
    struct strait_result result;
    bool is_base;         /* the chunk has chosen base */
    bool borrows;         /* `chunk` and `other` are the slot's large ones */
    uint64_t table_bytes; /* of the chunk with tables */
    uint64_t kept_bytes;  /* of the smaller one of that and base */
    bool joins;           /* it costs less as bytes, in one chunk with those around it that do so, too */
};

/* What a thread works on: a chunk, or several where the first ones are small, so that they can be joined. */
#define SMALL_BYTES   (32u * 1024) /* a chunk of fewer bytes is followed by others, and may be joined */
#define CLUSTER_BYTES (128u * 1024)
#define CLUSTER_MAX   64u
struct encode_slot {
    struct coded list[CLUSTER_MAX];
    uint32_t count;
    struct buffer large[2]; /* `chunk` and `other` of the one that is not small, wherever it stands in the list */
    struct buffer raw;
    struct buffer scratch;
    enum strait_status status; /* of everything but I/O */
    bool io_failed;            /* reported where it happened */
};

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + PLAN_PAGE_MULTIPLE - 1) / PLAN_PAGE_MULTIPLE * PLAN_PAGE_MULTIPLE;
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

static uint64_t padded_bytes(const struct cut *cut)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < cut->run_count; i++)
        bytes += round_up(cut->runs[i].bytes);
    return bytes;
}

/* Gives each cut its place in the buffer. */
static bool reserve_raw(struct encode_slot *slot)
{
    uint64_t bytes = 0;
    uint8_t *raw;

    for (uint32_t c = 0; c < slot->count; c++)
        bytes += padded_bytes(&slot->list[c].cut);
    if (!buffer_reserve(&slot->raw, 0, bytes))
        return false;
    raw = slot->raw.data;
    for (uint32_t c = 0; c < slot->count; raw += padded_bytes(&slot->list[c++].cut))
        slot->list[c].raw = raw;
    return true;
}

/* If the input ends early, the chunk ends there. */
static bool read_pipe(struct encode_job *job, struct coded *coded)
{
    uint8_t *dst = coded->raw;

    for (uint32_t i = 0; i < coded->cut.run_count; i++) {
        struct run *run = &coded->cut.runs[i];
        size_t got;

        if (!source_read(job->task->source, dst, run->bytes, &got))
            return false;
        if (got < run->bytes) {
            job->input_ended = true;
            run->bytes = got;
            coded->cut.run_count = i + (got > 0);
        }
        dst += round_up(got);
    }
    return true;
}

static bool read_pipes(struct encode_job *job, struct encode_slot *slot)
{
    uint32_t count = 0;

    for (uint32_t c = 0; c < slot->count && !job->input_ended; c++) {
        if (!read_pipe(job, &slot->list[c]))
            return false;
        count += slot->list[c].cut.run_count > 0;
    }
    slot->count = count;
    return true;
}

static bool read_file(const struct encode_task *task, struct coded *coded)
{
    uint8_t *dst = coded->raw;

    for (uint32_t i = 0; i < coded->cut.run_count; i++) {
        const struct run *run = &coded->cut.runs[i];
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

static uint64_t cut_bytes(const struct cut *cut)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < cut->run_count; i++)
        bytes += cut->runs[i].bytes;
    return bytes;
}

/* Cuts a chunk, and those behind it that it may be joined with. Where chunks are to be small, none are joined. */
static enum cut_result cut_cluster(struct encode_job *job, struct encode_slot *slot)
{
    const bool joins = job->task->chunk_bytes >= CLUSTER_BYTES + SMALL_BYTES;
    enum cut_result cut = CUT_OK;
    uint64_t bytes = 0, last = 0;

    slot->count = 0;
    while (slot->count == 0 || (joins && last < SMALL_BYTES && bytes < CLUSTER_BYTES && slot->count < CLUSTER_MAX)) {
        cut = cutter_next(&job->cutter, &slot->list[slot->count].cut);
        if (cut != CUT_OK)
            break;
        last = cut_bytes(&slot->list[slot->count++].cut);
        bytes += last;
    }
    return cut == CUT_END && slot->count > 0 ? CUT_OK : cut;
}

/* Files are not read here but in the `work` step, in parallel. */
static bool encode_take(void *job_, void *slot_)
{
    struct encode_job *job = job_;
    struct encode_slot *slot = slot_;
    enum cut_result cut = job->input_ended ? CUT_END : cut_cluster(job, slot);

    if (cut == CUT_END)
        return false;
    if (cut == CUT_NO_MEMORY || !reserve_raw(slot))
        return take_fail(job, "out of memory");
    if (!job->task->source->seekable && !read_pipes(job, slot))
        return take_fail(job, NULL);
    return slot->count > 0;
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
static bool list_pages(struct coded *coded, uint64_t page_bytes, struct strait_pages *pages)
{
    uint32_t count = cut_pages(&coded->cut, page_bytes);
    struct strait_region *region;
    uint8_t *base = coded->raw;

    if (!buffer_reserve(&coded->regions, 0, count * sizeof(*region)))
        return false;
    region = (struct strait_region *)coded->regions.data;
    *pages = (struct strait_pages){.regions = region, .region_count = count, .id_count = 1};
    for (uint32_t i = 0; i < coded->cut.run_count; i++) {
        region = add_pages(region, &coded->cut.runs[i], base, page_bytes);
        base += round_up(coded->cut.runs[i].bytes);
    }
    return true;
}

static uint32_t table_count(const struct encode_task *task)
{
    return task->codebook == NULL ? 0 : strait_codebook_count(task->codebook);
}

static bool measures(const struct encode_task *task, const struct coded *coded)
{
    return task->spent != NULL && coded->cut.element == STRAIT_ELEMENT_BF16 && coded->cut.mode != STRAIT_MODE_TOP16 &&
           coded->cut.mode != STRAIT_MODE_RAW;
}

/* Looks what each page became, before the chunk may become another. */
static enum strait_status describe_pages(struct coded *coded, uint32_t count)
{
    if (!buffer_reserve(&coded->infos, 0, count * sizeof(struct strait_page_info)))
        return STRAIT_ERR_NO_MEMORY;
    return strait_chunk_pages(coded->chunk.data, coded->result.bytes, count,
                              (struct strait_page_info *)coded->infos.data);
}

static void add_spent(struct spent *spent, const struct coded *coded, uint32_t count)
{
    const struct strait_page_info *info = (const struct strait_page_info *)coded->infos.data;

    for (uint32_t i = 0; i < count; i++, info++) {
        if ((info->block_modes & 1u << STRAIT_BLOCK_CONST) != 0)
            continue;
        spent[info->table].values += info->page_bytes / 2;
        spent[info->table].bytes += info->coded_bytes;
    }
}

/* Encodes the pages once more, in another mode, and keeps the smaller chunk. Sets *kept. */
static enum strait_status encode_again(const struct encode_task *task, struct coded *coded,
                                       const struct buffer *scratch, enum strait_mode mode, bool *kept)
{
    const bool by_tables = mode != STRAIT_MODE_BASE && task->codebook != NULL;
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = coded->cut.element,
                                                .mode = mode,
                                                .codebook = by_tables ? task->codebook : NULL};
    struct strait_pages pages;
    struct strait_result result;
    const struct strait_run run = {
        .size = sizeof(run), .scratch = scratch->data, .scratch_size = scratch->capacity, .result = &result};
    struct buffer chunk = coded->chunk;
    enum strait_status status;

    if (!list_pages(coded, task->page_bytes, &pages) || !buffer_reserve(&coded->other, 0, coded->chunk.capacity))
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t i = 0; !by_tables && i < pages.region_count; i++)
        ((struct strait_region *)coded->regions.data)[i].table = 0;
    status = strait_encode(task->codec, &params, coded->other.data, coded->other.capacity, &pages, &run);
    *kept = status == STRAIT_OK && result.status == STRAIT_OK && result.bytes < coded->result.bytes;
    if (!*kept)
        return status;
    coded->chunk = coded->other;
    coded->other = chunk;
    coded->result = result;
    memset(coded->stats.data, 0, coded->stats.capacity);
    return STRAIT_OK;
}

/* Gives a chunk the mode with which it is smallest: base, where it may choose that instead of tables, and parts. */
static enum strait_status choose_mode(const struct encode_task *task, struct coded *coded, const struct buffer *scratch)
{
    const bool tabled = coded->cut.mode == STRAIT_MODE_SPLIT, fp = element_bytes(coded->cut.element) > 1;
    enum strait_status status = STRAIT_OK;
    bool is_parts;

    if (task->chooses && tabled)
        status = encode_again(task, coded, scratch, STRAIT_MODE_BASE, &coded->is_base);
    coded->kept_bytes = coded->result.bytes;
    if (status == STRAIT_OK && task->tries_parts && fp && (tabled || coded->cut.mode == STRAIT_MODE_BASE))
        status = encode_again(task, coded, scratch, STRAIT_MODE_PARTS, &is_parts);
    return status;
}

static enum strait_status encode_chunk(const struct encode_task *task, struct coded *coded, struct buffer *scratch)
{
    struct strait_encode_params params = {
        .size = sizeof(params),
        .element = coded->cut.element,
        .mode = coded->cut.mode,
        .codebook = task->codebook,
    };
    struct strait_run run = {
        .size = sizeof(run),
        .scratch_size = strait_scratch_size(task->codec),
        .result = &coded->result,
        .class_count = table_count(task),
    };
    struct strait_pages pages;
    enum strait_status status;

    if (!list_pages(coded, task->page_bytes, &pages) ||
        !buffer_reserve(&coded->chunk, 0, strait_encode_bound(&pages)) ||
        !buffer_reserve(scratch, 0, run.scratch_size) ||
        !buffer_reserve_zeroes(&coded->stats, (run.class_count + 1) * sizeof(struct strait_class_stats)))
        return STRAIT_ERR_NO_MEMORY;
    run.scratch = scratch->data;
    run.class_stats = (struct strait_class_stats *)coded->stats.data;
    status = strait_encode(task->codec, &params, coded->chunk.data, coded->chunk.capacity, &pages, &run);
    coded->is_base = false;
    coded->table_bytes = coded->result.bytes;
    if (status == STRAIT_OK && coded->result.status == STRAIT_OK && measures(task, coded))
        status = describe_pages(coded, pages.region_count);
    return status == STRAIT_OK && coded->result.status == STRAIT_OK ? choose_mode(task, coded, scratch) : status;
}

/* Runs whose class has no table, or does not tell what the values are like, get the table that fits them. */
static void fit_tables(const struct encode_task *task, struct coded *coded)
{
    const uint8_t *values = coded->raw;

    if (!task->fits ||
        (!element_uses_tables(coded->cut.element, coded->cut.mode) && coded->cut.mode != STRAIT_MODE_PARTS))
        return;
    for (uint32_t i = 0; i < coded->cut.run_count; i++) {
        struct run *run = &coded->cut.runs[i];
        uint64_t counts[256] = {0};
        if (run->fits) {
            strait_histogram_add_values(counts, coded->cut.element, values,
                                        run->bytes / element_bytes(coded->cut.element));
            run->table = kinds_find_table(task->codebook, counts);
        }
        values += round_up(run->bytes);
    }
}

/* ---- Joining ---- */

/* What bytes cost at most in a chunk with others, and what they and the index cost that chunk. */
#define JOINED_PAGE_BYTES  40u /* entry, padding and rows of a page */
#define JOINED_CHUNK_BYTES (STRAIT_CHUNK_HEADER_BYTES + CONTAINER_ENTRY_BYTES + 2 * JOINED_PAGE_BYTES)

/* Decides which chunks to join: those for which all of them take the least bytes. */
static void decide_joins(const struct encode_task *task, struct encode_slot *slot)
{
    bool from[CLUSTER_MAX][2]; /* whether the one before is joined, if this one is not or is */
    uint64_t apart = 0, joined = UINT64_MAX / 2;
    bool joins;

    for (uint32_t c = 0; c < slot->count; c++) {
        const struct coded *coded = &slot->list[c];
        const uint64_t begins = apart + JOINED_CHUNK_BYTES, least = apart <= joined ? apart : joined;
        const uint64_t bytes = coded->raw_bytes + coded->raw_bytes * JOINED_PAGE_BYTES / task->page_bytes;
        from[c][0] = apart > joined;
        from[c][1] = joined < begins;
        joined = (coded->raw_bytes < SMALL_BYTES ? from[c][1] ? joined : begins : UINT64_MAX / 2) + bytes;
        apart = least + coded->result.bytes + CONTAINER_ENTRY_BYTES;
    }
    joins = joined < apart;
    for (uint32_t c = slot->count; c-- > 0; joins = from[c][joins])
        slot->list[c].joins = joins;
}

/* Makes one chunk of bytes of `count` chunks, in the place of the first, and moves their runs together. */
static enum strait_status join(const struct encode_task *task, struct coded *first, uint32_t count,
                               struct buffer *scratch)
{
    uint8_t *dst = first->raw;
    const enum strait_mode mode = task->plan->mode;
    enum strait_status status;

    for (uint32_t c = 0; c < count; c++) {
        const uint8_t *src = first[c].raw;
        for (uint32_t i = 0; i < first[c].cut.run_count; i++) {
            const uint64_t bytes = first[c].cut.runs[i].bytes;
            memmove(dst, src, bytes);
            dst += bytes;
            src += round_up(bytes);
        }
    }
    first->cut.element = STRAIT_ELEMENT_BYTES;
    first->cut.mode = mode == STRAIT_MODE_AUTO ? STRAIT_MODE_BASE : mode;
    first->cut.run_count = 1;
    first->cut.runs[0].bytes = (uint64_t)(dst - first->raw);
    first->cut.runs[0].table = 0;
    first->raw_bytes = first->cut.runs[0].bytes;
    memset(first->stats.data, 0, first->stats.capacity);
    status = encode_chunk(task, first, scratch);
    return status == STRAIT_OK ? first->result.status : status;
}

/* Lends the large buffers, or takes them back. */
static void swap_large(struct encode_slot *slot, struct coded *coded)
{
    const struct buffer chunk = coded->chunk, other = coded->other;

    coded->chunk = slot->large[0];
    coded->other = slot->large[1];
    slot->large[0] = chunk;
    slot->large[1] = other;
    coded->borrows = !coded->borrows;
}

/* Puts a chunk where another was, which keeps its memory. */
static void move(struct coded *to, struct coded *from)
{
    const struct coded other = *to;

    if (to == from)
        return;
    *to = *from;
    *from = other;
}

static enum strait_status join_chunks(const struct encode_task *task, struct encode_slot *slot)
{
    enum strait_status status = STRAIT_OK;
    uint32_t kept = 0;

    decide_joins(task, slot);
    for (uint32_t c = 0, next; c < slot->count && status == STRAIT_OK; c = next) {
        for (next = c + 1; slot->list[c].joins && next < slot->count && slot->list[next].joins;)
            next++;
        if (next > c + 1)
            status = join(task, &slot->list[c], next - c, &slot->scratch);
        move(&slot->list[kept++], &slot->list[c]);
    }
    slot->count = status == STRAIT_OK ? kept : slot->count;
    return status;
}

static void encode_work(void *job_, void *slot_)
{
    const struct encode_job *job = job_;
    struct encode_slot *slot = slot_;
    enum strait_status status = STRAIT_OK;

    slot->io_failed = false;
    for (uint32_t c = 0; c < slot->count && status == STRAIT_OK; c++) {
        struct coded *coded = &slot->list[c];
        slot->io_failed = job->task->source->seekable && !read_file(job->task, coded);
        if (slot->io_failed)
            return;
        coded->raw_bytes = cut_bytes(&coded->cut);
        if (coded->raw_bytes >= SMALL_BYTES)
            swap_large(slot, coded);
        fit_tables(job->task, coded);
        status = encode_chunk(job->task, coded, &slot->scratch);
        if (status == STRAIT_OK)
            status = coded->result.status;
    }
    if (status == STRAIT_OK && slot->count > 1)
        status = join_chunks(job->task, slot);
    slot->status = status;
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

static void add_digest(struct file_writer *writer, const struct coded *coded)
{
    const uint8_t *src = coded->raw;

    for (uint32_t i = 0; i < coded->cut.run_count; i++) {
        digest_add(&writer->digest, src, coded->cut.runs[i].bytes);
        src += round_up(coded->cut.runs[i].bytes);
    }
}

static bool give_chunk(struct encode_job *job, struct coded *coded)
{
    const struct encode_task *task = job->task;
    uint32_t pages = cut_pages(&coded->cut, task->page_bytes);

    add_digest(&job->writer, coded);
    if (!file_writer_chunk(&job->writer, coded->chunk.data, (uint32_t)coded->result.bytes, pages, coded->raw_bytes))
        return false;
    if (measures(task, coded))
        add_spent(task->spent, coded, pages);
    totals_add(&job->totals, coded->chunk.data, coded->result.bytes, pages,
               (struct strait_class_stats *)coded->stats.data, table_count(task));
    job->base_bytes += coded->is_base ? coded->raw_bytes : 0;
    if (task->chooses && coded->cut.mode == STRAIT_MODE_SPLIT) {
        job->chosen_bytes += coded->raw_bytes;
        job->table_bytes += coded->table_bytes;
        job->kept_bytes += coded->kept_bytes;
    }
    progress_add(task->progress, coded->raw_bytes);
    return true;
}

static bool give_slot(struct encode_job *job, struct encode_slot *slot)
{
    bool given = !slot->io_failed;

    if (given && slot->status != STRAIT_OK) {
        print_error(job->task->source->name, "cannot encode chunk %" PRIu64 ": %s", job->totals.chunks,
                    strait_status_string(slot->status));
        given = false;
    }
    for (uint32_t c = 0; given && c < slot->count; c++)
        given = give_chunk(job, &slot->list[c]);
    for (uint32_t c = 0; c < CLUSTER_MAX; c++)
        if (slot->list[c].borrows)
            swap_large(slot, &slot->list[c]);
    return given;
}

static bool encode_give(void *job_, void *slot)
{
    struct encode_job *job = job_;

    job->give_failed = !give_slot(job, slot);
    return !job->give_failed;
}

/* ---- All of it ------------------------------------------------------------------------------------------------- */

static void slot_release(void *slot_)
{
    struct encode_slot *slot = slot_;

    for (uint32_t c = 0; c < CLUSTER_MAX; c++) {
        struct coded *coded = &slot->list[c];
        cut_fini(&coded->cut);
        buffer_fini(&coded->regions);
        buffer_fini(&coded->chunk);
        buffer_fini(&coded->other);
        buffer_fini(&coded->stats);
        buffer_fini(&coded->infos);
    }
    buffer_fini(&slot->large[0]);
    buffer_fini(&slot->large[1]);
    buffer_fini(&slot->raw);
    buffer_fini(&slot->scratch);
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
