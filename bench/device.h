/* GPU memory and kernels of the benches. gpu_ functions are implemented with CUDA, and for the tests with host memory.
 * Calls are complete when they return. Those that return bool have printed to stderr why they failed. */
#ifndef STRAIT_BENCH_DEVICE_H
#define STRAIT_BENCH_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPU_HANDLE_BYTES 64u
#define GPU_WIPED        0xFFu /* in every byte: NaNs, so that no page of real values looks wiped */
#define GPU_STAMP_STEP   4096u

struct gpu_memory {
    int gpu;
    uint8_t *base; /* device address: the host must not access it */
    uint64_t size;
    uint8_t handle[GPU_HANDLE_BYTES]; /* a cudaIpcMemHandle_t, with which a daemon maps it */
    void *own;                        /* the implementation's own data */
};

struct gpu_about {
    char names[2][128]; /* of the two GPUs */
    int driver, runtime;
    bool direct; /* one can copy to the other without going through the host */
};

/* Number of GPUs; for 0, `why` says why. */
unsigned gpu_count(char *why, size_t size);
/* Opens two GPUs, which may be the same, before the functions below are called for them. */
bool gpu_open(int from, int to, struct gpu_about *about);

bool gpu_alloc(struct gpu_memory *memory, int gpu, uint64_t size);
void gpu_free(struct gpu_memory *memory); /* safe on zeroes */

/* Fills a part by repeating `period` bytes of host memory. */
bool gpu_tile(const struct gpu_memory *memory, uint64_t offset, uint64_t size, const void *data, uint64_t period);
/* Numbers every GPU_STAMP_STEP bytes, from `first` on, in the mantissas of their first four values: gpu_stamped. */
bool gpu_stamp(const struct gpu_memory *memory, uint64_t first);
bool gpu_wipe(const struct gpu_memory *memory);
/* Flips the lowest bit of a byte. */
bool gpu_flip(const struct gpu_memory *memory, uint64_t offset);

/* cudaMemcpyPeer. *ns: from the call until the host knows that the copy is complete; with `events`, between two events
 * on the stream, before and after the copy. */
bool gpu_copy(const struct gpu_memory *to, uint64_t to_offset, const struct gpu_memory *from, uint64_t from_offset,
              uint64_t size, bool events, uint64_t *ns);
/* Several at once, each on a stream of its own of the GPU that it comes from: *ns as without events, of all together.
 */
#define GPU_COPIES_MAX 16u
struct gpu_piece {
    const struct gpu_memory *to, *from;
    uint64_t to_offset, from_offset, size;
};
bool gpu_copies(const struct gpu_piece *pieces, unsigned count, uint64_t *ns);
/* How many 16-byte pieces differ. Both must be on one GPU, or the GPUs must have access to each other. */
bool gpu_differences(const struct gpu_memory *a, uint64_t a_offset, const struct gpu_memory *b, uint64_t b_offset,
                     uint64_t size, uint64_t *count);

/* A cudaStream_t for work that the caller starts on this GPU, which becomes the calling thread's current one. */
struct CUstream_st *gpu_stream(int gpu);
/* Waits for all work on that stream. */
bool gpu_finish(int gpu);
bool gpu_fill(const struct gpu_memory *memory, uint64_t offset, uint64_t size, uint8_t byte);
bool gpu_read(const struct gpu_memory *memory, uint64_t offset, void *dst, uint64_t size);

/* Regions, one after another, with pages in the order of their ids. */
struct gpu_layout {
    uint32_t regions, pages; /* of each */
    uint32_t page_bytes;     /* a multiple of 16 */
};

static inline uint64_t gpu_region_bytes(const struct gpu_layout *layout)
{
    return (uint64_t)layout->pages * layout->page_bytes;
}

/* How many pages are wrong: page i of each region must equal page wanted[i] of the reference, or be wiped where
 * wanted[i] is negative. Both on one GPU. */
bool gpu_wrong_pages(const struct gpu_memory *memory, const struct gpu_memory *reference,
                     const struct gpu_layout *layout, const int32_t *wanted, uint64_t *wrong);

/* Value k, 0 to 3, of the four that carry the number `unit`: 28 bits of it, 7 in each mantissa. Exponents are
 * unchanged, and so are compression ratios. */
static inline uint16_t gpu_stamped(uint16_t value, uint64_t unit, unsigned k)
{
    return (uint16_t)((value & ~0x7Fu) | (unit >> (7 * k) & 0x7Fu));
}

/* ---- CUDA alone -------------------------------------------------------------------------------------------------- */

/* False, with a message on stderr, unless the call returned cudaSuccess. */
bool device_ok(int error, const char *what);

/* Kernels. They return nonzero when CUDA refused. */
#ifdef __cplusplus
extern "C" {
#endif

/* A plain copy kernel, for comparison; multiples of 16 bytes. */
int device_copy(void *dst, const void *src, size_t bytes, struct CUstream_st *stream);
/* Adds to *count the 16-byte vectors that differ. */
int device_count_differences(const void *a, const void *b, size_t bytes, unsigned long long *count,
                             struct CUstream_st *stream);
/* Adds to *sum each 64-bit word times its number, counted from 1, modulo 2^64: to compare the bytes of two programs. */
int device_sum(const void *values, size_t bytes, unsigned long long *sum, struct CUstream_st *stream);
/* The kernels behind gpu_stamp and gpu_wrong_pages. */
int device_stamp(void *memory, uint64_t first, uint64_t units, struct CUstream_st *stream);
int device_count_wrong_pages(const void *memory, const void *reference, const int32_t *wanted,
                             const struct gpu_layout *layout, unsigned long long *count, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
