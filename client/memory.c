#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <strait/strait.h>

/* 0: too large. */
static size_t whole_pages(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return size > INT64_MAX - page ? 0 : (size + page - 1) / page * page;
}

/* A daemon maps the memory: if it could shrink, the daemon could die of SIGBUS. */
static bool size_and_seal(int fd, size_t size)
{
    return ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
}

enum strait_status strait_alloc(size_t size, struct strait_memory *memory)
{
    if (size == 0 || memory == NULL)
        return STRAIT_ERR_INVALID;
    size_t whole = whole_pages(size);
    if (whole == 0)
        return STRAIT_ERR_NO_MEMORY;
    int fd = memfd_create("strait", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return STRAIT_ERR_NO_MEMORY;
    void *base = size_and_seal(fd, whole) ? mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        close(fd);
        return STRAIT_ERR_NO_MEMORY;
    }
    *memory = (struct strait_memory){.fd = fd, .base = base, .size = whole};
    return STRAIT_OK;
}

void strait_free(struct strait_memory *memory)
{
    if (memory == NULL || memory->base == NULL)
        return;
    munmap(memory->base, memory->size);
    close(memory->fd);
    *memory = (struct strait_memory){.fd = -1};
}
