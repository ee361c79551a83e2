/* Chunks between GPUs of two nodes: stored into the other's memory, or by a link of NCCL or of UCX, with devices and
 * calls that need no GPU (fakes/device.h, fakes/nccl_calls.h) and the host's memory in place of CUDA's for UCX. When
 * they go that way, when not, and how that ends. The fakes end the program when memory is touched that should not be.
 */
#include "tests/node/harness.h"

#include "tests/fakes/nccl_calls.h"
#ifdef STRAIT_HAVE_UCX /* it carries what goes with NCCL's chunks */
#include "transport/nccl.h"
#include "transport/ucx.h"
#endif

#define CARRIER "tls=tcp"
#define SOON    CARRIER " timeout_ms=1500" /* for what hangs; a busy machine takes no other operation for so long */

#define SLOWLY_US 50000u /* more than a busy machine makes of the other way */

enum kind {
    PEER,
#ifdef STRAIT_HAVE_UCX
    NCCL,
    BY_UCX,
#endif
    KINDS
};

static const struct {
    const char *gpu_wires, *counter, *coding; /* option, metric, and how the policy calls it */
} kinds[] = {
    {"peer", "peer", "into the peer's GPU, "}, {"nccl", "nccl", ": NCCL "}, {"ucx", "ucx_cuda", ": UCX between GPUs "}};

/* Of kinds, and of the wires that their nodes are connected by. */
static const struct {
    enum kind kind;
    enum wire wire;
} links[] = {
    {PEER, SHM},
#ifdef STRAIT_HAVE_UCX
    {NCCL, SHM}, {NCCL, UCX}, {BY_UCX, SHM}, {BY_UCX, UCX},
#endif
};

static struct pair prepare(int wire, const char *gpu_wires, const char *nccl)
{
    struct pair pair = pair_init(wire);
    fake_nccl_use();
#ifdef STRAIT_HAVE_UCX
    if (strstr(gpu_wires, "ucx") != NULL)
        ucx_stand_in();
#endif
    for (int i = 0; i < 2; i++) {
        struct node_options *o = &nodes[i].options;
        snprintf(o->gpu_wires, sizeof(o->gpu_wires), "%s", gpu_wires);
        snprintf(o->nccl, sizeof(o->nccl), "%s", nccl);
    }
    return pair;
}

static struct pair open_with(int wire, const char *gpu_wires, const char *nccl, struct geometry geometry)
{
    struct pair pair = prepare(wire, gpu_wires, nccl);
    pair_start(&pair, geometry);
    return pair;
}

static struct pair open_kind(int kind, struct geometry geometry)
{
    return open_with(SHM, kinds[kind].gpu_wires, CARRIER, geometry);
}

static void move_times(const struct pair *pair, int times)
{
    for (int i = 0; i < times; i++)
        move_all(pair->source, pair->sink);
}

static void told(const struct pair *pair, const char *text)
{
    ck_assert_msg(strstr(stats_text(pair->from), text) != NULL, "not told: %s: %s", text, stats_text(pair->from));
}

/* ---- When -------------------------------------------------------------------------------------------------------- */

TEST_LOOP(chunks_go_by_the_link, COUNT(codings) * COUNT(links))
{
    const enum kind kind = links[_i % COUNT(links)].kind;
    const char *coding = codings[_i / COUNT(links)];
    struct pair pair = prepare(links[_i % COUNT(links)].wire, kinds[kind].gpu_wires, CARRIER);
    use_codebook(pair.a, "a", 0x7c);
    use_codebook(pair.b, "b", 0x7c);
    strcpy(pair.a->options.coding, coding);
    pair_start(&pair, (struct geometry){.pages = 48, .layers = 3, .roles = 2, .gpu = 1, .sink_gpu = 2});
    move_until(pair.source, pair.sink, kinds[kind].counter);
    double pinned = wire_bytes(pair.source, "pinned"), ucx = wire_bytes(pair.source, "ucx");
    move_times(&pair, strcmp(coding, "auto") == 0 ? 12 : 3);
    ck_assert_double_eq(pinned, wire_bytes(pair.source, "pinned"));
    ck_assert_double_eq(ucx, wire_bytes(pair.source, "ucx"));
    for (int other = 0; other < KINDS; other++)
        ck_assert(other == (int)kind || wire_bytes(pair.source, kinds[other].counter) == 0);
    if (strcmp(coding, "auto") == 0)
        told(&pair, kinds[kind].coding);
    if (kind != PEER) {
        char text[64];
        snprintf(text, sizeof(text), "\"wire\":\"%s\",\"why\":\"peer: off", kinds[kind].gpu_wires);
        told(&pair, text);
        snprintf(text, sizeof(text), "\"%s\":\"ready\"", kinds[kind].gpu_wires);
        told(&pair, text);
    }
    move_until(pair.sink, pair.source, kinds[kind].counter); /* and back */
    ck_assert(kind == PEER ? fake_control()->reached >= 2 : fake_control()->reached == 0);
    pair_quiet(&pair);
}

#ifdef STRAIT_HAVE_UCX
/* By a link between hosts nothing could encrypt them. */
TEST_LOOP(encrypted_pages_go_through_the_host, KINDS)
{
    struct pair pair = prepare(UCX, kinds[_i].gpu_wires, CARRIER);
    test_node_encrypt(pair.a);
    test_node_encrypt(pair.b);
    pair_start(&pair, gpu_small);
    move_times(&pair, 4);
    ck_assert_double_eq(0, wire_bytes(pair.source, kinds[_i].counter));
    ck_assert_double_gt(wire_bytes(pair.source, "ucx"), 0);
}
#endif

TEST_LOOP(rows_and_odd_sizes_arrive, KINDS)
{
    static const struct geometry shapes[] = {
        {.pages = 64, .layers = 2, .rows = 5, .row_bytes = 98, .gpu = 1, .sink_gpu = 2},
        {.pages = 64, .row_bytes = 1001, .element = STRAIT_ELEMENT_FP8_E4M3, .gpu = 1, .sink_gpu = 2}};
    struct pair pair = open_kind(_i, shapes[0]);
    move_until(pair.source, pair.sink, kinds[_i].counter);
    pair_pools(&pair, shapes[1]);
    move_until(pair.source, pair.sink, kinds[_i].counter);
}

/* Four requests at once want more slots than there are, of the sink's to receive or of the source's to send; still,
 * none may go through the host. */
TEST_LOOP(slots_go_round, 2 * KINDS)
{
    const int kind = _i % KINDS;
    struct pair pair = prepare(SHM, kinds[kind].gpu_wires, CARRIER), pairs[4];
    struct test_node *few = _i / KINDS == 0 ? pair.b : pair.a;
    struct move moves[4];
    few->options.gpu_arena_bytes = 3 * few->options.gpu_chunk_bytes;
    pair_connect(&pair);
    for (int i = 0; i < 4; i++) {
        pairs[i] = pair;
        pair_pools(&pairs[i], (struct geometry){.pages = 256, .layers = 2, .gpu = 1, .sink_gpu = 2});
    }
    move_until(pairs[0].source, pairs[0].sink, kinds[kind].counter);
    pump_for(50);
    double before = wire_bytes(pairs[0].source, "pinned");
    for (int i = 0; i < 4; i++)
        moves[i] = move_begin(pairs[i].source, pairs[i].sink);
    for (int i = 0; i < 4; i++)
        arrives(moves[i].expectation, moves[i].offer);
    ck_assert_double_eq(before, wire_bytes(pairs[0].source, "pinned"));
    pair_quiet(&pair);
}

TEST_LOOP(pools_come_and_go, KINDS)
{
    struct geometry shape = {.pages = 64, .gpu = 1, .sink_gpu = 2};
    struct pair pair = open_kind(_i, shape);
    for (int i = 0; i < 4; i++) {
        move_until(pair.source, pair.sink, kinds[_i].counter);
        strait_pool_remove(pair.source->pool);
        WAIT(pair.source->removed);
        shape.gpu = 1 + (uint32_t)i % 2;
        pair.source = pool_open(pair.from, shape);
    }
}

/* A pool of which a part is the host's is not stored to from there. */
TEST(a_pool_of_the_host_crosses_the_host)
{
    struct pair pair = open_kind(PEER, (struct geometry){.pages = 64, .gpu = 1, .sink_gpu = 2});
    struct test_pool *host = pool_open(pair.from, (struct geometry){.pages = 64});
    move_until(pair.source, pair.sink, "peer");
    double before = wire_bytes(host, "peer");
    move_all(host, pair.sink);
    move_all(pair.sink, host);
    ck_assert_double_eq(before, wire_bytes(host, "peer"));
}

/* ---- When not ---------------------------------------------------------------------------------------------------- */

static const struct {
    enum kind kind;
    const char *lists[2];
    bool no_arena, small_chunks, disabled, no_reach, refused_arena;
} left_out[] = {
    {PEER, .lists = {"pinned", "peer"}},
    {PEER, .lists = {"peer", "pinned"}},
    {PEER, .lists = {"peer", "peer"}, .no_arena = true},
    {PEER, .lists = {"peer", "peer"}, .small_chunks = true}, /* those for the sink would be too large for the source */
    {PEER, .lists = {"peer", "peer"}, .disabled = true},
    {PEER, .lists = {"peer", "peer"}, .no_reach = true},
    {PEER, .lists = {"peer", "peer"}, .refused_arena = true},
#ifdef STRAIT_HAVE_UCX
    {NCCL, .lists = {"nccl", "peer"}},
    {NCCL, .lists = {"peer", "nccl"}},
    {NCCL, .lists = {"pinned", "pinned"}},
    {NCCL, .lists = {"pinned,nccl", "nccl"}},
    {BY_UCX, .lists = {"ucx", "peer"}},
    {BY_UCX, .lists = {"peer", "ucx"}},
    {BY_UCX, .lists = {"pinned,ucx", "ucx"}},
#endif
};

TEST_LOOP(either_side_can_leave_it_out, COUNT(left_out))
{
    struct pair pair = prepare(SHM, kinds[left_out[_i].kind].gpu_wires, CARRIER);
    for (int i = 0; i < 2; i++)
        strcpy(nodes[i].options.gpu_wires, left_out[_i].lists[i]);
    if (left_out[_i].no_arena)
        pair.b->options.gpu_arena_bytes = 0;
    if (left_out[_i].small_chunks)
        pair.a->options.gpu_chunk_bytes /= 2;
    if (left_out[_i].disabled)
        ck_assert_int_eq(0, setenv("NCCL_P2P_DISABLE", "1", 1));
    fake_control()->refuse_reach = left_out[_i].no_reach;
    fake_control()->refuse_arena = left_out[_i].refused_arena;
    pair_start(&pair, gpu_small);
    move_without(pair.source, pair.sink, kinds[left_out[_i].kind].counter);
    ck_assert_uint_eq(0, fake_nccl.joined);
    unsetenv("NCCL_P2P_DISABLE");
}

TEST(a_page_too_large_for_its_slots_crosses_the_host)
{
    struct pair pair = prepare(SHM, "peer", CARRIER);
    pair.b->options.gpu_chunk_bytes = 64u << 10;
    pair_start(&pair, (struct geometry){.pages = 16, .row_bytes = 100000, .gpu = 1, .sink_gpu = 2});
    move_without(pair.source, pair.sink, "peer");
}

/* ---- Decoders that wait for chunks ------------------------------------------------------------------------------- */

#define FLAG_US  60000000u         /* so long may a decoder wait in a test; */
#define STALL_US (1000000u * SLOW) /* for so long nothing comes */

/* Bytes of chunks are counted whichever way they are told of. */
static void same_bytes(const struct pair *pair)
{
    WAIT(stat_of(pair->from, "counters.wire_bytes_sent") == stat_of(pair->to, "counters.wire_bytes_landed"));
    ck_assert_double_eq(0, stat_of(pair->to, "counters.chunks_refused"));
}

/* The source is told DONE when it knows what it has sent, though its sink may be DONE before. */
TEST(chunks_of_another_gpu_are_decoded_by_their_flags)
{
    struct pair pair = open_kind(PEER, gpu_small);
    move_until(pair.source, pair.sink, "peer");
    fake_control()->flag_us = FLAG_US;
    const uint32_t waited = fake_control()->waited;
    move_times(&pair, 20);
    ck_assert_uint_ge(fake_control()->waited, waited + 20);
    same_bytes(&pair);
    pair_quiet(&pair);
}

/* Flags that are not seen in time leave chunks to their messages. Nor is there any waiting on a single GPU, where the
 * decoder would hold up the encoder. */
TEST_LOOP(chunks_arrive_without_flags, 2)
{
    struct geometry geometry = gpu_small;
    geometry.sink_gpu = _i == 0 ? 2 : 1;
    fake_control()->ignore_flags = 1;
    struct pair pair = open_kind(PEER, geometry);
    move_until(pair.source, pair.sink, "peer");
    move_times(&pair, 10);
    ck_assert_uint_eq(0, fake_control()->waited);
    ck_assert((fake_control()->waiting != 0) == (_i == 0));
    same_bytes(&pair);
    pair_quiet(&pair);
}

/* The sink's pages are free when the decoder has ended, not before. */
TEST_LOOP(a_request_that_ends_waits_for_its_decoders, 2)
{
    struct pair pair = open_kind(PEER, gpu_small);
    move_until(pair.source, pair.sink, "peer");
    fake_control()->flag_us = FLAG_US;
    fake_control()->stall_us[0] = STALL_US; /* of the source's */
    const uint32_t waiting = fake_control()->waiting;
    struct move move = move_begin(pair.source, pair.sink);
    WAIT(fake_control()->waiting > waiting);
    strait_abort(_i == 0 ? move.expectation->transfer : move.offer->transfer);
    WAIT(move.expectation->decided);
    ck_assert(!move.expectation->drained);
    fake_control()->flag_us = 1;
    WAIT(move.expectation->drained && move.offer->decided);
    undefined(move.expectation);
    wait_quiet(pair.to);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* A move of which some chunks are under way. */
static struct move begin_slowly(int kind, const struct pair *pair)
{
    if (strcmp(kinds[kind].gpu_wires, "nccl") != 0)
        return move_slowly(pair);
    uint32_t operations = fake_nccl.operations;
    fake_nccl.delay_us = SLOWLY_US; /* of some sixty operations: there is time for what the test does next */
    struct move move = move_begin(pair->source, pair->sink);
    WAIT(fake_nccl.operations >= operations + 4);
    return move;
}

TEST_LOOP(a_peer_that_stops_fails_its_transfers, 2 * COUNT(links))
{
    const int kind = links[_i / 2].kind;
    struct pair pair = open_with(links[_i / 2].wire, kinds[kind].gpu_wires, CARRIER, gpu_large);
    move_until(pair.source, pair.sink, kinds[kind].counter);
    WAIT(kind != PEER || fake_control()->reached >= 2);
    struct move move = begin_slowly(kind, &pair);
    test_node_stop(_i % 2 == 0 ? pair.b : pair.a);
    WAIT(move.offer->decided && move.expectation->decided);
    WAIT(fake_control()->reached == 0 && fake_nccl.live == 0);
    undefined(move.expectation);
    wait_quiet(_i % 2 == 0 ? pair.from : pair.to);
    ck_assert_uint_eq(fake_nccl.joined, fake_nccl.aborted);
}

TEST_LOOP(a_device_that_fails_fails_what_it_does, 2 * KINDS)
{
    const int kind = _i / 2;
    struct pair pair = open_kind(kind, gpu_large);
    move_until(pair.source, pair.sink, kinds[kind].counter);
    fail_device(&pair, _i % 2, begin_slowly(kind, &pair));
}

#ifdef STRAIT_HAVE_UCX
/* In all states of a link: loading, being made, up, and with NCCL that never connects. */
TEST_LOOP(a_node_stops_whatever_its_links_do, 12 * (KINDS - NCCL))
{
    const int kind = NCCL + _i / 12, state = _i % 12;
    struct pair pair = prepare(SHM, kinds[kind].gpu_wires, CARRIER);
    fake_nccl.hang_join = kind == NCCL && state % 2;
    pair_start(&pair, (struct geometry){.pages = 64, .gpu = 1, .sink_gpu = 2});
    move_all(pair.source, pair.sink);
    pump_for(kind == NCCL ? state / 2 * 7 : state * 3);
    test_node_stop(state % 3 == 0 ? pair.b : pair.a);
    WAIT(fake_nccl.live == 0);
}

/* ---- NCCL and UCX: links of their own ---------------------------------------------------------------------------- */

TEST(only_daemons_that_share_memory_store_into_each_others)
{
    struct pair pair = open_with(UCX, "peer", CARRIER, (struct geometry){.pages = 64, .gpu = 1});
    move_all(pair.source, pair.sink);
    pump_for(50);
    move_all(pair.source, pair.sink);
    ck_assert_double_eq(0, wire_bytes(pair.source, "peer"));
    ck_assert_uint_eq(0, fake_control()->reached);
}

/* Pools on both devices of both sides: four links, each of two communicators at either end. */
TEST(each_two_gpus_have_a_link)
{
    struct pair pair = open_kind(NCCL, (struct geometry){.groups = 2, .pages = 64, .gpu = 1, .gpu_step = 1});
    move_until(pair.source, pair.sink, "nccl");
    WAIT(fake_nccl.joined == 16);
    for (int i = 0; i < 5; i++)
        move_until(pair.source, pair.sink, "nccl");
    ck_assert_uint_eq(16, fake_nccl.joined);
}

/* The host's transport may have a port of its own: those of GPUs are others. */
TEST(each_gpu_has_a_port)
{
    struct pair pair = prepare(UCX, "ucx", CARRIER);
    int reserved;
    snprintf(pair.a->options.ucx, sizeof(pair.a->options.ucx), "tls=tcp port=%u", port_reserve(&reserved));
    pair_start(&pair, (struct geometry){.groups = 2, .pages = 64, .gpu = 1, .gpu_step = 1});
    move_until(pair.source, pair.sink, "ucx_cuda");
    move_until(pair.sink, pair.source, "ucx_cuda");
    close(reserved);
}

/* It has ports: nobody reaches them before there is a peer that has proved itself. */
TEST(ucx_between_gpus_is_made_for_the_first_peer)
{
    struct pair pair = open_with(SHM, "ucx", CARRIER, gpu_small);
    WAIT(strstr(stats_text(pair.from), "\"ucx\":\"made for the first peer\"") != NULL);
    pump_for(50);
    ck_assert_ptr_nonnull(strstr(stats_text(pair.from), "\"ucx\":\"made for the first peer\""));
    move_until(pair.source, pair.sink, "ucx_cuda");
    ck_assert_ptr_nonnull(strstr(stats_text(pair.from), "\"ucx\":\"ready\""));
}

TEST_LOOP(the_first_that_is_there_is_taken, 7)
{
    static const struct {
        const char *list, *taken, *not_taken;
    } cases[] = {{"peer,ucx", "peer", "ucx_cuda"}, {"ucx,peer", "ucx_cuda", NULL}, {"nccl,ucx", "nccl", NULL},
                 {"ucx,nccl", "ucx_cuda", NULL},   {"peer,nccl", "peer", "nccl"},  {"nccl,peer", "nccl", NULL},
                 {"auto", "peer", "nccl"}}; /* those that reach each other need no measuring */
    struct pair pair = open_with(SHM, cases[_i].list, CARRIER, gpu_small);
    move_until(pair.source, pair.sink, cases[_i].taken);
    pump_for(200); /* the other one is there too by now */
    double before = wire_bytes(pair.source, cases[_i].taken), sent = stat_of(pair.from, "counters.wire_bytes_sent");
    move_times(&pair, 5);
    double taken = wire_bytes(pair.source, cases[_i].taken) - before;
    ck_assert_double_eq(taken, stat_of(pair.from, "counters.wire_bytes_sent") - sent);
    if (cases[_i].not_taken != NULL)
        ck_assert_double_eq(0, wire_bytes(pair.source, cases[_i].not_taken));
    ck_assert(strcmp(cases[_i].taken, "peer") != 0 || fake_nccl.joined == 0);
}

static const struct {
    const char *lists[2];
    bool no_reach, disabled;
    const char *not_taken, *why;
} next_best[] = {
#define OFF "\"wire\":\"nccl\",\"why\":\"peer: off (gpu-wires or NCCL_P2P_DISABLE)\""
    {{"peer,nccl", "peer,nccl"}, true, false, "peer", "\"why\":\"peer: the devices do not reach each other\""},
    {{"peer,nccl", "peer,nccl"}, false, true, "peer", OFF},
    {{"nccl", "peer,nccl"}, false, false, "peer", OFF},
    {{"peer,nccl", "nccl"}, false, false, "peer", "\"wire\":\"nccl\",\"why\":\"peer: not offered by the peer\""},
    {{"ucx,nccl", "nccl"}, false, false, "ucx_cuda", "ucx: not offered by the peer"},
};

/* What is preferred here, but cannot be, is passed over: NCCL is taken. */
TEST_LOOP(what_both_have_is_taken, COUNT(next_best))
{
    struct pair pair = prepare(SHM, next_best[_i].lists[0], CARRIER);
    strcpy(pair.b->options.gpu_wires, next_best[_i].lists[1]);
    fake_control()->refuse_reach = next_best[_i].no_reach;
    if (next_best[_i].disabled)
        ck_assert_int_eq(0, setenv("NCCL_P2P_DISABLE", "1", 1));
    pair_start(&pair, gpu_small);
    move_until(pair.source, pair.sink, "nccl");
    ck_assert_double_eq(0, wire_bytes(pair.source, next_best[_i].not_taken));
    told(&pair, next_best[_i].why);
    unsetenv("NCCL_P2P_DISABLE");
}

/* The host, NCCL and UCX, if it is there, are measured; the fastest is left. */
TEST_LOOP(what_is_fastest_is_taken, 3)
{
    static const char *const ways[] = {"pinned", "nccl", "ucx_cuda"};
    const int taken = _i;
    const uint32_t slowly_us = SANITIZED ? 3 * SLOWLY_US : SLOWLY_US;
    double before[3];
    struct pair pair = prepare(SHM, "auto", CARRIER);
    if (taken == 2)
        ucx_stand_in();
    pair_connect(&pair);
    fake_control()->refuse_reach = 1;
    fake_nccl.delay_us = taken != 1 ? slowly_us : 0;
    fake_control()->bus_delay_us = taken != 0 ? slowly_us : 0;
    pair_pools(&pair, (struct geometry){.pages = 512, .layers = 3, .gpu = 1, .sink_gpu = 2});
    for (int i = 0; i < (taken == 2 ? 3 : 2); i++)
        move_until(pair.source, pair.sink, ways[i]);
    move_times(&pair, taken == 2 ? 16 : 12);
    WAIT(stat_of(pair.from, "gauges.live_offers") == 0);
    for (int i = 0; i < 3; i++)
        before[i] = wire_bytes(pair.source, ways[i]);
    move_times(&pair, 3);
    for (int i = 0; i < 3; i++)
        ck_assert_msg((wire_bytes(pair.source, ways[i]) > before[i]) == (i == taken), "%s: %.3000s", ways[i],
                      stats_text(pair.from));
    if (taken == 0)
        told(&pair, "nccl: carried 0.");
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
    struct pair pair = prepare(SHM, "nccl", cases[_i].options);
    if (cases[_i].no_plugin)
        nccl_use_calls(NULL);
    fake_nccl.same_gpu = cases[_i].same_gpu;
    if (cases[_i].no_room)
        fake_nccl.multiprocessors = 8;
    pair_start(&pair, gpu_small);
    move_without(pair.source, pair.sink, "nccl");
    WAIT(strstr(stats_text(pair.from), cases[_i].says) != NULL);
    move_without(pair.source, pair.sink, "nccl");
}

/* As it is on every machine without a GPU: this UCX does not know CUDA's memory. */
TEST(what_ucx_lacks_is_reported)
{
    struct pair pair = prepare(SHM, "peer", CARRIER);
    strcpy(pair.a->options.gpu_wires, "ucx"); /* the peer offers a way, which is not taken */
    strcpy(pair.b->options.gpu_wires, "ucx,peer");
    pair_start(&pair, gpu_small);
    move_without(pair.source, pair.sink, "ucx_cuda");
    WAIT(strstr(stats_text(pair.from), "\"ucx\":\"UCX ") != NULL);
    told(&pair, "; ucx: UCX ");
    told(&pair, "does not know CUDA's memory");
}

/* ---- NCCL that fails or hangs ------------------------------------------------------------------------------------ */

/* What was on the link fails, the peer stays, chunks go another way, and then by a new link. */
TEST_LOOP(a_link_that_fails_is_made_again, 3)
{
    struct pair pair = open_with(SHM, "nccl", SOON, gpu_large);
    move_until(pair.source, pair.sink, "nccl");
    struct move move = begin_slowly(NCCL, &pair);
    uint32_t next = fake_nccl.operations + 3, joined = fake_nccl.joined;
    fake_nccl.fail_id = 1; /* no new link before it is seen that chunks go another way */
    if (_i == 0)
        fake_nccl.fail_operation = next;
    if (_i == 1)
        fake_nccl.late_operation = next;
    if (_i == 2)
        fake_nccl.hang_operation = next;
    ends_failed(move.expectation, STRAIT_REASON_PEER_DOWN);
    WAIT(move.offer->decided && move.offer->drained);
    fake_nccl.hang_operation = fake_nccl.delay_us = 0;
    undefined(move.expectation);
    move_until(pair.source, pair.sink, "pinned");
    fake_nccl.fail_id = 0;
    move_until(pair.source, pair.sink, "nccl");
    ck_assert_uint_gt(fake_nccl.joined, joined);
    ck_assert_double_eq(0, stat_of(pair.from, "counters.peers_lost"));
    pair_quiet(&pair);
}

/* The verdict comes in time, the slots when NCCL has let go of them. */
TEST(a_gpu_that_hangs_holds_up_no_verdict)
{
    struct pair pair = open_with(SHM, "nccl", SOON, gpu_large);
    move_until(pair.source, pair.sink, "nccl");
    fake_nccl.hang_operation = fake_nccl.operations + 3;
    struct flow *e = expect_all(pair.sink, "in time", 300), *o = offer_all(pair.source, "in time");
    uint64_t began = wait_clock();
    flow_start(e, pair.source);
    WAIT(e->decided);
    ck_assert_int_eq(STRAIT_REASON_TIMEOUT, e->reason);
    ck_assert_uint_lt(ms_since(began), 800 * SLOW);
    ends(e, o);
    undefined(e);
    fake_nccl.hang_operation = 0;
    pair_quiet(&pair);
}

/* Nobody can tell what such a GPU still does: its slots stay in quarantine, and the node works on. */
TEST(a_stream_that_does_not_drain_keeps_its_slots)
{
    struct pair pair = open_with(SHM, "nccl", SOON, gpu_large), other = pair;
    move_until(pair.source, pair.sink, "nccl");
    fake_nccl.stuck = 1;
    struct move move = begin_slowly(NCCL, &pair);
    fake_nccl.hang_operation = fake_nccl.operations + 1;
    ends_failed(move.expectation, STRAIT_REASON_PEER_DOWN); /* the pages are nobody's: NCCL stores to slots alone */
    WAIT(move.offer->decided);
    undefined(move.expectation);
    ck_assert_double_gt(stat_of(pair.to, "gauges.slots_quarantined"), 0);
    fake_nccl.hang_operation = fake_nccl.delay_us = 0;
    pump_for(200);
    ck_assert_double_gt(stat_of(pair.to, "gauges.slots_quarantined"), 0);
    pair_pools(&other, (struct geometry){.pages = 64, .gpu = 1, .sink_gpu = 2});
    move_all(other.source, other.sink);
    fake_nccl.stuck = 0;
    WAIT(move.offer->drained);
    pair_quiet(&pair);
}
#endif

int main(void)
{
    return node_main("node_links");
}
