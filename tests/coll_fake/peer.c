#include "tests/coll_fake/peer.h"

#include <string.h>
#include <unistd.h>

#include "tests/coll_fake/fake.h"

/* ---- Giving up --------------------------------------------------------------------------------------------------- */

static atomic_bool given_up[FAKE_DEVICES];

bool fake_has_given_up(int device)
{
    return atomic_load(&given_up[device]);
}

__attribute__((no_sanitize("thread"))) void fake_move_racy(void *dst, const void *src, size_t size)
{
    volatile uint8_t *to = dst;
    const volatile uint8_t *from = src;
    for (size_t i = 0; i < size; i++)
        to[i] = from[i];
}

static bool is_broken(const struct peer_world *world)
{
    return __atomic_load_n(&world->counters->broken, __ATOMIC_ACQUIRE) != 0;
}

static void give_up(const struct peer_world *world, int32_t status)
{
    if (__atomic_exchange_n(&world->counters->broken, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    atomic_store(&given_up[fake_device()], true);
    __atomic_store_n(&world->host_status->failed, (uint32_t)status, __ATOMIC_RELEASE);
    for (uint32_t rank = 0; rank < world->ranks; rank++)
        if (rank != world->rank)
            __atomic_store_n(&world->flags[rank]->broken[world->rank], 1, __ATOMIC_RELEASE);
}

static bool has_given_up(const struct peer_world *world, uint32_t rank)
{
    return __atomic_load_n(&world->flags[world->rank]->broken[rank], __ATOMIC_ACQUIRE) != 0;
}

static void await(const struct peer_world *world, const uint64_t *flag, uint64_t number, uint32_t rank,
                  uint64_t patience_ns)
{
    const uint64_t hurry = fake_gpu.hurry != 0 ? fake_gpu.hurry : 1;
    for (uint64_t waited_ns = 0; __atomic_load_n(flag, __ATOMIC_ACQUIRE) < number; waited_ns += 100000 * hurry) {
        if (is_broken(world) || has_given_up(world, rank) ||
            __atomic_load_n(&world->host_status->abort, __ATOMIC_ACQUIRE) != 0 ||
            (patience_ns != 0 && waited_ns > patience_ns)) {
            give_up(world, STRAIT_ERR_IO);
            return;
        }
        usleep(100);
    }
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void run_claim(coll_stream stream, void *argument)
{
    const struct peer_claim *claim = argument;
    const struct peer_world *world = claim->world;
    (void)stream;
    for (uint32_t i = 0; i < claim->count; i++) {
        const uint32_t rank = claim->receiver[i];
        const uint64_t claimed = world->counters->claimed[rank], lag = claim->lag[i];
        await(world, &world->flags[world->rank]->freed[rank], claimed > lag ? claimed - lag : 0, rank,
              claim->patience_ns);
        world->counters->claimed[rank] = claimed + 1;
    }
}

void fake_move(void *dst, const void *src, size_t size)
{
    memcpy(dst, src, size);
}

static void push_rest(const struct peer_world *world, const struct peer_push *push)
{
    const uint64_t bytes = ((const struct peer_head *)(const void *)push->slot)->main.bytes;
    const uint64_t used = push->main_at + (bytes < push->main_bound ? bytes : push->main_bound);
    const uint64_t end = (used + 15) / 16 * 16;
    if (end > push->from) {
        atomic_fetch_add(&fake_gpu.pushed, end - push->from);
        (is_broken(world) ? fake_move_racy : fake_move)(push->there + push->from, push->slot + push->from,
                                                        end - push->from);
    }
}

static void say_ready(const struct peer_world *world, const struct peer_push *push)
{
    struct peer_head *head = (void *)push->there;
    const uint64_t number = ++world->counters->posted[push->receiver];
    head->magic = PEER_MAGIC;
    head->number = number;
    if (atomic_load(&fake_gpu.spoil) > 0 && atomic_fetch_sub(&fake_gpu.spoil, 1) == 1)
        push->there[fake_gpu.spoil_at] ^= 0xff;
    __atomic_store_n(&world->flags[push->receiver]->ready[world->rank], number, __ATOMIC_RELEASE);
}

static void run_post(coll_stream stream, void *argument)
{
    const struct peer_post *post = argument;
    (void)stream;
    for (uint32_t i = 0; i < post->count; i++)
        if (post->push[i].slot != NULL)
            push_rest(post->world, &post->push[i]);
    for (uint32_t i = 0; i < post->count && !is_broken(post->world); i++)
        say_ready(post->world, &post->push[i]);
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

static int32_t verdict_of(const struct peer_world *world, const struct peer_taken *taken, uint64_t number)
{
    if (has_given_up(world, taken->source))
        return STRAIT_ERR_IO;
    if (taken->head->magic != PEER_MAGIC || taken->head->number != number)
        return STRAIT_ERR_CORRUPT;
    if (taken->results == NULL)
        return STRAIT_OK;
    const int32_t main = taken->results[0].status;
    return main == STRAIT_OK && taken->has_tail != 0 ? taken->results[1].status : main;
}

static void take(const struct peer_world *world, const struct peer_taken *taken)
{
    const uint64_t number = world->counters->taken[taken->source] + 1;
    const int32_t status = is_broken(world) ? STRAIT_OK : verdict_of(world, taken, number);
    if (status != STRAIT_OK)
        give_up(world, status);
    if (is_broken(world))
        return;
    world->counters->taken[taken->source] = number;
    __atomic_store_n(&world->flags[taken->source]->freed[world->rank], number, __ATOMIC_RELEASE);
}

static void set_aside(const struct peer_aside *aside, bool come)
{
    const bool good = come && memcmp(aside->from, aside->begins, sizeof(aside->begins)) == 0;
    memset(aside->to, 0, (size_t)aside->vectors * 16);
    if (good)
        memcpy(aside->to, aside->from, (size_t)aside->vectors * 16);
}

static void run_turn(coll_stream stream, void *argument)
{
    const struct peer_receive_step *turn = argument;
    const struct peer_world *world = turn->world;
    (void)stream;
    for (uint32_t i = 0; i < turn->takes; i++)
        take(world, &turn->taken[i]);
    for (uint32_t i = 0; i < turn->waits; i++) {
        const uint32_t rank = turn->source[i];
        const uint64_t number = world->counters->awaited[rank] + 1;
        await(world, &world->flags[world->rank]->ready[rank], number, rank, turn->patience_ns);
        world->counters->awaited[rank] = number;
    }
    for (uint32_t i = 0; i < turn->asides; i++)
        set_aside(&turn->aside[i], !is_broken(world));
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

void kernel_claim(const struct peer_claim *claim, coll_stream stream)
{
    fake_queue(stream, run_claim, NULL, claim, sizeof(*claim));
}

void kernel_post(const struct peer_post *post, coll_stream stream)
{
    fake_queue(stream, run_post, NULL, post, sizeof(*post));
}

void kernel_turn(const struct peer_receive_step *turn, coll_stream stream)
{
    fake_queue(stream, run_turn, NULL, turn, sizeof(*turn));
}
