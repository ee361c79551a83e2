/* Links of NCCL between GPUs of two nodes, beside the connection's own: with calls that need no GPU (fake_nccl.h) and
 * the loopback transport as carrier. */
#include "tests/peers/peer_node.h"

#include "tests/fakes/nccl_calls.h"
#include "transport/nccl.h"
#if STRAIT_HAVE_UCX
#include "transport/ucx.h"
#endif

#define OPTIONS "carrier=loopback timeout_ms=10000"
#define SOON    "carrier=loopback timeout_ms=600" /* for what hangs */
#define GPU_A   3u                                /* as either node numbers its own */
#define GPU_B   5u

static struct gpu_ends by_nccl(uint32_t device, uint32_t peer_device)
{
    return (struct gpu_ends){.by = LINK_BY_NCCL, .device = device, .peer_device = peer_device};
}

static enum strait_status open_gpu(struct node *node, uint32_t device, const char *options)
{
    char why[256];
    if (node->gpu_arena == NULL)
        node->gpu_arena = calloc(SLOTS, SLOT_BYTES);
    const struct transport_arena arena = {
        .base = node->gpu_arena, .size = SLOTS * SLOT_BYTES, .fd = -1, .memory = TRANSPORT_CUDA};
    enum strait_status status =
        peers_open_gpu(node->peers, LINK_BY_NCCL, device, &transport_nccl, &arena, options, why, sizeof(why));
    ck_assert((status == STRAIT_OK) == (why[0] == 0));
    return status;
}

static void open_nodes_with(const char *options)
{
    fake_nccl_use();
    pair_init("shm");
    node_open(&a);
    node_open(&b);
    ck_assert_int_eq(STRAIT_OK, open_gpu(&a, GPU_A, options));
    ck_assert_int_eq(STRAIT_OK, open_gpu(&b, GPU_B, options));
    connect_nodes(&a, &b);
}

static void open_nodes(void)
{
    open_nodes_with(OPTIONS);
}

/* The threads of a link that was abandoned end without a call. */
static void gpu_teardown(void)
{
    nodes_close();
    EXPECT(fake_nccl.live == 0);
    teardown();
}

static bool is_linked(void)
{
    return a.up != NULL && b.up != NULL && peer_has_gpu_link(a.up, by_nccl(GPU_A, GPU_B)) &&
           peer_has_gpu_link(b.up, by_nccl(GPU_B, GPU_A));
}

static void link_gpus(void)
{
    peer_want_gpu_link(a.up, by_nccl(GPU_A, GPU_B));
    EXPECT(is_linked());
}

static enum strait_status send_chunk(struct node *from, uint8_t with)
{
    const uint64_t header[2] = {from->up->peer_token, 1};
    memset(from->send, with, SLOT_BYTES);
    return from == &a ? peer_send_gpu_chunk(a.up, by_nccl(GPU_A, GPU_B), header, sizeof(header), a.send, SLOT_BYTES, 7)
                      : peer_send_gpu_chunk(b.up, by_nccl(GPU_B, GPU_A), header, sizeof(header), b.send, SLOT_BYTES, 7);
}

static void chunk_arrives(struct node *from, struct node *to, uint8_t with)
{
    uint32_t arrived = to->gpu_arrived, sent = from->sent;
    ck_assert_int_eq(STRAIT_OK, send_chunk(from, with));
    EXPECT(to->gpu_arrived == arrived + 1 && from->sent == sent + 1);
    ck_assert(bytes_filled(to->gpu_arena + SLOT_BYTES, with, SLOT_BYTES));
}

static void tell(struct node *from, const struct message_gpu_link *link)
{
    const struct message message = {.type = MESSAGE_GPU_LINK, .gpu_link = *link};
    ck_assert_int_eq(STRAIT_OK, peer_send(from->up, &message));
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

/* The one that dialled, the other one, both. */
TEST_LOOP(whoever_wants_a_link_gets_it, 3)
{
    open_nodes();
    if (_i != 1)
        peer_want_gpu_link(a.up, by_nccl(GPU_A, GPU_B));
    if (_i != 0)
        peer_want_gpu_link(b.up, by_nccl(GPU_B, GPU_A));
    EXPECT(is_linked());
    chunk_arrives(&a, &b, 1);
    chunk_arrives(&b, &a, 2);
    peer_want_gpu_link(b.up, by_nccl(GPU_B, GPU_A));
    RUN_UNTIL(false, 100);
    ck_assert_uint_eq(4, fake_nccl.joined); /* two directions, two ends, one link */
    ck_assert_uint_eq(1, a.gpu_links);
    ck_assert_uint_eq(1, b.gpu_links);
}

TEST(a_gpu_that_is_there_later_gets_it_then)
{
    open_nodes();
    peer_want_gpu_link(a.up, by_nccl(GPU_A, GPU_A));
    RUN_UNTIL(strstr(peer_gpu_link_why(a.up, by_nccl(GPU_A, GPU_A)), "no NCCL for this GPU") != NULL, SECONDS(5));
    ck_assert_str_eq("the peer says: no NCCL for this GPU", peer_gpu_link_why(a.up, by_nccl(GPU_A, GPU_A)));
    ck_assert_int_eq(STRAIT_ERR_AGAIN, peer_send_gpu_chunk(a.up, by_nccl(GPU_A, GPU_A), "", 1, a.send, 1, 7));
    ck_assert_int_eq(STRAIT_OK, open_gpu(&b, GPU_A, OPTIONS));
    EXPECT(peer_has_gpu_link(a.up, by_nccl(GPU_A, GPU_A)));
}

#if STRAIT_HAVE_UCX
static void open_ucx(struct node *node, uint32_t device)
{
    char why[256];
    const struct transport_arena arena = {
        .base = node->gpu_arena, .size = SLOTS * SLOT_BYTES, .fd = -1, .memory = TRANSPORT_CUDA};
    ck_assert_int_eq(STRAIT_OK, peers_open_gpu(node->peers, LINK_BY_UCX, device, &transport_ucx, &arena, "tls=tcp", why,
                                               sizeof(why)));
}

/* By NCCL and by UCX; either ends without the other. */
TEST(two_gpus_may_have_a_link_of_each_kind)
{
    const struct gpu_ends there = {LINK_BY_UCX, GPU_A, GPU_B}, back = {LINK_BY_UCX, GPU_B, GPU_A};
    open_nodes_with(SOON);
    ucx_stand_in();
    open_ucx(&a, GPU_A);
    peer_want_gpu_link(a.up, there);
    RUN_UNTIL(strstr(peer_gpu_link_why(a.up, there), "the peer says") != NULL, SECONDS(5));
    ck_assert_str_eq("the peer says: no such link to this GPU", peer_gpu_link_why(a.up, there));
    open_ucx(&b, GPU_B);
    link_gpus();
    EXPECT(peer_has_gpu_link(a.up, there) && peer_has_gpu_link(b.up, back));
    const uint64_t header[2] = {a.up->peer_token, 2};
    memset(a.send, 9, SLOT_BYTES);
    ck_assert_int_eq(STRAIT_OK, peer_send_gpu_chunk(a.up, there, header, sizeof(header), a.send, SLOT_BYTES, 7));
    EXPECT(b.gpu_arrived == 1 && a.sent == 1);
    ck_assert_uint_eq(9, b.gpu_arena[3 * SLOT_BYTES - 1]);
    chunk_arrives(&a, &b, 1);
    fake_nccl.hang_operation = fake_nccl.operations + 1;
    ck_assert_int_eq(STRAIT_OK, send_chunk(&a, 1));
    EXPECT(b.gpu_failed == 1);
    ck_assert(peer_has_gpu_link(a.up, there) && peer_has_gpu_link(b.up, back) && !is_linked());
    fake_nccl.hang_operation = 0;
}
#endif

TEST(each_gpu_is_opened_once)
{
    open_nodes();
    ck_assert(peers_has_gpu(a.peers, LINK_BY_NCCL, GPU_A) && !peers_has_gpu(a.peers, LINK_BY_NCCL, GPU_B));
    ck_assert_int_eq(STRAIT_ERR_INVALID, open_gpu(&a, GPU_A, OPTIONS));
    ck_assert_int_eq(STRAIT_ERR_INVALID, open_gpu(&a, GPU_B, "carrier=loopback nonsense"));
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, open_gpu(&a, GPU_B, "carrier=telegraph"));
    peer_want_gpu_link(a.up, by_nccl(GPU_B, GPU_B)); /* of a GPU that has none: nothing comes of it */
    ck_assert_str_eq("not asked for", peer_gpu_link_why(a.up, by_nccl(GPU_B, GPU_B)));
}

/* ---- Failing ----------------------------------------------------------------------------------------------------- */

TEST_LOOP(what_fails_is_tried_again, 4)
{
    open_nodes();
    if (_i == 0)
        fake_nccl.fail_join = 1;
    if (_i == 1)
        fake_nccl.fail_id = 1;
    if (_i == 2)
        fake_nccl.multiprocessors = 1;
    if (_i == 3)
        fake_nccl.hang_join = 1;
    ck_assert_int_eq(STRAIT_OK, open_gpu(&a, 0, _i == 3 ? SOON : OPTIONS));
    ck_assert_int_eq(STRAIT_OK, open_gpu(&b, 0, _i == 3 ? SOON : OPTIONS));
    peer_want_gpu_link(a.up, by_nccl(0, 0));
    EXPECT(a.gpu_links > 0);
    ck_assert(!peer_has_gpu_link(a.up, by_nccl(0, 0)));
    ck_assert_str_ne("being made", peer_gpu_link_why(a.up, by_nccl(0, 0)));
    fake_nccl.fail_id = fake_nccl.hang_join = 0;
    if (_i == 2) { /* it never has room: nobody waits for it */
        ck_assert_ptr_nonnull(strstr(peer_gpu_link_why(a.up, by_nccl(0, 0)), "no room"));
        link_gpus();
    } else {
        EXPECT(peer_has_gpu_link(a.up, by_nccl(0, 0)) && peer_has_gpu_link(b.up, by_nccl(0, 0)));
    }
    ck_assert_uint_eq(0, a.downs + b.downs);
}

TEST(a_link_that_breaks_is_made_again)
{
    open_nodes_with(SOON);
    link_gpus();
    fake_nccl.hang_operation = fake_nccl.operations + 1;
    ck_assert_int_eq(STRAIT_OK, send_chunk(&a, 1));
    EXPECT(b.gpu_failed == 1 && a.gpu_links == 2 && b.gpu_links == 2);
    ck_assert(!is_linked());
    ck_assert_uint_eq(0, a.sent);
    fake_nccl.hang_operation = 0;
    EXPECT(is_linked());
    chunk_arrives(&a, &b, 3);
    ck_assert_uint_eq(0, a.downs + b.downs);
}

/* ---- What others may send ---------------------------------------------------------------------------------------- */

TEST(ends_that_are_none_break_nothing)
{
    static const uint8_t rubbish[300] = {1, 2, 3};
    const struct message_gpu_link to_b = {GPU_A, GPU_B, view_of(rubbish, sizeof(rubbish)), view_of(NULL, 0),
                                          LINK_BY_NCCL},
                                  to_a = {GPU_B, GPU_A, view_of(rubbish, sizeof(rubbish)), view_of(NULL, 0),
                                          LINK_BY_NCCL},
                                  refusal = {GPU_B, GPU_A, view_of(NULL, 0), view_of("no", 2), LINK_BY_NCCL},
                                  unknown = {60, 61, view_of(rubbish, 1), view_of(NULL, 0), LINK_BY_NCCL};
    open_nodes();
    tell(&a, &to_b);
    tell(&a, &unknown);
    tell(&b, &to_a);
    tell(&b, &refusal);
    tell(&b, &unknown);
    EXPECT(b.gpu_links == 1);
    ck_assert_ptr_nonnull(strstr(peer_gpu_link_why(b.up, by_nccl(GPU_B, GPU_A)), "of no use"));
    link_gpus();
    tell(&a, &to_b); /* while there is one */
    tell(&b, &to_a);
    RUN_UNTIL(false, 100);
    chunk_arrives(&a, &b, 4);
    ck_assert_uint_eq(0, a.downs + b.downs);
}

/* Of a later version. */
TEST(a_kind_that_is_not_known_is_refused)
{
    const struct message_gpu_link wish = {.device = GPU_B, .peer_device = GPU_A, .by = 77};
    open_nodes();
    tell(&b, &wish);
    RUN_UNTIL(false, 100);
    ck_assert_uint_eq(0, a.downs + b.downs);
    link_gpus();
}

TEST(the_side_that_makes_links_does_not_ask_for_them)
{
    const struct message_gpu_link wish = {.device = GPU_A, .peer_device = GPU_B};
    open_nodes();
    tell(&a, &wish);
    EXPECT(b.downs == 1 && a.downs == 1);
    ck_assert_uint_eq(1, b.metrics.peer_errors);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* Slots that a GPU may still be at are not free: `quiet` waits. */
TEST_LOOP(a_connection_is_quiet_when_its_gpus_are, 2)
{
    open_nodes_with(SOON);
    link_gpus();
    fake_nccl.hang_operation = fake_nccl.operations + 1;
    fake_nccl.stuck = 1;
    ck_assert_int_eq(STRAIT_OK, send_chunk(&a, 1));
    RUN_UNTIL(fake_nccl.operations >= 2, SECONDS(5));
    peer_drop(_i == 0 ? a.up : b.up, "for the test");
    EXPECT(a.downs == 1 && b.downs == 1);
    RUN_UNTIL(false, 300);
    ck_assert_uint_eq(0, a.quiets + b.quiets);
    ck_assert_uint_eq(0, b.gpu_failed);
    fake_nccl.stuck = 0;
    EXPECT(a.quiets == 1 && b.quiets == 1);
    ck_assert_uint_eq(1, b.gpu_failed);
}

/* But a node that ends does not wait for a GPU for ever. */
TEST(a_node_closes_though_a_stream_does_not_drain)
{
    open_nodes_with(SOON);
    link_gpus();
    fake_nccl.hang_operation = fake_nccl.operations + 1;
    fake_nccl.stuck = 1;
    ck_assert_int_eq(STRAIT_OK, send_chunk(&a, 1));
    RUN_UNTIL(fake_nccl.operations >= 2, SECONDS(5));
    node_close(&a);
    node_close(&b);
    fake_nccl.stuck = 0;
    EXPECT(fake_nccl.live == 0);
}

TEST_LOOP(a_node_closes_whatever_its_links_do, 16)
{
    open_nodes();
    fake_nccl.hang_join = _i % 2;
    peer_want_gpu_link(a.up, by_nccl(GPU_A, GPU_B));
    RUN_UNTIL(false, 3 * _i);
    node_close(_i % 3 == 0 ? &a : &b);
    EXPECT(fake_nccl.live == 0);
}

int main(void)
{
    (void)machine_watch();
    return run_tests("peer_gpu", setup, gpu_teardown);
}
