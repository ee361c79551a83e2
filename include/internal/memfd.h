/* Kind of memory behind a memfd that another process made. */
#ifndef STRAIT_INTERNAL_MEMFD_H
#define STRAIT_INTERNAL_MEMFD_H

#include <linux/magic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Memory of hugetlb pages is taken from a pool that can be empty: then the first access to a page ends in SIGBUS. The
 * file system tells; st_blksize does not, because it is also large where ordinary memory may get transparent huge
 * pages (shmem_enabled). */
static inline bool memfd_is_hugetlb(int fd)
{
    struct statfs system;
    return fstatfs(fd, &system) != 0 || system.f_type == HUGETLBFS_MAGIC;
}

/* Where the first memory in [first, end) of the file is that nobody has touched yet; `end`: nowhere. Whoever touches it
 * first is charged for it, whoever made the file. */
static inline uint64_t memfd_hole(int fd, uint64_t first, uint64_t end)
{
    const off_t place = lseek(fd, 0, SEEK_CUR), hole = lseek(fd, (off_t)first, SEEK_HOLE);
    (void)lseek(fd, place, SEEK_SET);
    return hole < 0 || (uint64_t)hole > end ? end : (uint64_t)hole;
}

#endif
