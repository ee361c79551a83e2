/* Worlds are memfds that are mapped twice: by the test, which looks at all bytes, and by the pool. */
#include "tests/memory/job_harness.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/run_suite.h"

uv_loop_t loop;
struct jobs *jobs;
const struct strait_codebook *no_codebook;
struct strait_codebook *codebook;
uint8_t chunk[1 << 20];
const uint32_t ids_there[IDS] = {5, 0, 23, 7, 8, 9, 1}, ids_here[IDS] = {3, 22, 4, 10, 0, 11, 23};
const struct piece pieces[PIECES] = {{.group = 0, .region_count = 4, .count = 7},
                                     {.group = 0, .region_first = 1, .region_count = 2, .count = 3},
                                     {.group = 0, .region_first = 3, .region_count = 1, .count = 1},
                                     {.group = 1, .region_count = 2, .count = 7},
                                     {.group = 1, .region_first = 1, .region_count = 1, .count = 2},
                                     {.group = 2, .region_count = 1, .count = 5}};

/* ---- Pools with canaries ----------------------------------------------------------------------------------------- */

void world_open(struct world *world, const struct wire_region *regions, uint32_t count, size_t size)
{
    char why[256];
    struct message_pool_register registration = {.fd_count = 1, .region_count = count, .regions = regions};
    world->size = size;
    world->fd = memfd_create("world", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    require(ftruncate(world->fd, (off_t)size) == 0 && fcntl(world->fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    world->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, world->fd, 0);
    require(world->memory != MAP_FAILED);
    memset(world->memory, CANARY, size);
    const struct pool_context context = {.bytes_max = UINT64_MAX, .codebook = codebook};
    enum strait_status status = pool_map(&registration, &world->fd, &context, &world->pool, why, sizeof(why));
    ck_assert_msg(status == STRAIT_OK, "%s: %s", strait_status_string(status), why);
}

void world_close(struct world *world)
{
    pool_unmap(world->pool);
    munmap(world->memory, world->size);
    close(world->fd);
}

struct wire_region region_of(uint32_t group, int32_t layer, enum strait_role role, uint64_t offset)
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

struct wire_region with_rows(struct wire_region region, uint32_t rows, uint32_t row_bytes, uint64_t row_stride,
                             uint64_t page_stride, enum strait_element element)
{
    region.rows = rows;
    region.row_bytes = row_bytes;
    region.row_stride = row_stride;
    region.page_stride = page_stride;
    region.element = element;
    return region;
}

enum { REGIONS = 7 };

/* `other` gives the same pages other places. */
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
}

void open_worlds(struct world *a, struct world *b)
{
    struct wire_region regions[REGIONS];
    world_regions(regions, false);
    world_open(a, regions, REGIONS, ROOM);
    world_regions(regions, true);
    world_open(b, regions, REGIONS, ROOM);
}

static uint8_t *row_at(const struct strait_region *region, uint32_t id, uint32_t row)
{
    return (uint8_t *)region->base + id * region->page_stride + row * (region->rows > 1 ? region->row_stride : 0);
}

void fill_pages(struct world *world, const struct piece *piece, const uint32_t *ids, struct rng *rng,
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

void arrived(const struct world *a, const uint32_t *a_ids, struct world *b, const uint32_t *b_ids,
             const struct piece *piece)
{
    for (uint32_t r = 0; r < piece->region_count; r++)
        for (uint32_t i = 0; i < piece->count; i++) {
            const struct strait_region *from = &a->pool->groups[piece->group].regions[piece->region_first + r];
            const struct strait_region *to = &b->pool->groups[piece->group].regions[piece->region_first + r];
            for (uint32_t row = 0; row < from->rows; row++)
                ck_assert_mem_eq(row_at(from, a_ids[i], row), row_at(to, b_ids[i], row), from->row_bytes);
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

bool only_pages_touched(struct world *world, const struct piece *piece, const uint32_t *ids)
{
    wipe_pages(world, piece, ids);
    return is_filled(world->memory, world->size, CANARY);
}

/* ---- Jobs -------------------------------------------------------------------------------------------------------- */

void on_told(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct told *told = owner;
    told->count++;
    told->cookie = cookie;
    told->result = *result;
}

void jobs_open(const struct strait_codebook *set, uint64_t small_bytes)
{
    require(uv_loop_init(&loop) == 0);
    ck_assert_int_eq(jobs_create(&loop, set, small_bytes, &jobs), STRAIT_OK);
}

void jobs_close(void)
{
    ck_assert_uint_eq(jobs_running(jobs), 0);
    jobs_destroy(jobs);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
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

struct job_result encode(struct world *world, const struct piece *piece, const uint32_t *ids, enum strait_mode mode,
                         void *dst, uint64_t capacity)
{
    struct told told = {0};
    return finish(&told, job_encode(jobs, world->pool, piece, ids, mode, CHUNK(dst, capacity), on_told, &told, 1));
}

struct job_result decode(struct world *world, const struct piece *piece, const uint32_t *ids, const void *src,
                         uint64_t size)
{
    struct told told = {0};
    return finish(&told,
                  job_decode(jobs, world->pool, piece, ids, CHUNK((void *)(uintptr_t)src, size), on_told, &told, 2));
}

struct job_result copy(struct world *src, const uint32_t *src_ids, struct world *dst, const uint32_t *dst_ids,
                       const struct piece *piece)
{
    struct told told = {0};
    return finish(&told, job_copy(jobs, src->pool, src_ids, dst->pool, dst_ids, piece, on_told, &told, 3));
}

/* ---- What they work on ------------------------------------------------------------------------------------------- */

uint64_t raw_bytes(const struct piece *piece)
{
    const uint64_t bytes[GROUPS] = {8192, 15000, 1001};
    return bytes[piece->group] * piece->region_count * piece->count;
}

struct job_result make_chunk(struct world *a, int piece, enum strait_mode mode)
{
    struct rng rng = rng_init(20);
    fill_pages(a, &pieces[piece], ids_there, &rng, PATTERN_RARE);
    return encode(a, &pieces[piece], ids_there, mode, chunk, sizeof(chunk));
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static void make_codebook(void)
{
    codebook = test_codebook();
}

static void drop_codebook(void)
{
    strait_codebook_destroy(codebook);
}

TCase *job_case(void)
{
    TCase *tcase = tcase_create("job");
    tcase_add_checked_fixture(tcase, make_codebook, drop_codebook);
    return tcase;
}

int job_main(const char *name, TCase *tcase)
{
    print_conditions();
    Suite *suite = suite_create(name);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
