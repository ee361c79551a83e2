/* The block coders of every variant, called directly: against the scalar one, and against the format's own rules. */
#include <check.h>
#include <string.h>

#include "kernels/codec.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { TOP16, TIERED, CODERS };

enum { ROUNDS = 20, BLOCKS_PER_ROUND = 500, CHANGES = 4 };

/* Memory that ends at guard pages: what is read or written a byte too far is a crash. */
static struct guarded plain, coded, back, stage[2];
static uint8_t first_back[BLOCK_BYTES];
static struct strait_codebook *codebook;

static void setup(void)
{
    guarded_init(&plain, BLOCK_BYTES);
    guarded_init(&coded, BLOCK_STAGE_BYTES);
    guarded_init(&back, BLOCK_BYTES);
    guarded_init(&stage[0], BLOCK_STAGE_BYTES);
    guarded_init(&stage[1], BLOCK_STAGE_BYTES);
    codebook = test_codebook();
}

static void teardown(void)
{
    strait_codebook_destroy(codebook);
    guarded_fini(&plain);
    guarded_fini(&coded);
    guarded_fini(&back);
    guarded_fini(&stage[0]);
    guarded_fini(&stage[1]);
}

static const struct block_ops *ops_of(int index)
{
    return variant(index)->blocks;
}

static uint8_t *last_bytes(const struct guarded *guarded, size_t size)
{
    return guarded->bytes + guarded->size - size;
}

/* ---- One block ------------------------------------------------------------------------------------------------- */

struct sample {
    uint32_t n, t, word;
    const struct table *table;
    const uint8_t *bytes; /* 2n + t of them */
};

/* What a coder told. */
struct told {
    uint64_t sum;
    size_t used; /* with the tail byte; 0: refused */
    uint32_t escapes;
};

static void require_same(const struct told *a, const struct told *b)
{
    require(a->used == b->used && a->escapes == b->escapes && a->sum == b->sum);
}

static struct told encode(const struct block_ops *ops, int coder, const struct sample *s, uint8_t *dst)
{
    struct block_bytes block = {.bytes = (uint8_t *)s->bytes, .size = 2 * s->n + s->t, .word = s->word};
    struct told e = {0};
    e.used = coder == TOP16 ? ops->encode_top16(dst, &block, s->table, &e.escapes)
                            : ops->encode_tiered(dst, &block, s->table, &e.escapes);
    e.sum = block.sum;
    if (s->t != 0)
        dst[e.used++] = s->bytes[2 * s->n];
    return e;
}

/* From the last `size` bytes of `coded` to the last bytes of `back`. */
static struct told decode(const struct block_ops *ops, int coder, bool listed, const struct sample *s, size_t size)
{
    uint32_t bytes = 2 * s->n + s->t;
    struct block_bytes block = {.bytes = last_bytes(&back, bytes), .size = bytes, .word = s->word};
    const uint8_t *src = last_bytes(&coded, size);
    struct told d = {0};
    memset(back.bytes, CANARY, back.size);
    d.used = coder == TOP16 ? ops->decode_top16(&block, src, size, listed, s->table, &d.escapes)
                            : ops->decode_tiered(&block, src, size, s->table, &d.escapes);
    require(is_filled(back.bytes, back.size - bytes, CANARY));
    if (d.used == 0)
        return (struct told){0};
    d.sum = block.sum;
    if (memcmp(block.bytes, block.bytes + 2, 2 * s->n - 2) == 0)
        require(block.maybe_const);
    return d;
}

/* Bytes that every block of this kind has: a decoder may count on them. */
static size_t static_size(int coder, const struct sample *s)
{
    return s->n + (coder == TOP16 ? pack_bytes_4bit(s->n) : pack_bytes_2bit(s->n)) + s->t;
}

/* Decodes with every variant; all agree with the scalar one. */
static struct told decode_all(int coder, bool listed, const struct sample *s, size_t size)
{
    uint32_t bytes = 2 * s->n + s->t;
    struct told first = decode(ops_of(0), coder, listed, s, size);
    memcpy(first_back, last_bytes(&back, bytes), bytes);
    for (int v = 1; v < variant_count(); v++) {
        struct told other = decode(ops_of(v), coder, listed, s, size);
        require_same(&first, &other);
        if (first.used > 0)
            require(memcmp(first_back, last_bytes(&back, bytes), bytes) == 0);
    }
    return first;
}

/* Encodes with every variant to stage[0]; all agree. */
static struct told encode_all(int coder, const struct sample *s)
{
    struct told first = encode(ops_of(0), coder, s, stage[0].bytes);
    require(first.sum == sum_terms(s->bytes, 2 * s->n + s->t, s->word));
    for (int v = 1; v < variant_count(); v++) {
        struct told other = encode(ops_of(v), coder, s, stage[1].bytes);
        require_same(&first, &other);
        require(memcmp(stage[0].bytes, stage[1].bytes, first.used) == 0);
    }
    return first;
}

static void check_sample(int coder, const struct sample *s)
{
    struct told e = encode_all(coder, s);
    if (e.used > BLOCK_BYTES) /* the chunk layer hands over none that is not smaller than raw */
        return;
    memcpy(last_bytes(&coded, e.used), stage[0].bytes, e.used);
    struct told d = decode_all(coder, e.escapes > 0, s, e.used);
    require_same(&e, &d);
    require(memcmp(first_back, s->bytes, 2 * s->n + s->t) == 0);
}

/* A changed block is refused by all, or is the one way to write some other block. */
static void check_changed(struct rng *rng, int coder, const struct sample *s)
{
    struct told e = encode(ops_of(0), coder, s, stage[0].bytes);
    size_t fixed = static_size(coder, s), size = fixed + rng_below(rng, (uint32_t)(e.used - fixed) + 20);
    bool listed = rng_below(rng, 8) == 0 ? e.escapes == 0 : e.escapes > 0;
    if (rng_below(rng, 2) == 0)
        size = e.used;
    if (size > BLOCK_BYTES)
        return;
    uint8_t *bytes = last_bytes(&coded, size);
    memset(stage[0].bytes + e.used, 0, 32);
    memcpy(bytes, stage[0].bytes, size);
    for (uint32_t k = rng_below(rng, 3); k > 0 && size > s->n; k--)
        bytes[s->n + rng_below(rng, (uint32_t)(size - s->n))] ^= (uint8_t)(1u << rng_below(rng, 8));
    struct told d = decode_all(coder, listed, s, size);
    if (d.used == 0)
        return;
    struct sample other = *s;
    other.bytes = first_back;
    struct told again = encode(ops_of(0), coder, &other, stage[1].bytes);
    require_same(&d, &again);
    require(memcmp(bytes, stage[1].bytes, d.used) == 0);
}

static struct sample random_sample(struct rng *rng, uint32_t n, uint32_t t, enum pattern pattern, uint32_t table)
{
    uint8_t *bytes = last_bytes(&plain, 2 * n + t);
    fill_pattern(rng, pattern, strait_codebook_ranking(codebook, table), bytes, 2 * n + t);
    return (struct sample){
        .n = n, .t = t, .word = SUM_LANES * rng_below(rng, 1 << 18), .table = &codebook->tables[table], .bytes = bytes};
}

/* A block with its tail byte is never longer than a full one. */
static uint32_t random_tail(struct rng *rng, uint32_t n)
{
    return n < STRAIT_BLOCK_VALUES ? rng_below(rng, 2) : 0;
}

TEST_LOOP(every_variant_codes_random_blocks_like_scalar, ROUNDS)
{
    struct rng rng = rng_init(100 + (uint64_t)_i);
    for (int i = 0; i < BLOCKS_PER_ROUND / STRIDE; i++) {
        uint32_t n = 1 + rng_below(&rng, rng_below(&rng, 3) == 0 ? STRAIT_BLOCK_VALUES : 700);
        enum pattern pattern = (enum pattern)rng_below(&rng, PATTERNS);
        struct sample s = random_sample(&rng, n, random_tail(&rng, n), pattern, rng_below(&rng, TEST_TABLES));
        check_sample(TOP16, &s);
        check_sample(TIERED, &s);
    }
}

TEST_LOOP(what_every_variant_accepts_is_what_the_encoder_writes, ROUNDS)
{
    struct rng rng = rng_init(200 + (uint64_t)_i);
    for (int i = 0; i < BLOCKS_PER_ROUND / STRIDE; i++) {
        uint32_t n = 1 + rng_below(&rng, rng_below(&rng, 10) == 0 ? STRAIT_BLOCK_VALUES : 200);
        enum pattern pattern = (enum pattern)rng_below(&rng, PATTERNS);
        struct sample s = random_sample(&rng, n, random_tail(&rng, n), pattern, rng_below(&rng, TEST_TABLES));
        for (int k = 0; k < 2 * CHANGES; k++)
            check_changed(&rng, k % CODERS, &s);
    }
}

TEST_LOOP(every_variant_codes_every_length_like_scalar, 4)
{
    struct rng rng = rng_init(300);
    for (uint32_t n = 1; n <= STRAIT_BLOCK_VALUES; n += n < 200 || n > STRAIT_BLOCK_VALUES - 70 ? 1 : 37) {
        for (uint32_t t = 0; t <= (n < STRAIT_BLOCK_VALUES); t++) {
            struct sample s = random_sample(&rng, n, t, (enum pattern)((n + (uint32_t)_i) % PATTERNS), n % TEST_TABLES);
            check_sample(TOP16, &s);
            check_sample(TIERED, &s);
        }
    }
}

TEST_LOOP(every_variant_looks_up_every_exponent_in_any_table, 40)
{
    struct rng rng = rng_init(400 + (uint64_t)_i);
    uint8_t ranking[256], bytes[512 + 64];
    struct strait_codebook *own = NULL;
    for (unsigned r = 0; r < 256; r++) {
        unsigned other = rng_below(&rng, r + 1);
        ranking[r] = r == other ? (uint8_t)r : ranking[other];
        ranking[other] = (uint8_t)r;
    }
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &own));
    for (uint32_t first = 0; first < 32; first++) {
        for (uint32_t i = 0; i < 256 + first; i++)
            put_value(bytes, i, join_value((uint8_t)rng_next(&rng), (uint8_t)i));
        struct sample s = {.n = 256 + first, .table = &own->tables[0], .bytes = bytes};
        check_sample(TOP16, &s);
        check_sample(TIERED, &s);
    }
    strait_codebook_destroy(own);
}

/* Alignments: stored past the caches where the memory is aligned, and through them elsewhere. */
TEST(every_variant_decodes_to_any_address)
{
    static _Alignas(64) uint8_t memory[BLOCK_BYTES + 256];
    struct rng rng = rng_init(500);
    for (uint32_t n = 1; n <= STRAIT_BLOCK_VALUES; n = 2 * n + rng_below(&rng, 3)) {
        struct sample s = random_sample(&rng, n, 0, PATTERN_FALLING, 0);
        struct told e = encode(ops_of(0), TIERED, &s, stage[0].bytes);
        for (int k = 0; k < variant_count() * 65; k++) {
            const struct block_ops *ops = ops_of(k / 65);
            struct block_bytes block = {.bytes = memory + k % 65, .size = 2 * n, .word = s.word, .stream = true};
            uint32_t escapes;
            memset(memory, CANARY, sizeof(memory));
            require(e.used == ops->decode_tiered(&block, stage[0].bytes, e.used, s.table, &escapes));
            ops->flush();
            require(e.sum == block.sum);
            require(memcmp(s.bytes, block.bytes, block.size) == 0);
            require(is_filled(memory, (size_t)(k % 65), CANARY));
            require(is_filled(block.bytes + block.size, 64, CANARY));
        }
    }
}

/* ---- FP8 -------------------------------------------------------------------------------------------------------- */

static uint8_t lists[2][BLOCK_BYTES + VECTOR_BYTES];

/* Splits, and joins from memory that ends with the rests. */
static void check_fp8(struct rng *rng, uint32_t count, bool e5m2)
{
    const size_t rests = e5m2 ? pack_bytes_2bit(count) + pack_bytes_1bit(count) : pack_bytes_4bit(count);
    uint8_t *src = last_bytes(&plain, count), *dst = last_bytes(&back, count);
    struct block_bytes block = {.bytes = src, .size = count, .word = SUM_LANES * rng_below(rng, 1 << 18)};
    rng_fill(rng, src, count);
    for (int v = 0; v < variant_count(); v++) {
        struct block_bytes joined = {.bytes = dst, .size = count, .word = block.word, .stream = rng_below(rng, 2) != 0};
        uint8_t *to = last_bytes(&stage[1], rests);
        memset(stage[1].bytes, CANARY, stage[1].size);
        memset(back.bytes, CANARY, back.size);
        ops_of(v)->split_fp8(lists[v > 0], to, &block, e5m2);
        require(block.sum == sum_terms(src, count, block.word));
        require(is_filled(stage[1].bytes, stage[1].size - rests, CANARY));
        if (v == 0)
            memcpy(stage[0].bytes, to, rests);
        require(memcmp(stage[0].bytes, to, rests) == 0 && memcmp(lists[0], lists[v > 0], count) == 0);
        ops_of(v)->join_fp8(&joined, lists[0], to, e5m2);
        ops_of(v)->flush();
        require(joined.sum == block.sum && memcmp(src, dst, count) == 0);
        require(is_filled(back.bytes, back.size - count, CANARY));
    }
}

/* A tier: its stream, what goes on to the next, and back. */
static void check_tier(struct rng *rng, uint32_t count, uint8_t first)
{
    static uint8_t exponents[BLOCK_BYTES], on[BLOCK_BYTES + VECTOR_BYTES], streams[2][BLOCK_BYTES];
    struct table table = {.window = 0};
    uint32_t threes = 0;
    memset(table.rank, 255, sizeof(table.rank));
    for (uint8_t r = 0; r < 9; r++) {
        table.exponent[r] = (uint8_t)(r * 7 % 32);
        table.rank[table.exponent[r]] = r;
    }
    for (uint32_t i = 0; i < count;) { /* lower ranks have been taken by the tier before */
        exponents[i] = (uint8_t)rng_below(rng, 32);
        i += table.rank[exponents[i]] >= first;
    }
    for (int v = 0; v < variant_count(); v++) {
        memcpy(lists[0], exponents, count);
        uint32_t more = ops_of(v)->encode_tier(streams[v > 0], lists[0], count, &table, first);
        if (v == 0) {
            threes = more;
            memcpy(on, lists[0], more);
        }
        require(more == threes && memcmp(on, lists[0], more) == 0);
        require(memcmp(streams[0], streams[v > 0], pack_bytes_2bit(count)) == 0);
        require(ops_of(v)->count_threes(streams[0], count) == threes);
        ops_of(v)->decode_tier(lists[1], streams[0], count, on, &table, first);
        require(memcmp(lists[1], exponents, count) == 0);
    }
}

TEST_LOOP(every_variant_codes_fp8_of_every_length_like_scalar, 2)
{
    struct rng rng = rng_init(550 + (uint64_t)_i);
    for (uint32_t count = 1; count <= BLOCK_BYTES; count += count < 300 || count > BLOCK_BYTES - 140 ? 1 : 211)
        check_fp8(&rng, count, _i == 1);
}

TEST(every_variant_codes_tiers_of_every_length_like_scalar)
{
    struct rng rng = rng_init(560);
    for (uint32_t count = 1; count <= BLOCK_BYTES; count += count < 300 || count > BLOCK_BYTES - 140 ? 1 : 211)
        check_tier(&rng, count, (uint8_t)(count % 3 * 3));
}

/* ---- Sums and copies ------------------------------------------------------------------------------------------- */

/* sum(bytes) without its seed, of bytes that begin at word 0. */
static uint64_t reference_terms(const uint8_t *bytes, size_t size)
{
    return reference_sum(bytes, size, 1, 2, 3) - sum_seed(1, 2, 3);
}

TEST_LOOP(every_variant_sums_every_size_as_the_format_says, variant_count())
{
    const struct block_ops *ops = ops_of(_i);
    struct rng rng = rng_init(600);
    rng_fill(&rng, plain.bytes, plain.size);
    for (size_t size = 0; size <= BLOCK_BYTES; size += size < 700 || size > BLOCK_BYTES - 140 ? 1 : 61) {
        const uint8_t *src = last_bytes(&plain, size);
        require(reference_terms(src, size) == ops->sum(src, size, 0));
    }
}

TEST_LOOP(sums_of_the_parts_of_a_page_add_up, variant_count())
{
    const struct block_ops *ops = ops_of(_i);
    struct rng rng = rng_init(601);
    size_t size = BLOCK_BYTES - 5;
    rng_fill(&rng, plain.bytes, plain.size);
    for (uint32_t cut = 0; cut < size; cut += 4 * SUM_LANES * (1 + rng_below(&rng, 5))) {
        uint64_t parts = ops->sum(plain.bytes, cut, 0) + ops->sum(plain.bytes + cut, size - cut, cut / 4);
        require(reference_terms(plain.bytes, size) == parts);
    }
}

TEST_LOOP(keys_of_the_last_words_of_the_longest_page_are_right, variant_count())
{
    const struct block_ops *ops = ops_of(_i);
    struct rng rng = rng_init(602);
    uint8_t *page = calloc(1, STRAIT_PAGE_BYTES_MAX);
    size_t begin = STRAIT_PAGE_BYTES_MAX - BLOCK_BYTES;
    uint64_t zeros = ops->sum(page, begin, 0);
    rng_fill(&rng, page + begin, BLOCK_BYTES);
    ck_assert_uint_eq(reference_terms(page, STRAIT_PAGE_BYTES_MAX),
                      zeros + ops->sum(page + begin, BLOCK_BYTES, (uint32_t)begin / 4));
    free(page);
}

TEST_LOOP(every_variant_copies_exactly_and_sums_what_it_copies, variant_count())
{
    static _Alignas(64) uint8_t memory[BLOCK_BYTES + 256];
    const struct block_ops *ops = ops_of(_i);
    struct rng rng = rng_init(603);
    rng_fill(&rng, plain.bytes, plain.size);
    for (int k = 0; k < 4000; k++) {
        size_t size = rng_below(&rng, k % 4 == 0 ? BLOCK_BYTES : 400) + 1;
        const uint8_t *src = last_bytes(&plain, size);
        uint8_t *dst = memory + rng_below(&rng, 130);
        bool stream = rng_below(&rng, 2) != 0, summed = rng_below(&rng, 2) != 0;
        memset(memory, CANARY, sizeof(memory));
        if (summed)
            require(sum_terms(src, size, 16) == ops->sum_copy(dst, src, size, 16, stream));
        else
            ops->copy(dst, src, size, stream);
        ops->flush();
        require(memcmp(src, dst, size) == 0);
        require(is_filled(memory, (size_t)(dst - memory), CANARY));
        require(is_filled(dst + size, (size_t)(memory + sizeof(memory) - dst) - size, CANARY));
    }
}

/* ---- Changes that the sum must see ----------------------------------------------------------------------------- */

enum { SUMMED = 4096, TRIALS = 100000 };

static uint8_t page[SUMMED], changed[SUMMED];

/* The terms that are the same are left out. */
static void assert_seen(size_t from, size_t end)
{
    from = from / 64 * 64;
    end = (end + 63) / 64 * 64;
    require(sum_terms(page + from, end - from, (uint32_t)from / 4) !=
            sum_terms(changed + from, end - from, (uint32_t)from / 4));
}

enum { ZEROS = 1, FALLING = 2, NOISE = 4, VALUES = FALLING | NOISE, ANY = ZEROS | VALUES };

static void fill_page(struct rng *rng, int kind)
{
    uint8_t ranking[256];
    test_ranking(ranking, 0);
    if (kind == ZEROS)
        memset(page, 0, SUMMED);
    else
        fill_pattern(rng, kind == FALLING ? PATTERN_FALLING : PATTERN_NOISE, ranking, page, SUMMED);
    memcpy(changed, page, SUMMED);
}

TEST_FIXTURE(seen, NULL, NULL);

TEST_LOOP(sum_sees_every_flipped_bit, 3)
{
    struct rng rng = rng_init(700);
    fill_page(&rng, 1 << _i);
    for (size_t bit = 0; bit < 8 * SUMMED; bit++) {
        changed[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_seen(bit / 8, bit / 8 + 1);
        changed[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

TEST_LOOP(sum_sees_any_two_flipped_bits_of_64_bytes, 3)
{
    struct rng rng = rng_init(701);
    fill_page(&rng, 1 << _i);
    for (size_t a = 0; a < 512; a++) {
        for (size_t b = a + 1; b < 512; b++) {
            changed[a / 8] ^= (uint8_t)(1u << a % 8);
            changed[b / 8] ^= (uint8_t)(1u << b % 8);
            assert_seen(0, 64);
            memcpy(changed, page, 64);
        }
    }
}

/* Random changes of what is between two places; some choose what was there before too. */
struct span {
    size_t from, end;
};

static struct span between(size_t a, size_t b, size_t size)
{
    return (struct span){a < b ? a : b, (a < b ? b : a) + size};
}

static struct span other_word(struct rng *rng, size_t size)
{
    size_t at = size * rng_below(rng, (uint32_t)(SUMMED / size));
    rng_fill(rng, changed + at, size);
    return between(at, at, size);
}

static struct span two_signs(struct rng *rng, size_t size)
{
    size_t a = 2 * rng_below(rng, SUMMED / 2), b = 2 * rng_below(rng, SUMMED / 2);
    changed[a + 1] ^= 0x80;
    changed[b + 1] ^= 0x80;
    return between(a, b, size);
}

/* At multiples of their size. */
static struct span swapped_pieces(struct rng *rng, size_t size)
{
    size_t a = size * rng_below(rng, (uint32_t)(SUMMED / size)), b = size * rng_below(rng, (uint32_t)(SUMMED / size));
    memcpy(changed + a, page + b, size);
    memcpy(changed + b, page + a, size);
    return between(a, b, size);
}

static struct span moved_zeros(struct rng *rng, size_t size)
{
    size_t from = rng_below(rng, SUMMED / 2) & ~1u, run = 2 + 2 * rng_below(rng, 300),
           by = size + 2 * rng_below(rng, 100);
    memset(page + from, 0, run);
    memcpy(changed + from, page + from + run, by);
    memset(changed + from + by, 0, run);
    return (struct span){from, from + run + by};
}

static struct span moved_value(struct rng *rng, size_t size)
{
    size_t a = 2 * rng_below(rng, SUMMED / 2), b = 2 * rng_below(rng, SUMMED / 2);
    uint16_t value = (uint16_t)(1 + rng_below(rng, 65535));
    put_value(page, a / 2, value);
    put_value(changed, b / 2, value);
    return between(a, b, size);
}

static const struct random_change {
    struct span (*make)(struct rng *rng, size_t size);
    size_t size;
    int pages;
} random_changes[] = {
    {other_word, 4, ANY},         {two_signs, 2, ANY},           {swapped_pieces, 2, VALUES},
    {swapped_pieces, 4, VALUES},  {swapped_pieces, 8, VALUES},   {swapped_pieces, 16, VALUES},
    {swapped_pieces, 64, VALUES}, {swapped_pieces, 512, VALUES}, {swapped_pieces, 1024, VALUES},
    {moved_zeros, 2, VALUES},     {moved_value, 2, ZEROS},
};

TEST_LOOP(sum_sees_other_words_signs_swaps_and_moves, COUNT(random_changes))
{
    static uint8_t before[SUMMED];
    const struct random_change *change = &random_changes[_i];
    for (int kind = ZEROS; kind <= NOISE; kind *= 2) {
        struct rng rng = rng_init(702 + (uint64_t)_i);
        fill_page(&rng, kind);
        memcpy(before, page, SUMMED);
        for (int k = 0; (change->pages & kind) != 0 && k < TRIALS / STRIDE; k++) {
            struct span span = change->make(&rng, change->size);
            size_t size = span.end - span.from;
            if (memcmp(changed + span.from, page + span.from, size) != 0)
                assert_seen(span.from, span.end);
            memcpy(page + span.from, before + span.from, size);
            memcpy(changed + span.from, before + span.from, size);
        }
    }
}

TEST(sum_depends_on_length_index_and_table)
{
    for (uint32_t a = 0; a < 30; a++)
        for (uint32_t b = 0; b < 30; b++)
            for (uint32_t c = 0; c < 30; c++)
                require(a + b + c == 0 || sum_seed(a, b, c) != sum_seed(0, 0, 0));
    require(sum_seed_page(1, 2, 3) != sum_seed_page(2, 1, 3));
    require(reference_sum(page, 0, 5, 6, 7) == sum_seed(5, 6, 7));
}

int main(void)
{
    print_conditions();
    return run_tests("block", setup, teardown);
}
