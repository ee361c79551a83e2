/* strait bench ep --device: a GPU for each rank. */
#include <stdio.h>

#include <cuda_runtime_api.h>

#include "bench/device.h"
#include "bench/ep.h"

static cudaStream_t stream;
static char name[256];

static bool device_count(unsigned *ranks)
{
    char why[256];
    const unsigned all = collective_count_gpus(why, sizeof(why));

    *ranks = *ranks == 0 ? all : *ranks;
    if (all == 0)
        print_error(NULL, "no GPU: %s", why);
    else if (*ranks > all)
        print_error(NULL, "--ranks: there are %u GPUs", all);
    return all > 0 && *ranks <= all;
}

static bool device_open(unsigned rank)
{
    struct cudaDeviceProp properties;

    if (!device_ok(cudaSetDevice((int)rank), "cudaSetDevice") ||
        !device_ok(cudaGetDeviceProperties(&properties, (int)rank), "cudaGetDeviceProperties") ||
        !device_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"))
        return false;
    snprintf(name, sizeof(name), "%s", properties.name);
    return true;
}

static void *device_alloc(uint64_t bytes)
{
    void *memory = NULL;
    return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : NULL;
}

static void device_free(void *memory)
{
    cudaFree(memory);
}

static bool device_write(void *to, const void *from, uint64_t bytes)
{
    return device_ok(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

static bool device_read(void *to, const void *from, uint64_t bytes)
{
    return device_ok(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

static bool device_finish(void)
{
    return device_ok(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

static struct CUstream_st *device_stream(void)
{
    return stream;
}

static const char *device_name(void)
{
    return name;
}

static const struct ep_memory device_memory = {
    .kind = STRAIT_EP_CUDA,
    .count = device_count,
    .open = device_open,
    .alloc = device_alloc,
    .free = device_free,
    .write = device_write,
    .read = device_read,
    .finish = device_finish,
    .stream = device_stream,
    .name = device_name,
};

int bench_ep_device(int argc, char **argv)
{
    return bench_ep_on(&device_memory, argc, argv);
}
