#include "bench/figures.h"

#include <string.h>

#include "bench/options.h"

/* Bytes per nanosecond. */
static double rate(const struct bench_case *one, const uint64_t *ns, unsigned repeat)
{
    return (double)one->raw_bytes / (double)ns[repeat];
}

static struct spread rates(const struct bench_case *one, const uint64_t *ns, unsigned repeats)
{
    double samples[REPEATS_MAX];
    for (unsigned r = 0; r < repeats; r++)
        samples[r] = rate(one, ns, r);
    return spread_of(samples, repeats);
}

/* Median of the quotients, repeat by repeat. */
static double paired(const struct bench_case *one, const uint64_t *one_ns, const struct bench_case *other,
                     const uint64_t *other_ns, unsigned repeats)
{
    double samples[REPEATS_MAX];
    for (unsigned r = 0; r < repeats; r++)
        samples[r] = rate(one, one_ns, r) / rate(other, other_ns, r);
    return spread_of(samples, repeats).p50;
}

static double speed_of(const struct bench_case *one, unsigned repeats)
{
    return rates(one, one->encode_ns, repeats).p50 + rates(one, one->decode_ns, repeats).p50;
}

/* The fastest memcpy of so many threads. */
static const struct bench_case *find_baseline(const struct case_list *cases, unsigned threads)
{
    const struct bench_case *best = NULL;

    for (unsigned i = 0; i < cases->count; i++) {
        const struct bench_case *one = &cases->list[i];
        if (one->is_memcpy && one->threads == threads &&
            (best == NULL || speed_of(one, cases->repeats) > speed_of(best, cases->repeats)))
            best = one;
    }
    return best;
}

/* The same case with one thread. */
static const struct bench_case *find_single(const struct case_list *cases, const struct bench_case *one)
{
    for (unsigned i = 0; one->threads > 1 && i < cases->count; i++) {
        const struct bench_case *single = &cases->list[i];
        if (single->threads == 1 && single->page_bytes == one->page_bytes && strcmp(single->name, one->name) == 0 &&
            strcmp(single->variant, one->variant) == 0 && strcmp(single->mode, one->mode) == 0)
            return single;
    }
    return NULL;
}

double figures_ratio(const struct bench_case *one)
{
    uint64_t coded = one->coded_bytes + one->table_bytes;
    if (one->kind == NULL)
        return one->limit;
    return coded > 0 ? (double)one->raw_bytes / (double)coded : 0;
}

void figures_make(const struct case_list *cases, unsigned index, struct figures *figures)
{
    const struct bench_case *one = &cases->list[index];
    const struct bench_case *copy = find_baseline(cases, one->threads);
    const struct bench_case *single = find_single(cases, one);
    unsigned repeats = cases->repeats;

    *figures = (struct figures){
        .ratio = figures_ratio(one),
        .encode = rates(one, one->encode_ns, repeats),
        .decode = rates(one, one->decode_ns, repeats),
        .processors = (double)one->cpu_ns / (double)one->wall_ns,
        .is_baseline = one == copy,
    };
    if (copy != NULL) {
        figures->encode_memcpy = paired(one, one->encode_ns, copy, copy->encode_ns, repeats);
        figures->decode_memcpy = paired(one, one->decode_ns, copy, copy->decode_ns, repeats);
    }
    if (single != NULL) {
        figures->encode_speedup = paired(one, one->encode_ns, single, single->encode_ns, repeats);
        figures->decode_speedup = paired(one, one->decode_ns, single, single->decode_ns, repeats);
    }
}
