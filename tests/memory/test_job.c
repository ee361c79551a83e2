/* Jobs on workers and in place: pages that are encoded, decoded and copied, chunks that are damaged or hostile, and who
 * is told when. Every byte outside the pages is watched. */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/memory/job.h"
#include "tests/run_suite.h"
#include "tests/support.h"

/* A pool in its own memfd, which is mapped twice: by the pool, and by the test, which finds CANARY outside the pages.
 */
struct world {
    uint8_t *memory;
    size_t size;
    int fd;
    struct pool *pool;
};

enum { ROOM = 4 << 20, BIG_ROOM = 40 << 20, GROUPS = 5, PAGES = 24, IDS = 7, PIECES = 8 };

#define CHUNK(at, bytes_) (&(const struct job_chunk){.bytes = (at), .size = (bytes_)})

static struct world a, b; /* the same pages at other places */
static uv_loop_t loop;
static struct jobs *jobs;
static const struct strait_codebook *no_codebook;
static struct strait_codebook *codebook; /* of this test */
static uint8_t chunk[1 << 20], other_chunk[1 << 20];
static const uint32_t ids_there[IDS] = {5, 0, 23, 7, 8, 9, 1}, ids_here[IDS] = {3, 22, 4, 10, 0, 11, 23};
static const struct piece pieces[PIECES] = {{.group = 0, .region_count = 4, .count = 7},
                                            {.group = 0, .region_first = 1, .region_count = 2, .count = 3},
                                            {.group = 0, .region_first = 3, .region_count = 1, .count = 1},
                                            {.group = 1, .region_count = 2, .count = 7},
                                            {.group = 1, .region_first = 1, .region_count = 1, .count = 2},
                                            {.group = 2, .region_count = 1, .count = 5},
                                            {.group = 3, .region_count = 1, .count = 6},
                                            {.group = 4, .region_count = 1, .count = 7}};

/* ---- Pools with canaries ----------------------------------------------------------------------------------------- */

static void world_close(struct world *world)
{
    pool_unmap(world->pool);
    munmap(world->memory, world->size);
    close(world->fd);
    world->pool = NULL;
}

/* In place of the pool that it has. */
static void world_open(struct world *world, const struct wire_region *regions, uint32_t count, size_t size)
{
    char why[256];
    if (world->pool != NULL)
        world_close(world);
    struct message_pool_register registration = {.fd_count = 1, .region_count = count, .regions = regions};
    world->size = size;
    world->fd = memfd_create("world", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    require(ftruncate(world->fd, (off_t)size) == 0 && fcntl(world->fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    world->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, world->fd, 0);
    require(world->memory != MAP_FAILED);
    memset(world->memory, CANARY, size);
    const struct pool_context context = {.bytes_max = UINT64_MAX};
    enum strait_status status = pool_map(&registration, &world->fd, &context, &world->pool, why, sizeof(why));
    ck_assert_msg(status == STRAIT_OK, "%s: %s", strait_status_string(status), why);
    pool_choose_tables(world->pool, codebook);
}

static struct wire_region region_of(uint32_t group, int32_t layer, enum strait_role role, uint64_t offset)
{
    return (struct wire_region){.handle = STRAIT_HANDLE_MEMFD,
                                .device = -1,
                                .offset = offset,
                                .page_count = 24,
                                .rows = 1,
                                .element = STRAIT_ELEMENT_BF16,
                                .role = role,
                                .layer = layer,
                                .group = group};
}

static struct wire_region with_rows(struct wire_region region, uint32_t rows, uint32_t row_bytes, uint64_t row_stride,
                                    uint64_t page_stride, enum strait_element element)
{
    region.rows = rows;
    region.row_bytes = row_bytes;
    region.row_stride = row_stride;
    region.page_stride = page_stride;
    region.element = element;
    return region;
}

enum { REGIONS = 9 };

/* Group 0: K and V of two layers, interleaved; group 1: rows with gaps, longer pages; group 2: odd bytes at odd places;
 * groups 3 and 4: FP16 and FP32.
 * `other` gives the same pages other places. */
static void world_regions(struct wire_region regions[REGIONS], bool other)
{
    uint64_t gap = other ? 4096 + 62 : 0;
    for (uint32_t r = 0; r < 4; r++)
        regions[r] = with_rows(region_of(0, (int32_t)r / 2, r % 2 == 0 ? STRAIT_ROLE_K : STRAIT_ROLE_V,
                                         (r / 2) * 600000 + (r % 2) * (8192 + gap)),
                               1, 8192, 0, 2 * (8192 + gap) + 64, STRAIT_ELEMENT_BF16);
    for (uint32_t r = 4; r < 6; r++)
        regions[r] = with_rows(region_of(1, (int32_t)r, STRAIT_ROLE_K, 1300000 + (r - 4) * 900000), 5, 3000,
                               other ? 3000 + 200 : 24 * 3002, other ? 5 * 3200 + 600 : 3002, STRAIT_ELEMENT_BF16);
    regions[6] = with_rows(region_of(2, -1, STRAIT_ROLE_OTHER, other ? 3200001 : 3200003), 1, 1001, 0,
                           other ? 1005 : 1001, STRAIT_ELEMENT_FP8_E4M3);
    regions[7] =
        with_rows(region_of(3, 0, STRAIT_ROLE_V, 3300000), 1, 8192, 0, other ? 12350 : 8192, STRAIT_ELEMENT_FP16);
    regions[8] = with_rows(region_of(4, 0, STRAIT_ROLE_K, 3600000), 2, 4096, other ? 4100 : 4096, other ? 12400 : 8192,
                           STRAIT_ELEMENT_FP32);
}

static void open_worlds(void)
{
    struct wire_region regions[REGIONS];
    world_regions(regions, false);
    world_open(&a, regions, REGIONS, ROOM);
    world_regions(regions, true);
    world_open(&b, regions, REGIONS, ROOM);
}

static uint8_t *row_at(const struct strait_region *region, uint32_t id, uint32_t row)
{
    return (uint8_t *)region->base + id * region->page_stride + row * (region->rows > 1 ? region->row_stride : 0);
}

static void fill_pages(struct world *world, const struct piece *piece, const uint32_t *ids, struct rng *rng,
                       enum pattern pattern)
{
    uint8_t ranking[256];
    test_ranking(ranking, 0);
    for (uint32_t r = 0; r < piece->region_count; r++)
        for (uint32_t i = 0; i < piece->count; i++) {
            const struct strait_region *region = &world->pool->groups[piece->group].regions[piece->region_first + r];
            for (uint32_t row = 0; row < region->rows; row++)
                fill_pattern(rng, pattern, ranking, row_at(region, ids[i], row), region->row_bytes);
        }
}

/* Requires the pages of the sink to equal those of the source. */
static void arrived(const struct world *source, const uint32_t *source_ids, struct world *sink,
                    const uint32_t *sink_ids, const struct piece *piece)
{
    for (uint32_t r = 0; r < piece->region_count; r++)
        for (uint32_t i = 0; i < piece->count; i++) {
            const struct strait_region *from = &source->pool->groups[piece->group].regions[piece->region_first + r];
            const struct strait_region *to = &sink->pool->groups[piece->group].regions[piece->region_first + r];
            for (uint32_t row = 0; row < from->rows; row++)
                ck_assert_mem_eq(row_at(from, source_ids[i], row), row_at(to, sink_ids[i], row), from->row_bytes);
        }
}

static void wipe_pages(struct world *world, const struct piece *piece, const uint32_t *ids)
{
    for (uint32_t r = 0; r < piece->region_count; r++)
        for (uint32_t i = 0; i < piece->count; i++) {
            const struct strait_region *region = &world->pool->groups[piece->group].regions[piece->region_first + r];
            for (uint32_t row = 0; row < region->rows; row++)
                memset(row_at(region, ids[i], row), CANARY, region->row_bytes);
        }
}

static bool only_pages_touched(struct world *world, const struct piece *piece, const uint32_t *ids)
{
    wipe_pages(world, piece, ids);
    return is_filled(world->memory, world->size, CANARY);
}

/* ---- Jobs -------------------------------------------------------------------------------------------------------- */

struct told {
    int count;
    uint64_t cookie;
    struct job_result result;
};

static void on_told(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct told *told = owner;
    told->count++;
    told->cookie = cookie;
    told->result = *result;
}

static void jobs_close(void)
{
    if (jobs == NULL)
        return;
    ck_assert_uint_eq(jobs_running(jobs), 0);
    jobs_destroy(jobs);
    jobs = NULL;
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* A copy of the set (NULL: none) in force, after those of `before`. */
static struct codebooks *codebooks_of(const struct strait_codebook *set, const struct codebooks *before)
{
    struct codebooks *made;
    struct strait_codebook *copy = NULL;
    if (set != NULL) {
        size_t size = strait_codebook_serialized_size(set);
        void *bytes = malloc(size);
        require(bytes != NULL);
        ck_assert_int_eq(strait_codebook_serialize(set, bytes, size), STRAIT_OK);
        ck_assert_int_eq(strait_codebook_parse(bytes, size, &copy), STRAIT_OK);
        free(bytes);
    }
    ck_assert_int_eq(codebooks_create(copy, before, &made), STRAIT_OK);
    return made;
}

/* In place of those that there are. */
static void jobs_open(const struct strait_codebook *set, uint64_t small_bytes)
{
    jobs_close();
    require(uv_loop_init(&loop) == 0);
    struct codebooks *codebooks = codebooks_of(set, NULL);
    ck_assert_int_eq(jobs_create(&loop, codebooks, small_bytes, &jobs), STRAIT_OK);
    codebooks_release(codebooks);
}

/* The job must have been started. */
static struct job_result finish(struct told *told, enum strait_status started)
{
    ck_assert_int_eq(started, STRAIT_OK);
    ck_assert_int_eq(told->count, 0); /* never from inside the call */
    ck_assert_uint_eq(jobs_running(jobs), 1);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(told->count, 1);
    ck_assert_uint_eq(jobs_running(jobs), 0);
    return told->result;
}

static struct job_result encode(struct world *world, const struct piece *piece, const uint32_t *ids,
                                enum strait_mode mode, void *dst, uint64_t capacity)
{
    struct told told = {0};
    return finish(&told, job_encode(jobs, world->pool, piece, ids, mode, CHUNK(dst, capacity), on_told, &told, 1));
}

static struct job_result decode(struct world *world, const struct piece *piece, const uint32_t *ids, const void *src,
                                uint64_t size)
{
    struct told told = {0};
    return finish(&told,
                  job_decode(jobs, world->pool, piece, ids, CHUNK((void *)(uintptr_t)src, size), on_told, &told, 2));
}

static struct job_result copy(struct world *src, const uint32_t *src_ids, struct world *dst, const uint32_t *dst_ids,
                              const struct piece *piece)
{
    struct told told = {0};
    return finish(&told, job_copy(jobs, src->pool, src_ids, dst->pool, dst_ids, piece, on_told, &told, 3));
}

/* ---- What they work on ------------------------------------------------------------------------------------------- */

static uint64_t raw_bytes(const struct piece *piece)
{
    const uint64_t bytes[GROUPS] = {8192, 15000, 1001, 8192, 8192};
    return bytes[piece->group] * piece->region_count * piece->count;
}

/* Fills the pages of a piece of a, by its number, and encodes them to `chunk`. */
static struct job_result make_chunk(int piece, enum strait_mode mode)
{
    struct rng rng = rng_init(20);
    fill_pages(&a, &pieces[piece], ids_there, &rng, PATTERN_RARE);
    return encode(&a, &pieces[piece], ids_there, mode, chunk, sizeof(chunk));
}

static const enum strait_mode modes[] = {STRAIT_MODE_AUTO,   STRAIT_MODE_RAW,  STRAIT_MODE_TOP16,
                                         STRAIT_MODE_TIERED, STRAIT_MODE_BASE, STRAIT_MODE_SPLIT};

static void setup(void)
{
    codebook = test_codebook();
    open_worlds();
}

static void teardown(void)
{
    jobs_close();
    world_close(&a);
    world_close(&b);
    strait_codebook_destroy(codebook);
}

/* ---- Encode and decode ------------------------------------------------------------------------------------------- */

TEST_LOOP(pages_come_back_at_other_places_and_nothing_else_is_written, 2 * COUNT(modes))
{
    struct rng rng = rng_init((uint64_t)_i);
    jobs_open(codebook, _i % 2 == 0 ? 0 : UINT64_MAX); /* on workers, in place */
    for (int p = 0; p < COUNT(pieces); p++)
        for (int pattern = 0; pattern < PATTERNS; pattern++) {
            const struct piece *piece = &pieces[p];
            fill_pages(&a, piece, ids_there, &rng, (enum pattern)pattern);
            struct job_result out = encode(&a, piece, ids_there, modes[_i / 2], chunk, sizeof(chunk));
            ck_assert_int_eq(out.reason, STRAIT_REASON_NONE);
            struct job_result in = decode(&b, piece, ids_here, chunk, out.bytes);
            ck_assert_int_eq(in.reason, STRAIT_REASON_NONE);
            ck_assert_uint_eq(out.raw_bytes, raw_bytes(piece));
            ck_assert_uint_eq(in.raw_bytes, raw_bytes(piece));
            ck_assert_uint_eq(in.bytes, raw_bytes(piece));
            ck_assert_mem_eq(in.values, out.values, sizeof(in.values));
            ck_assert_uint_eq(in.escapes, out.escapes);
            ck_assert_uint_eq(in.coded_values, out.coded_values);
            ck_assert_uint_gt(out.nanoseconds, 0);
            arrived(&a, ids_there, &b, ids_here, piece);
            ck_assert(only_pages_touched(&b, piece, ids_here));
            ck_assert(only_pages_touched(&a, piece, ids_there));
        }
}

TEST(statistics_are_those_of_the_codec)
{
    struct rng rng = rng_init(9);
    jobs_open(codebook, 0);
    fill_pages(&a, &pieces[0], ids_there, &rng, PATTERN_RARE);
    struct job_result out = encode(&a, &pieces[0], ids_there, STRAIT_MODE_TOP16, chunk, sizeof(chunk));
    struct strait_class_stats stats[TEST_TABLES] = {{0, 0}};
    uint64_t values = 0, escapes = 0;
    struct strait_result result;
    struct strait_run run = {.size = sizeof(run), .result = &result, .class_count = TEST_TABLES, .class_stats = stats};
    ck_assert_int_eq(strait_verify(NULL, codebook, chunk, out.bytes, &run), STRAIT_OK);
    ck_assert_int_eq(result.status, STRAIT_OK);
    for (int t = 0; t < TEST_TABLES; t++) {
        values += stats[t].values;
        escapes += stats[t].escapes;
    }
    ck_assert_uint_gt(escapes, 0);
    ck_assert_uint_eq(out.escapes, escapes);
    ck_assert_uint_eq(out.coded_values, values);
    ck_assert_mem_eq(out.values, result.values, sizeof(out.values));
}

static const struct {
    bool has_set;
    int piece;
    enum strait_mode mode;
    uint32_t blocks; /* modes of its blocks */
} tableless[] = {
    {true, 0, STRAIT_MODE_RAW, 1u << STRAIT_BLOCK_RAW},     {false, 0, STRAIT_MODE_TIERED, 1u << STRAIT_BLOCK_RAW},
    {true, 0, STRAIT_MODE_BASE, 1u << STRAIT_BLOCK_BASE},   {true, 6, STRAIT_MODE_BASE, 1u << STRAIT_BLOCK_SPLIT},
    {true, 7, STRAIT_MODE_BASE, 1u << STRAIT_BLOCK_SPLIT},  {false, 6, STRAIT_MODE_SPLIT, 1u << STRAIT_BLOCK_RAW},
    {false, 7, STRAIT_MODE_BASE, 1u << STRAIT_BLOCK_SPLIT}, {true, 6, STRAIT_MODE_TIERED, 1u << STRAIT_BLOCK_RAW},
    {true, 5, STRAIT_MODE_TIERED, 1u << STRAIT_BLOCK_RAW},
};

static void count_exponents(struct world *world, const struct piece *piece, const uint32_t *ids, uint64_t counts[256])
{
    for (uint32_t r = 0; r < piece->region_count; r++)
        for (uint32_t i = 0; i < piece->count; i++) {
            const struct strait_region *region = &world->pool->groups[piece->group].regions[piece->region_first + r];
            for (uint32_t v = 0; v < region->row_bytes / 2; v++)
                counts[get_value(row_at(region, ids[i], 0), v) >> 7 & 255]++;
        }
}

/* Of values that a set was made of, of these beside pages of zeros, which no table codes, and of others. */
TEST(exponents_take_the_bits_that_their_tables_expect)
{
    struct rng rng = rng_init(13);
    uint64_t counts[1][256] = {{0}};
    struct strait_codebook *set;
    fill_pages(&a, &pieces[0], ids_there, &rng, PATTERN_FALLING);
    count_exponents(&a, &pieces[0], ids_there, counts[0]);
    ck_assert_int_eq(strait_codebook_create_counted((const uint64_t(*)[256])counts, NULL, 1, &set), STRAIT_OK);
    jobs_open(codebook, 0);
    struct job_result out = encode(&a, &pieces[0], ids_there, STRAIT_MODE_TIERED, chunk, sizeof(chunk));
    ck_assert_uint_eq(out.exponent_bits + out.expected_bits, 0); /* that set has no counts */
    jobs_open(set, 0);
    pool_choose_tables(a.pool, set);
    for (int zeros = 0; zeros < 2; zeros++) {
        const struct strait_region *region = &a.pool->groups[0].regions[pieces[0].region_first];
        if (zeros != 0)
            memset(row_at(region, ids_there[0], 0), 0, region->row_bytes);
        out = encode(&a, &pieces[0], ids_there, STRAIT_MODE_TIERED, chunk, sizeof(chunk));
        ck_assert_uint_gt(out.expected_bits, 0);
        ck_assert_double_ge((double)out.exponent_bits, 0.99 * (double)out.expected_bits);
        ck_assert_double_le((double)out.exponent_bits, 1.03 * (double)out.expected_bits);
    }
    fill_pages(&a, &pieces[0], ids_there, &rng, PATTERN_MIDDLE);
    out = encode(&a, &pieces[0], ids_there, STRAIT_MODE_TIERED, chunk, sizeof(chunk));
    ck_assert_double_ge((double)out.exponent_bits, 1.1 * (double)out.expected_bits);
    out = encode(&a, &pieces[0], ids_there, STRAIT_MODE_TOP16, chunk, sizeof(chunk));
    ck_assert_uint_eq(out.exponent_bits + out.expected_bits, 0);
    strait_codebook_destroy(set);
}

TEST(a_chunk_without_tables_names_no_codebook_and_is_read_without_one)
{
    static const uint8_t none[STRAIT_CODEBOOK_ID_BYTES];
    const struct strait_class classes[2] = {{0}, {STRAIT_ROLE_K, 0}};
    uint8_t rankings[2][256];
    struct rng rng = rng_init(10);
    struct strait_chunk_info info;
    test_ranking(rankings[0], 1);
    test_ranking(rankings[1], 2);
    strait_codebook_destroy(codebook);
    ck_assert_int_eq(strait_codebook_create((const uint8_t(*)[256])rankings, classes, 2, &codebook), STRAIT_OK);
    open_worlds();
    ck_assert_uint_eq(a.pool->groups[0].regions[0].table, 1); /* which no raw chunk may name */
    ck_assert_uint_eq(a.pool->groups[4].regions[0].table, 1);
    for (int i = 0; i < COUNT(tableless); i++) {
        const struct piece *piece = &pieces[tableless[i].piece];
        struct strait_page_info page;
        fill_pages(&a, piece, ids_there, &rng, PATTERN_FALLING);
        jobs_open(tableless[i].has_set ? codebook : no_codebook, 0);
        struct job_result out = encode(&a, piece, ids_there, tableless[i].mode, chunk, sizeof(chunk));
        ck_assert_int_eq(out.reason, STRAIT_REASON_NONE);
        ck_assert_uint_eq(out.coded_values + out.escapes, 0);
        ck_assert_int_eq(strait_chunk_info(chunk, out.bytes, &info), STRAIT_OK);
        ck_assert_mem_eq(info.codebook_id, none, sizeof(none));
        ck_assert_int_eq(strait_chunk_pages(chunk, out.bytes, 1, &page), STRAIT_OK);
        ck_assert_msg(page.block_modes == tableless[i].blocks, "%d: %x", i, page.block_modes);
        jobs_open(no_codebook, 0);
        ck_assert_int_eq(decode(&b, piece, ids_here, chunk, out.bytes).reason, STRAIT_REASON_NONE);
        arrived(&a, ids_there, &b, ids_here, piece);
    }
}

TEST(a_chunk_of_another_codebook_is_refused_and_nothing_is_written)
{
    struct rng rng = rng_init(11);
    uint8_t ranking[1][256];
    struct strait_codebook *other;
    test_ranking(ranking[0], 4);
    ck_assert_int_eq(strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &other), STRAIT_OK);
    fill_pages(&a, &pieces[0], ids_there, &rng, PATTERN_FALLING);
    jobs_open(codebook, 0);
    struct job_result out = encode(&a, &pieces[0], ids_there, STRAIT_MODE_TIERED, chunk, sizeof(chunk));
    for (int set = 0; set < 2; set++) {
        jobs_open(set == 0 ? other : no_codebook, 0);
        ck_assert_int_eq(decode(&b, &pieces[0], ids_here, chunk, out.bytes).reason, STRAIT_REASON_CODEC);
        ck_assert(is_filled(b.memory, b.size, CANARY));
    }
    strait_codebook_destroy(other);
}

TEST(after_a_reload_chunks_of_the_two_sets_before_are_decoded_and_older_ones_refused)
{
    struct rng rng = rng_init(12);
    uint8_t ranking[1][256];
    fill_pages(&a, &pieces[0], ids_there, &rng, PATTERN_FALLING);
    jobs_open(codebook, 0);
    struct job_result out = encode(&a, &pieces[0], ids_there, STRAIT_MODE_TIERED, chunk, sizeof(chunk));
    struct told told = {0};
    /* A job that has begun goes on with its set, though nobody else has it any more. */
    enum strait_status started = job_encode(jobs, a.pool, &pieces[0], ids_there, STRAIT_MODE_TIERED,
                                            CHUNK(other_chunk, sizeof(other_chunk)), on_told, &told, 1);
    struct codebooks *in_force = codebooks_of(codebook, NULL);
    for (uint32_t reload = 0; reload < CODEBOOKS_KEPT; reload++) {
        struct strait_codebook *other;
        test_ranking(ranking[0], 4 - reload);
        ck_assert_int_eq(strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &other), STRAIT_OK);
        struct codebooks *next = codebooks_of(other, in_force);
        codebooks_release(in_force);
        in_force = next;
        jobs_set_codebooks(jobs, in_force);
        pool_choose_tables(a.pool, other);
        strait_codebook_destroy(other);
        if (reload == 0)
            ck_assert_int_eq(finish(&told, started).reason, STRAIT_REASON_NONE);
        bool kept = reload + 1 < CODEBOOKS_KEPT;
        ck_assert_int_eq(decode(&b, &pieces[0], ids_here, chunk, out.bytes).reason,
                         kept ? STRAIT_REASON_NONE : STRAIT_REASON_CODEC);
        if (kept)
            arrived(&a, ids_there, &b, ids_here, &pieces[0]);
    }
    codebooks_release(in_force);
}

TEST(a_set_that_is_loaded_again_is_kept_once)
{
    struct strait_codebook *other;
    uint8_t ranking[1][256];
    test_ranking(ranking[0], 4);
    ck_assert_int_eq(strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &other), STRAIT_OK);
    struct codebooks *in_force = codebooks_of(other, NULL);
    for (uint32_t reload = 0; reload < 2 * CODEBOOKS_KEPT; reload++) {
        struct codebooks *next = codebooks_of(reload % 2 == 0 ? codebook : NULL, in_force);
        codebooks_release(in_force);
        in_force = next;
        ck_assert_mem_eq(strait_codebook_id(codebooks_find(in_force, strait_codebook_id(other))),
                         strait_codebook_id(other), STRAIT_CODEBOOK_ID_BYTES);
        ck_assert((codebooks_current(in_force) == NULL) == (reload % 2 != 0));
    }
    codebooks_release(in_force);
    strait_codebook_destroy(other);
}

TEST(a_chunk_that_does_not_fit_its_slot_is_not_written)
{
    jobs_open(codebook, 0);
    struct job_result out = encode(&a, &pieces[0], ids_there, STRAIT_MODE_AUTO, chunk, raw_bytes(&pieces[0]));
    ck_assert_int_eq(out.reason, STRAIT_REASON_GEOMETRY);
    ck_assert_uint_eq(out.bytes, 0);
}

/* ---- Hostile chunks ---------------------------------------------------------------------------------------------- */

TEST_LOOP(a_chunk_of_other_pages_is_refused_and_nothing_is_written, 2)
{
    jobs_open(codebook, _i == 1 ? UINT64_MAX : 0);
    struct job_result out = make_chunk(0, STRAIT_MODE_TIERED);
    struct piece others[] = {pieces[0], pieces[0], pieces[0], {.group = 1, .region_count = 2, .count = 7}};
    others[0].count--;
    others[1].region_count--;
    others[2].count = 1;
    for (int i = 0; i < COUNT(others); i++)
        ck_assert_int_eq(decode(&b, &others[i], ids_here, chunk, out.bytes).reason, STRAIT_REASON_CODEC);
    const struct piece four = {.group = 1, .region_count = 2, .count = 2}; /* as many pages, of another size */
    out = encode(&a, &(struct piece){.group = 0, .region_count = 4, .count = 1}, ids_there, STRAIT_MODE_RAW, chunk,
                 sizeof(chunk));
    ck_assert_int_eq(decode(&b, &four, ids_here, chunk, out.bytes).reason, STRAIT_REASON_CODEC);
    const struct piece bytes = {.group = 2, .region_count = 1, .count = 4}; /* and of another element */
    ck_assert_int_eq(decode(&b, &bytes, ids_here, chunk, out.bytes).reason, STRAIT_REASON_CODEC);
    ck_assert(is_filled(b.memory, b.size, CANARY));
}

TEST(equal_bytes_of_another_element_type_are_refused)
{
    struct wire_region region = with_rows(region_of(0, 0, STRAIT_ROLE_K, 0), 1, 4096, 0, 4096, STRAIT_ELEMENT_BF16);
    const struct piece piece = {.region_count = 1, .count = 3};
    world_open(&a, &region, 1, ROOM);
    region.element = STRAIT_ELEMENT_FP16;
    world_open(&b, &region, 1, ROOM);
    jobs_open(no_codebook, 0);
    struct job_result out = encode(&a, &piece, ids_there, STRAIT_MODE_RAW, chunk, sizeof(chunk));
    ck_assert_int_eq(decode(&b, &piece, ids_here, chunk, out.bytes).reason, STRAIT_REASON_CODEC);
    ck_assert_int_eq(decode(&a, &piece, ids_here, chunk, out.bytes).reason, STRAIT_REASON_NONE);
}

TEST(a_chunk_cut_short_is_refused_and_its_end_is_not_read)
{
    jobs_open(codebook, UINT64_MAX);
    struct job_result out = make_chunk(2, STRAIT_MODE_TIERED);
    for (uint64_t size = 0; size < out.bytes; size += size < 400 ? 1 : 97) {
        struct guarded cut;
        guarded_init(&cut, size);
        memcpy(cut.bytes, chunk, size);
        ck_assert_int_eq(decode(&b, &pieces[2], ids_here, cut.bytes, size).reason, STRAIT_REASON_CODEC);
        guarded_fini(&cut);
    }
    ck_assert_int_eq(decode(&b, &pieces[2], ids_here, chunk, out.bytes + 16).reason, STRAIT_REASON_CODEC);
    ck_assert(is_filled(b.memory, b.size, CANARY));
}

TEST_LOOP(a_damaged_chunk_fails_and_only_its_pages_are_touched, COUNT(modes))
{
    struct rng rng = rng_init(21);
    jobs_open(codebook, UINT64_MAX);
    struct job_result out = make_chunk(4, modes[_i]);
    int integrity = 0, codec = 0;
    for (uint64_t bit = 0; bit < 8 * out.bytes; bit += (bit < 8 * 128 ? 1 : 1 + rng_below(&rng, 5000)) * STRIDE) {
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
        enum strait_reason reason = decode(&b, &pieces[4], ids_here, chunk, out.bytes).reason;
        ck_assert_msg(reason == STRAIT_REASON_CODEC || reason == STRAIT_REASON_INTEGRITY, "bit %llu: reason %d",
                      (unsigned long long)bit, reason);
        integrity += reason == STRAIT_REASON_INTEGRITY;
        codec += reason == STRAIT_REASON_CODEC;
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    ck_assert_int_gt(integrity, 0);
    ck_assert_int_gt(codec, 0);
    ck_assert(only_pages_touched(&b, &pieces[4], ids_here));
    ck_assert_int_eq(decode(&b, &pieces[4], ids_here, chunk, out.bytes).reason, STRAIT_REASON_NONE);
    arrived(&a, ids_there, &b, ids_here, &pieces[4]);
}

#if !defined(__SANITIZE_THREAD__) /* the race is the point, and what the decoder is made to bear */

struct vandal {
    uint64_t size;
    int stop;
};

/* Flips bytes, mostly of the metadata, and puts them back. */
static void *vandalise(void *arg)
{
    struct vandal *vandal = arg;
    struct rng rng = rng_init(22);
    while (!__atomic_load_n(&vandal->stop, __ATOMIC_RELAXED)) {
        uint64_t at = rng_below(&rng, (uint32_t)(rng_below(&rng, 4) == 0 ? vandal->size : 256));
        uint8_t with = (uint8_t)(1 + rng_below(&rng, 255));
        __atomic_fetch_xor(&chunk[at], with, __ATOMIC_RELAXED);
        for (uint32_t i = rng_below(&rng, 2000); i > 0; i--)
            __atomic_load_n(&vandal->stop, __ATOMIC_RELAXED);
        __atomic_fetch_xor(&chunk[at], with, __ATOMIC_RELAXED);
    }
    return NULL;
}

TEST_RANGE(a_chunk_that_changes_under_the_decoder_harms_no_other_page, 1, COUNT(modes))
{
    pthread_t thread;
    jobs_open(codebook, UINT64_MAX);
    struct vandal vandal = {.size = make_chunk(3, modes[_i]).bytes};
    int failed = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, vandalise, &vandal), 0);
    /* Until the thread has had its turns: on a busy machine it may get none for a while. */
    for (int i = 0; i < 600 || (failed == 0 && i < 200000); i++) {
        enum strait_reason reason = decode(&b, &pieces[3], ids_here, chunk, vandal.size).reason;
        ck_assert(reason == STRAIT_REASON_NONE || reason == STRAIT_REASON_CODEC || reason == STRAIT_REASON_INTEGRITY);
        failed += reason != STRAIT_REASON_NONE;
        if (reason == STRAIT_REASON_NONE)
            arrived(&a, ids_there, &b, ids_here, &pieces[3]);
    }
    __atomic_store_n(&vandal.stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    ck_assert_int_gt(failed, 0);
    ck_assert(only_pages_touched(&b, &pieces[3], ids_here));
}
#endif

/* ---- Copy -------------------------------------------------------------------------------------------------------- */

TEST_LOOP(pages_are_copied_whatever_their_rows_and_nothing_else_is_written, 2)
{
    struct rng rng = rng_init(30);
    jobs_open(no_codebook, _i == 0 ? 0 : UINT64_MAX);
    for (int p = 0; p < COUNT(pieces); p++) {
        fill_pages(&a, &pieces[p], ids_there, &rng, PATTERN_NOISE);
        struct job_result result = copy(&a, ids_there, &b, ids_here, &pieces[p]);
        ck_assert_int_eq(result.reason, STRAIT_REASON_NONE);
        ck_assert_uint_eq(result.bytes, raw_bytes(&pieces[p]));
        ck_assert_uint_eq(result.raw_bytes, raw_bytes(&pieces[p]));
        arrived(&a, ids_there, &b, ids_here, &pieces[p]);
        ck_assert(only_pages_touched(&b, &pieces[p], ids_here));
        ck_assert(only_pages_touched(&a, &pieces[p], ids_there));
    }
}

/* Pieces large enough for stores past the caches: pages of odd sizes at odd places, with and without rows. */
TEST_LOOP(large_pieces_are_copied_to_the_byte, 2)
{
    const uint32_t rows = _i == 0 ? 1 : 37, row_bytes = _i == 0 ? 98765 : 2669;
    const struct piece piece = {.region_count = 1, .count = 24};
    struct wire_region there =
        with_rows(region_of(0, 0, STRAIT_ROLE_K, 3), rows, row_bytes, row_bytes + 5, 200001, STRAIT_ELEMENT_BYTES);
    struct wire_region here = with_rows(region_of(0, 0, STRAIT_ROLE_K, 61), rows, row_bytes, row_bytes + (uint64_t)_i,
                                        (uint64_t)rows * (row_bytes + (uint64_t)_i) + 1, STRAIT_ELEMENT_BYTES);
    struct rng rng = rng_init(31);
    uint32_t from[24], to[24];
    for (uint32_t i = 0; i < 24; i++) {
        from[i] = i * 7 % 24;
        to[i] = i * 11 % 24;
    }
    world_open(&a, &there, 1, BIG_ROOM);
    world_open(&b, &here, 1, BIG_ROOM);
    jobs_open(no_codebook, 1 << 16);
    fill_pages(&a, &piece, from, &rng, PATTERN_NOISE);
    ck_assert_int_eq(copy(&a, from, &b, to, &piece).reason, STRAIT_REASON_NONE);
    arrived(&a, from, &b, to, &piece);
    ck_assert(only_pages_touched(&b, &piece, to));
}

TEST(pages_are_copied_within_one_pool_and_onto_themselves)
{
    const uint32_t same[] = {2}, from[] = {4, 5, 6}, to[] = {14, 15, 2};
    const struct piece three = {.group = 1, .region_count = 2, .count = 3},
                       one = {.group = 1, .region_count = 2, .count = 1};
    struct rng rng = rng_init(32);
    jobs_open(no_codebook, 0);
    fill_pages(&a, &three, from, &rng, PATTERN_NOISE);
    ck_assert_int_eq(copy(&a, from, &a, to, &three).reason, STRAIT_REASON_NONE);
    arrived(&a, from, &a, to, &three);
    ck_assert_int_eq(copy(&a, same, &a, same, &one).reason, STRAIT_REASON_NONE);
    arrived(&a, from, &a, to, &three);
}

TEST(streamed_copies_are_memcpy_at_every_offset_and_size)
{
    uint8_t src[600], dst[600], expected[600];
    struct rng rng = rng_init(33);
    rng_fill(&rng, src, sizeof(src));
    for (size_t to = 0; to < 64; to++)
        for (size_t size = 0; size < 330; size += STRIDE) {
            size_t from = rng_below(&rng, 64);
            memset(dst, CANARY, sizeof(dst));
            memset(expected, CANARY, sizeof(expected));
            memcpy(expected + to, src + from, size);
            stream_copy(dst + to, src + from, size);
            stream_flush();
            ck_assert_mem_eq(dst, expected, sizeof(dst));
        }
}

/* ---- Pieces that are none ---------------------------------------------------------------------------------------- */

TEST(a_piece_that_is_none_of_the_pools_makes_no_job)
{
    static const struct piece none[] = {
        {.group = GROUPS, .region_count = 1, .count = 1},
        {.group = UINT32_MAX, .region_count = 1, .count = 1},
        {.group = 0, .region_count = 0, .count = 1},
        {.group = 0, .region_count = 1, .count = 0},
        {.group = 0, .region_count = 5, .count = 1},
        {.group = 0, .region_first = 3, .region_count = 2, .count = 1},
        {.group = 0, .region_first = UINT32_MAX, .region_count = 2, .count = 1},
    };
    const uint32_t beyond[] = {1, PAGES};
    const struct piece two = {.group = 0, .region_count = 1, .count = 2};
    struct told told = {0};
    jobs_open(codebook, 0);
    for (int i = 0; i <= COUNT(none); i++) {
        const struct piece *piece = i < COUNT(none) ? &none[i] : &two;
        const uint32_t *ids = i < COUNT(none) ? ids_here : beyond;
        ck_assert_int_eq(
            job_encode(jobs, a.pool, piece, ids, STRAIT_MODE_AUTO, CHUNK(chunk, sizeof(chunk)), on_told, &told, 0),
            STRAIT_ERR_INVALID);
        ck_assert_int_eq(job_decode(jobs, a.pool, piece, ids, CHUNK(chunk, sizeof(chunk)), on_told, &told, 0),
                         STRAIT_ERR_INVALID);
        ck_assert_int_eq(job_copy(jobs, a.pool, ids, b.pool, ids_here, piece, on_told, &told, 0), STRAIT_ERR_INVALID);
        ck_assert_int_eq(job_copy(jobs, a.pool, ids_here, b.pool, ids, piece, on_told, &told, 0), STRAIT_ERR_INVALID);
    }
    ck_assert_uint_eq(jobs_running(jobs), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(told.count, 0);
}

TEST(pages_of_another_size_are_not_copied)
{
    struct wire_region region = with_rows(region_of(0, 0, STRAIT_ROLE_K, 0), 2, 64, 64, 128, STRAIT_ELEMENT_BF16);
    const struct piece piece = {.region_count = 1, .count = 1};
    struct told told = {0};
    world_open(&a, &region, 1, ROOM);
    region.rows = 1;
    world_open(&b, &region, 1, ROOM);
    jobs_open(codebook, 0);
    ck_assert_int_eq(job_copy(jobs, a.pool, ids_here, b.pool, ids_here, &piece, on_told, &told, 0), STRAIT_ERR_INVALID);
}

/* ---- When it is told --------------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer)
{
    *(bool *)timer->data = true;
}

static void on_closed(uv_handle_t *handle)
{
    (void)handle;
}

TEST(small_jobs_are_told_of_in_the_next_turn_which_does_not_wait)
{
    struct told told = {0};
    bool waited = false;
    uv_timer_t timer;
    jobs_open(codebook, raw_bytes(&pieces[0]));
    uv_timer_init(&loop, &timer);
    timer.data = &waited;
    uv_timer_start(&timer, on_timer, 60000, 0);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(job_encode(jobs, a.pool, &pieces[0], ids_there, STRAIT_MODE_RAW, CHUNK(chunk, sizeof(chunk)),
                                    on_told, &told, (uint64_t)i),
                         STRAIT_OK);
    ck_assert_int_eq(told.count, 0);
    ck_assert_uint_eq(jobs_running(jobs), 5);
    uv_run(&loop, UV_RUN_ONCE);
    ck_assert_int_eq(told.count, 5);
    ck_assert_uint_eq(told.cookie, 4); /* in their order */
    ck_assert(!waited);
    uv_close((uv_handle_t *)&timer, on_closed);
    uv_run(&loop, UV_RUN_DEFAULT);
}

/* One that is all of its request runs at once, unless another is under way; others of its size go to a worker. */
TEST(a_job_that_nothing_can_overlap_with_waits_for_no_worker)
{
    struct told told = {0};
    uint8_t *const bytes = malloc(sizeof(chunk));
    const struct job_chunk all = {.bytes = bytes, .size = sizeof(chunk), .alone = true};
    require(raw_bytes(&pieces[0]) > 1);
    for (int other = 0; other < 2; other++) {
        jobs_open(codebook, 1);
        if (other)
            ck_assert_int_eq(job_encode(jobs, a.pool, &pieces[0], ids_there, STRAIT_MODE_RAW,
                                        CHUNK(chunk, sizeof(chunk)), on_told, &told, 0),
                             STRAIT_OK);
        ck_assert_int_eq(job_encode(jobs, a.pool, &pieces[0], ids_there, STRAIT_MODE_RAW, &all, on_told, &told, 1),
                         STRAIT_OK);
        told.count = 0;
        ck_assert_int_eq(!other, jobs_report(jobs));
        ck_assert_int_eq(!other, told.count);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(1 + other, told.count);
        ck_assert(!jobs_report(jobs));
    }
    free(bytes);
}

struct chain {
    int left, inside;
};

static void on_link(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct chain *chain = owner;
    ck_assert_int_eq(chain->inside++, 0);
    ck_assert_uint_eq(cookie, (uint64_t)chain->left);
    ck_assert_int_eq(result->reason, STRAIT_REASON_NONE);
    if (--chain->left > 0)
        ck_assert_int_eq(job_encode(jobs, a.pool, &pieces[chain->left % 2], ids_there, STRAIT_MODE_AUTO,
                                    CHUNK(chunk, sizeof(chunk)), on_link, chain, (uint64_t)chain->left),
                         STRAIT_OK);
    else
        jobs_destroy(jobs); /* the last job: none is left */
    chain->inside--;
}

TEST_LOOP(callbacks_may_start_jobs_and_the_last_one_may_end_them, 3)
{
    struct chain chain = {.left = 50};
    const uint64_t small[] = {0, UINT64_MAX, raw_bytes(&pieces[1])}; /* workers, in place, by turns */
    jobs_open(codebook, small[_i]);
    ck_assert_int_eq(job_encode(jobs, a.pool, &pieces[0], ids_there, STRAIT_MODE_AUTO, CHUNK(chunk, sizeof(chunk)),
                                on_link, &chain, 50),
                     STRAIT_OK);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(chain.left, 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    jobs = NULL;
}

TEST(ids_are_the_jobs_own)
{
    uint32_t ids[7];
    struct told told = {0};
    struct piece piece = pieces[0];
    jobs_open(codebook, 0);
    struct job_result out = make_chunk(0, STRAIT_MODE_RAW);
    memcpy(ids, ids_here, sizeof(ids));
    ck_assert_int_eq(job_decode(jobs, b.pool, &piece, ids, CHUNK(chunk, out.bytes), on_told, &told, 0), STRAIT_OK);
    memset(ids, 0xFF, sizeof(ids));
    memset(&piece, 0xFF, sizeof(piece));
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(told.result.reason, STRAIT_REASON_NONE);
    arrived(&a, ids_there, &b, ids_here, &pieces[0]);
}

/* ---- Many at once ------------------------------------------------------------------------------------------------ */

TEST(jobs_run_side_by_side)
{
    enum { MANY = 64 };
    static uint8_t chunks[MANY][40000];
    struct told told[MANY], in[MANY];
    struct rng rng = rng_init(40);
    const struct piece piece = {.group = 0, .region_count = 4, .count = 1};
    const struct piece all = {.group = 0, .region_count = 4, .count = PAGES};
    uint32_t ids[PAGES];
    for (uint32_t i = 0; i < PAGES; i++)
        ids[i] = i;
    memset(told, 0, sizeof(told));
    memset(in, 0, sizeof(in));
    jobs_open(codebook, 0);
    fill_pages(&a, &all, ids, &rng, PATTERN_RARE);
    for (uint32_t i = 0; i < MANY; i++)
        ck_assert_int_eq(job_encode(jobs, a.pool, &piece, &ids[i % PAGES], STRAIT_MODE_TIERED,
                                    CHUNK(chunks[i], sizeof(chunks[i])), on_told, &told[i], i),
                         STRAIT_OK);
    ck_assert_uint_eq(jobs_running(jobs), MANY);
    uv_run(&loop, UV_RUN_DEFAULT);
    for (uint32_t i = 0; i < PAGES; i++)
        ck_assert_int_eq(
            job_decode(jobs, b.pool, &piece, &ids[i], CHUNK(chunks[i], told[i].result.bytes), on_told, &in[i], i),
            STRAIT_OK);
    uv_run(&loop, UV_RUN_DEFAULT);
    for (uint32_t i = 0; i < MANY; i++) {
        ck_assert_int_eq(told[i].count, 1);
        ck_assert_uint_eq(told[i].cookie, i);
        ck_assert_int_eq(in[i].count, i < PAGES);
        ck_assert_int_eq(in[i].result.reason, STRAIT_REASON_NONE);
    }
    arrived(&a, ids, &b, ids, &all);
    ck_assert(only_pages_touched(&b, &all, ids));
}

struct called {
    pthread_t worker, teller;
    int worked, done;
};

static void work_call(void *arg)
{
    struct called *called = arg;
    called->worker = pthread_self();
    called->worked++;
}

static void on_call(void *arg)
{
    struct called *called = arg;
    called->teller = pthread_self();
    ck_assert_int_eq(called->worked, 1);
    called->done++;
}

TEST(any_function_runs_on_a_worker_and_is_told_of_on_the_loop)
{
    struct called called = {.worked = 0};
    jobs_open(no_codebook, UINT64_MAX);
    ck_assert_int_eq(job_call(jobs, work_call, on_call, &called), STRAIT_OK);
    ck_assert_uint_eq(jobs_running(jobs), 1);
    ck_assert_int_eq(called.done, 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(called.done, 1);
    ck_assert(!pthread_equal(called.worker, pthread_self()));
    ck_assert(pthread_equal(called.teller, pthread_self()));
}

int main(void)
{
    print_conditions();
    return run_tests("job", setup, teardown);
}
