/* The plugin that knows NCCL and CUDA. It contains CUDA's static runtime, which looks for the driver itself, and loads
 * NCCL on request: a program that has already loaded one shares it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "transport/nccl_calls.h"

#define LIBRARY     "libnccl.so.2"
#define VERSION_MIN 21800
#define CUDA_ERRORS 1000 /* CUDA's errors are numbered from here on, NCCL's below */

_Static_assert(sizeof(ncclUniqueId) == NCCL_ID_BYTES, "an id is an ncclUniqueId");
_Static_assert(sizeof(cudaUUID_t) == NCCL_PLACE_BYTES, "a GPU's identity is its UUID");

static struct {
    ncclResult_t (*version)(int *version);
    const char *(*text)(ncclResult_t result);
    ncclResult_t (*make_id)(ncclUniqueId *id);
    ncclResult_t (*join)(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
    ncclResult_t (*state)(ncclComm_t comm, ncclResult_t *state);
    ncclResult_t (*send)(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                         cudaStream_t stream);
    ncclResult_t (*receive)(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                            cudaStream_t stream);
    ncclResult_t (*abort)(ncclComm_t comm);
} nccl;

static const struct {
    const char *name;
    void *at;
} symbols[] = {
    {"ncclGetVersion", &nccl.version},
    {"ncclGetErrorString", &nccl.text},
    {"ncclGetUniqueId", &nccl.make_id},
    {"ncclCommInitRankConfig", &nccl.join},
    {"ncclCommGetAsyncError", &nccl.state},
    {"ncclSend", &nccl.send},
    {"ncclRecv", &nccl.receive},
    {"ncclCommAbort", &nccl.abort},
};

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

static int of_nccl(ncclResult_t result)
{
    return result == ncclSuccess ? NCCL_DONE : result == ncclInProgress ? NCCL_BUSY : -(int)result;
}

static int of_cuda(cudaError_t error)
{
    return error == cudaSuccess ? NCCL_DONE : error == cudaErrorNotReady ? NCCL_BUSY : -(CUDA_ERRORS + (int)error);
}

static const char *text(int error)
{
    return -error >= CUDA_ERRORS ? cudaGetErrorString((cudaError_t)(-error - CUDA_ERRORS))
                                 : nccl.text((ncclResult_t)-error);
}

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

static int describe(int device, struct nccl_place *place)
{
    int multiprocessors;
    struct cudaDeviceProp properties;
    cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess)
        return of_cuda(error);
    place->device = device;
    place->multiprocessors = (uint32_t)multiprocessors;
    memcpy(place->identity, &properties.uuid, NCCL_PLACE_BYTES);
    return NCCL_DONE;
}

static int locate(const void *pointer, struct nccl_place *place)
{
    struct cudaPointerAttributes attributes;
    cudaError_t error = cudaPointerGetAttributes(&attributes, pointer);
    if (error != cudaSuccess)
        return of_cuda(error);
    return attributes.type == cudaMemoryTypeDevice ? describe(attributes.device, place)
                                                   : of_cuda(cudaErrorInvalidDevicePointer);
}

static int enter(int device)
{
    return of_cuda(cudaSetDevice(device));
}

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

static int make_id(uint8_t id[NCCL_ID_BYTES])
{
    ncclUniqueId made;
    ncclResult_t result = nccl.make_id(&made);
    if (result == ncclSuccess)
        memcpy(id, &made, NCCL_ID_BYTES);
    return of_nccl(result);
}

static int join(void **out, const uint8_t id[NCCL_ID_BYTES], int rank, uint32_t blocks)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    ncclUniqueId made;
    memcpy(&made, id, NCCL_ID_BYTES);
    config.blocking = 0;
    config.maxCTAs = (int)blocks;
    int code = of_nccl(nccl.join(&comm, 2, made, rank, &config));
    *out = code < 0 ? NULL : comm;
    return code;
}

static int state(void *comm)
{
    ncclResult_t result = ncclSuccess;
    ncclResult_t asked = nccl.state(comm, &result);
    return of_nccl(asked == ncclSuccess ? result : asked);
}

static int send_bytes(void *comm, const void *data, size_t size, void *stream)
{
    return of_nccl(nccl.send(data, size, ncclUint8, 1, comm, stream));
}

static int receive_bytes(void *comm, void *data, size_t size, void *stream)
{
    return of_nccl(nccl.receive(data, size, ncclUint8, 0, comm, stream));
}

/* If it fails, its kernels may go on; the stream tells. */
static void abort_comm(void *comm)
{
    nccl.abort(comm);
}

/* ---- Streams and events ------------------------------------------------------------------------------------------ */

/* With the highest priority: an operation that waits for room on this GPU keeps the peer's GPU waiting as well. */
static int stream_create(void **stream)
{
    int least, greatest;
    cudaStream_t created;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, greatest);
    if (error == cudaSuccess)
        *stream = created;
    return of_cuda(error);
}

static void stream_destroy(void *stream)
{
    cudaStreamDestroy(stream);
}

static int stream_state(void *stream)
{
    return of_cuda(cudaStreamQuery(stream));
}

static int event_create(void **event)
{
    cudaEvent_t created;
    cudaError_t error = cudaEventCreateWithFlags(&created, cudaEventDisableTiming);
    if (error == cudaSuccess)
        *event = created;
    return of_cuda(error);
}

static void event_destroy(void *event)
{
    cudaEventDestroy(event);
}

static int event_record(void *event, void *stream)
{
    return of_cuda(cudaEventRecord(event, stream));
}

static int event_state(void *event)
{
    return of_cuda(cudaEventQuery(event));
}

/* ---- The plugin -------------------------------------------------------------------------------------------------- */

static struct nccl_calls calls = {
    .version = NCCL_CALLS_VERSION,
    .within_process = false,
    .text = text,
    .locate = locate,
    .enter = enter,
    .make_id = make_id,
    .join = join,
    .state = state,
    .send = send_bytes,
    .receive = receive_bytes,
    .abort = abort_comm,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_state = stream_state,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_state = event_state,
};

/* NCCL stays loaded: it has started threads. */
static bool load(const char *library, char *why, size_t why_size)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *error = dlerror();
        snprintf(why, why_size, "no NCCL: %s", error != NULL ? error : library);
        return false;
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        *(void **)symbols[i].at = dlsym(handle, symbols[i].name);
        if (*(void **)symbols[i].at == NULL) {
            snprintf(why, why_size, "%s has no %s: NCCL 2.18 or later is needed", library, symbols[i].name);
            return false;
        }
    }
    return true;
}

static bool is_recent(char *why, size_t why_size)
{
    int version = 0;
    if (nccl.version(&version) == ncclSuccess && version >= VERSION_MIN) {
        calls.library = (uint32_t)version;
        return true;
    }
    snprintf(why, why_size, "NCCL %d.%d is too old: 2.18 or later is needed", version / 10000, version / 100 % 100);
    return false;
}

/* Without cuMem allocations, memory that NCCL has freed here could be used again while a peer's GPU, which has not
 * heard of it yet, still stores into it. */
static bool keeps_shared_memory(char *why, size_t why_size)
{
    const char *setting = getenv("NCCL_CUMEM_ENABLE");
    if (setting == NULL || strcmp(setting, "0") != 0)
        return true;
    snprintf(why, why_size, "NCCL_CUMEM_ENABLE=0 is set: peers could store into memory that was freed");
    return false;
}

static bool has_gpu(char *why, size_t why_size)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0)
        return true;
    snprintf(why, why_size, "no GPU: %s", error != cudaSuccess ? cudaGetErrorString(error) : "none is there");
    return false;
}

__attribute__((visibility("default"))) nccl_calls_get strait_transport_nccl_calls;

const struct nccl_calls *strait_transport_nccl_calls(const char *library, char *why, size_t why_size)
{
    bool usable = keeps_shared_memory(why, why_size) && load(library != NULL ? library : LIBRARY, why, why_size) &&
                  is_recent(why, why_size) && has_gpu(why, why_size);
    return usable ? &calls : NULL;
}
