/* Foreign bytes as what a rank on another host says on its connection: frames in any order, slots with any number and
 * length, and ends in the middle of either. The GPU's part is played here: what is full is taken now and then. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/engine/overflow_tcp.h"
#include "tests/fuzz/fuzz.h"

enum { SLOT_BYTES = 64, PART = 97 };

/* One side's rings, and what nobody may write to. */
struct world {
    struct ring_flags to, from;
    uint8_t to_slots[RING_SLOTS * SLOT_BYTES], from_slots[RING_SLOTS * SLOT_BYTES];
    uint8_t guard[SLOT_BYTES];
};

static bool hear(void *hearer, int peer, const struct frame *frame)
{
    require(peer == 1 && frame->type >= FRAME_ASK && frame->type <= FRAME_STEP);
    ++*(unsigned *)hearer;
    return frame->small < 3;
}

/* What came is in its slot, and no longer than that; half of it is taken out. */
static void play_gpu(struct world *world)
{
    for (uint32_t slot = 0; slot < RING_SLOTS; slot++) {
        const uint64_t full = world->from.full[slot].number;
        if (full == 0)
            continue;
        require((full - 1) % RING_SLOTS == slot && world->from.full[slot].bytes <= SLOT_BYTES);
        require(full >= world->from.taken[slot].number);
        if (slot % 2 == 0)
            world->from.taken[slot].number = full;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t nothing[SLOT_BYTES];
    static struct world world;
    unsigned heard = 0;
    int ends[2];
    memset(&world, 0, sizeof(world));
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    struct tcp_conn conn = {.socket = ends[0],
                            .peer = 1,
                            .slot_bytes = SLOT_BYTES,
                            .to = {&world.to, world.to_slots},
                            .from = {&world.from, world.from_slots},
                            .hear = hear,
                            .hearer = &heard};
    for (size_t at = 0; at < size && conn.socket >= 0; at += PART) {
        const size_t part = size - at < PART ? size - at : PART;
        if (send(ends[1], data + at, part, MSG_NOSIGNAL) < 0)
            break;
        (void)tcp_progress(&conn);
        play_gpu(&world);
    }
    require(conn.socket >= 0 || conn.trouble != NULL || conn.left);
    require(memcmp(world.guard, nothing, sizeof(nothing)) == 0);
    tcp_close(&conn);
    close(ends[1]);
    return 0;
}
