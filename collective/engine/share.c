#include "collective/engine/share.h"

#include <stdlib.h>

#include "collective/engine/link.h"
#include "collective/engine/member.h"
#include "collective/engine/watch.h"

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
    share->segment.file = -1;
    share->told = member->gpu->allocate(sizeof(share->card) * ((size_t)member->ranks + 1), false);
    return share->told != NULL;
}

/* ---- What ranks tell each other ---------------------------------------------------------------------------------- */

/* Gathers a word or a card from each rank, always through the same memory. */
static bool tell(struct coll_member *member, const void *what, size_t size)
{
    uint8_t *told = (uint8_t *)member->share.told, *own = told + size * (size_t)member->ranks;
    return member->gpu->copy(own, what, size, member->stream) &&
           member->host.nccl->AllGather(own, told, size, COLL_UINT8, member->comm, member->stream) == COLL_SUCCESS;
}

/* What was gathered, to be freed; NULL: no memory, or the GPU failed. */
static void *hear(struct coll_member *member, size_t size)
{
    void *all = calloc((size_t)member->ranks, size);
    if (all != NULL && member->gpu->copy(all, member->share.told, size * (size_t)member->ranks, member->stream) &&
        member->gpu->stream_wait(member->stream))
        return all;
    free(all);
    return NULL;
}

static bool tell_good(struct coll_member *member)
{
    const uint64_t good = member->share.good;
    return tell(member, &good, sizeof(good));
}

static bool all_are_good(struct coll_member *member)
{
    uint64_t *good = hear(member, sizeof(*good));
    bool all = good != NULL;
    for (int rank = 0; rank < member->ranks && all; rank++)
        all = good[rank] == 1;
    free(good);
    return all;
}

/* ---- Who shares memory ------------------------------------------------------------------------------------------- */

bool share_tell_seen(struct coll_member *member)
{
    uint64_t sees = UINT64_C(1) << member->rank;
    for (int rank = 0; rank < member->ranks; rank++)
        sees |= (uint64_t)watch_sees(member, rank) << rank;
    return tell(member, &sees, sizeof(sees));
}

bool share_divide(struct coll_member *member)
{
    struct share *share = &member->share;
    uint64_t *sees = hear(member, sizeof(*sees));
    if (sees == NULL)
        return false;
    divide(&share->division, sees, member->ranks);
    free(sees);
    for (int rank = 0; rank < member->ranks; rank++)
        share->apart |= !divide_near(&share->division, rank, 0);
    const size_t size = rings_at(member) + rings_size(member);
    share->good = share->division.leader[member->rank] != member->rank ||
                  (segment_make(&share->segment, size, &share->card.segment) &&
                   kinds_begin((struct kinds *)(void *)share->segment.memory));
    share->good &= !share->apart || link_prepare(member, &share->card.greet);
    return true;
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

/* ---- Reaching the memory ----------------------------------------------------------------------------------------- */

static struct greet_card *greet_cards(const struct share_card *cards, int ranks)
{
    struct greet_card *greet = calloc((size_t)ranks, sizeof(*greet));
    for (int rank = 0; rank < ranks && greet != NULL; rank++)
        greet[rank] = cards[rank].greet;
    return greet;
}

static bool open_all(struct coll_member *member, const struct share_card *cards)
{
    struct share *share = &member->share;
    const int leader = share->division.leader[member->rank];
    const size_t size = rings_at(member) + rings_size(member);
    if ((leader != member->rank && !segment_open(&share->segment, size, &cards[leader].segment)) || !reach(member))
        return false;
    if (!share->apart)
        return true;
    share->greet = greet_cards(cards, member->ranks);
    return share->greet != NULL && link_connect(member, share->greet);
}

bool share_open(struct coll_member *member)
{
    struct share *share = &member->share;
    struct share_card *cards = hear(member, sizeof(*cards));
    if (cards == NULL)
        return false;
    share->good = share->good && open_all(member, cards);
    free(cards);
    return true;
}

bool share_tell_opened(struct coll_member *member)
{
    return tell_good(member);
}

bool share_accept(struct coll_member *member)
{
    struct share *share = &member->share;
    const bool all = all_are_good(member);
    segment_settle(&share->segment);
    if (all && share->apart)
        share->good = link_accept(member, share->greet);
    return all;
}

bool share_tell_accepted(struct coll_member *member)
{
    return !member->share.apart || tell_good(member);
}

/* Once all have accepted, it is too late to stay raw: from here on a failure is the communicator's. */
bool share_settle(struct coll_member *member)
{
    struct share *share = &member->share;
    if (!share->apart)
        return true;
    if (!all_are_good(member))
        return false;
    if (!link_await(member, &share->greet[member->rank]) || !link_begin(member)) {
        member_fail(member, COLL_REMOTE_ERROR, "a rank on another host has gone");
        member_give_up(member);
    }
    return true;
}

void share_end(struct coll_member *member)
{
    struct share *share = &member->share;
    link_end(member);
    free(share->greet);
    if (share->pinned != NULL)
        member->gpu->unshare(share->pinned);
    member->gpu->release(share->told);
    segment_close(&share->segment);
    *share = (struct share){.segment.file = -1};
}
