/* A libnccl.so.2 that moves what it is given, between processes of one machine, in memory of the host: what `strait
 * bench collective` needs. Sums are made in FP32 from rank 0 on and rounded once, of FP32 and BF16 alone. Streams are
 * ignored: all is over when a call returns.
 *
 *   MOVING_HANG=N   rank 1 stays in its Nth operation
 *   MOVING_DIE=N    rank 1 ends with its Nth operation      MOVING_SPOIL=N   rank 0's Nth operation has one wrong bit
 *   MOVING_BACKWARDS=1  values are added from the last rank's on
 */
#include "tests/collective/fake_nccl.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS_MAX = 4, INVALID_ARGUMENT = 4, TYPE_FLOAT32 = 7, TYPE_BFLOAT16 = 9 };
#define ROOM ((size_t)8 << 20) /* of what a rank sends in one operation */

struct meeting {
    _Atomic uint32_t joined, arrived, passed;
    uint8_t sent[RANKS_MAX][ROOM];
};

struct ncclComm {
    int rank, ranks;
    unsigned operations;
    struct meeting *meeting;
};

static _Thread_local struct {
    bool open;
    coll_comm comm;
    void *receive;
    size_t size;
    int peer;
} group;

#pragma GCC visibility push(default)

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

static void meet(struct ncclComm *comm)
{
    struct meeting *meeting = comm->meeting;
    uint32_t ranks = (uint32_t)comm->ranks, round = atomic_fetch_add(&meeting->arrived, 1) / ranks + 1;

    if (atomic_load(&meeting->arrived) >= round * ranks)
        atomic_store(&meeting->passed, round);
    while (atomic_load(&meeting->passed) < round)
        sched_yield();
}

static bool is_turn(const char *name, const struct ncclComm *comm)
{
    const char *turn = getenv(name);

    return turn != NULL && (unsigned)atoi(turn) == comm->operations;
}

/* All can read what this rank sends then. */
static coll_result offer(struct ncclComm *comm, const void *send, size_t size)
{
    if (size > ROOM)
        return INVALID_ARGUMENT;
    comm->operations++;
    if (comm->rank == 1 && is_turn("MOVING_DIE", comm))
        _exit(3);
    while (comm->rank == 1 && is_turn("MOVING_HANG", comm))
        sleep(1);
    memcpy(comm->meeting->sent[comm->rank], send, size);
    meet(comm);
    return COLL_SUCCESS;
}

/* All have read it. */
static coll_result conclude(struct ncclComm *comm, uint8_t *receive)
{
    meet(comm);
    if (comm->rank == 0 && is_turn("MOVING_SPOIL", comm))
        receive[3] ^= 1;
    return COLL_SUCCESS;
}

static size_t bytes_of(coll_type type)
{
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

    return bytes[type];
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

static float value_at(const uint8_t *src, coll_type type)
{
    uint32_t bits = 0;
    float value;

    memcpy((uint8_t *)&bits + (type == TYPE_BFLOAT16 ? 2 : 0), src, bytes_of(type));
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void put_value(uint8_t *dst, coll_type type, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if (type == TYPE_BFLOAT16)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    memcpy(dst, &bits, bytes_of(type));
}

static coll_result sum(struct ncclComm *comm, uint8_t *receive, size_t first, size_t count, coll_type type)
{
    const bool backwards = getenv("MOVING_BACKWARDS") != NULL;

    if (type != TYPE_FLOAT32 && type != TYPE_BFLOAT16)
        return INVALID_ARGUMENT;
    for (size_t i = 0; i < count; i++) {
        size_t at = (first + i) * bytes_of(type);
        float total = value_at(comm->meeting->sent[backwards ? comm->ranks - 1 : 0] + at, type);
        for (int n = 1; n < comm->ranks; n++)
            total += value_at(comm->meeting->sent[backwards ? comm->ranks - 1 - n : n] + at, type);
        put_value(receive + i * bytes_of(type), type, total);
    }
    return conclude(comm, receive);
}

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

coll_result ncclGetVersion(int *version)
{
    *version = 22809;
    return COLL_SUCCESS;
}

coll_result ncclGetUniqueId(coll_id *id)
{
    static unsigned count;

    memset(id, 0, sizeof(*id));
    snprintf(id->bytes, sizeof(id->bytes), "/strait-moving-%d-%u", (int)getpid(), count++);
    return COLL_SUCCESS;
}

coll_result ncclCommInitRank(coll_comm *made, int ranks, coll_id id, int rank)
{
    struct ncclComm *comm = calloc(1, sizeof(*comm));
    int file = shm_open(id.bytes, O_RDWR | O_CREAT, 0600);
    void *memory = MAP_FAILED;

    if (comm == NULL || ranks > RANKS_MAX)
        return INVALID_ARGUMENT;
    if (file >= 0 && ftruncate(file, sizeof(struct meeting)) == 0)
        memory = mmap(NULL, sizeof(struct meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return COLL_SYSTEM_ERROR;
    close(file);
    *comm = (struct ncclComm){.rank = rank, .ranks = ranks, .meeting = memory};
    meet(comm);
    if (rank == 0)
        shm_unlink(id.bytes);
    *made = comm;
    return COLL_SUCCESS;
}

coll_result ncclCommDestroy(coll_comm comm)
{
    munmap(comm->meeting, sizeof(*comm->meeting));
    free(comm);
    return COLL_SUCCESS;
}

const char *ncclGetErrorString(coll_result result)
{
    return result == COLL_SUCCESS ? "no error" : "moving: cannot";
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

coll_result ncclAllGather(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                          coll_stream stream)
{
    size_t size = count * bytes_of(type);
    coll_result result = offer(comm, send, size);

    (void)stream;
    for (int rank = 0; result == COLL_SUCCESS && rank < comm->ranks; rank++)
        memcpy((uint8_t *)receive + (size_t)rank * size, comm->meeting->sent[rank], size);
    return result == COLL_SUCCESS ? conclude(comm, receive) : result;
}

coll_result ncclAlltoAll(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                         coll_stream stream)
{
    size_t size = count * bytes_of(type);
    coll_result result = offer(comm, send, size * (size_t)comm->ranks);

    (void)stream;
    for (int rank = 0; result == COLL_SUCCESS && rank < comm->ranks; rank++)
        memcpy((uint8_t *)receive + (size_t)rank * size, comm->meeting->sent[rank] + (size_t)comm->rank * size, size);
    return result == COLL_SUCCESS ? conclude(comm, receive) : result;
}

coll_result ncclReduceScatter(const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction,
                              coll_comm comm, coll_stream stream)
{
    coll_result result = offer(comm, send, count * bytes_of(type) * (size_t)comm->ranks);

    (void)stream, (void)reduction;
    return result == COLL_SUCCESS ? sum(comm, receive, (size_t)comm->rank * count, count, type) : result;
}

coll_result ncclAllReduce(const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction,
                          coll_comm comm, coll_stream stream)
{
    coll_result result = offer(comm, send, count * bytes_of(type));

    (void)stream, (void)reduction;
    return result == COLL_SUCCESS ? sum(comm, receive, 0, count, type) : result;
}

/* In a group, and one of each: that is all that is asked for. */
coll_result ncclSend(const void *send, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream)
{
    (void)peer, (void)stream;
    return group.open ? offer(comm, send, count * bytes_of(type)) : INVALID_ARGUMENT;
}

coll_result ncclRecv(void *receive, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream)
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
    memcpy(group.receive, group.comm->meeting->sent[group.peer], group.size);
    return conclude(group.comm, group.receive);
}
#pragma GCC visibility pop
