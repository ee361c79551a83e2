/* What a client may register as a pool, region by region and all of them together. */
#include "tests/memory/pool_harness.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>

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
    {STRAIT_ERR_UNSUPPORTED, {SET(role, 3)}},
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

START_TEST(a_region_that_cannot_be_is_refused)
{
    const struct bad_region *bad = &bad_regions[_i];
    struct wire_region region = layer_region(0);
    for (int i = 0; i < COUNT(bad->changes); i++)
        memcpy((uint8_t *)&region + bad->changes[i].offset, &bad->changes[i].value, bad->changes[i].size);
    refused(&region, 1, false, bad->status);
}
END_TEST

START_TEST(numbers_of_regions_and_codings_are_checked)
{
    struct wire_region region = layer_region(0);
    struct message_pool_register registration = {.fd_count = 1, .regions = &region};
    const struct pool_context context = {.bytes_max = BYTES};
    struct pool *pool;
    ck_assert_int_eq(pool_map(&registration, fds, &context, &pool, why, WHY), STRAIT_ERR_INVALID);
    registration.region_count = STRAIT_REGIONS_MAX + 1;
    ck_assert_int_eq(pool_map(&registration, fds, &context, &pool, why, WHY), STRAIT_ERR_INVALID);
    registration.region_count = 1;
    registration.coding = STRAIT_CODING_TIERED + 1;
    ck_assert_int_eq(pool_map(&registration, fds, &context, &pool, NULL, 0), STRAIT_ERR_UNSUPPORTED);
}
END_TEST

/* ---- Descriptors that cannot be ---------------------------------------------------------------------------------- */

static int open_pipe(void)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    close(ends[1]);
    return ends[0];
}

static int open_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM, 0);
}

static int open_directory(void)
{
    return open("/tmp", O_RDONLY | O_DIRECTORY);
}

static int open_zeros(void)
{
    return open("/dev/zero", O_RDWR);
}

static int open_file(void)
{
    int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    ck_assert_int_eq(ftruncate(fd, BYTES), 0);
    return fd;
}

static int open_shm_file(void) /* has seals as a memfd has, but may shrink */
{
    int fd = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    ck_assert_int_eq(ftruncate(fd, BYTES), 0);
    return fd;
}

static int open_unsealed(void)
{
    return make_memfd(BYTES, 0);
}

static int open_growing_only(void)
{
    return make_memfd(BYTES, F_SEAL_GROW);
}

static int open_short(void)
{
    return make_memfd(PAGE * PAGES - 1, F_SEAL_SHRINK);
}

static int open_empty(void)
{
    return make_memfd(0, F_SEAL_SHRINK);
}

static int open_write_sealed(void)
{
    return make_memfd(BYTES, F_SEAL_SHRINK | F_SEAL_WRITE);
}

static int open_future_write_sealed(void)
{
    return make_memfd(BYTES, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE);
}

static int open_read_only(void)
{
    char path[64];
    int fd = make_memfd(BYTES, F_SEAL_SHRINK);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int other = open(path, O_RDONLY);
    close(fd);
    return other;
}

static int open_path_only(void)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fds[0]);
    return open(path, O_PATH);
}

static int open_nothing(void)
{
    return -1;
}

static int (*const bad_fds[])(void) = {open_pipe,      open_socket,    open_directory,    open_zeros,
                                       open_file,      open_shm_file,  open_unsealed,     open_growing_only,
                                       open_short,     open_empty,     open_write_sealed, open_future_write_sealed,
                                       open_read_only, open_path_only, open_nothing};

START_TEST(a_descriptor_that_is_no_sealed_memfd_is_refused_and_what_was_mapped_before_is_let_go)
{
    struct wire_region regions[2] = {layer_region(0), layer_region(1)};
    int good = fds[2];
    regions[1].offset = 0;
    regions[1].fd = 2; /* after a good one */
    fds[2] = bad_fds[_i]();
    refused(regions, 2, false, STRAIT_ERR_INVALID);
    if (fds[2] >= 0)
        close(fds[2]);
    fds[2] = good;
}
END_TEST

START_TEST(huge_pages_are_mapped_where_there_are_any)
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
        enum strait_status status = map_all(&region, 1, false, UINT64_MAX, NULL, &pool);
        ck_assert_int_eq(status, there > 0 ? STRAIT_OK : STRAIT_ERR_NO_MEMORY);
        if (status == STRAIT_OK)
            pool_unmap(pool);
        ck_assert_int_eq(mappings(), 0);
    }
    if (fds[0] >= 0)
        close(fds[0]);
    fds[0] = good;
}
END_TEST

/* ---- Several regions --------------------------------------------------------------------------------------------- */

START_TEST(regions_must_come_in_the_order_of_the_pool)
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
END_TEST

START_TEST(groups_have_no_gaps_and_one_element_type)
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
END_TEST

START_TEST(one_tensor_under_two_layers_of_a_group_is_refused)
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
END_TEST

START_TEST(k_and_v_may_be_interleaved_and_so_may_rows_of_pages)
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
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool_regions");
    TCase *tcase = tcase_create("map");
    tcase_add_checked_fixture(tcase, open_fds, close_fds);
    tcase_add_loop_test(tcase, a_region_that_cannot_be_is_refused, 0, COUNT(bad_regions));
    tcase_add_test(tcase, numbers_of_regions_and_codings_are_checked);
    tcase_add_loop_test(tcase, a_descriptor_that_is_no_sealed_memfd_is_refused_and_what_was_mapped_before_is_let_go, 0,
                        COUNT(bad_fds));
    tcase_add_test(tcase, huge_pages_are_mapped_where_there_are_any);
    tcase_add_test(tcase, regions_must_come_in_the_order_of_the_pool);
    tcase_add_test(tcase, groups_have_no_gaps_and_one_element_type);
    tcase_add_test(tcase, one_tensor_under_two_layers_of_a_group_is_refused);
    tcase_add_test(tcase, k_and_v_may_be_interleaved_and_so_may_rows_of_pages);
    suite_add_tcase(suite, tcase);
    return pool_main(suite);
}
