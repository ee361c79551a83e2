/* Foreign bytes as what the other end of a TCP connection says: to a rank of a collective on another host, which is the
 * transport's owner. The first byte of the input chooses how far the connection has come: 0, nothing was said; 1, the
 * peer has proved itself, and records follow, with frames in any order, slots with any number and length, and ends in
 * the middle of either; 2, we have dialled, and await the answer; else the input is an address. The GPU's part is
 * played here: what is full is taken now and then. */
#include <arpa/inet.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/engine/proxy.h"
#include "internal/bytes.h"
#include "tests/fuzz/fuzz.h"

enum { SLOT_BYTES = 64, PART = 97, PREAMBLE_BYTES = 32, ID_AT = 32, ADDRESS_BYTES = TCP_ADDRESS_BYTES(1) };

/* One side's rings, and what nobody may write to. */
static struct world {
    struct flags {
        struct ring_flag full[RING_SLOTS], taken[RING_SLOTS];
        struct ring_record records[2][RING_RECORDS];
    } to, from;
    uint8_t to_slots[RING_SLOTS * SLOT_BYTES], from_slots[RING_SLOTS * SLOT_BYTES];
    uint8_t guard[SLOT_BYTES];
    struct proxy_peer peer;
} world;
static struct transport *transport;
static unsigned links;

static bool on_consensus(void *arg, int rank, const struct frame *frame)
{
    require(arg == &world && rank == 1 && frame->type >= FRAME_ASK && frame->type <= FRAME_STEP);
    return frame->small < 3;
}

/* What came is in its slot, and no longer than that; half of it is taken out. */
static void play_gpu(void)
{
    for (uint32_t slot = 0; slot < RING_SLOTS; slot++) {
        const uint64_t full = world.from.full[slot].number;
        if (full == 0)
            continue;
        require((full - 1) % RING_SLOTS == slot && world.from.full[slot].bytes <= SLOT_BYTES);
        require(full >= world.from.taken[slot].number);
        if (slot % 2 == 0)
            world.from.taken[slot].number = full;
    }
}

static void progress(void)
{
    for (bool more = true; more;) {
        if (world.peer.link != NULL && world.peer.connected)
            proxy_peer_send(&world.peer);
        more = transport_progress(transport);
    }
}

static struct ring_parts parts_of(struct flags *flags, uint8_t *slots)
{
    return (struct ring_parts){flags->full, flags->taken, {flags->records[0], flags->records[1]}, slots};
}

static void begin(enum link_side side)
{
    const struct transport_arena arena = {.fd = -1, .memory = TRANSPORT_HOST};
    if (transport == NULL)
        require(transport_create(&transport_tcp, &arena, &proxy_events, &links, "connections=1", &transport) ==
                STRAIT_OK);
    memset(&world, 0, sizeof(world));
    world.peer = (struct proxy_peer){.rank = 1,
                                     .slot_bytes = SLOT_BYTES,
                                     .depth = RING_SLOTS,
                                     .records = RING_RECORDS,
                                     .to = parts_of(&world.to, world.to_slots),
                                     .from = parts_of(&world.from, world.from_slots),
                                     .on_consensus = on_consensus,
                                     .consensus_arg = &world};
    require(link_open(transport, -1, side, &world.peer, &world.peer.link) == STRAIT_OK);
    links++;
}

/* A connection to the link; it ends with a reset, as ports would run out otherwise. */
static int stranger(const uint8_t *address)
{
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(load_le16(address + 6)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct linger reset = {.l_onoff = 1};
    const int made = socket(AF_INET, SOCK_STREAM, 0);
    require(made >= 0 && connect(made, (const struct sockaddr *)&at, sizeof(at)) == 0);
    require(setsockopt(made, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) == 0);
    return made;
}

static int listen_at(uint8_t address[ADDRESS_BYTES])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    const int made = socket(AF_INET, SOCK_STREAM, 0);
    require(made >= 0 && bind(made, (const struct sockaddr *)&at, size) == 0 && listen(made, 1) == 0);
    require(getsockname(made, (struct sockaddr *)&at, &size) == 0);
    store_le16(address + 6, ntohs(at.sin_port));
    return made;
}

/* Until the link has come up, or ended, or `made` has been sent away. */
static void await(bool up, int made)
{
    char byte;
    for (int turns = 0; turns < 10000; turns++) {
        struct pollfd ready = {.fd = transport_fd(transport), .events = POLLIN};
        progress();
        if (world.peer.link == NULL || (up ? world.peer.connected : recv(made, &byte, 1, MSG_DONTWAIT) == 0))
            return;
        (void)poll(&ready, 1, 1);
    }
    require(!"nothing has happened");
}

/* The other end of the world's link, as far as `stage` says. */
static int other_end(unsigned stage)
{
    uint8_t address[ADDRESS_BYTES], preamble[PREAMBLE_BYTES] = "STRDATA1";
    begin(stage == 2 ? LINK_DIALLED : LINK_ACCEPTED);
    require(link_address(world.peer.link, address, sizeof(address)) == sizeof(address));
    const int listener = stage == 2 ? listen_at(address) : -1;
    require(link_connect(world.peer.link, address, sizeof(address)) == STRAIT_OK);
    const int made = stage == 2 ? accept(listener, NULL, NULL) : stranger(address);
    if (stage == 2)
        close(listener);
    memcpy(preamble + 8, address + ID_AT, ADDRESS_BYTES - ID_AT); /* id, secret */
    if (stage == 1)
        require(send(made, preamble, PREAMBLE_BYTES, MSG_NOSIGNAL) == PREAMBLE_BYTES);
    if (stage == 1)
        await(true, made);
    return made;
}

static void read_address(const uint8_t *data, size_t size)
{
    begin(LINK_ACCEPTED);
    const enum strait_status status = link_connect(world.peer.link, data, size);
    const bool fits = size >= ADDRESS_BYTES && size <= TCP_ADDRESS_BYTES(16) && (size - ADDRESS_BYTES) % 16 == 0;
    require(status == STRAIT_OK || status == (fits ? STRAIT_ERR_CORRUPT : STRAIT_ERR_INVALID));
}

void fuzz_tcp(const uint8_t *data, size_t size)
{
    static const uint8_t nothing[SLOT_BYTES];
    const unsigned stage = size > 0 ? data[0] : 0;
    int made = -1;
    if (stage > 2)
        read_address(data + 1, size - 1);
    else
        made = other_end(stage);
    for (size_t at = 1; at < size && made >= 0 && world.peer.link != NULL; at += PART) {
        const size_t part = size - at < PART ? size - at : PART;
        if (send(made, data + at, part, MSG_NOSIGNAL) < 0)
            break;
        progress();
        play_gpu();
    }
    if (made >= 0) {
        (void)shutdown(made, SHUT_WR);
        await(false, made);
    }
    require(stage == 1 || !world.peer.connected);
    require(world.peer.link != NULL || world.peer.trouble != NULL || world.peer.left);
    require(memcmp(world.guard, nothing, sizeof(nothing)) == 0);
    if (made >= 0)
        close(made);
    progress();
    proxy_peer_end(&world.peer, NULL);
    while (links > 0)
        progress();
}
