/* A libnccl.so.2 whose ranks are processes of one machine, in memory of the host: what `strait bench collective` needs.
 * Sums are made in FP32 from rank 0 on and rounded once. Streams are ignored: all is over when a call returns.
 *
 *   FAKE_NCCL_HANG=N   rank 1 stays in its Nth operation
 *   FAKE_NCCL_DIE=N    rank 1 ends with its Nth operation
 *   FAKE_NCCL_SPOIL=N  rank 0's Nth operation has one wrong bit
 *   FAKE_NCCL_BACKWARDS=1  values are added from the last rank's on
 *   FAKE_NCCL_HOSTS=N  NCCL_HOSTID has to be that of as many ranks on each of N hosts: host0, host1 ... */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collective/reduce.h"
#include "tests/collective/fake_nccl.h"

enum { RANKS_MAX = 4, INVALID_ARGUMENT = 4 };
#define ROOM ((size_t)8 << 20) /* of what a rank sends in one operation */

struct shared {
    _Atomic uint32_t arrived, passed;
    uint8_t sent[RANKS_MAX][ROOM];
};

struct ncclComm {
    int rank, ranks;
    unsigned operations;
    struct shared *shared;
};

static _Thread_local struct {
    bool open;
    coll_comm comm;
    void *receive;
    size_t size;
    int peer;
} group;

/* ---- Barriers ---------------------------------------------------------------------------------------------------- */

static void barrier(struct ncclComm *comm)
{
    struct shared *shared = comm->shared;
    const uint32_t ranks = (uint32_t)comm->ranks, round = atomic_fetch_add(&shared->arrived, 1) / ranks + 1;
    if (atomic_load(&shared->arrived) >= round * ranks)
        atomic_store(&shared->passed, round);
    while (atomic_load(&shared->passed) < round)
        sched_yield();
}

static bool is_now(const char *name, const struct ncclComm *comm)
{
    const char *operation = getenv(name);
    return operation != NULL && (unsigned)atoi(operation) == comm->operations;
}

/* All can read what this rank sends then. */
static coll_result offer(struct ncclComm *comm, const void *send, size_t size)
{
    if (size > ROOM)
        return INVALID_ARGUMENT;
    comm->operations++;
    if (comm->rank == 1 && is_now("FAKE_NCCL_DIE", comm))
        _exit(3);
    while (comm->rank == 1 && is_now("FAKE_NCCL_HANG", comm))
        sleep(1);
    memcpy(comm->shared->sent[comm->rank], send, size);
    barrier(comm);
    return COLL_SUCCESS;
}

/* All have read it. */
static coll_result conclude(struct ncclComm *comm, uint8_t *receive)
{
    barrier(comm);
    if (comm->rank == 0 && is_now("FAKE_NCCL_SPOIL", comm))
        receive[3] ^= 1;
    return COLL_SUCCESS;
}

static size_t bytes_of(coll_type type)
{
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return bytes[type];
}

/* Of every rank `size` bytes, `at` bytes behind the beginning of what it has sent. */
static coll_result gather(struct ncclComm *comm, uint8_t *receive, size_t at, size_t size)
{
    for (int rank = 0; rank < comm->ranks; rank++)
        memcpy(receive + (size_t)rank * size, comm->shared->sent[rank] + at, size);
    return conclude(comm, receive);
}

static coll_result sum(struct ncclComm *comm, void *receive, size_t first, size_t count, coll_type type,
                       coll_reduction reduction)
{
    struct coll_reduce reduce = {.operation = reduction == COLL_AVG ? COLL_REDUCE_AVG : COLL_REDUCE_SUM,
                                 .type = type == COLL_BF16   ? COLL_REDUCE_BF16
                                         : type == COLL_FP16 ? COLL_REDUCE_FP16
                                                             : COLL_REDUCE_FP32,
                                 .sources = (uint32_t)comm->ranks,
                                 .dst = receive,
                                 .count = count};
    if (type != COLL_BF16 && type != COLL_FP16 && type != COLL_FP32)
        return INVALID_ARGUMENT;
    if (reduction != COLL_SUM && reduction != COLL_AVG)
        return INVALID_ARGUMENT;
    for (int i = 0; i < comm->ranks; i++) {
        const int rank = getenv("FAKE_NCCL_BACKWARDS") != NULL ? comm->ranks - 1 - i : i;
        reduce.source[i] = comm->shared->sent[rank] + first * bytes_of(type);
    }
    if (coll_reduce_scalar(&reduce) != STRAIT_OK)
        return INVALID_ARGUMENT;
    return conclude(comm, receive);
}

#pragma GCC visibility push(default)

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

coll_result ncclGetVersion(int *version)
{
    *version = FAKE_VERSION;
    return COLL_SUCCESS;
}

coll_result ncclGetUniqueId(coll_id *id)
{
    static unsigned count;
    memset(id, 0, sizeof(*id));
    snprintf(id->bytes, sizeof(id->bytes), "/strait-fake-nccl-%d-%u", (int)getpid(), count++);
    return COLL_SUCCESS;
}

static bool is_on_its_host(int ranks, int rank)
{
    const char *hosts = getenv("FAKE_NCCL_HOSTS"), *host = getenv("NCCL_HOSTID");
    char expected[16];
    snprintf(expected, sizeof(expected), "host%d", hosts == NULL ? 0 : rank / (ranks / atoi(hosts)));
    return hosts == NULL || (host != NULL && strcmp(host, expected) == 0);
}

coll_result ncclCommInitRank(coll_comm *made, int ranks, coll_id id, int rank)
{
    struct ncclComm *comm = calloc(1, sizeof(*comm));
    const int file = shm_open(id.bytes, O_RDWR | O_CREAT, 0600);
    void *memory = MAP_FAILED;
    if (comm == NULL || ranks > RANKS_MAX)
        return INVALID_ARGUMENT;
    if (file >= 0 && ftruncate(file, sizeof(struct shared)) == 0)
        memory = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return COLL_SYSTEM_ERROR;
    close(file);
    *comm = (struct ncclComm){.rank = rank, .ranks = ranks, .shared = memory};
    barrier(comm);
    if (rank == 0)
        shm_unlink(id.bytes);
    *made = comm;
    return is_on_its_host(ranks, rank) ? COLL_SUCCESS : INVALID_ARGUMENT;
}

coll_result ncclCommDestroy(coll_comm comm)
{
    munmap(comm->shared, sizeof(*comm->shared));
    free(comm);
    return COLL_SUCCESS;
}

coll_result ncclCommCount(const coll_comm comm, int *count)
{
    *count = comm->ranks;
    return COLL_SUCCESS;
}

coll_result ncclCommUserRank(const coll_comm comm, int *rank)
{
    *rank = comm->rank;
    return COLL_SUCCESS;
}

/* None: its memory is the host's. */
coll_result ncclCommCuDevice(const coll_comm comm, int *device)
{
    (void)comm;
    *device = -1;
    return COLL_SUCCESS;
}

coll_result ncclCommGetAsyncError(coll_comm comm, coll_result *error)
{
    (void)comm;
    *error = COLL_SUCCESS;
    return COLL_SUCCESS;
}

const char *ncclGetErrorString(coll_result result)
{
    return result == COLL_SUCCESS ? "no error" : "an error of the fake NCCL";
}

const char *ncclGetLastError(coll_comm comm)
{
    (void)comm;
    return "";
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

coll_result ncclAllGather(const void *send, void *receive, size_t count, coll_type type, COLLECTIVE_TAIL)
{
    const size_t size = count * bytes_of(type);
    const coll_result result = offer(comm, send, size);
    (void)stream;
    return result == COLL_SUCCESS ? gather(comm, receive, 0, size) : result;
}

coll_result ncclAlltoAll(const void *send, void *receive, size_t count, coll_type type, COLLECTIVE_TAIL)
{
    const size_t size = count * bytes_of(type);
    const coll_result result = offer(comm, send, size * (size_t)comm->ranks);
    (void)stream;
    return result == COLL_SUCCESS ? gather(comm, receive, (size_t)comm->rank * size, size) : result;
}

coll_result ncclReduceScatter(const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction,
                              COLLECTIVE_TAIL)
{
    const coll_result result = offer(comm, send, count * bytes_of(type) * (size_t)comm->ranks);
    (void)stream;
    return result == COLL_SUCCESS ? sum(comm, receive, (size_t)comm->rank * count, count, type, reduction) : result;
}

coll_result ncclAllReduce(const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction,
                          COLLECTIVE_TAIL)
{
    const coll_result result = offer(comm, send, count * bytes_of(type));
    (void)stream;
    return result == COLL_SUCCESS ? sum(comm, receive, 0, count, type, reduction) : result;
}

coll_result ncclBroadcast(const void *send, void *receive, size_t count, coll_type type, int root, COLLECTIVE_TAIL)
{
    const size_t size = count * bytes_of(type);
    const coll_result result = offer(comm, send, size);
    (void)stream;
    if (result != COLL_SUCCESS)
        return result;
    memcpy(receive, comm->shared->sent[root], size);
    return conclude(comm, receive);
}

/* In a group, and one of each: that is all that is asked for. */
coll_result ncclSend(const void *send, size_t count, coll_type type, int peer, COLLECTIVE_TAIL)
{
    (void)peer, (void)stream;
    return group.open ? offer(comm, send, count * bytes_of(type)) : INVALID_ARGUMENT;
}

coll_result ncclRecv(void *receive, size_t count, coll_type type, int peer, COLLECTIVE_TAIL)
{
    (void)stream;
    group.comm = comm;
    group.receive = receive;
    group.size = count * bytes_of(type);
    group.peer = peer;
    return group.open ? COLL_SUCCESS : INVALID_ARGUMENT;
}

coll_result ncclGroupStart(void)
{
    group.open = true;
    group.comm = NULL;
    return COLL_SUCCESS;
}

coll_result ncclGroupEnd(void)
{
    group.open = false;
    if (group.comm == NULL)
        return COLL_SUCCESS;
    memcpy(group.receive, group.comm->shared->sent[group.peer], group.size);
    return conclude(group.comm, group.receive);
}
#pragma GCC visibility pop
