/* Host memory: as such, and as memory of the fake devices. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/chaos/memory.h"
#include "tests/fakes/device.h"

static const uint64_t *table;

static bool host_begin(const uint64_t *words, size_t count)
{
    (void)count;
    table = words;
    return true;
}

static bool host_take(struct pages *pages)
{
    pages->fd = memfd_create(pages->name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (pages->fd < 0)
        return false;
    if (ftruncate(pages->fd, (off_t)POOL_BYTES) != 0 || fcntl(pages->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        goto err_close;
    pages->base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pages->fd, 0);
    if (pages->base != MAP_FAILED)
        return true;
err_close:
    pages->base = NULL;
    close(pages->fd);
    return false;
}

static void host_give(struct pages *pages)
{
    munmap(pages->base, POOL_BYTES);
    close(pages->fd);
}

static uint64_t *words_of(const struct pages *pages, const struct part *part)
{
    return (uint64_t *)(void *)(pages->base + part->offset);
}

static void host_write(const struct pages *pages, const struct part *parts, uint32_t count)
{
    for (uint32_t p = 0; p < count; p++) {
        uint64_t *to = words_of(pages, &parts[p]);
        const uint64_t *from = table + parts[p].first;
        for (uint32_t i = 0; i < parts[p].bytes / 8; i++)
            to[i] = from[i] ^ parts[p].flip;
    }
}

static bool holds(const struct pages *pages, const struct part *part)
{
    const uint64_t *is = words_of(pages, part), *from = table + part->first;
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < part->bytes / 8; i++)
        wrong |= is[i] ^ from[i] ^ part->flip;
    return wrong == 0;
}

static uint32_t host_find_wrong(const struct pages *pages, const struct part *parts, uint32_t count)
{
    uint32_t p = 0;
    while (p < count && holds(pages, &parts[p]))
        p++;
    return p;
}

static uint32_t no_devices(void)
{
    return 0;
}

static void describe_host(const struct pages *pages, struct strait_pool_region *region)
{
    (void)pages;
    region->handle = STRAIT_HANDLE_MEMFD;
}

const struct memory_kind memory_host = {.name = "host",
                                        .devices = no_devices,
                                        .begin = host_begin,
                                        .take = host_take,
                                        .give = host_give,
                                        .describe = describe_host,
                                        .write = host_write,
                                        .find_wrong = host_find_wrong};

/* ---- Of the fake devices -------------------------------------------------------------------------------------- */

static uint32_t fake_devices(void)
{
    return FAKE_DEVICES;
}

/* The descriptor belongs to the driver, which outlives its clients. */
static bool fake_take(struct pages *pages)
{
    if (!host_take(pages))
        return false;
    const struct fake_handle handle = {.pid = getpid(), .fd = pages->fd, .device = pages->device};
    memcpy(pages->ipc, &handle, sizeof(handle));
    return true;
}

static void describe_ipc(const struct pages *pages, struct strait_pool_region *region)
{
    region->handle = STRAIT_HANDLE_CUDA_IPC;
    region->fd = -1;
    memcpy(region->ipc, pages->ipc, sizeof(region->ipc));
}

const struct memory_kind memory_fake = {.name = "fake",
                                        .devices = fake_devices,
                                        .begin = host_begin,
                                        .take = fake_take,
                                        .give = host_give,
                                        .describe = describe_ipc,
                                        .write = host_write,
                                        .find_wrong = host_find_wrong};
