/* Large mappings: made, faulted in and let go without holding up other threads of the process, which wait for the
 * kernel's lock on the address space whenever they map memory themselves. */
#ifndef STRAIT_DAEMON_MEMORY_MAP_H
#define STRAIT_DAEMON_MEMORY_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Maps `size` bytes for reading and writing: of a memfd, shared, or (fd -1) private memory. The address is a multiple
 * of 2 MiB and huge pages are asked for. NULL, errno says why. */
void *map_huge(size_t size, int fd);

/* Gives back a mapping, in pieces. */
void map_drop(void *base, size_t size);

/* Brings every page of memory in, for writing, without changing a byte: others may be using them. 0, or what errno
 * would be: ENOMEM (also: nothing is mapped there), EACCES (it can only be read), EFAULT, EHWPOISON, EINVAL (the kernel
 * is too old, or a driver mapped it: neither is an error of the memory). */
int map_populate(void *base, size_t size);

/* The same by touching, for kernels before 5.14. The memory must be mapped for writing. */
void map_touch(void *base, size_t size);

#endif
