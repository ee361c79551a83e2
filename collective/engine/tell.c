#include "collective/engine/tell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/engine/peer.h"
#include "collective/engine/watch.h"

#define JOIN_MAGIC   UINT64_C(0x3130654c4c4f4353)
#define JOIN_VERSION 10u

/* What a rank tells the others; must be the same on all. */
struct hello {
    uint64_t magic;
    uint32_t version, ranks;
    uint32_t order, forced, pairs;
    uint16_t parts, wire;
    struct coll_pieces pieces;
    struct coll_sizes table;
    char release[32];
};

/* Room for a hello or for an offer, whichever is larger. */
size_t tell_bytes(void)
{
    return sizeof(struct hello) > peer_offer_bytes() ? sizeof(struct hello) : peer_offer_bytes();
}

/* ---- Version and settings ---------------------------------------------------------------------------------------- */

static struct hello hello_of(const struct joining *joining)
{
    struct hello hello = {.magic = JOIN_MAGIC,
                          .version = JOIN_VERSION,
                          .ranks = (uint32_t)joining->member->ranks,
                          .order = joining->member->host.settings.ring,
                          .pairs = joining->member->host.settings.pairs,
                          .wire = (uint16_t)joining->member->host.settings.wire,
                          .parts = joining->member->host.settings.parts,
                          .pieces = joining->member->host.settings.pieces,
                          .table = joining->member->host.settings.table,
                          .forced = joining->member->forced};
    snprintf(hello.release, sizeof(hello.release), "%s", strait_version());
    return hello;
}

static bool tell(struct joining *joining)
{
    const struct coll_member *member = joining->member;
    const struct hello hello = hello_of(joining);
    struct hello *own = joining->told + member->ranks;
    return member->gpu->copy(own, &hello, sizeof(hello), member->stream) &&
           member->host.nccl->AllGather(own, joining->told, sizeof(hello), COLL_UINT8, member->comm, member->stream) ==
               COLL_SUCCESS;
}

static bool agree(struct joining *joining)
{
    struct coll_member *member = joining->member;
    const struct hello mine = hello_of(joining);
    struct hello *all = calloc((size_t)member->ranks, sizeof(*all));
    bool same = all != NULL &&
                member->gpu->copy(all, joining->told, sizeof(*all) * (size_t)member->ranks, member->stream) &&
                member->gpu->stream_wait(member->stream);
    for (int rank = 0; rank < member->ranks && same; rank++) {
        same = memcmp(&all[rank], &mine, sizeof(mine)) == 0;
        if (!same)
            snprintf(joining->what->why, sizeof(joining->what->why), "rank %d has another version or other settings",
                     rank);
    }
    free(all);
    return same;
}

/* ---- Of the parts of a member ------------------------------------------------------------------------------------ */

static bool tell_seen(struct joining *joining)
{
    return share_tell_seen(joining->member);
}

static bool divide_hosts(struct joining *joining)
{
    return share_divide(joining->member);
}

static bool tell_share(struct joining *joining)
{
    return share_tell(joining->member);
}

static bool open_share(struct joining *joining)
{
    return share_open(joining->member);
}

static bool tell_opened(struct joining *joining)
{
    return share_tell_opened(joining->member);
}

static bool accept_share(struct joining *joining)
{
    const bool shared = share_accept(joining->member);
    if (!shared)
        snprintf(joining->what->why, sizeof(joining->what->why),
                 "not all ranks reach the memory of their host, or those of others by TCP");
    return shared;
}

static bool tell_accepted(struct joining *joining)
{
    return share_tell_accepted(joining->member);
}

static bool settle_share(struct joining *joining)
{
    const bool settled = share_settle(joining->member);
    if (!settled)
        snprintf(joining->what->why, sizeof(joining->what->why), "not all ranks on other hosts could connect");
    return settled;
}

static bool tell_watch(struct joining *joining)
{
    return watch_tell(joining->member);
}

static bool begin_watch(struct joining *joining)
{
    return watch_begin(joining->member);
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

void joining_each(struct joining *joinings, unsigned count, bool (*what)(struct joining *))
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_member *member = joinings[i].member;
        int before;
        if (!joinings[i].able)
            continue;
        joinings[i].able = member->gpu->enter(member->device, &before);
        if (!joinings[i].able)
            continue;
        joinings[i].able = what(&joinings[i]);
        member->gpu->leave(before);
    }
}

/* Another thread may have aborted meanwhile. */
static bool lose(struct joining *joining)
{
    snprintf(joining->what->why, sizeof(joining->what->why), "NCCL has not moved what ranks tell each other");
    return false;
}

/* `say` is what all tell each other, `hear` what each makes of it. */
static void together(struct joining *joinings, unsigned count, const struct coll_table *nccl,
                     bool (*say)(struct joining *), bool (*hear)(struct joining *))
{
    nccl->GroupStart();
    joining_each(joinings, count, say);
    joining_each(joinings, count, nccl->GroupEnd() == COLL_SUCCESS ? hear : lose);
}

void tell_all(struct joining *joinings, unsigned count, const struct coll_table *nccl)
{
    together(joinings, count, nccl, tell, agree);
    together(joinings, count, nccl, tell_watch, begin_watch);
    together(joinings, count, nccl, tell_seen, divide_hosts);
    together(joinings, count, nccl, tell_share, open_share);
    together(joinings, count, nccl, tell_opened, accept_share);
    together(joinings, count, nccl, tell_accepted, settle_share);
}
