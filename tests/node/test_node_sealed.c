/* Encrypted pages between two nodes: they arrive, whatever their size, and nobody reads them on the way. A chunk that
 * somebody has changed on the way, cut or said again fails its transfer, and nothing else. */
#include "tests/node/harness.h"

#include "daemon/base/fault.h"
#include "daemon/chunk_header.h"
#include "transport/transport.h"

#ifdef STRAIT_HAVE_UCX

#define OWN_COOKIE 1u /* of chunks that the hook sends: no address */

/* ---- Somebody on the way ----------------------------------------------------------------------------------------- */

enum harm { NONE, FLIP_FIRST, FLIP_LAST, FLIP_NUMBER, AGAIN, CUT, HARMS };

/* Guarded by nothing: one thread of one node sends, and the test looks when all is quiet. */
static struct {
    enum harm harm;
    uint32_t passed; /* chunks that have gone by */
    uint32_t at;     /* which of them is harmed, from 1 on; 0: none */
    uint8_t page[64];
    bool readable; /* that part of a page was seen */
    uint8_t *before;
    size_t before_size;
} way;

static void cut(struct fault_chunk *chunk)
{
    (void)link_send(chunk->link, chunk->header, chunk->header_size, chunk->data, chunk->size - 1, chunk->handle,
                    OWN_COOKIE);
}

static void harm_chunk(struct fault_chunk *chunk)
{
    uint8_t *data = (uint8_t *)chunk->data;
    way.readable |= memmem(data, chunk->size, way.page, sizeof(way.page)) != NULL;
    bool now = ++way.passed == way.at;
    if (now && way.harm == FLIP_FIRST)
        data[0] ^= 1;
    else if (now && way.harm == FLIP_LAST)
        data[chunk->size - 1] ^= 0x80;
    else if (now && way.harm == FLIP_NUMBER)
        ((uint8_t *)chunk->header)[CHUNK_HEADER_BYTES - 8] ^= 1;
    else if (now && way.harm == AGAIN && chunk->size == way.before_size)
        memcpy(data, way.before, chunk->size);
    else if (now && way.harm == CUT)
        cut(chunk);
    free(way.before);
    way.before = malloc(chunk->size);
    way.before_size = chunk->size;
    memcpy(way.before, data, chunk->size);
}

static bool hook(enum fault_point point, void *where, const void *what)
{
    (void)where;
    if (point == FAULT_CHUNK)
        harm_chunk((struct fault_chunk *)what);
    return point == FAULT_CHUNK_DONE && *(const uint64_t *)what == OWN_COOKIE;
}

static void watch_way(const struct pair *pair, enum harm harm, uint32_t at)
{
    free(way.before);
    memset(&way, 0, sizeof(way));
    way.harm = harm;
    way.at = at;
    if (pair->source->geometry.gpu == 0)
        memcpy(way.page, pool_page(pair->source, 0, 0), sizeof(way.page));
    fault_hook = hook;
}

static void sealed_teardown(void)
{
    node_teardown();
    fault_hook = NULL;
    free(way.before);
    way.before = NULL;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static struct pair sealed_init(int wire)
{
    struct pair pair = pair_init(wire);
    test_node_encrypt(pair.a);
    test_node_encrypt(pair.b);
    strcpy(pair.a->options.coding, "raw"); /* so that chunks are of equal sizes */
    return pair;
}

static struct pair sealed_open(int wire, struct geometry geometry)
{
    struct pair pair = sealed_init(wire);
    pair_start(&pair, geometry);
    return pair;
}

/* ---- Arriving ---------------------------------------------------------------------------------------------------- */

static const struct geometry shapes[] = {
    {.pages = 1},
    {.pages = 64, .layers = 4, .roles = 2},
    {.pages = 7, .rows = 5, .row_bytes = 98},
    {.pages = 9, .row_bytes = 100000},
    {.pages = 64, .layers = 3, .gpu = 1, .sink_gpu = 2},
};

TEST_LOOP(encrypted_pages_arrive_and_nobody_reads_them, COUNT(shapes) + COUNT(codings) - 1)
{
    struct pair pair = sealed_init(UCX);
    use_codebook(pair.a, "a", 0x7c);
    use_codebook(pair.b, "b", 0x7c);
    strcpy(pair.a->options.coding, codings[_i % COUNT(codings)]);
    pair_start(&pair, shapes[_i % COUNT(shapes)]);
    watch_way(&pair, NONE, 0);
    for (int i = 0; i < 3; i++)
        move_all(pair.source, pair.sink);
    move_all(pair.sink, pair.source);
    pair_quiet(&pair);
    ck_assert_uint_ge(way.passed, 4);
    ck_assert(!way.readable);
    ck_assert_double_eq(0, stat_of(pair.to, "counters.chunks_forged"));
}

TEST(without_encryption_pages_can_be_read)
{
    struct pair pair = pair_init(UCX);
    strcpy(pair.a->options.coding, "raw");
    pair_start(&pair, shapes[1]);
    watch_way(&pair, NONE, 0);
    move_all(pair.source, pair.sink);
    pair_quiet(&pair);
    ck_assert(way.readable);
}

TEST(shared_memory_is_not_encrypted)
{
    struct pair pair = sealed_open(SHM, shapes[1]);
    move_all(pair.source, pair.sink);
    move_all(pair.sink, pair.source);
}

/* The largest page of which a chunk fits a slot for certain. */
static uint32_t largest_page(const struct node_options *options)
{
    static const uint32_t id;
    static uint8_t byte;
    for (uint32_t bytes = (uint32_t)options->chunk_bytes;; bytes -= 2) {
        struct strait_region region = {
            .base = &byte, .rows = 1, .row_bytes = bytes, .row_stride = bytes, .page_stride = bytes, .page_count = 1};
        const struct strait_pages pages = {.regions = &region, .ids = &id, .region_count = 1, .id_count = 1};
        if (strait_encode_bound(&pages) <= options->chunk_bytes)
            return bytes;
    }
}

TEST_LOOP(a_page_may_fill_its_slot_but_for_the_tag, 3)
{
    static const struct {
        bool sealed;
        uint32_t less; /* than the largest one without encryption */
        bool fits;
    } cases[] = {{false, 0, true}, {true, 16, true}, {true, 0, false}};
    struct pair pair = cases[_i].sealed ? sealed_init(UCX) : pair_init(UCX);
    pair_start(&pair, (struct geometry){.pages = 3, .row_bytes = largest_page(&pair.a->options) - cases[_i].less});
    if (cases[_i].fits) {
        move_all(pair.source, pair.sink);
        return;
    }
    struct move move = move_begin(pair.source, pair.sink);
    ends_failed(move.expectation, STRAIT_REASON_GEOMETRY);
    ends(move.expectation, move.offer);
}

/* ---- Harm -------------------------------------------------------------------------------------------------------- */

/* Chunks that no honest node has encrypted: the first, and one in the middle. */
TEST_LOOP(a_chunk_that_was_changed_fails_its_transfer_and_nothing_else, 2 * (HARMS - 1))
{
    const enum harm harm = (enum harm)(1 + _i / 2);
    struct pair pair = sealed_init(UCX);
    pair.a->options.chunk_target = pair.b->options.chunk_target = 32u << 10;
    pair_start(&pair, (struct geometry){.pages = 64});
    move_all(pair.source, pair.sink);
    watch_way(&pair, harm, harm == AGAIN ? 2 + _i % 2 : 1 + 3 * (_i % 2));
    struct move move = move_begin(pair.source, pair.sink);
    ends_failed(move.expectation, STRAIT_REASON_INTEGRITY);
    ends(move.expectation, move.offer);
    undefined(move.expectation);
    pair_quiet(&pair);
    ck_assert_double_eq(1, stat_of(pair.to, "counters.chunks_forged"));
    ck_assert_uint_ge(way.passed, way.at);
    way.at = 0;
    move_all(pair.source, pair.sink);
}

#else

TEST(nothing_is_encrypted_in_this_build)
{
    printf("no transport between hosts in this build\n");
}

#endif

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    (void)machine_watch();
#ifdef STRAIT_HAVE_UCX
    return run_tests("node_sealed", node_setup, sealed_teardown);
#else
    return 77;
#endif
}
