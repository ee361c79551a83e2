/* Large mappings. They are made, faulted in and released without holding up the process's other threads, which wait for
 * the kernel's lock on the address space whenever they map memory themselves. */
#ifndef STRAIT_DAEMON_MEMORY_MAP_H
#define STRAIT_DAEMON_MEMORY_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Maps `size` bytes for reading and writing: of a memfd, shared, or (fd -1) private memory. The address is a multiple
 * of 2 MiB, and huge pages are requested. NULL: errno says why. */
void *map_huge(size_t size, int fd);

/* Unmaps in pieces. */
void map_drop(void *base, size_t size);

/* Faults in every page of memory for writing without changing a byte, as others may be using it. 0, or what errno would
 * be: ENOMEM (also: nothing is mapped there), EACCES (read-only mapping), EFAULT, EHWPOISON, EINVAL (the kernel is too
 * old, or the mapping is a driver's: neither is an error of the memory). */
int map_populate(void *base, size_t size);

/* The same by touching each page, for kernels before 5.14. The memory must be mapped for writing. */
void map_touch(void *base, size_t size);

#endif
