/* GPUs of two daemons that store into each other's memory: when they do, when they do not, and how that ends. */
#include "tests/node/far_harness.h"

/* ---- When -------------------------------------------------------------------------------------------------------- */

TEST_LOOP(chunks_go_straight_into_the_other_gpu, 4)
{
    struct pair pair;
    struct test_pool *source, *sink;
    pair_init(&pair, SHM);
    use_codebook(pair.a, "a", 0x7c);
    use_codebook(pair.b, "b", 0x7c);
    strcpy(pair.a->options.coding, far_codings[_i]);
    pair_start(&pair);
    far_pools(&pair, (struct geometry){.pages = 128, .layers = 3, .roles = 2, .gpu = 1}, &source, &sink);
    far_move_until(source, sink, "peer");
    double before = far_bytes(source, "pinned");
    for (int i = 0; i < 12; i++)
        far_move(source, sink);
    ck_assert_double_eq(before, far_bytes(source, "pinned"));
    if (_i == 0) /* each mode has been measured by now */
        ck_assert_msg(strstr(stats_text(pair.source), "into the peer's GPU, raw ") != NULL, "%s",
                      stats_text(pair.source));
    far_move_until(sink, source, "peer"); /* and back */
    ck_assert_uint_ge(far_control()->reached, 2);
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}

TEST(rows_and_odd_sizes_arrive)
{
    struct pair pair;
    struct test_pool *source, *sink;
    pair_open(&pair, SHM);
    far_pools(&pair, (struct geometry){.pages = 64, .layers = 2, .rows = 5, .row_bytes = 98, .gpu = 1}, &source, &sink);
    far_move_until(source, sink, "peer");
    far_pools(&pair, (struct geometry){.pages = 64, .row_bytes = 1001, .element = STRAIT_ELEMENT_FP8_E4M3, .gpu = 1},
              &source, &sink);
    far_move_until(source, sink, "peer");
}

/* Four requests at once want more slots than there are. */
TEST(slots_go_round)
{
    struct pair pair;
    pair_init(&pair, SHM);
    pair.b->options.gpu_arena_bytes = 4 * pair.b->options.gpu_chunk_bytes;
    pair_start(&pair);
    far_slots_go_round(&pair, "peer");
}

/* ---- When not ---------------------------------------------------------------------------------------------------- */

TEST_LOOP(either_side_can_switch_it_off, 5)
{
    struct pair pair;
    struct test_pool *source, *sink;
    pair_init(&pair, SHM);
    if (_i == 0)
        strcpy(pair.a->options.gpu_wires, "pinned");
    if (_i == 1)
        strcpy(pair.b->options.gpu_wires, "pinned");
    if (_i == 2)
        pair.b->options.gpu_arena_bytes = 0;
    if (_i == 4) /* chunks for b would be too large for a */
        pair.a->options.gpu_chunk_bytes /= 2;
    if (_i == 3)
        ck_assert_int_eq(0, setenv("NCCL_P2P_DISABLE", "1", 1));
    pair_start(&pair);
    far_pools(&pair, far_small, &source, &sink);
    far_move_without(source, sink, "peer");
    unsetenv("NCCL_P2P_DISABLE");
}

TEST_LOOP(what_cannot_be_reached_crosses_the_host, 2)
{
    struct pair pair;
    struct test_pool *source, *sink;
    pair_open(&pair, SHM);
    far_control()->refuse_reach = _i == 0;
    far_control()->refuse_arena = _i == 1;
    far_pools(&pair, far_small, &source, &sink);
    far_move_without(source, sink, "peer");
}

TEST(a_page_too_large_for_its_slots_crosses_the_host)
{
    struct pair pair;
    struct test_pool *source, *sink;
    pair_init(&pair, SHM);
    pair.b->options.gpu_chunk_bytes = 64u << 10;
    pair_start(&pair);
    far_pools(&pair, (struct geometry){.pages = 16, .row_bytes = 100000, .gpu = 1}, &source, &sink);
    far_move_without(source, sink, "peer");
}

/* A pool of which a part is the host's is not stored to from there. */
TEST(a_pool_of_the_host_crosses_the_host)
{
    struct pair pair;
    pair_open(&pair, SHM);
    struct test_pool *host = pool_open(pair.source, (struct geometry){.pages = 64});
    struct test_pool *on_gpu = pool_open(pair.source, (struct geometry){.pages = 64, .gpu = 1});
    struct test_pool *sink = pool_open(pair.sink, (struct geometry){.pages = 64, .gpu = 2});
    far_move_until(on_gpu, sink, "peer");
    double before = far_bytes(host, "peer");
    far_move(host, sink);
    far_move(sink, host);
    ck_assert_double_eq(before, far_bytes(host, "peer"));
}

#ifdef STRAIT_HAVE_UCX
TEST(only_daemons_that_share_memory_do)
{
    struct pair pair;
    struct test_pool *source, *sink;
    pair_open(&pair, UCX);
    far_pools(&pair, (struct geometry){.pages = 64, .gpu = 1}, &source, &sink);
    far_move(source, sink);
    pump_for(50);
    far_move(source, sink);
    ck_assert_double_eq(0, far_bytes(source, "peer"));
    ck_assert_uint_eq(0, far_control()->reached);
}
#endif

/* ---- The end ----------------------------------------------------------------------------------------------------- */

TEST(pools_come_and_go)
{
    struct pair pair;
    pair_open(&pair, SHM);
    far_pools_come_and_go(&pair, "peer");
}

/* The fake plugin ends the program when memory is stored to that is not reached any more. */
TEST_LOOP(a_peer_that_stops_is_let_go_of, 2)
{
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *o, *e;
    pair_open(&pair, SHM);
    far_pools(&pair, far_large, &source, &sink);
    far_move_until(source, sink, "peer");
    WAIT(far_control()->reached >= 2);
    far_begin_slowly(source, sink, &o, &e);
    test_node_stop(_i == 0 ? pair.b : pair.a);
    WAIT(o->decided && e->decided);
    WAIT(far_control()->reached == 0);
    undefined(e);
    wait_quiet(_i == 0 ? pair.source : pair.sink);
}

TEST_LOOP(a_device_that_fails_fails_what_it_does, 2)
{
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *o, *e;
    pair_open(&pair, SHM);
    far_pools(&pair, far_large, &source, &sink);
    far_move_until(source, sink, "peer");
    far_begin_slowly(source, sink, &o, &e);
    far_fail_device(&pair, _i, o, e);
}

int main(void)
{
    return node_main("node_reach");
}
