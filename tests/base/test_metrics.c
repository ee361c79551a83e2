#include <check.h>
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/metrics.h"
#include "tests/run_suite.h"
#include "tests/support.h"

/* Every figure another number, so that none can stand in for another. */
static struct metrics numbered(void)
{
    struct metrics metrics = {0};
    struct rng rng = rng_init(1);
    for (size_t i = 0; i < metric_counter_count; i++)
        *(uint64_t *)(void *)((char *)&metrics + metric_counters[i].offset) = 1000 + i;
    for (size_t i = 0; i < metric_gauge_count; i++)
        *(uint64_t *)(void *)((char *)&metrics + metric_gauges[i].offset) = 2000 + i;
    for (unsigned i = 0; i < 16; i++) {
        metrics.source_failed[i] = 3000 + i;
        metrics.sink_failed[i] = 4000 + i;
    }
    for (unsigned i = 0; i < STAGES * 50; i++)
        histogram_record(&metrics.stages[i % STAGES], rng_next(&rng) >> (rng_below(&rng, 30) + 34));
    for (unsigned i = 0; i < 10; i++)
        histogram_record(&metrics.stalls, (uint64_t)1 << (3 * i));
    return metrics;
}

/* ---- Histograms -------------------------------------------------------------------------------------------------- */

TEST(a_value_is_counted_in_the_bucket_whose_bound_it_does_not_exceed)
{
    for (unsigned b = 0; b < HISTOGRAM_BUCKETS - 1; b++) {
        struct histogram h = {0};
        histogram_record(&h, histogram_bound(b));
        histogram_record(&h, histogram_bound(b) + 1);
        ck_assert_uint_eq(1, h.buckets[b]);
        ck_assert_uint_eq(1, h.buckets[b + 1]);
        ck_assert_uint_eq(2, h.count);
        ck_assert_uint_eq(2 * histogram_bound(b) + 1, h.sum_us);
    }
    struct histogram h = {0};
    histogram_record(&h, 0);
    histogram_record(&h, UINT64_MAX);
    ck_assert_uint_eq(1, h.buckets[0]);
    ck_assert_uint_eq(1, h.buckets[HISTOGRAM_BUCKETS - 1]);
}

TEST(a_quantile_is_the_bound_of_its_bucket)
{
    struct histogram h = {0};
    ck_assert_uint_eq(0, histogram_quantile(&h, 0.5));
    for (int i = 0; i < 99; i++)
        histogram_record(&h, 3);
    histogram_record(&h, 1000);
    ck_assert_uint_eq(4, histogram_quantile(&h, 0));
    ck_assert_uint_eq(4, histogram_quantile(&h, 0.5));
    ck_assert_uint_eq(4, histogram_quantile(&h, 0.99));
    ck_assert_uint_eq(1024, histogram_quantile(&h, 0.991));
    ck_assert_uint_eq(1024, histogram_quantile(&h, 1));
    ck_assert_uint_eq(1024, histogram_quantile(&h, 7));
    ck_assert_uint_eq(4, histogram_quantile(&h, (double)NAN));
    histogram_record(&h, UINT64_MAX);
    ck_assert_uint_eq(UINT64_MAX, histogram_quantile(&h, 1));
}

/* ---- A checker of the text format -------------------------------------------------------------------------------- */

struct checker {
    char family[128], type[16];
    char seen[128][128]; /* families */
    int families, samples;
    char group[256]; /* labels of a histogram but le */
    double bound, cumulative, infinity;
};

static size_t name_length(const char *text)
{
    size_t size = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:");
    ck_assert_msg(size > 0 && !(text[0] >= '0' && text[0] <= '9'), "%s", text);
    return size;
}

/* HELP, then TYPE, once a family and before its samples. */
static void check_comment(struct checker *c, const char *line)
{
    char name[128], type[16];
    if (sscanf(line, "# HELP %127s", name) == 1) {
        for (int i = 0; i < c->families; i++)
            ck_assert_str_ne(c->seen[i], name);
        ck_assert_int_lt(c->families, 128);
        strcpy(c->seen[c->families++], name);
        ck_assert_uint_gt(strlen(line), strlen("# HELP  ") + strlen(name));
        strcpy(c->family, name);
        c->type[0] = 0;
    } else {
        ck_assert_int_eq(2, sscanf(line, "# TYPE %127s %15s", name, type));
        ck_assert_str_eq(c->family, name);
        ck_assert_str_eq("", c->type);
        strcpy(c->type, type);
    }
}

/* {a="b",c="d"}: what is behind it. `le` receives that label, `others` the rest. */
static const char *check_labels(const char *at, char le[32], char others[256])
{
    le[0] = others[0] = 0;
    for (at++; *at != '}'; at += *at == ',') {
        size_t size = name_length(at);
        const char *value = at + size + 2, *end = strchr(value, '"');
        ck_assert(at[size] == '=' && at[size + 1] == '"' && end != NULL);
        ck_assert(memchr(value, '\\', (size_t)(end - value)) == NULL);
        if (size == 2 && memcmp(at, "le", 2) == 0)
            snprintf(le, 32, "%.*s", (int)(end - value), value);
        else
            snprintf(others + strlen(others), 256 - strlen(others), "%.*s,", (int)(end + 1 - at), at);
        at = end + 1;
        ck_assert(*at == ',' || *at == '}');
    }
    return at + 1;
}

/* Buckets rise, end with +Inf, and agree with _count. */
static void check_histogram(struct checker *c, const char *suffix, const char *le, const char *others, double value)
{
    if (strcmp(suffix, "_bucket") == 0) {
        double bound = strcmp(le, "+Inf") == 0 ? (double)INFINITY : strtod(le, NULL);
        bool first = strcmp(others, c->group) != 0 || isinf(c->bound);
        ck_assert(first || (bound > c->bound && value >= c->cumulative));
        strcpy(c->group, others);
        c->bound = bound;
        c->cumulative = value;
        return;
    }
    ck_assert(isinf(c->bound));
    ck_assert_str_eq(c->group, others);
    if (strcmp(suffix, "_count") == 0)
        ck_assert_double_eq(c->cumulative, value);
    else
        ck_assert_str_eq("_sum", suffix);
}

static void check_sample(struct checker *c, const char *line)
{
    char name[128], le[32] = "", others[256] = "", *end;
    size_t size = name_length(line), family = strlen(c->family);
    snprintf(name, sizeof(name), "%.*s", (int)size, line);
    const bool is_standard = strncmp(name, "process_", 8) == 0; /* a name that Prometheus gives every program */
    ck_assert_msg((strncmp(name, "strait_", 7) == 0 || is_standard) && strncmp(name, c->family, family) == 0, "%s",
                  line);
    const char *at = line + size;
    if (*at == '{')
        at = check_labels(at, le, others);
    ck_assert_int_eq(' ', *at);
    double value = strtod(at + 1, &end);
    ck_assert_msg(end != at + 1 && *end == 0 && value >= 0, "%s", line);
    c->samples++;
    if (strcmp(c->type, "histogram") == 0) {
        check_histogram(c, name + family, le, others, value);
        return;
    }
    bool total = family > 6 && strcmp(name + family - 6, "_total") == 0;
    ck_assert_str_eq(c->family, name);
    ck_assert_str_eq(total ? "counter" : "gauge", c->type);
}

/* Takes the text apart. */
static struct checker check_text(char *text)
{
    struct checker c;
    memset(&c, 0, sizeof(c));
    ck_assert_int_eq('\n', text[strlen(text) - 1]);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (line[0] == '#')
            check_comment(&c, line);
        else
            check_sample(&c, line);
    return c;
}

static bool has_line(const char *text, const char *line)
{
    const char *at = strstr(text, line);
    return at != NULL && (at == text || at[-1] == '\n') && at[strlen(line)] == '\n';
}

/* ---- Text -------------------------------------------------------------------------------------------------------- */

TEST_LOOP(the_text_is_what_prometheus_reads, 2)
{
    const struct metrics cases[] = {numbered(), {.source_done = 0}};
    size_t size = 0;
    char *text = metrics_text(&cases[_i], &size);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(strlen(text), size);
    struct checker c = check_text(text);
    unsigned reasons = 13, lines_of_histogram = HISTOGRAM_BUCKETS + 2;
    ck_assert_uint_eq(metric_counter_count + metric_gauge_count + 2 * reasons +
                          (STAGES + PHASES + 1) * lines_of_histogram,
                      (unsigned)c.samples);
    free(text);
}

TEST(every_figure_is_in_the_text_with_its_own_value)
{
    struct metrics metrics = numbered();
    size_t size = 0;
    char *text = metrics_text(&metrics, &size), line[256];
    for (size_t i = 0; i < metric_counter_count + metric_gauge_count; i++) {
        const struct metric_row *row =
            i < metric_counter_count ? &metric_counters[i] : &metric_gauges[i - metric_counter_count];
        snprintf(line, sizeof(line), row->nanoseconds ? "%s%s%s%s 0.%09" PRIu64 : "%s%s%s%s %" PRIu64, row->family,
                 row->labels != NULL ? "{" : "", row->labels != NULL ? row->labels : "", row->labels != NULL ? "}" : "",
                 metric_value(&metrics, row));
        ck_assert_msg(has_line(text, line), "%s", line);
    }
    ck_assert(has_line(text, "strait_transfers_started_total{role=\"sink\"} 1001"));
    ck_assert(has_line(text, "strait_transfers_failed_total{role=\"source\",reason=\"timeout\"} 3001"));
    ck_assert(has_line(text, "strait_transfers_failed_total{role=\"sink\",reason=\"busy\"} 4011"));
    free(text);
}

TEST(no_figure_is_in_two_rows_and_none_is_forgotten)
{
    struct metrics metrics = numbered();
    size_t rows = metric_counter_count + metric_gauge_count;
    size_t plain = sizeof(metrics) - sizeof(metrics.stages) - sizeof(metrics.phases) - sizeof(metrics.stalls) -
                   sizeof(metrics.source_failed) - sizeof(metrics.sink_failed);
    ck_assert_uint_eq(plain / sizeof(uint64_t), rows);
    for (size_t i = 0; i < rows; i++)
        ck_assert_uint_eq(i < metric_counter_count ? 1000 + i : 2000 + i - metric_counter_count,
                          metric_value(&metrics, i < metric_counter_count ? &metric_counters[i]
                                                                          : &metric_gauges[i - metric_counter_count]));
}

TEST(histograms_are_in_seconds)
{
    struct metrics metrics = {0};
    size_t size = 0;
    histogram_record(&metrics.stages[STAGE_DECODE], 3);
    histogram_record(&metrics.stages[STAGE_DECODE], 2500000);
    histogram_record(&metrics.stages[STAGE_DECODE], 100000000);
    char *text = metrics_text(&metrics, &size);
    ck_assert(has_line(text, "strait_stage_seconds_bucket{stage=\"decode\",le=\"2e-06\"} 0"));
    ck_assert(has_line(text, "strait_stage_seconds_bucket{stage=\"decode\",le=\"4e-06\"} 1"));
    ck_assert(has_line(text, "strait_stage_seconds_bucket{stage=\"decode\",le=\"4.194304\"} 2"));
    ck_assert(has_line(text, "strait_stage_seconds_bucket{stage=\"decode\",le=\"67.108864\"} 2"));
    ck_assert(has_line(text, "strait_stage_seconds_bucket{stage=\"decode\",le=\"+Inf\"} 3"));
    ck_assert(has_line(text, "strait_stage_seconds_sum{stage=\"decode\"} 102.500003"));
    ck_assert(has_line(text, "strait_stage_seconds_count{stage=\"decode\"} 3"));
    ck_assert(has_line(text, "strait_loop_stall_seconds_count 0"));
    free(text);
}

TEST(phases_of_a_request_add_up_to_its_time)
{
    struct metrics metrics = {0};
    size_t size = 0;
    uint64_t sum = 0, whole = 0;
    for (uint64_t i = 0; i < 100; i++) { /* phases of less than a microsecond, one without an end, one out of order */
        struct timeline timeline = {.began = 5000 + i * 333};
        const uint64_t at = timeline.began;
        timeline.ends[PHASE_START] = at + 700;
        timeline.ends[PHASE_ANSWER] = at + 1400 + i * 77;
        timeline.ends[PHASE_CHUNKS] = at + 900;
        timeline.ends[PHASE_DECODE] = at + 2100 + i * 77;
        timeline.ends[PHASE_VERDICT] = at + 2800 + i * 500;
        metrics_record(&metrics, &timeline, PHASE_START);
        whole += (2800 + i * 500) / 1000;
    }
    for (unsigned p = PHASE_START; p < SINK_PHASES; p++) {
        ck_assert_uint_eq(100, metrics.phases[p].count);
        sum += metrics.phases[p].sum_us;
    }
    ck_assert_uint_eq(whole, sum);
    ck_assert_uint_eq(0, metrics.phases[PHASE_CONNECT].sum_us);
    ck_assert_uint_eq(0, metrics.phases[PHASE_END].count);
    metrics_record(&metrics, &(struct timeline){.began = 1000, .ends[PHASE_END] = 9000}, PHASE_OFFER);
    ck_assert_uint_eq(8, metrics.phases[PHASE_END].sum_us);
    ck_assert_uint_eq(100, metrics.phases[PHASE_VERDICT].count);
    char *text = metrics_text(&metrics, &size);
    ck_assert(has_line(text, "strait_request_seconds_count{role=\"sink\",phase=\"connect\"} 100"));
    ck_assert(has_line(text, "strait_request_seconds_sum{role=\"source\",phase=\"end\"} 0.000008"));
    free(text);
}

TEST(every_reason_has_a_name)
{
    static const char *const names[] = {
#define X(name, value, text) [value] = #name,
        STRAIT_REASON_MAP(X)
#undef X
    };
    for (int i = 0; i < COUNT(names); i++)
        ck_assert_int_eq(0, strcasecmp(names[i], metric_reason_name((unsigned)i)));
    ck_assert_ptr_null(metric_reason_name(COUNT(names)));
    ck_assert_int_le(COUNT(names), COUNT(((struct metrics *)0)->source_failed));
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static double number_at(const cJSON *root, const char *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, object), name);
    ck_assert_msg(cJSON_IsNumber(item), "%s.%s", object, name);
    return item->valuedouble;
}

TEST(json_has_the_same_figures)
{
    struct metrics metrics = numbered();
    size_t size = 0;
    char *text = metrics_json(&metrics, NULL, &size);
    ck_assert_uint_eq(strlen(text), size);
    cJSON *root = cJSON_ParseWithOpts(text, NULL, true);
    for (size_t i = 0; i < metric_counter_count; i++)
        ck_assert_double_eq(1000.0 + (double)i, number_at(root, "counters", metric_counters[i].name));
    for (size_t i = 0; i < metric_gauge_count; i++)
        ck_assert_double_eq(2000.0 + (double)i, number_at(root, "gauges", metric_gauges[i].name));
    ck_assert_double_eq(3002, number_at(root, "source_failed", "lease_expired"));
    ck_assert_double_eq(4008, number_at(root, "sink_failed", "integrity"));
    ck_assert_double_eq(10, number_at(root, "stalls", "count"));
    ck_assert_double_eq(4096, number_at(root, "stalls", "p50_us"));
    for (unsigned i = 0; i < STAGES; i++) {
        const cJSON *stages = cJSON_GetObjectItemCaseSensitive(root, "stages");
        ck_assert_double_eq(50, number_at(stages, metric_stage_names[i], "count"));
    }
    cJSON_Delete(root);
    free(text);
}

TEST(json_keeps_every_digit)
{
    struct metrics metrics = {.raw_bytes_sent = UINT64_MAX, .clients = ((uint64_t)1 << 53) + 1};
    size_t size = 0;
    histogram_record(&metrics.stalls, UINT64_MAX);
    char *text = metrics_json(&metrics, "{\"node\":18446744073709551613}", &size);
    ck_assert_ptr_nonnull(strstr(text, "\"raw_bytes_sent\":18446744073709551615"));
    ck_assert_ptr_nonnull(strstr(text, "\"clients\":9007199254740993"));
    ck_assert_ptr_nonnull(strstr(text, "\"node\":18446744073709551613"));
    ck_assert_ptr_nonnull(strstr(text, "\"p99_us\":null"));
    free(text);
}

static const struct extra_case {
    const char *extra;
    bool good;
    int items; /* besides the six of ours */
} extras[] = {
    {NULL, true, 0},
    {"{}", true, 0},
    {" \n{ \t} ", true, 0},
    {"{\"peers\":[1,2],\"pools\":{\"a\":{}}}", true, 2},
    {" { \"peers\" : [] } ", true, 1},
    {"", false, 0},
    {"[]", false, 0},
    {"[{}]", false, 0},
    {"{\"a\":}", false, 0},
    {"{} x", false, 0},
    {"{\"a\":1", false, 0},
    {"{\"gauges\":1}", false, 0},
};

TEST_LOOP(extra_figures_come_under_their_own_names, COUNT(extras))
{
    const struct metrics metrics = {0};
    size_t size = 0;
    char *text = metrics_json(&metrics, extras[_i].extra, &size);
    ck_assert_int_eq(extras[_i].good, text != NULL);
    if (text == NULL)
        return;
    ck_assert_uint_eq(strlen(text), size);
    cJSON *root = cJSON_ParseWithOpts(text, NULL, true);
    ck_assert_int_eq(7 + extras[_i].items, cJSON_GetArraySize(root));
    cJSON_Delete(root);
    free(text);
}

int main(void)
{
    return run_tests("metrics", NULL, NULL);
}
