#include <stdlib.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/proxy.h"

/* ---- Who decides ---------------------------------------------------------------------------- */

bool consensus_init(struct level_consensus *agree, struct coll_ccomm *ccomm)
{
    agree->ccomm = ccomm;
    agree->seen = 0;
    agree->gone = (struct rank_set){0};
    agree->classes = calloc(op_class_own_count(ccomm), sizeof(*agree->classes));
    return agree->classes != NULL;
}

void consensus_fini(struct level_consensus *agree)
{
    free(agree->classes);
    agree->classes = NULL;
}

/* What this rank knows of an op class that it decides about. */
static struct class_consensus *consensus_of(struct level_consensus *agree, uint32_t number)
{
    return &agree->classes[op_class_own_index(agree->ccomm, number)];
}

/* Sends to all ranks that are asked and still there. */
static bool send_to_all(struct level_consensus *agree, uint32_t number, const struct frame *frame,
                        struct rank_set *sent_to)
{
    bool good = true;
    for (int rank = 0; rank < agree->ccomm->ranks; rank++) {
        if (!op_class_is_asked(agree->ccomm, number, rank) || rank_set_has(&agree->gone, (uint32_t)rank))
            continue;
        good &= agree->send(agree->send_arg, rank, frame);
        rank_set_add(sent_to, (uint32_t)rank);
    }
    return good;
}

/* Called when all have promised. */
static bool settle(struct level_consensus *agree, uint32_t number)
{
    struct op_classes *classes = agree->ccomm->shared.classes;
    struct op_class *op_class = &classes->classes[number];
    const struct class_consensus *agreement = consensus_of(agree, number);
    const bool early = agreement->early;
    struct rank_set sent_to = {0};
    struct level_span now = {0};
    op_classes_lock(classes);
    if (!early) {
        op_class_step(agree->ccomm, number, agreement->from);
        now = op_class->level.now;
    }
    op_class->limit = 0;
    op_classes_unlock(classes);
    return send_to_all(
        agree, number,
        &(struct frame){.type = FRAME_STEP, .small = number, .a = now.from, .b = now.until, .c = now.level}, &sent_to);
}

/* An op class's limit, if this rank decides and is not asking already; else 0. */
static uint64_t wanted_of(struct level_consensus *agree, uint32_t number)
{
    struct op_classes *classes = agree->ccomm->shared.classes;
    if (!rank_set_is_empty(&consensus_of(agree, number)->missing) ||
        op_class_decider(agree->ccomm, number) != agree->ccomm->rank)
        return 0;
    op_classes_lock(classes);
    const uint64_t limit = classes->classes[number].limit;
    op_classes_unlock(classes);
    return limit;
}

bool consensus_ask(struct level_consensus *agree)
{
    const uint64_t wanted = __atomic_load_n(&agree->ccomm->shared.classes->wanted, __ATOMIC_ACQUIRE);
    bool good = true;
    if (wanted == agree->seen)
        return true;
    agree->seen = wanted;
    for (uint32_t i = 0; i < op_class_own_count(agree->ccomm); i++) {
        struct class_consensus *agreement = &agree->classes[i];
        const uint32_t number = op_class_own(agree->ccomm, i);
        const uint64_t limit = wanted_of(agree, number);
        if (limit == 0)
            continue;
        agreement->from = limit;
        agreement->early = false;
        good &= send_to_all(agree, number, &(struct frame){.type = FRAME_ASK, .small = number}, &agreement->missing);
        if (rank_set_is_empty(&agreement->missing))
            good &= settle(agree, number);
    }
    return good;
}

static bool handle_promise(struct level_consensus *agree, int peer, const struct frame *frame)
{
    struct class_consensus *agreement = consensus_of(agree, frame->small);
    if (!rank_set_has(&agreement->missing, (uint32_t)peer) || frame->a >= UINT64_MAX / 2 || frame->b > 1)
        return false;
    agreement->early |= frame->b == 0;
    rank_set_drop(&agreement->missing, (uint32_t)peer);
    agreement->from = frame->a > agreement->from ? frame->a : agreement->from;
    return !rank_set_is_empty(&agreement->missing) || settle(agree, frame->small);
}

/* ---- Ranks that take steps over ---------------------------------------------------------------------------------- */

static bool promise(struct level_consensus *agree, int peer, uint32_t number)
{
    struct op_classes *classes = agree->ccomm->shared.classes;
    struct op_class *op_class = &classes->classes[number];
    op_classes_lock(classes);
    const bool promised = op_class->limit != 0;
    const uint64_t limit = op_class->level.issued + OP_CLASS_AHEAD, past = op_class_is_past(agree->ccomm, number);
    if (!promised)
        op_class->limit = limit;
    op_classes_unlock(classes);
    return !promised && agree->send(agree->send_arg, peer,
                                    &(struct frame){.type = FRAME_PROMISE, .small = number, .a = limit, .b = past});
}

static bool take_over(struct level_consensus *agree, const struct frame *frame)
{
    struct op_classes *classes = agree->ccomm->shared.classes;
    struct op_class *op_class = &classes->classes[frame->small];
    op_classes_lock(classes);
    const bool none = frame->a == 0 && frame->b == 0 && frame->c == 0;
    const bool step =
        frame->a >= op_class->limit && frame->b >= frame->a && frame->b < UINT64_MAX / 2 && frame->c <= 1024;
    const bool good = op_class->limit != 0 && (none || step);
    if (good && none)
        op_class->limit = 0;
    if (good && step) {
        op_class->past = (struct rank_set){0};
        op_class->level.old = op_class->level.now;
        op_class->level.now = (struct level_span){.from = frame->a, .until = frame->b, .level = (unsigned)frame->c};
        op_class->limit = 0;
    }
    op_classes_unlock(classes);
    return good;
}

bool consensus_receive(struct level_consensus *agree, int peer, const struct frame *frame)
{
    const struct coll_ccomm *ccomm = agree->ccomm;
    if (frame->small >= op_class_count(ccomm))
        return false;
    const int decider = op_class_decider(ccomm, frame->small);
    if (frame->type == FRAME_PROMISE)
        return decider == ccomm->rank && handle_promise(agree, peer, frame);
    if (decider != peer || !op_class_is_asked(ccomm, frame->small, ccomm->rank))
        return false;
    return frame->type == FRAME_ASK ? promise(agree, peer, frame->small) : take_over(agree, frame);
}

/* ---- Ranks that have gone ---------------------------------------------------------------------------------------- */

/* What this rank has promised a rank that decides is not awaited any more. */
static void forget_promise(const struct coll_ccomm *ccomm, uint32_t number, int decider)
{
    struct op_classes *classes = ccomm->shared.classes;
    if (op_class_decider(ccomm, number) != decider || !op_class_is_asked(ccomm, number, ccomm->rank))
        return;
    op_classes_lock(classes);
    classes->classes[number].limit = 0;
    op_classes_unlock(classes);
}

bool consensus_rank_gone(struct level_consensus *agree, int peer)
{
    const struct coll_ccomm *ccomm = agree->ccomm;
    const uint32_t collectives = op_class_of_pair(ccomm, 0, 0), sent = op_class_of_pair(ccomm, peer, ccomm->rank);
    bool good = true;
    rank_set_add(&agree->gone, (uint32_t)peer);
    for (uint32_t i = 0; i < op_class_own_count(ccomm); i++) {
        struct class_consensus *agreement = &agree->classes[i];
        const bool awaited = rank_set_has(&agreement->missing, (uint32_t)peer);
        rank_set_drop(&agreement->missing, (uint32_t)peer);
        if (awaited && rank_set_is_empty(&agreement->missing))
            good &= settle(agree, op_class_own(ccomm, i));
    }
    for (uint32_t number = 0; number < collectives; number++)
        forget_promise(ccomm, number, peer);
    for (uint32_t number = sent; number < sent + CCOMM_TYPES; number++)
        forget_promise(ccomm, number, peer);
    return good;
}
