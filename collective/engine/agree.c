#include "collective/engine/agree.h"

#include <stdlib.h>

#include "collective/engine/member.h"

bool agree_begin(struct agree *agree, struct coll_member *member)
{
    agree->member = member;
    agree->seen = agree->gone = 0;
    agree->kinds = calloc(kinds_count(member), sizeof(*agree->kinds));
    return agree->kinds != NULL;
}

void agree_end(struct agree *agree)
{
    free(agree->kinds);
    agree->kinds = NULL;
}

/* ---- Who decides ------------------------------------------------------------------------------------------------- */

/* Sends to all ranks that are asked and still there. */
static bool say_all(struct agree *agree, uint32_t number, const struct frame *frame, uint64_t *told)
{
    bool good = true;
    for (int rank = 0; rank < agree->member->ranks; rank++) {
        if (!kinds_asked(agree->member, number, rank) || (agree->gone >> rank & 1) != 0)
            continue;
        good &= agree->say(agree->speaker, rank, frame);
        *told |= UINT64_C(1) << rank;
    }
    return good;
}

/* Called when all have promised. */
static bool settle(struct agree *agree, uint32_t number)
{
    struct kinds *kinds = agree->member->share.kinds;
    struct kind *kind = &kinds->kinds[number];
    uint64_t told = 0;
    kinds_lock(kinds);
    levels_step(&kind->level, kind->overflow, agree->kinds[number].from);
    kind->limit = 0;
    const struct level_span now = kind->level.now;
    kinds_unlock(kinds);
    return say_all(agree, number,
                   &(struct frame){.type = FRAME_STEP, .small = number, .a = now.from, .b = now.until, .c = now.level},
                   &told);
}

/* A kind's limit, if this rank decides and is not asking already; else 0. */
static uint64_t wanted_of(const struct agree *agree, uint32_t number)
{
    struct kinds *kinds = agree->member->share.kinds;
    if (agree->kinds[number].missing != 0 || kinds_decider(agree->member, number) != agree->member->rank)
        return 0;
    kinds_lock(kinds);
    const uint64_t limit = kinds->kinds[number].limit;
    kinds_unlock(kinds);
    return limit;
}

bool agree_ask(struct agree *agree)
{
    const uint64_t wanted = __atomic_load_n(&agree->member->share.kinds->wanted, __ATOMIC_ACQUIRE);
    bool good = true;
    if (wanted == agree->seen)
        return true;
    agree->seen = wanted;
    for (uint32_t number = 0; number < kinds_count(agree->member); number++) {
        struct agreement *agreement = &agree->kinds[number];
        const uint64_t limit = wanted_of(agree, number);
        if (limit == 0)
            continue;
        agreement->from = limit;
        good &= say_all(agree, number, &(struct frame){.type = FRAME_ASK, .small = number}, &agreement->missing);
        if (agreement->missing == 0)
            good &= settle(agree, number);
    }
    return good;
}

static bool hear_promise(struct agree *agree, int peer, const struct frame *frame)
{
    struct agreement *agreement = &agree->kinds[frame->small];
    if ((agreement->missing >> peer & 1) == 0 || frame->a >= UINT64_MAX / 2)
        return false;
    agreement->missing &= ~(UINT64_C(1) << peer);
    agreement->from = frame->a > agreement->from ? frame->a : agreement->from;
    return agreement->missing != 0 || settle(agree, frame->small);
}

/* ---- Ranks that take steps over ---------------------------------------------------------------------------------- */

static bool promise(struct agree *agree, int peer, uint32_t number)
{
    struct kinds *kinds = agree->member->share.kinds;
    struct kind *kind = &kinds->kinds[number];
    kinds_lock(kinds);
    const bool promised = kind->limit != 0;
    const uint64_t limit = kind->level.issued + KINDS_AHEAD;
    if (!promised)
        kind->limit = limit;
    kinds_unlock(kinds);
    return !promised &&
           agree->say(agree->speaker, peer, &(struct frame){.type = FRAME_PROMISE, .small = number, .a = limit});
}

static bool take_over(struct agree *agree, const struct frame *frame)
{
    struct kinds *kinds = agree->member->share.kinds;
    struct kind *kind = &kinds->kinds[frame->small];
    kinds_lock(kinds);
    const bool good = kind->limit != 0 && frame->a >= kind->limit && frame->b >= frame->a &&
                      frame->b < UINT64_MAX / 2 && frame->c <= 1024;
    if (good) {
        kind->level.old = kind->level.now;
        kind->level.now = (struct level_span){.from = frame->a, .until = frame->b, .level = (unsigned)frame->c};
        kind->limit = 0;
    }
    kinds_unlock(kinds);
    return good;
}

bool agree_hear(struct agree *agree, int peer, const struct frame *frame)
{
    const struct coll_member *member = agree->member;
    if (frame->small >= kinds_count(member))
        return false;
    const int decider = kinds_decider(member, frame->small);
    if (frame->type == FRAME_PROMISE)
        return decider == member->rank && hear_promise(agree, peer, frame);
    if (decider != peer || !kinds_asked(member, frame->small, member->rank))
        return false;
    return frame->type == FRAME_ASK ? promise(agree, peer, frame->small) : take_over(agree, frame);
}

/* ---- Ranks that have gone ---------------------------------------------------------------------------------------- */

static void forget_promise(struct kinds *kinds, uint32_t number)
{
    kinds_lock(kinds);
    kinds->kinds[number].limit = 0;
    kinds_unlock(kinds);
}

bool agree_without(struct agree *agree, int peer)
{
    const struct coll_member *member = agree->member;
    bool good = true;
    agree->gone |= UINT64_C(1) << peer;
    for (uint32_t number = 0; number < kinds_count(member); number++) {
        struct agreement *agreement = &agree->kinds[number];
        const bool awaited = (agreement->missing >> peer & 1) != 0;
        agreement->missing &= ~(UINT64_C(1) << peer);
        if (awaited && agreement->missing == 0)
            good &= settle(agree, number);
        if (kinds_decider(member, number) == peer && kinds_asked(member, number, member->rank))
            forget_promise(member->share.kinds, number);
    }
    return good;
}
