/* What operations of the fake NCCL do when streams come to them: every rank offers and asks for all that its group has
 * at once, and whoever comes second copies. */
#include <string.h>

#include "collective/api.h"
#include "collective/reduce.h"
#include "tests/fakes/nccl.h"

/* All operations of one group and communicator. */
struct batch {
    coll_comm comm;
    unsigned count;
    struct item *items;
};

/* Of one item, while it runs. */
struct moving {
    struct post *posts; /* at most two for each rank */
    unsigned count;
    uint8_t *gathered; /* of those that reduce: what all ranks have for this one */
};

/* ---- Copying ----------------------------------------------------------------------------------------------------- */

static bool is_collective(const struct item *item)
{
    return item->kind != KIND_SEND && item->kind != KIND_RECEIVE;
}

static void mismatch(const struct post *send, const struct post *receive)
{
    fprintf(stderr, "fake NCCL: rank %d sends %zu bytes (kind %d) to rank %d, which expects %zu (kind %d)\n",
            send->item->comm->rank, send->bytes, send->item->kind, receive->item->comm->rank, receive->bytes,
            receive->item->kind);
    abort();
}

static void corrupt(const struct post *receive)
{
    if (fake_nccl.corrupt > 0 && receive->bytes >= fake_nccl.corrupt_least &&
        atomic_fetch_sub(&fake_nccl.corrupt, 1) == 1)
        receive->buffer[fake_nccl.corrupt_at] ^= 0xff;
    const int differs = fake_nccl.differ - 1;
    if (differs >= 0 && receive->item->kind == KIND_ALL_GATHER && receive->bytes == fake_nccl.differ_size)
        receive->buffer[fake_nccl.differ_at] ^= 0x5a;
}

static void stand_in(const struct post *send, const struct post *receive)
{
    if (fake_nccl.stand_in == send->item->comm->rank + 1 && receive->item->kind == KIND_ALL_GATHER &&
        receive->bytes == fake_nccl.stand_in_size)
        memcpy(receive->buffer, fake_nccl.stand_in_bytes, receive->bytes);
}

/* Parts that are tested for zeros: ranks measure their links by large messages of zeros, and neither copying nor adding
 * these takes time. */
enum { PART = 1 << 16 };

static bool is_zero(const uint8_t *memory, size_t bytes)
{
    return memory[0] == 0 && memcmp(memory, memory + 1, bytes - 1) == 0;
}

static void move(uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (size_t at = 0; at < bytes && to != from; at += PART) {
        const size_t part = bytes - at < PART ? bytes - at : PART;
        if (!is_zero(from + at, part) || !is_zero(to + at, part))
            memmove(to + at, from + at, part);
    }
}

/* Of one post. */
static void finish(struct running *running)
{
    if (--running->pending == 0)
        pthread_cond_signal(&running->done);
}

static void copy(const struct post *send, const struct post *receive)
{
    const bool same = is_collective(send->item) ? send->item->kind == receive->item->kind : true;
    if (!same || send->bytes != receive->bytes || send->item->type != receive->item->type)
        mismatch(send, receive);
    move(receive->buffer, send->buffer, send->bytes);
    const int differs = fake_nccl.differ - 1;
    if (send->item->comm != receive->item->comm) {
        fake_gpu.moved += send->bytes;
        if (differs < 0 || send->item->comm->rank == differs || receive->item->comm->rank == differs)
            corrupt(receive);
        stand_in(send, receive);
    }
    finish(send->running);
    finish(receive->running);
}

static void append(struct post **list, struct post *post)
{
    while (*list != NULL)
        list = &(*list)->next;
    *list = post;
}

static struct post *take(struct post **list)
{
    struct post *first = *list;
    *list = first->next;
    return first;
}

static void meet(struct channel *channel)
{
    while (channel->sends != NULL && channel->receives != NULL) {
        copy(channel->sends, channel->receives);
        (void)take(&channel->sends);
        (void)take(&channel->receives);
    }
}

/* ---- Offering and asking, under the world's lock ----------------------------------------------------------------- */

static struct post *post_of(struct moving *moving, const struct item *item, uint8_t *buffer, struct running *running)
{
    struct post *post = &moving->posts[moving->count++];
    running->pending++;
    *post = (struct post){NULL, item, buffer, item->bytes, running};
    return post;
}

static void offer(struct moving *moving, const struct item *item, int to, const uint8_t *buffer,
                  struct running *running)
{
    struct world *world = item->comm->world;
    struct channel *channel = &world->channels[is_collective(item)][item->comm->rank][to];
    append(&channel->sends, post_of(moving, item, (uint8_t *)(uintptr_t)buffer, running));
    meet(channel);
}

static void ask(struct moving *moving, const struct item *item, int from, uint8_t *buffer, struct running *running)
{
    struct world *world = item->comm->world;
    struct channel *channel = &world->channels[is_collective(item)][from][item->comm->rank];
    append(&channel->receives, post_of(moving, item, buffer, running));
    meet(channel);
}

static void post(struct moving *moving, const struct item *item, struct running *running)
{
    const int me = item->comm->rank, ranks = item->comm->world->ranks;
    const size_t bytes = item->bytes;
    if (item->kind == KIND_SEND)
        offer(moving, item, item->peer, item->send, running);
    if (item->kind == KIND_RECEIVE)
        ask(moving, item, item->peer, item->receive, running);
    for (int rank = 0; rank < ranks && is_collective(item); rank++) {
        const size_t at = (size_t)rank * bytes;
        const bool spread = item->kind == KIND_ALL_TO_ALL || item->kind == KIND_REDUCE_SCATTER;
        uint8_t *to = moving->gathered != NULL ? moving->gathered : item->receive;
        if (item->kind != KIND_BROADCAST) {
            offer(moving, item, rank, item->send + (spread ? at : 0), running);
            ask(moving, item, rank, to + at, running);
            continue;
        }
        if (me == item->peer)
            offer(moving, item, rank, item->send, running);
        if (rank == item->peer)
            ask(moving, item, rank, to, running);
    }
}

static void withdraw(struct post **list, const struct moving *moving)
{
    while (*list != NULL)
        if (*list >= moving->posts && *list < moving->posts + moving->count)
            *list = (*list)->next;
        else
            list = &(*list)->next;
}

static void withdraw_all(struct world *world, const struct moving *moving)
{
    for (int kind = 0; kind < 2; kind++)
        for (int a = 0; a < world->ranks; a++)
            for (int b = 0; b < world->ranks; b++) {
                withdraw(&world->channels[kind][a][b].sends, moving);
                withdraw(&world->channels[kind][a][b].receives, moving);
            }
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static void reduce(const struct item *item, const uint8_t *gathered)
{
    const int ranks = item->comm->world->ranks;
    struct coll_reduce sum = {.type = item->type == COLL_BF16   ? COLL_REDUCE_BF16
                                      : item->type == COLL_FP16 ? COLL_REDUCE_FP16
                                                                : COLL_REDUCE_FP32,
                              .operation = item->reduction == COLL_AVG ? COLL_REDUCE_AVG : COLL_REDUCE_SUM,
                              .order = COLL_REDUCE_NCCL_RING,
                              .sources = (uint32_t)ranks,
                              .rank = item->kind == KIND_ALL_REDUCE ? 0 : (uint32_t)item->comm->rank};
    demand(item->type == COLL_BF16 || item->type == COLL_FP16 || item->type == COLL_FP32);
    for (size_t at = 0; at < item->bytes; at += PART) {
        const size_t bytes = item->bytes - at < PART ? item->bytes - at : PART;
        bool zero = true;
        for (int rank = 0; rank < ranks; rank++) {
            sum.source[rank] = gathered + (size_t)rank * item->bytes + at;
            zero &= is_zero(sum.source[rank], bytes);
        }
        sum.dst = item->receive + at;
        sum.count = bytes / (item->bytes / item->count);
        if (!zero || !is_zero(sum.dst, bytes))
            demand(coll_reduce_scalar(&sum) == STRAIT_OK);
    }
}

/* ---- Several hosts, of neighbouring ranks ------------------------------------------------------------------------ */

static uint32_t host_of(coll_comm comm, int rank)
{
    return fake_gpu.hosts[comm->world->devices[rank]];
}

/* How often a ring goes from one host to another. */
static unsigned crossings(coll_comm comm)
{
    const int ranks = comm->world->ranks;
    unsigned count = 0;
    for (int rank = 0; rank < ranks; rank++)
        count += host_of(comm, rank) != host_of(comm, (rank + 1) % ranks);
    return count;
}

/* Bytes that a ring moves from each rank to the next. */
static uint64_t passed_on(const struct item *item)
{
    const uint64_t ranks = (uint64_t)item->comm->world->ranks;
    switch (item->kind) {
    case KIND_BROADCAST:
        return item->bytes;
    case KIND_ALL_REDUCE:
        return 2 * (ranks - 1) * item->bytes / ranks;
    default:
        return (ranks - 1) * item->bytes;
    }
}

/* What a rank sends to ranks of other hosts, or of its own. */
static uint64_t sent(const struct item *item, bool far)
{
    uint64_t bytes = 0;
    for (int rank = 0; rank < item->comm->world->ranks; rank++) {
        const bool to =
            item->kind == KIND_ALL_TO_ALL ? rank != item->comm->rank : item->kind == KIND_SEND && rank == item->peer;
        bytes += to && (host_of(item->comm, rank) != host_of(item->comm, item->comm->rank)) == far ? item->bytes : 0;
    }
    return bytes;
}

static bool is_around(const struct item *item)
{
    return is_collective(item) && item->kind != KIND_ALL_TO_ALL;
}

/* Of a collective, rank 0's is for all ranks. */
static void count_crossed(const struct item *item)
{
    fake_gpu.crossed += sent(item, true);
    if (is_around(item) && item->comm->rank == 0)
        fake_gpu.crossed += crossings(item->comm) * passed_on(item);
}

/* Seconds of one operation where hosts differ: a host's ranks share what crosses. */
static double seconds_between(const struct item *item)
{
    const int device = item->comm->device;
    const uint32_t far = fake_gpu.link_fs[device], near = fake_gpu.near_fs;
    const unsigned hosts = crossings(item->comm);
    if (!is_around(item))
        return 1e-15 * ((double)sent(item, true) * far + (double)sent(item, false) * near);
    return 1e-15 * (double)passed_on(item) * (hosts > 0 ? (double)far * hosts / item->comm->world->ranks : near);
}

static void pass_time(coll_stream stream, const struct batch *batch)
{
    double bytes = 0, added = 0, between = 0;
    for (unsigned i = 0; i < batch->count; i++) {
        const struct item *item = &batch->items[i];
        count_crossed(item);
        between += fake_gpu.near_fs > 0 ? seconds_between(item) : 0;
        bytes += fake_gpu.near_fs > 0 ? 0 : (double)item->bytes;
        added += item->kind == KIND_REDUCE_SCATTER || item->kind == KIND_ALL_REDUCE ? (double)item->bytes : 0;
    }
    const int device = batch->comm->device;
    fake_pass_time(stream, between + 1e-9 * fake_gpu.link_ns[device] + 1e-15 * fake_gpu.link_fs[device] * bytes +
                               1e-15 * fake_gpu.sum_fs * added);
}

/* Under the world's lock: what it moves ends where it is. */
static bool is_cut(coll_comm comm)
{
    return comm->aborted || comm->revoked;
}

static struct moving *moving_make(const struct batch *batch)
{
    const size_t ranks = (size_t)batch->comm->world->ranks;
    struct moving *moving = calloc(batch->count, sizeof(*moving));
    demand(moving != NULL);
    for (unsigned i = 0; i < batch->count; i++) {
        const struct item *item = &batch->items[i];
        moving[i].posts = calloc(is_collective(item) ? 2 * ranks : 1, sizeof(*moving[i].posts));
        if (item->kind == KIND_REDUCE_SCATTER || item->kind == KIND_ALL_REDUCE)
            demand((moving[i].gathered = calloc(ranks, item->bytes + 1)) != NULL);
        demand(moving[i].posts != NULL);
    }
    return moving;
}

/* Removes from the world what is not under way any more. */
static void remove_running(struct world *world, const struct running *running)
{
    struct running **at = &world->running;
    while (*at != running)
        at = &(*at)->next;
    *at = running->next;
}

static void run(coll_stream stream, void *argument)
{
    const struct batch *batch = argument;
    struct world *world = batch->comm->world;
    struct moving *moving = moving_make(batch);
    struct running running = {0};
    pthread_cond_init(&running.done, NULL);
    pthread_mutex_lock(&world->lock);
    running.next = world->running;
    world->running = &running;
    for (unsigned i = 0; i < batch->count && !is_cut(batch->comm); i++)
        post(&moving[i], &batch->items[i], &running);
    while (running.pending > 0 && !is_cut(batch->comm))
        pthread_cond_wait(&running.done, &world->lock);
    const bool aborted = is_cut(batch->comm);
    for (unsigned i = 0; i < batch->count && aborted; i++)
        withdraw_all(world, &moving[i]);
    remove_running(world, &running);
    pthread_mutex_unlock(&world->lock);
    pthread_cond_destroy(&running.done);
    for (unsigned i = 0; i < batch->count; i++) {
        if (moving[i].gathered != NULL && !aborted)
            reduce(&batch->items[i], moving[i].gathered);
        free(moving[i].gathered);
        free(moving[i].posts);
    }
    pass_time(stream, batch);
    free(moving);
}

static void end(void *argument)
{
    const struct batch *batch = argument;
    free(batch->items);
    fake_comm_work_over(batch->comm);
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

/* NCCL keeps what a communicator does in order, whatever streams it is on. */
static void order_after_last(coll_comm comm, coll_stream stream)
{
    if (comm->last != NULL && comm->stream != stream && fake_capture(stream) == 0)
        fake_event_follow(stream, comm->last);
}

static void note_last(coll_comm comm, coll_stream stream)
{
    if (fake_capture(stream) != 0)
        return;
    if (comm->last == NULL)
        comm->last = fake_event_make();
    comm->stream = stream;
    fake_event_record(comm->last, stream);
}

/* The first stream moves; the others wait for it, and it for them. */
static void join_streams(const struct item *items, unsigned count, bool before)
{
    coll_stream first = items[0].stream;
    for (unsigned i = 1; i < count; i++) {
        if (items[i].stream == first)
            continue;
        struct CUevent_st *event = fake_event_make();
        fake_event_record(event, before ? items[i].stream : first);
        fake_event_follow(before ? first : items[i].stream, event);
        fake_event_end(event);
    }
}

void fake_nccl_launch(const struct item *items, unsigned count)
{
    coll_comm comm = items[0].comm;
    struct batch batch = {comm, count, malloc(count * sizeof(*items))};
    demand(batch.items != NULL);
    memcpy(batch.items, items, count * sizeof(*items));
    pthread_mutex_lock(&comm->world->lock);
    comm->underway++;
    pthread_mutex_unlock(&comm->world->lock);
    order_after_last(comm, items[0].stream);
    join_streams(items, count, true);
    fake_queue(items[0].stream, run, end, &batch, sizeof(batch));
    join_streams(items, count, false);
    note_last(comm, items[0].stream);
}
