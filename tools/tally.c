#include "tools/tally.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "internal/bytes.h"
#include "internal/element.h"
#include "kernels/container.h"
#include "tools/calibrate.h"

#define SLAB_BYTES   (1u << 20) /* measured at a time, whole pages of it */
#define BLOCK_BYTES  (2 * STRAIT_BLOCK_VALUES)
#define PADDING_BITS 60.0 /* of a block of BF16 values, on average */
#define ENDING_BITS  16.0 /* of other types: coder and base */
#define TABLE_BITS   (8.0 * CONTAINER_TABLE_BYTES)
#define NO_TABLE     UINT32_MAX

/* The values that may get a table together; entry i is histogram i. */
struct group {
    double base_bits;  /* of its blocks in mode base, as measured */
    double fixed_bits; /* of what a table does not change: signs, mantissas and rests, padding */
    double table_bits; /* of exponents, with a table of its own */
    uint32_t table;    /* NO_TABLE: base */
};

struct tally {
    const struct tally_task *task;
    const struct plan *plan;
    struct histograms histograms; /* the layer of a class is the number that plan_number_tables gave */
    struct group *groups;
    uint64_t shared[256]; /* counts of all groups that share table 0 */
    pthread_mutex_t lock; /* guards groups while they are measured */
};

static bool no_memory(const struct tally *tally)
{
    print_error(tally->task->source->name, "cannot build a codebook: out of memory");
    return false;
}

/* ---- Measuring base ---------------------------------------------------------------------------------------------- */

static bool rests_are_zero(const uint8_t *values, uint64_t bytes)
{
    uint64_t rests = 0;

    for (uint64_t at = 0; at + 4 <= bytes; at += 4)
        rests |= load_le16(values + at);
    return rests == 0;
}

/* Bits that every coder spends beside exponents on FP32 values whose blocks of equal values have `equal` bytes. */
static double fixed_bits_fp32(const uint8_t *values, uint64_t bytes, uint64_t equal)
{
    uint64_t zero = 0; /* bytes of blocks without rests */

    for (uint64_t at = 0; at < bytes; at += BLOCK_BYTES) {
        const uint64_t size = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        zero += rests_are_zero(values + at, size) ? size : 0;
    }
    zero -= equal < zero ? equal : zero;
    return 6.0 * (double)(bytes - equal) - 4.0 * (double)zero;
}

static double fixed_bits(enum strait_element element, const uint8_t *values, uint64_t bytes,
                         const struct strait_result *result)
{
    const double padding = (double)((bytes + BLOCK_BYTES - 1) / BLOCK_BYTES) *
                           (PADDING_BITS + (element == STRAIT_ELEMENT_BF16 ? 0 : ENDING_BITS));
    const uint64_t equal = 2 * result->values[STRAIT_BLOCK_CONST];

    if (element == STRAIT_ELEMENT_FP32)
        return padding + fixed_bits_fp32(values, bytes, equal);
    return padding + (double)(bytes - equal) * (element == STRAIT_ELEMENT_FP16 ? 5.5 : 4);
}

/* Encodes whole pages, and a shorter last one, in mode base. */
static bool measure_slab(const struct tally *tally, const struct span *piece, const uint8_t *data, uint64_t bytes,
                         struct group *sum)
{
    const uint64_t page_bytes = tally->task->page_bytes, whole = bytes / page_bytes;
    const struct strait_region regions[] = {
        {.base = (void *)(uintptr_t)data,
         .page_count = (uint32_t)whole,
         .page_stride = page_bytes,
         .rows = 1,
         .row_bytes = (uint32_t)page_bytes},
        {.base = (void *)(uintptr_t)(data + whole * page_bytes),
         .page_count = 1,
         .page_stride = page_bytes,
         .rows = 1,
         .row_bytes = (uint32_t)(bytes % page_bytes)},
    };
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = piece->element, .mode = STRAIT_MODE_BASE};

    for (uint32_t part = 0; part < 2; part++) {
        const uint32_t count = part == 0 ? (uint32_t)whole : bytes % page_bytes != 0;
        const uint64_t length = part == 0 ? whole * page_bytes : bytes % page_bytes;
        if (count == 0)
            continue;
        const struct strait_pages pages = {.regions = &regions[part], .region_count = 1, .id_count = count};
        const uint64_t bound = strait_encode_bound(&pages);
        struct strait_result result;
        const struct strait_run run = {.size = sizeof(run), .result = &result};
        struct strait_chunk_info info;
        uint8_t *chunk = malloc(bound);
        const bool encoded = chunk != NULL &&
                             strait_encode(tally->task->codec, &params, chunk, bound, &pages, &run) == STRAIT_OK &&
                             strait_chunk_info(chunk, result.bytes, &info) == STRAIT_OK;
        free(chunk);
        if (!encoded)
            return no_memory(tally);
        sum->base_bits += 8 * (double)(info.chunk_bytes - info.metadata_bytes);
        sum->fixed_bits += fixed_bits(piece->element, regions[part].base, length, &result);
    }
    return true;
}

static bool measure_piece(void *arg, uint32_t class, const struct span *piece, const uint8_t *data)
{
    struct tally *tally = arg;
    const uint64_t bytes = piece->values * element_bytes(piece->element), page_bytes = tally->task->page_bytes;
    const uint64_t slab = page_bytes > SLAB_BYTES ? page_bytes : SLAB_BYTES / page_bytes * page_bytes;
    struct group sum = {0};

    for (uint64_t at = 0; at < bytes; at += slab)
        if (!measure_slab(tally, piece, data + at, bytes - at < slab ? bytes - at : slab, &sum))
            return false;
    pthread_mutex_lock(&tally->lock);
    tally->groups[class].base_bits += sum.base_bits; /* whole numbers and halves below 2^52: in any order the same */
    tally->groups[class].fixed_bits += sum.fixed_bits;
    pthread_mutex_unlock(&tally->lock);
    return true;
}

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

static bool add_segments(struct spans *spans, const struct plan *plan)
{
    bool added = true;

    for (uint32_t i = 0; added && i < plan->segment_count; i++) {
        const struct segment *segment = &plan->segments[i];
        if (plan_tables(plan, segment->element))
            added = spans_add(spans, (struct span){
                                         .class = {STRAIT_ROLE_OTHER, (int32_t)segment->table},
                                         .element = segment->element,
                                         .offset = plan->preamble_bytes + segment->begin,
                                         .values = (segment->end - segment->begin) / element_bytes(segment->element),
                                     });
    }
    return added;
}

static bool count(struct tally *tally)
{
    const struct measure measure = {.add = measure_piece, .arg = tally};
    struct spans spans = {0};
    const bool counted = add_segments(&spans, tally->plan) &&
                         spans_count(&spans, tally->task->source, tally->task->threads, tally->task->progress,
                                     &tally->histograms, tally->plan->mode == STRAIT_MODE_AUTO ? &measure : NULL);

    spans_fini(&spans);
    return counted;
}

/* ---- Weighing ---------------------------------------------------------------------------------------------------- */

/* Bits of the exponents of a group in the asked mode. */
static double exponent_bits(const struct tally *tally, uint32_t group, const uint8_t ranking[256])
{
    const struct cost cost = cost_of(tally->histograms.list[group].counts, ranking);

    return tally->plan->mode == STRAIT_MODE_TOP16 ? cost.top16 : cost.tiered;
}

/* Finds the groups whose own table saves its bytes; counts of the others are added to `shared`. */
static void weigh_own(struct tally *tally)
{
    const bool automatic = tally->plan->mode == STRAIT_MODE_AUTO;
    uint8_t own[256], all[256];
    uint64_t total[256];

    histograms_total(&tally->histograms, total);
    strait_histogram_rank(all, total);
    for (uint32_t i = 0; i < tally->histograms.count; i++) {
        struct group *group = &tally->groups[i];
        const uint64_t *counts = tally->histograms.list[i].counts;
        strait_histogram_rank(own, counts);
        group->table_bits = exponent_bits(tally, i, own);
        const double saved = automatic ? group->base_bits - group->fixed_bits - group->table_bits
                                       : exponent_bits(tally, i, all) - group->table_bits;
        group->table = saved > TABLE_BITS ? 1 : NO_TABLE;
        if (group->table == NO_TABLE)
            histogram_sum(tally->shared, counts);
    }
}

/* Lets groups without a table of their own share table 0 where that is better than base. Returns whether it is. Where
 * it is little worse they share it too: neighbours in different modes are in different chunks. */
static bool weigh_shared(struct tally *tally)
{
    const bool automatic = tally->plan->mode == STRAIT_MODE_AUTO;
    uint8_t ranking[256];
    double saved = 0;
    bool any = false;

    strait_histogram_rank(ranking, tally->shared);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < tally->histograms.count; i++) {
            struct group *group = &tally->groups[i];
            const double gain = automatic && group->table != 1
                                    ? group->base_bits - group->fixed_bits - exponent_bits(tally, i, ranking)
                                    : 0;
            if (group->table == 1 || (automatic && gain <= -group->base_bits / 64))
                continue;
            any = true;
            if (pass == 0)
                saved += gain;
            else if (!automatic || saved > TABLE_BITS)
                group->table = 0;
        }
    return any && (!automatic || saved > TABLE_BITS);
}

/* Numbers the tables that stay, in the order of groups; returns how many. */
static uint32_t renumber(struct tally *tally, bool shared)
{
    uint32_t tables = shared;

    for (uint32_t i = 0; i < tally->histograms.count; i++)
        if (tally->groups[i].table == 1) /* 1 stands for any of its own */
            tally->groups[i].table = tables++;
    return tables;
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static bool make(const struct tally *tally, uint32_t tables, bool shared, struct strait_codebook **codebook)
{
    uint8_t(*rankings)[256] = malloc((size_t)tables * sizeof(*rankings));
    enum strait_status status = STRAIT_ERR_NO_MEMORY;

    if (rankings != NULL && shared)
        strait_histogram_rank(rankings[0], tally->shared);
    for (uint32_t i = 0; rankings != NULL && i < tally->histograms.count; i++)
        if (tally->groups[i].table != NO_TABLE && tally->groups[i].table >= (uint32_t)shared)
            strait_histogram_rank(rankings[tally->groups[i].table], tally->histograms.list[i].counts);
    if (rankings != NULL)
        status = strait_codebook_create((const uint8_t(*)[256])rankings, NULL, tables, codebook);
    free(rankings);
    return status == STRAIT_OK || no_memory(tally);
}

/* The group of a number that plan_number_tables gave; the list is sorted by it. NULL: it has no values. */
static const struct group *group_of(const struct tally *tally, uint32_t number)
{
    uint32_t low = 0, high = tally->histograms.count;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if ((uint32_t)tally->histograms.list[middle].class.layer < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < tally->histograms.count && (uint32_t)tally->histograms.list[low].class.layer == number
               ? &tally->groups[low]
               : NULL;
}

static void assign(const struct tally *tally, struct plan *plan)
{
    for (uint32_t i = 0; i < plan->segment_count; i++) {
        struct segment *segment = &plan->segments[i];
        if (!plan_tables(plan, segment->element))
            continue;
        const struct group *group = group_of(tally, segment->table);
        segment->table = group == NULL || group->table == NO_TABLE ? 0 : group->table;
        if (plan->mode == STRAIT_MODE_AUTO && (group == NULL || group->table == NO_TABLE))
            segment->mode = STRAIT_MODE_BASE;
    }
}

bool tally_codebook(const struct tally_task *task, struct plan *plan, struct strait_codebook **codebook)
{
    struct tally tally = {.task = task, .plan = plan, .lock = PTHREAD_MUTEX_INITIALIZER};
    const uint32_t numbers = plan_number_tables(plan);
    bool done;

    *codebook = NULL;
    tally.groups = calloc((size_t)numbers + 1, sizeof(*tally.groups));
    done = (numbers > 0 && tally.groups != NULL) || no_memory(&tally);
    done = done && count(&tally);
    if (done) {
        weigh_own(&tally);
        const bool shared = weigh_shared(&tally);
        const uint32_t tables = renumber(&tally, shared);
        done = tables == 0 || make(&tally, tables, shared, codebook);
        if (done)
            assign(&tally, plan);
    }
    histograms_fini(&tally.histograms);
    free(tally.groups);
    pthread_mutex_destroy(&tally.lock);
    return done;
}
