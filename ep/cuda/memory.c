/* Device and memory of the backend on the CUDA runtime: arenas that other ranks reach, within a process by peer access
 * and from another by CUDA IPC, host memory that kernels reach, and memory of phases. */
#include "ep/cuda/backend.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- Device ------------------------------------------------------------------------------------------------------ */

bool ep_cuda_good(cudaError_t error)
{
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error == cudaSuccess;
}

bool ep_cuda_enter(const struct ep_cuda *cuda, struct ep_cuda_entered *entered)
{
    if (!ep_cuda_good(cudaGetDevice(&entered->before)))
        return false;
    entered->moved = entered->before != cuda->device;
    if (entered->moved && !ep_cuda_good(cudaSetDevice(cuda->device)))
        return false;
    entered->mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&entered->mode);
    return true;
}

void ep_cuda_leave(const struct ep_cuda_entered *entered)
{
    enum cudaStreamCaptureMode mode = entered->mode;

    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    if (entered->moved)
        (void)ep_cuda_good(cudaSetDevice(entered->before));
}

/* ---- Arenas ------------------------------------------------------------------------------------------------------ */

/* What arena_map of another rank needs. */
struct ticket {
    uint64_t process[2]; /* random: of the process that made the arena */
    uint64_t base;       /* its address there */
    uint64_t bytes;
    uint64_t device; /* its number there */
    cudaIpcMemHandle_t handle;
};

/* Smaller pieces of memory may be shared together with what lies beside them. */
#define SHARED_UNIT (2u << 20)

static_assert(sizeof(struct ticket) <= EP_TICKET_BYTES, "tickets have room for it");

static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static uint64_t process_name[2];

static void name_process(void)
{
    if (getrandom(process_name, sizeof(process_name), 0) != (ssize_t)sizeof(process_name))
        process_name[0] = process_name[1] = 0; /* no process's */
}

/* Whether a ticket is of this process, in which the arena was made. */
static bool is_own(const struct ticket *ticket)
{
    return (process_name[0] | process_name[1]) != 0 && memcmp(ticket->process, process_name, sizeof(process_name)) == 0;
}

/* NCCL's switch: programs set it where peer access is there and does not work. */
static bool peers_refused(void)
{
    const char *value = getenv("NCCL_P2P_DISABLE");
    return value != NULL && atoi(value) != 0;
}

enum strait_status ep_cuda_arena_create(void *context, uint64_t bytes, uint8_t ticket[EP_TICKET_BYTES], void **base,
                                        const char **medium)
{
    struct ep_cuda *cuda = context;
    struct ticket made = {.bytes = bytes, .device = (uint64_t)cuda->device};
    struct ep_cuda_entered entered;

    if (peers_refused())
        return STRAIT_ERR_UNSUPPORTED;
    *base = ep_cuda_alloc(context, (bytes + SHARED_UNIT - 1) / SHARED_UNIT * SHARED_UNIT);
    if (*base == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if (!ep_cuda_enter(cuda, &entered))
        return STRAIT_ERR_DEVICE;
    /* Within a process no handle is needed, and where there are none, other processes find out by an empty one. */
    if (!ep_cuda_good(cudaIpcGetMemHandle(&made.handle, *base)))
        memset(&made.handle, 0, sizeof(made.handle));
    ep_cuda_leave(&entered);
    made.base = (uint64_t)(uintptr_t)*base;
    pthread_once(&process_once, name_process);
    memcpy(made.process, process_name, sizeof(process_name));
    memset(ticket, 0, EP_TICKET_BYTES);
    memcpy(ticket, &made, sizeof(made));
    *medium = "peer access";
    return STRAIT_OK;
}

/* Memory of a device of this process: itself, or one that reaches it. */
static enum strait_status reach(const struct ep_cuda *cuda, const struct ticket *ticket, void **base)
{
    const int device = (int)ticket->device;
    int can = 0;

    if (device != cuda->device) {
        if (!ep_cuda_good(cudaDeviceCanAccessPeer(&can, cuda->device, device)) || can == 0)
            return STRAIT_ERR_UNSUPPORTED;
        const cudaError_t error = cudaDeviceEnablePeerAccess(device, 0);
        if (!ep_cuda_good(error) && error != cudaErrorPeerAccessAlreadyEnabled)
            return STRAIT_ERR_UNSUPPORTED;
    }
    *base = (void *)(uintptr_t)ticket->base;
    return STRAIT_OK;
}

enum strait_status ep_cuda_arena_map(void *context, uint32_t rank, const uint8_t ticket[EP_TICKET_BYTES],
                                     uint64_t bytes, void **base)
{
    struct ep_cuda *cuda = context;
    struct ticket theirs;
    struct ep_cuda_entered entered;
    enum strait_status status = STRAIT_OK;

    memcpy(&theirs, ticket, sizeof(theirs));
    if (peers_refused() || theirs.bytes != bytes)
        return STRAIT_ERR_UNSUPPORTED;
    if (!ep_cuda_enter(cuda, &entered))
        return STRAIT_ERR_DEVICE;
    if (is_own(&theirs))
        status = reach(cuda, &theirs, base);
    else if (ep_cuda_good(cudaIpcOpenMemHandle(base, theirs.handle, cudaIpcMemLazyEnablePeerAccess)))
        cuda->opened |= 1ull << rank;
    else
        status = STRAIT_ERR_UNSUPPORTED; /* another host or container, or GPUs that do not reach each other */
    ep_cuda_leave(&entered);
    return status;
}

void ep_cuda_arena_unmap(void *context, uint32_t rank, void *base)
{
    struct ep_cuda *cuda = context;
    struct ep_cuda_entered entered;

    if ((cuda->opened >> rank & 1) == 0 || !ep_cuda_enter(cuda, &entered))
        return;
    (void)ep_cuda_good(cudaIpcCloseMemHandle(base));
    cuda->opened &= ~(1ull << rank);
    ep_cuda_leave(&entered);
}

void ep_cuda_arena_destroy(void *context, void *base)
{
    ep_cuda_free(context, base);
}

/* ---- Host memory that kernels reach ------------------------------------------------------------------------------ */

/* Registered memory. Ranks that are threads of one process have one mapping of it, which can be registered once. */
struct attached {
    struct attached *next;
    void *memory;
    uint32_t users;
};

static pthread_mutex_t attached_lock = PTHREAD_MUTEX_INITIALIZER;
static struct attached *attached;

/* With the lock. */
static struct attached **find_attached(const void *memory)
{
    struct attached **at = &attached;
    while (*at != NULL && (*at)->memory != memory)
        at = &(*at)->next;
    return at;
}

/* With the lock: registers memory unless it is. */
static enum strait_status attach(void *memory, uint64_t bytes)
{
    struct attached *found = *find_attached(memory);

    if (found != NULL) {
        found->users++;
        return STRAIT_OK;
    }
    found = malloc(sizeof(*found));
    if (found == NULL)
        return STRAIT_ERR_NO_MEMORY;
    const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (!ep_cuda_good(error)) {
        free(found);
        return error == cudaErrorMemoryAllocation ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_DEVICE;
    }
    *found = (struct attached){attached, memory, 1};
    attached = found;
    return STRAIT_OK;
}

/* With the lock. */
static void detach(void *memory)
{
    struct attached **at = find_attached(memory), *gone = *at;

    if (gone == NULL || --gone->users > 0)
        return;
    *at = gone->next;
    (void)ep_cuda_good(cudaHostUnregister(memory));
    free(gone);
}

enum strait_status ep_cuda_host_attach(void *context, void *memory, uint64_t bytes, void **device)
{
    struct ep_cuda_entered entered;

    if (!ep_cuda_enter(context, &entered))
        return STRAIT_ERR_DEVICE;
    pthread_mutex_lock(&attached_lock);
    enum strait_status status = attach(memory, bytes);
    if (status == STRAIT_OK && !ep_cuda_good(cudaHostGetDevicePointer(device, memory, 0))) {
        detach(memory);
        status = STRAIT_ERR_DEVICE;
    }
    pthread_mutex_unlock(&attached_lock);
    ep_cuda_leave(&entered);
    return status;
}

void ep_cuda_host_detach(void *context, void *memory)
{
    struct ep_cuda_entered entered;

    if (!ep_cuda_enter(context, &entered))
        return;
    pthread_mutex_lock(&attached_lock);
    detach(memory);
    pthread_mutex_unlock(&attached_lock);
    ep_cuda_leave(&entered);
}

/* ---- Memory of phases -------------------------------------------------------------------------------------------- */

void *ep_cuda_alloc(void *context, uint64_t bytes)
{
    struct ep_cuda *cuda = context;
    struct ep_cuda_entered entered;
    void *memory = NULL;

    if (!ep_cuda_enter(cuda, &entered))
        return NULL;
    if (!ep_cuda_good(cudaMalloc(&memory, bytes > 0 ? bytes : 1)))
        memory = NULL;
    if (memory != NULL && !(ep_cuda_good(cudaMemsetAsync(memory, 0, bytes, cuda->stream)) &&
                            ep_cuda_good(cudaStreamSynchronize(cuda->stream)))) {
        (void)ep_cuda_good(cudaFree(memory));
        memory = NULL;
    }
    ep_cuda_leave(&entered);
    return memory;
}

void ep_cuda_free(void *context, void *memory)
{
    struct ep_cuda_entered entered;

    if (!ep_cuda_enter(context, &entered))
        return;
    (void)ep_cuda_good(cudaFree(memory));
    ep_cuda_leave(&entered);
}

void *ep_cuda_alloc_pinned(void *context, uint64_t bytes, void **device)
{
    struct ep_cuda_entered entered;
    void *memory = NULL;

    if (!ep_cuda_enter(context, &entered))
        return NULL;
    if (!ep_cuda_good(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable)))
        memory = NULL;
    if (memory != NULL && !ep_cuda_good(cudaHostGetDevicePointer(device, memory, 0))) {
        (void)ep_cuda_good(cudaFreeHost(memory));
        memory = NULL;
    }
    if (memory != NULL)
        memset(memory, 0, bytes);
    ep_cuda_leave(&entered);
    return memory;
}

void ep_cuda_free_pinned(void *context, void *memory)
{
    struct ep_cuda_entered entered;

    if (!ep_cuda_enter(context, &entered))
        return;
    (void)ep_cuda_good(cudaFreeHost(memory));
    ep_cuda_leave(&entered);
}

static enum strait_status copy(struct ep_cuda *cuda, void *to, const void *from, uint64_t bytes,
                               struct CUstream_st *stream)
{
    cudaStream_t on = stream != NULL ? stream : cuda->stream;
    struct ep_cuda_entered entered;

    if (!ep_cuda_enter(cuda, &entered))
        return STRAIT_ERR_DEVICE;
    const bool done = ep_cuda_good(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on)) &&
                      ep_cuda_good(cudaStreamSynchronize(on));
    ep_cuda_leave(&entered);
    return done ? STRAIT_OK : STRAIT_ERR_DEVICE;
}

enum strait_status ep_cuda_write(void *context, void *memory, const void *host, uint64_t bytes,
                                 struct CUstream_st *stream)
{
    return copy(context, memory, host, bytes, stream);
}

enum strait_status ep_cuda_read(void *context, void *host, const void *memory, uint64_t bytes,
                                struct CUstream_st *stream)
{
    return copy(context, host, memory, bytes, stream);
}
