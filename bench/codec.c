/* strait bench codec: the codec in memory, beside memcpy and, in builds that have them, general compressors. */
#include "bench/codec.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/table.h"

#define ALIGNMENT      4096u
#define SLOT_ALIGNMENT 64u
#define STALE_CODED    0xA5
#define STALE_BACK     0x5A
#define PROCESSORS_MIN 0.9 /* share of its threads that an undisturbed row keeps busy */

/* ---- Options ----------------------------------------------------------------------------------------------------- */

struct codec_options {
    struct bench_options common;
    struct number_list pages, variants, modes, rivals, dtypes;
    uint64_t chunk, size, repeats, threads;
};

static const char *const variant_names[] = {"scalar", "avx2", "avx512", "neon", NULL};
static const char *const dtype_names[] = {"bf16", "fp8_e4m3", "fp8_e5m2", NULL};
static const enum strait_element dtypes[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP8_E4M3, STRAIT_ELEMENT_FP8_E5M2};

#define OPTIONS struct codec_options
static const struct bench_option known_options[] = {
    {OPTION(SIZES, pages, "page", "32K", "LIST", "bytes of a page, a multiple of 16"), .min = PLAN_PAGE_MULTIPLE,
     .max = STRAIT_PAGE_BYTES_MAX, .multiple = PLAN_PAGE_MULTIPLE},
    {OPTION(SIZE, chunk, "chunk", "4M", "SIZE", "bytes of a chunk before compression"), .min = PLAN_PAGE_MULTIPLE,
     .max = 1u << 30},
    {OPTION(SIZE, size, "size", "512M", "SIZE", "repeat the tensors until they are this large: past the caches"),
     .min = PLAN_PAGE_MULTIPLE},
    {OPTION(NUMBER, repeats, "repeats", "5", "N", "run everything N times in turn"), .min = 1, .max = REPEATS_MAX},
    {OPTION(NUMBER, threads, "threads", "1", "N", "also with N threads, 0: one per processor"),
     .max = OPTION_THREADS_MAX, .letter = 'T'},
    {OPTION(NAMES, variants, "variant", NULL, "LIST", "of scalar, avx2, avx512, neon; all that run here"),
     .names = variant_names},
    {OPTION(NAMES, modes, "mode", "raw,top16,tiered", "LIST", "of raw, top16, tiered, base, split"),
     .names = mode_names},
    {OPTION(NAMES, dtypes, "dtype", "bf16", "TYPE", "of bf16, fp8_e4m3, fp8_e5m2: tensors cast with a scale for each"),
     .names = dtype_names},
#ifdef STRAIT_BENCH_RIVALS
    {OPTION(NAMES, rivals, "rivals", NULL, "LIST", "of zstd-1, zstd-3, zstd-19, lz4, none; all"), .names = rival_names},
#endif
};
static char command_name[] = "strait bench codec";
static const struct bench_command command = {
    .name = command_name,
    .summary = "Measures the codec on real tensors in memory, beside memcpy, and compares all that was decoded. With "
               "--device: on pools in GPU memory, with options of its own.",
    .options = known_options,
    .option_count = sizeof(known_options) / sizeof(known_options[0]),
    .codebook = true,
};

static bool check_options(struct codec_options *asked)
{
    if (asked->threads == 0)
        asked->threads = cpu_count();
    for (unsigned i = 0; i < asked->pages.count; i++)
        if (asked->pages.list[i] > asked->chunk) {
            print_error(NULL, "--page is larger than --chunk");
            return false;
        }
    for (unsigned i = 0; i < asked->variants.count; i++)
        if (strait_codec_get(variant_names[asked->variants.list[i]]) == NULL) {
            print_error(NULL, "--variant: this build or processor has no '%s'", variant_names[asked->variants.list[i]]);
            return false;
        }
    const bool all = asked->variants.count == 0;
    for (uint64_t v = 0; all && variant_names[v] != NULL; v++)
        if (strait_codec_get(variant_names[v]) != NULL)
            asked->variants.list[asked->variants.count++] = v;
    if (asked->dtypes.count != 1) {
        print_error(NULL, "--dtype takes one type");
        return false;
    }
    if (list_has(&asked->modes, STRAIT_MODE_AUTO)) {
        print_error(NULL, "--mode: unknown value 'auto'");
        return false;
    }
    return true;
}

static void *allocate(uint64_t bytes)
{
    uint8_t *memory = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);

    if (memory == NULL)
        print_error(NULL, "out of memory");
    else
        memset(memory, 0xFF, bytes); /* touched before anything is timed */
    return memory;
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

struct chunk {
    struct strait_pages src, dst; /* pages are read in place and decoded to the same offsets of `back` */
    uint64_t coded_at, coded_capacity;
};

/* The data cut into chunks of pages of one size. */
struct chunk_list {
    struct chunk *list;
    uint32_t count, capacity;
    uint64_t page_bytes, coded_bytes; /* coded_bytes: total capacity that the chunks need */
};

/* Every page is a region of its own, so that pages of different tables and lengths share a chunk. */
static bool list_pages(struct strait_pages *pages, const struct cut *cut, uint8_t *bytes, uint64_t page_bytes)
{
    uint32_t count = cut_pages(cut, page_bytes);
    struct strait_region *region = calloc(count, sizeof(*region));

    *pages = (struct strait_pages){.regions = region, .region_count = count, .id_count = 1};
    for (uint32_t i = 0; region != NULL && i < cut->run_count; i++) {
        const struct run *run = &cut->runs[i];
        for (uint64_t at = 0; at < run->bytes; at += page_bytes) {
            uint64_t left = run->bytes - at;
            *region++ = (struct strait_region){.base = bytes + run->offset + at,
                                               .page_count = 1,
                                               .rows = 1,
                                               .row_bytes = (uint32_t)(left < page_bytes ? left : page_bytes),
                                               .table = run->table};
        }
    }
    return pages->regions != NULL;
}

static bool add_chunk(struct chunk_list *chunks, const struct cut *cut, const struct data *data, uint8_t *back)
{
    if (chunks->count == chunks->capacity) {
        chunks->capacity = 2 * chunks->capacity + 64;
        struct chunk *grown = realloc(chunks->list, chunks->capacity * sizeof(*grown));
        if (grown == NULL)
            return false;
        chunks->list = grown;
    }
    struct chunk *chunk = &chunks->list[chunks->count];
    *chunk = (struct chunk){.coded_at = chunks->coded_bytes};
    chunks->count++;
    if (!list_pages(&chunk->src, cut, data->bytes, chunks->page_bytes) ||
        !list_pages(&chunk->dst, cut, back, chunks->page_bytes))
        return false;
    chunk->coded_capacity = strait_encode_bound(&chunk->src);
    chunks->coded_bytes += (chunk->coded_capacity + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
    return true;
}

static bool make_chunks(struct chunk_list *chunks, const struct data *data, uint8_t *back, uint64_t chunk_bytes)
{
    struct cutter cutter = {.plan = &data->plan, .page_bytes = chunks->page_bytes, .chunk_bytes = chunk_bytes};
    struct cut cut = {0};
    enum cut_result result;

    while ((result = cutter_next(&cutter, &cut)) == CUT_OK && add_chunk(chunks, &cut, data, back))
        continue;
    cut_fini(&cut);
    if (result != CUT_END)
        print_error(NULL, "out of memory");
    for (uint32_t i = 0; result == CUT_END && i < chunks->count; i++)
        if (chunks->list[i].coded_capacity == 0) {
            print_error(NULL, "--chunk is too large for these pages");
            return false;
        }
    return result == CUT_END;
}

static void free_chunks(struct chunk_list *chunks)
{
    for (uint32_t i = 0; i < chunks->count; i++) {
        free((void *)(uintptr_t)chunks->list[i].src.regions);
        free((void *)(uintptr_t)chunks->list[i].dst.regions);
    }
    free(chunks->list);
}

/* ---- Cases: memcpy ----------------------------------------------------------------------------------------------- */

bool case_add(struct case_list *cases, struct codec_case added)
{
    if (cases->count == CASES_MAX) {
        print_error(NULL, "too many rows");
        return false;
    }
    added.ok = true;
    cases->list[cases->count++] = added;
    return true;
}

struct copy_state {
    const struct buffers *buffers;
    uint64_t item_bytes, call_bytes;
};

static void copy_item(const struct copy_state *state, uint8_t *dst, const uint8_t *src, uint32_t item)
{
    uint64_t begin = item * state->item_bytes, end = begin + state->item_bytes;

    if (end > state->buffers->raw_bytes)
        end = state->buffers->raw_bytes;
    for (uint64_t at = begin; at < end; at += state->call_bytes)
        memcpy(dst + at, src + at, end - at < state->call_bytes ? end - at : state->call_bytes);
}

static bool copy_encode(void *arg, unsigned thread, uint32_t item)
{
    const struct copy_state *state = arg;

    (void)thread;
    copy_item(state, state->buffers->coded, state->buffers->raw, item);
    return true;
}

static bool copy_decode(void *arg, unsigned thread, uint32_t item)
{
    const struct copy_state *state = arg;

    (void)thread;
    copy_item(state, state->buffers->back, state->buffers->coded, item);
    return true;
}

static uint64_t copy_bytes(const void *arg)
{
    return ((const struct copy_state *)arg)->buffers->raw_bytes;
}

/* page_bytes 0: one call per thread. */
static bool add_copy(struct case_list *cases, const struct buffers *buffers, uint64_t page_bytes, uint64_t chunk_bytes,
                     unsigned threads)
{
    struct copy_state *state = calloc(1, sizeof(*state));
    uint64_t share = (buffers->raw_bytes + threads - 1) / threads;

    if (state == NULL)
        return false;
    state->buffers = buffers;
    state->item_bytes = page_bytes == 0 ? (share + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
                                        : (chunk_bytes + page_bytes - 1) / page_bytes * page_bytes;
    state->call_bytes = page_bytes == 0 ? state->item_bytes : page_bytes;
    return case_add(cases, (struct codec_case){
                               .encode = copy_encode,
                               .decode = copy_decode,
                               .coded_bytes = copy_bytes,
                               .destroy = free,
                               .state = state,
                               .name = "memcpy",
                               .variant = page_bytes == 0 ? "one call" : "per page",
                               .is_memcpy = true,
                               .threads = threads,
                               .items = (uint32_t)((buffers->raw_bytes + state->item_bytes - 1) / state->item_bytes),
                               .page_bytes = page_bytes,
                               .raw_bytes = buffers->raw_bytes,
                               .coded_capacity = buffers->raw_bytes,
                           });
}

/* ---- Cases: the codec -------------------------------------------------------------------------------------------- */

struct strait_state {
    const struct buffers *buffers;
    const struct chunk_list *chunks;
    const struct strait_codec *codec;
    const struct strait_codebook *codebook;
    enum strait_element element;
    enum strait_mode mode;
    unsigned threads;
    struct buffer *scratch; /* one per thread */
    uint64_t *chunk_bytes;  /* one per chunk, set by encode */
};

static struct strait_run run_of(const struct strait_state *state, unsigned thread, struct strait_result *result)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = state->scratch[thread].data,
                               .scratch_size = state->scratch[thread].capacity,
                               .result = result};
}

static bool encode_chunk(void *arg, unsigned thread, uint32_t item)
{
    struct strait_state *state = arg;
    const struct chunk *chunk = &state->chunks->list[item];
    struct strait_encode_params params = {
        .size = sizeof(params), .element = state->element, .mode = state->mode, .codebook = state->codebook};
    struct strait_result result = {0};
    struct strait_run run = run_of(state, thread, &result);
    enum strait_status status = strait_encode(state->codec, &params, state->buffers->coded + chunk->coded_at,
                                              chunk->coded_capacity, &chunk->src, &run);

    state->chunk_bytes[item] = result.bytes;
    return status == STRAIT_OK && result.status == STRAIT_OK;
}

static bool decode_chunk(void *arg, unsigned thread, uint32_t item)
{
    const struct strait_state *state = arg;
    const struct chunk *chunk = &state->chunks->list[item];
    struct strait_result result = {0};
    struct strait_run run = run_of(state, thread, &result);
    enum strait_status status = strait_decode(state->codec, state->codebook, &chunk->dst, NULL,
                                              state->buffers->coded + chunk->coded_at, state->chunk_bytes[item], &run);

    return status == STRAIT_OK && result.status == STRAIT_OK;
}

static uint64_t chunk_bytes(const void *arg)
{
    const struct strait_state *state = arg;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < state->chunks->count; i++)
        bytes += state->chunk_bytes[i];
    return bytes;
}

static void destroy_strait(void *arg)
{
    struct strait_state *state = arg;

    for (unsigned t = 0; state->scratch != NULL && t < state->threads; t++)
        buffer_fini(&state->scratch[t]);
    free(state->scratch);
    free(state->chunk_bytes);
    free(state);
}

static bool add_strait(struct case_list *cases, struct strait_state made)
{
    struct strait_state *state = calloc(1, sizeof(*state));
    bool good = state != NULL;

    if (good) {
        *state = made;
        state->scratch = calloc(made.threads, sizeof(state->scratch[0]));
        state->chunk_bytes = calloc(made.chunks->count, sizeof(state->chunk_bytes[0]));
        good = state->scratch != NULL && state->chunk_bytes != NULL;
    }
    for (unsigned t = 0; good && t < made.threads; t++)
        good = buffer_reserve(&state->scratch[t], 0, strait_scratch_size(made.codec));
    if (!good) {
        print_error(NULL, "out of memory");
        if (state != NULL)
            destroy_strait(state);
        return false;
    }
    return case_add(cases, (struct codec_case){
                               .encode = encode_chunk,
                               .decode = decode_chunk,
                               .coded_bytes = chunk_bytes,
                               .destroy = destroy_strait,
                               .state = state,
                               .name = "strait",
                               .variant = strait_codec_name(made.codec),
                               .mode = mode_names[made.mode],
                               .threads = made.threads,
                               .items = made.chunks->count,
                               .page_bytes = made.chunks->page_bytes,
                               .raw_bytes = made.buffers->raw_bytes,
                               .coded_capacity = made.chunks->coded_bytes,
                               .table_bytes = made.element != STRAIT_ELEMENT_BF16
                                                  ? 0 /* its blocks use none */
                                                  : (uint64_t)strait_codebook_count(made.codebook) * TABLE_BYTES,
                           });
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

struct queue {
    work_item *work;
    void *state;
    uint32_t count;
    _Atomic uint32_t next;
    atomic_bool failed;
};

static void drain(void *arg, unsigned thread)
{
    struct queue *queue = arg;
    uint32_t item;

    while ((item = atomic_fetch_add(&queue->next, 1)) < queue->count)
        if (!queue->work(queue->state, thread, item))
            queue->failed = true;
}

static uint64_t cpu_ns(void)
{
    struct timespec used;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

/* Works on items 0..count-1, which all threads take from one queue; the time includes starting the threads. */
static uint64_t time_items(struct codec_case *one, work_item *work, uint32_t count)
{
    struct queue queue = {.work = work, .state = one->state, .count = count};
    uint64_t used = cpu_ns(), began = clock_ns();

    parallel_run(one->threads, drain, &queue);
    uint64_t wall = clock_ns() - began + 1;
    one->cpu_ns += cpu_ns() - used;
    one->wall_ns += wall;
    if (queue.failed)
        one->ok = false;
    return wall;
}

/* Overwrites the destinations before, so that an earlier case's output cannot pass for new, and compares after. */
static void run_case(struct codec_case *one, const struct buffers *buffers, uint64_t repeat, bool fault)
{
    memset(buffers->coded, STALE_CODED, one->coded_capacity);
    one->encode_ns[repeat] = time_items(one, one->encode, one->items);
    uint64_t coded = one->coded_bytes(one->state);
    if (repeat > 0 && coded != one->coded)
        one->ok = false;
    one->coded = coded;
    memset(buffers->back, STALE_BACK, one->raw_bytes);
    one->decode_ns[repeat] = time_items(one, one->decode, one->items);
    if (fault)
        buffers->back[one->raw_bytes / 2] ^= 1;
    if (memcmp(buffers->back, buffers->raw, one->raw_bytes) != 0)
        one->ok = false;
}

/* Every case runs once per repeat, in turn, so that disturbances of the machine affect all cases alike. */
static bool run_cases(struct case_list *cases, const struct buffers *buffers, const struct codec_options *asked)
{
    struct progress progress;
    uint64_t bytes = 0;

    for (unsigned i = 0; i < cases->count; i++) {
        struct codec_case *one = &cases->list[i];
        if (one->encode == NULL)
            continue;
        bytes += one->raw_bytes;
        one->encode_ns = calloc(asked->repeats, sizeof(one->encode_ns[0]));
        one->decode_ns = calloc(asked->repeats, sizeof(one->decode_ns[0]));
        if (one->encode_ns == NULL || one->decode_ns == NULL)
            return false;
        uint32_t warm = one->items < one->threads ? one->items : one->threads;
        time_items(one, one->encode, warm);
        time_items(one, one->decode, warm);
        one->cpu_ns = one->wall_ns = 0;
    }
    progress_begin(&progress, "measuring", asked->repeats * bytes, false);
    for (uint64_t repeat = 0; repeat < asked->repeats; repeat++)
        for (unsigned i = 0; i < cases->count; i++)
            if (cases->list[i].encode != NULL) {
                run_case(&cases->list[i], buffers, repeat, asked->common.fault.count > 0 && repeat == 0 && i == 0);
                progress_add(&progress, cases->list[i].raw_bytes);
            }
    progress_end(&progress);
    return true;
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

static const struct column columns[] = {
    {"case", NULL, "case", COLUMN_TEXT},
    {"variant", NULL, "variant", COLUMN_TEXT},
    {"mode", NULL, "mode", COLUMN_TEXT},
    {"threads", NULL, "T", COLUMN_COUNT},
    {"page_bytes", NULL, "page", COLUMN_SIZE},
    {"raw_bytes", NULL, "raw bytes", COLUMN_COUNT},
    {"coded_bytes", NULL, "coded bytes", COLUMN_COUNT},
    {"table_bytes", NULL, "tables", COLUMN_COUNT},
    {"ratio", NULL, "ratio", COLUMN_RATIO},
    {"encode_GBps.p50", "encode GB/s", "p50", COLUMN_NUMBER},
    {"encode_GBps.min", "encode GB/s", "min", COLUMN_NUMBER},
    {"encode_GBps.max", "encode GB/s", "max", COLUMN_NUMBER},
    {"decode_GBps.p50", "decode GB/s", "p50", COLUMN_NUMBER},
    {"decode_GBps.min", "decode GB/s", "min", COLUMN_NUMBER},
    {"decode_GBps.max", "decode GB/s", "max", COLUMN_NUMBER},
    {"encode_by_memcpy", "by memcpy", "enc", COLUMN_NUMBER},
    {"decode_by_memcpy", "by memcpy", "dec", COLUMN_NUMBER},
    {"encode_by_one_thread", "by 1 thread", "enc", COLUMN_NUMBER},
    {"decode_by_one_thread", "by 1 thread", "dec", COLUMN_NUMBER},
    {"processors_used", NULL, "cpus", COLUMN_NUMBER},
    {"check", NULL, "check", COLUMN_CHECK},
    {"baseline", NULL, "baseline", COLUMN_TEXT},
};
static const struct table tables[] = {TABLE("rows", NULL, NULL, columns)};

/* Median over repeats of the quotient of two cases' rates. */
static double paired(const struct codec_case *one, const uint64_t *ns, const struct codec_case *other,
                     const uint64_t *other_ns, uint64_t repeats)
{
    double quotients[REPEATS_MAX];

    for (uint64_t r = 0; r < repeats; r++)
        quotients[r] = (double)one->raw_bytes / (double)ns[r] / ((double)other->raw_bytes / (double)other_ns[r]);
    return median_of(quotients, repeats);
}

static void add_rates(cJSON *row, const char *key, const struct codec_case *one, const uint64_t *ns, uint64_t repeats)
{
    double rates[REPEATS_MAX];

    for (uint64_t r = 0; r < repeats; r++)
        rates[r] = (double)one->raw_bytes / (double)ns[r];
    row_add_figures(row, key, rates, repeats, p50_min_max);
}

/* The memcpy of so many threads that encodes and decodes fastest. */
static const struct codec_case *find_baseline(const struct case_list *cases, unsigned threads, uint64_t repeats)
{
    const struct codec_case *best = NULL;

    for (unsigned i = 0; i < cases->count; i++) {
        const struct codec_case *one = &cases->list[i];
        if (one->is_memcpy && one->threads == threads &&
            (best == NULL || paired(one, one->encode_ns, best, best->encode_ns, repeats) +
                                     paired(one, one->decode_ns, best, best->decode_ns, repeats) >
                                 2))
            best = one;
    }
    return best;
}

static const struct codec_case *find_single(const struct case_list *cases, const struct codec_case *one)
{
    for (unsigned i = 0; one->threads > 1 && i < cases->count; i++) {
        const struct codec_case *single = &cases->list[i];
        if (single->threads == 1 && single->page_bytes == one->page_bytes && single->name == one->name &&
            single->variant == one->variant && single->mode == one->mode)
            return single;
    }
    return NULL;
}

/* Returns whether the row kept its threads busy. */
static bool add_row(struct report *report, const struct case_list *cases, const struct codec_case *one,
                    uint64_t repeats)
{
    const struct codec_case *copy = find_baseline(cases, one->threads, repeats), *single = find_single(cases, one);
    cJSON *row = report_add_row(report, "rows");
    double processors = one->wall_ns > 0 ? (double)one->cpu_ns / (double)one->wall_ns : 0;

    cJSON_AddStringToObject(row, "case", one->name);
    cJSON_AddStringToObject(row, "variant", one->variant != NULL ? one->variant : "-");
    cJSON_AddStringToObject(row, "mode", one->mode != NULL ? one->mode : "-");
    if (one->encode == NULL) {
        cJSON_AddNumberToObject(row, "ratio", one->limit);
        return true;
    }
    cJSON_AddNumberToObject(row, "ratio", (double)one->raw_bytes / (double)(one->coded + one->table_bytes));
    cJSON_AddNumberToObject(row, "threads", one->threads);
    cJSON_AddNumberToObject(row, "page_bytes", (double)one->page_bytes);
    cJSON_AddNumberToObject(row, "raw_bytes", (double)one->raw_bytes);
    cJSON_AddNumberToObject(row, "coded_bytes", (double)one->coded);
    cJSON_AddNumberToObject(row, "table_bytes", (double)one->table_bytes);
    add_rates(row, "encode_GBps", one, one->encode_ns, repeats);
    add_rates(row, "decode_GBps", one, one->decode_ns, repeats);
    cJSON_AddNumberToObject(row, "encode_by_memcpy", paired(one, one->encode_ns, copy, copy->encode_ns, repeats));
    cJSON_AddNumberToObject(row, "decode_by_memcpy", paired(one, one->decode_ns, copy, copy->decode_ns, repeats));
    cJSON_AddBoolToObject(row, "baseline", one == copy);
    if (single != NULL) {
        cJSON_AddNumberToObject(row, "encode_by_one_thread",
                                paired(one, one->encode_ns, single, single->encode_ns, repeats));
        cJSON_AddNumberToObject(row, "decode_by_one_thread",
                                paired(one, one->decode_ns, single, single->decode_ns, repeats));
    }
    cJSON_AddNumberToObject(row, "processors_used", processors);
    row_add_times(row, "encode_ns", one->encode_ns, repeats);
    row_add_times(row, "decode_ns", one->decode_ns, repeats);
    cJSON_AddBoolToObject(row, "check", one->ok);
    return processors >= PROCESSORS_MIN * one->threads;
}

static void add_data(struct report *report, const struct data *data, const struct data_figures *figures)
{
    cJSON *object = cJSON_AddObjectToObject(report->root, "data");

    cJSON_AddNumberToObject(object, "bytes", (double)data->size);
    cJSON_AddNumberToObject(object, "period", (double)data->period);
    cJSON_AddNumberToObject(object, "classes", figures->classes);
    cJSON_AddNumberToObject(object, "top16_escape_rate", figures->top16);
    cJSON_AddNumberToObject(object, "top16_escape_rate_worst_class", figures->worst_top16);
    cJSON_AddNumberToObject(object, "tiered_escape_rate", figures->tiered);
    cJSON_AddNumberToObject(object, "tiered_escape_rate_worst_class", figures->worst_tiered);
    cJSON_AddNumberToObject(object, "entropy_bits_by_class", figures->class_bits);
    cJSON_AddNumberToObject(object, "entropy_bits", figures->all_bits);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

struct bench {
    const struct codec_options *asked;
    struct bench_values values;
    struct data data;
    struct data_figures figures;
    struct buffers buffers;
    struct chunk_list chunks[LIST_MAX]; /* one for each page size */
    struct case_list cases;
    uint64_t piece_bytes; /* of general compressors */
};

/* memcpy next to our codec, so that cases that are compared run close in time. */
static bool add_cases_of(struct bench *bench, unsigned threads)
{
    const struct codec_options *asked = bench->asked;
    bool good = add_copy(&bench->cases, &bench->buffers, 0, asked->chunk, threads);

    for (unsigned p = 0; good && p < asked->pages.count; p++)
        good = add_copy(&bench->cases, &bench->buffers, asked->pages.list[p], asked->chunk, threads);
    for (unsigned p = 0; p < asked->pages.count; p++)
        for (unsigned v = 0; v < asked->variants.count; v++)
            for (unsigned m = 0; good && m < asked->modes.count; m++)
                good = add_strait(&bench->cases, (struct strait_state){
                                                     .buffers = &bench->buffers,
                                                     .chunks = &bench->chunks[p],
                                                     .codec = strait_codec_get(variant_names[asked->variants.list[v]]),
                                                     .codebook = bench->values.codebook,
                                                     .element = bench->data.element,
                                                     .mode = (enum strait_mode)asked->modes.list[m],
                                                     .threads = threads,
                                                 });
    return good;
}

/* General compressors, which are slow, come last. */
static bool add_rivals(struct bench *bench, unsigned threads)
{
    bool good = true;
#ifdef STRAIT_BENCH_RIVALS
    const struct number_list *asked = &bench->asked->rivals;

    for (uint64_t i = 0; good && rival_names[i + 1] != NULL; i++)
        if (asked->count == 0 || list_has(asked, i))
            good = rival_add(&bench->cases, &bench->buffers, i, bench->piece_bytes, threads);
#else
    (void)bench;
    (void)threads;
#endif
    return good;
}

static bool measure(struct bench *bench)
{
    if (bench->data.element == STRAIT_ELEMENT_BF16)
        return data_measure(&bench->data, bench->values.codebook, (unsigned)bench->asked->threads, &bench->figures);
    fp8_measure(&bench->data, &bench->figures);
    return true;
}

/* The ratio at so many bits for each exponent. */
static double limit_of(const struct data *data, double exponent_bits)
{
    return data->element == STRAIT_ELEMENT_BF16 ? 16 / (8 + exponent_bits) : fp8_limit(data->element, exponent_bits);
}

static bool prepare(struct bench *bench)
{
    const struct codec_options *asked = bench->asked;
    unsigned threads = (unsigned)asked->threads;
    uint64_t coded = 0;

    if (!values_open(&bench->values, &asked->common, threads) ||
        !data_init(&bench->data, &bench->values, asked->size, dtypes[asked->dtypes.list[0]]) || !measure(bench))
        return false;
    bench->buffers = (struct buffers){bench->data.bytes, NULL, allocate(bench->data.size), bench->data.size};
    /* A piece that spanned two copies of a tensor would flatter every compressor with a window. */
    bench->piece_bytes = (asked->chunk < bench->data.period ? asked->chunk : bench->data.period) / 2 * 2;
    for (unsigned p = 0; p < asked->pages.count; p++) {
        bench->chunks[p].page_bytes = asked->pages.list[p];
        if (bench->buffers.back == NULL ||
            !make_chunks(&bench->chunks[p], &bench->data, bench->buffers.back, asked->chunk))
            return false;
    }
    if (!add_cases_of(bench, 1) || (threads > 1 && !add_cases_of(bench, threads)) || !add_rivals(bench, 1) ||
        (threads > 1 && !add_rivals(bench, threads)) ||
        !case_add(&bench->cases, (struct codec_case){.name = "order-0 limit",
                                                     .mode = "by class",
                                                     .limit = limit_of(&bench->data, bench->figures.class_bits)}) ||
        !case_add(&bench->cases, (struct codec_case){.name = "order-0 limit",
                                                     .mode = "one table",
                                                     .limit = limit_of(&bench->data, bench->figures.all_bits)}))
        return false;
    for (unsigned i = 0; i < bench->cases.count; i++)
        if (bench->cases.list[i].coded_capacity > coded)
            coded = bench->cases.list[i].coded_capacity;
    bench->buffers.coded = allocate(coded);
    return bench->buffers.coded != NULL;
}

static bool run(struct bench *bench, struct report *report)
{
    const struct codec_options *asked = bench->asked;
    unsigned disturbed = 0;

    if (!prepare(bench) || !run_cases(&bench->cases, &bench->buffers, asked))
        return false;
    report_add_values(report, &bench->values);
    add_data(report, &bench->data, &bench->figures);
    cJSON_AddNumberToObject(report->root, "chunk_bytes", (double)asked->chunk);
#ifdef STRAIT_BENCH_RIVALS
    cJSON_AddNumberToObject(report->root, "rival_piece_bytes", (double)bench->piece_bytes);
#endif
    cJSON_AddNumberToObject(report->root, "repeats", (double)asked->repeats);
    for (unsigned i = 0; i < bench->cases.count; i++)
        disturbed += !add_row(report, &bench->cases, &bench->cases.list[i], asked->repeats);
    if (disturbed > 0)
        report_note(report, "%u rows ran on fewer processors than threads (cpus): something else was running",
                    disturbed);
    return report_finish(report, tables, 1);
}

static void bench_fini(struct bench *bench)
{
    for (unsigned i = 0; i < bench->cases.count; i++) {
        struct codec_case *one = &bench->cases.list[i];
        if (one->destroy != NULL)
            one->destroy(one->state);
        free(one->encode_ns);
        free(one->decode_ns);
    }
    for (unsigned p = 0; p < LIST_MAX; p++)
        free_chunks(&bench->chunks[p]);
    free(bench->buffers.coded);
    free(bench->buffers.back);
    free(bench->data.bytes);
    plan_fini(&bench->data.plan);
    values_close(&bench->values);
}

int bench_codec(int argc, char **argv)
{
    static struct codec_options asked;
    static struct bench bench = {.asked = &asked};
    struct report report;
    enum exit_code code;

    if (!command_read(&command, &asked, argc, argv, &code))
        return code;
    if (!check_options(&asked))
        return EXIT_CODE_USAGE;
    bool good = report_init(&report, &asked.common) && run(&bench, &report);
    bench_fini(&bench);
    report_fini(&report);
    return good ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
