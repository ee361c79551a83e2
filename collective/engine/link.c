#include "collective/engine/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "collective/engine/carrier.h"
#include "collective/engine/link_parts.h"
#include "collective/engine/member.h"

/* How long leaving may wait for data under way, and after an abort for the last frame. */
enum { LEAVE_LOOK_NS = 1000000, LEAVE_LOOKS_MAX = 10000, ABORT_LOOKS_MAX = 100 };

static bool is_apart(const struct coll_member *member, int rank)
{
    return !divide_near(&member->share.division, rank, member->rank);
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

bool link_prepare(struct coll_member *member, struct greet_card *card)
{
    struct link *link = calloc(1, sizeof(*link) + (size_t)member->ranks * sizeof(link->carries[0]));
    if (link == NULL)
        return false;
    member->share.link = link;
    link->member = member;
    for (int rank = 0; rank < member->ranks; rank++)
        link->carries[rank] = (struct carry){.socket = -1, .peer = rank};
    link->listener = greet_listen(card);
    return link->listener >= 0;
}

bool link_connect(struct coll_member *member, const struct greet_card *cards)
{
    struct link *link = member->share.link;
    for (int rank = member->rank + 1; rank < member->ranks; rank++) {
        if (!is_apart(member, rank))
            continue;
        link->carries[rank].socket = greet_connect(&cards[rank], member->rank, rank);
        if (link->carries[rank].socket < 0)
            return false;
    }
    return true;
}

bool link_accept(struct coll_member *member, const struct greet_card *cards)
{
    struct link *link = member->share.link;
    int sockets[DIVIDE_RANKS_MAX];
    uint64_t awaited = 0;
    for (int rank = 0; rank < member->rank; rank++) {
        sockets[rank] = -1;
        awaited |= is_apart(member, rank) ? UINT64_C(1) << rank : 0;
    }
    const bool good = greet_accept(link->listener, cards, member->rank, awaited, sockets);
    for (int rank = 0; rank < member->rank; rank++)
        link->carries[rank].socket = sockets[rank];
    close(link->listener);
    link->listener = -1;
    return good;
}

bool link_await(struct coll_member *member, const struct greet_card *own)
{
    const struct link *link = member->share.link;
    for (int rank = member->rank + 1; rank < member->ranks; rank++)
        if (is_apart(member, rank) && !greet_await(link->carries[rank].socket, own, member->rank, rank))
            return false;
    return true;
}

static struct carry_ring ring_of(const struct coll_member *member, int from, int to)
{
    const struct share *share = &member->share;
    const uint32_t number = ring_number(&share->rings, (uint32_t)from, (uint32_t)to);
    uint8_t *slots = (uint8_t *)share->pinned + ring_flags_size((uint32_t)member->ranks);
    return (struct carry_ring){(struct ring_flags *)share->pinned + number,
                               slots + (size_t)number * RING_SLOTS * share->rings.slot_bytes};
}

static bool hear(void *hearer, int peer, const struct frame *frame)
{
    return agree_hear(&((struct link *)hearer)->agree, peer, frame);
}

static bool say(void *speaker, int peer, const struct frame *frame)
{
    return carry_say(&((struct link *)speaker)->carries[peer], frame);
}

bool link_begin(struct coll_member *member)
{
    struct link *link = member->share.link;
    for (int rank = 0; rank < member->ranks; rank++) {
        struct carry *carry = &link->carries[rank];
        if (carry->socket < 0)
            continue;
        address_tune(carry->socket);
        link->peers++;
        carry->slot_bytes = member->share.rings.slot_bytes;
        carry->to = ring_of(member, member->rank, rank);
        carry->from = ring_of(member, rank, member->rank);
        carry->hear = hear;
        carry->hearer = link;
    }
    link->agree.say = say;
    link->agree.speaker = link;
    return agree_begin(&link->agree, member) && carrier_take(link);
}

void link_describe(const struct coll_member *member, char *text, size_t size)
{
    const struct link *link = member->share.link;
    snprintf(text, size, "%.0d%s", link != NULL ? link->peers : 0,
             link != NULL ? " ranks on other hosts by TCP, " : "");
}

/* ---- A turn of the thread ---------------------------------------------------------------------------------------- */

static void lose(struct link *link, const struct carry *carry)
{
    char why[120];
    link->lost = true;
    snprintf(why, sizeof(why), "rank %d, on another host, %s", carry->peer, carry->trouble);
    member_fail(link->member, COLL_REMOTE_ERROR, why);
}

static bool turn_one(struct link *link, struct carry *carry)
{
    if (link->finished && !carry->leaving)
        carry->leaving = carry_say(carry, &(struct frame){.type = FRAME_LEAVE});
    const bool moved = carry_pass(carry);
    if (carry->socket >= 0)
        return moved;
    if (carry->trouble != NULL && !link->finished && !link->lost)
        lose(link, carry);
    if (!agree_without(&link->agree, carry->peer))
        link->starved = true;
    return true;
}

bool link_turn(struct link *link)
{
    bool moved = false;
    link->starved |= !agree_ask(&link->agree);
    for (int rank = 0; rank < link->member->ranks; rank++)
        if (link->carries[rank].socket >= 0)
            moved |= turn_one(link, &link->carries[rank]);
    if (link->starved && !link->lost) {
        link->lost = true;
        member_fail(link->member, COLL_INTERNAL_ERROR, "no memory for what ranks tell each other");
    }
    if (link->lost) /* also stops what was launched since */
        member_give_up(link->member);
    return moved;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void link_finish(struct coll_member *member)
{
    if (member->share.link != NULL && carrier_is_ours())
        carrier_finish(member->share.link);
}

static bool all_are(const struct link *link, bool (*what)(const struct carry *))
{
    bool all = true;
    for (int rank = 0; rank < link->member->ranks && all; rank++)
        all = link->carries[rank].socket < 0 || (link->carries[rank].leaving && what(&link->carries[rank]));
    return all;
}

static bool has_arrived(const struct link *link)
{
    return all_are(link, carry_has_arrived);
}

static bool has_said(const struct link *link)
{
    return all_are(link, carry_has_said);
}

void link_leave(struct coll_member *member)
{
    struct link *link = member->share.link;
    if (link == NULL || !link->carried || !carrier_is_ours())
        return;
    carrier_finish(link);
    const int most = member->aborted ? ABORT_LOOKS_MAX : LEAVE_LOOKS_MAX;
    for (int looks = 0; looks < most && !carrier_drop(link, member->aborted ? has_said : has_arrived); looks++)
        nanosleep(&(struct timespec){.tv_nsec = LEAVE_LOOK_NS}, NULL);
    (void)carrier_drop(link, NULL);
    for (int rank = 0; rank < member->ranks; rank++)
        carry_end(&link->carries[rank]);
}

void link_end(struct coll_member *member)
{
    struct link *link = member->share.link;
    if (link == NULL)
        return;
    (void)carrier_drop(link, NULL);
    for (int rank = 0; rank < member->ranks; rank++)
        carry_end(&link->carries[rank]);
    if (link->listener >= 0)
        close(link->listener);
    agree_end(&link->agree);
    member->share.link = NULL;
    free(link);
}
