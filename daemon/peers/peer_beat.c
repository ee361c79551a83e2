/* Heartbeats: each side sends a numbered one per interval, which is answered at once by an unnumbered one (0). */
#include "daemon/peers/peer_internal.h"

static void beat_send(struct connection *c, uint64_t sequence)
{
    struct message message = {.type = MESSAGE_HEARTBEAT, .heartbeat = {.sequence = sequence, .echo = c->seen}};
    connection_send(c, &message);
}

/* As in TCP, each new sample counts for an eighth. */
static void smooth(uint64_t *average, uint64_t sample)
{
    *average = *average == 0 ? sample : *average - *average / 8 + sample / 8;
}

void beat_take(struct connection *c, const struct message_heartbeat *beat)
{
    if (c->sent_at_ns != 0 && beat->echo == c->sequence) {
        smooth(&c->peer.round_trip_us, (uv_hrtime() - c->sent_at_ns) / 1000 + 1);
        c->sent_at_ns = 0;
    }
    if (beat->sequence == 0)
        return;
    c->seen = beat->sequence;
    beat_send(c, 0);
}

void beat_tick(struct connection *c)
{
    const struct node_options *options = &peers_of(c)->options;
    uint64_t now = peers_now(peers_of(c));
    if (now >= c->heard + options->peer_timeout_ms) {
        connection_doom(c, "no heartbeat for %u ms", (unsigned)(now - c->heard));
        return;
    }
    if (now < c->next_beat)
        return;
    c->next_beat = now + options->heartbeat_ms;
    c->sent_at_ns = uv_hrtime();
    beat_send(c, ++c->sequence);
}
