/* Pools: what a client may register, how it is mapped, who uses which page, the codebook that the daemon has for
 * them, and GPUs that are missing. */
#include <check.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/device/devices.h"
#include "daemon/memory/codebooks.h"
#include "daemon/memory/pool.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { PAGE = 4096, PAGES = 16, BYTES = 4 * PAGE * PAGES, WHY = 256 };

static char why[WHY]; /* of the last refusal */
static int fds[4];    /* memfds of BYTES bytes, sealed */

/* ---- Registrations ----------------------------------------------------------------------------------------------- */

static int make_memfd(size_t size, int seals)
{
    int fd = memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    for (size_t at = 0; at < size; at += PAGE) /* its owner has touched it */
        ck_assert_int_eq(pwrite(fd, "", 1, (off_t)at), 1);
    ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void open_fds(void)
{
    for (int i = 0; i < COUNT(fds); i++)
        fds[i] = make_memfd(BYTES, F_SEAL_SHRINK);
}

static void close_fds(void)
{
    for (int i = 0; i < COUNT(fds); i++)
        close(fds[i]);
}

/* One of several layers, each in a quarter of a memfd. */
static struct wire_region layer_region(int32_t layer)
{
    return (struct wire_region){.handle = STRAIT_HANDLE_MEMFD,
                                .device = -1,
                                .offset = (uint64_t)layer * PAGE * PAGES,
                                .page_stride = PAGE,
                                .page_count = PAGES,
                                .rows = 1,
                                .row_bytes = PAGE,
                                .element = STRAIT_ELEMENT_BF16,
                                .role = STRAIT_ROLE_K,
                                .layer = layer,
                                .heads = 8};
}

static enum strait_status map_all(const struct wire_region *regions, uint32_t count, bool embedded, uint64_t bytes_max,
                                  struct pool **pool)
{
    struct message_pool_register registration = {.pool = {{7, 8, 9}},
                                                 .fd_count = COUNT(fds),
                                                 .coding = STRAIT_CODING_TOP16,
                                                 .region_count = count,
                                                 .regions = regions};
    const struct pool_context context = {.embedded = embedded, .bytes_max = bytes_max};
    return pool_map(&registration, fds, &context, pool, why, sizeof(why));
}

static struct pool *map_good(const struct wire_region *regions, uint32_t count, bool embedded)
{
    struct pool *pool = NULL;
    enum strait_status status = map_all(regions, count, embedded, UINT64_MAX, &pool);
    ck_assert_msg(status == STRAIT_OK, "%s: %s", strait_status_string(status), why);
    return pool;
}

/* How often memfds are mapped into this process. */
static int mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, "memfd:pool") != NULL;
    fclose(maps);
    return count;
}

/* Requires the refusal, and that nothing stays mapped. */
static void refused(const struct wire_region *regions, uint32_t count, bool embedded, enum strait_status with)
{
    struct pool *untouched = (struct pool *)why;
    struct pool *pool = untouched;
    enum strait_status status = map_all(regions, count, embedded, UINT64_MAX, &pool);
    ck_assert_msg(status == with, "%s: %s", strait_status_string(status), why);
    ck_assert_ptr_eq(pool, untouched);
    ck_assert_uint_gt(strlen(why), 10); /* says something */
    ck_assert_int_eq(mappings(), 0);
}

/* ---- One region that cannot be ----------------------------------------------------------------------------------- */

struct change {
    size_t offset, size;
    uint64_t value;
};

#define SET(field, value)                                                                                \
    {                                                                                                    \
        offsetof(struct wire_region, field), sizeof(((struct wire_region *)0)->field), (uint64_t)(value) \
    }

struct bad_region {
    enum strait_status status;
    struct change changes[7];
};

static const struct bad_region bad_regions[] = {
    {STRAIT_ERR_UNSUPPORTED, {SET(handle, 0)}},
    {STRAIT_ERR_UNSUPPORTED, {SET(handle, 5)}},
    {STRAIT_ERR_INVALID, {SET(handle, STRAIT_HANDLE_CUDA_IPC), SET(device, 0)}},
    {STRAIT_ERR_INVALID, {SET(handle, STRAIT_HANDLE_CUDA_VMM)}},
    {STRAIT_ERR_UNSUPPORTED, {SET(handle, STRAIT_HANDLE_CUDA_VMM), SET(device, 0)}},
    {STRAIT_ERR_INVALID, {SET(device, 0)}},
    {STRAIT_ERR_INVALID, {SET(device, -2)}},
    {STRAIT_ERR_INVALID, {SET(handle, STRAIT_HANDLE_POINTER), SET(pointer, 4096)}},
    {STRAIT_ERR_INVALID, {SET(fd, 4)}},
    {STRAIT_ERR_INVALID, {SET(fd, UINT32_MAX)}},
    {STRAIT_ERR_UNSUPPORTED, {SET(element, 6)}},
    {STRAIT_ERR_UNSUPPORTED, {SET(role, 4)}},
    {STRAIT_ERR_UNSUPPORTED, {SET(layout, 3)}},
    {STRAIT_ERR_INVALID, {SET(layer, -2)}},
    {STRAIT_ERR_INVALID, {SET(group, 1)}}, /* no group 0 */
    {STRAIT_ERR_INVALID, {SET(group, STRAIT_GROUPS_MAX)}},
    /* Sizes. */
    {STRAIT_ERR_INVALID, {SET(page_count, 0)}},
    {STRAIT_ERR_INVALID, {SET(rows, 0)}},
    {STRAIT_ERR_INVALID, {SET(row_bytes, 0)}},
    {STRAIT_ERR_INVALID, {SET(page_count, PAGES * 4 + 1)}}, /* a page too many for the memfd */
    {STRAIT_ERR_INVALID, {SET(offset, 3 * PAGE * PAGES + 2)}},
    {STRAIT_ERR_INVALID, {SET(page_count, 1), SET(row_bytes, STRAIT_PAGE_BYTES_MAX + 2)}},
    {STRAIT_ERR_INVALID,
     {SET(page_count, 1), SET(rows, 65536), SET(row_bytes, 65536), SET(row_stride, 65536)}}, /* 2^32 */
    {STRAIT_ERR_INVALID, {SET(page_count, UINT32_MAX)}},
    {STRAIT_ERR_INVALID,
     {SET(page_count, UINT32_MAX), SET(page_stride, 2), SET(row_bytes, 2)}}, /* ids beyond the limit */
    /* Overflow: of offset, of pages, of rows, of their sums. */
    {STRAIT_ERR_INVALID, {SET(offset, UINT64_MAX - 1)}},
    {STRAIT_ERR_INVALID, {SET(offset, (uint64_t)1 << 63)}},
    {STRAIT_ERR_INVALID, {SET(offset, -(uint64_t)PAGE *PAGES)}}, /* ends at 0 */
    {STRAIT_ERR_INVALID, {SET(page_stride, UINT64_MAX - 1)}},
    {STRAIT_ERR_INVALID, {SET(page_stride, (uint64_t)1 << 63), SET(page_count, 3)}}, /* 2 * 2^63 is 0 */
    {STRAIT_ERR_INVALID, {SET(page_stride, ((uint64_t)1 << 63) + PAGE), SET(page_count, 3)}},
    {STRAIT_ERR_INVALID, {SET(rows, 3), SET(row_bytes, 2), SET(row_stride, (uint64_t)1 << 63)}},
    {STRAIT_ERR_INVALID, {SET(rows, 2), SET(row_bytes, 2), SET(row_stride, UINT64_MAX - 1), SET(page_count, 1)}},
    {STRAIT_ERR_INVALID,
     {SET(rows, 2), SET(row_bytes, 2), SET(row_stride, (uint64_t)1 << 62), SET(page_count, 3),
      SET(page_stride, (uint64_t)1 << 62)}},
    /* Alignment. */
    {STRAIT_ERR_INVALID, {SET(offset, 1)}},
    {STRAIT_ERR_INVALID, {SET(page_stride, PAGE + 1)}},
    {STRAIT_ERR_INVALID, {SET(rows, 2), SET(row_bytes, 1001), SET(row_stride, 1002)}},
    {STRAIT_ERR_INVALID, {SET(rows, 2), SET(row_bytes, 1000), SET(row_stride, 1001)}},
    {STRAIT_ERR_INVALID, {SET(element, STRAIT_ELEMENT_FP32), SET(offset, 2)}},
    {STRAIT_ERR_INVALID, {SET(element, STRAIT_ELEMENT_FP16), SET(offset, 3)}},
    /* Pages that overlap. */
    {STRAIT_ERR_INVALID, {SET(page_stride, PAGE - 2)}},
    {STRAIT_ERR_INVALID, {SET(page_stride, 0)}},
    {STRAIT_ERR_INVALID, {SET(rows, 4), SET(row_bytes, 1024), SET(row_stride, 1022)}},
    {STRAIT_ERR_INVALID, {SET(rows, 4), SET(row_bytes, 1024), SET(row_stride, 0)}},
    {STRAIT_ERR_INVALID, {SET(rows, 2), SET(row_bytes, 64), SET(row_stride, 256), SET(page_stride, 62)}},
    {STRAIT_ERR_INVALID, {SET(rows, 2), SET(row_bytes, 64), SET(row_stride, 16 * 64 - 2), SET(page_stride, 64)}},
    {STRAIT_ERR_INVALID, {SET(rows, 2), SET(row_bytes, 64), SET(row_stride, 0), SET(page_stride, 64)}},
};

TEST_LOOP(a_region_that_cannot_be_is_refused, COUNT(bad_regions))
{
    const struct bad_region *bad = &bad_regions[_i];
    struct wire_region region = layer_region(0);
    for (int i = 0; i < COUNT(bad->changes); i++)
        memcpy((uint8_t *)&region + bad->changes[i].offset, &bad->changes[i].value, bad->changes[i].size);
    refused(&region, 1, false, bad->status);
}

TEST(numbers_of_regions_and_codings_are_checked)
{
    struct wire_region region = layer_region(0);
    struct message_pool_register registration = {.fd_count = 1, .regions = &region};
    const struct pool_context context = {.bytes_max = BYTES};
    struct pool *pool;
    ck_assert_int_eq(pool_map(&registration, fds, &context, &pool, why, WHY), STRAIT_ERR_INVALID);
    registration.region_count = STRAIT_REGIONS_MAX + 1;
    ck_assert_int_eq(pool_map(&registration, fds, &context, &pool, why, WHY), STRAIT_ERR_INVALID);
    registration.region_count = 1;
    registration.coding = STRAIT_CODING_PARTS + 1;
    ck_assert_int_eq(pool_map(&registration, fds, &context, &pool, NULL, 0), STRAIT_ERR_UNSUPPORTED);
}

/* ---- Descriptors that cannot be ---------------------------------------------------------------------------------- */

/* Opened at `path` with these flags, and BYTES long if it is a file without a name; path NULL: a memfd of so many bytes
 * with these seals. */
static const struct bad_fd {
    const char *path;
    int flags;
    size_t bytes;
} bad_fds[] = {
    {"/tmp", O_RDONLY | O_DIRECTORY, 0},
    {"/dev/zero", O_RDWR, 0},
    {"/tmp", O_TMPFILE | O_RDWR, 0},
    {"/dev/shm", O_TMPFILE | O_RDWR, 0}, /* has seals as a memfd has, but may shrink */
    {NULL, 0, BYTES},
    {NULL, F_SEAL_GROW, BYTES},
    {NULL, F_SEAL_SHRINK, PAGE *PAGES - 1},
    {NULL, F_SEAL_SHRINK, 0},
    {NULL, F_SEAL_SHRINK | F_SEAL_WRITE, BYTES},
    {NULL, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE, BYTES},
    {"/proc/self/fd/%d", O_RDONLY, 0},
    {"/proc/self/fd/%d", O_PATH, 0},
    {"/nowhere", O_RDWR, 0}, /* no descriptor at all */
};

/* "%d" in the path stands for a good descriptor. */
static int open_bad(const struct bad_fd *bad)
{
    char path[64];
    if (bad->path == NULL)
        return make_memfd(bad->bytes, bad->flags);
    snprintf(path, sizeof(path), bad->path, fds[0]);
    int fd = open(path, bad->flags, 0600);
    if ((bad->flags & O_TMPFILE) == O_TMPFILE)
        ck_assert_int_eq(ftruncate(fd, BYTES), 0);
    return fd;
}

/* In place of the third descriptor, behind a good one. */
static void refuse_descriptor(int fd)
{
    struct wire_region regions[2] = {layer_region(0), layer_region(1)};
    int good = fds[2];
    regions[1].offset = 0;
    regions[1].fd = 2;
    fds[2] = fd;
    refused(regions, 2, false, STRAIT_ERR_INVALID);
    if (fd >= 0)
        close(fd);
    fds[2] = good;
}

TEST_LOOP(a_descriptor_that_is_no_sealed_memfd_is_refused_and_what_was_mapped_before_is_let_go, COUNT(bad_fds))
{
    refuse_descriptor(open_bad(&bad_fds[_i]));
}

TEST(a_pipe_and_a_socket_are_no_memory)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    close(ends[1]);
    refuse_descriptor(ends[0]);
    refuse_descriptor(socket(AF_UNIX, SOCK_STREAM, 0));
}

TEST(huge_pages_are_mapped_where_there_are_any)
{
    const size_t size = (size_t)2 << 20;
    struct wire_region region = layer_region(0);
    struct pool *pool;
    int good = fds[0];
    FILE *file = fopen("/proc/sys/vm/nr_hugepages", "r");
    long there = 0;
    if (file != NULL && fscanf(file, "%ld", &there) != 1)
        there = 0;
    if (file != NULL)
        fclose(file);
    fds[0] = memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fds[0] >= 0 && ftruncate(fds[0], (off_t)size) == 0 && fcntl(fds[0], F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
        enum strait_status status = map_all(&region, 1, false, UINT64_MAX, &pool);
        ck_assert_int_eq(status, there > 0 ? STRAIT_OK : STRAIT_ERR_NO_MEMORY);
        if (status == STRAIT_OK)
            pool_unmap(pool);
        ck_assert_int_eq(mappings(), 0);
    }
    if (fds[0] >= 0)
        close(fds[0]);
    fds[0] = good;
}

/* ---- Several regions --------------------------------------------------------------------------------------------- */

TEST(regions_must_come_in_the_order_of_the_pool)
{
    struct wire_region regions[3] = {layer_region(0), layer_region(1), layer_region(2)};
    regions[1].layer = 3;
    refused(regions, 3, false, STRAIT_ERR_INVALID);
    regions[1].layer = 0;
    regions[0].role = STRAIT_ROLE_V; /* then K */
    refused(regions, 3, false, STRAIT_ERR_INVALID);
    regions[0].role = STRAIT_ROLE_K;
    pool_unmap(map_good(regions, 3, false)); /* equal ones in the order they have */
}

TEST(groups_have_no_gaps_and_one_element_type)
{
    struct wire_region regions[3] = {layer_region(0), layer_region(1), layer_region(2)};
    regions[2].group = 2;
    refused(regions, 3, false, STRAIT_ERR_INVALID);
    regions[2].group = 1;
    regions[1].element = STRAIT_ELEMENT_FP16;
    refused(regions, 3, false, STRAIT_ERR_INVALID);
    regions[1].element = STRAIT_ELEMENT_BF16;
    regions[2].element = STRAIT_ELEMENT_FP8_E4M3;
    pool_unmap(map_good(regions, 3, false));
}

TEST(one_tensor_under_two_layers_of_a_group_is_refused)
{
    struct wire_region regions[2] = {layer_region(0), layer_region(1)};
    regions[1].offset = PAGE - 2;
    refused(regions, 2, false, STRAIT_ERR_INVALID);
    regions[1].offset = 0;
    refused(regions, 2, false, STRAIT_ERR_INVALID);
    regions[1].group = 1; /* groups may share memory: their page ids are kept apart */
    pool_unmap(map_good(regions, 2, false));
    regions[1].group = 0;
    regions[1].fd = 1;
    pool_unmap(map_good(regions, 2, false));
}

TEST(k_and_v_may_be_interleaved_and_so_may_rows_of_pages)
{
    struct wire_region regions[3] = {layer_region(0), layer_region(0), layer_region(1)};
    regions[0].page_stride = regions[1].page_stride = 2 * PAGE;
    regions[1].offset = PAGE;
    regions[1].role = STRAIT_ROLE_V;
    regions[2].offset = 2 * PAGE * PAGES; /* rows of 16 pages, one after another */
    regions[2].rows = 4;
    regions[2].row_bytes = regions[2].page_stride = 512;
    regions[2].row_stride = 512 * PAGES;
    struct pool *pool = map_good(regions, 3, false);
    ck_assert_uint_eq(pool->mapping_count, 1);
    pool_unmap(pool);
}

/* ---- What is mapped ---------------------------------------------------------------------------------------------- */

static uint8_t *map_own(int fd)
{
    uint8_t *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(bytes, MAP_FAILED);
    return bytes;
}

TEST(regions_are_where_the_client_has_them)
{
    struct wire_region regions[4] = {layer_region(0), layer_region(1), layer_region(2), layer_region(3)};
    regions[1].fd = regions[3].fd = 2;
    regions[1].offset += 24;
    regions[3].group = 1;
    regions[3].page_count = 3;
    regions[2].page_count = 5;
    uint8_t *memory[3] = {map_own(fds[0]), NULL, map_own(fds[2])};
    struct pool *pool = map_good(regions, 4, false);
    ck_assert_uint_eq(pool->mapping_count, 2);
    ck_assert_uint_eq(pool->group_count, 2);
    ck_assert_uint_eq(pool->groups[0].region_count, 3);
    ck_assert_uint_eq(pool->groups[0].page_count, 5); /* of the shortest */
    ck_assert_uint_eq(pool->groups[1].page_count, 3);
    ck_assert_uint_eq(pool->coding, STRAIT_CODING_TOP16);
    ck_assert_uint_eq(pool->id.bytes[1], 8);
    for (uint32_t r = 0; r < 4; r++) {
        struct pool_group *group = &pool->groups[r / 3];
        const struct strait_region *region = &group->regions[r % 3];
        ((uint8_t *)region->base)[2 * PAGE + 5] = (uint8_t)(r + 100);
        ck_assert_uint_eq(memory[regions[r].fd][regions[r].offset + 2 * PAGE + 5], r + 100);
        ck_assert_int_eq(group->layers[r % 3], (int32_t)r);
        ck_assert_ptr_eq(pool->sizes.groups[r / 3], group->regions);
        ck_assert_uint_eq(region->page_count, regions[r].page_count);
    }
    ck_assert_uint_eq(pool->sizes.group_count, 2);
    ck_assert_uint_eq(pool->sizes.region_counts[1], 1);
    pool_unmap(pool);
    ck_assert_int_eq(mappings(), 2); /* the test's own */
    munmap(memory[0], BYTES);
    munmap(memory[2], BYTES);
}

TEST(memory_keeps_what_is_in_it)
{
    struct wire_region region = layer_region(1);
    uint8_t *memory = map_own(fds[0]);
    memset(memory + PAGE * PAGES + 3 * PAGE, 77, PAGE);
    struct pool *pool = map_good(&region, 1, false);
    ck_assert_uint_ge(pool->bytes, PAGE * PAGES);
    ck_assert(is_filled(memory + PAGE * PAGES + 3 * PAGE, PAGE, 77));
    ck_assert(is_filled(memory + PAGE * PAGES, 3 * PAGE, 0));
    pool_unmap(pool);
    ck_assert(is_filled(memory + PAGE * PAGES + 3 * PAGE, PAGE, 77));
    munmap(memory, BYTES);
}

/* Or the daemon would be charged for it. */
TEST(memory_that_its_owner_never_touched_is_refused)
{
    struct wire_region region = layer_region(1);
    const off_t hole = PAGE * PAGES + 5 * PAGE;
    ck_assert_int_eq(lseek(fds[0], 7, SEEK_SET), 7);
    ck_assert_int_eq(fallocate(fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE * PAGES), 0);
    struct pool *pool = map_good(&region, 1, false); /* what is not the region's does not matter */
    pool_unmap(pool);
    ck_assert_int_eq(fallocate(fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, hole, PAGE), 0);
    refused(&region, 1, false, STRAIT_ERR_INVALID);
    ck_assert_str_eq(why,
                     "region 0: its memory was never touched, from byte 86016 of the memfd on: the daemon would be "
                     "charged for it");
    struct stat info;
    ck_assert_int_eq(fstat(fds[0], &info), 0);
    ck_assert_int_eq(info.st_blocks, (BYTES - PAGE * PAGES - PAGE) / 512); /* it was not touched here either */
    ck_assert_int_eq(lseek(fds[0], 0, SEEK_CUR), 7);
    ck_assert_int_eq(mappings(), 0);
}

TEST(no_more_is_mapped_than_the_quota_has_left)
{
    struct wire_region regions[2] = {layer_region(0), layer_region(1)};
    struct pool *pool;
    regions[1].fd = 3;
    regions[1].offset = 0;
    ck_assert_int_eq(map_all(regions, 2, false, 2 * PAGE * PAGES - 1, &pool), STRAIT_ERR_NO_MEMORY);
    ck_assert_int_eq(map_all(regions, 2, false, 0, &pool), STRAIT_ERR_NO_MEMORY);
    ck_assert_int_eq(mappings(), 0);
    ck_assert_int_eq(map_all(regions, 2, false, 2 * PAGE * PAGES, &pool), STRAIT_OK);
    ck_assert_uint_eq(pool->bytes, 2 * PAGE * PAGES);
    pool_unmap(pool);
}

TEST(a_part_of_a_page_of_memory_counts_whole)
{
    struct wire_region region = layer_region(0);
    struct pool *pool;
    region.offset = 100;
    region.page_count = 1;
    region.row_bytes = 10;
    ck_assert_int_eq(map_all(&region, 1, false, 4095, &pool), STRAIT_ERR_NO_MEMORY);
    ck_assert_int_eq(map_all(&region, 1, false, 4096, &pool), STRAIT_OK);
    ck_assert_uint_eq(pool->bytes, 4096);
    pool_unmap(pool);
}

TEST(the_last_page_may_end_with_an_unround_file)
{
    struct wire_region region = layer_region(0);
    close(fds[0]);
    fds[0] = make_memfd(PAGE * PAGES - 100, F_SEAL_SHRINK);
    region.row_bytes = PAGE - 100;
    struct pool *pool = map_good(&region, 1, false);
    ((uint8_t *)pool->groups[0].regions[0].base)[PAGE * PAGES - 101] = 1;
    pool_unmap(pool);
    region.row_bytes += 2;
    refused(&region, 1, false, STRAIT_ERR_INVALID);
}

TEST(the_codebook_gives_each_class_its_table)
{
    uint8_t rankings[4][256];
    const struct strait_class classes[4] = {{0}, {STRAIT_ROLE_K, 1}, {STRAIT_ROLE_V, -1}, {STRAIT_ROLE_K, 0}};
    struct wire_region regions[4] = {layer_region(0), layer_region(1), layer_region(1), layer_region(3)};
    const uint32_t tables[4] = {3, 1, 2, 0};
    struct strait_codebook *codebook;
    struct pool *pool;
    for (uint32_t t = 0; t < 4; t++)
        test_ranking(rankings[t], t);
    ck_assert_int_eq(strait_codebook_create((const uint8_t(*)[256])rankings, classes, 4, &codebook), STRAIT_OK);
    regions[2].role = STRAIT_ROLE_V;
    regions[2].offset = 2 * PAGE * PAGES;
    ck_assert_int_eq(map_all(regions, 4, false, BYTES, &pool), STRAIT_OK);
    pool_choose_tables(pool, codebook);
    for (uint32_t r = 0; r < 4; r++)
        ck_assert_uint_eq(pool->groups[0].regions[r].table, tables[r]);
    pool_choose_tables(pool, NULL);
    for (uint32_t r = 0; r < 4; r++)
        ck_assert_uint_eq(pool->groups[0].regions[r].table, 0);
    pool_unmap(pool);
    strait_codebook_destroy(codebook);
}

TEST(the_geometry_is_that_of_the_regions_and_not_of_their_places)
{
    struct wire_region regions[2] = {layer_region(0), layer_region(1)};
    struct pool *a = map_good(regions, 2, false);
    regions[0].fd = 1;
    regions[0].offset = 4096;
    regions[0].page_stride = 2 * PAGE;
    struct pool *b = map_good(regions, 2, false);
    regions[1].row_bytes -= 2;
    struct pool *c = map_good(regions, 2, false);
    ck_assert_uint_eq(a->geometry, b->geometry);
    ck_assert_uint_ne(a->geometry, c->geometry);
    pool_unmap(a);
    pool_unmap(b);
    pool_unmap(c);
}

/* ---- Pointers ---------------------------------------------------------------------------------------------------- */

static struct wire_region pointer_region(const void *at, int32_t layer)
{
    struct wire_region region = layer_region(layer);
    region.handle = STRAIT_HANDLE_POINTER;
    region.pointer = (uintptr_t)at;
    return region;
}

TEST(pointers_are_used_in_place_and_left_alone)
{
    uint8_t *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct wire_region regions[3] = {pointer_region(memory, 0), pointer_region(memory, 1),
                                     pointer_region(memory + PAGE * PAGES, 2)};
    regions[0].page_stride = regions[1].page_stride = 2 * PAGE;
    regions[0].page_count = regions[1].page_count = PAGES / 2;
    regions[1].offset = PAGE;
    struct pool *pool = map_good(regions, 3, true);
    ck_assert_ptr_eq(pool->groups[0].regions[1].base, memory + PAGE);
    ck_assert_ptr_eq(pool->groups[0].regions[2].base, memory + PAGE * PAGES + 2 * PAGE * PAGES);
    ck_assert_uint_eq(pool->bytes, 2 * PAGE * PAGES); /* interleaved regions count once */
    pool_unmap(pool);
    memory[0] = memory[BYTES - 1] = 1; /* still there */
    munmap(memory, BYTES);
}

TEST(a_pointer_to_no_memory_is_refused)
{
    uint8_t *memory = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct wire_region region = pointer_region(memory, 0);
    refused(&region, 1, true, STRAIT_ERR_INVALID); /* cannot be written */
    munmap(memory, BYTES);
    refused(&region, 1, true, STRAIT_ERR_INVALID);
    region.pointer = 0;
    refused(&region, 1, true, STRAIT_ERR_INVALID);
    region.pointer = UINT64_MAX - PAGE;
    refused(&region, 1, true, STRAIT_ERR_INVALID);
    region.pointer = 4097; /* and two bytes a value */
    refused(&region, 1, true, STRAIT_ERR_INVALID);
}

/* ---- Uses -------------------------------------------------------------------------------------------------------- */

static struct pool *pool;

static void setup_uses(void)
{
    struct wire_region regions[3] = {layer_region(0), layer_region(1), layer_region(2)};
    open_fds();
    regions[2].group = 1;
    pool = map_good(regions, 3, false);
}

static void teardown_uses(void)
{
    pool_unmap(pool);
    close_fds();
}

static struct wire_page_list run_of(uint32_t group, uint32_t first_id, uint32_t count)
{
    return (struct wire_page_list){.group = group, .first_id = first_id, .count = count};
}

static struct wire_page_list ids_of(uint32_t group, const uint32_t *ids, uint32_t count)
{
    return (struct wire_page_list){.group = group, .ids = ids, .count = count};
}

static void give_back(uint32_t group, uint32_t *ids, uint32_t count, bool expected)
{
    struct page_group groups[2] = {{0}, {0}};
    groups[group].ids = ids;
    groups[group].id_count = count;
    pool_release(pool, &(struct page_set){.groups = groups, .group_count = 2}, expected);
}

#define POOL_EXPECTED UINT32_MAX /* in these tests: in place of a count */

static uint32_t use_of(const struct pool_group *group, uint32_t id)
{
    bool expected = group->expected[id / 64] >> id % 64 & 1;
    ck_assert(!expected || group->uses[id] == 0);
    return expected ? POOL_EXPECTED : group->uses[id];
}

static void uses_are(uint32_t group, const uint32_t *uses, uint32_t count)
{
    for (uint32_t i = 0; i < PAGES; i++)
        ck_assert_uint_eq(use_of(&pool->groups[group], i), i < count ? uses[i] : 0);
}

static uint32_t used; /* the page that could not be marked */

TEST_FIXTURE(uses, setup_uses, teardown_uses);

TEST(a_pool_knows_its_page_ids)
{
    const uint32_t ids[] = {0, PAGES - 1, PAGES};
    struct wire_page_list lists[] = {run_of(0, 0, PAGES),      run_of(1, PAGES - 1, 1),   run_of(0, PAGES, 0),
                                     ids_of(0, ids, 2),        run_of(0, 0, PAGES + 1),   run_of(0, PAGES, 1),
                                     run_of(0, UINT32_MAX, 2), run_of(0, 2, UINT32_MAX),  run_of(2, 0, 1),
                                     ids_of(0, ids, 3),        ids_of(UINT32_MAX, ids, 1)};
    for (int i = 0; i < COUNT(lists); i++)
        ck_assert_int_eq(pool_has(pool, &lists[i]), i < 4);
    for (int i = 4; i < COUNT(lists); i++) {
        ck_assert(!pool_mark(pool, &lists[i], true, &used));
        ck_assert(!pool_mark(pool, &lists[i], false, &used));
    }
    uses_are(0, NULL, 0);
}

TEST(an_expected_page_is_in_nothing_else)
{
    uint32_t ids[] = {3, 1, 4};
    struct wire_page_list list = ids_of(0, ids, 3), overlaps = run_of(0, 0, 2), same_elsewhere = run_of(1, 0, PAGES);
    ck_assert(pool_mark(pool, &list, true, &used));
    ck_assert(!pool_mark(pool, &list, true, &used));
    ck_assert(!pool_mark(pool, &overlaps, true, &used));
    ck_assert(!pool_mark(pool, &overlaps, false, &used));
    ck_assert_uint_eq(1, used);
    ck_assert(pool_mark(pool, &same_elsewhere, true, &used));
    uses_are(0, (uint32_t[]){0, POOL_EXPECTED, 0, POOL_EXPECTED, POOL_EXPECTED}, 5); /* and 0 is free */
    give_back(0, ids, 3, true);
    uses_are(0, NULL, 0);
    ck_assert(pool_mark(pool, &overlaps, false, &used));
}

TEST(a_page_may_be_offered_many_times_but_not_expected_meanwhile)
{
    uint32_t ids[] = {5, 6}, more[] = {6};
    struct wire_page_list both = ids_of(0, ids, 2), one = ids_of(0, more, 1), before = run_of(0, 4, 2);
    ck_assert(pool_mark(pool, &both, false, &used));
    ck_assert(pool_mark(pool, &one, false, &used));
    ck_assert(!pool_mark(pool, &one, true, &used));
    ck_assert(!pool_mark(pool, &before, true, &used));
    uses_are(0, (uint32_t[]){0, 0, 0, 0, 0, 1, 2}, 7);
    give_back(0, ids, 2, false);
    uses_are(0, (uint32_t[]){0, 0, 0, 0, 0, 0, 1}, 7);
    ck_assert(!pool_mark(pool, &one, true, &used));
    give_back(0, more, 1, false);
    ck_assert(pool_mark(pool, &one, true, &used));
}

TEST(a_page_twice_in_one_list_can_be_offered_but_not_expected)
{
    uint32_t ids[] = {2, 9, 2};
    struct wire_page_list list = ids_of(1, ids, 3);
    ck_assert(!pool_mark(pool, &list, true, &used));
    uses_are(1, NULL, 0);
    ck_assert(pool_mark(pool, &list, false, &used));
    give_back(1, ids, 3, false);
    uses_are(1, NULL, 0);
}

TEST(what_was_not_marked_is_not_given_back)
{
    uint32_t ids[] = {0, 1, PAGES, UINT32_MAX};
    struct wire_page_list expected = run_of(0, 0, 1), offered = run_of(0, 1, 1);
    ck_assert(pool_mark(pool, &expected, true, &used));
    ck_assert(pool_mark(pool, &offered, false, &used));
    give_back(0, &ids[1], 3, true);  /* an offered page is none of an expectation */
    give_back(0, &ids[0], 1, false); /* nor the other way round */
    uses_are(0, (uint32_t[]){POOL_EXPECTED, 1}, 2);
    give_back(1, ids, 4, false);
    uses_are(1, NULL, 0);
}

TEST(random_uses_agree_with_counting_them)
{
    struct rng rng = rng_init(3);
    uint32_t counts[PAGES] = {0};
    for (int i = 0; i < 20000; i++) {
        uint32_t ids[3], n = 1 + rng_below(&rng, 3);
        for (uint32_t k = 0; k < n; k++)
            ids[k] = rng_below(&rng, PAGES);
        struct wire_page_list list = ids_of(0, ids, n);
        uint32_t next[PAGES], what = rng_below(&rng, 4);
        bool expect = what < 2, fine = true;
        memcpy(next, counts, sizeof(next));
        for (uint32_t k = 0; k < n; k++) {
            if (what % 2 == 0) {
                fine = fine && (expect ? next[ids[k]] == 0 : next[ids[k]] != POOL_EXPECTED);
                next[ids[k]] = expect ? POOL_EXPECTED : next[ids[k]] + 1;
            } else if (expect) {
                next[ids[k]] = next[ids[k]] == POOL_EXPECTED ? 0 : next[ids[k]];
            } else if (next[ids[k]] != POOL_EXPECTED && next[ids[k]] > 0) {
                next[ids[k]]--;
            }
        }
        if (what % 2 == 1)
            give_back(0, ids, n, expect);
        else
            ck_assert_int_eq(pool_mark(pool, &list, expect, &used), fine);
        if (fine)
            memcpy(counts, next, sizeof(counts));
        uses_are(0, counts, PAGES);
    }
}

/* ---- The codebook's file ----------------------------------------------------------------------------------------- */

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

TEST_FIXTURE(codebooks, NULL, NULL);

TEST(a_codebook_is_read_from_its_file)
{
    char path[] = "/tmp/strait-test-XXXXXX";
    struct strait_codebook *made = test_codebook(), *read = NULL;
    size_t size = strait_codebook_serialized_size(made);
    uint8_t *bytes = malloc(size);
    close(mkstemp(path));
    ck_assert_int_eq(strait_codebook_serialize(made, bytes, size), STRAIT_OK);
    write_file(path, bytes, size);
    ck_assert_int_eq(codebook_load(path, &read, why, WHY), STRAIT_OK);
    ck_assert_mem_eq(strait_codebook_id(read), strait_codebook_id(made), STRAIT_CODEBOOK_ID_BYTES);
    strait_codebook_destroy(read);
    write_file(path, bytes, size - 1);
    ck_assert_int_eq(codebook_load(path, &read, why, WHY), STRAIT_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(why, path));
    ck_assert_ptr_nonnull(strstr(why, "is no codebook set: offset "));
    unlink(path);
    free(bytes);
    strait_codebook_destroy(made);
}

TEST(what_is_no_codebook_file_is_told_apart)
{
    char path[] = "/tmp/strait-test-XXXXXX";
    struct strait_codebook *codebook = (struct strait_codebook *)why;
    ck_assert_int_eq(codebook_load("/nowhere/at all", &codebook, why, WHY), STRAIT_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why, "/nowhere/at all"));
    ck_assert_int_eq(codebook_load("/tmp", &codebook, why, WHY), STRAIT_ERR_INVALID);
    ck_assert_int_eq(codebook_load("/dev/zero", &codebook, why, WHY), STRAIT_ERR_INVALID);
    close(mkstemp(path));
    unlink(path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(codebook_load(path, &codebook, why, WHY), STRAIT_ERR_INVALID); /* at once */
    unlink(path);
    ck_assert_ptr_eq(codebook, (struct strait_codebook *)why);
    ck_assert_int_eq(codebook_load("", &codebook, why, WHY), STRAIT_OK);
    ck_assert_ptr_null(codebook);
}

/* ---- GPUs where there is no plugin for them, or none that can do anything ---------------------------------------- */

TEST(what_is_missing_is_told)
{
    const struct device_why told = {.text = why, .size = WHY};
    struct device_state state;
    struct devices *devices;
    uv_loop_t loop;
    ck_assert_int_eq(0, uv_loop_init(&loop));
    ck_assert_int_eq(STRAIT_OK, devices_create(&loop, &(const struct devices_config){.slot_bytes = 1 << 20}, &devices));
    for (int i = 0; i < 2; i++) { /* it is looked for again */
        enum strait_status status = devices_open(devices, DEVICES_MAX, &told);
        ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, status); /* with a GPU too: there are never so many */
        ck_assert_msg(strstr(why, "GPU") != NULL || strstr(why, "device") != NULL, "%s", why);
    }
    ck_assert(!devices_state(devices, 0, &state));
    ck_assert(!devices_state(devices, -1, &state));
    devices_destroy(devices);
    ck_assert_int_eq(0, uv_run(&loop, UV_RUN_DEFAULT));
    ck_assert_int_eq(0, uv_loop_close(&loop));
}

int main(void)
{
    return run_tests("pool", open_fds, close_fds);
}
