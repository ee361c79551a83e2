#include "collective/engine/share.h"

#include <stdlib.h>

#include "collective/engine/member.h"

#define PAGE ((size_t)64 << 10) /* of any machine */

static size_t rings_at(const struct coll_member *member)
{
    return (kinds_size(member->ranks) + PAGE - 1) / PAGE * PAGE;
}

static size_t rings_size(const struct coll_member *member)
{
    const uint32_t ranks = (uint32_t)member->ranks;
    return (ring_flags_size(ranks) + ring_slots_size(ranks) + PAGE - 1) / PAGE * PAGE;
}

bool share_prepare(struct coll_member *member)
{
    struct share *share = &member->share;
    const size_t size = rings_at(member) + rings_size(member);
    share->segment.file = -1;
    share->told = member->gpu->allocate(sizeof(share->card) * ((size_t)member->ranks + 1), false);
    if (share->told == NULL)
        return false;
    return member->rank != 0 || (segment_make(&share->segment, size, &share->card) &&
                                 kinds_begin((struct kinds *)(void *)share->segment.memory));
}

/* A word or a card of each rank, by the same memory. */
static bool tell(struct coll_member *member, const void *what, size_t size)
{
    uint8_t *told = (uint8_t *)member->share.told, *own = told + size * (size_t)member->ranks;
    return member->gpu->copy(own, what, size, member->stream) &&
           member->host.nccl->AllGather(own, told, size, COLL_UINT8, member->comm, member->stream) == COLL_SUCCESS;
}

bool share_tell(struct coll_member *member)
{
    return tell(member, &member->share.card, sizeof(member->share.card));
}

static bool reach(struct coll_member *member)
{
    struct share *share = &member->share;
    const uint32_t ranks = (uint32_t)member->ranks;
    share->kinds = (struct kinds *)(void *)share->segment.memory;
    uint8_t *rings = share->segment.memory + rings_at(member);
    uint8_t *reached = member->gpu->share(rings, rings_size(member));
    if (reached == NULL)
        return false;
    share->pinned = rings;
    share->rings = (struct ring_set){.flags = (struct ring_flags *)(void *)reached,
                                     .slots = reached + ring_flags_size(ranks),
                                     .rank = (uint32_t)member->rank,
                                     .ranks = ranks,
                                     .teams = ring_teams(ranks),
                                     .slot_bytes = ring_slot_bytes(ranks)};
    return true;
}

bool share_open(struct coll_member *member)
{
    struct share *share = &member->share;
    struct segment_card card;
    if (!member->gpu->copy(&card, share->told, sizeof(card), member->stream) ||
        !member->gpu->stream_wait(member->stream))
        return false;
    const size_t size = rings_at(member) + rings_size(member);
    share->good = (member->rank == 0 || segment_open(&share->segment, size, &card)) && reach(member);
    return true;
}

bool share_tell_opened(struct coll_member *member)
{
    const uint64_t good = member->share.good;
    return tell(member, &good, sizeof(good));
}

bool share_settle(struct coll_member *member)
{
    const size_t ranks = (size_t)member->ranks;
    uint64_t *opened = calloc(ranks, sizeof(*opened));
    bool all = opened != NULL &&
               member->gpu->copy(opened, member->share.told, ranks * sizeof(*opened), member->stream) &&
               member->gpu->stream_wait(member->stream);
    for (size_t rank = 0; rank < ranks && all; rank++)
        all = opened[rank] == 1;
    free(opened);
    segment_settle(&member->share.segment);
    return all;
}

void share_end(struct coll_member *member)
{
    struct share *share = &member->share;
    if (share->pinned != NULL)
        member->gpu->unshare(share->pinned);
    member->gpu->release(share->told);
    segment_close(&share->segment);
    *share = (struct share){.segment.file = -1};
}
