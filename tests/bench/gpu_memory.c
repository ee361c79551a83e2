/* GPUs and their memory for benches without a GPU: those of tests/fakes/device.c, and memfds. A copy from GPU to GPU is
 * a memcpy; figures mean nothing here, but everything around them runs as it does on GPUs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/device.h"
#include "internal/bytes.h"
#include "tests/fakes/device.h"
#include "tools/util.h"

_Static_assert(sizeof(struct fake_handle) == GPU_HANDLE_BYTES, "a handle fits");

bool device_ok(int error, const char *what)
{
    if (error != 0)
        print_error(NULL, "%s: error %d", what, error);
    return error == 0;
}

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

unsigned gpu_count(char *why, size_t size)
{
    const char *absent = getenv("FAKE_NO_GPU"), *count = getenv("FAKE_GPUS");

    snprintf(why, size, "no GPU is plugged in");
    return absent != NULL ? 0 : count != NULL ? (unsigned)atoi(count) : FAKE_DEVICES;
}

bool gpu_open(int from, int to, struct gpu_about *about)
{
    *about = (struct gpu_about){.direct = from != to};
    snprintf(about->names[0], sizeof(about->names[0]), "fake %d", from);
    snprintf(about->names[1], sizeof(about->names[1]), "fake %d", to);
    return true;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static int file_of(const struct gpu_memory *memory)
{
    struct fake_handle handle;

    memcpy(&handle, memory->handle, sizeof(handle));
    return handle.fd;
}

bool gpu_alloc(struct gpu_memory *memory, int gpu, uint64_t size)
{
    struct fake_handle handle = {.pid = getpid(), .fd = memfd_create("gpu", MFD_CLOEXEC), .device = gpu};
    void *base = MAP_FAILED;

    if (handle.fd >= 0 && ftruncate(handle.fd, (off_t)size) == 0)
        base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, handle.fd, 0);
    if (base == MAP_FAILED) {
        print_error(NULL, "no memory");
        return false;
    }
    *memory = (struct gpu_memory){.gpu = gpu, .base = base, .size = size};
    memcpy(memory->handle, &handle, sizeof(handle));
    return true;
}

void gpu_free(struct gpu_memory *memory)
{
    if (memory->base == NULL)
        return;
    munmap(memory->base, memory->size);
    close(file_of(memory));
    *memory = (struct gpu_memory){0};
}

bool gpu_tile(const struct gpu_memory *memory, uint64_t offset, uint64_t size, const void *data, uint64_t period)
{
    for (uint64_t at = 0; at < size; at += period)
        memcpy(memory->base + offset + at, data, period < size - at ? period : size - at);
    return true;
}

bool gpu_stamp(const struct gpu_memory *memory, uint64_t first)
{
    for (uint64_t unit = 0; unit < memory->size / GPU_STAMP_STEP; unit++)
        for (unsigned k = 0; k < 4; k++) {
            uint8_t *value = memory->base + unit * GPU_STAMP_STEP + 2 * k;
            store_le16(value, gpu_stamped(load_le16(value), first + unit, k));
        }
    return true;
}

bool gpu_wipe(const struct gpu_memory *memory)
{
    memset(memory->base, GPU_WIPED, memory->size);
    return true;
}

bool gpu_flip(const struct gpu_memory *memory, uint64_t offset)
{
    memory->base[offset] ^= 1;
    return true;
}

bool gpu_copy(const struct gpu_memory *to, uint64_t to_offset, const struct gpu_memory *from, uint64_t from_offset,
              uint64_t size, bool events, uint64_t *ns)
{
    uint64_t began = clock_ns();

    (void)events;
    memcpy(to->base + to_offset, from->base + from_offset, size);
    *ns = clock_ns() - began + 1;
    return true;
}

bool gpu_copies(const struct gpu_piece *pieces, unsigned count, uint64_t *ns)
{
    bool good = true;

    *ns = 0;
    for (unsigned i = 0; good && i < count; i++) {
        uint64_t one;
        good = gpu_copy(pieces[i].to, pieces[i].to_offset, pieces[i].from, pieces[i].from_offset, pieces[i].size, false,
                        &one);
        *ns += one;
    }
    return good;
}

struct CUstream_st *gpu_stream(int gpu)
{
    (void)gpu;
    return NULL; /* nothing is ever under way */
}

bool gpu_finish(int gpu)
{
    (void)gpu;
    return true;
}

bool gpu_fill(const struct gpu_memory *memory, uint64_t offset, uint64_t size, uint8_t byte)
{
    memset(memory->base + offset, byte, size);
    return true;
}

bool gpu_read(const struct gpu_memory *memory, uint64_t offset, void *dst, uint64_t size)
{
    memcpy(dst, memory->base + offset, size);
    return true;
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

bool gpu_differences(const struct gpu_memory *a, uint64_t a_offset, const struct gpu_memory *b, uint64_t b_offset,
                     uint64_t size, uint64_t *count)
{
    *count = 0;
    for (uint64_t at = 0; at < size; at += 16)
        *count += memcmp(a->base + a_offset + at, b->base + b_offset + at, 16) != 0;
    return true;
}

static bool is_wiped(const uint8_t *page, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        if (page[i] != GPU_WIPED)
            return false;
    return true;
}

bool gpu_wrong_pages(const struct gpu_memory *memory, const struct gpu_memory *reference,
                     const struct gpu_layout *layout, const int32_t *wanted, uint64_t *wrong)
{
    *wrong = 0;
    for (uint32_t r = 0; r < layout->regions; r++)
        for (uint32_t i = 0; i < layout->pages; i++) {
            const uint64_t region = r * gpu_region_bytes(layout), bytes = layout->page_bytes;
            const uint8_t *page = memory->base + region + i * bytes;
            if (wanted[i] < 0)
                *wrong += !is_wiped(page, layout->page_bytes);
            else
                *wrong += memcmp(page, reference->base + region + (uint64_t)wanted[i] * bytes, bytes) != 0;
        }
    return true;
}
