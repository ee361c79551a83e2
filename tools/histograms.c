#include "tools/histograms.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "internal/element.h"

#define PIECE_VALUES (8u * 1024 * 1024) /* taken by a thread at a time: 16 MiB */

/* ---- Histograms ------------------------------------------------------------------------------------------------ */

static int by_class(const void *a, const void *b)
{
    const struct codebook_histogram *x = a, *y = b;
    return codebook_class_compare(x->class, y->class);
}

void histogram_sum(uint64_t sum[256], const uint64_t counts[256])
{
    for (unsigned e = 0; e < 256; e++)
        sum[e] += counts[e];
}

/* If the sum over everything fits, so does every partial sum. */
static bool values_fit(const struct codebook_histogram *list, size_t count)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        for (unsigned e = 0; e < 256; e++)
            if (__builtin_add_overflow(total, list[i].counts[e], &total))
                return false;
    return true;
}

/* Merges adjacent entries of the same class; returns how many classes remain. */
static size_t fold(struct codebook_histogram *list, size_t count)
{
    size_t last = 0;
    for (size_t i = 1; i < count; i++) {
        if (by_class(&list[last], &list[i]) == 0)
            histogram_sum(list[last].counts, list[i].counts);
        else if (++last != i)
            list[last] = list[i];
    }
    return count == 0 ? 0 : last + 1;
}

enum strait_status histograms_add(struct histograms *histograms, const struct codebook_histogram *list, uint32_t count)
{
    size_t all = (size_t)histograms->count + count;
    struct codebook_histogram *grown = realloc(histograms->list, sizeof(*grown) * (all + 1));
    if (grown == NULL)
        return STRAIT_ERR_NO_MEMORY;
    histograms->list = grown;
    memcpy(grown + histograms->count, list, sizeof(*grown) * count);
    if (!values_fit(grown, all))
        return STRAIT_ERR_INVALID;
    qsort(grown, all, sizeof(*grown), by_class);
    histograms->count = (uint32_t)fold(grown, all);
    return STRAIT_OK;
}

void histograms_fini(struct histograms *histograms)
{
    free(histograms->list);
    *histograms = (struct histograms){0};
}

void histograms_total(const struct histograms *histograms, uint64_t total[256])
{
    memset(total, 0, 256 * sizeof(total[0]));
    for (uint32_t i = 0; i < histograms->count; i++)
        histogram_sum(total, histograms->list[i].counts);
}

/* Table 0 ranks all values; table i + 1 ranks those of class i, unless only table 0 is wanted. */
enum strait_status histograms_codebook(const struct histograms *histograms, bool global,
                                       struct strait_codebook **codebook)
{
    uint32_t count = global ? 1 : histograms->count + 1;
    uint64_t total[256];
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    uint8_t(*rankings)[256] = malloc(sizeof(*rankings) * count);
    struct strait_class *classes = malloc(sizeof(*classes) * count);
    if (rankings == NULL || classes == NULL)
        goto out;
    histograms_total(histograms, total);
    strait_histogram_rank(rankings[0], total);
    classes[0] = (struct strait_class){.role = STRAIT_ROLE_OTHER, .layer = -1};
    for (uint32_t t = 1; t < count; t++) {
        strait_histogram_rank(rankings[t], histograms->list[t - 1].counts);
        classes[t] = histograms->list[t - 1].class;
    }
    status = strait_codebook_create((const uint8_t(*)[256])rankings, classes, count, codebook);
out:
    free(classes);
    free(rankings);
    return status;
}

/* ---- Spans ----------------------------------------------------------------------------------------------------- */

bool spans_add(struct spans *spans, struct strait_class class, enum strait_element element, const uint8_t *data,
               uint64_t values)
{
    if (values == 0)
        return true;
    if (spans->count == spans->capacity) {
        size_t capacity = spans->capacity == 0 ? 256 : 2 * spans->capacity;
        struct span *grown = realloc(spans->list, sizeof(*grown) * capacity);
        if (grown == NULL)
            return false;
        spans->list = grown;
        spans->capacity = capacity;
    }
    spans->list[spans->count++] = (struct span){.class = class, .element = element, .data = data, .values = values};
    return true;
}

void spans_fini(struct spans *spans)
{
    free(spans->list);
    *spans = (struct spans){0};
}

static int by_span_class(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return codebook_class_compare(x->class, y->class);
}

static int by_address(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return (x->data > y->data) - (x->data < y->data);
}

/* Gives every class of the spans an empty histogram. */
static bool assign_histograms(struct spans *spans, struct histograms *histograms)
{
    uint32_t count = 0;
    if (spans->count == 0)
        return true;
    qsort(spans->list, spans->count, sizeof(spans->list[0]), by_span_class);
    for (size_t i = 0; i < spans->count; i++)
        count += i == 0 || by_span_class(&spans->list[i - 1], &spans->list[i]) != 0;
    histograms->list = calloc(count, sizeof(histograms->list[0]));
    if (histograms->list == NULL)
        return false;
    for (size_t i = 0; i < spans->count; i++) {
        struct span *span = &spans->list[i];
        if (i == 0 || by_span_class(&spans->list[i - 1], span) != 0)
            histograms->list[histograms->count++].class = span->class;
        span->histogram = &histograms->list[histograms->count - 1];
    }
    return true;
}

/* ---- Counting -------------------------------------------------------------------------------------------------- */

struct counting {
    const struct spans *spans;
    struct progress *progress;
    pthread_mutex_t lock; /* guards the fields below and the histograms */
    size_t next;          /* the span to take from */
    uint64_t taken;       /* values already taken from that span */
};

/* Takes the next piece of the next span. False when nothing is left. */
static bool take_piece(struct counting *counting, struct span *piece)
{
    pthread_mutex_lock(&counting->lock);
    bool found = counting->next < counting->spans->count;
    if (found) {
        *piece = counting->spans->list[counting->next];
        piece->data += element_bytes(piece->element) * counting->taken;
        piece->values -= counting->taken;
        if (piece->values > PIECE_VALUES) {
            piece->values = PIECE_VALUES;
            counting->taken += PIECE_VALUES;
        } else {
            counting->next++;
            counting->taken = 0;
        }
    }
    pthread_mutex_unlock(&counting->lock);
    return found;
}

/* Adds each piece to the shared histograms: the cost is negligible next to counting, and saves a set per thread. */
static void count_pieces(void *arg, unsigned index)
{
    struct counting *counting = arg;
    struct span piece;
    (void)index;
    while (take_piece(counting, &piece)) {
        uint64_t counts[256] = {0};
        strait_histogram_add_values(counts, piece.element, piece.data, piece.values);
        pthread_mutex_lock(&counting->lock);
        histogram_sum(piece.histogram->counts, counts);
        pthread_mutex_unlock(&counting->lock);
        progress_add(counting->progress, element_bytes(piece.element) * piece.values);
    }
}

bool spans_count(struct spans *spans, unsigned threads, struct progress *progress, struct histograms *histograms)
{
    struct counting counting = {.spans = spans, .progress = progress, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!assign_histograms(spans, histograms))
        return false;
    if (spans->count > 0)
        qsort(spans->list, spans->count, sizeof(spans->list[0]), by_address); /* files are read from front to back */
    parallel_run(threads, count_pieces, &counting);
    pthread_mutex_destroy(&counting.lock);
    return true;
}
