#include "daemon/coding_runs.h"

void coding_leg_began(struct coding_runs *runs, uint64_t now)
{
    if (runs->legs++ == 0)
        runs->busy_since = now;
}

/* Adds the time since the last look to the run's. */
static void pass_time(struct coding_runs *runs, uint64_t now)
{
    if (runs->legs != 0)
        runs->busy += now - runs->busy_since;
    runs->busy_since = now;
}

void coding_leg_ended(struct coding_runs *runs, uint64_t now)
{
    pass_time(runs, now);
    if (runs->legs > 0)
        runs->legs--;
}

/* The median of the latest runs: single ones are disturbed by whatever else the processors do. */
static double median(const struct coding_rate *rate)
{
    double sorted[CODING_LATEST];
    const uint32_t count = rate->samples < CODING_LATEST ? rate->samples : CODING_LATEST;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > rate->latest[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = rate->latest[i];
    }
    return count == 0 ? 0 : count % 2 != 0 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

double coding_rate(const struct coding_runs *runs, enum strait_element element, enum strait_mode mode)
{
    const struct coding_rate *rate = &runs->rates[element][mode];
    return rate->samples < CODING_SAMPLES ? 0 : median(rate);
}

static void sample(struct coding_rate *rate, double bytes)
{
    rate->latest[rate->samples++ % CODING_LATEST] = bytes;
}

/* The first run of all is not counted: connections begin slowly. */
static void end_run(struct coding_runs *runs)
{
    if (runs->warm && runs->raw != 0 && runs->busy != 0)
        sample(&runs->rates[runs->element][runs->mode], (double)runs->raw * 1e9 / (double)runs->busy);
    runs->ended[runs->element]++;
    runs->warm = true;
    runs->open = false;
}

static bool is_long(const struct coding_runs *runs)
{
    return (runs->raw >= CODING_RUN_BYTES && runs->busy >= CODING_RUN_NS) || runs->busy >= CODING_RUN_MAX;
}

/* Of what is far below what was expected, one run tells enough. */
static bool is_known(const struct coding_runs *runs, enum strait_element element,
                     const struct coding_candidate *candidate)
{
    const struct coding_rate *rate = &runs->rates[element][candidate->mode];
    return rate->samples >= CODING_SAMPLES ||
           (rate->samples != 0 && rate->latest[0] < CODING_FAR * candidate->expected);
}

static double value_of(const struct coding_runs *runs, enum strait_element element,
                       const struct coding_candidate *candidate)
{
    return is_known(runs, element, candidate) ? median(&runs->rates[element][candidate->mode]) : candidate->expected;
}

/* Another mode than the best, in turn; best: none is due. */
static const struct coding_candidate *trial(const struct coding_runs *runs, enum strait_element element,
                                            const struct coding_candidate *list, uint32_t count,
                                            const struct coding_candidate *best)
{
    const uint32_t ended = runs->ended[element], period = ended < CODING_EARLY ? CODING_TRIALS_EARLY : CODING_TRIALS,
                   turn = ended / period;
    uint32_t others = 0, at;
    if (ended % period != period - 1)
        return best;
    for (uint32_t i = 0; i < count; i++)
        others += list[i].tried && &list[i] != best;
    if (others == 0)
        return best;
    at = turn % others;
    for (uint32_t i = 0; i < count; i++) {
        if (!list[i].tried || &list[i] == best || at-- != 0)
            continue;
        const double rate = coding_rate(runs, element, list[i].mode);
        const bool is_far = rate > 0 && rate < CODING_FAR * value_of(runs, element, best);
        return is_far && turn / others % CODING_RARELY != 0 ? best : &list[i];
    }
    return best;
}

/* A mode that is not known yet, once the best one is; best: there is none. What is expected of it does not matter, as
 * the link seems slow where processors are the limit. */
static const struct coding_candidate *unknown(const struct coding_runs *runs, enum strait_element element,
                                              const struct coding_candidate *list, uint32_t count,
                                              const struct coding_candidate *best)
{
    for (uint32_t i = 0; i < count && is_known(runs, element, best); i++)
        if (list[i].tried && !is_known(runs, element, &list[i]))
            return &list[i];
    return best;
}

static void begin_run(struct coding_runs *runs, enum strait_element element, const struct coding_candidate *list,
                      uint32_t count, double least_gain)
{
    const struct coding_candidate *best = &list[0], *other;
    for (uint32_t i = 1; i < count; i++)
        if (value_of(runs, element, &list[i]) > value_of(runs, element, best) * least_gain)
            best = &list[i];
    other = unknown(runs, element, list, count, best);
    runs->mode = (other != best ? other : trial(runs, element, list, count, best))->mode;
    runs->element = element;
    runs->open = true;
    runs->raw = runs->busy = 0;
}

enum strait_mode coding_mode(struct coding_runs *runs, enum strait_element element,
                             const struct coding_candidate *candidates, uint32_t count, double least_gain, uint64_t now)
{
    bool offered = false;
    pass_time(runs, now);
    for (uint32_t i = 0; i < count; i++)
        offered |= candidates[i].mode == runs->mode;
    if (runs->open && (runs->element != element || !offered))
        runs->open = false; /* it tells of no mode alone */
    if (runs->open && is_long(runs))
        end_run(runs);
    if (!runs->open)
        begin_run(runs, element, candidates, count, least_gain);
    return runs->mode;
}

void coding_carried(struct coding_runs *runs, enum strait_element element, enum strait_mode mode, uint64_t raw_bytes)
{
    if (runs->open && runs->element == element && runs->mode == mode)
        runs->raw += raw_bytes;
}
