#include "proto/socket_ring.h"

#include <sys/socket.h>
#include <unistd.h>

/* Not among the bytes of messages: until these have gone, they wake the other side. A socket without room has enough to
 * wake up for. */
static void wake(void *owner)
{
    struct socket_ring *ring = owner;
    if (channel_sends_by(ring->channel, &ring->layer.layer) && ring_must_wake(ring_file_sleeps(&ring->file, true)))
        (void)!send(channel_fd(ring->channel), "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static bool map(struct socket_ring *ring, struct channel *channel, uint32_t side, int memfd)
{
    ring->file = (struct ring_file){.side = side, .pairs = 1, .sizes = &ring->bytes};
    ring->channel = channel;
    if (memfd < 0 || !ring_file_map(&ring->file, memfd))
        return false;
    ring_layer_init(&ring->layer, ring_file_ring(&ring->file, 0, false), ring_file_ring(&ring->file, 0, true), true,
                    wake, ring);
    return true;
}

int socket_ring_make(struct socket_ring *ring, struct channel *channel, struct message *rings)
{
    ring->bytes = SOCKET_RING_BYTES;
    const struct ring_file model = {.pairs = 1, .sizes = &ring->bytes};
    const int memfd = ring_file_make(&model);
    *rings = (struct message){.type = MESSAGE_RINGS, .rings = {.bytes = ring->bytes}};
    if (map(ring, channel, 0, memfd))
        return memfd;
    if (memfd >= 0)
        close(memfd);
    return -1;
}

bool socket_ring_map(struct socket_ring *ring, struct channel *channel, const struct message_rings *rings, int memfd)
{
    ring->bytes = rings->bytes;
    return map(ring, channel, 1, memfd);
}

void socket_ring_close(struct socket_ring *ring)
{
    if (ring->file.base == NULL)
        return;
    ring_layer_fini(&ring->layer);
    ring_file_unmap(&ring->file);
}

bool socket_ring_is_due(struct socket_ring *ring)
{
    return ring->file.base != NULL && (ring_layer_can_read(&ring->layer) || ring_layer_can_write(&ring->layer));
}

bool socket_ring_sleep(struct socket_ring *ring, bool sleeps)
{
    if (ring->file.base == NULL)
        return false;
    ring_sleep(ring_file_sleeps(&ring->file, false), sleeps);
    return sleeps && socket_ring_is_due(ring);
}

bool socket_ring_was_woken(struct socket_ring *ring)
{
    return __atomic_exchange_n(ring_file_sleeps(&ring->file, false), 0, __ATOMIC_SEQ_CST) == 0;
}
