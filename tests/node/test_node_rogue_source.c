/* A malicious source, for a node whose pages are in GPU memory: chunks that nobody granted or that are none, and any
 * use of open grants. No byte lands outside of the pages that were expected, each page lands once, no slot is lost. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/peers/peer.h"
#include "tests/node/harness.h"
#include "tests/node/rogue.h"

enum where { NEAR, FAR, WHERES }; /* slots of the host, and of the GPU */

enum { EXPECTED_MAX = 16 };

static struct scene {
    enum where where;
    struct pair pair; /* honest ones, which go on */
    struct rogue rogue;
    struct pool_blob blob; /* of the rogue's pool, that looks like theirs */
    struct strait_peer *peer;
    uint32_t expected; /* pages of a request */
    size_t page_bytes;
    uint8_t *pages; /* what the rogue sends of them */
    bool flagged;   /* it says that it sets flags */
    uint8_t *arena; /* the node's GPU's */
    size_t arena_size, slot_bytes;
    struct flow *expectation;
} s;

/* The node is to find a pool at the rogue's address. */
static struct strait_peer *import_rogue(void)
{
    uint8_t bytes[4096];
    size_t size = 0;
    struct strait_peer *peer;
    s.blob = blob_of(s.pair.sink);
    memset(&s.blob.pool, 66, sizeof(s.blob.pool));
    snprintf(s.blob.address, sizeof(s.blob.address), "%s", peers_address(s.rogue.peers));
    ck_assert_int_eq(STRAIT_OK, blob_pack(&s.blob, bytes, sizeof(bytes), &size));
    ck_assert_int_eq(STRAIT_OK, strait_peer_import(s.pair.to->client, bytes, size, &peer));
    return peer;
}

static struct flow *expect(const char *key)
{
    uint32_t before = s.rogue.heard.request_count;
    struct flow *e = EXPECT(s.pair.sink, key, LISTS({.count = s.expected}));
    ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, s.peer, NULL));
    ROGUE_WAIT(&s.rogue, s.rogue.heard.request_count > before);
    ck_assert_uint_ne(0, s.rogue.heard.request.grant);
    return e;
}

static void say_released(uint64_t grant)
{
    const struct message released = {
        .type = MESSAGE_RELEASED,
        .grant_id = {.leg = s.rogue.heard.request.leg, .epoch = s.rogue.heard.request.epoch, .grant = grant}};
    rogue_say(&s.rogue, &released);
}

/* The first request makes the connection, over which the rogue can then say what it reaches. That the node has heard so
 * is known when it has heard what was said after it: that the rogue gives up. */
static void say_that_it_is_reached(const char *tenant)
{
    const struct message reach = {.type = MESSAGE_REACH,
                                  .reach = {.pool = s.blob.pool,
                                            .devices = 1u << 1,
                                            .flagged = s.flagged ? 1u << 1 : 0,
                                            .tenant = view_of(tenant, strlen(tenant))}};
    struct flow *first = expect("first");
    ROGUE_WAIT(&s.rogue, s.rogue.heard.arena_count != 0);
    const struct message end = {.type = MESSAGE_END,
                                .end = {.leg = s.rogue.heard.request.leg,
                                        .epoch = s.rogue.heard.request.epoch,
                                        .state = STRAIT_FAILED,
                                        .reason = STRAIT_REASON_ABORTED}};
    rogue_say(&s.rogue, &reach);
    rogue_say(&s.rogue, &end);
    ROGUE_WAIT(&s.rogue, first->decided);
    say_released(s.rogue.heard.request.grant);
}

static void map_arena(void)
{
    const struct message_arena *told = &s.rogue.heard.arena;
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", s.rogue.heard.handle.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    s.arena_size = told->flags_at + told->slot_count * sizeof(uint64_t);
    s.arena = mmap(NULL, s.arena_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(MAP_FAILED, s.arena);
    close(fd);
}

static uint8_t *slot_at(uint32_t slot)
{
    if (s.where == FAR)
        return s.arena + (size_t)(slot - s.rogue.heard.arena.first_slot) * s.slot_bytes;
    return link_map(s.rogue.peer->link, (size_t)slot * s.slot_bytes, s.slot_bytes);
}

/* A good chunk of pages [first, first + count) is in that slot; returns its size. */
static size_t encode_chunk(uint32_t slot, uint32_t first, uint32_t count)
{
    uint32_t ids[EXPECTED_MAX];
    struct strait_result result;
    const struct strait_region region = {.base = s.pages,
                                         .page_stride = s.page_bytes,
                                         .page_count = s.expected,
                                         .rows = 1,
                                         .row_bytes = (uint32_t)s.page_bytes};
    const struct strait_pages pages = {.regions = &region, .region_count = 1, .ids = ids, .id_count = count};
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = STRAIT_ELEMENT_BF16, .mode = STRAIT_MODE_RAW};
    const struct strait_run run = {.size = sizeof(run), .result = &result};
    for (uint32_t i = 0; i < count; i++)
        ids[i] = first + i;
    ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &params, slot_at(slot), s.slot_bytes, &pages, &run));
    ck_assert_int_eq(STRAIT_OK, (int)result.status);
    return result.bytes;
}

/* For the latest request. */
static struct chunk_header header_of(uint64_t grant, uint32_t slot)
{
    return (struct chunk_header){.slot = slot,
                                 .token = s.rogue.peer->peer_token,
                                 .leg = s.rogue.heard.request.leg,
                                 .grant = grant,
                                 .epoch = s.rogue.heard.request.epoch};
}

/* All pages are ready; `granted` of them are for open grants, from `grant` on. */
static void say_segments(uint64_t grant, const uint32_t *granted, uint32_t count)
{
    const struct segment segment = {.region_count = 1, .count = s.expected};
    const struct message message = {.type = MESSAGE_SEGMENTS,
                                    .segments = {.leg = s.rogue.heard.request.leg,
                                                 .epoch = s.rogue.heard.request.epoch,
                                                 .last = true,
                                                 .segment_count = 1,
                                                 .segments = &segment,
                                                 .grant = grant,
                                                 .granted_count = count,
                                                 .granted = granted}};
    rogue_say(&s.rogue, &message);
}

/* The node has asked for the first pages, of this size, with open grants. */
static void scene_begin(enum where where, uint32_t pages, size_t page_bytes)
{
    struct rng rng = rng_init(5);
    struct geometry shape = {
        .pages = 2 * EXPECTED_MAX, .rows = 1, .row_bytes = (uint32_t)page_bytes, .gpu = 1, .sink_gpu = 2};
    ck_assert_uint_le(pages, EXPECTED_MAX);
    s.where = where;
    s.expected = pages;
    s.page_bytes = page_bytes;
    s.pages = malloc(pages * page_bytes);
    rng_fill(&rng, s.pages, pages * page_bytes);
    s.pair = pair_open(SHM, shape);
    move_all(s.pair.source, s.pair.sink);
    rogue_init(&s.rogue, 4096);
    rogue_meet(&s.rogue, s.pair.b); /* opens; the node makes a connection of its own */
    s.peer = import_rogue();
    say_that_it_is_reached(where == FAR ? "" : "another"); /* whose pool may have the same id */
    s.expectation = expect("k");
    ck_assert((s.rogue.heard.slots[0] >= s.rogue.peer->slot_count) == (where == FAR));
    s.slot_bytes = where == FAR ? s.rogue.heard.arena.slot_bytes : s.rogue.peer->slot_bytes;
    if (where == FAR)
        map_arena();
}

/* Nothing is left of it, and the node serves others as before. */
static void teardown(void)
{
    rogue_leave(&s.rogue);
    undefined(s.expectation);
    ck_assert(pool_as_imagined(s.pair.sink));
    strait_release(s.expectation->transfer);
    move_all(s.pair.source, s.pair.sink);
    wait_quiet(s.pair.to);
    ck_assert_uint_eq(0, s.pair.to->disconnects);
    if (s.arena != NULL)
        munmap(s.arena, s.arena_size);
    strait_peer_remove(s.peer);
    blob_fini(&s.blob);
    rogue_fini(&s.rogue);
    free(s.pages);
    node_teardown();
}

/* DONE, with the rogue's pages. */
static void ends_whole(void)
{
    ROGUE_WAIT(&s.rogue, s.expectation->decided);
    ends_done(s.expectation);
    for (uint32_t id = 0; id < s.expected; id++)
        ck_assert_mem_eq(s.pages + id * s.page_bytes, pool_page(s.pair.sink, 0, id), s.page_bytes);
}

enum { SOURCE_EXPECTED = 8, SOURCE_PAGE_BYTES = 4096 };

/* What is to be sent for the one open grant: a chunk of all pages. */
static struct chunk_header sent_header;
static uint8_t *sent_slot;
static size_t size;

static void begin_source(enum where where)
{
    scene_begin(where, SOURCE_EXPECTED, SOURCE_PAGE_BYTES);
    ck_assert_uint_eq(1, s.rogue.heard.request.slot_count);
    sent_slot = slot_at(s.rogue.heard.slots[0]);
    sent_header = header_of(s.rogue.heard.request.grant, s.rogue.heard.slots[0]);
    size = encode_chunk(s.rogue.heard.slots[0], 0, SOURCE_EXPECTED);
}

static void say_ready(void)
{
    say_segments(s.rogue.heard.request.grant, (const uint32_t[]){SOURCE_EXPECTED}, 1);
}

static void arrives_whole(void)
{
    say_ready();
    rogue_send(&s.rogue, &sent_header, size);
    ends_whole();
}

static double refused(void)
{
    return stat_of(s.pair.to, "counters.chunks_refused");
}

TEST_CASE(node_rogue_source);

/* ---- Flags ------------------------------------------------------------------------------------------------------- */

enum { RIGHT, OF_ANOTHER, NO_HEADER, ENDLESS, DAMAGED };

static void set_flag(uint64_t value)
{
    const struct message_arena *told = &s.rogue.heard.arena;
    uint64_t *flags = (uint64_t *)(s.arena + told->flags_at);
    __atomic_store_n(&flags[sent_header.slot - told->first_slot], value, __ATOMIC_RELEASE);
}

/* The flag is there before the node looks. A chunk that is none fails its request, and counts for no more than a slot
 * holds, whatever it claims. */
TEST_LOOP(a_flag_is_as_good_as_its_chunk, DAMAGED + 1)
{
    s.flagged = true;
    begin_source(FAR);
    fake_control()->flag_us = _i == OF_ANOTHER ? 0 : 60000000;
    const double landed = stat_of(s.pair.to, "counters.wire_bytes_landed");
    if (_i == NO_HEADER)
        memset(sent_slot, 0xff, 16);
    else if (_i == ENDLESS)
        store_le32(sent_slot + 16, UINT32_MAX - 15); /* its size */
    else if (_i == DAMAGED)
        sent_slot[size - 1] ^= 1;
    set_flag(chunk_flag(sent_header.leg, sent_header.grant + (_i == OF_ANOTHER)));
    if (_i == OF_ANOTHER) {
        arrives_whole();
    } else if (_i == RIGHT) {
        say_ready();
        ends_whole();
    } else {
        say_ready();
        ROGUE_WAIT(&s.rogue, s.expectation->decided);
        ends_failed(s.expectation, _i == DAMAGED ? STRAIT_REASON_INTEGRITY : STRAIT_REASON_CODEC);
    }
    ck_assert_double_le(stat_of(s.pair.to, "counters.wire_bytes_landed"), landed + (double)s.slot_bytes);
    ck_assert_uint_eq(_i == OF_ANOTHER ? 0 : 1, fake_control()->waited);
}

/* ---- What was not granted ---------------------------------------------------------------------------------------- */

enum { GRANTED, NEXT, OTHER_ARENA, BEHIND_ALL };
enum { WHOLE, NO_BYTES, MORE_THAN_THE_SLOT };

static const struct {
    int slot, size;
    uint32_t token;
    uint64_t leg, grant, counter, incarnation; /* are so much more */
} strange[] = {
    {.slot = NEXT}, {.slot = OTHER_ARENA}, {.slot = BEHIND_ALL}, {.token = 1},       {.leg = 1},
    {.grant = 1},   {.counter = 1},        {.incarnation = 1},   {.size = NO_BYTES}, {.size = MORE_THAN_THE_SLOT}};

static void send_strange(int i)
{
    const struct message_arena *far = &s.rogue.heard.arena;
    struct chunk_header header = sent_header;
    size_t sent_size = size;
    header.token += strange[i].token;
    header.leg += strange[i].leg;
    header.grant += strange[i].grant;
    header.epoch.counter += strange[i].counter;
    header.epoch.incarnation += strange[i].incarnation;
    if (strange[i].slot == NEXT)
        header.slot++;
    else if (strange[i].slot == OTHER_ARENA)
        header.slot = s.where == FAR ? 0 : s.rogue.peer->slot_count;
    else if (strange[i].slot == BEHIND_ALL)
        header.slot = s.where == FAR ? far->first_slot + far->slot_count : UINT32_MAX;
    if (strange[i].size != WHOLE)
        sent_size = strange[i].size == NO_BYTES ? 0 : s.slot_bytes + 1;
    rogue_send(&s.rogue, &header, sent_size);
}

TEST_LOOP(what_was_not_granted_is_refused_and_what_was_still_lands, COUNT(strange) * WHERES)
{
    begin_source((enum where)(_i % WHERES));
    double before = refused();
    send_strange(_i / WHERES);
    ROGUE_WAIT(&s.rogue, refused() == before + 1);
    ck_assert(!s.expectation->decided && !s.rogue.went_down);
    ck_assert(pool_as_imagined(s.pair.sink));
    arrives_whole();
}

TEST_LOOP(a_chunk_lands_once, WHERES)
{
    begin_source((enum where)_i);
    double before = refused();
    arrives_whole();
    memset(sent_slot, 1, size);
    rogue_send(&s.rogue, &sent_header, size);
    ROGUE_WAIT(&s.rogue, refused() == before + 1);
}

/* ---- What cannot be decoded -------------------------------------------------------------------------------------- */

enum spoilt {
    NOISE,
    ZEROES,
    BIT_OF_A_PAGE,
    BIT_OF_A_SUM,
    BYTE_TOO_FEW,
    HEADER_ALONE,
    HALF_A_HEADER,
    FEWER_PAGES,
    LATER_MODE,
    SPOILT
};

/* Returns the size that is said. */
static size_t spoil(enum spoilt how)
{
    struct rng rng = rng_init(6);
    if (how == NOISE)
        rng_fill(&rng, sent_slot, size);
    else if (how == ZEROES)
        memset(sent_slot, 0, size);
    else if (how == BIT_OF_A_PAGE || how == BIT_OF_A_SUM)
        sent_slot[how == BIT_OF_A_PAGE ? size - 1 : STRAIT_CHUNK_HEADER_BYTES + 15] ^= 1;
    else if (how == FEWER_PAGES)
        return encode_chunk(s.rogue.heard.slots[0], 0, SOURCE_EXPECTED - 1);
    else if (how == LATER_MODE) { /* a block mode that the node has not told of, in a chunk that is whole otherwise */
        sent_slot[STRAIT_CHUNK_HEADER_BYTES] |= 0xf;
        ck_assert(repair_metadata(sent_slot, size));
    }
    if (how == HEADER_ALONE || how == HALF_A_HEADER)
        return STRAIT_CHUNK_HEADER_BYTES / (how == HALF_A_HEADER ? 2 : 1);
    return how == BYTE_TOO_FEW ? size - 1 : size;
}

TEST_LOOP(what_is_no_chunk_fails_its_request_alone, (SPOILT * WHERES))
{
    begin_source((enum where)(_i % WHERES));
    size_t said = spoil((enum spoilt)(_i / WHERES));
    say_ready();
    rogue_send(&s.rogue, &sent_header, said);
    ROGUE_WAIT(&s.rogue, s.expectation->decided && s.expectation->drained);
    ck_assert_int_eq(STRAIT_FAILED, s.expectation->state);
    ck_assert_msg(s.expectation->reason == STRAIT_REASON_CODEC || s.expectation->reason == STRAIT_REASON_INTEGRITY,
                  "%s", strait_reason_string((int)s.expectation->reason));
    ck_assert(!s.rogue.went_down);
}

/* Without it the tests above would show nothing. */
TEST_LOOP(an_honest_chunk_lands, WHERES)
{
    begin_source((enum where)_i);
    arrives_whole();
}

TEST_CASE(node_rogue_open);

/* A peer that makes what it likes of the open grants of a request: between GPUs there are several. Honest or not, each
 * page lands once, no slot is lost, and what cannot be fails its request alone. */

enum { EXPECTED = 12, PAGE_BYTES = 192 << 10, OPEN = 8 }; /* a chunk takes one page */

static const uint32_t one_each[OPEN] = {1, 1, 1, 1, 1, 1, 1, 1};

static void begin(void)
{
    scene_begin(FAR, EXPECTED, PAGE_BYTES);
    ck_assert_uint_eq(OPEN, s.rogue.heard.request.slot_count);
}

static uint64_t open_grant(uint32_t i)
{
    return s.rogue.heard.request.grant + i;
}

static void send_chunk(uint64_t grant, uint32_t slot, uint32_t first, uint32_t count)
{
    const struct chunk_header header = header_of(grant, slot);
    rogue_send(&s.rogue, &header, encode_chunk(slot, first, count));
}

static void send_open(uint32_t i, uint32_t first)
{
    send_chunk(open_grant(i), s.rogue.heard.slots[i], first, 1);
}

static void release_open(uint32_t from)
{
    for (uint32_t i = from; i < OPEN; i++)
        say_released(open_grant(i));
}

/* Sends a chunk for each grant, until all pages have landed. */
static void serve(void)
{
    const struct rogue_heard *heard = &s.rogue.heard;
    for (uint32_t i = 0; !s.expectation->decided;) {
        ROGUE_WAIT(&s.rogue, s.expectation->decided || heard->grant_count > i);
        for (; i < heard->grant_count; i++)
            send_chunk(heard->grants[i].grant, heard->grants[i].slot, heard->grants[i].first, heard->grants[i].count);
    }
    ends_whole();
}

/* ---- What is right ----------------------------------------------------------------------------------------------- */

TEST_LOOP(the_first_chunks_are_asked_for_with_the_request, 2)
{
    begin();
    for (uint32_t i = 0; i < OPEN; i++) {
        ck_assert_uint_ge(s.rogue.heard.slots[i], s.rogue.heard.arena.first_slot);
        for (uint32_t j = 0; j < i; j++)
            ck_assert_uint_ne(s.rogue.heard.slots[i], s.rogue.heard.slots[j]);
    }
    if (_i == 0)
        say_segments(open_grant(0), one_each, OPEN);
    for (uint32_t i = OPEN; i-- > 0;)
        send_open(i, i);
    if (_i == 1) /* they wait for it */
        say_segments(open_grant(0), one_each, OPEN);
    serve();
    ck_assert_uint_eq(EXPECTED - OPEN, s.rogue.heard.grant_count);
}

TEST_LOOP(what_is_not_needed_comes_back, OPEN + 1)
{
    begin();
    say_segments(_i == 0 ? 0 : open_grant(0), one_each, (uint32_t)_i);
    release_open((uint32_t)_i);
    for (uint32_t i = 0; i < (uint32_t)_i; i++)
        send_open(i, i);
    serve();
    ck_assert_uint_eq(EXPECTED - _i, s.rogue.heard.grant_count);
}

/* Half of an arena is all that requests take before anybody knows what is ready. */
TEST(others_are_left_as_much)
{
    struct flow *others[2];
    static const char *const keys[] = {"l", "m"};
    begin();
    const struct message_request first = s.rogue.heard.request;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t before = s.rogue.heard.request_count;
        others[i] = EXPECT(s.pair.sink, keys[i], LISTS({.count = 4, .first_id = EXPECTED + 4 * i}));
        ck_assert_int_eq(STRAIT_OK, strait_start(others[i]->transfer, s.peer, NULL));
        ROGUE_WAIT(&s.rogue, s.rogue.heard.request_count > before);
        ck_assert_uint_eq(i, s.rogue.heard.request.slot_count);
        if (i > 0)
            continue;
        s.rogue.heard.request = first;
        say_released(open_grant(OPEN - 1));
        ROGUE_WAIT(&s.rogue, stat_of(s.pair.to, "gauges.slots_used") == OPEN - 1);
    }
    rogue_leave(&s.rogue);
    for (uint32_t i = 0; i < 2; i++) {
        strait_abort(others[i]->transfer);
        WAIT(others[i]->decided && others[i]->drained);
        undefined(others[i]);
        strait_release(others[i]->transfer);
    }
    strait_abort(s.expectation->transfer);
}

/* ---- What is not ------------------------------------------------------------------------------------------------- */

/* The client has been told of the pages of four chunks, and is never told of the damaged one. */
TEST(pages_that_were_told_of_before_a_damaged_chunk_are_good)
{
    enum { GOOD = 4 };
    begin();
    say_segments(open_grant(0), one_each, OPEN);
    for (uint32_t i = 0; i < GOOD; i++)
        send_open(i, i);
    ROGUE_WAIT(&s.rogue, s.expectation->told_count == GOOD);
    const struct chunk_header header = header_of(open_grant(GOOD), s.rogue.heard.slots[GOOD]);
    const size_t bytes = encode_chunk(s.rogue.heard.slots[GOOD], GOOD, 1);
    slot_at(s.rogue.heard.slots[GOOD])[bytes - 1] ^= 1;
    rogue_send(&s.rogue, &header, bytes);
    ROGUE_WAIT(&s.rogue, s.expectation->decided && s.expectation->drained);
    ends_failed(s.expectation, STRAIT_REASON_INTEGRITY);
    ck_assert_uint_eq(GOOD, s.expectation->told_count);
    ck_assert_uint_eq(EXPECTED - GOOD, s.expectation->failed_count);
    for (uint32_t id = 0; id < GOOD; id++)
        ck_assert_mem_eq(s.pages + id * s.page_bytes, pool_page(s.pair.sink, 0, id), s.page_bytes);
}

TEST(units_of_a_grant_that_comes_back_are_granted_again)
{
    begin();
    say_segments(open_grant(0), one_each, OPEN);
    for (uint32_t i = 0; i < OPEN; i++)
        if (i % 3 == 0)
            say_released(open_grant(i));
        else
            send_open(i, i);
    serve();
}

/* More pieces than a leg can remember are not made of it at once. */
TEST(a_range_that_fits_no_slot_is_cut)
{
    begin();
    say_segments(open_grant(0), (const uint32_t[]){EXPECTED}, 1);
    release_open(0);
    serve();
    ck_assert_uint_eq(EXPECTED, s.rogue.heard.grant_count);
}

/* Some of the named grants are open, or none. */
TEST_LOOP(grants_that_were_not_open_are_given_nothing, 5)
{
    static const uint64_t beyond[] = {1, 4, OPEN, UINT32_MAX, UINT64_MAX / 2};
    begin();
    say_segments(open_grant(0) + beyond[_i], one_each, OPEN);
    for (uint32_t i = 0; i < OPEN; i++)
        if (i < beyond[_i])
            say_released(open_grant(i));
        else
            send_open(i, i - (uint32_t)beyond[_i]);
    double before = stat_of(s.pair.to, "counters.chunks_refused");
    send_chunk(open_grant(OPEN + 20), s.rogue.heard.slots[0], 0, 1);
    ROGUE_WAIT(&s.rogue, stat_of(s.pair.to, "counters.chunks_refused") > before);
    serve();
}

static const struct {
    bool early;                  /* the chunk comes before what is named */
    uint32_t sent, first;        /* open grant and page of a chunk */
    uint32_t from, named, pages; /* open grants that are named, and pages of the last one */
    enum strait_reason reason;
} false_ones[] = {
    {false, 2, 2, 0, 2, 1, STRAIT_REASON_GEOMETRY}, /* is not named */
    {true, 2, 2, 0, 2, 1, STRAIT_REASON_GEOMETRY},
    {true, 0, 0, 1, 2, 1, STRAIT_REASON_GEOMETRY}, /* is before those that are named */
    {true, 0, 0, 0, 0, 0, STRAIT_REASON_GEOMETRY}, /* and none is named */
    {true, 1, 2, 0, 2, 2, STRAIT_REASON_CODEC},    /* has fewer pages */
};

TEST_LOOP(what_cannot_be_fails_its_request_alone, COUNT(false_ones))
{
    begin();
    if (false_ones[_i].early)
        send_open(false_ones[_i].sent, false_ones[_i].first);
    say_segments(false_ones[_i].named == 0 ? 0 : open_grant(false_ones[_i].from),
                 (const uint32_t[]){1, false_ones[_i].pages}, false_ones[_i].named);
    if (!false_ones[_i].early)
        send_open(false_ones[_i].sent, false_ones[_i].first);
    ROGUE_WAIT(&s.rogue, s.expectation->decided && s.expectation->drained);
    ck_assert_int_eq(STRAIT_FAILED, s.expectation->state);
    ck_assert_int_eq((int)false_ones[_i].reason, (int)s.expectation->reason);
    ck_assert(!s.rogue.went_down);
    release_open(0); /* the link stays: every slot comes back all the same */
    ROGUE_WAIT(&s.rogue, stat_of(s.pair.to, "gauges.slots_used") == 0);
}

TEST_LOOP(a_chunk_of_an_open_grant_lands_once, 2)
{
    begin();
    double before = stat_of(s.pair.to, "counters.chunks_refused");
    if (_i == 0)
        say_segments(open_grant(0), one_each, OPEN);
    send_open(3, 3);
    send_open(3, 3);
    ROGUE_WAIT(&s.rogue, stat_of(s.pair.to, "counters.chunks_refused") == before + 1);
    if (_i == 1)
        say_segments(open_grant(0), one_each, OPEN);
    for (uint32_t i = 0; i < OPEN; i++)
        if (i != 3)
            send_open(i, i);
    serve();
}

int main(void)
{
    (void)machine_watch();
    return run_tests("node_rogue_source", node_setup, teardown);
}
