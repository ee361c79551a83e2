#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/process.h"

#define SECOND_NS UINT64_C(1000000000)

static uint64_t time_of(clockid_t clock)
{
    struct timespec time = {0};
    (void)clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * SECOND_NS + (uint64_t)time.tv_nsec;
}

/* Fields of /proc/self/stat from the third on: the second, the program's name, may contain anything, also ')'. */
static bool stat_fields(char *text, int capacity, const char **fields)
{
    FILE *file = fopen("/proc/self/stat", "re");
    if (file == NULL)
        return false;
    const bool read = fgets(text, capacity, file) != NULL;
    fclose(file);
    const char *name_end = read ? strrchr(text, ')') : NULL;
    *fields = name_end != NULL ? name_end + 1 : NULL;
    return name_end != NULL;
}

/* Start, virtual size and resident size are fields 22 to 24. */
static void read_stat(struct process_figures *figures)
{
    char text[1024];
    const char *fields;
    uint64_t ticks, size;
    int64_t pages;
    const uint64_t hertz = (uint64_t)sysconf(_SC_CLK_TCK), page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!stat_fields(text, sizeof(text), &fields) ||
        sscanf(fields,
               " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64 " %" SCNu64
               " %" SCNd64,
               &ticks, &size, &pages) != 3)
        return;
    figures->virtual_bytes = size;
    figures->resident_bytes = pages > 0 ? (uint64_t)pages * page : 0;
    const uint64_t after_boot = ticks / hertz * SECOND_NS + ticks % hertz * SECOND_NS / hertz;
    if (figures->began_ns == 0)
        figures->began_ns = time_of(CLOCK_REALTIME) - time_of(CLOCK_BOOTTIME) + after_boot;
}

/* The size of the folder is the number of descriptors from Linux 6.2 on, and 0 before. */
static uint64_t count_descriptors(void)
{
    struct stat folder;
    uint64_t count = 0;
    if (stat("/proc/self/fd", &folder) == 0 && folder.st_size > 0)
        return (uint64_t)folder.st_size;
    DIR *list = opendir("/proc/self/fd");
    if (list == NULL)
        return 0;
    while (readdir(list) != NULL)
        count++;
    closedir(list);
    return count > 3 ? count - 3 : 0; /* "." and "..", and the list's own */
}

void process_read(struct process_figures *figures)
{
    struct rlimit limit;
    figures->cpu_ns = time_of(CLOCK_PROCESS_CPUTIME_ID);
    read_stat(figures);
    figures->open_fds = count_descriptors();
    figures->max_fds = 0;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        figures->max_fds = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}
