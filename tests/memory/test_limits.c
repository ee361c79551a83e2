/* Limits of memory as control groups tell them: in folders that look like /proc and /sys. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/memory/limits.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define MIB ((uint64_t)1 << 20)

static char root[64];

static void setup(void)
{
    snprintf(root, sizeof(root), "/tmp/strait-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", root);
    ck_assert_int_eq(0, system(command));
}

/* Writes a file, and makes the folders that it is in. */
static void put(const char *path, const char *text)
{
    char whole[256];
    snprintf(whole, sizeof(whole), "%s%s", root, path);
    for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        (void)mkdir(whole, 0700);
        *at = '/';
    }
    FILE *file = fopen(whole, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(0, fclose(file));
}

static struct memory_limit limit_read(void)
{
    struct memory_limit limit;
    memory_limit_read(root, &limit);
    return limit;
}

static void assert_limit(uint64_t bytes, uint64_t used, const char *file)
{
    char whole[256];
    const struct memory_limit limit = limit_read();
    snprintf(whole, sizeof(whole), "%s%s", root, file);
    ck_assert_uint_eq(bytes, limit.bytes);
    ck_assert_uint_eq(used, limit.used);
    ck_assert_str_eq(whole, limit.file);
}

TEST(without_groups_there_is_no_limit)
{
    ck_assert_uint_eq(UINT64_MAX, limit_read().bytes);
    put("/proc/self/cgroup", "nothing\n0:\n::::\n");
    put("/proc/self/mountinfo", "nothing\n - \n1 2 3 - cgroup2\n\n");
    ck_assert_uint_eq(UINT64_MAX, limit_read().bytes);
}

TEST(the_group_that_leaves_least_counts)
{
    put("/proc/self/cgroup", "0::/a.slice/b.service\n");
    put("/proc/self/mountinfo", "25 1 0:22 / /proc rw - proc proc rw\n"
                                "31 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
    put("/sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
    put("/sys/fs/cgroup/a.slice/b.service/memory.current", "1048576\n");
    ck_assert_uint_eq(UINT64_MAX, limit_read().bytes);
    put("/sys/fs/cgroup/a.slice/memory.max", "104857600\n");
    put("/sys/fs/cgroup/a.slice/memory.current", "73400320\n");
    assert_limit(100 * MIB, 70 * MIB, "/sys/fs/cgroup/a.slice/memory.max");
    put("/sys/fs/cgroup/a.slice/b.service/memory.max", "52428800\n"); /* smaller, but leaves more */
    assert_limit(100 * MIB, 70 * MIB, "/sys/fs/cgroup/a.slice/memory.max");
    put("/sys/fs/cgroup/a.slice/b.service/memory.current", "31457280\n");
    assert_limit(50 * MIB, 30 * MIB, "/sys/fs/cgroup/a.slice/b.service/memory.max");
    /* Files that are cached and not in use are given up when memory is short. */
    put("/sys/fs/cgroup/a.slice/memory.stat", "anon 1\nfile 2\ninactive_file 1048576\n");
    put("/sys/fs/cgroup/a.slice/b.service/memory.stat", "inactive_anon 9\ninactive_file 10485760\n");
    assert_limit(50 * MIB, 20 * MIB, "/sys/fs/cgroup/a.slice/b.service/memory.max");
}

/* A container without a namespace of its own for groups: /proc tells the path on the host, of which only the end is
 * mounted. */
TEST(in_a_container_its_own_group_is_the_highest)
{
    put("/proc/self/cgroup", "12:cpu,cpuacct:/docker/1\n4:hugetlb,memory:/docker/1\n0::/system\n");
    put("/proc/self/mountinfo", "40 39 0:33 /docker/1 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
                                "41 39 0:34 /docker/1 /sys/fs/cgroup/memory ro master:9 - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
    put("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 2097152\n");
    ck_assert_uint_eq(UINT64_MAX, limit_read().bytes);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "67108864\n");
    assert_limit(64 * MIB, 0, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

TEST(what_does_not_fit_is_told_with_numbers)
{
    struct memory_limit limit = {.bytes = 64 * MIB, .used = 60 * MIB, .file = "F"};
    char why[400] = "";
    ck_assert(memory_fits(4 * MIB, &limit, why, sizeof(why)));
    ck_assert(!memory_fits(5 * MIB, &limit, why, sizeof(why)));
    ck_assert_str_eq("5 MiB, where F allows 64 MiB, of which 60 are in use", why);
    limit.used = 70 * MIB;
    ck_assert(!memory_fits(1, &limit, why, sizeof(why)));
    limit.bytes = UINT64_MAX;
    ck_assert(memory_fits(5 * MIB, &limit, why, sizeof(why)));
    ck_assert(!memory_fits((uint64_t)1 << 60, &limit, why, sizeof(why)));
    ck_assert_ptr_nonnull(strstr(why, "where this machine has"));
}

int main(void)
{
    return run_tests("limits", setup, teardown);
}
