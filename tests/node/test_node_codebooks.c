/* Nodes with different codebook sets: each fetches the other's, so that both send coded chunks; sets that are changed
 * on one node after the other while transfers run; and peers that send anything else. */
#include "tests/node/harness.h"
#include "tests/node/rogue.h"

#include <cjson/cJSON.h>

#include "kernels/chunk.h"

static const char tiered[] = "tiered: pinned by the option coding";

/* Of the peers of this party's node that are up: how many there are, or (a field) of how many it is true. */
static int peers_with(struct party *party, const char *field)
{
    cJSON *root = cJSON_Parse(stats_text(party)), *peer;
    int count = 0;
    cJSON_ArrayForEach(peer, cJSON_GetObjectItem(root, "peers"))
    {
        const char *state = cJSON_GetStringValue(cJSON_GetObjectItem(peer, "state"));
        count += state != NULL && strcmp(state, "up") == 0 &&
                 (field == NULL || cJSON_IsTrue(cJSON_GetObjectItem(peer, field)));
    }
    cJSON_Delete(root);
    return count;
}

/* Every peer decodes by this node's set. */
static bool is_known(struct party *party)
{
    const int up = peers_with(party, NULL);
    return up > 0 && peers_with(party, "codebook_known") == up;
}

/* The latest reason of a choice of the party's node, of whichever peer. */
static bool sends(struct party *party, const char *reason)
{
    char text[256];
    snprintf(text, sizeof(text), "\"coding\":\"%s\"", reason);
    return strstr(stats_text(party), text) != NULL;
}

static void give_set(struct test_node *node, uint8_t first)
{
    const char *name = strrchr(node->options.socket, '/') + 1;
    use_codebook(node, name, first);
    snprintf(node->options.coding, sizeof(node->options.coding), "tiered");
}

/* Of all its pages. */
static double bytes_of(const struct test_pool *pool)
{
    const struct geometry *g = &pool->geometry;
    return (double)g->pages * (g->layers != 0 ? g->layers : 1) * 4096;
}

static double without_tables(struct party *party)
{
    return stat_of(party, "counters.chunks_sent_raw") + stat_of(party, "counters.chunks_sent_base");
}

/* Pages of one pool arrive in the other, all of them coded by tables. */
static void moves_coded(struct test_pool *source, struct test_pool *sink)
{
    struct party *party = source->party;
    const double raw = stat_of(party, "counters.raw_bytes_sent"), wire = stat_of(party, "counters.wire_bytes_sent");
    const double chunks = without_tables(party);
    move_all(source, sink);
    WAIT(stat_of(party, "counters.raw_bytes_sent") >= raw + bytes_of(source));
    const double sent = stat_of(party, "counters.wire_bytes_sent") - wire;
    ck_assert_double_lt(sent, (source->geometry.element == STRAIT_ELEMENT_BF16 ? 0.8 : 0.9) * bytes_of(source));
    ck_assert_double_eq(chunks, without_tables(party));
}

static void moves_without_tables(struct test_pool *source, struct test_pool *sink)
{
    struct party *party = source->party;
    const double chunks = stat_of(party, "counters.chunks_sent_tiered");
    move_all(source, sink);
    ck_assert_double_eq(chunks, stat_of(party, "counters.chunks_sent_tiered"));
}

static void nothing_failed(struct party *party)
{
    ck_assert_double_eq(0, stat_of(party, "counters.codebook_fetches_failed"));
    ck_assert_double_eq(0, stat_of(party, "counters.peer_errors"));
    ck_assert_double_eq(0, stat_of(party, "source_failed.codec"));
    ck_assert_double_eq(0, stat_of(party, "sink_failed.codec"));
}

TEST_CASE(node_codebooks);

/* ---- Two nodes --------------------------------------------------------------------------------------------------- */

static const struct {
    int wire;
    bool secret;
} ways[] = {{SHM, false}, {SHM, true}, {TCP, false}, {TCP, true}};

static struct pair pair_of_sets(int way, int set, int set_there)
{
    struct pair pair = pair_init(ways[way].wire);
    for (int i = 0; i < 2; i++)
        if (ways[way].secret)
            test_node_encrypt(&nodes[i]);
    if (set >= 0)
        give_set(pair.a, (uint8_t)set);
    if (set_there >= 0)
        give_set(pair.b, (uint8_t)set_there);
    return pair;
}

TEST_LOOP(two_nodes_with_different_sets_code_in_both_directions, COUNT(ways))
{
    struct pair pair = pair_of_sets(_i, 0x7c, 0x7b);
    pair_start(&pair, (struct geometry){.pages = 32, .layers = 2});
    ck_assert_uint_eq(STRAIT_MISMATCH_CODEBOOK, strait_peer_check(pair.sink->pool, peer_of(pair.to, pair.source)));
    move_all(pair.source, pair.sink);
    WAIT(is_known(pair.from) && is_known(pair.to));
    moves_coded(pair.source, pair.sink);
    moves_coded(pair.sink, pair.source);
    WAIT(is_known(pair.to)); /* by the second connection too, if there is one */
    for (int i = 0; i < 2; i++) {
        struct party *party = i == 0 ? pair.from : pair.to;
        ck_assert_double_eq(1, stat_of(party, "counters.codebooks_fetched"));
        ck_assert_int_eq(0, peers_with(party, "codebook_matches"));
        ck_assert_int_eq(peers_with(party, NULL), peers_with(party, "codebook_fetched"));
        nothing_failed(party);
    }
    pair_quiet(&pair);
}

TEST_LOOP(a_node_without_a_set_decodes_by_its_peers, COUNT(ways))
{
    struct pair pair = pair_of_sets(_i, 0x7c, -1);
    strcpy(pair.b->options.coding, "tiered");
    pair_start(&pair, (struct geometry){.pages = 32});
    move_all(pair.source, pair.sink);
    WAIT(is_known(pair.from));
    moves_coded(pair.source, pair.sink);
    moves_without_tables(pair.sink, pair.source);
    ck_assert(sends(pair.to, "base: pinned by the option coding; no codebook set is loaded"));
    ck_assert_double_eq(0, stat_of(pair.from, "counters.codebooks_fetched"));
    nothing_failed(pair.to);
}

/* Several parts. */
TEST(a_large_set_is_fetched)
{
    enum { TABLES = 4096 };
    struct pair pair = pair_of_sets(3, 0x7c, 0x7b);
    uint8_t(*rankings)[256] = keep(TABLES * sizeof(*rankings));
    struct strait_codebook *set;
    for (unsigned i = 0; i < TABLES * 256; i++)
        rankings[i / 256][i % 256] = (uint8_t)(0x7c + i / 256 + i);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])rankings, NULL, TABLES, &set));
    const size_t size = strait_codebook_serialized_size(set);
    ck_assert_uint_gt(size, 4 * MESSAGE_SET_PART_MAX);
    ck_assert_uint_le(size, MESSAGE_SET_BYTES_MAX);
    void *bytes = keep(size);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_serialize(set, bytes, size));
    strait_codebook_destroy(set);
    FILE *file = fopen(pair.a->options.codebook, "wb");
    ck_assert_uint_eq(size, fwrite(bytes, 1, size, file));
    fclose(file);
    pair_start(&pair, (struct geometry){.pages = 32});
    move_all(pair.source, pair.sink);
    WAIT(is_known(pair.from));
    moves_coded(pair.source, pair.sink);
    nothing_failed(pair.to);
}

/* It is kept when the peer goes, and known at once when it is back. */
TEST(a_peer_that_comes_back_is_known)
{
    struct pair pair = pair_of_sets(2, 0x7c, 0x7b);
    pair_start(&pair, (struct geometry){.pages = 32});
    move_all(pair.source, pair.sink);
    WAIT(is_known(pair.from));
    test_node_stop(pair.a);
    WAIT(peers_with(pair.to, NULL) == 0);
    test_node_start(pair.a);
    WAIT(pair.from->connects == 2);
    struct test_pool *again = pool_open(pair.from, (struct geometry){.pages = 32});
    pool_fill(again, 2);
    move_all(again, pair.sink);
    WAIT(is_known(pair.from));
    moves_coded(again, pair.sink);
    ck_assert_double_eq(1, stat_of(pair.to, "counters.codebooks_fetched"));
}

/* The fake devices decode as GPUs do: by the tables of one set. */
TEST_LOOP(gpus_get_pages_of_nodes_with_another_set_without_tables, 2)
{
    struct pair pair = pair_of_sets(_i == 0 ? 0 : 2, 0x7c, 0x7b);
    pair_start(&pair, (struct geometry){.pages = 32, .gpu = 1, .sink_gpu = 2});
    struct test_pool *host = pool_open(pair.to, (struct geometry){.pages = 32});
    move_all(pair.source, pair.sink);
    WAIT(is_known(pair.from) && is_known(pair.to));
    for (int i = 0; i < 3; i++)
        moves_without_tables(pair.source, pair.sink);
    ck_assert(sends(pair.from, "base: pinned by the option coding; GPUs of the peer have another codebook set"));
    moves_coded(pair.source, host); /* a GPU encodes what a processor decodes */
    moves_coded(host, pool_open(pair.from, (struct geometry){.pages = 32}));
    nothing_failed(pair.to);
    pair_quiet(&pair);
}

/* ---- Changes ----------------------------------------------------------------------------------------------------- */

/* Requests that run one into the other while `node` reloads; all arrive. */
static void move_during_reload(struct test_pool *source, struct test_pool *sink, struct test_node *node)
{
    static uint32_t number;
    struct flow *offers[12], *pulls[12];
    for (int i = 0; i < COUNT(offers); i++) {
        struct strait_page_list list = {.count = 4, .first_id = (uint32_t)i * 4};
        offers[i] = OFFER(source, name_of(++number), .lists = &list, .list_count = 1, .last = true);
        pulls[i] = PULL(sink, offers[i], .lists = &list, .list_count = 1);
        if (i == COUNT(offers) / 2)
            test_node_reload(node);
        else
            pump(0);
    }
    for (int i = 0; i < COUNT(offers); i++) {
        ends_done(pulls[i]);
        ends_done(offers[i]);
        landed(pulls[i], offers[i]);
        flow_release(pulls[i]);
        flow_release(offers[i]);
    }
    ck_assert(pool_as_imagined(sink) && pool_as_imagined(source));
}

static bool sends_now(struct pair *pair, const char *reason)
{
    move_all(pair->source, pair->sink);
    return sends(pair->from, reason);
}

/* Also when sets follow one another so fast that not all of them are fetched: chunks are raw then, and none is wrong.
 * The first two rank none of the values. */
TEST_LOOP(sets_are_changed_on_one_node_after_the_other_and_nothing_fails, WIRES - 1)
{
    struct pair pair = pair_coded(SHM + _i, "tiered");
    pair_start(&pair, (struct geometry){.pages = 48, .layers = 2});
    ck_assert(sends_now(&pair, tiered));
    for (uint8_t round = 1; round <= 4; round++) {
        const uint8_t first = round <= 2 ? 0x10 * round : 0x7b + round % 2;
        struct test_node *one = round % 2 == 0 ? pair.a : pair.b, *other = one == pair.a ? pair.b : pair.a;
        give_set(one, first);
        move_during_reload(pair.source, pair.sink, one);
        if (round <= 2) /* a node keeps three sets of a peer */
            WAIT(sends_now(&pair, tiered));
        give_set(other, first);
        move_during_reload(pair.source, pair.sink, other);
        WAIT(sends_now(&pair, tiered));
    }
    /* Clients have heard of it: what they export from now on names the new set. */
    WAIT((pump(1), strait_peer_check(pair.sink->pool, peer_of(pair.to, pair.source)) == 0));
    nothing_failed(pair.from);
    nothing_failed(pair.to);
    pair_quiet(&pair);
}

enum { CLUSTER = 3 };

/* Every node's pages go to every other's, all coded. */
static void cluster_moves(struct test_pool *const *sources, struct test_pool *const *sinks)
{
    for (int from = 0; from < CLUSTER; from++)
        for (int to = 0; to < CLUSTER; to++)
            if (from != to) {
                move_all(sources[from], sinks[to]);
                WAIT(is_known(sources[from]->party));
                moves_coded(sources[from], sinks[to]);
            }
}

/* As operations.md says it: the file on one node after the other, with a SIGHUP each. */
TEST(a_cluster_gets_another_set_and_stays_coded)
{
    struct test_pool *sources[CLUSTER], *sinks[CLUSTER];
    for (int i = 0; i < CLUSTER; i++) {
        const char name[2] = {(char)('a' + i), '\0'};
        test_node_init(&nodes[i], name, "tcp");
        test_node_encrypt(&nodes[i]);
        give_set(&nodes[i], 0x7c);
        test_node_start(&nodes[i]);
        struct party *party = party_open(&nodes[i]);
        sources[i] = pool_open(party, (struct geometry){.pages = 48});
        sinks[i] = pool_open(party, (struct geometry){.pages = 48});
        pool_fill(sources[i], (uint64_t)i);
    }
    cluster_moves(sources, sinks);
    for (int i = 0; i < CLUSTER; i++) {
        give_set(&nodes[i], 0x7b);
        move_during_reload(sources[i], sinks[(i + 1) % CLUSTER], &nodes[i]);
        cluster_moves(sources, sinks);
    }
    for (int i = 0; i < CLUSTER; i++)
        nothing_failed(sources[i]->party);
    /* The first one gets the new set from its file, and the others from it; all know the one before. */
    ck_assert_double_eq(0, stat_of(sources[0]->party, "counters.codebooks_fetched"));
    ck_assert_double_eq(1, stat_of(sources[1]->party, "counters.codebooks_fetched"));
    ck_assert_double_eq(1, stat_of(sources[2]->party, "counters.codebooks_fetched"));
}

TEST_CASE(node_codebooks_rogue);

/* ---- A rogue with a set of its own ------------------------------------------------------------------------------- */

static struct scene {
    struct pair pair; /* which must not be affected */
    struct rogue rogue;
    struct strait_codebook *set; /* the rogue's */
    uint8_t bytes[1024];         /* of it */
    uint32_t size;
} s;

static struct strait_codebook *set_of(uint8_t first)
{
    uint8_t ranking[1][256];
    struct strait_codebook *set;
    for (unsigned i = 0; i < 256; i++)
        ranking[0][i] = (uint8_t)(first + i);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &set));
    return set;
}

/* `codebooks`, `block_modes`: as a daemon of this release. */
static void scene_of(bool codebooks, uint32_t block_modes, enum strait_element element)
{
    s.pair = pair_of_sets(0, 0x7c, 0x7c);
    pair_start(&s.pair, (struct geometry){.pages = 16, .element = element});
    move_all(s.pair.source, s.pair.sink);
    rogue_init(&s.rogue, 4096);
    s.set = set_of(0x33);
    s.size = (uint32_t)strait_codebook_serialized_size(s.set);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_serialize(s.set, s.bytes, sizeof(s.bytes)));
    s.rogue.codebook = strait_codebook_id(s.set);
    s.rogue.codebooks = codebooks;
    s.rogue.block_modes = block_modes;
    rogue_meet(&s.rogue, s.pair.a);
}

static void scene_begin(bool codebooks)
{
    scene_of(codebooks, CHUNK_BLOCK_MODES, STRAIT_ELEMENT_BF16);
}

static double failed(void)
{
    return stat_of(s.pair.from, "counters.codebook_fetches_failed");
}

static double fetched(void)
{
    return stat_of(s.pair.from, "counters.codebooks_fetched");
}

static void scene_end(void)
{
    if (s.pair.source->geometry.element == STRAIT_ELEMENT_FP8_E4M3)
        move_all(s.pair.source, s.pair.sink); /* raw */
    else
        moves_coded(s.pair.source, s.pair.sink);
    rogue_leave(&s.rogue);
    pair_quiet(&s.pair);
    ck_assert_uint_eq(0, s.pair.from->disconnects);
    rogue_fini(&s.rogue);
    strait_codebook_destroy(s.set);
}

static void asked(uint32_t times)
{
    ROGUE_WAIT(&s.rogue, s.rogue.heard.ask_count == times);
    ck_assert_uint_eq(0, s.rogue.heard.ask.offset);
}

static void rogue_run(int ms)
{
    for (uint64_t end = now_ms() + (uint64_t)ms; now_ms() < end;) {
        rogue_turn(&s.rogue);
        pump(1);
    }
}

static void say_part(const uint8_t *id, uint32_t size, const void *bytes, uint32_t count)
{
    const struct message part = {
        .type = MESSAGE_CODEBOOK_PART,
        .codebook_part = {.id = view_of(id, CODEBOOK_ID_BYTES), .size = size, .bytes = view_of(bytes, count)}};
    rogue_say(&s.rogue, &part);
}

static void say_set(const struct strait_codebook *set)
{
    const struct message codebook = {.type = MESSAGE_CODEBOOK,
                                     .codebook.id = view_of(strait_codebook_id(set), CODEBOOK_ID_BYTES)};
    rogue_say(&s.rogue, &codebook);
}

/* Without it the tests below would show nothing. */
TEST(an_honest_set_is_taken)
{
    scene_begin(true);
    asked(1);
    say_part(s.rogue.codebook, s.size, s.bytes, s.size);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.known_count == 1);
    ck_assert_mem_eq(s.rogue.codebook, s.rogue.heard.known, CODEBOOK_ID_BYTES);
    ck_assert_double_eq(1, fetched());
    scene_end();
}

static uint8_t garbage[MESSAGE_SET_PART_MAX];

static const struct {
    const char *what;
    enum { ANOTHER, GARBAGE, CHANGED, CUT, OTHER_ID, TOO_LARGE, NO_BYTES } kind;
} wrong[] = {
    {"a set, but another one", ANOTHER},   {"random bytes", GARBAGE},
    {"a byte of it was changed", CHANGED}, {"a part of it", CUT},
    {"a part of another set", OTHER_ID},   {"more than is taken", TOO_LARGE},
    {"nothing of it", NO_BYTES},
};

static void say_wrong(int i)
{
    struct strait_codebook *another = set_of(0x34);
    uint8_t bytes[sizeof(s.bytes)];
    struct rng rng = rng_init(7);
    rng_fill(&rng, garbage, sizeof(garbage));
    memcpy(bytes, s.bytes, sizeof(bytes));
    switch (wrong[i].kind) {
    case ANOTHER:
        ck_assert_int_eq(STRAIT_OK, strait_codebook_serialize(another, bytes, sizeof(bytes)));
        say_part(s.rogue.codebook, s.size, bytes, s.size);
        break;
    case GARBAGE:
        say_part(s.rogue.codebook, 1u << 20, garbage, sizeof(garbage));
        ROGUE_WAIT(&s.rogue, s.rogue.heard.ask_count == 2);
        say_part(s.rogue.codebook, 1u << 20, garbage, sizeof(garbage)); /* not the part that was asked for */
        break;
    case CHANGED:
        bytes[100] ^= 1;
        say_part(s.rogue.codebook, s.size, bytes, s.size);
        break;
    case CUT:
        say_part(s.rogue.codebook, s.size, bytes, s.size - 1);
        break;
    case OTHER_ID:
        say_part(strait_codebook_id(another), s.size, bytes, s.size);
        break;
    case TOO_LARGE:
        say_part(s.rogue.codebook, MESSAGE_SET_BYTES_MAX + 1, NULL, 0);
        break;
    case NO_BYTES:
        say_part(s.rogue.codebook, s.size, NULL, 0);
        break;
    }
    strait_codebook_destroy(another);
}

/* It is counted once, not asked for again, and the connection stays. */
TEST_LOOP(what_is_not_the_set_that_was_told_is_not_taken, COUNT(wrong))
{
    scene_begin(true);
    asked(1);
    say_wrong(_i);
    ROGUE_WAIT(&s.rogue, failed() == 1);
    rogue_run(100);
    ck_assert_msg(s.rogue.heard.ask_count == (wrong[_i].kind == GARBAGE ? 2u : 1u), "%s", wrong[_i].what);
    ck_assert_uint_eq(0, s.rogue.heard.known_count);
    ck_assert_double_eq(0, fetched());
    ck_assert_double_eq(1, failed());
    ck_assert_ptr_nonnull(s.rogue.peer);
    scene_end();
}

/* The node fetches from whoever has it after that. */
TEST(a_set_that_one_peer_gets_wrong_is_asked_for_again_when_it_is_told_again)
{
    scene_begin(true);
    asked(1);
    say_wrong(0);
    ROGUE_WAIT(&s.rogue, failed() == 1);
    say_set(s.set);
    asked(2);
    say_part(s.rogue.codebook, s.size, s.bytes, s.size);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.known_count == 1);
    scene_end();
}

TEST(a_set_that_is_gone_is_not_missed)
{
    scene_begin(true);
    asked(1);
    say_part(s.rogue.codebook, 0, NULL, 0);
    rogue_run(100);
    ck_assert_uint_eq(1, s.rogue.heard.ask_count);
    ck_assert_double_eq(0, failed());
    scene_end();
}

/* Parts that nobody has asked for end the connection. */
TEST_LOOP(parts_without_end_are_not_read, 2)
{
    scene_begin(true);
    asked(1);
    for (int i = 0; i < 50; i++)
        say_part(s.rogue.codebook, s.size, _i == 0 ? s.bytes : NULL, _i == 0 ? s.size : 0);
    ROGUE_WAIT(&s.rogue, s.rogue.went_down);
    ck_assert_double_eq(1, stat_of(s.pair.from, "counters.peer_errors"));
    scene_end();
}

/* Whoever does not answer is asked once, however often it tells of sets, and other peers' sets are fetched meanwhile.
 */
TEST(a_peer_that_says_nothing_is_asked_once)
{
    struct strait_codebook *other = set_of(0x35);
    scene_begin(true);
    asked(1);
    for (int i = 0; i < 1000; i++) {
        say_set(i % 2 == 0 ? other : s.set);
        if (i % 100 == 0)
            rogue_turn(&s.rogue);
    }
    rogue_run(700);
    ck_assert_uint_eq(1, s.rogue.heard.ask_count);
    give_set(s.pair.b, 0x7b);
    test_node_reload(s.pair.b);
    ROGUE_WAIT(&s.rogue, fetched() == 1);
    say_part(s.rogue.codebook, s.size, s.bytes,
             s.size); /* at last, but it is of no use any more: another one is told */
    ROGUE_WAIT(&s.rogue, s.rogue.heard.ask_count == 2);
    ck_assert_double_eq(1, fetched());
    scene_end();
    strait_codebook_destroy(other);
}

TEST(a_set_that_does_not_come_is_given_up_and_the_loop_rests)
{
    scene_begin(true);
    asked(1);
    const uint64_t began = now_ms();
    ROGUE_WAIT(&s.rogue, failed() == 1);
    ck_assert_uint_ge(now_ms() - began, s.pair.a->options.peer_timeout_ms / 2);
    rogue_run(700);
    ck_assert_uint_eq(1, s.rogue.heard.ask_count);
    scene_end();
}

TEST(a_node_stops_while_a_set_is_fetched)
{
    scene_begin(true);
    asked(1);
    test_node_stop(s.pair.a);
    rogue_leave(&s.rogue);
    rogue_fini(&s.rogue);
    strait_codebook_destroy(s.set);
}

/* More sets than are kept of a peer: the last ones are not fetched, and none that chunks may name is dropped. */
TEST(a_peer_with_many_sets_fills_no_memory)
{
    scene_begin(true);
    asked(1);
    say_part(s.rogue.codebook, s.size, s.bytes, s.size);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.known_count == 1);
    for (uint32_t i = 2; i <= 5; i++) {
        struct strait_codebook *set = set_of((uint8_t)(0x40 + i));
        ck_assert_int_eq(STRAIT_OK, strait_codebook_serialize(set, s.bytes, sizeof(s.bytes)));
        say_set(set);
        if (i <= PEER_CODEBOOKS) {
            asked(i);
            say_part(strait_codebook_id(set), s.size, s.bytes, s.size);
            ROGUE_WAIT(&s.rogue, s.rogue.heard.known_count == i);
        } else {
            rogue_run(700);
            ck_assert_uint_eq(PEER_CODEBOOKS, s.rogue.heard.ask_count);
        }
        strait_codebook_destroy(set);
    }
    say_set(s.set); /* which is kept */
    ROGUE_WAIT(&s.rogue, s.rogue.heard.known_count == PEER_CODEBOOKS + 1);
    ck_assert_mem_eq(strait_codebook_id(s.set), s.rogue.heard.known, CODEBOOK_ID_BYTES);
    scene_end();
}

/* ---- A rogue that wants the node's set --------------------------------------------------------------------------- */

static struct strait_codebook *own;

static void ask_for(const uint8_t *id, uint32_t offset)
{
    const struct message ask = {.type = MESSAGE_CODEBOOK_ASK,
                                .codebook_ask = {.id = view_of(id, CODEBOOK_ID_BYTES), .offset = offset}};
    rogue_say(&s.rogue, &ask);
}

TEST(the_nodes_set_is_sent_a_few_times)
{
    enum { TIMES = 20, SENT = 4 };
    uint32_t sent = 0;
    scene_begin(true);
    own = set_of(0x7c);
    for (uint32_t i = 1; i <= TIMES; i++) {
        ask_for(strait_codebook_id(own), 0);
        ROGUE_WAIT(&s.rogue, s.rogue.heard.part_count == i);
        ck_assert(s.rogue.heard.part.size == 0 ||
                  s.rogue.heard.part.bytes.size == strait_codebook_serialized_size(own));
        sent += s.rogue.heard.part.size != 0;
    }
    ck_assert_uint_eq(SENT, sent);
    ask_for(s.rogue.codebook, 0); /* not the node's */
    ROGUE_WAIT(&s.rogue, s.rogue.heard.part_count == TIMES + 1);
    ck_assert_uint_eq(0, s.rogue.heard.part.size);
    strait_codebook_destroy(own);
    scene_end();
}

TEST(a_part_beyond_the_end_of_the_set_ends_the_connection)
{
    scene_begin(true);
    own = set_of(0x7c);
    ask_for(strait_codebook_id(own), (uint32_t)strait_codebook_serialized_size(own));
    ROGUE_WAIT(&s.rogue, s.rogue.went_down);
    strait_codebook_destroy(own);
    scene_end();
}

/* ---- Chunks for a rogue ------------------------------------------------------------------------------------------ */

#define EARLIER 0x1fu /* modes of earlier releases */

static const struct {
    const char *what;
    bool codebooks, knows, on_gpu, knows_another;
    uint32_t block_modes; /* that it tells of; 0: nothing */
    enum strait_element element;
    enum strait_block_mode block; /* what is to be seen */
    bool parts;                   /* the pool asks for that */
} sinks[] = {
    {"a daemon of an earlier release", false, false, false, false, 0, STRAIT_ELEMENT_BF16, STRAIT_BLOCK_RAW, false},
    {"one that knows no set", true, false, false, false, EARLIER, STRAIT_ELEMENT_BF16, STRAIT_BLOCK_RAW, false},
    {"one that knows our set", true, true, false, false, 0, STRAIT_ELEMENT_BF16, STRAIT_BLOCK_TIERED, false},
    {"one that knows it, for a GPU", true, true, true, false, 0, STRAIT_ELEMENT_BF16, STRAIT_BLOCK_RAW, false},
    {"one that knows another set", true, false, false, true, 0, STRAIT_ELEMENT_BF16, STRAIT_BLOCK_RAW, false},
    {"FP16, earlier", true, true, false, false, 0, STRAIT_ELEMENT_FP16, STRAIT_BLOCK_RAW, false},
    {"FP32, earlier", true, true, false, false, 0, STRAIT_ELEMENT_FP32, STRAIT_BLOCK_RAW, false},
    {"all modes, no set", true, false, false, false, CHUNK_BLOCK_MODES, STRAIT_ELEMENT_BF16, STRAIT_BLOCK_BASE, false},
    {"all modes, a GPU", true, true, true, false, CHUNK_BLOCK_MODES, STRAIT_ELEMENT_BF16, STRAIT_BLOCK_BASE, false},
    {"all modes, our set", true, true, false, false, CHUNK_BLOCK_MODES, STRAIT_ELEMENT_BF16, STRAIT_BLOCK_TIERED,
     false},
    {"FP16, all modes", true, true, false, false, CHUNK_BLOCK_MODES, STRAIT_ELEMENT_FP16, STRAIT_BLOCK_SPLIT, false},
    {"FP16, no set", true, false, false, false, CHUNK_BLOCK_MODES, STRAIT_ELEMENT_FP16, STRAIT_BLOCK_SPLIT, false},
    {"FP32, all modes", true, true, false, false, CHUNK_BLOCK_MODES, STRAIT_ELEMENT_FP32, STRAIT_BLOCK_SPLIT, false},
    {"FP32, without fp32z", true, true, false, false, EARLIER | 1u << STRAIT_BLOCK_SPLIT, STRAIT_ELEMENT_FP32,
     STRAIT_BLOCK_RAW, false},
    {"BF16, without tiered", true, true, false, false, 1u << STRAIT_BLOCK_BASE, STRAIT_ELEMENT_BF16, STRAIT_BLOCK_BASE,
     false},
    {"FP16 by parts", true, true, false, false, CHUNK_BLOCK_MODES, STRAIT_ELEMENT_FP16, STRAIT_BLOCK_PARTS, true},
    {"FP32 by parts", true, true, false, false, CHUNK_BLOCK_MODES, STRAIT_ELEMENT_FP32, STRAIT_BLOCK_PARTS, true},
    {"FP16, without parts", true, true, false, false, CHUNK_BLOCK_MODES & ~(1u << STRAIT_BLOCK_PARTS),
     STRAIT_ELEMENT_FP16, STRAIT_BLOCK_SPLIT, true},
    {"FP16, a GPU without parts", true, true, true, false, CHUNK_BLOCK_MODES, STRAIT_ELEMENT_FP16, STRAIT_BLOCK_SPLIT,
     true},
    {"FP16, a GPU with parts", true, true, true, false, CHUNK_BLOCK_MODES | 1u << STRAIT_BLOCK_PARTS << BLOCKS_BY_GPUS,
     STRAIT_ELEMENT_FP16, STRAIT_BLOCK_PARTS, true},
    {"FP8, earlier", true, true, false, false, 0, STRAIT_ELEMENT_FP8_E4M3, STRAIT_BLOCK_RAW, false},
    {"FP8, all bits", true, true, false, false, UINT32_MAX, STRAIT_ELEMENT_FP8_E4M3, STRAIT_BLOCK_FP8, false},
};

/* Is the set named? Where the peer knows it, and the mode has tables. */
static bool names_set(int i)
{
    return sinks[i].knows && !sinks[i].on_gpu && sinks[i].block != STRAIT_BLOCK_RAW && !sinks[i].parts &&
           sinks[i].block != STRAIT_BLOCK_BASE && sinks[i].block != STRAIT_BLOCK_FP8;
}

TEST_LOOP(chunks_are_coded_by_what_the_peer_says_that_it_knows, COUNT(sinks))
{
    static const struct wire_span span = {.count = 4};
    static const uint32_t slot = 2;
    static const uint8_t none[STRAIT_CODEBOOK_ID_BYTES];
    struct strait_chunk_info info;
    struct strait_page_info page;
    scene_of(sinks[_i].codebooks, sinks[_i].block_modes, sinks[_i].element);
    if (sinks[_i].parts)
        ck_assert_int_eq(STRAIT_OK, strait_set_policy(s.pair.source->pool, STRAIT_CODING_PARTS));
    own = set_of(0x7c);
    const struct message known = {
        .type = MESSAGE_CODEBOOK_KNOWN,
        .codebook_known.id = view_of(sinks[_i].knows ? strait_codebook_id(own) : s.rogue.codebook, CODEBOOK_ID_BYTES)};
    if (sinks[_i].knows || sinks[_i].knows_another)
        rogue_say(&s.rogue, &known);
    struct pool_blob blob = blob_of(s.pair.source);
    struct message request = rogue_request(&blob, "r", 1, &span);
    request.request.grant = 1;
    request.request.slot_count = 1;
    request.request.slots = &slot;
    request.request.on_gpu = sinks[_i].on_gpu;
    struct flow *offer = offer_all(s.pair.source, "r");
    ROGUE_WAIT(&s.rogue, stat_of(s.pair.from, "gauges.live_offers") == 1); /* else the grant is given back */
    rogue_say(&s.rogue, &request);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.chunk_count == 1);
    const uint8_t *chunk = (const uint8_t *)s.rogue.arena.base + (size_t)slot * ROGUE_SLOT_BYTES;
    ck_assert_int_eq(STRAIT_OK, strait_chunk_info(chunk, s.rogue.heard.chunk_sizes[0], &info));
    ck_assert_int_eq(STRAIT_OK, strait_chunk_pages(chunk, s.rogue.heard.chunk_sizes[0], 1, &page));
    ck_assert_msg(page.block_modes == 1u << sinks[_i].block, "%s: %x", sinks[_i].what, page.block_modes);
    ck_assert_msg((memcmp(info.codebook_id, none, sizeof(none)) != 0) == names_set(_i), "%s", sinks[_i].what);
    if (names_set(_i))
        ck_assert_mem_eq(strait_codebook_id(own), info.codebook_id, sizeof(info.codebook_id));
    if (!sinks[_i].codebooks) /* it would not understand them */
        ck_assert_uint_eq(0, s.rogue.heard.ask_count + s.rogue.heard.known_count);
    rogue_leave(&s.rogue);
    WAIT(offer->decided && offer->drained);
    blob_fini(&blob);
    strait_codebook_destroy(own);
    scene_end();
}

int main(void)
{
    return node_main("node_codebooks");
}
