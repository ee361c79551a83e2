/* The fake NCCL's functions that can be in groups. */
#include <string.h>
#include <unistd.h>

#include "collective/api.h"
#include "tests/fakes/nccl.h"

/* Being made, when the group ends. */
struct make {
    coll_comm *slot, parent; /* parent: of a split */
    int ranks, rank, device, color, key;
    bool nonblocking;
    coll_id id;
    coll_comm made;
};

enum { MAKES_MAX = 64, ITEMS_MAX = 4096 };

static _Thread_local struct {
    int depth;
    coll_result failed; /* a call of the group was refused: nothing of it comes to be */
    unsigned make_count, item_count;
    struct make makes[MAKES_MAX];
    struct item *items;
} here;

/* ---- The end of a group ------------------------------------------------------------------------------------------ */

static bool make_all(void)
{
    bool busy = false;
    for (unsigned i = 0; i < here.make_count; i++) {
        struct make *make = &here.makes[i];
        if (make->parent != NULL)
            fake_split_begin(make->parent, make->color, make->key);
        else
            make->made = fake_comm_begin(make->ranks, &make->id, make->rank, make->device);
    }
    for (unsigned i = 0; i < here.make_count; i++) {
        struct make *make = &here.makes[i];
        if (make->parent != NULL && make->nonblocking) {
            fake_busy_split(make->parent, make->slot);
            busy = true;
            continue;
        }
        if (make->parent != NULL)
            make->made = fake_split_finish(make->parent);
        else if (make->nonblocking)
            fake_busy_make(make->made);
        else
            fake_comm_finish(make->made);
        busy |= make->nonblocking;
        *make->slot = make->made;
        if (fake_nccl.slow == make->rank + 1) {
            usleep(fake_nccl.slow_ms * 1000);
            while (fake_nccl.held)
                usleep(1000);
        }
    }
    here.make_count = 0;
    return busy;
}

/* All of a communicator are one. */
static bool launch_all(void)
{
    bool busy = false;
    struct item *batch = malloc((here.item_count + 1) * sizeof(*batch));
    demand(batch != NULL);
    for (unsigned i = 0; i < here.item_count; i++) {
        coll_comm comm = here.items[i].comm;
        unsigned count = 0;
        for (unsigned j = i; j < here.item_count && comm != NULL; j++)
            if (here.items[j].comm == comm) {
                batch[count++] = here.items[j];
                here.items[j].comm = NULL;
            }
        if (count > 0 && comm->nonblocking)
            fake_busy_launch(batch, count);
        else if (count > 0)
            fake_nccl_launch(batch, count);
        busy |= count > 0 && comm->nonblocking;
    }
    free(batch);
    free(here.items);
    here.items = NULL;
    here.item_count = 0;
    return busy;
}

static coll_result drop_all(void)
{
    const coll_result failed = here.failed;
    free(here.items);
    here.items = NULL;
    here.item_count = here.make_count = 0;
    here.failed = COLL_SUCCESS;
    return failed;
}

static coll_result end_if_outermost(void)
{
    if (here.depth > 0)
        return COLL_SUCCESS;
    if (here.item_count > 0 && fake_nccl.refuse == here.items[0].comm->rank + 1) {
        fake_nccl.refuse = 0;
        here.failed = INVALID_ARGUMENT;
    }
    if (here.failed != COLL_SUCCESS)
        return drop_all();
    const bool made_later = make_all(), moved_later = launch_all();
    return made_later || moved_later ? COLL_IN_PROGRESS : COLL_SUCCESS;
}

/* ---- Into it ----------------------------------------------------------------------------------------------------- */

static coll_result add_make(struct make make)
{
    demand(here.make_count < MAKES_MAX);
    here.makes[here.make_count++] = make;
    return end_if_outermost();
}

static coll_result add_item(struct item item)
{
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    if (item.comm == NULL || item.peer < 0 || item.peer >= item.comm->world->ranks) {
        here.failed = here.depth > 0 ? INVALID_ARGUMENT : COLL_SUCCESS;
        return INVALID_ARGUMENT;
    }
    demand(!item.comm->nonblocking || !fake_busy_is(item.comm)); /* it is to be asked first */
    demand(item.type >= 0 && item.type < (int)sizeof(bytes));
    item.bytes = item.count * bytes[item.type];
    if (here.items == NULL)
        here.items = malloc(ITEMS_MAX * sizeof(*here.items));
    demand(here.items != NULL && here.item_count < ITEMS_MAX && item.stream != NULL);
    demand(fake_stream_device(item.stream) == item.comm->device);
    here.items[here.item_count++] = item;
    return end_if_outermost();
}

#pragma GCC visibility push(default)
int pncclGroupStart(void)
{
    here.depth++;
    return COLL_SUCCESS;
}
ALIAS(GroupStart)

int pncclGroupEnd(void)
{
    if (here.depth == 0)
        return COLL_INVALID_USAGE;
    here.depth--;
    return end_if_outermost();
}
ALIAS(GroupEnd)

int pncclGroupSimulateEnd(void *info)
{
    (void)info;
    if (here.depth == 0)
        return COLL_INVALID_USAGE;
    here.depth--;
    demand(here.depth == 0 && here.make_count == 0);
    fake_nccl.simulated += here.item_count;
    return drop_all();
}
ALIAS(GroupSimulateEnd)

int pncclCommInitRank(coll_comm *comm, int nranks, coll_id id, int rank)
{
    return add_make((struct make){.slot = comm, .ranks = nranks, .rank = rank, .device = fake_device(), .id = id});
}
ALIAS(CommInitRank)

int pncclCommInitRankConfig(coll_comm *comm, int nranks, coll_id id, int rank, void *config)
{
    const struct fake_config *wanted = config;
    return add_make((struct make){.slot = comm,
                                  .ranks = nranks,
                                  .rank = rank,
                                  .device = fake_device(),
                                  .nonblocking = wanted != NULL && wanted->blocks == 0,
                                  .id = id});
}
ALIAS(CommInitRankConfig)

int pncclCommInitAll(coll_comm *comms, int ndev, const int *devices)
{
    coll_id id;
    (void)pncclGetUniqueId(&id);
    here.depth++;
    for (int i = 0; i < ndev; i++)
        (void)add_make((struct make){
            .slot = &comms[i], .ranks = ndev, .rank = i, .device = devices != NULL ? devices[i] : i, .id = id});
    here.depth--;
    return end_if_outermost();
}
ALIAS(CommInitAll)

int pncclCommSplit(coll_comm comm, int color, int key, coll_comm *child, void *config)
{
    (void)config;
    if (comm == NULL)
        return INVALID_ARGUMENT;
    demand(!fake_busy_is(comm));
    (void)add_make(
        (struct make){.slot = child, .parent = comm, .color = color, .key = key, .nonblocking = comm->nonblocking});
    return COLL_SUCCESS; /* also what is in progress: it is the parent that tells */
}
ALIAS(CommSplit)

/* Of nobody: what is cut for it is what tests are about. */
int pncclCommShrink(coll_comm comm, int *list, int count, coll_comm *child, void *config, int flags)
{
    demand(list == NULL && count == 0 && flags == COLL_SHRINK_ABORT);
    (void)pncclCommRevoke(comm, 0);
    return pncclCommSplit(comm, 0, comm->rank, child, config);
}
ALIAS(CommShrink)

static void watch(const void *send)
{
    const uintptr_t from = (uintptr_t)fake_nccl.watched, at = (uintptr_t)send;
    fake_nccl.watched_sent += at >= from && at - from < fake_nccl.watched_bytes;
}

int pncclSend(const void *send, size_t count, int type, int peer, COLLECTIVE_TAIL)
{
    watch(send);
    return add_item((struct item){
        .kind = KIND_SEND, .comm = comm, .stream = stream, .send = send, .count = count, .type = type, .peer = peer});
}
ALIAS(Send)

int pncclRecv(void *recv, size_t count, int type, int peer, COLLECTIVE_TAIL)
{
    return add_item((struct item){.kind = KIND_RECEIVE,
                                  .comm = comm,
                                  .stream = stream,
                                  .receive = recv,
                                  .count = count,
                                  .type = type,
                                  .peer = peer});
}
ALIAS(Recv)

/* Ranks of the parent keep their numbers. Which world it is they know from the one that has made the id. */
int pncclCommGrow(coll_comm comm, int nranks, const coll_id *id, int rank, coll_comm *grown, void *config)
{
    demand((comm == NULL) == (rank >= 0) && (comm != NULL || id != NULL) && config == NULL);
    struct make make = {.slot = grown, .ranks = nranks, .rank = rank, .device = fake_device()};
    if (comm == NULL) {
        make.id = *id;
        return add_make(make);
    }
    make.rank = comm->rank;
    pthread_mutex_lock(&comm->world->lock);
    make.id = comm->world->grown;
    pthread_mutex_unlock(&comm->world->lock);
    return add_make(make);
}
ALIAS(CommGrow)

static coll_result collective(enum kind kind, const void *send, void *receive, size_t count, int type, int reduction,
                              int root, COLLECTIVE_TAIL)
{
    return add_item((struct item){.kind = kind,
                                  .comm = comm,
                                  .stream = stream,
                                  .send = send,
                                  .receive = receive,
                                  .count = count,
                                  .type = type,
                                  .reduction = reduction,
                                  .peer = root});
}

int pncclAllGather(const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL)
{
    watch(send);
    return collective(KIND_ALL_GATHER, send, recv, count, type, 0, 0, comm, stream);
}
ALIAS(AllGather)

int pncclAlltoAll(const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL)
{
    return collective(KIND_ALL_TO_ALL, send, recv, count, type, 0, 0, comm, stream);
}
ALIAS(AlltoAll)

int pncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, COLLECTIVE_TAIL)
{
    return collective(KIND_REDUCE_SCATTER, send, recv, count, type, op, 0, comm, stream);
}
ALIAS(ReduceScatter)

int pncclAllReduce(const void *send, void *recv, size_t count, int type, int op, COLLECTIVE_TAIL)
{
    return collective(KIND_ALL_REDUCE, send, recv, count, type, op, 0, comm, stream);
}
ALIAS(AllReduce)

int pncclBroadcast(const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL)
{
    return collective(KIND_BROADCAST, send, recv, count, type, 0, root, comm, stream);
}
ALIAS(Broadcast)

int pncclBcast(void *buffer, size_t count, int type, int root, COLLECTIVE_TAIL)
{
    return pncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
ALIAS(Bcast)

/* The text is read as NCCL reads it. */
static void note_config(const coll_call_config *config)
{
    if (config == NULL)
        return;
    demand(config->head.magic == COLL_CONFIG_MAGIC);
    fake_nccl.configured++;
    fake_nccl.selected += config->selection != NULL && strcmp(config->selection, FAKE_SELECTION) == 0;
}

int pncclAllGatherConfig(const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL,
                         const coll_call_config *config)
{
    note_config(config);
    return pncclAllGather(send, recv, count, type, comm, stream);
}
ALIAS(AllGatherConfig)

int pncclAlltoAllConfig(const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL,
                        const coll_call_config *config)
{
    note_config(config);
    return pncclAlltoAll(send, recv, count, type, comm, stream);
}
ALIAS(AlltoAllConfig)
#pragma GCC visibility pop
