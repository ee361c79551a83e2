/* Every function reaches NCCL with all of its arguments as they were, and what NCCL returns comes back. */
#include <stdint.h>
#include <string.h>

#include "tests/collective/caller.h"

#define POINTER(n) ((void *)(uintptr_t)(0x100000000001 * (n)))

static coll_comm comm = POINTER(7);
static coll_stream stream = POINTER(9);
static int answer;

/* What comes after the first line is asked for by libstrait-coll itself, and only where a communicator is made. */
static void require_told(const char *expected, bool alone)
{
    const char *lines = nccl.take();
    size_t size = strlen(expected);
    if (strncmp(lines, expected, size) == 0 && lines[size] == '\n' && (!alone || lines[size + 1] == '\0'))
        return;
    fprintf(stderr, "expected: %s\nNCCL was told: %s\n", expected, lines);
    exit(1);
}

#define TOLD(call, alone, ...)                             \
    do {                                                   \
        char expected[1024];                               \
        snprintf(expected, sizeof(expected), __VA_ARGS__); \
        nccl.take();                                       \
        require((nccl.call) == answer);                    \
        require_told(expected, alone);                     \
    } while (0)
#define CHECK(call, ...) TOLD(call, true, __VA_ARGS__)

/* ---- Operations ----------------------------------------------------------------------------------------------------
 */

static void check_operations(size_t count, int type, int op)
{
    void *send = POINTER(3), *recv = POINTER(5);
    void *c = comm, *s = stream;
    CHECK(AllGather(send, recv, count, type, comm, stream), "AllGather %p %p %zu %d %p %p", send, recv, count, type, c,
          s);
    CHECK(AllReduce(send, recv, count, type, op, comm, stream), "AllReduce %p %p %zu %d %d %p %p", send, recv, count,
          type, op, c, s);
    CHECK(AlltoAll(send, recv, count, type, comm, stream), "AlltoAll %p %p %zu %d %p %p", send, recv, count, type, c,
          s);
    CHECK(Bcast(recv, count, type, 4, comm, stream), "Broadcast %p %p %zu %d 4 %p %p", recv, recv, count, type, c, s);
    CHECK(Broadcast(send, recv, count, type, 5, comm, stream), "Broadcast %p %p %zu %d 5 %p %p", send, recv, count,
          type, c, s);
    CHECK(Gather(send, recv, count, type, 6, comm, stream), "Gather %p %p %zu %d 6 %p %p", send, recv, count, type, c,
          s);
    CHECK(Reduce(send, recv, count, type, op, 7, comm, stream), "Reduce %p %p %zu %d %d 7 %p %p", send, recv, count,
          type, op, c, s);
    CHECK(ReduceScatter(send, recv, count, type, op, comm, stream), "ReduceScatter %p %p %zu %d %d %p %p", send, recv,
          count, type, op, c, s);
    CHECK(Scatter(send, recv, count, type, 8, comm, stream), "Scatter %p %p %zu %d 8 %p %p", send, recv, count, type, c,
          s);
    CHECK(Send(send, count, type, 9, comm, stream), "Send %p %zu %d 9 %p %p", send, count, type, c, s);
    CHECK(Recv(recv, count, type, -1, comm, stream), "Recv %p %zu %d -1 %p %p", recv, count, type, c, s);
}

/* 12 types and one that is unknown; built-in reductions and one of the user's. */
static void check_all_operations(void)
{
    static const int reductions[] = {0, 1, 2, 3, 4, 5, 0x7fffffff};
    for (int type = -1; type <= 12; type++)
        for (size_t i = 0; i < sizeof(reductions) / sizeof(reductions[0]); i++)
            check_operations(1000 + (size_t)type, type, reductions[i]);
    check_operations(0, 7, 0);
    check_operations(SIZE_MAX, 9, 0);
}

/* ---- Communicators -------------------------------------------------------------------------------------------------
 */

static void make_id(coll_id *id, char text[2 * COLL_ID_BYTES + 1])
{
    for (unsigned i = 0; i < COLL_ID_BYTES; i++) {
        id->bytes[i] = (char)(3 * i + 130);
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)id->bytes[i]);
    }
}

static void check_making(void)
{
    coll_id id;
    char text[2 * COLL_ID_BYTES + 1];
    coll_comm made[2] = {POINTER(11), POINTER(12)};
    int devices[2], list[2];
    void *slot = made, *config = POINTER(13);
    make_id(&id, text);
    CHECK(GetUniqueId(&id), "GetUniqueId %p", (void *)&id);
    TOLD(CommInitRank(made, 8, id, 3), false, "CommInitRank %p 8 %s 3", slot, text);
    TOLD(CommInitRankConfig(made, 8, id, 3, config), false, "CommInitRankConfig %p 8 %s 3 %p", slot, text, config);
    TOLD(CommInitRankScalable(made, 8, 3, 1, &id, config), false, "CommInitRankScalable %p 8 3 1 %p %p", slot,
         (void *)&id, config);
    TOLD(CommInitAll(made, 2, devices), false, "CommInitAll %p 2 %p", slot, (void *)devices);
    TOLD(CommSplit(comm, 5, -6, made, config), false, "CommSplit %p 5 -6 %p %p", (void *)comm, slot, config);
    TOLD(CommShrink(comm, list, 2, made, config, 1), false, "CommShrink %p %p 2 %p %p 1", (void *)comm, (void *)list,
         slot, config);
}

static void check_communicators(void)
{
    void *c = comm, *handle = NULL, *pointer = POINTER(15);
    int number = 0;
    coll_result error = 7;
    CHECK(CommFinalize(comm), "CommFinalize %p", c);
    CHECK(CommRevoke(comm, 3), "CommRevoke %p 3", c);
    CHECK(CommDestroy(comm), "CommDestroy %p", c);
    CHECK(CommAbort(comm), "CommAbort %p", c);
    CHECK(CommGetAsyncError(comm, &error), "CommGetAsyncError %p %p", c, (void *)&error);
    CHECK(CommCount(comm, &number), "CommCount %p %p", c, (void *)&number);
    CHECK(CommCuDevice(comm, &number), "CommCuDevice %p %p", c, (void *)&number);
    CHECK(CommUserRank(comm, &number), "CommUserRank %p %p", c, (void *)&number);
    CHECK(CommRegister(comm, pointer, 77, &handle), "CommRegister %p %p 77 %p", c, pointer, (void *)&handle);
    CHECK(CommDeregister(comm, pointer), "CommDeregister %p %p", c, pointer);
    CHECK(CommWindowRegister(comm, pointer, 78, (coll_window *)&handle, 1), "CommWindowRegister %p %p 78 %p 1", c,
          pointer, (void *)&handle);
    CHECK(CommWindowDeregister(comm, pointer), "CommWindowDeregister %p %p", c, pointer);
    CHECK(RedOpCreatePreMulSum(&number, pointer, 9, 1, comm), "RedOpCreatePreMulSum %p %p 9 1 %p", (void *)&number,
          pointer, c);
    CHECK(RedOpDestroy(6, comm), "RedOpDestroy 6 %p", c);
}

/* ---- All else ------------------------------------------------------------------------------------------------------
 */

static void check_others(void)
{
    void *slot = NULL;
    int version = 0;
    CHECK(MemAlloc(&slot, 1234), "MemAlloc %p 1234", (void *)&slot);
    CHECK(MemFree(POINTER(17)), "MemFree %p", POINTER(17));
    CHECK(GetVersion(&version), "GetVersion %p", (void *)&version);
    require(version == FAKE_VERSION);
    CHECK(GroupStart(), "GroupStart");
    CHECK(GroupEnd(), "GroupEnd");
    CHECK(GroupSimulateEnd(POINTER(18)), "GroupSimulateEnd %p", POINTER(18));
}

static void check_texts(void)
{
    nccl.take();
    require(nccl.GetErrorString(5) == nccl.last_error() + 5);
    require_told("GetErrorString 5", true);
    require(nccl.GetLastError(comm) == nccl.last_error());
    char expected[64];
    snprintf(expected, sizeof(expected), "GetLastError %p", (void *)comm);
    require_told(expected, true);
    nccl.ResetDebugInit();
    require_told("ResetDebugInit", true);
}

static void require_team(coll_team team, int first, const char *name)
{
    char expected[64];
    snprintf(expected, sizeof(expected), "%s %p", name, (void *)comm);
    require(team.ranks == first + answer && team.rank == team.ranks + 1 && team.stride == -team.ranks);
    require_told(expected, true);
}

static void check_device(void)
{
    void *c = comm, *a = POINTER(20), *b = POINTER(21);
    coll_team team = {101, 102, 103};
    CHECK(DevCommCreate(comm, a, b), "DevCommCreate %p %p %p", c, a, b);
    CHECK(DevCommDestroy(comm, b), "DevCommDestroy %p %p", c, b);
    CHECK(GinBarrierCreateRequirement(comm, team, 4, a, b), "GinBarrierCreateRequirement %p 101 102 103 4 %p %p", c, a,
          b);
    CHECK(LsaBarrierCreateRequirement(team, 4, a, b), "LsaBarrierCreateRequirement 101 102 103 4 %p %p", a, b);
    CHECK(LLA2ACreateRequirement(5, 6, a, b), "LLA2ACreateRequirement 5 6 %p %p", a, b);
    CHECK(LLA2ACalcSlots(7, 8), "LLA2ACalcSlots 7 8");
    CHECK(TeamRankToWorld(comm, team, 2), "TeamRankToWorld %p 101 102 103 2", c);
    CHECK(TeamRankToLsa(comm, team, 1), "TeamRankToLsa %p 101 102 103 1", c);
    require_team(nccl.TeamWorld(comm), 10, "TeamWorld");
    require_team(nccl.TeamLsa(comm), 20, "TeamLsa");
    require_team(nccl.TeamRail(comm), 30, "TeamRail");
}

void check_every(void)
{
    int version = 0;
    require(nccl.GetVersion(&version) == COLL_SUCCESS); /* when it is found, it is asked for its version */
    /* 0 last: groups that have begun for NCCL end there, as they are told to no more than answer. */
    for (answer = 7; answer >= 0; answer--) {
        nccl.answer(answer, 1);
        check_all_operations();
        check_making();
        if (answer > 0) /* of a communicator that exists, more is asked */
            check_communicators();
        check_others();
        check_texts();
        check_device();
    }
}

/* ---- NCCLs that lack some, or all ----------------------------------------------------------------------------------
 */

static void require_no_team(coll_team team)
{
    require(team.ranks == 0 && team.rank == 0 && team.stride == 0);
}

/* What an older NCCL has works, what it has not is refused. */
void check_older(void)
{
    int version = 0;
    void *window = NULL;
    require(nccl.GetVersion(&version) == COLL_SUCCESS && version == FAKE_VERSION_OLD);
    nccl.answer(3, 1);
    require(nccl.AllReduce(NULL, NULL, 1, 7, 0, comm, stream) == 3);
    for (int i = 0; i < 3; i++) {
        require(nccl.AlltoAll(NULL, NULL, 1, 7, comm, stream) == COLL_INVALID_USAGE);
        require(nccl.Scatter(NULL, NULL, 1, 7, 0, comm, stream) == COLL_INVALID_USAGE);
        require(nccl.CommShrink(comm, NULL, 0, NULL, NULL, 0) == COLL_INVALID_USAGE);
        require(nccl.CommWindowRegister(comm, NULL, 1, (coll_window *)&window, 0) == COLL_INVALID_USAGE);
        require(nccl.GroupSimulateEnd(NULL) == COLL_INVALID_USAGE);
        require(nccl.DevCommCreate(comm, NULL, NULL) == COLL_INVALID_USAGE);
        require_no_team(nccl.TeamWorld(comm));
        require(nccl.TeamRankToLsa(comm, (coll_team){1, 0, 1}, 0) == -1);
    }
}

/* Without NCCL everything is refused, with a text. */
void check_missing(void)
{
    int version = 77;
    coll_id id = {{0}};
    coll_comm made = NULL;
    const char *path = NULL;
    for (int i = 0; i < 3; i++) {
        require(nccl.GetVersion(&version) == COLL_SYSTEM_ERROR && version == 77);
        require(nccl.CommInitRank(&made, 1, id, 0) == COLL_SYSTEM_ERROR && made == NULL);
        require(nccl.AllReduce(NULL, NULL, 1, 7, 0, comm, stream) == COLL_SYSTEM_ERROR);
        require(nccl.GroupStart() == COLL_SYSTEM_ERROR && nccl.GroupEnd() == COLL_SYSTEM_ERROR);
        require(strstr(nccl.GetErrorString(2), "no NCCL") != NULL);
        require(strstr(nccl.GetLastError(NULL), "no NCCL") != NULL);
        nccl.ResetDebugInit();
    }
    require(nccl.nccl(&path, &version) == -7 && path == NULL && version == 77);
}

/* What NCCL itself does without a GPU. */
void check_real(void)
{
    int version = 0;
    require(nccl.GetVersion(&version) == COLL_SUCCESS && version / 100 > 0);
    require(nccl.GroupStart() == COLL_SUCCESS && nccl.GroupEnd() == COLL_SUCCESS);
    require(nccl.GroupEnd() == COLL_INVALID_USAGE);
    require(nccl.AllReduce(NULL, NULL, 1, 7, 0, NULL, NULL) == 4); /* ncclInvalidArgument: no communicator */
    require_row(NULL, "all_reduce", "fp32", "0 0 0 0 1");
    require(strlen(nccl.GetErrorString(4)) > 0 && strlen(nccl.GetLastError(NULL)) > 0);
    printf("NCCL %d\n", version);
}
