/* The last part of data.h: what compression the exponents of the data allow, and how well the tables fit them. */
#include "bench/data.h"

#include <math.h>

#include "bench/tables.h"
#include "tools/calibrate.h"

struct sums {
    double values, top16, tiered, bits;
};

static double entropy_bits(const uint64_t counts[256], double values)
{
    double bits = 0;
    for (unsigned e = 0; e < 256; e++)
        if (counts[e] > 0)
            bits += (double)counts[e] * log2(values / (double)counts[e]);
    return bits;
}

static struct sums sum_class(const uint64_t counts[256], const uint8_t ranking[256])
{
    struct sums sums = {0};

    for (unsigned r = 0; r < 256; r++) {
        double count = (double)counts[ranking[r]];
        sums.values += count;
        sums.top16 += r >= TOP16_ESCAPE_RANK ? count : 0;
        sums.tiered += r >= TIERED_ESCAPE_RANK ? count : 0;
    }
    sums.bits = entropy_bits(counts, sums.values);
    return sums;
}

static void put_figures(const struct histograms *histograms, const struct strait_codebook *codebook,
                        struct data_figures *figures)
{
    struct sums all = {0};
    uint64_t total[256];

    *figures = (struct data_figures){.classes = histograms->count};
    for (uint32_t i = 0; i < histograms->count; i++) {
        uint32_t table = strait_codebook_find(codebook, histograms->list[i].class);
        struct sums sums = sum_class(histograms->list[i].counts, strait_codebook_ranking(codebook, table));

        figures->worst_top16 = fmax(figures->worst_top16, sums.top16 / sums.values);
        figures->worst_tiered = fmax(figures->worst_tiered, sums.tiered / sums.values);
        all.values += sums.values;
        all.top16 += sums.top16;
        all.tiered += sums.tiered;
        all.bits += sums.bits;
    }
    histograms_total(histograms, total);
    figures->top16_escapes = all.top16 / all.values;
    figures->tiered_escapes = all.tiered / all.values;
    figures->class_bits = all.bits / all.values;
    figures->global_bits = entropy_bits(total, all.values) / all.values;
}

static bool count_segments(const struct data *data, unsigned threads, struct histograms *histograms)
{
    struct spans spans = {0};
    struct progress progress;
    bool counted = true;

    for (uint32_t i = 0; counted && i < data->plan.segment_count; i++) {
        const struct segment *segment = &data->plan.segments[i];
        counted = spans_add(&spans, segment->class, STRAIT_ELEMENT_BF16, data->bytes + segment->begin,
                            (segment->end - segment->begin) / 2);
    }
    progress_begin(&progress, "counting", data->size, false);
    counted = counted && spans_count(&spans, threads, &progress, histograms);
    progress_end(&progress);
    spans_fini(&spans);
    return counted;
}

bool data_measure(const struct data *data, const struct strait_codebook *codebook, unsigned threads,
                  struct data_figures *figures)
{
    struct histograms histograms = {0};
    bool counted = count_segments(data, threads, &histograms);

    if (counted)
        put_figures(&histograms, codebook, figures);
    else
        print_error(NULL, "out of memory");
    histograms_fini(&histograms);
    return counted;
}
