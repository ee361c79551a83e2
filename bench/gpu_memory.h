/* Memory of GPUs, as `strait bench transfer --device` and `strait bench collective` use it. Behind this is CUDA; the
 * tests put memory of the host in its place. Calls are over when they return. Those that return bool have told stderr
 * why they failed. */
#ifndef STRAIT_BENCH_GPU_MEMORY_H
#define STRAIT_BENCH_GPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPU_HANDLE_BYTES 64u
#define GPU_WIPED        0xFFu /* in every byte: NaNs, so that no page of real values looks like it */
#define GPU_STAMP_STEP   4096u

struct gpu_memory {
    int gpu;
    uint8_t *base; /* an address of the GPU's: not to be touched here */
    uint64_t size;
    uint8_t handle[GPU_HANDLE_BYTES]; /* what a daemon maps it by: a cudaIpcMemHandle_t */
    void *own;                        /* of what is behind this */
};

struct gpu_about {
    char names[2][128]; /* of the two GPUs */
    int driver, runtime;
    bool reach; /* one can copy to the other without the host */
};

/* How many GPUs there are; of none it tells why. */
unsigned gpu_count(char *why, size_t size);
/* Takes two of them, which may be one, into use. Once, before all that follows. */
bool gpu_open(int from, int to, struct gpu_about *about);

bool gpu_alloc(struct gpu_memory *memory, int gpu, uint64_t size);
void gpu_free(struct gpu_memory *memory); /* safe on zeroes */

/* Repeats `period` bytes of the host over a part. */
bool gpu_tile(const struct gpu_memory *memory, uint64_t offset, uint64_t size, const void *data, uint64_t period);
/* Numbers every GPU_STAMP_STEP bytes in the mantissas of their first four values: gpu_stamped. */
bool gpu_stamp(const struct gpu_memory *memory);
bool gpu_wipe(const struct gpu_memory *memory);
/* Turns over the lowest bit of a byte. */
bool gpu_flip(const struct gpu_memory *memory, uint64_t offset);

/* cudaMemcpyPeer. *ns: from the call until it is known here that the copy is over; with `events`, between two of them,
 * before and behind it on the stream. */
bool gpu_copy(const struct gpu_memory *to, uint64_t to_offset, const struct gpu_memory *from, uint64_t from_offset,
              uint64_t size, bool events, uint64_t *ns);
/* How many 16-byte pieces differ; both on one GPU, or the GPUs reach each other. */
bool gpu_differences(const struct gpu_memory *a, uint64_t a_offset, const struct gpu_memory *b, uint64_t b_offset,
                     uint64_t size, uint64_t *count);

/* For what others begin there: a cudaStream_t of this GPU, which is the calling thread's then. */
struct CUstream_st *gpu_stream(int gpu);
/* Waits for all of that. */
bool gpu_finish(int gpu);
bool gpu_fill(const struct gpu_memory *memory, uint64_t offset, uint64_t size, uint8_t byte);
bool gpu_read(const struct gpu_memory *memory, uint64_t offset, void *dst, uint64_t size);

/* Regions, one behind another, of pages in the order of their ids. */
struct gpu_layout {
    uint32_t regions, pages; /* of each */
    uint32_t page_bytes;     /* a multiple of 16 */
};

static inline uint64_t gpu_region_bytes(const struct gpu_layout *layout)
{
    return (uint64_t)layout->pages * layout->page_bytes;
}

/* How many pages are not as they should be: page i of each region equal to page wanted[i] of the reference, or wiped
 * where that is negative. Both on one GPU. */
bool gpu_wrong_pages(const struct gpu_memory *memory, const struct gpu_memory *reference,
                     const struct gpu_layout *layout, const int32_t *wanted, uint64_t *wrong);

/* Value k, 0 to 3, of the four that carry the number `unit`: 28 bits of it, 7 in each mantissa. The exponents stay, and
 * so do the ratios. */
static inline uint16_t gpu_stamped(uint16_t value, uint64_t unit, unsigned k)
{
    return (uint16_t)((value & ~0x7Fu) | (unit >> (7 * k) & 0x7Fu));
}

#endif
