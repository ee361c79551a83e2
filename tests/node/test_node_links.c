/* Chunks between GPUs of two nodes by a link of NCCL or of UCX, with devices and calls that need no GPU
 * (fakes/device.h, fakes/nccl_calls.h) and the host's memory in place of CUDA's for UCX: when they go that way, when
 * not, and how that ends. The fakes end the program when memory is touched that should not be. */
#include "tests/node/far_harness.h"

#include "tests/fakes/nccl_calls.h"
#include "tests/support.h"
#include "transport/nccl.h"
#include "transport/ucx.h"

#define CARRIER "tls=tcp"
#define SOON    CARRIER " timeout_ms=1500" /* for what hangs; a busy machine takes no other operation for so long */

#define SLOWLY_US 50000u /* more than a busy machine makes of the other way */

static const enum wire wires[] = {SHM, UCX};

static const struct link_kind {
    const char *gpu_wires, *counter, *coding; /* option, metric, and how the policy calls it */
} link_kinds[] = {{"nccl", "nccl", ": NCCL "}, {"ucx", "ucx_cuda", ": UCX between GPUs "}};
#define LINK_KINDS COUNT(link_kinds)
#define NCCL       (&link_kinds[0])
#define BY_UCX     (&link_kinds[1])

static void set_both(struct pair *pair, const char *gpu_wires, const char *nccl)
{
    for (int i = 0; i < 2; i++) {
        struct node_options *o = i == 0 ? &pair->a->options : &pair->b->options;
        snprintf(o->gpu_wires, sizeof(o->gpu_wires), "%s", gpu_wires);
        snprintf(o->nccl, sizeof(o->nccl), "%s", nccl);
        snprintf(o->ucx, sizeof(o->ucx), "tls=tcp");
    }
}

static void prepare(struct pair *pair, enum wire wire, const char *gpu_wires, const char *nccl)
{
    fake_nccl_use();
    if (strstr(gpu_wires, "ucx") != NULL)
        ucx_stand_in();
    pair_init(pair, wire);
    set_both(pair, gpu_wires, nccl);
}

static void open_with(struct pair *pair, enum wire wire, const char *gpu_wires, const char *nccl)
{
    prepare(pair, wire, gpu_wires, nccl);
    pair_start(pair);
}

/* ---- When -------------------------------------------------------------------------------------------------------- */

TEST_LOOP(chunks_go_by_the_link, LINK_KINDS *COUNT(far_codings) * COUNT(wires))
{
    struct pair pair;
    struct test_pool *source, *sink;
    const struct link_kind *kind = &link_kinds[_i % LINK_KINDS];
    const char *coding = far_codings[_i / LINK_KINDS % COUNT(far_codings)];
    prepare(&pair, wires[_i / LINK_KINDS / COUNT(far_codings)], kind->gpu_wires, CARRIER);
    use_codebook(pair.a, "a", 0x7c);
    use_codebook(pair.b, "b", 0x7c);
    strcpy(pair.a->options.coding, coding);
    pair_start(&pair);
    far_pools(&pair, (struct geometry){.pages = 128, .layers = 3, .roles = 2, .gpu = 1}, &source, &sink);
    far_move_until(source, sink, kind->counter);
    double pinned = far_bytes(source, "pinned"), ucx = far_bytes(source, "ucx");
    for (int i = 0; i < 12; i++)
        far_move(source, sink);
    ck_assert_double_eq(pinned, far_bytes(source, "pinned"));
    ck_assert_double_eq(ucx, far_bytes(source, "ucx"));
    ck_assert_double_eq(0, far_bytes(source, "peer") + far_bytes(source, kind == NCCL ? "ucx_cuda" : "nccl"));
    ck_assert_uint_eq(0, far_control()->reached);
    if (strcmp(coding, "auto") == 0)
        ck_assert_msg(strstr(stats_text(pair.source), kind->coding) != NULL, "%s", stats_text(pair.source));
    char way[64], ready[32];
    snprintf(way, sizeof(way), "\"wire\":\"%s\",\"why\":\"peer: off", kind->gpu_wires);
    snprintf(ready, sizeof(ready), "\"%s\":\"ready\"", kind->gpu_wires);
    ck_assert_ptr_nonnull(strstr(stats_text(pair.source), way));
    ck_assert_ptr_nonnull(strstr(stats_text(pair.source), ready));
    far_move_until(sink, source, kind->counter); /* and back */
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}

TEST_LOOP(rows_and_odd_sizes_arrive, LINK_KINDS)
{
    const struct link_kind *kind = &link_kinds[_i % LINK_KINDS];
    struct pair pair;
    struct test_pool *source, *sink;
    open_with(&pair, SHM, kind->gpu_wires, CARRIER);
    far_pools(&pair, (struct geometry){.pages = 64, .layers = 2, .rows = 5, .row_bytes = 98, .gpu = 1}, &source, &sink);
    far_move_until(source, sink, kind->counter);
    far_pools(&pair, (struct geometry){.pages = 64, .row_bytes = 1001, .element = STRAIT_ELEMENT_FP8_E4M3, .gpu = 1},
              &source, &sink);
    far_move_until(source, sink, kind->counter);
}

/* Pools on both devices of both sides: four links, each of two communicators at either end. */
TEST(each_two_gpus_have_a_link)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_with(&pair, SHM, "nccl", CARRIER);
    struct geometry shape = {.groups = 2, .pages = 64, .gpu = 1, .gpu_step = 1};
    source = pool_open(pair.source, shape);
    sink = pool_open(pair.sink, shape);
    far_move_until(source, sink, "nccl");
    WAIT(fake_nccl.joined == 16);
    for (int i = 0; i < 5; i++)
        far_move_until(source, sink, "nccl");
    ck_assert_uint_eq(16, fake_nccl.joined);
}

/* The host's transport may have a port of its own: those of GPUs are others. */
TEST(each_gpu_has_a_port)
{
    struct pair pair;
    struct test_pool *source, *sink;
    prepare(&pair, UCX, "ucx", CARRIER);
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

/* Four requests at once want more slots than there are, of the sink's to receive and of the source's to send. */
TEST_LOOP(slots_go_round, 2 * LINK_KINDS)
{
    const struct link_kind *kind = &link_kinds[_i % LINK_KINDS];
    struct pair pair;
    struct test_node *few;
    prepare(&pair, SHM, kind->gpu_wires, CARRIER);
    few = _i / LINK_KINDS == 0 ? pair.a : pair.b;
    few->options.gpu_arena_bytes = 3 * few->options.gpu_chunk_bytes;
    pair_start(&pair);
    far_slots_go_round(&pair, kind->counter);
}

/* ---- Which ------------------------------------------------------------------------------------------------------- */

TEST(gpus_that_reach_each_other_need_no_nccl)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_with(&pair, SHM, "peer,nccl", CARRIER);
    far_pools(&pair, far_small, &source, &sink);
    far_move_until(source, sink, "peer");
    pump_for(200);
    far_move(source, sink);
    ck_assert_double_eq(0, far_bytes(source, "nccl"));
    ck_assert_uint_eq(0, fake_nccl.joined);
}

TEST_LOOP(gpus_that_do_not_reach_each_other_take_nccl, 4)
{
#define OFF "\"wire\":\"nccl\",\"why\":\"peer: off (gpu-wires or NCCL_P2P_DISABLE)\""
    static const char *const why[] = {"\"wire\":\"nccl\",\"why\":\"peer: the devices do not reach each other\"", OFF,
                                      OFF, "\"wire\":\"nccl\",\"why\":\"peer: not offered by the peer\""};
    struct pair pair;
    struct test_pool *source, *sink;
    prepare(&pair, SHM, "peer,nccl", CARRIER);
    far_control()->refuse_reach = _i == 0;
    if (_i == 1)
        ck_assert_int_eq(0, setenv("NCCL_P2P_DISABLE", "1", 1));
    if (_i >= 2)
        strcpy((_i == 2 ? pair.a : pair.b)->options.gpu_wires, "nccl");
    pair_start(&pair);
    far_pools(&pair, far_small, &source, &sink);
    far_move_until(source, sink, "nccl");
    ck_assert_double_eq(0, far_bytes(source, "peer"));
    ck_assert_msg(strstr(stats_text(pair.source), why[_i]) != NULL, "%s", stats_text(pair.source));
    unsetenv("NCCL_P2P_DISABLE");
}

TEST(nccl_may_be_preferred)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_with(&pair, SHM, "nccl,peer", CARRIER);
    far_pools(&pair, far_small, &source, &sink);
    far_move_until(source, sink, "nccl");
    double peer = far_bytes(source, "peer");
    for (int i = 0; i < 3; i++)
        far_move(source, sink);
    ck_assert_double_eq(peer, far_bytes(source, "peer"));
}

/* The slower one of NCCL and the host is left when both have been measured. */
TEST_LOOP(what_is_faster_is_taken, 2)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_with(&pair, SHM, "auto", CARRIER);
    far_control()->refuse_reach = 1;
    if (_i == 0)
        fake_nccl.delay_us = SLOWLY_US;
    else
        far_control()->bus_delay_us = SLOWLY_US;
    far_pools(&pair, (struct geometry){.pages = 256, .layers = 3, .gpu = 1}, &source, &sink);
    far_move_until(source, sink, "pinned");
    far_move_until(source, sink, "nccl");
    for (int i = 0; i < 12; i++)
        far_move(source, sink);
    WAIT(stat_of(pair.source, "gauges.live_offers") == 0);
    double pinned = far_bytes(source, "pinned"), nccl = far_bytes(source, "nccl");
    for (int i = 0; i < 3; i++)
        far_move(source, sink);
    ck_assert_msg((far_bytes(source, "nccl") == nccl) == (_i == 0), "%s", stats_text(pair.source));
    ck_assert_msg((far_bytes(source, "pinned") == pinned) == (_i == 1), "%s", stats_text(pair.source));
    if (_i == 0)
        ck_assert_ptr_nonnull(strstr(stats_text(pair.source), "nccl: carried 0."));
}

TEST(gpus_that_reach_each_other_need_no_measuring)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_with(&pair, SHM, "auto", CARRIER);
    far_pools(&pair, far_small, &source, &sink);
    far_move_until(source, sink, "peer");
    for (int i = 0; i < 5; i++)
        far_move(source, sink);
    ck_assert_uint_eq(0, fake_nccl.joined);
}

TEST_LOOP(the_first_that_is_there_is_taken, 4)
{
    static const struct {
        const char *list, *taken, *not_taken;
    } cases[] = {{"peer,ucx", "peer", "ucx_cuda"},
                 {"ucx,peer", "ucx_cuda", NULL},
                 {"nccl,ucx", "nccl", NULL},
                 {"ucx,nccl", "ucx_cuda", NULL}};
    struct pair pair;
    struct test_pool *source, *sink;
    prepare(&pair, SHM, cases[_i].list, CARRIER);
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

/* A peer of NCCL alone is met by NCCL, though UCX is preferred here. */
TEST(what_both_have_is_taken)
{
    struct pair pair;
    struct test_pool *source, *sink;
    prepare(&pair, SHM, "ucx,nccl", CARRIER);
    strcpy(pair.b->options.gpu_wires, "nccl");
    pair_start(&pair);
    far_pools(&pair, far_small, &source, &sink);
    far_move_until(source, sink, "nccl");
    ck_assert_double_eq(0, far_bytes(source, "ucx_cuda"));
    ck_assert_ptr_nonnull(strstr(stats_text(pair.source), "ucx: not offered by the peer"));
}

/* NCCL, UCX and the host are measured; the fastest is left. */
TEST(what_is_fastest_is_taken)
{
    struct pair pair;
    struct test_pool *source, *sink;
    ucx_stand_in();
    prepare(&pair, SHM, "auto", CARRIER);
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

/* ---- When not ---------------------------------------------------------------------------------------------------- */

TEST_LOOP(either_side_can_leave_it_out, 7)
{
    static const struct {
        const struct link_kind *kind;
        const char *lists[2];
    } cases[] = {{NCCL, {"nccl", "peer"}},        {NCCL, {"peer", "nccl"}},  {NCCL, {"pinned", "pinned"}},
                 {NCCL, {"pinned,nccl", "nccl"}}, {BY_UCX, {"ucx", "peer"}}, {BY_UCX, {"peer", "ucx"}},
                 {BY_UCX, {"pinned,ucx", "ucx"}}};
    struct pair pair;
    struct test_pool *source, *sink;
    ucx_stand_in();
    prepare(&pair, SHM, "", CARRIER);
    strcpy(pair.a->options.gpu_wires, cases[_i].lists[0]);
    strcpy(pair.b->options.gpu_wires, cases[_i].lists[1]);
    pair_start(&pair);
    far_pools(&pair, far_small, &source, &sink);
    far_move_without(source, sink, cases[_i].kind->counter);
    ck_assert_uint_eq(0, fake_nccl.joined);
}

/* Each says why in the node's report. */
TEST_LOOP(what_nccl_lacks_is_reported, 4)
{
    static const struct {
        const char *options, *says;
        bool no_plugin, same_gpu, no_room;
    } cases[] = {
        {"library=/none/libnccl.so.2", "NCCL: ", .no_plugin = true}, /* no plugin, or no NCCL: as this build is */
        {"carrier=none", "no transport none in this build", false, false, false},
        {CARRIER, "both ends are on the same GPU", .same_gpu = true},
        {CARRIER, "no room for another link", .no_room = true},
    };
    struct pair pair;
    struct test_pool *source, *sink;
    prepare(&pair, SHM, "nccl", cases[_i].options);
    if (cases[_i].no_plugin)
        nccl_use_calls(NULL);
    fake_nccl.same_gpu = cases[_i].same_gpu;
    if (cases[_i].no_room)
        fake_nccl.multiprocessors = 8;
    pair_start(&pair);
    far_pools(&pair, far_small, &source, &sink);
    far_move_without(source, sink, "nccl");
    WAIT(strstr(stats_text(pair.source), cases[_i].says) != NULL);
    far_move_without(source, sink, "nccl");
}

/* As it is on every machine without a GPU: this UCX does not know CUDA's memory. */
TEST(what_ucx_lacks_is_reported)
{
    struct pair pair;
    struct test_pool *source, *sink;
    pair_init(&pair, SHM);
    set_both(&pair, "ucx,peer", CARRIER);
    strcpy(pair.a->options.gpu_wires, "ucx"); /* the peer offers a way, which is not taken */
    pair_start(&pair);
    far_pools(&pair, far_small, &source, &sink);
    far_move_without(source, sink, "ucx_cuda");
    WAIT(strstr(stats_text(pair.source), "\"ucx\":\"UCX ") != NULL);
    ck_assert_msg(strstr(stats_text(pair.source), "; ucx: UCX ") != NULL, "%s", stats_text(pair.source));
    ck_assert_ptr_nonnull(strstr(stats_text(pair.source), "does not know CUDA's memory"));
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* A transfer of which some chunks are under way. */
static void begin_slowly(const struct link_kind *kind, struct test_pool *source, struct test_pool *sink,
                         struct flow **o, struct flow **e)
{
    if (kind == BY_UCX) {
        far_begin_slowly(source, sink, o, e);
        return;
    }
    uint32_t operations = fake_nccl.operations;
    fake_nccl.delay_us = 50000; /* of some sixty operations: there is time for what the test does next */
    *o = far_offer(source);
    *e = far_expect(sink);
    flow_start(*e, source);
    WAIT(fake_nccl.operations >= operations + 4);
}

TEST_LOOP(a_peer_that_stops_fails_its_transfers, 4 * LINK_KINDS)
{
    const struct link_kind *kind = &link_kinds[_i % LINK_KINDS];
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *o, *e;
    open_with(&pair, wires[_i / LINK_KINDS / 2], kind->gpu_wires, CARRIER);
    far_pools(&pair, far_large, &source, &sink);
    far_move_until(source, sink, kind->counter);
    begin_slowly(kind, source, sink, &o, &e);
    test_node_stop(_i / LINK_KINDS % 2 == 0 ? pair.b : pair.a);
    WAIT(o->decided && e->decided);
    WAIT(fake_nccl.live == 0);
    undefined(e);
    wait_quiet(_i / LINK_KINDS % 2 == 0 ? pair.source : pair.sink);
    ck_assert_uint_eq(fake_nccl.joined, fake_nccl.aborted);
}

/* What was on the link fails, the peer stays, chunks go another way, and then by a new link. */
TEST_LOOP(a_link_that_fails_is_made_again, 3)
{
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *o, *e;
    open_with(&pair, SHM, "nccl", SOON);
    far_pools(&pair, far_large, &source, &sink);
    far_move_until(source, sink, "nccl");
    begin_slowly(NCCL, source, sink, &o, &e);
    uint32_t next = fake_nccl.operations + 3, joined = fake_nccl.joined;
    fake_nccl.fail_id = 1; /* no new link before it is seen that chunks go another way */
    if (_i == 0)
        fake_nccl.fail_operation = next;
    if (_i == 1)
        fake_nccl.late_operation = next;
    if (_i == 2)
        fake_nccl.hang_operation = next;
    ends_failed(e, STRAIT_REASON_PEER_DOWN);
    WAIT(o->decided && o->drained);
    fake_nccl.hang_operation = fake_nccl.delay_us = 0;
    undefined(e);
    far_move_until(source, sink, "pinned");
    fake_nccl.fail_id = 0;
    far_move_until(source, sink, "nccl");
    ck_assert_uint_gt(fake_nccl.joined, joined);
    ck_assert_double_eq(0, stat_of(pair.source, "counters.peers_lost"));
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}

/* The verdict comes in time, the slots when NCCL has let go of them. */
TEST(a_gpu_that_hangs_holds_up_no_verdict)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_with(&pair, SHM, "nccl", SOON);
    far_pools(&pair, far_large, &source, &sink);
    far_move_until(source, sink, "nccl");
    fake_nccl.hang_operation = fake_nccl.operations + 3;
    struct flow *o = far_offer(source);
    struct strait_page_list all = {.count = far_large.pages};
    struct flow *e = flow_expect(
        sink, (struct strait_expect_params){KEY("in time"), .lists = &all, .list_count = 1, .deadline_ms = 300});
    flow_release(o);
    o = flow_offer(source, (struct strait_offer_params){KEY("in time"), .lists = &all, .list_count = 1, .last = true});
    uint64_t began = now_ms(), late = machine_late_ms();
    flow_start(e, source);
    WAIT(e->decided);
    ck_assert_int_eq(STRAIT_REASON_TIMEOUT, e->reason);
    ck_assert_uint_lt(now_ms() - began, 800 * SLOW + machine_late_ms() - late);
    WAIT(o->decided && o->drained && e->drained);
    undefined(e);
    fake_nccl.hang_operation = 0;
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}

/* Nobody can tell what such a GPU still does: its slots stay in quarantine, and the node works on. */
TEST(a_stream_that_does_not_drain_keeps_its_slots)
{
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *o, *e;
    open_with(&pair, SHM, "nccl", SOON);
    far_pools(&pair, far_large, &source, &sink);
    far_move_until(source, sink, "nccl");
    fake_nccl.stuck = 1;
    begin_slowly(NCCL, source, sink, &o, &e);
    fake_nccl.hang_operation = fake_nccl.operations + 1;
    ends_failed(e, STRAIT_REASON_PEER_DOWN); /* the pages are nobody's: NCCL stores to slots alone */
    WAIT(o->decided);
    undefined(e);
    ck_assert_double_gt(stat_of(pair.sink, "gauges.slots_quarantined"), 0);
    fake_nccl.hang_operation = fake_nccl.delay_us = 0;
    pump_for(200);
    ck_assert_double_gt(stat_of(pair.sink, "gauges.slots_quarantined"), 0);
    struct test_pool *other_source, *other_sink;
    far_pools(&pair, (struct geometry){.pages = 64, .gpu = 1}, &other_source, &other_sink);
    far_move(other_source, other_sink);
    fake_nccl.stuck = 0;
    WAIT(o->drained);
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}

TEST_LOOP(a_device_that_fails_fails_what_it_does, 2 * LINK_KINDS)
{
    const struct link_kind *kind = &link_kinds[_i % LINK_KINDS];
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *o, *e;
    open_with(&pair, SHM, kind->gpu_wires, CARRIER);
    far_pools(&pair, far_large, &source, &sink);
    far_move_until(source, sink, kind->counter);
    begin_slowly(kind, source, sink, &o, &e);
    far_fail_device(&pair, _i / LINK_KINDS, o, e);
}

/* In all states of a link: loading, being made, up, and with NCCL that never connects. */
TEST_LOOP(a_node_stops_whatever_its_links_do, 12 * LINK_KINDS)
{
    const struct link_kind *kind = &link_kinds[_i % LINK_KINDS];
    struct pair pair;
    struct test_pool *source, *sink;
    open_with(&pair, SHM, kind->gpu_wires, CARRIER);
    const int state = _i / LINK_KINDS;
    fake_nccl.hang_join = kind == NCCL && state % 2;
    far_pools(&pair, (struct geometry){.pages = 64, .gpu = 1}, &source, &sink);
    far_move(source, sink);
    pump_for(kind == NCCL ? state / 2 * 7 : state * 3);
    test_node_stop(state % 3 == 0 ? pair.b : pair.a);
    WAIT(fake_nccl.live == 0);
}

TEST_LOOP(pools_come_and_go, LINK_KINDS)
{
    const struct link_kind *kind = &link_kinds[_i % LINK_KINDS];
    struct pair pair;
    open_with(&pair, SHM, kind->gpu_wires, CARRIER);
    far_pools_come_and_go(&pair, kind->counter);
}

int main(void)
{
    return node_main("node_links");
}
