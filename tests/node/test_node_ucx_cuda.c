/* Chunks between GPUs of two nodes by UCX, with devices that need no GPU (fake_device.h) and the host's memory in place
 * of CUDA's: when they go that way, when not, and how that ends. */
#include "tests/node/far_harness.h"

#include "tests/fakes/nccl_calls.h"
#include "tests/port.h"
#include "transport/ucx.h"

static const enum wire wires[] = {SHM, UCX};

static void set_both(struct pair *pair, const char *gpu_wires)
{
    strcpy(pair->a->options.gpu_wires, gpu_wires);
    strcpy(pair->b->options.gpu_wires, gpu_wires);
}

static void prepare(struct pair *pair, enum wire wire, const char *gpu_wires)
{
    ucx_stand_in();
    pair_init(pair, wire);
    strcpy(pair->a->options.ucx, "tls=tcp");
    strcpy(pair->b->options.ucx, "tls=tcp");
    set_both(pair, gpu_wires);
}

static void open_with(struct pair *pair, enum wire wire, const char *gpu_wires)
{
    prepare(pair, wire, gpu_wires);
    pair_start(pair);
}

/* ---- When -------------------------------------------------------------------------------------------------------- */

START_TEST(chunks_go_by_ucx)
{
    struct pair pair;
    struct test_pool *source, *sink;
    const char *coding = far_codings[_i % COUNT(far_codings)];
    prepare(&pair, wires[_i / COUNT(far_codings)], "ucx");
    use_codebook(pair.a, "a", 0x7c);
    use_codebook(pair.b, "b", 0x7c);
    strcpy(pair.a->options.coding, coding);
    pair_start(&pair);
    far_pools(&pair, (struct geometry){.pages = 128, .layers = 3, .roles = 2, .gpu = 1}, &source, &sink);
    far_move_until(source, sink, "ucx_cuda");
    double pinned = far_bytes(source, "pinned"), ucx = far_bytes(source, "ucx");
    for (int i = 0; i < 12; i++)
        far_move(source, sink);
    ck_assert_double_eq(pinned, far_bytes(source, "pinned"));
    ck_assert_double_eq(ucx, far_bytes(source, "ucx"));
    ck_assert_double_eq(0, far_bytes(source, "peer") + far_bytes(source, "nccl"));
    if (strcmp(coding, "auto") == 0)
        ck_assert_msg(strstr(stats_text(pair.source), ": UCX between GPUs ") != NULL, "%s", stats_text(pair.source));
    ck_assert_ptr_nonnull(strstr(stats_text(pair.source), "\"wire\":\"ucx-cuda\",\"why\":\"peer: off"));
    ck_assert_ptr_nonnull(strstr(stats_text(pair.source), "\"ucx\":\"ready\""));
    far_move_until(sink, source, "ucx_cuda"); /* and back */
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}
END_TEST

START_TEST(rows_and_odd_sizes_arrive)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_with(&pair, SHM, "ucx");
    far_pools(&pair, (struct geometry){.pages = 64, .layers = 2, .rows = 5, .row_bytes = 98, .gpu = 1}, &source, &sink);
    far_move_until(source, sink, "ucx_cuda");
    far_pools(&pair, (struct geometry){.pages = 64, .row_bytes = 1001, .element = STRAIT_ELEMENT_FP8_E4M3, .gpu = 1},
              &source, &sink);
    far_move_until(source, sink, "ucx_cuda");
}
END_TEST

/* The host's transport may have a port of its own: those of GPUs are others. */
START_TEST(each_gpu_has_a_port)
{
    struct pair pair;
    struct test_pool *source, *sink;
    prepare(&pair, UCX, "ucx");
    int reserved;
    snprintf(pair.a->options.ucx, sizeof(pair.a->options.ucx), "tls=tcp port=%u", port_reserve(&reserved));
    pair_start(&pair);
    struct geometry shape = {.groups = 2, .pages = 64, .gpu = 1, .gpu_step = 1};
    source = pool_open(pair.source, shape);
    sink = pool_open(pair.sink, shape);
    far_move_until(source, sink, "ucx_cuda");
    far_move_until(sink, source, "ucx_cuda");
    close(reserved);
}
END_TEST

/* Four requests at once want more slots than there are, of the sink's to receive and of the source's to send. */
START_TEST(slots_go_round)
{
    struct pair pair;
    struct test_node *few;
    prepare(&pair, SHM, "ucx");
    few = _i == 0 ? pair.a : pair.b;
    few->options.gpu_arena_bytes = 3 * few->options.gpu_chunk_bytes;
    pair_start(&pair);
    far_slots_go_round(&pair, "ucx_cuda");
}
END_TEST

/* ---- Which ------------------------------------------------------------------------------------------------------- */

START_TEST(the_first_that_is_there_is_taken)
{
    static const struct {
        const char *list, *taken, *not_taken;
    } cases[] = {{"peer,ucx", "peer", "ucx_cuda"},
                 {"ucx,peer", "ucx_cuda", NULL},
                 {"nccl,ucx", "nccl", NULL},
                 {"ucx,nccl", "ucx_cuda", NULL}};
    struct pair pair;
    struct test_pool *source, *sink;
    fake_nccl_use();
    prepare(&pair, SHM, cases[_i].list);
    strcpy(pair.a->options.nccl, "tls=tcp");
    strcpy(pair.b->options.nccl, "tls=tcp");
    pair_start(&pair);
    far_pools(&pair, far_small, &source, &sink);
    far_move_until(source, sink, cases[_i].taken);
    if (cases[_i].not_taken != NULL)
        ck_assert_double_eq(0, far_bytes(source, cases[_i].not_taken));
    pump_for(200); /* the other one is there too by now */
    double before = far_bytes(source, cases[_i].taken), sent = stat_of(source->party, "counters.wire_bytes_sent");
    for (int i = 0; i < 3; i++)
        far_move(source, sink);
    double taken = far_bytes(source, cases[_i].taken) - before;
    ck_assert_double_eq(taken, stat_of(source->party, "counters.wire_bytes_sent") - sent);
}
END_TEST

/* A peer of NCCL alone is met by NCCL, though UCX is preferred here. */
START_TEST(what_both_have_is_taken)
{
    struct pair pair;
    struct test_pool *source, *sink;
    fake_nccl_use();
    prepare(&pair, SHM, "ucx,nccl");
    strcpy(pair.b->options.gpu_wires, "nccl");
    strcpy(pair.a->options.nccl, "tls=tcp");
    strcpy(pair.b->options.nccl, "tls=tcp");
    pair_start(&pair);
    far_pools(&pair, far_small, &source, &sink);
    far_move_until(source, sink, "nccl");
    ck_assert_double_eq(0, far_bytes(source, "ucx_cuda"));
    ck_assert_ptr_nonnull(strstr(stats_text(pair.source), "ucx-cuda: not offered by the peer"));
}
END_TEST

/* NCCL, UCX and the host are measured; the fastest is left. */
START_TEST(what_is_fastest_is_taken)
{
    struct pair pair;
    struct test_pool *source, *sink;
    fake_nccl_use();
    prepare(&pair, SHM, "auto");
    strcpy(pair.a->options.nccl, "tls=tcp");
    strcpy(pair.b->options.nccl, "tls=tcp");
    pair_start(&pair);
    far_control()->refuse_reach = 1;
    fake_nccl.delay_us = far_control()->bus_delay_us = 50000; /* more than a busy machine makes of UCX */
    far_pools(&pair, (struct geometry){.pages = 256, .layers = 3, .gpu = 1}, &source, &sink);
    far_move_until(source, sink, "pinned");
    far_move_until(source, sink, "nccl");
    far_move_until(source, sink, "ucx_cuda");
    for (int i = 0; i < 16; i++)
        far_move(source, sink);
    WAIT(stat_of(pair.source, "gauges.live_offers") == 0);
    double pinned = far_bytes(source, "pinned"), nccl = far_bytes(source, "nccl"), ucx = far_bytes(source, "ucx_cuda");
    for (int i = 0; i < 3; i++)
        far_move(source, sink);
    ck_assert_msg(far_bytes(source, "ucx_cuda") > ucx, "%s", stats_text(pair.source));
    ck_assert_double_eq(pinned + nccl, far_bytes(source, "pinned") + far_bytes(source, "nccl"));
}
END_TEST

/* ---- When not ---------------------------------------------------------------------------------------------------- */

START_TEST(either_side_can_leave_it_out)
{
    static const char *const lists[][2] = {{"ucx", "peer"}, {"peer", "ucx"}, {"pinned,ucx", "ucx"}};
    struct pair pair;
    struct test_pool *source, *sink;
    prepare(&pair, SHM, "ucx");
    strcpy(pair.a->options.gpu_wires, lists[_i][0]);
    strcpy(pair.b->options.gpu_wires, lists[_i][1]);
    pair_start(&pair);
    far_pools(&pair, far_small, &source, &sink);
    far_move_without(source, sink, "ucx_cuda");
}
END_TEST

/* As it is on every machine without a GPU: this UCX does not know CUDA's memory. */
START_TEST(what_is_missing_is_told)
{
    struct pair pair;
    struct test_pool *source, *sink;
    pair_init(&pair, SHM);
    set_both(&pair, "ucx,peer");
    pair.a->options.gpu_peer = false; /* so that there is a way to tell of, and it is not taken */
    pair_start(&pair);
    far_pools(&pair, far_small, &source, &sink);
    far_move_without(source, sink, "ucx_cuda");
    WAIT(strstr(stats_text(pair.source), "\"ucx\":\"UCX ") != NULL);
    ck_assert_msg(strstr(stats_text(pair.source), "; ucx-cuda: UCX ") != NULL, "%s", stats_text(pair.source));
    ck_assert_ptr_nonnull(strstr(stats_text(pair.source), "does not know CUDA's memory"));
}
END_TEST

/* ---- The end ----------------------------------------------------------------------------------------------------- */

START_TEST(a_peer_that_stops_fails_its_transfers)
{
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *o, *e;
    open_with(&pair, wires[_i / 2], "ucx");
    far_pools(&pair, far_large, &source, &sink);
    far_move_until(source, sink, "ucx_cuda");
    far_begin_slowly(source, sink, &o, &e);
    test_node_stop(_i % 2 == 0 ? pair.b : pair.a);
    WAIT(o->decided && e->decided);
    undefined(e);
    wait_quiet(_i % 2 == 0 ? pair.source : pair.sink);
}
END_TEST

START_TEST(a_device_that_fails_fails_what_it_does)
{
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *o, *e;
    open_with(&pair, SHM, "ucx");
    far_pools(&pair, far_large, &source, &sink);
    far_move_until(source, sink, "ucx_cuda");
    far_begin_slowly(source, sink, &o, &e);
    far_fail_device(&pair, _i, o, e);
}
END_TEST

/* In all states of a link: loading, being made, up. */
START_TEST(a_node_stops_whatever_its_links_do)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_with(&pair, SHM, "ucx");
    far_pools(&pair, (struct geometry){.pages = 64, .gpu = 1}, &source, &sink);
    far_move(source, sink);
    pump_for(_i * 3);
    test_node_stop(_i % 2 == 0 ? pair.b : pair.a);
}
END_TEST

START_TEST(pools_come_and_go)
{
    struct pair pair;
    open_with(&pair, SHM, "ucx");
    far_pools_come_and_go(&pair, "ucx_cuda");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_ucx_cuda");
    TCase *tcase = node_case(suite, "when");
    tcase_add_loop_test(tcase, chunks_go_by_ucx, 0, COUNT(far_codings) * COUNT(wires));
    tcase_add_test(tcase, rows_and_odd_sizes_arrive);
    tcase_add_test(tcase, each_gpu_has_a_port);
    tcase_add_loop_test(tcase, slots_go_round, 0, 2);
    tcase = node_case(suite, "which");
    tcase_add_loop_test(tcase, the_first_that_is_there_is_taken, 0, 4);
    tcase_add_test(tcase, what_both_have_is_taken);
    tcase_add_test(tcase, what_is_fastest_is_taken);
    tcase = node_case(suite, "when not");
    tcase_add_loop_test(tcase, either_side_can_leave_it_out, 0, 3);
    tcase_add_test(tcase, what_is_missing_is_told);
    tcase = node_case(suite, "end");
    tcase_add_loop_test(tcase, a_peer_that_stops_fails_its_transfers, 0, 4);
    tcase_add_loop_test(tcase, a_device_that_fails_fails_what_it_does, 0, 2);
    tcase_add_loop_test(tcase, a_node_stops_whatever_its_links_do, 0, 12);
    tcase_add_test(tcase, pools_come_and_go);
    return node_main(suite);
}
