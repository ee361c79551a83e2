#include "tests/kernels/cuda_support.h"

#include <string.h>
#include <time.h>

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

static void *to_device(const void *from, size_t size)
{
    void *memory;
    require_cuda(cudaMalloc(&memory, size == 0 ? 1 : size));
    require_cuda(cudaMemcpy(memory, from, size, cudaMemcpyHostToDevice));
    return memory;
}

static void *filled(size_t size, uint8_t with)
{
    void *memory;
    require_cuda(cudaMalloc(&memory, size));
    require_cuda(cudaMemset(memory, with, size));
    return memory;
}

bool device_init(struct device *device, const struct strait_codebook *codebook)
{
    size_t size = strait_codebook_image_size(codebook);
    uint8_t *image = malloc(size);
    *device = (struct device){.codec = strait_codec_get("cuda"), .codebook = codebook};
    if (device->codec == NULL || image == NULL) {
        printf("no plugin, no driver or no device that there are kernels for\n");
        free(image);
        return false;
    }
    require(strait_codebook_image(codebook, image, size) == STRAIT_OK);
    device->tables = to_device(image, size);
    free(image);
    device->scratch_size = 64 << 20;
    device->scratch = filled(device->scratch_size, 0);
    require_cuda(cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking));
    return true;
}

void device_fini(struct device *device)
{
    require_cuda(cudaStreamDestroy(device->stream));
    require_cuda(cudaFree(device->scratch));
    require_cuda(cudaFree(device->tables));
}

void device_filled(void)
{
    require_cuda(cudaDeviceSynchronize());
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void device_wait(const struct device *device)
{
    enum { PATIENCE_SECONDS = 60 }; /* a memory checker slows launches down a hundred times */
    const double begin = seconds_now();
    cudaError_t state;
    while ((state = cudaStreamQuery(device->stream)) == cudaErrorNotReady) {
        const double waited = seconds_now() - begin;
        if (waited > PATIENCE_SECONDS) {
            fprintf(stderr, "a launch does not end\n");
            _Exit(EXIT_FAILURE); /* whatever is orderly would wait for it */
        }
        if (waited > 0.001)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    require_cuda(state);
}

struct strait_run device_run(const struct device *device, struct strait_result *result)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .result = result,
                               .stream = device->stream,
                               .scratch = device->scratch,
                               .scratch_size = device->scratch_size,
                               .tables = device->tables};
}

/* Device memory of a call for one chunk. */
struct mirror {
    struct strait_region regions[REGIONS_MAX];
    struct strait_pages pages;
    uint8_t *memory, *chunk, *metadata;
    uint32_t *ids, *select;
    struct verdict *verdict; /* pinned */
    size_t chunk_room;
};

/* The layout's bytes on the device, `shift` bytes from a round address. */
static void mirror_init(struct mirror *mirror, const struct layout *layout, const struct trial *trial)
{
    *mirror = (struct mirror){.pages = layout->pages};
    require_cuda(cudaMalloc((void **)&mirror->memory, layout->memory.size + trial->shift));
    require_cuda(cudaMemset(mirror->memory, CANARY, trial->shift));
    require_cuda(
        cudaMemcpy(mirror->memory + trial->shift, layout->memory.bytes, layout->memory.size, cudaMemcpyHostToDevice));
    for (uint32_t r = 0; r < layout->pages.region_count; r++) {
        mirror->regions[r] = layout->regions[r];
        mirror->regions[r].base =
            mirror->memory + trial->shift + ((uint8_t *)layout->regions[r].base - layout->memory.bytes);
    }
    mirror->pages.regions = mirror->regions;
    if (trial->has_ids)
        mirror->ids = to_device(trial->ids, sizeof(uint32_t) * layout->pages.id_count);
    mirror->pages.ids = mirror->ids;
    require_cuda(cudaHostAlloc((void **)&mirror->verdict, sizeof(*mirror->verdict), cudaHostAllocMapped));
    verdict_begin(mirror->verdict);
}

static void mirror_fini(struct mirror *mirror)
{
    cudaFree(mirror->memory);
    cudaFree(mirror->chunk);
    cudaFree(mirror->metadata);
    cudaFree(mirror->ids);
    cudaFree(mirror->select);
    cudaFreeHost(mirror->verdict);
}

/* ---- Comparing ------------------------------------------------------------------------------------------------- */

static void print_verdict(const char *name, const struct verdict *v)
{
    fprintf(stderr, "%s: bytes %llu status %d chunk %d failed %u values", name, (unsigned long long)v->result.bytes,
            v->result.status, v->result.chunk_status, v->result.failed_pages);
    for (int m = 0; m < STRAIT_BLOCK_MODES; m++)
        fprintf(stderr, " %llu", (unsigned long long)v->result.values[m]);
    for (int i = 0; i < 8; i++)
        fprintf(stderr, " [%d]", v->page_status[i]);
    fprintf(stderr, "\n");
}

static void require_same(const struct verdict *scalar, const struct verdict *cuda)
{
    bool same = memcmp(&scalar->result, &cuda->result, sizeof(cuda->result)) == 0 &&
                memcmp(scalar->page_status, cuda->page_status, sizeof(cuda->page_status)) == 0;
    if (same)
        return;
    print_verdict("scalar", scalar);
    print_verdict("cuda  ", cuda);
    require(!"verdicts differ");
}

/* The statistics of a batch are those of its chunks together. */
static void require_stats(const struct trial *trials, uint32_t count, bool encoded,
                          const struct strait_class_stats stats[TEST_TABLES])
{
    for (int t = 0; t < TEST_TABLES; t++) {
        struct strait_class_stats all = {0};
        for (uint32_t i = 0; i < count; i++) {
            const struct verdict *v = encoded ? &trials[i].encoded : &trials[i].decoded;
            all.values += v->stats[t].values;
            all.escapes += v->stats[t].escapes;
        }
        require(all.values == stats[t].values && all.escapes == stats[t].escapes);
    }
}

static struct strait_run make_run(const struct device *device, struct strait_class_stats *stats, struct manner manner)
{
    struct strait_run run = device_run(device, NULL);
    run.class_stats = stats;
    run.class_count = TEST_TABLES;
    run.caching = manner.caching;
    run.sm_budget = manner.sm_budget;
    return run;
}

static struct strait_class_stats *make_stats(void)
{
    struct strait_class_stats *stats;
    require_cuda(cudaHostAlloc((void **)&stats, TEST_TABLES * sizeof(*stats), cudaHostAllocMapped));
    memset(stats, 0, TEST_TABLES * sizeof(*stats));
    return stats;
}

static size_t room_of(const struct device *device, uint64_t size)
{
    return device->exact ? size : size + DEVICE_SLACK;
}

/* ---- Encoding -------------------------------------------------------------------------------------------------- */

static void compare_chunk(const struct trial *trial, const struct mirror *mirror)
{
    uint8_t *chunk = malloc(mirror->chunk_room);
    uint64_t size = trial->chunk_size, bound = strait_encode_bound(&trial->src.pages);
    require(chunk != NULL);
    require_cuda(cudaMemcpy(chunk, mirror->chunk, mirror->chunk_room, cudaMemcpyDeviceToHost));
    require(is_filled(chunk + bound, mirror->chunk_room - bound, CANARY));
    if (trial->chunk != NULL) {
        for (uint64_t i = 0; i < size; i++) {
            if (chunk[i] != trial->chunk[i]) {
                fprintf(stderr, "chunk of %llu bytes differs at %llu: %02x, not %02x\n", (unsigned long long)size,
                        (unsigned long long)i, chunk[i], trial->chunk[i]);
                require(!"chunks differ");
            }
        }
        require(is_filled(chunk + size, bound - size, CANARY));
    }
    free(chunk);
}

void compare_encoding(const struct device *device, struct trial *trials, uint32_t count, struct manner manner)
{
    struct mirror mirrors[BATCH_MAX];
    struct strait_encode_item items[BATCH_MAX];
    const struct asked *asked = &trials[0].asked;
    struct strait_encode_params params = {
        .size = sizeof(params), .element = asked->element, .mode = asked->mode, .codebook = asked->codebook};
    struct strait_class_stats *stats = make_stats();
    struct strait_run run = make_run(device, stats, manner);
    uint64_t *flags;
    require_cuda(cudaHostAlloc((void **)&flags, BATCH_MAX * sizeof(flags[0]), cudaHostAllocMapped));
    memset(flags, 0, BATCH_MAX * sizeof(flags[0]));
    for (uint32_t i = 0; i < count; i++) {
        struct trial *trial = &trials[i];
        struct mirror *m = &mirrors[i];
        uint64_t bound = strait_encode_bound(&trial->src.pages);
        trial->chunk = encode_layout(variant(0), asked, &trial->src, &trial->encoded);
        trial->chunk_size = trial->encoded.result.bytes;
        mirror_init(m, &trial->src, trial);
        m->chunk_room = room_of(device, bound);
        m->chunk = filled(m->chunk_room, CANARY);
        items[i] = (struct strait_encode_item){.src = m->pages,
                                               .dst = m->chunk,
                                               .dst_capacity = bound,
                                               .result = &m->verdict->result,
                                               .page_status = m->verdict->page_status,
                                               .page_status_count = VERDICT_PAGES,
                                               .flag = &flags[i],
                                               .flag_value = i + 1};
    }
    require(strait_encode_scratch_size(device->codec, items, count) <= device->scratch_size);
    device_filled();
    require(strait_encode_batch(device->codec, &params, items, count, &run) == STRAIT_OK);
    device_wait(device);
    require_stats(trials, count, true, stats);
    for (uint32_t i = 0; i < count; i++) {
        require_same(&trials[i].encoded, mirrors[i].verdict);
        compare_chunk(&trials[i], &mirrors[i]);
        require(flags[i] == (trials[i].encoded.result.status == STRAIT_OK ? i + 1 : 0));
        mirror_fini(&mirrors[i]);
    }
    cudaFreeHost(flags);
    cudaFreeHost(stats);
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

static void compare_pages(struct trial *trial, const struct mirror *m)
{
    struct layout back;
    uint8_t *a = malloc(STRAIT_PAGE_BYTES_MAX), *b = malloc(STRAIT_PAGE_BYTES_MAX);
    require(a != NULL && b != NULL);
    layout_mirror(&back, &trial->dst);
    require_cuda(cudaMemcpy(back.memory.bytes, m->memory + trial->shift, back.memory.size, cudaMemcpyDeviceToHost));
    require(layout_intact(&back));
    if (trial->decoded.result.chunk_status != STRAIT_OK)
        require(layout_untouched(&back));
    for (uint32_t p = 0; p < layout_count(&back); p++) {
        if (trial->decoded.page_status[p] != STRAIT_OK)
            continue;
        layout_read(&trial->dst, p, a);
        layout_read(&back, p, b);
        require(memcmp(a, b, layout_page_bytes(&back, p)) == 0);
    }
    free(a);
    free(b);
    layout_fini(&back);
}

/* The chunk and its room, to be freed. */
static uint8_t *lay_out_chunk(const struct trial *trial)
{
    uint8_t *bytes = malloc(trial->chunk_size + trial->room + 1);
    require(bytes != NULL);
    memcpy(bytes, trial->chunk, trial->chunk_size);
    memset(bytes + trial->chunk_size, CANARY, trial->room);
    return bytes;
}

static struct strait_decode_item make_item(const struct trial *trial, const struct strait_pages *dst,
                                           const uint32_t *select, const uint8_t *src, struct verdict *verdict)
{
    return (struct strait_decode_item){.dst = *dst,
                                       .select = select,
                                       .src = src,
                                       .src_size = trial->chunk_size + trial->room,
                                       .flags = trial->at_most ? STRAIT_DECODE_AT_MOST : 0,
                                       .result = &verdict->result,
                                       .page_status = verdict->page_status,
                                       .page_status_count = VERDICT_PAGES};
}

/* Decodes with the scalar variant. */
static void decode_on_host(struct trial *trial, const uint8_t *bytes)
{
    struct strait_run run = verdict_begin(&trial->decoded);
    const struct strait_decode_item item =
        make_item(trial, &trial->dst.pages, trial->has_select ? trial->select : NULL, bytes, &trial->decoded);
    run.result = NULL, run.page_status = NULL, run.page_status_count = 0;
    layout_clear(&trial->dst);
    require(strait_decode_batch(variant(0), trial->asked.codebook, &item, 1, &run) == STRAIT_OK);
}

/* A copy that ends early, and other bytes behind: they must not be read. */
static uint8_t *copy_metadata(const struct trial *trial, const uint8_t *bytes)
{
    const size_t size = trial->chunk_size + trial->room;
    uint8_t *copy = malloc(size + 1), *on_device;
    require(copy != NULL);
    memset(copy, 0xa5, size);
    memcpy(copy, bytes, trial->metadata_size == 0 || trial->metadata_size > size ? size : trial->metadata_size);
    on_device = to_device(copy, size);
    free(copy);
    return on_device;
}

void compare_decoding(const struct device *device, struct trial *trials, uint32_t count, struct manner manner)
{
    struct mirror mirrors[BATCH_MAX];
    struct strait_decode_item items[BATCH_MAX];
    struct strait_class_stats *stats = make_stats();
    struct strait_run run = make_run(device, stats, manner);
    for (uint32_t i = 0; i < count; i++) {
        struct trial *trial = &trials[i];
        struct mirror *m = &mirrors[i];
        uint8_t *bytes = lay_out_chunk(trial);
        decode_on_host(trial, bytes);
        mirror_init(m, &trial->dst, trial);
        m->chunk = to_device(bytes, trial->chunk_size + trial->room);
        if (trial->copied_metadata)
            m->metadata = copy_metadata(trial, bytes);
        if (trial->has_select)
            m->select = to_device(trial->select, sizeof(uint32_t) * layout_count(&trial->dst));
        items[i] = make_item(trial, &m->pages, m->select, m->chunk, m->verdict);
        items[i].metadata = m->metadata;
        items[i].metadata_size = trial->copied_metadata ? trial->metadata_size : 0;
        free(bytes);
    }
    require(strait_decode_scratch_size(device->codec, items, count) <= device->scratch_size);
    device_filled();
    require(strait_decode_batch(device->codec, trials[0].asked.codebook, items, count, &run) == STRAIT_OK);
    device_wait(device);
    for (uint32_t i = 0; i < count; i++) {
        require_same(&trials[i].decoded, mirrors[i].verdict);
        compare_pages(&trials[i], &mirrors[i]);
        mirror_fini(&mirrors[i]);
    }
    require_stats(trials, count, false, stats);
    cudaFreeHost(stats);
}
