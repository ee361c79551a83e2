/* Groups on real GPUs, a process each or a thread each:
 *
 *   collective_order [--threads] [--ranks=N] LIBRARY [SCENE ...]
 *
 * LIBRARY is NCCL's or libstrait-coll, opened by its path; what NCCL does by itself is what the library has to do. Rank
 * 0 groups its calls, with sends first, where the others have the collective first and no group; a group is refused and
 * comes again; a group orders what is on its streams, also in a graph. All that arrives is compared. With
 * STRAIT_COLL=compress something has to have been compressed. Exit status 77: too few GPUs. */
#include <unistd.h>

#include "tests/gpu/collective_world.h"

enum { VALUES = 1 << 18, BYTES = 4 * VALUES, SENT = 1 << 17, TURNS = 6, LATE_US = 20000 };

static uint64_t seed_of(unsigned turn, int from, int to)
{
    return 10000 * (uint64_t)turn + 100 * (uint64_t)from + (uint64_t)to;
}

/* ---- Values on the GPU ------------------------------------------------------------------------------------------- */

/* FP32, of this rank, for parts that are added up or gathered. */
static void put_parts(struct rank *rank, void *gpu, unsigned turn)
{
    for (int part = 0; part < rank->ranks; part++)
        values_fill_whole((float *)(void *)(rank->host + (size_t)part * BYTES), VALUES, true,
                          seed_of(turn, part, rank->number));
    rank_upload(rank, gpu, (size_t)rank->ranks * BYTES);
}

/* ---- Collectives and sends --------------------------------------------------------------------------------------- */

static void call_collective(struct rank *rank, enum coll_operation operation)
{
    void *send = rank->send[0], *receive = rank->receive[0];
    coll_comm comm = rank->comm[0];
    coll_stream stream = rank->stream[0];
    switch (operation) {
    case COLL_REDUCE_SCATTER:
        require_nccl(nccl.ReduceScatter(send, receive, VALUES, COLL_FP32, COLL_SUM, comm, stream));
        return;
    case COLL_ALL_REDUCE:
        require_nccl(nccl.AllReduce(send, receive, VALUES, COLL_FP32, COLL_SUM, comm, stream));
        return;
    case COLL_BROADCAST:
        require_nccl(nccl.Broadcast(send, receive, VALUES, COLL_FP32, 0, comm, stream));
        return;
    default:
        require_nccl(nccl.AllGather(send, receive, VALUES, COLL_FP32, comm, stream));
    }
}

static void check_collective(struct rank *rank, enum coll_operation operation, unsigned turn)
{
    const int part = operation == COLL_REDUCE_SCATTER ? rank->number : 0;
    const bool gathers = operation == COLL_ALL_GATHER, sums = !gathers && operation != COLL_BROADCAST;
    rank_download(rank, rank->receive[0], (size_t)(gathers ? rank->ranks : 1) * BYTES);
    for (int from = 0; from < (gathers ? rank->ranks : 1); from++)
        require(values_are_sums((const float *)(void *)(rank->host + (size_t)from * BYTES), VALUES,
                                sums ? rank->ranks : 1, true, seed_of(turn, part, from)));
}

/* From rank 0 to rank 1: one too short to be compressed, one that is compressed. */
static void call_pairs(struct rank *rank)
{
    coll_comm comm = rank->comm[0];
    coll_stream stream = rank->stream[0];
    if (rank->number == 0) {
        require_nccl(nccl.Send(rank->send[1], 3, COLL_INT32, 1, comm, stream));
        require_nccl(nccl.Send(rank->send[1] + 4096, SENT, COLL_BF16, 1, comm, stream));
    } else if (rank->number == 1) {
        require_nccl(nccl.Recv(rank->receive[1], 3, COLL_INT32, 0, comm, stream));
        require_nccl(nccl.Recv(rank->receive[1] + 4096, SENT, COLL_BF16, 0, comm, stream));
    }
}

/* In the first turn nobody groups: NCCL connects ranks when they first send to each other, and there all have to group
 * alike. */
static void play_sends(struct rank *rank)
{
    const enum coll_operation operation = *(const enum coll_operation *)rank->scene->argument;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        const bool grouped = rank->number == 0 && turn > 0;
        put_parts(rank, rank->send[0], turn);
        rank_fill(rank, rank->send[1], COLL_INT32, 3, VALUES_NORMAL, seed_of(turn, rank->number, 1));
        rank_fill(rank, rank->send[1] + 4096, COLL_BF16, SENT, VALUES_NORMAL, seed_of(turn, rank->number, 2));
        if (grouped) {
            require_nccl(nccl.GroupStart());
            call_pairs(rank);
        }
        call_collective(rank, operation);
        if (!grouped)
            call_pairs(rank);
        else
            require_nccl(nccl.GroupEnd());
        rank_settle(rank);
        check_collective(rank, operation, turn);
        if (rank->number == 1) {
            rank_require(rank, rank->receive[1], COLL_INT32, 3, VALUES_NORMAL, seed_of(turn, 0, 1));
            rank_require(rank, rank->receive[1] + 4096, COLL_BF16, SENT, VALUES_NORMAL, seed_of(turn, 0, 2));
        }
    }
}

/* ---- Exchanges and sends ----------------------------------------------------------------------------------------- */

/* NCCL makes sends and receives of an all_to_all, so it comes behind the send before it; also one that goes raw. */
static void play_exchange(struct rank *rank)
{
    uint8_t *few = rank->send[1], *sent = rank->send[1] + 4096, *few_in = rank->receive[1];
    for (unsigned turn = 0; turn < TURNS; turn++) {
        const bool grouped = rank->number == 0 && turn > 0;
        rank_fill(rank, few, COLL_INT32, (size_t)rank->ranks, VALUES_NORMAL, seed_of(turn, rank->number, 1));
        rank_fill(rank, sent, COLL_BF16, SENT, VALUES_NORMAL, seed_of(turn, rank->number, 2));
        for (int to = 0; to < rank->ranks; to++)
            rank_fill(rank, rank->send[0] + (size_t)to * BYTES / 2, COLL_BF16, VALUES, VALUES_NORMAL,
                      seed_of(turn, rank->number, 10 + to));
        if (grouped)
            require_nccl(nccl.GroupStart());
        if (rank->number == 0)
            require_nccl(nccl.Send(sent, SENT, COLL_BF16, 1, rank->comm[0], rank->stream[0]));
        if (rank->number == 1)
            require_nccl(nccl.Recv(few_in + 4096, SENT, COLL_BF16, 0, rank->comm[0], rank->stream[0]));
        require_nccl(nccl.AlltoAll(few, few_in, 1, COLL_INT32, rank->comm[0], rank->stream[0]));
        require_nccl(nccl.AlltoAll(rank->send[0], rank->receive[0], VALUES, COLL_BF16, rank->comm[0], rank->stream[0]));
        if (grouped)
            require_nccl(nccl.GroupEnd());
        rank_settle(rank);
        if (rank->number == 1)
            rank_require(rank, few_in + 4096, COLL_BF16, SENT, VALUES_NORMAL, seed_of(turn, 0, 2));
        for (int from = 0; from < rank->ranks; from++) {
            int32_t all[WORLD_RANKS_MAX], got;
            values_fill(all, COLL_INT32, (size_t)rank->ranks, VALUES_NORMAL, seed_of(turn, from, 1));
            require_cuda(cudaMemcpy(&got, few_in + 4 * from, 4, cudaMemcpyDeviceToHost));
            require(got == all[rank->number]);
            rank_require(rank, rank->receive[0] + (size_t)from * BYTES / 2, COLL_BF16, VALUES, VALUES_NORMAL,
                         seed_of(turn, from, 10 + rank->number));
        }
    }
}

/* ---- Groups that are refused ------------------------------------------------------------------------------------- */

/* It counts as nothing, or ranks would change what they compress at different operations: half of it does not fit. */
static void play_refused(struct rank *rank)
{
    enum { MANY = 24, REFUSED = 5, NOBODY = 99 };
    const int next = (rank->number + 1) % rank->ranks, last = (rank->number + rank->ranks - 1) % rank->ranks;
    coll_comm comm = rank->comm[0];
    coll_stream stream = rank->stream[0];
    for (unsigned turn = 0; turn < MANY; turn++) {
        const enum values kind = turn < MANY / 2 ? VALUES_NOISE : VALUES_NORMAL;
        rank_fill(rank, rank->send[0], COLL_BF16, SENT, kind, seed_of(turn, rank->number, 0));
        if (rank->number == 0 && turn > 0 && turn < REFUSED) {
            require_nccl(nccl.GroupStart());
            require_nccl(nccl.Send(rank->send[0], SENT, COLL_BF16, next, comm, stream));
            require(nccl.Send(rank->send[0], SENT, COLL_BF16, NOBODY, comm, stream) != COLL_SUCCESS);
            require(nccl.GroupEnd() != COLL_SUCCESS);
        }
        require_nccl(nccl.GroupStart());
        require_nccl(nccl.Send(rank->send[0], SENT, COLL_BF16, next, comm, stream));
        require_nccl(nccl.Recv(rank->receive[0], SENT, COLL_BF16, last, comm, stream));
        require_nccl(nccl.GroupEnd());
        rank_settle(rank);
        rank_require(rank, rank->receive[0], COLL_BF16, SENT, kind, seed_of(turn, last, 0));
    }
}

/* ---- Streams of a group ------------------------------------------------------------------------------------------ */

struct crossing {
    uint8_t *source, *read; /* on the GPU */
    size_t others;          /* values of the group's other call: many are compressed, few go raw */
};

static void CUDART_CB be_late(void *nothing)
{
    (void)nothing;
    usleep(LATE_US);
}

/* What is gathered is written on the first stream, late, gathered on the second, and read on the first: the group, with
 * another call on the first stream, is what orders them. */
static void call_crossing(struct rank *rank, void *argument)
{
    const struct crossing *crossing = argument;
    cudaStream_t first = rank->stream[0], second = rank->stream[1];
    require_cuda(cudaLaunchHostFunc(first, be_late, NULL));
    require_cuda(cudaMemcpyAsync(rank->send[0], crossing->source, VALUES * 2, cudaMemcpyDeviceToDevice, first));
    require_nccl(nccl.GroupStart());
    require_nccl(nccl.AllGather(rank->send[1], rank->receive[1], crossing->others, COLL_BF16, rank->comm[0], first));
    require_nccl(nccl.AllGather(rank->send[0], rank->receive[0], VALUES, COLL_BF16, rank->comm[0], second));
    require_nccl(nccl.GroupEnd());
    require_cuda(cudaMemcpyAsync(crossing->read, rank->receive[0], (size_t)rank->ranks * VALUES * 2,
                                 cudaMemcpyDeviceToDevice, first));
}

static void prepare_crossing(struct rank *rank, const struct crossing *crossing, unsigned turn)
{
    const size_t all = (size_t)rank->ranks * VALUES * 2;
    rank_fill(rank, crossing->source, COLL_BF16, VALUES, VALUES_NORMAL, seed_of(turn, rank->number, 0));
    require_cuda(cudaMemset(crossing->read, 0xee, all));
    require_cuda(cudaMemset(rank->receive[0], 0xee, all));
    require_cuda(cudaDeviceSynchronize());
}

static void check_crossing(struct rank *rank, const struct crossing *crossing, unsigned turn)
{
    rank_settle(rank);
    for (int from = 0; from < rank->ranks; from++)
        rank_require(rank, crossing->read + (size_t)from * VALUES * 2, COLL_BF16, VALUES, VALUES_NORMAL,
                     seed_of(turn, from, 0));
}

static struct crossing new_crossing(struct rank *rank, size_t others)
{
    struct crossing crossing = {.others = others};
    require_cuda(cudaMalloc((void **)&crossing.source, VALUES * 2));
    require_cuda(cudaMalloc((void **)&crossing.read, (size_t)rank->ranks * VALUES * 2));
    rank_fill(rank, rank->send[1], COLL_BF16, others, VALUES_NORMAL, 7);
    return crossing;
}

static void end_crossing(const struct crossing *crossing)
{
    require_cuda(cudaFree(crossing->source));
    require_cuda(cudaFree(crossing->read));
}

static void cross(struct rank *rank, size_t others)
{
    struct crossing crossing = new_crossing(rank, others);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        prepare_crossing(rank, &crossing, turn);
        call_crossing(rank, &crossing);
        check_crossing(rank, &crossing, turn);
    }
    end_crossing(&crossing);
}

static void play_streams(struct rank *rank)
{
    cross(rank, VALUES);
    cross(rank, 100);
}

/* The second stream comes into the graph by an event, and ends in it by another. */
static void fork_crossing(struct rank *rank, void *crossing)
{
    cudaStream_t first = rank->stream[0], second = rank->stream[1];
    cudaEvent_t fork, join;
    require_cuda(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    require_cuda(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    require_cuda(cudaEventRecord(fork, first));
    require_cuda(cudaStreamWaitEvent(second, fork, 0));
    call_crossing(rank, crossing);
    require_cuda(cudaEventRecord(join, second));
    require_cuda(cudaStreamWaitEvent(first, join, 0));
    require_cuda(cudaEventDestroy(fork));
    require_cuda(cudaEventDestroy(join));
}

static void play_graph(struct rank *rank)
{
    struct crossing crossing = new_crossing(rank, VALUES);
    prepare_crossing(rank, &crossing, 0);
    call_crossing(rank, &crossing); /* connects the ranks, which a capture cannot */
    check_crossing(rank, &crossing, 0);
    cudaGraphExec_t exec = graph_capture(rank, 0, fork_crossing, &crossing);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        prepare_crossing(rank, &crossing, turn);
        require_cuda(cudaGraphLaunch(exec, rank->stream[0]));
        check_crossing(rank, &crossing, turn);
    }
    world_meet(rank);
    require_cuda(cudaGraphExecDestroy(exec));
    end_crossing(&crossing);
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

#define OPERATION(which)         \
    &(const enum coll_operation) \
    {                            \
        which                    \
    }

static const struct world_scene scenes[] = {
    {.name = "reduce_scatter", play_sends, "reduce_scatter", OPERATION(COLL_REDUCE_SCATTER)},
    {.name = "all_reduce", play_sends, "all_reduce", OPERATION(COLL_ALL_REDUCE)},
    {.name = "all_gather", play_sends, "all_gather", OPERATION(COLL_ALL_GATHER)},
    {.name = "broadcast", play_sends, "broadcast", OPERATION(COLL_BROADCAST)},
    {.name = "exchange", play_exchange, "all_to_all"},
    {.name = "refused", play_refused, "send"},
    {.name = "streams", play_streams, "all_gather"},
    {.name = "graph", play_graph, "all_gather"},
};

int main(int argc, char **argv)
{
    return world_main(argc, argv,
                      &(struct world_program){.scenes = scenes, .count = COUNT(scenes), .bytes = BYTES, .slots = 2});
}
