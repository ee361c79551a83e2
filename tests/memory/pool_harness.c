/* A client's side of a registration: memfds, and regions in them. */
#include "tests/memory/pool_harness.h"

#include <sys/mman.h>

#include "tests/run_suite.h"

char why[WHY];
int fds[4];

int make_memfd(size_t size, int seals)
{
    int fd = memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

void open_fds(void)
{
    for (int i = 0; i < COUNT(fds); i++)
        fds[i] = make_memfd(BYTES, F_SEAL_SHRINK);
}

void close_fds(void)
{
    for (int i = 0; i < COUNT(fds); i++)
        close(fds[i]);
}

struct wire_region layer_region(int32_t layer)
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

enum strait_status map_all(const struct wire_region *regions, uint32_t count, bool embedded, uint64_t bytes_max,
                           const struct strait_codebook *codebook, struct pool **pool)
{
    struct message_pool_register registration = {.pool = {{7, 8, 9}},
                                                 .fd_count = COUNT(fds),
                                                 .coding = STRAIT_CODING_TOP16,
                                                 .region_count = count,
                                                 .regions = regions};
    const struct pool_context context = {.embedded = embedded, .bytes_max = bytes_max, .codebook = codebook};
    return pool_map(&registration, fds, &context, pool, why, sizeof(why));
}

struct pool *map_good(const struct wire_region *regions, uint32_t count, bool embedded)
{
    struct pool *pool = NULL;
    enum strait_status status = map_all(regions, count, embedded, UINT64_MAX, NULL, &pool);
    ck_assert_msg(status == STRAIT_OK, "%s: %s", strait_status_string(status), why);
    return pool;
}

int mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, "memfd:pool") != NULL;
    fclose(maps);
    return count;
}

void refused(const struct wire_region *regions, uint32_t count, bool embedded, enum strait_status with)
{
    struct pool *untouched = (struct pool *)why;
    struct pool *pool = untouched;
    enum strait_status status = map_all(regions, count, embedded, UINT64_MAX, NULL, &pool);
    ck_assert_msg(status == with, "%s: %s", strait_status_string(status), why);
    ck_assert_ptr_eq(pool, untouched);
    ck_assert_uint_gt(strlen(why), 10); /* says something */
    ck_assert_int_eq(mappings(), 0);
}

int pool_main(Suite *suite)
{
    return run_suite(suite);
}
