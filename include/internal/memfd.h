/* Kind of memory behind a memfd that another process made. */
#ifndef STRAIT_INTERNAL_MEMFD_H
#define STRAIT_INTERNAL_MEMFD_H

#include <linux/magic.h>
#include <stdbool.h>
#include <sys/vfs.h>

/* Memory of hugetlb pages is taken from a pool that can be empty: then the first access to a page ends in SIGBUS. The
 * file system tells; st_blksize does not, because it is also large where ordinary memory may get transparent huge
 * pages (shmem_enabled). */
static inline bool memfd_is_hugetlb(int fd)
{
    struct statfs system;
    return fstatfs(fd, &system) != 0 || system.f_type == HUGETLBFS_MAGIC;
}

#endif
