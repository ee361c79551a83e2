/* Measures what it costs to move overflow: the heads say that messages overflow, but nothing was encoded. This also
 * uses the memory and the kernels once before a program needs them. */
#include <string.h>

#include "collective/engine/head.h"
#include "collective/engine/member.h"

#define PATIENCE_NS UINT64_C(10000000000)

/* In the probe's memory: values | this struct, for the kernel | values of all ranks. */
struct told {
    struct exchange_job job;
    struct message_head head; /* the same for all messages: all ranks have used as many slots */
    uint32_t found;
};

size_t measure_repaired(const struct coll_member *member)
{
    return measure_large(member) / 2;
}

static struct told told_of(const struct coll_member *member, unsigned turn)
{
    uint8_t *memory = member->probe.memory;
    const size_t bytes = measure_repaired(member);
    struct told *place = (struct told *)(void *)(memory + bytes);
    struct told told = {.job = {.send = memory,
                                .sent = (uint8_t *)&place->head,
                                .receive = memory + 2 * bytes,
                                .received = (uint8_t *)&place->head,
                                .found = &place->found,
                                .receive_stride = bytes,
                                .bytes = bytes,
                                .peer = -1},
                        .found = MESSAGE_OVERFLOWS};
    told.head.magic = MESSAGE_MAGIC;
    told.head.first = turn * ring_slots(&member->share.rings, bytes);
    told.head.row[0] = 1;
    told.head.sum = head_sum(&told.head);
    return told;
}

bool measure_repair(struct coll_member *member, unsigned turn)
{
    const struct told told = told_of(member, turn);
    struct told *place = (struct told *)(void *)(member->probe.memory + measure_repaired(member));
    const struct gpu_exchange what = {.rings = member->share.rings,
                                      .ends = member->ends,
                                      .jobs = &place->job,
                                      .mail = member->mail,
                                      .patience_ns = PATIENCE_NS,
                                      .pair_patience_ns = PATIENCE_NS,
                                      .count = 1,
                                      .kind = EXCHANGE_BEHIND};
    return member->gpu->copy(place, &told, sizeof(told), member->stream) &&
           member->gpu->event_record(member->probe.begin, member->stream) &&
           member->gpu->exchange(&what, member->stream) && member->gpu->event_record(member->probe.end, member->stream);
}

bool measure_repair_end(struct coll_member *member, unsigned turns)
{
    const uint64_t next = turns * ring_slots(&member->share.rings, measure_repaired(member));
    return member->gpu->copy(&member->ends->next, &next, sizeof(next), member->stream) &&
           member->gpu->stream_wait(member->stream) && __atomic_load_n(&member->mail->failed, __ATOMIC_ACQUIRE) == 0;
}
