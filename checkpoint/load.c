/* Loads: boxes become requests, these pieces of shards, and these pages of chunks, which threads read, decode and
 * deliver. What fails is requested again, of other replicas, until none is left. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/chunk_reader.h"
#include "checkpoint/crew.h"
#include "checkpoint/faults.h"
#include "checkpoint/load_plan.h"

#define NO_FAULT UINT32_MAX

/* Values first..end-1 of a piece's shard that were not delivered. */
struct failed {
    uint64_t first, end;
    uint32_t piece;
    uint32_t fault;
};

/* Needs of one chunk and kind of memory. */
struct job {
    size_t first;
    uint32_t count;
};

struct load {
    struct strait_checkpoint_reader *reader;
    struct strait_checkpoint_box *boxes;
    uint32_t count;
    const struct strait_checkpoint_load_options *options;
    uint32_t threads;
    struct box_memory *memories; /* of the boxes */
    uint32_t *box_faults;        /* the fault that each failed for, or NO_FAULT */
    uint32_t *file_faults;       /* of files whose footers are bad, or NO_FAULT */
    struct arena arena;          /* of requests */
    struct request *requests;    /* of this round */
    size_t request_count, request_room;

    /* Of one round. */
    struct load_plan plan;
    struct open_files files;
    struct job *jobs;
    size_t job_count, job_room;
    uint32_t *footers; /* files whose footers are needed */
    size_t footer_count, footer_room;

    /* What threads add to. */
    pthread_mutex_t lock;
    struct faults faults;
    struct failed *failed;
    size_t failed_count, failed_room;
    uint64_t done_bytes, all_bytes;
    bool no_memory;
};

static const uint64_t zeroes[STRAIT_CHECKPOINT_DIMS_MAX];

/* ---- Boxes ------------------------------------------------------------------------------------------------------- */

/* Whether the last byte of a box lies less than 2^63 bytes behind the first. */
static bool strides_fit(const struct box_memory *memory)
{
    uint64_t reach = memory->value_bytes, step;
    for (uint32_t d = 0; d < memory->box.dims; d++)
        if (__builtin_mul_overflow(memory->box.sizes[d] - 1, memory->strides[d], &step) ||
            __builtin_add_overflow(reach, step, &reach) || reach > INT64_MAX)
            return false;
    return memory->box.dims == 0 || memory->strides[memory->box.dims - 1] % memory->value_bytes == 0;
}

/* Takes a box of the caller; *why is a static text. */
static enum strait_status take_box(const struct strait_checkpoint_reader *reader,
                                   const struct strait_checkpoint_box *box, struct box_memory *memory, const char **why)
{
    *why = "there is no such tensor";
    if (box->tensor >= reader->index.tensor_count)
        return STRAIT_ERR_INVALID;
    const struct checkpoint_shard *shard = &reader->index.shards[reader_shards(reader, box->tensor)[0]];
    *memory = (struct box_memory){.box = {.offsets = box->offsets != NULL ? box->offsets : zeroes,
                                          .sizes = box->sizes != NULL ? box->sizes : shard->shape,
                                          .dims = shard->dims},
                                  .data = box->data,
                                  .strides = box->strides,
                                  .value_bytes = shard->dtype->bytes};
    *why = "the box lies outside the tensor";
    for (uint32_t d = 0; d < shard->dims; d++)
        if (memory->box.offsets[d] > shard->shape[d] || memory->box.sizes[d] > shard->shape[d] - memory->box.offsets[d])
            return STRAIT_ERR_INVALID;
    if (target_find(box->memory, why) == NULL)
        return STRAIT_ERR_UNSUPPORTED;
    if (checkpoint_box_values(&memory->box) == 0)
        return STRAIT_OK;
    *why = "the box has no memory";
    if (box->data == NULL)
        return STRAIT_ERR_INVALID;
    *why = "the box's strides are too large, or the last one is no multiple of a value";
    return box->strides == NULL || strides_fit(memory) ? STRAIT_OK : STRAIT_ERR_INVALID;
}

static bool add_request(struct load *load, const struct request *request)
{
    if (!list_grow((void **)&load->requests, load->request_count, &load->request_room, sizeof(*request)) ||
        load->request_count == UINT32_MAX)
        return false;
    load->requests[load->request_count++] = *request;
    return true;
}

static const char *name_of(const struct strait_checkpoint_reader *reader, uint32_t tensor)
{
    return reader->index.shards[reader_shards(reader, tensor)[0]].name;
}

static enum strait_status refuse_box(const struct load *load, uint32_t number, enum strait_status status,
                                     const char *why, char *text, size_t text_size)
{
    const uint32_t tensor = load->boxes[number].tensor;
    const bool named = tensor < load->reader->index.tensor_count;
    return checkpoint_fail(text, text_size, status, "%s: box %" PRIu32 "%s%s: %s", load->reader->path, number,
                           named ? " of " : "", named ? name_of(load->reader, tensor) : "", why);
}

static enum strait_status take_boxes(struct load *load, char *text, size_t text_size)
{
    for (uint32_t b = 0; b < load->count; b++) {
        struct box_memory *memory = &load->memories[b];
        const char *why;
        const enum strait_status status = take_box(load->reader, &load->boxes[b], memory, &why);
        load->boxes[b].status = status;
        if (status != STRAIT_OK)
            return refuse_box(load, b, status, why, text, text_size);
        load->box_faults[b] = NO_FAULT;
        const struct request request = {.at = memory->box.offsets, .size = memory->box.sizes, .box = b};
        const uint64_t values = checkpoint_box_values(&memory->box);
        load->all_bytes += values * memory->value_bytes;
        if (values > 0 && !add_request(load, &request))
            return checkpoint_fail(text, text_size, STRAIT_ERR_NO_MEMORY, "no memory");
    }
    return STRAIT_OK;
}

/* ---- What fails -------------------------------------------------------------------------------------------------- */

/* No shard is left for a request. */
static void give_up(struct load *load, const struct request *request, enum strait_status status)
{
    struct strait_checkpoint_box *box = &load->boxes[request->box];
    if (request->tried != NULL && request->tried->fault != NO_FAULT)
        status = load->faults.list[request->tried->fault].status;
    if (box->status == STRAIT_OK) {
        box->status = status;
        load->box_faults[request->box] = request->tried != NULL ? request->tried->fault : NO_FAULT;
    }
    for (const struct tried *tried = request->tried; tried != NULL; tried = tried->before)
        if (tried->fault != NO_FAULT)
            load->faults.list[tried->fault].lost = true;
}

static void add_failed(struct load *load, const struct failed *failed)
{
    if (list_grow((void **)&load->failed, load->failed_count, &load->failed_room, sizeof(*failed)))
        load->failed[load->failed_count++] = *failed;
    else
        load->no_memory = true;
}

/* What of a piece is requested again. */
struct again {
    struct load *load;
    const struct piece *piece;
    struct request request;
};

static bool request_again(void *context, const struct checkpoint_box *box)
{
    struct again *again = context;
    const struct checkpoint_box piece = {.offsets = again->piece->at, .sizes = again->piece->size, .dims = box->dims};
    uint64_t *kept = arena_take(&again->load->arena, (2 * box->dims + 1) * sizeof(*kept));
    if (kept == NULL)
        return false;
    again->request.at = kept;
    again->request.size = kept + box->dims;
    return !checkpoint_box_intersect(box, &piece, kept, kept + box->dims) || add_request(again->load, &again->request);
}

/* Makes requests of all that failed in this round, in place of the requests before. */
static bool request_failed(struct load *load)
{
    struct request *before = load->requests;
    bool made = true;
    load->requests = NULL;
    load->request_count = load->request_room = 0;
    for (size_t f = 0; f < load->failed_count && made; f++) {
        const struct failed *failed = &load->failed[f];
        const struct piece *piece = &load->plan.pieces[failed->piece];
        const struct checkpoint_box shard = load_plan_shard_box(&load->reader->index.shards[piece->shard]);
        struct tried *tried = arena_take(&load->arena, sizeof(*tried));
        struct again again = {.load = load, .piece = piece, .request = before[piece->request]};
        if (tried == NULL) {
            made = false;
            break;
        }
        *tried = (struct tried){.before = again.request.tried, .shard = piece->shard, .fault = failed->fault};
        again.request.tried = tried;
        again.request.tries++;
        made = checkpoint_box_range(&shard, failed->first, failed->end, request_again, &again);
    }
    load->failed_count = 0;
    free(before);
    return made;
}

/* ---- Jobs -------------------------------------------------------------------------------------------------------- */

/* What a thread has: a target of each kind of memory, made when it is first needed. */
struct worker {
    struct {
        const struct target *target;
        void *state;
    } targets[2];
    struct chunk_reader chunk;
    struct delivery *deliveries;
    size_t delivery_count, delivery_room;
    struct page_run *runs;
    size_t run_count, run_room;
};

static void *open_worker(void *context)
{
    (void)context;
    return calloc(1, sizeof(struct worker));
}

static void close_worker(void *context, void *state)
{
    struct worker *worker = state;
    (void)context;
    for (size_t i = 0; i < sizeof(worker->targets) / sizeof(worker->targets[0]); i++)
        if (worker->targets[i].state != NULL)
            worker->targets[i].target->close(worker->targets[i].state);
    chunk_reader_fini(&worker->chunk);
    free(worker->deliveries);
    free(worker->runs);
    free(worker);
}

/* Lists the pages that a need has values in. False: no memory. */
static bool list_deliveries(const struct load *load, struct worker *worker, size_t number)
{
    const struct need *need = &load->plan.needs[number];
    const struct piece *piece = &load->plan.pieces[need->piece];
    const struct checkpoint_shard *shard = &load->reader->index.shards[piece->shard];
    const struct checkpoint_shard *source = reader_source(load->reader, shard);
    const struct checkpoint_box box = load_plan_shard_box(shard);
    const uint64_t base = load->reader->files[need->file].first_page[need->chunk];
    const uint64_t shard_base = reader_first_page(load->reader, source);
    struct delivery delivery = {.shard = shard,
                                .source = source,
                                .memory = &load->memories[load->requests[piece->request].box],
                                .part = {.offsets = piece->at, .sizes = piece->size, .dims = shard->dims},
                                .need = (uint32_t)number};
    struct walk walk;
    walk_init(&walk, &box, &delivery.part, delivery.memory);
    for (delivery.page = need->first; delivery.page <= need->last; delivery.page++) {
        load_plan_page(source, base + delivery.page - shard_base, &delivery.first, &delivery.end);
        if (!walk_touches(&walk, delivery.first, delivery.end))
            continue;
        if (!list_grow((void **)&worker->deliveries, worker->delivery_count, &worker->delivery_room, sizeof(delivery)))
            return false;
        worker->deliveries[worker->delivery_count++] = delivery;
    }
    return true;
}

static int compare_deliveries(const void *a, const void *b)
{
    const struct delivery *x = a, *y = b;
    if (x->page != y->page)
        return x->page < y->page ? -1 : 1;
    return x->need < y->need ? -1 : x->need > y->need;
}

/* The runs of pages that deliveries, sorted by page, are of. */
static bool list_runs(struct worker *worker)
{
    worker->run_count = 0;
    for (size_t d = 0; d < worker->delivery_count; d++) {
        const uint32_t page = worker->deliveries[d].page;
        struct page_run *last = worker->run_count > 0 ? &worker->runs[worker->run_count - 1] : NULL;
        if (last != NULL && page <= last->last + 1) {
            last->last = page;
            continue;
        }
        if (!list_grow((void **)&worker->runs, worker->run_count, &worker->run_room, sizeof(*worker->runs)))
            return false;
        worker->runs[worker->run_count++] = (struct page_run){page, page};
    }
    return true;
}

/* Reads and delivers; a status that is not OK is that of all deliveries. */
static enum strait_status deliver(struct load *load, struct worker *worker, const struct need *need, char *why)
{
    const struct checkpoint_chunk *chunk = &load->reader->files[need->file].chunks[need->chunk];
    const char *unused;
    const struct target *target = target_find(need->memory, &unused);
    void **state = &worker->targets[need->memory].state;
    enum strait_status status;
    int fd;
    if (!list_runs(worker))
        return STRAIT_ERR_NO_MEMORY;
    worker->targets[need->memory].target = target;
    if (*state == NULL && (*state = target->open()) == NULL)
        return STRAIT_ERR_NO_MEMORY;
    status = open_files_take(&load->files, need->file, &fd, why, FAULT_WHY_BYTES);
    if (status == STRAIT_OK)
        status = chunk_reader_read(&worker->chunk, fd, chunk, worker->runs, (uint32_t)worker->run_count, why,
                                   FAULT_WHY_BYTES);
    if (status != STRAIT_OK)
        return status;
    struct chunk_work work = {.chunk = worker->chunk.bytes,
                              .pages = worker->chunk.pages,
                              .info = worker->chunk.info,
                              .deliveries = worker->deliveries,
                              .count = (uint32_t)worker->delivery_count};
    target->deliver(*state, &work);
    return STRAIT_OK;
}

/* Adds a delivery that failed to the faults and to what is requested again; `last` is the fault of the one before. */
static void add_failure(struct load *load, const struct delivery *delivery, const struct need *need, const char *why,
                        uint32_t *last)
{
    const struct checkpoint_chunk *chunk = &load->reader->files[need->file].chunks[need->chunk];
    const uint32_t source = (uint32_t)(delivery->source - load->reader->index.shards);
    struct fault *fault = *last != NO_FAULT ? &load->faults.list[*last] : NULL;
    if (fault != NULL && fault->shard == source && fault->status == delivery->status && fault->end >= delivery->first) {
        fault->end = delivery->end > fault->end ? delivery->end : fault->end;
    } else {
        struct fault made = {.first = delivery->first,
                             .end = delivery->end,
                             .file_offset = chunk->offset,
                             .shard = source,
                             .file = need->file,
                             .status = delivery->status};
        snprintf(made.why, sizeof(made.why), "%s", why);
        *last = faults_add(&load->faults, &made);
        load->no_memory |= *last == NO_FAULT;
    }
    struct failed *before = load->failed_count > 0 ? &load->failed[load->failed_count - 1] : NULL;
    const struct failed failed = {delivery->first, delivery->end, need->piece, *last};
    if (before != NULL && before->piece == need->piece && before->fault == *last && before->end == delivery->first)
        before->end = delivery->end;
    else
        add_failed(load, &failed);
}

/* Bytes of the values that a delivery has written. */
static uint64_t delivered_bytes(const struct delivery *delivery)
{
    return (delivery->end - delivery->first) * delivery->memory->value_bytes;
}

static void finish(struct load *load, const struct worker *worker, enum strait_status status, const char *why)
{
    uint32_t last = NO_FAULT;
    uint64_t bytes = 0;
    pthread_mutex_lock(&load->lock);
    for (size_t d = 0; d < worker->delivery_count; d++) {
        struct delivery *delivery = &worker->deliveries[d];
        if (status != STRAIT_OK)
            delivery->status = status;
        load->no_memory |= delivery->status == STRAIT_ERR_NO_MEMORY;
        if (delivery->status != STRAIT_OK)
            add_failure(load, delivery, &load->plan.needs[delivery->need], status != STRAIT_OK ? why : "", &last);
        bytes += delivered_bytes(delivery);
    }
    if (load->options->progress != NULL && bytes > 0) {
        /* Pages that boxes have only a part of are counted whole, so this may be ahead. */
        const uint64_t left = load->all_bytes - load->done_bytes;
        load->done_bytes += bytes < left ? bytes : left;
        load->options->progress(load->options->context, load->done_bytes, load->all_bytes);
    }
    pthread_mutex_unlock(&load->lock);
}

static void run_job(void *context, void *state, uint64_t number)
{
    struct load *load = context;
    struct worker *worker = state;
    const struct job *job = &load->jobs[number];
    const struct need *need = &load->plan.needs[job->first];
    char why[FAULT_WHY_BYTES] = "";
    bool listed = true;
    worker->delivery_count = 0;
    for (size_t n = job->first; n < job->first + job->count && listed; n++)
        listed = list_deliveries(load, worker, n);
    if (worker->delivery_count > 0)
        qsort(worker->deliveries, worker->delivery_count, sizeof(*worker->deliveries), compare_deliveries);
    const enum strait_status status = listed ? deliver(load, worker, need, why) : STRAIT_ERR_NO_MEMORY;
    open_files_put(&load->files, need->file);
    finish(load, worker, status, why);
    if (!listed) {
        pthread_mutex_lock(&load->lock);
        load->no_memory = true;
        pthread_mutex_unlock(&load->lock);
    }
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

/* Reads the footer of a file. A bad one is a fault, for all pieces in it. */
static void read_footer(void *context, void *state, uint64_t job)
{
    struct load *load = context;
    const uint32_t number = load->footers[job];
    struct fault fault = {.shard = FAULT_NO_SHARD, .file = number};
    char why[READER_TEXT_BYTES];
    (void)state;
    fault.status = reader_know(load->reader, number, why);
    if (fault.status == STRAIT_OK)
        return;
    snprintf(fault.why, sizeof(fault.why), "%.*s", (int)sizeof(fault.why) - 1, why);
    pthread_mutex_lock(&load->lock);
    load->file_faults[number] = faults_add(&load->faults, &fault);
    load->no_memory |= fault.status == STRAIT_ERR_NO_MEMORY || load->file_faults[number] == NO_FAULT;
    pthread_mutex_unlock(&load->lock);
}

/* Reads the footers of all files that pieces are in. */
static bool read_footers(struct load *load)
{
    const struct crew_work work = {.run = read_footer, .context = load};
    uint8_t *wanted = calloc(load->reader->index.file_count + (size_t)1, 1);
    bool listed = wanted != NULL;
    load->footer_count = 0;
    for (size_t p = 0; listed && p < load->plan.piece_count; p++) {
        const uint32_t file = load->reader->index.shards[load->plan.pieces[p].shard].file;
        if (wanted[file] != 0 || load->file_faults[file] != NO_FAULT)
            continue;
        wanted[file] = 1;
        listed = list_grow((void **)&load->footers, load->footer_count, &load->footer_room, sizeof(*load->footers));
        if (listed)
            load->footers[load->footer_count++] = file;
    }
    free(wanted);
    return listed && crew_run(&work, load->footer_count, load->threads);
}

static enum strait_status list_needs(struct load *load)
{
    enum strait_status status = STRAIT_OK;
    for (uint32_t p = 0; p < load->plan.piece_count && status == STRAIT_OK; p++) {
        const struct piece *piece = &load->plan.pieces[p];
        const struct checkpoint_shard *shard = &load->reader->index.shards[piece->shard];
        const uint32_t box = load->requests[piece->request].box;
        const struct failed failed = {0, shard->bytes / shard->dtype->bytes, p, load->file_faults[shard->file]};
        if (failed.fault == NO_FAULT)
            status = load_plan_needs(&load->plan, p, &load->memories[box], load->boxes[box].memory);
        else
            add_failed(load, &failed);
    }
    return status;
}

static bool list_jobs(struct load *load)
{
    const struct need *needs = load->plan.needs;
    load->job_count = 0;
    for (size_t first = 0, end; first < load->plan.need_count; first = end) {
        for (end = first + 1; end < load->plan.need_count; end++)
            if (needs[end].file != needs[first].file || needs[end].chunk != needs[first].chunk ||
                needs[end].memory != needs[first].memory)
                break;
        if (!list_grow((void **)&load->jobs, load->job_count, &load->job_room, sizeof(*load->jobs)))
            return false;
        load->jobs[load->job_count++] = (struct job){first, (uint32_t)(end - first)};
        load->files.list[needs[first].file].jobs++;
    }
    return true;
}

static enum strait_status run_round(struct load *load)
{
    const struct crew_work work = {.open = open_worker, .close = close_worker, .run = run_job, .context = load};
    for (uint32_t r = 0; r < load->request_count; r++) {
        const struct request *request = &load->requests[r];
        enum strait_status status = request->tries < PLAN_TRIES_MAX ? STRAIT_OK : STRAIT_ERR_CORRUPT;
        if (status == STRAIT_OK)
            status = load_plan_request(&load->plan, load->boxes[request->box].tensor, load->requests, r);
        if (status == STRAIT_ERR_NO_MEMORY)
            return status;
        if (status != STRAIT_OK)
            give_up(load, request, status);
    }
    if (!read_footers(load) || load->no_memory)
        return STRAIT_ERR_NO_MEMORY;
    const enum strait_status status = list_needs(load);
    if (status != STRAIT_OK)
        return status;
    load_plan_sort(&load->plan);
    if (!list_jobs(load) || !crew_run(&work, load->job_count, load->threads))
        return STRAIT_ERR_NO_MEMORY;
    return load->no_memory || !request_failed(load) ? STRAIT_ERR_NO_MEMORY : STRAIT_OK;
}

static enum strait_status run_rounds(struct load *load)
{
    enum strait_status status = STRAIT_OK;
    const bool direct = (load->options->flags & STRAIT_CHECKPOINT_CACHED) == 0;
    while (status == STRAIT_OK && load->request_count > 0) {
        status = load_plan_init(&load->plan, load->reader, (uint64_t)getpid());
        if (status == STRAIT_OK && !open_files_init(&load->files, load->reader, direct))
            status = STRAIT_ERR_NO_MEMORY;
        if (status == STRAIT_OK)
            status = run_round(load);
        open_files_fini(&load->files);
        load_plan_fini(&load->plan);
    }
    return status;
}

/* ---- The call ---------------------------------------------------------------------------------------------------- */

/* The first box's error. */
static enum strait_status first_error(const struct load *load, char *text, size_t text_size)
{
    char why[READER_TEXT_BYTES];
    for (uint32_t b = 0; b < load->count; b++) {
        const enum strait_status status = (enum strait_status)load->boxes[b].status;
        if (status == STRAIT_OK)
            continue;
        const char *name = name_of(load->reader, load->boxes[b].tensor);
        if (load->box_faults[b] == NO_FAULT)
            return checkpoint_fail(text, text_size, status, "%s: %s: %s", load->reader->path, name,
                                   status == STRAIT_ERR_UNSUPPORTED ? "its shards overlap in too many ways"
                                                                    : strait_status_string(status));
        fault_text(load->reader, &load->faults.list[load->box_faults[b]], why, sizeof(why));
        return checkpoint_fail(text, text_size, status, "%s: %s: %s", load->reader->path, name, why);
    }
    return STRAIT_OK;
}

/* After a failure that is not of one box all others have it, too: what they hold is not known. */
static void fail_boxes(struct load *load, enum strait_status status)
{
    for (uint32_t b = 0; b < load->count; b++)
        if (load->boxes[b].status == STRAIT_OK)
            load->boxes[b].status = status;
}

static void load_fini(struct load *load)
{
    pthread_mutex_destroy(&load->lock);
    arena_free(&load->arena);
    free(load->memories);
    free(load->box_faults);
    free(load->file_faults);
    free(load->requests);
    free(load->jobs);
    free(load->footers);
    free(load->failed);
    free(load->faults.list);
}

enum strait_status strait_checkpoint_load(struct strait_checkpoint_reader *reader, struct strait_checkpoint_box *boxes,
                                          uint32_t count, const struct strait_checkpoint_load_options *options,
                                          char *text, size_t text_size)
{
    static const struct strait_checkpoint_load_options defaults = {.size = sizeof(defaults)};
    if (reader == NULL || (boxes == NULL && count > 0) || !reader_options_valid(options))
        return checkpoint_fail(text, text_size, STRAIT_ERR_INVALID, "reader, boxes or options: missing or unknown");
    struct load load = {.reader = reader,
                        .boxes = boxes,
                        .count = count,
                        .options = options != NULL ? options : &defaults,
                        .memories = calloc(count + (size_t)1, sizeof(*load.memories)),
                        .box_faults = calloc(count + (size_t)1, sizeof(*load.box_faults)),
                        .file_faults = malloc((reader->index.file_count + (size_t)1) * sizeof(*load.file_faults))};
    load.threads = crew_threads(load.options->threads);
    pthread_mutex_init(&load.lock, NULL);
    const bool made = load.memories != NULL && load.box_faults != NULL && load.file_faults != NULL;
    for (uint32_t f = 0; made && f < reader->index.file_count; f++)
        load.file_faults[f] = NO_FAULT;
    enum strait_status status = made ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
    if (status == STRAIT_OK)
        status = take_boxes(&load, text, text_size);
    if (status == STRAIT_OK) {
        status = run_rounds(&load);
        if (status == STRAIT_OK) {
            faults_report(&load.faults, reader, load.options);
            status = first_error(&load, text, text_size);
        } else {
            (void)checkpoint_fail(text, text_size, status, "%s: %s", reader->path, strait_status_string(status));
            fail_boxes(&load, status);
        }
    }
    load_fini(&load);
    return status;
}
