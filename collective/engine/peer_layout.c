#include "collective/engine/peer.h"

#define LINE 128u

static uint64_t lines(uint64_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static uint64_t flags_bytes(void)
{
    return (sizeof(struct peer_flags) + 4095) / 4096 * 4096;
}

uint64_t peer_arena_bytes(const struct peer_wire *wire, int ranks)
{
    return flags_bytes() + (uint64_t)(ranks - 1) * PEER_DEPTH * wire->slot;
}

uint64_t peer_outgoing_bytes(const struct peer_wire *wire, int ranks)
{
    return (uint64_t)(ranks - 1) * PEER_OUTGOING * wire->slot;
}

uint8_t *peer_slot(const struct peer_wire *wire, int owner, int sender, uint32_t piece)
{
    const uint64_t place = (uint64_t)(sender - (sender > owner));
    return wire->reached[owner] + flags_bytes() + (place * PEER_DEPTH + piece % PEER_DEPTH) * wire->slot;
}

uint8_t *peer_outgoing(const struct peer_wire *wire, int ranks, uint32_t place, uint32_t round)
{
    return wire->outgoing + ((uint64_t)(ranks - 1) * (round % PEER_OUTGOING) + place) * wire->slot;
}

/* First what a tail needs, then what a piece needs. BF16 has the most blocks of all types. */
static uint64_t tail_aside(void)
{
    return lines(peer_chunk_of(STRAIT_ELEMENT_BF16, 1, PEER_PAGE).metadata_bytes);
}

static uint64_t aside_stride(const struct peer_wire *wire)
{
    const uint32_t pages = wire->tuning.piece / PEER_PAGE;
    return tail_aside() + lines(peer_chunk_of(STRAIT_ELEMENT_BF16, pages, PEER_PAGE).metadata_bytes);
}

uint64_t peer_asides_bytes(const struct peer_wire *wire, int ranks)
{
    return PEER_DECODERS_MAX * (uint64_t)(ranks - 1) * aside_stride(wire);
}

uint8_t *peer_aside(const struct peer_wire *wire, int ranks, uint32_t decoder, uint32_t i, bool tail)
{
    const uint64_t place = decoder * (uint64_t)(ranks - 1) + i;
    return wire->asides + place * aside_stride(wire) + (tail ? 0 : tail_aside());
}

uint64_t peer_results_bytes(int ranks)
{
    return sizeof(struct strait_result) * 2 * PEER_DECODERS_MAX * (uint64_t)(ranks - 1);
}

struct strait_result *peer_results(const struct peer_wire *wire, int ranks, uint32_t decoder, uint32_t i)
{
    return wire->results + 2 * (decoder * (uint64_t)(ranks - 1) + i);
}

uint64_t peer_sums_stride(const struct peer_wire *wire)
{
    return wire->tuning.piece + PEER_PAGE;
}

bool peer_sums_prepare(struct coll_member *member)
{
    struct peer_wire *wire = member->peer;
    if (wire->sums == NULL)
        wire->sums = member->gpu->allocate(peer_sums_stride(wire) * (uint64_t)member->ranks, false);
    return wire->sums != NULL;
}
