/* A malicious sink, and a malicious source, whose pool is laid out in another way than the node's: what it says of it,
 * or does not, fails its requests alone, and the node keeps little of it. */
#include "tests/node/harness.h"
#include "tests/node/rogue.h"

enum { PAGES = 16, LAYERS = 3, REGIONS = 64 };

static const struct wire_span all_pages = {.count = PAGES};

static struct scene {
    struct pair pair;
    struct rogue rogue;
    struct pool_blob blob; /* of the node's pool */
    struct blob_region regions[REGIONS];
    struct pool_blob other; /* the rogue's: it lacks the last layer */
    struct flow *offer;
} s;

/* The rogue meets the node of the source, or that of the sink. */
static void scene_begin_with(bool source)
{
    memset(&s, 0, sizeof(s));
    s.pair = pair_open(SHM, (struct geometry){.pages = PAGES, .layers = LAYERS, .gpu = 1, .sink_gpu = 2});
    rogue_init(&s.rogue, 64 << 10);
    s.rogue.reshapes = true;
    rogue_meet(&s.rogue, source ? s.pair.a : s.pair.b);
    s.blob = blob_of(s.pair.source);
    ck_assert_uint_le(s.blob.region_count, REGIONS);
    memcpy(s.regions, s.blob.regions, s.blob.region_count * sizeof(s.regions[0]));
    s.other = (struct pool_blob){.pool = {{13}},
                                 .version = s.blob.version,
                                 .version_min = s.blob.version_min,
                                 .region_count = s.blob.region_count - 1,
                                 .regions = s.regions};
    pool_fill(s.pair.source, 1);
    s.offer = OFFER(s.pair.source, "r", LISTS({.count = PAGES}), .last = true, .consumers = 8);
}

static void scene_begin(void)
{
    scene_begin_with(true);
}

static void scene_end(void)
{
    rogue_leave(&s.rogue);
    ck_assert(pool_as_imagined(s.pair.source));
    blob_fini(&s.blob);
    rogue_fini(&s.rogue);
}

static uint64_t geometry_of(const struct pool_blob *blob)
{
    return blob_geometry(blob->regions, blob->region_count, view_of(blob->compat, strlen(blob->compat)));
}

static void describe(const struct pool_blob *blob, const char *tenant)
{
    uint8_t bytes[16 << 10];
    size_t size;
    ck_assert_int_eq(blob_pack(blob, bytes, sizeof(bytes), &size), STRAIT_OK);
    const struct message message = {
        .type = MESSAGE_POOL_DESCRIPTION,
        .pool_description = {.tenant = view_of(tenant, strlen(tenant)), .blob = view_of(bytes, size)}};
    rogue_say(&s.rogue, &message);
}

/* A request for pages of the other layout, with two open grants. */
static void request(uint64_t leg, uint32_t deadline_ms)
{
    static const uint32_t slots[] = {0, 1};
    struct message message = rogue_request(&s.blob, "r", leg, &all_pages);
    message.request.sink_pool = s.other.pool;
    message.request.geometry = geometry_of(&s.other);
    message.request.deadline_ms = deadline_ms;
    message.request.grant = 100 * leg;
    message.request.slots = slots;
    message.request.slot_count = 2;
    rogue_say(&s.rogue, &message);
}

static void ask(const struct pool_id *pool, const char *tenant)
{
    const struct message message = {.type = MESSAGE_POOL_ASK,
                                    .pool_ask = {.pool = *pool, .tenant = view_of(tenant, strlen(tenant))}};
    rogue_say(&s.rogue, &message);
}

static void wait_a_while(uint64_t ms)
{
    for (const uint64_t end = wait_clock() + ms * 1000000; wait_clock() < end;) {
        rogue_turn(&s.rogue);
        pump(1);
    }
}

static void announced(void)
{
    ROGUE_WAIT(&s.rogue, s.rogue.heard.last);
    ck_assert_uint_eq(s.rogue.heard.reshaped, geometry_of(&s.blob));
    ck_assert_uint_eq(s.rogue.heard.units, PAGES * s.other.region_count);
    s.rogue.heard.last = false;
    s.rogue.heard.units = 0;
}

static void refused(enum strait_reason reason)
{
    ROGUE_WAIT(&s.rogue, s.rogue.heard.end_count == 1);
    ck_assert_int_eq((int)s.rogue.heard.end.reason, reason);
    ck_assert_uint_eq(s.rogue.heard.released_count, 2);
    ck_assert_uint_eq(s.rogue.heard.asked_count, 1);
    ck_assert_uint_eq(s.rogue.heard.segments_count, 0);
}

TEST_CASE(node_reshape);

/* Nobody is asked or told twice; grants that come with a request that waits go back. */
TEST(pools_are_described_once)
{
    scene_begin();
    request(1, 10000);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.asked_count == 1 && s.rogue.heard.released_count == 2);
    describe(&s.other, "");
    announced();
    request(2, 10000);
    announced();
    ck_assert_uint_eq(s.rogue.heard.asked_count, 1);
    ck_assert_uint_eq(s.rogue.heard.described_count, 1);
    scene_end();
}

/* The sink gives up by itself, and the offer hears of it; an answer that comes later binds nothing. */
TEST(an_answer_that_comes_too_late_binds_nothing)
{
    scene_begin();
    request(1, 300);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.asked_count == 1 && s.rogue.heard.released_count == 2);
    wait_a_while(1000);
    ck_assert(!s.offer->decided); /* it has other consumers */
    describe(&s.other, "");
    wait_a_while(100);
    ck_assert_uint_eq(s.rogue.heard.segments_count, 0);
    request(2, 10000);
    announced();
    scene_end();
}

TEST(an_offer_whose_only_sink_was_never_described_fails)
{
    scene_begin();
    struct flow *offer = OFFER(s.pair.source, "one", LISTS({.count = PAGES}), .last = true);
    struct message message = rogue_request(&s.blob, "one", 1, &all_pages);
    message.request.geometry = geometry_of(&s.other);
    message.request.deadline_ms = 200;
    rogue_say(&s.rogue, &message);
    ROGUE_WAIT(&s.rogue, offer->decided);
    ck_assert_uint_eq(s.rogue.heard.asked_count, 1);
    scene_end();
}

/* One consumer after the other, so that the first one's text has to last. */
TEST(what_does_not_fit_many_consumers_is_told_to_the_client_of_the_offer)
{
    enum { CONSUMERS = STRAIT_PARTS_MAX };
    char key[8];
    scene_begin();
    struct flow *offer = OFFER(s.pair.source, "both", LISTS({.count = PAGES}), .last = true, .consumers = CONSUMERS);
    strcpy(s.other.compat, "another model");
    for (uint64_t leg = 1; leg <= CONSUMERS; leg++) {
        struct message message = rogue_request(&s.blob, "both", leg, &all_pages);
        snprintf(key, sizeof(key), "%u", (unsigned)leg);
        message.request.sink_key = view_of(key, strlen(key));
        message.request.sink_pool = s.other.pool;
        message.request.geometry = geometry_of(&s.other);
        rogue_say(&s.rogue, &message);
        if (leg == 1) {
            ROGUE_WAIT(&s.rogue, s.rogue.heard.asked_count == 1);
            describe(&s.other, "");
        }
        ROGUE_WAIT(&s.rogue, s.rogue.heard.end_count == leg);
        ck_assert_int_eq((int)s.rogue.heard.end.reason, STRAIT_REASON_GEOMETRY);
    }
    ROGUE_WAIT(&s.rogue, offer->decided);
    ck_assert_int_eq((int)offer->reason, STRAIT_REASON_GEOMETRY);
    ck_assert_str_eq(offer->text, "compatibility token \"\" at the source, \"another model\" at the sink");
    scene_end();
}

TEST(an_answer_of_another_geometry_ends_the_request)
{
    scene_begin();
    request(1, 10000);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.asked_count == 1);
    s.regions[0].tokens += 1;
    describe(&s.other, "");
    refused(STRAIT_REASON_GEOMETRY);
    scene_end();
}

/* Of a pool of the same id, too, but of another tenant, or of another pool. */
TEST(answers_of_other_pools_are_no_answers)
{
    scene_begin();
    request(1, 10000);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.asked_count == 1);
    describe(&s.other, "somebody");
    s.other.pool.bytes[3] ^= 1;
    describe(&s.other, "");
    s.other.pool.bytes[3] ^= 1;
    wait_a_while(100);
    ck_assert_uint_eq(s.rogue.heard.segments_count + s.rogue.heard.end_count, 0);
    describe(&s.other, "");
    announced();
    scene_end();
}

TEST(a_description_that_is_none_ends_the_connection)
{
    scene_begin();
    const struct message message = {.type = MESSAGE_POOL_DESCRIPTION, .pool_description = {.blob = view_of("StrP", 4)}};
    rogue_say(&s.rogue, &message);
    ROGUE_WAIT(&s.rogue, s.rogue.went_down);
    scene_end();
}

/* A thousand pools that nobody has asked for: the latest are kept, and the first is asked for again. */
TEST(few_descriptions_are_kept)
{
    scene_begin();
    describe(&s.other, "");
    request(1, 10000);
    announced();
    for (uint32_t i = 0; i < 1000; i++) {
        struct pool_blob flood = s.other;
        memcpy(flood.pool.bytes + 4, &i, sizeof(i));
        flood.pool.bytes[15] = 1;
        describe(&flood, "");
        rogue_turn(&s.rogue);
    }
    ck_assert_uint_eq(s.rogue.heard.asked_count, 0);
    request(2, 10000);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.asked_count == 1);
    describe(&s.other, "");
    announced();
    scene_end();
}

/* Who names a pool of the node is told; nobody is told of what is not there. What was told is not told with SEGMENTS.
 */
TEST(who_asks_is_told)
{
    struct pool_id unknown = {{99}};
    scene_begin();
    ask(&unknown, "");
    ask(&s.blob.pool, "somebody");
    ask(&s.blob.pool, "");
    ask(&s.blob.pool, "");
    ROGUE_WAIT(&s.rogue, s.rogue.heard.described_count == 2);
    describe(&s.other, "");
    request(1, 10000);
    announced();
    ck_assert_uint_eq(s.rogue.heard.described_count, 2);
    scene_end();
}

TEST(a_connection_that_ends_before_the_answer_takes_the_request_along)
{
    scene_begin();
    request(1, 10000);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.asked_count == 1);
    scene_end();
}

/* ---- The rogue as a source --------------------------------------------------------------------------------------- */

static const struct {
    bool described, other; /* the rogue's pool; SEGMENTS name another geometry */
    uint32_t count;        /* segments */
    struct segment segments[2];
    enum strait_reason reason; /* NONE: nothing is wrong */
} tiles[] = {
    {true, false, 1, {{0, 0, 2, 0, PAGES}}, STRAIT_REASON_NONE},
    {false, false, 1, {{0, 0, 2, 0, PAGES}}, STRAIT_REASON_GEOMETRY},
    {true, true, 1, {{0, 0, 2, 0, PAGES}}, STRAIT_REASON_GEOMETRY},
    {true, false, 1, {{1, 0, 1, 0, 1}}, STRAIT_REASON_GEOMETRY},
    {true, false, 1, {{STRAIT_GROUPS_MAX - 1, 0, 1, 0, 1}}, STRAIT_REASON_GEOMETRY},
    {true, false, 1, {{0, 2, 1, 0, 1}}, STRAIT_REASON_GEOMETRY},
    {true, false, 1, {{0, 0, 2, PAGES, 1}}, STRAIT_REASON_GEOMETRY},
    {true, false, 1, {{0, 0, 2, 0, PAGES + 1}}, STRAIT_REASON_GEOMETRY},
    {true, false, 2, {{0, 0, 2, 0, 1}, {0, 1, 1, 0, 1}}, STRAIT_REASON_GEOMETRY},
};

/* Tiles that are out of range, announced twice, of pools that were not described or in another way. */
TEST_LOOP(tiles_that_cannot_be_fail_their_request_alone, COUNT(tiles))
{
    uint8_t bytes[16 << 10];
    size_t size;
    struct strait_peer *peer;
    scene_begin_with(false);
    snprintf(s.other.address, sizeof(s.other.address), "%s", peers_address(s.rogue.peers));
    ck_assert_int_eq(blob_pack(&s.other, bytes, sizeof(bytes), &size), STRAIT_OK);
    ck_assert_int_eq(strait_peer_import(s.pair.to->client, bytes, size, &peer), STRAIT_OK);
    struct flow *e = EXPECT(s.pair.sink, "t", LISTS({.count = PAGES}));
    ck_assert_int_eq(strait_start(e->transfer, peer, NULL), STRAIT_OK);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.request_count != 0);
    if (tiles[_i].described)
        describe(&s.other, "");
    const struct message message = {.type = MESSAGE_SEGMENTS,
                                    .segments = {.leg = s.rogue.heard.request.leg,
                                                 .epoch = s.rogue.heard.request.epoch,
                                                 .segment_count = tiles[_i].count,
                                                 .segments = tiles[_i].segments,
                                                 .reshaped = geometry_of(&s.other) ^ tiles[_i].other}};
    rogue_say(&s.rogue, &message);
    if (tiles[_i].reason == STRAIT_REASON_NONE) {
        wait_a_while(100);
        ck_assert(!e->decided);
        strait_abort(e->transfer);
    }
    ROGUE_WAIT(&s.rogue, e->decided);
    if (tiles[_i].reason != STRAIT_REASON_NONE)
        ck_assert_int_eq((int)e->reason, (int)tiles[_i].reason);
    ck_assert(!s.rogue.went_down);
    strait_peer_remove(peer);
    blob_fini(&s.blob);
    rogue_fini(&s.rogue);
}

int main(void)
{
    return node_main("node_reshape");
}
