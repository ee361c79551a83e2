/* GPU memory with CUDA. */
#include "bench/device.h"

#include <stdio.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "tools/util.h"

#define GPUS_MAX 64
/* Smaller allocations share a block of the driver's, and a handle stands for the whole block. */
#define ALLOCATION_MIN (2u << 20)

_Static_assert(sizeof(cudaIpcMemHandle_t) == GPU_HANDLE_BYTES, "a handle fits");

/* For each GPU in use: a stream, and where its kernels count. */
static struct {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    unsigned long long *count; /* pinned */
    int32_t *wanted;           /* of the GPU */
    uint32_t wanted_room;
} gpus[GPUS_MAX];

bool device_ok(int error, const char *what)
{
    if (error != cudaSuccess)
        print_error(NULL, "%s: %s", what, cudaGetErrorString((cudaError_t)error));
    return error == cudaSuccess;
}

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

unsigned gpu_count(char *why, size_t size)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);

    snprintf(why, size, "%s", cudaGetErrorString(error != cudaSuccess ? error : cudaErrorNoDevice));
    return error != cudaSuccess || count < 0 ? 0 : count > GPUS_MAX ? GPUS_MAX : (unsigned)count;
}

static bool use(int gpu)
{
    return device_ok(cudaSetDevice(gpu), "device");
}

static bool open_one(int gpu, char name[128])
{
    struct cudaDeviceProp properties;

    if (!use(gpu) || !device_ok(cudaGetDeviceProperties(&properties, gpu), "device"))
        return false;
    snprintf(name, 128, "%.100s", properties.name);
    return gpus[gpu].stream != NULL ||
           (device_ok(cudaStreamCreateWithFlags(&gpus[gpu].stream, cudaStreamNonBlocking), "stream") &&
            device_ok(cudaEventCreate(&gpus[gpu].begin), "event") &&
            device_ok(cudaEventCreate(&gpus[gpu].end), "event") &&
            device_ok(cudaHostAlloc((void **)&gpus[gpu].count, sizeof(*gpus[gpu].count), cudaHostAllocMapped),
                      "pinned memory"));
}

static bool enable_peer(int gpu, int peer)
{
    if (!use(gpu))
        return false;
    cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error != cudaErrorPeerAccessAlreadyEnabled)
        return device_ok(error, "peer access");
    (void)cudaGetLastError();
    return true;
}

/* Enables peer access, without which cudaMemcpyPeer goes through the host. */
static bool enable_peers(int from, int to, bool *direct)
{
    int there, back;

    *direct = true;
    if (from == to)
        return true;
    if (!device_ok(cudaDeviceCanAccessPeer(&there, from, to), "device") ||
        !device_ok(cudaDeviceCanAccessPeer(&back, to, from), "device"))
        return false;
    *direct = there != 0 && back != 0;
    if (!*direct)
        return true;
    return enable_peer(from, to) && enable_peer(to, from);
}

bool gpu_open(int from, int to, struct gpu_about *about)
{
    *about = (struct gpu_about){0};
    cudaDriverGetVersion(&about->driver);
    cudaRuntimeGetVersion(&about->runtime);
    return open_one(from, about->names[0]) && open_one(to, about->names[1]) && enable_peers(from, to, &about->direct);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

bool gpu_alloc(struct gpu_memory *memory, int gpu, uint64_t size)
{
    cudaIpcMemHandle_t handle;

    *memory = (struct gpu_memory){.gpu = gpu, .size = size};
    if (!use(gpu) ||
        !device_ok(cudaMalloc((void **)&memory->base, size < ALLOCATION_MIN ? ALLOCATION_MIN : size), "memory"))
        return false;
    if (!device_ok(cudaIpcGetMemHandle(&handle, memory->base), "a handle of memory")) {
        gpu_free(memory);
        return false;
    }
    memcpy(memory->handle, &handle, sizeof(handle));
    return true;
}

void gpu_free(struct gpu_memory *memory)
{
    if (memory->base != NULL && cudaSetDevice(memory->gpu) == cudaSuccess)
        cudaFree(memory->base);
    *memory = (struct gpu_memory){0};
}

bool gpu_finish(int gpu)
{
    return device_ok(cudaStreamSynchronize(gpus[gpu].stream), "device");
}

/* Repeatedly copies what is there to its own end until the part is full: each copy but the last is a multiple of the
 * period. */
bool gpu_tile(const struct gpu_memory *memory, uint64_t offset, uint64_t size, const void *data, uint64_t period)
{
    cudaStream_t stream = gpus[memory->gpu].stream;
    uint8_t *to = memory->base + offset;
    uint64_t done = period < size ? period : size;

    if (!use(memory->gpu) || !device_ok(cudaMemcpyAsync(to, data, done, cudaMemcpyHostToDevice, stream), "copy"))
        return false;
    for (uint64_t piece; done < size; done += piece) {
        piece = done < size - done ? done : size - done;
        if (!device_ok(cudaMemcpyAsync(to + done, to, piece, cudaMemcpyDeviceToDevice, stream), "copy"))
            return false;
    }
    return gpu_finish(memory->gpu);
}

bool gpu_stamp(const struct gpu_memory *memory, uint64_t first)
{
    return use(memory->gpu) &&
           device_ok(device_stamp(memory->base, first, memory->size / GPU_STAMP_STEP, gpus[memory->gpu].stream),
                     "kernel") &&
           gpu_finish(memory->gpu);
}

bool gpu_wipe(const struct gpu_memory *memory)
{
    return use(memory->gpu) &&
           device_ok(cudaMemsetAsync(memory->base, GPU_WIPED, memory->size, gpus[memory->gpu].stream), "memset") &&
           gpu_finish(memory->gpu);
}

bool gpu_flip(const struct gpu_memory *memory, uint64_t offset)
{
    uint8_t byte;

    if (!use(memory->gpu) || !device_ok(cudaMemcpy(&byte, memory->base + offset, 1, cudaMemcpyDeviceToHost), "copy"))
        return false;
    byte ^= 1;
    return device_ok(cudaMemcpy(memory->base + offset, &byte, 1, cudaMemcpyHostToDevice), "copy");
}

struct CUstream_st *gpu_stream(int gpu)
{
    return use(gpu) ? gpus[gpu].stream : NULL;
}

bool gpu_fill(const struct gpu_memory *memory, uint64_t offset, uint64_t size, uint8_t byte)
{
    return use(memory->gpu) &&
           device_ok(cudaMemsetAsync(memory->base + offset, byte, size, gpus[memory->gpu].stream), "memset") &&
           gpu_finish(memory->gpu);
}

bool gpu_read(const struct gpu_memory *memory, uint64_t offset, void *dst, uint64_t size)
{
    return use(memory->gpu) && device_ok(cudaMemcpy(dst, memory->base + offset, size, cudaMemcpyDeviceToHost), "copy");
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static bool copy(const struct gpu_piece *piece, cudaStream_t stream)
{
    return device_ok(cudaMemcpyPeerAsync(piece->to->base + piece->to_offset, piece->to->gpu,
                                         piece->from->base + piece->from_offset, piece->from->gpu, piece->size, stream),
                     "copy");
}

static bool record(cudaEvent_t event, int gpu)
{
    return device_ok(cudaEventRecord(event, gpus[gpu].stream), "event");
}

bool gpu_copy(const struct gpu_memory *to, uint64_t to_offset, const struct gpu_memory *from, uint64_t from_offset,
              uint64_t size, bool events, uint64_t *ns)
{
    const struct gpu_piece piece = {to, from, to_offset, from_offset, size};
    int gpu = from->gpu;
    float ms;

    if (!use(gpu))
        return false;
    uint64_t began = clock_ns();
    if ((events && !record(gpus[gpu].begin, gpu)) || !copy(&piece, gpus[gpu].stream) ||
        (events && !record(gpus[gpu].end, gpu)) || !gpu_finish(gpu))
        return false;
    *ns = clock_ns() - began;
    if (!events)
        return true;
    if (!device_ok(cudaEventElapsedTime(&ms, gpus[gpu].begin, gpus[gpu].end), "event"))
        return false;
    *ns = (uint64_t)((double)ms * 1e6) + 1;
    return true;
}

/* Streams are made before the time, and the first one that fails ends all. */
bool gpu_copies(const struct gpu_piece *pieces, unsigned count, uint64_t *ns)
{
    cudaStream_t streams[GPU_COPIES_MAX] = {NULL};
    bool good = true;

    for (unsigned i = 0; good && i < count; i++)
        good = use(pieces[i].from->gpu) &&
               device_ok(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), "stream");
    uint64_t began = clock_ns();
    for (unsigned i = 0; good && i < count; i++)
        good = use(pieces[i].from->gpu) && copy(&pieces[i], streams[i]);
    for (unsigned i = 0; i < count && streams[i] != NULL; i++)
        good = device_ok(cudaStreamSynchronize(streams[i]), "copy") && good;
    *ns = clock_ns() - began;
    for (unsigned i = 0; i < count && streams[i] != NULL; i++)
        cudaStreamDestroy(streams[i]);
    return good;
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

bool gpu_differences(const struct gpu_memory *a, uint64_t a_offset, const struct gpu_memory *b, uint64_t b_offset,
                     uint64_t size, uint64_t *count)
{
    unsigned long long *counted = gpus[a->gpu].count;

    *counted = 0;
    if (!use(a->gpu) ||
        !device_ok(device_count_differences(a->base + a_offset, b->base + b_offset, size, counted, gpus[a->gpu].stream),
                   "kernel") ||
        !gpu_finish(a->gpu))
        return false;
    *count = *counted;
    return true;
}

static bool upload_wanted(int gpu, const int32_t *wanted, uint32_t pages)
{
    if (gpus[gpu].wanted_room < pages) {
        cudaFree(gpus[gpu].wanted);
        gpus[gpu].wanted_room = 0;
        if (!device_ok(cudaMalloc((void **)&gpus[gpu].wanted, pages * sizeof(*wanted)), "memory"))
            return false;
        gpus[gpu].wanted_room = pages;
    }
    return device_ok(
        cudaMemcpyAsync(gpus[gpu].wanted, wanted, pages * sizeof(*wanted), cudaMemcpyHostToDevice, gpus[gpu].stream),
        "copy");
}

bool gpu_wrong_pages(const struct gpu_memory *memory, const struct gpu_memory *reference,
                     const struct gpu_layout *layout, const int32_t *wanted, uint64_t *wrong)
{
    unsigned long long *counted = gpus[memory->gpu].count;

    *counted = 0;
    if (!use(memory->gpu) || !upload_wanted(memory->gpu, wanted, layout->pages) ||
        !device_ok(device_count_wrong_pages(memory->base, reference->base, gpus[memory->gpu].wanted, layout, counted,
                                            gpus[memory->gpu].stream),
                   "kernel") ||
        !gpu_finish(memory->gpu))
        return false;
    *wrong = *counted;
    return true;
}
