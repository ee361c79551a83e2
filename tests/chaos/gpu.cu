// Memory of GPUs, named to daemons by IPC handles, written and looked at by kernels so that no byte of it goes through
// the host; and faults of GPUs.
#include "tests/chaos/gpu.h"
#include "tests/chaos/pages.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

namespace
{

constexpr unsigned THREADS = 256;
constexpr int DEVICES_MAX = 8;
constexpr uint32_t KEPT = 8; // pools given back and still mapped: a daemon may be slow to close its handle

struct device {
    uint64_t *table;
    part *parts;
    uint32_t *wrong;
};

const uint64_t *host_table;
size_t table_bytes;
device devices[DEVICES_MAX];
struct {
    int32_t device;
    uint8_t *base;
} kept[KEPT];
uint32_t next_kept;

void require(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "chaos: %s: %s\n", what, cudaGetErrorString(error));
    abort();
}

__global__ void __launch_bounds__(THREADS) write_parts(uint8_t *pool, const part *parts, const uint64_t *table)
{
    const part p = parts[blockIdx.x];
    uint64_t *to = reinterpret_cast<uint64_t *>(pool + p.offset);
    for (uint32_t i = threadIdx.x; i < p.bytes / 8; i += THREADS)
        to[i] = table[p.first + i] ^ p.flip;
}

__global__ void __launch_bounds__(THREADS)
    compare_parts(const uint8_t *pool, const part *parts, const uint64_t *table, uint32_t *wrong)
{
    const part p = parts[blockIdx.x];
    const uint64_t *is = reinterpret_cast<const uint64_t *>(pool + p.offset);
    uint64_t differs = 0;
    for (uint32_t i = threadIdx.x; i < p.bytes / 8; i += THREADS)
        differs |= is[i] ^ table[p.first + i] ^ p.flip;
    if (differs != 0)
        atomicMin(wrong, blockIdx.x);
}

// In a process of its own: what starts the driver here would be inherited by the worlds.
uint32_t count_devices()
{
    int status = 0;
    fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
        int count = 0;
        const cudaError_t error = cudaGetDeviceCount(&count);
        if (error != cudaSuccess)
            fprintf(stderr, "chaos: %s\n", cudaGetErrorString(error));
        _exit(error == cudaSuccess && count > 0 ? (count < DEVICES_MAX ? count : DEVICES_MAX) : 0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return 0;
    return static_cast<uint32_t>(WEXITSTATUS(status));
}

bool begin(const uint64_t *table, size_t words)
{
    host_table = table;
    table_bytes = words * sizeof(*table);
    return true;
}

// Takes a GPU into use when the first pool is made there.
device &use(int32_t number)
{
    device &d = devices[number];
    require(cudaSetDevice(number), "GPU");
    if (d.table != nullptr)
        return d;
    require(cudaMalloc(reinterpret_cast<void **>(&d.parts), PARTS_MAX * sizeof(part)), "memory");
    require(cudaMalloc(reinterpret_cast<void **>(&d.wrong), sizeof(*d.wrong)), "memory");
    require(cudaMalloc(reinterpret_cast<void **>(&d.table), table_bytes), "memory");
    require(cudaMemcpy(d.table, host_table, table_bytes, cudaMemcpyHostToDevice), "table");
    return d;
}

bool take(pages *pages)
{
    cudaIpcMemHandle_t handle;
    (void)use(pages->device);
    if (cudaMalloc(reinterpret_cast<void **>(&pages->base), POOL_BYTES) != cudaSuccess)
        return false;
    require(cudaIpcGetMemHandle(&handle, pages->base), "IPC handle");
    static_assert(sizeof(handle) == sizeof(pages->ipc), "the handle's size");
    memcpy(pages->ipc, &handle, sizeof(handle));
    return true;
}

void give(pages *pages)
{
    auto &place = kept[next_kept++ % KEPT];
    if (place.base != nullptr) {
        (void)use(place.device);
        require(cudaFree(place.base), "free");
    }
    place.device = pages->device;
    place.base = pages->base;
}

void describe(const pages *pages, strait_pool_region *region)
{
    region->handle = STRAIT_HANDLE_CUDA_IPC;
    memcpy(region->ipc, pages->ipc, sizeof(region->ipc));
}

void send_parts(const device &d, const part *parts, uint32_t count)
{
    require(cudaMemcpy(d.parts, parts, count * sizeof(*parts), cudaMemcpyHostToDevice), "parts");
}

void write(const pages *pages, const part *parts, uint32_t count)
{
    const device &d = use(pages->device);
    send_parts(d, parts, count);
    write_parts<<<count, THREADS>>>(pages->base, d.parts, d.table);
    require(cudaGetLastError(), "write");
    require(cudaDeviceSynchronize(), "write");
}

uint32_t find_wrong(const pages *pages, const part *parts, uint32_t count)
{
    const device &d = use(pages->device);
    uint32_t wrong = count;
    send_parts(d, parts, count);
    require(cudaMemcpy(d.wrong, &wrong, sizeof(wrong), cudaMemcpyHostToDevice), "result");
    compare_parts<<<count, THREADS>>>(pages->base, d.parts, d.table, d.wrong);
    require(cudaGetLastError(), "compare");
    require(cudaMemcpy(&wrong, d.wrong, sizeof(wrong), cudaMemcpyDeviceToHost), "compare");
    return wrong;
}

// ---- Faults ---------------------------------------------------------------------------------------------------------

__global__ void fail(bool address, int *nowhere)
{
    if (address)
        *nowhere = 1;
    else
        __trap();
}

// Leaves no room for another thread on its multiprocessor.
__global__ void __launch_bounds__(1024) idle(uint64_t ns)
{
    uint64_t began, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - began < ns);
}

} // namespace

const char *gpu_break(int32_t device, enum gpu_fault fault)
{
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess) {
        fail<<<1, 1>>>(fault == GPU_BAD_ADDRESS, reinterpret_cast<int *>(64));
        error = cudaDeviceSynchronize();
    }
    (void)cudaGetLastError();
    return cudaGetErrorString(error);
}

const char *gpu_stall(int32_t device, uint32_t ms)
{
    int processors = 0;
    cudaStream_t stream = nullptr;
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) {
        idle<<<2 * processors, 1024, 0, stream>>>(ms * UINT64_C(1000000));
        error = cudaGetLastError();
    }
    return cudaGetErrorString(error);
}

const memory_kind memory_cuda = {"cuda", true, count_devices, begin, take, give, describe, write, find_wrong};
