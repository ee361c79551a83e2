#include "tools/tally.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "internal/element.h"
#include "tools/buffer.h"
#include "tools/histograms.h"
#include "tools/ordered.h"

typedef uint64_t histogram[256];

struct tally {
    const struct source *source;
    uint64_t data_begin;
    struct cutter cutter;
    struct progress *progress;
    atomic_bool failed;
    pthread_mutex_t lock; /* guards counts */
    histogram *counts;    /* one per table */
};

/* Buffers of one thread. */
struct tally_slot {
    struct cut cut;
    struct buffer buffer;
};

/* ---- The pass -------------------------------------------------------------------------------------------------- */

static bool read_run(struct tally *tally, struct tally_slot *slot, const struct run *run)
{
    if (!buffer_reserve(&slot->buffer, 0, run->bytes)) {
        print_error(tally->source->name, "out of memory");
        return false;
    }
    return source_read_at(tally->source, tally->data_begin + run->offset, slot->buffer.data, run->bytes);
}

static void count_run(struct tally *tally, struct tally_slot *slot, const struct run *run)
{
    histogram counts = {0};

    if (!read_run(tally, slot, run)) {
        tally->failed = true;
        return;
    }
    strait_histogram_add_values(counts, slot->cut.element, slot->buffer.data,
                                run->bytes / element_bytes(slot->cut.element));
    pthread_mutex_lock(&tally->lock);
    histogram_sum(tally->counts[run->table], counts);
    pthread_mutex_unlock(&tally->lock);
}

static bool tally_take(void *job, void *slot_)
{
    struct tally *tally = job;
    struct tally_slot *slot = slot_;
    enum cut_result result = cutter_next(&tally->cutter, &slot->cut);

    if (result == CUT_NO_MEMORY) {
        print_error(tally->source->name, "out of memory");
        tally->failed = true;
    }
    return result == CUT_OK && !tally->failed;
}

static void tally_work(void *job, void *slot_)
{
    struct tally *tally = job;
    struct tally_slot *slot = slot_;

    for (uint32_t i = 0; i < slot->cut.run_count; i++) {
        if (plan_tables(tally->cutter.plan, slot->cut.element) && !tally->failed)
            count_run(tally, slot, &slot->cut.runs[i]);
        progress_add(tally->progress, slot->cut.runs[i].bytes);
    }
}

static bool tally_give(void *job, void *slot)
{
    (void)slot;
    return !((struct tally *)job)->failed;
}

/* ---- From counts to tables ------------------------------------------------------------------------------------- */

static struct strait_codebook *rank(const histogram *counts, uint32_t table_count)
{
    struct strait_codebook *codebook = NULL;
    uint8_t(*rankings)[256] = malloc((size_t)table_count * sizeof(*rankings));

    if (rankings == NULL)
        return NULL;
    for (uint32_t t = 0; t < table_count; t++)
        strait_histogram_rank(rankings[t], counts[t]);
    if (strait_codebook_create((const uint8_t(*)[256])rankings, NULL, table_count, &codebook) != STRAIT_OK)
        codebook = NULL;
    free(rankings);
    return codebook;
}

/* ---- All of it ------------------------------------------------------------------------------------------------- */

static void slots_destroy(struct tally_slot *slots, unsigned threads)
{
    for (unsigned t = 0; slots != NULL && t < threads; t++) {
        cut_fini(&slots[t].cut);
        buffer_fini(&slots[t].buffer);
    }
    free(slots);
}

static struct strait_codebook *run_tally(struct tally *tally, uint32_t table_count, unsigned threads)
{
    static const struct ordered_steps steps = {tally_take, tally_work, tally_give};
    struct tally_slot *slots = calloc(threads, sizeof(*slots));
    struct strait_codebook *codebook = NULL;

    tally->counts = calloc(table_count, sizeof(histogram));
    if (slots != NULL && tally->counts != NULL) {
        ordered_run(&steps, tally, slots, sizeof(*slots), threads);
        if (!tally->failed)
            codebook = rank((const histogram *)tally->counts, table_count);
    }
    free(tally->counts);
    slots_destroy(slots, threads);
    return codebook;
}

struct strait_codebook *tally_codebook(const struct source *source, struct plan *plan, uint64_t chunk_bytes,
                                       unsigned threads, struct progress *progress)
{
    struct tally tally = {
        .source = source,
        .data_begin = plan->preamble_bytes,
        .cutter = {.plan = plan, .page_bytes = PLAN_PAGE_MULTIPLE, .chunk_bytes = chunk_bytes},
        .progress = progress,
        .lock = PTHREAD_MUTEX_INITIALIZER,
    };
    uint32_t table_count = plan_number_tables(plan);
    struct strait_codebook *codebook = table_count == 0 ? NULL : run_tally(&tally, table_count, threads);

    pthread_mutex_destroy(&tally.lock);
    if (codebook == NULL && !tally.failed) /* earlier failures have been printed */
        print_error(source->name, "cannot build a codebook: out of memory");
    return codebook;
}
