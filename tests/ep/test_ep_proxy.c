/* Proxy of a rank to ranks of other hosts, frame by frame: what it sends of manifests, and what it takes. */
#include "tests/ep/proxy_link.h"
#include "tests/run_suite.h"

enum { RANKS = 2, TOKENS = 4, PLACES = 3 };

static struct ep_group_view view;
static struct ep_proxy_peer peer;
static struct ep_manifest manifests[EP_FLAG_KINDS * EP_MANIFESTS * RANKS];
static uint64_t signals[EP_FLAG_KINDS * RANKS];
static uint32_t places[EP_BUFFERS_LL * RANKS * PLACES];

static void setup(void)
{
    const struct strait_ep_config config = {.rank_count = RANKS,
                                            .algorithm = STRAIT_EP_LOW_LATENCY,
                                            .experts = 4,
                                            .tokens_max = TOKENS,
                                            .row_bytes_max = 32,
                                            .topk_max = 2,
                                            .heap_bytes = 256};

    view = (struct ep_group_view){.rank_count = RANKS,
                                  .tokens_max = TOKENS,
                                  .remote = 1u << 1,
                                  .signals = signals,
                                  .manifests = manifests,
                                  .places = places,
                                  .place_count = PLACES};
    require(ep_arena_plan(&config, EP_ROWS_RAW, 0, &view.at) == STRAIT_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        view.arenas[rank] = aligned_alloc(4096, view.at.bytes);
        require(view.arenas[rank] != NULL);
        memset(view.arenas[rank], 0, view.at.bytes);
    }
    memset(manifests, 0, sizeof(manifests));
    memset(signals, 0, sizeof(signals));
    link_begin(&peer, &view);
}

static void teardown(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++)
        free(view.arenas[rank]);
}

static void require_sent(uint32_t i, uint32_t type, uint32_t small, uint64_t a, const void *bytes, size_t size)
{
    const struct sent_frame *sent = &sent_frames[i];
    require(i < sent_count && sent->type == type && sent->small == small && sent->a == a);
    require(sent->bytes == bytes && sent->size == size);
}

/* What a signal is about goes before it: a range of the replica, rows at listed places, a range of the own arena. */
TEST(ranges_of_a_signal_go_before_it)
{
    const uint64_t epoch = 6, rows = view.at.rows, numbers = view.at.numbers;
    struct ep_manifest *manifest = ep_manifest_of(&view, EP_FLAG_DATA, epoch, 1);

    require(!ep_proxy_peer_send(&peer));
    *manifest = (struct ep_manifest){
        .value = epoch,
        .count = 3,
        .ranges = {{numbers, 20, 1, 0}, {rows, 32, 2, EP_LISTED}, {rows + 64, 16, 1, EP_OF_SENDER}}};
    ep_places_of(&view, epoch, 1)[0] = 5;
    ep_places_of(&view, epoch, 1)[1] = 2;
    require(!ep_proxy_peer_send(&peer)); /* not signalled yet */
    *ep_signal_of(&view, EP_FLAG_DATA, 1) = epoch;
    require(ep_proxy_peer_send(&peer) && sent_count == 5);
    require_sent(0, EP_FRAME_RANGE, 0, numbers, view.arenas[1] + numbers, 20);
    require_sent(1, EP_FRAME_RANGE, 0, rows + 5 * 32, view.arenas[1] + rows + 5 * 32, 32);
    require_sent(2, EP_FRAME_RANGE, 0, rows + 2 * 32, view.arenas[1] + rows + 2 * 32, 32);
    require_sent(3, EP_FRAME_RANGE, EP_OF_SENDER, rows + 64, view.arenas[0] + rows + 64, 16);
    require_sent(4, EP_FRAME_SIGNAL, EP_FLAG_DATA, epoch, NULL, 0);
    require(!ep_proxy_peer_send(&peer) && peer.frames == 5);
}
END_TEST

/* Links take less than 4 GiB at once. Nothing is read here. */
TEST(large_ranges_go_in_pieces)
{
    const uint64_t gib = 1ull << 30, rows = view.at.rows;
    uint8_t *const arena = view.arenas[1];

    view.at.bytes = rows + 9 * gib;
    *ep_manifest_of(&view, EP_FLAG_DATA, 1, 1) =
        (struct ep_manifest){.value = 1, .count = 1, .ranges = {{rows, 4 * gib + 16, 2, 0}}};
    *ep_signal_of(&view, EP_FLAG_DATA, 1) = 1;
    require(ep_proxy_peer_send(&peer) && sent_count == 11);
    for (uint32_t i = 0; i < 10; i++) {
        const uint64_t offset = rows + i / 5 * (4 * gib + 16) + i % 5 * gib;
        require_sent(i, EP_FRAME_RANGE, 0, offset, arena + offset, i % 5 < 4 ? gib : 16);
    }
    require_sent(10, EP_FRAME_SIGNAL, EP_FLAG_DATA, 1, NULL, 0);
}
END_TEST

/* A rank that was left out, and a call that was given up, do not keep others from the next calls. */
TEST(a_signal_that_is_overwritten_ends_as_it_began)
{
    struct ep_manifest *manifest = ep_manifest_of(&view, EP_FLAG_DATA, 2, 1);

    *manifest = (struct ep_manifest){.value = 2, .count = 1, .ranges = {{view.at.rows, 1, 100, 0}}};
    *ep_signal_of(&view, EP_FLAG_DATA, 1) = 2;
    require(ep_proxy_peer_send(&peer) && sent_count == SENT_MAX);
    *manifest = (struct ep_manifest){.value = 2 + EP_MANIFESTS};
    for (; peer.frames > 0; sent_count = 0)
        ep_proxy_events.sent(NULL, &kept_link, 0, STRAIT_OK);
    require(ep_proxy_peer_send(&peer) && sent_count == 37);
    require_sent(35, EP_FRAME_RANGE, 0, view.at.rows + 99, view.arenas[1] + view.at.rows + 99, 1);
    require_sent(36, EP_FRAME_SIGNAL, EP_FLAG_DATA, 2, NULL, 0);
    *manifest = (struct ep_manifest){
        .value = 2 + EP_MANIFESTS, .count = 1, .ranges = {{view.at.bytes - 8, 16, 1, 0}}}; /* beyond the arena */
    *ep_signal_of(&view, EP_FLAG_DATA, 1) = 2 + EP_MANIFESTS;
    require(ep_proxy_peer_send(&peer) && peer.link == NULL);
}
END_TEST

/* A link that refuses a frame has ended: what comes behind it must not be taken for all. */
TEST(a_refused_frame_ends_the_link)
{
    *ep_manifest_of(&view, EP_FLAG_DATA, 1, 1) =
        (struct ep_manifest){.value = 1, .count = 1, .ranges = {{view.at.rows, 16, 1, 0}}};
    *ep_signal_of(&view, EP_FLAG_DATA, 1) = 1;
    link_refuses = true;
    require(ep_proxy_peer_send(&peer) && peer.link == NULL && sent_count == 0);
}
END_TEST

/* Signals that were given before any was sent go in their order, each with its own ranges. */
TEST(signals_of_a_kind_go_in_order)
{
    for (uint64_t epoch = 7; epoch < 10; epoch++)
        *ep_manifest_of(&view, EP_FLAG_DATA, epoch, 1) =
            (struct ep_manifest){.value = epoch, .count = 1, .ranges = {{view.at.rows, 16 * epoch, 1, 0}}};
    *ep_signal_of(&view, EP_FLAG_DATA, 1) = 8;
    require(ep_proxy_peer_send(&peer) && sent_count == 4);
    *ep_signal_of(&view, EP_FLAG_DATA, 1) = 9;
    require(ep_proxy_peer_send(&peer) && sent_count == 6);
    for (uint32_t i = 0; i < 3; i++) {
        require_sent(2 * i, EP_FRAME_RANGE, 0, view.at.rows, view.arenas[1] + view.at.rows, 16 * (7 + i));
        require_sent(2 * i + 1, EP_FRAME_SIGNAL, EP_FLAG_DATA, 7 + i, NULL, 0);
    }
}
END_TEST

/* A link takes so many frames at a time; the others follow when those are sent. */
TEST(a_link_is_not_flooded)
{
    uint32_t frames = 0;
    struct ep_manifest *manifest = ep_manifest_of(&view, EP_FLAG_READY, 1, 1);

    *manifest =
        (struct ep_manifest){.value = 1, .count = 1, .ranges = {{view.at.rows, 16, 200, 0}}}; /* more than there are */
    *ep_signal_of(&view, EP_FLAG_READY, 1) = 1;
    while (ep_proxy_peer_send(&peer)) {
        require(peer.frames <= SENT_MAX && (!ep_proxy_peer_flush(&peer) && !peer.flushing) == (frames < 192));
        for (; peer.frames > 0; frames++)
            ep_proxy_events.sent(NULL, &kept_link, 0, STRAIT_OK);
        sent_count = 0;
    }
    require(frames == 202); /* rows, the signal, the flush */
}
END_TEST

TEST(what_arrives_is_put_where_it_belongs)
{
    require(arrive(EP_FRAME_RANGE, 0, view.at.announce, 16) == view.arenas[0] + view.at.announce);
    require(arrive(EP_FRAME_RANGE, 0, view.at.bytes - 16, 16) == view.arenas[0] + view.at.bytes - 16);
    require(arrive(EP_FRAME_RANGE, EP_OF_SENDER, view.at.rows, 64) == view.arenas[1] + view.at.rows);
    require(arrive(EP_FRAME_SIGNAL, EP_FLAG_DATA, 5, 0) == NULL && peer.link != NULL);
    require(*ep_flag_of(&view, 0, EP_FLAG_DATA, 1) == 5);
    require(arrive(EP_FRAME_FLUSH, 0, 0, 0) == NULL && peer.link != NULL);
    require_sent(0, EP_FRAME_FLUSHED, 0, 0, NULL, 0);
    require(!ep_proxy_peer_flush(&peer) && peer.flushing && !ep_proxy_peer_flush(&peer) && sent_count == 2);
    require_sent(1, EP_FRAME_FLUSH, 0, 0, NULL, 0);
    require(arrive(EP_FRAME_FLUSHED, 0, 0, 0) == NULL && peer.link != NULL && ep_proxy_peer_flush(&peer));
}
END_TEST

/* Offsets are from the areas named. */
static const struct {
    uint32_t type, small;
    int area; /* 0: the arena, 1: announce, 2: its end */
    int64_t offset;
    size_t size;
} bad[] = {{EP_FRAME_RANGE, 0, 0, 0, 8},
           {EP_FRAME_RANGE, 0, 1, -1, 16},
           {EP_FRAME_RANGE, 0, 2, -15, 16},
           {EP_FRAME_RANGE, 0, 2, 1, 16},
           {EP_FRAME_RANGE, 0, 0, -16, 32},
           {EP_FRAME_RANGE, EP_LISTED, 1, 0, 16},
           {EP_FRAME_RANGE, 0, 1, 0, 0},
           {EP_FRAME_RANGE, 0, 1, 0, SIZE_MAX},
           {EP_FRAME_SIGNAL, EP_FLAG_DATA, 0, 0, 0},
           {EP_FRAME_SIGNAL, EP_FLAG_KINDS, 0, 9, 0},
           {EP_FRAME_SIGNAL, EP_FLAG_DATA, 0, 9, 1},
           {EP_FRAME_FLUSHED, 0, 0, 0, 0},
           {0, 0, 0, 0, 0},
           {EP_FRAME_FLUSHED + 1, 0, 0, 0, 0}};

TEST_LOOP(what_is_not_in_order_ends_the_link, COUNT(bad))
{
    const uint64_t areas[] = {0, view.at.announce, view.at.bytes};

    require(arrive(bad[_i].type, bad[_i].small, areas[bad[_i].area] + (uint64_t)bad[_i].offset, bad[_i].size) == NULL);
    require(peer.link == NULL && !ep_proxy_peer_send(&peer));
    for (uint64_t at = 0; at < view.at.announce; at++)
        require(view.arenas[0][at] == 0);
}
END_TEST

/* Flags do not go back, and a flush is answered once. */
TEST(what_comes_twice_ends_the_link)
{
    require(arrive(EP_FRAME_SIGNAL, EP_FLAG_READY, 5, 0) == NULL && peer.link != NULL);
    require(arrive(EP_FRAME_SIGNAL, EP_FLAG_READY, 5, 0) == NULL && peer.link == NULL);
    link_begin(&peer, &view);
    require(arrive(EP_FRAME_FLUSH, 0, 0, 0) == NULL && peer.link != NULL);
    require(arrive(EP_FRAME_FLUSH, 0, 0, 0) == NULL && peer.link == NULL);
}
END_TEST

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

TEST(a_host_that_refuses_is_named)
{
    struct ep_proxy_info infos[RANKS] = {{{0}, {0}}};
    struct ep_proxy *proxy;
    char text[200] = "";

    require(setenv("NCCL_SOCKET_IFNAME", "=lo", 1) == 0);
    require(ep_proxy_create(&view, &infos[0], &proxy) == STRAIT_OK && infos[0].address.port != 0);
    infos[1].address = infos[0].address;
    infos[1].address.port = 1;
    require(ep_proxy_start(proxy, &view, infos, text, sizeof(text)) == STRAIT_ERR_IO);
    require(strstr(text, "rank 1, on another host, cannot be connected to at ") != NULL && strstr(text, " port 1"));
    ep_proxy_destroy(proxy, 0);
}
END_TEST

TEST(without_an_address_there_is_no_proxy)
{
    struct ep_proxy_info info;
    struct ep_proxy *proxy;

    require(setenv("NCCL_SOCKET_IFNAME", "=none", 1) == 0);
    require(ep_proxy_create(&view, &info, &proxy) == STRAIT_ERR_IO);
}
END_TEST

int main(void)
{
    return run_tests("ep_proxy", setup, teardown);
}
