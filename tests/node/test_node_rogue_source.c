/* A peer that brings chunks which nobody granted, or that are none, to a node whose pages are in a GPU's memory: into
 * slots of that GPU, and of the node's host memory. What was not granted is refused and changes nothing; what cannot be
 * decoded fails its request alone, and no byte lands outside of the pages that were expected. */
#include "tests/node/rogue_source.h"

#include "daemon/peers/peer.h"

enum { EXPECTED = 8, PAGE_BYTES = 4096 };

/* What is to be sent for the one open grant: a chunk of all pages. */
static struct chunk_header header;
static uint8_t *slot;
static size_t size;

static void begin(struct scene *s, enum where where)
{
    scene_begin(s, where, EXPECTED, PAGE_BYTES);
    ck_assert_uint_eq(1, s->rogue.heard.request.slot_count);
    slot = slot_at(s, s->rogue.heard.slots[0]);
    header = header_of(s, s->rogue.heard.request.grant, s->rogue.heard.slots[0]);
    size = encode_chunk(s, s->rogue.heard.slots[0], 0, EXPECTED);
}

static void say_ready(struct scene *s)
{
    say_segments(s, s->rogue.heard.request.grant, (const uint32_t[]){EXPECTED}, 1);
}

static void arrives_whole(struct scene *s)
{
    say_ready(s);
    rogue_send(&s->rogue, &header, size);
    ends_whole(s);
}

static double refused(struct scene *s)
{
    return stat_of(s->pair.sink, "counters.chunks_refused");
}

/* ---- What was not granted ---------------------------------------------------------------------------------------- */

static void another_slot(struct scene *s)
{
    (void)s;
    header.slot++;
}

static void a_slot_of_the_other_arena(struct scene *s)
{
    header.slot = s->where == FAR ? 0 : s->rogue.peer->slot_count;
}

static void a_slot_behind_all(struct scene *s)
{
    header.slot = s->where == FAR ? s->rogue.heard.arena.first_slot + s->rogue.heard.arena.slot_count : UINT32_MAX;
}

static void another_token(struct scene *s)
{
    (void)s;
    header.token ^= 1;
}

static void another_leg(struct scene *s)
{
    (void)s;
    header.leg++;
}

static void another_grant(struct scene *s)
{
    (void)s;
    header.grant++;
}

static void another_epoch(struct scene *s)
{
    (void)s;
    header.epoch.counter++;
}

static void another_incarnation(struct scene *s)
{
    (void)s;
    header.epoch.incarnation++;
}

static void no_bytes(struct scene *s)
{
    (void)s;
    size = 0;
}

static void more_bytes_than_the_slot_has(struct scene *s)
{
    size = s->slot_bytes + 1;
}

static void (*const strange[])(struct scene *s) = {another_slot,      a_slot_of_the_other_arena,
                                                   a_slot_behind_all, another_token,
                                                   another_leg,       another_grant,
                                                   another_epoch,     another_incarnation,
                                                   no_bytes,          more_bytes_than_the_slot_has};

START_TEST(what_was_not_granted_is_refused_and_what_was_still_lands)
{
    struct scene s;
    begin(&s, (enum where)(_i % WHERES));
    const struct chunk_header right = header;
    const size_t right_size = size;
    double before = refused(&s);
    strange[_i / WHERES](&s);
    rogue_send(&s.rogue, &header, size);
    ROGUE_WAIT(&s.rogue, refused(&s) == before + 1);
    ck_assert(!s.expectation->decided && !s.rogue.went_down);
    ck_assert(pool_as_imagined(s.sink));
    header = right;
    size = right_size;
    arrives_whole(&s);
    scene_end(&s);
}
END_TEST

START_TEST(a_chunk_lands_once)
{
    struct scene s;
    begin(&s, (enum where)_i);
    double before = refused(&s);
    arrives_whole(&s);
    memset(slot, 1, size);
    rogue_send(&s.rogue, &header, size);
    ROGUE_WAIT(&s.rogue, refused(&s) == before + 1);
    scene_end(&s);
}
END_TEST

/* ---- What cannot be decoded -------------------------------------------------------------------------------------- */

static void noise(struct scene *s)
{
    (void)s;
    struct rng rng = rng_init(6);
    rng_fill(&rng, slot, size);
}

static void zeroes(struct scene *s)
{
    (void)s;
    memset(slot, 0, size);
}

static void one_bit_of_a_page(struct scene *s)
{
    (void)s;
    slot[size - 1] ^= 1;
}

static void one_bit_of_a_sum(struct scene *s)
{
    (void)s;
    slot[STRAIT_CHUNK_HEADER_BYTES + 15] ^= 1;
}

static void a_byte_too_few(struct scene *s)
{
    (void)s;
    size--;
}

static void a_header_alone(struct scene *s)
{
    (void)s;
    size = STRAIT_CHUNK_HEADER_BYTES;
}

static void half_a_header(struct scene *s)
{
    (void)s;
    size = STRAIT_CHUNK_HEADER_BYTES / 2;
}

static void fewer_pages(struct scene *s)
{
    size = encode_chunk(s, s->rogue.heard.slots[0], 0, EXPECTED - 1);
}

static void (*const spoilt[])(struct scene *s) = {noise,          zeroes,         one_bit_of_a_page, one_bit_of_a_sum,
                                                  a_byte_too_few, a_header_alone, half_a_header,     fewer_pages};

START_TEST(what_is_no_chunk_fails_its_request_alone)
{
    struct scene s;
    begin(&s, (enum where)(_i % WHERES));
    spoilt[_i / WHERES](&s);
    say_ready(&s);
    rogue_send(&s.rogue, &header, size);
    ROGUE_WAIT(&s.rogue, s.expectation->decided && s.expectation->drained);
    ck_assert_int_eq(STRAIT_FAILED, s.expectation->state);
    ck_assert_msg(s.expectation->reason == STRAIT_REASON_CODEC || s.expectation->reason == STRAIT_REASON_INTEGRITY,
                  "%s", strait_reason_string((int)s.expectation->reason));
    ck_assert(!s.rogue.went_down);
    scene_end(&s);
}
END_TEST

/* Without it the tests above would show nothing. */
START_TEST(an_honest_chunk_lands)
{
    struct scene s;
    begin(&s, (enum where)_i);
    arrives_whole(&s);
    scene_end(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_rogue_source");
    TCase *tcase = node_case(suite, "chunks");
    tcase_add_loop_test(tcase, an_honest_chunk_lands, 0, WHERES);
    tcase_add_loop_test(tcase, what_was_not_granted_is_refused_and_what_was_still_lands, 0, WHERES * COUNT(strange));
    tcase_add_loop_test(tcase, a_chunk_lands_once, 0, WHERES);
    tcase_add_loop_test(tcase, what_is_no_chunk_fails_its_request_alone, 0, WHERES * COUNT(spoilt));
    return node_main(suite);
}
