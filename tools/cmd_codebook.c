/* strait codebook: what a set costs, on other values and beside another set */
#include "tools/commands.h"

#include <cjson/cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codebook_file.h"
#include "tools/calibrate.h"
#include "tools/files.h"
#include "tools/input.h"
#include "tools/kinds.h"
#include "tools/report.h"
#include "tools/util.h"

static const char usage[] =
    "usage: strait codebook diff [OPTION]... A B\n"
    "       strait codebook expect [OPTION]... SET FILE...\n"
    "\n"
    "  diff    compare the tables of two codebook sets (or counts of strait calibrate --partial), class by class\n"
    "  expect  tell what a set makes of the tensors in safetensors files, beside what it expects and what their own\n"
    "          set would make of them\n"
    "\n"
    "strait codebook diff --help and strait codebook expect --help tell more.\n";

static const char diff_usage[] =
    "usage: strait codebook diff [OPTION]... A B\n"
    "\n"
    "Compares two codebook sets, or files of strait calibrate --partial. For each class: how many exponents have "
    "codes\n"
    "of another length, and the bits that an exponent of the values that each was made of takes by either table.\n"
    "\n"
    "  --json               report as JSON\n"
    "  -h, --help           print this\n"
    "\n"
    "- in the place of bits: the set has no counts, as those of earlier releases.\n"
    "Exit status: 0 done, whether they differ or not, 1 bad data or failed input or output, 2 bad usage.\n";

static const char expect_usage[] =
    "usage: strait codebook expect [OPTION]... SET FILE...\n"
    "\n"
    "Counts the BF16, FP16 and FP32 tensors in safetensors files, as strait calibrate does, and tells for each class\n"
    "what an exponent takes by the table of SET that strait encode would take: bits in mode tiered, what SET expects\n"
    "there, and what it would be with a set made of FILEs. Warns where that is more than 5 % above. Of values that "
    "fit\n"
    "no table encode makes blocks without tables, of about 3 bits.\n"
    "\n"
    "  --class REGEX=ROLE   tensors whose name matches are of this role: k, v, kv or other; see strait calibrate\n"
    "  --dtype TYPE         count only tensors of this type: bf16, fp16 or fp32; may be given several times (all "
    "three)\n"
    "  -T, --threads N      threads, 0 for all processors (0)\n"
    "  --json               report as JSON\n"
    "  -q, --quiet          no progress\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 done, whether SET fits or not, 1 bad data or failed input or output, 2 bad usage.\n";

const char *const codebook_names[] = {"diff", "expect", NULL};

/* ---- Bits ------------------------------------------------------------------------------------------------------ */

/* Of an exponent in mode tiered; 0: not known. */
static double bits_by(const struct strait_codebook *codebook, uint32_t table, const uint64_t counts[256])
{
    const struct cost cost =
        counts == NULL ? (struct cost){0} : cost_of(counts, strait_codebook_ranking(codebook, table));
    return cost.values == 0 ? 0 : cost.tiered / (double)cost.values;
}

/* The table that encoders of files take for values of a class. */
static uint32_t table_for(const struct strait_codebook *codebook, struct strait_class class, const uint64_t *counts)
{
    const uint32_t table = strait_codebook_find(codebook, class);
    const bool fits = table == 0 || class.role == STRAIT_ROLE_OTHER;
    return fits && counts != NULL ? kinds_find_table(codebook, counts) : table;
}

static bool is_above(double bits, double expected)
{
    return expected > 0 && bits > expected * STRAIT_CODEBOOK_FITS;
}

static void print_bits(double bits)
{
    if (bits > 0)
        printf(" %9.3f", bits);
    else
        printf(" %9s", "-");
}

/* ---- diff: a set and another ------------------------------------------------------------------------------------ */

/* Values that one of the sets was made of, and the tables for them. */
struct diff_row {
    struct strait_class class; /* of table 0: see is_fallback */
    bool is_fallback;
    uint32_t table[2]; /* in A and B */
    bool has[2];       /* a table of exactly this class */
    unsigned changed;  /* exponents whose codes differ in length */
    double bits[2][2]; /* of what A and B were made of, by A and by B */
};

struct diff {
    const char *paths[2];
    struct strait_codebook *sets[2];
    struct diff_row *rows;
    uint32_t count;
    double total[2][2];
};

/* A partial file makes the set that strait calibrate --merge would make of it. */
static bool load_counts(const struct input *input, struct strait_codebook **codebook)
{
    struct histograms histograms = {0};
    enum strait_status status = codebook_partial_parse(input->data, input->size, &histograms.list, &histograms.count);
    if (status == STRAIT_OK)
        status = kinds_join(histograms.list, &histograms.count);
    if (status == STRAIT_OK)
        status = histograms_codebook(&histograms, false, codebook);
    histograms_fini(&histograms);
    if (status != STRAIT_OK)
        print_error(input->path, "neither a codebook set nor a partial file: %s", strait_status_string(status));
    return status == STRAIT_OK;
}

static bool load_side(const char *path, struct strait_codebook **codebook)
{
    struct input input;
    if (!input_open(&input, path))
        return false;
    const enum strait_status status = strait_codebook_parse(input.data, input.size, codebook);
    const bool loaded = status == STRAIT_OK || load_counts(&input, codebook);
    input_close(&input);
    return loaded;
}

static unsigned tier_of(unsigned rank)
{
    uint64_t counts[256] = {0};
    uint8_t ranking[256];
    for (unsigned r = 0; r < 256; r++)
        ranking[r] = (uint8_t)r;
    counts[rank] = 1;
    return (unsigned)codebook_tiered_bits(counts, ranking);
}

static unsigned changed_codes(const uint8_t a[256], const uint8_t b[256])
{
    uint8_t rank_in_b[256];
    unsigned changed = 0;
    for (unsigned r = 0; r < 256; r++)
        rank_in_b[b[r]] = (uint8_t)r;
    for (unsigned r = 0; r < 256; r++)
        changed += tier_of(r) != tier_of(rank_in_b[a[r]]);
    return changed;
}

/* Whether the set has a table of exactly this class; kinds are numbered by each set for itself. */
static bool has_table(const struct strait_codebook *codebook, struct strait_class class, uint32_t table)
{
    return table > 0 && !kind_is(class) && codebook_class_compare(strait_codebook_class(codebook, table), class) == 0;
}

/* Whether a kind of set `side` is one of the other set, by whose table its values take about as few bits. */
static bool is_like(const struct diff *diff, unsigned side, const struct diff_row *row)
{
    const uint64_t *counts = strait_codebook_counts(diff->sets[side], row->table[side]);
    return counts != NULL && kind_is(row->class) &&
           kind_is(strait_codebook_class(diff->sets[!side], row->table[!side])) &&
           !is_above(bits_by(diff->sets[!side], row->table[!side], counts),
                     bits_by(diff->sets[side], row->table[side], counts));
}

/* The row of a table of set `side`. */
static struct diff_row compare(const struct diff *diff, unsigned side, uint32_t table)
{
    struct diff_row row = {.class = strait_codebook_class(diff->sets[side], table), .is_fallback = table == 0};
    const struct strait_codebook *other = diff->sets[!side];
    const uint64_t *counts = strait_codebook_counts(diff->sets[side], table);
    row.table[side] = table;
    row.has[side] = true;
    row.table[!side] = table == 0 ? 0 : table_for(other, row.class, counts);
    if (table > 0 && has_table(other, row.class, strait_codebook_find(other, row.class)))
        row.table[!side] = strait_codebook_find(other, row.class);
    row.has[!side] = table == 0 || has_table(other, row.class, row.table[!side]) || is_like(diff, side, &row);
    row.changed = changed_codes(strait_codebook_ranking(diff->sets[0], row.table[0]),
                                strait_codebook_ranking(diff->sets[1], row.table[1]));
    for (unsigned made = 0; made < 2; made++) {
        const bool known = made == side || row.has[made];
        const uint64_t *of = known ? strait_codebook_counts(diff->sets[made], row.table[made]) : NULL;
        for (unsigned by = 0; by < 2; by++)
            row.bits[made][by] = bits_by(diff->sets[by], row.table[by], of);
        if (known && of == NULL)
            row.bits[made][made] = strait_codebook_expected(diff->sets[made], row.table[made]) / 1000.0;
    }
    return row;
}

static bool has_kinds(const struct strait_codebook *codebook)
{
    for (uint32_t t = 1; t < strait_codebook_count(codebook); t++)
        if (kind_is(strait_codebook_class(codebook, t)))
            return true;
    return false;
}

/* Whether the values of a table are those of no other one. */
static bool counts_once(const struct strait_codebook *codebook, uint32_t table)
{
    const struct strait_class class = strait_codebook_class(codebook, table);
    if (strait_codebook_count(codebook) == 1)
        return true;
    return table > 0 && class.role != STRAIT_ROLE_KV &&
           (class.role != STRAIT_ROLE_OTHER || kind_is(class) || !has_kinds(codebook));
}

/* Mean bits of all values that a set was made of, by either set. */
static void sum_up(struct diff *diff)
{
    for (unsigned made = 0; made < 2; made++) {
        double values = 0;
        for (uint32_t i = 0; i < diff->count; i++) {
            const struct diff_row *row = &diff->rows[i];
            const uint64_t *counts = row->has[made] ? strait_codebook_counts(diff->sets[made], row->table[made]) : NULL;
            if (counts == NULL || !counts_once(diff->sets[made], row->table[made]))
                continue;
            const struct cost cost = cost_of(counts, strait_codebook_ranking(diff->sets[made], row->table[made]));
            values += (double)cost.values;
            for (unsigned by = 0; by < 2; by++)
                diff->total[made][by] += row->bits[made][by] * (double)cost.values;
        }
        for (unsigned by = 0; by < 2 && values > 0; by++)
            diff->total[made][by] /= values;
    }
}

static bool has_row(const struct diff *diff, uint32_t table_in_b)
{
    for (uint32_t i = 0; i < diff->count; i++)
        if (diff->rows[i].has[1] && diff->rows[i].table[1] == table_in_b)
            return true;
    return false;
}

/* A row for each table of A, and for each of B that is in none of these. */
static bool make_rows(struct diff *diff)
{
    const size_t most = (size_t)strait_codebook_count(diff->sets[0]) + strait_codebook_count(diff->sets[1]);
    diff->rows = calloc(most, sizeof(*diff->rows));
    if (diff->rows == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t t = 0; t < strait_codebook_count(diff->sets[0]); t++)
        diff->rows[diff->count++] = compare(diff, 0, t);
    for (uint32_t t = 1; t < strait_codebook_count(diff->sets[1]); t++)
        if (!has_row(diff, t))
            diff->rows[diff->count++] = compare(diff, 1, t);
    sum_up(diff);
    return true;
}

static void row_name(char name[CLASS_NAME_BYTES], const struct diff_row *row)
{
    if (row->is_fallback)
        snprintf(name, CLASS_NAME_BYTES, "fallback");
    else
        class_name(name, row->class);
}

/* "7", or "(7)": of another class, which stands in. */
static void print_table(const struct diff_row *row, unsigned side)
{
    char text[16];
    snprintf(text, sizeof(text), row->has[side] ? "%" PRIu32 : "(%" PRIu32 ")", row->table[side]);
    printf(" %7s", text);
}

static void print_costs(const double bits[2][2])
{
    for (unsigned made = 0; made < 2; made++)
        for (unsigned by = 0; by < 2; by++)
            print_bits(bits[made][made == by ? made : by]);
    putchar('\n');
}

static void print_diff(const struct diff *diff)
{
    const bool same =
        memcmp(strait_codebook_id(diff->sets[0]), strait_codebook_id(diff->sets[1]), STRAIT_CODEBOOK_ID_BYTES) == 0;
    printf("A: ");
    text_put(diff->paths[0], stdout);
    printf(", %" PRIu32 " tables\nB: ", strait_codebook_count(diff->sets[0]));
    text_put(diff->paths[1], stdout);
    printf(", %" PRIu32 " tables%s\n", strait_codebook_count(diff->sets[1]), same ? "; the same set" : "");
    printf("%-12s %7s %7s %8s %19s %19s\n", "", "table", "table", "codes", "values of A: bits", "values of B: bits");
    printf("%-12s %7s %7s %8s %9s %9s %9s %9s\n", "class", "in A", "in B", "changed", "by A", "by B", "by A", "by B");
    for (uint32_t i = 0; i < diff->count; i++) {
        char name[CLASS_NAME_BYTES];
        row_name(name, &diff->rows[i]);
        printf("%-12s", name);
        print_table(&diff->rows[i], 0);
        print_table(&diff->rows[i], 1);
        printf(" %8u", diff->rows[i].changed);
        print_costs(diff->rows[i].bits);
    }
    printf("%-12s %7s %7s %8s", "total", "", "", "");
    print_costs(diff->total);
}

static void costs_json(cJSON *object, const double bits[2][2])
{
    json_add_known(object, "a_by_a_bits", bits[0][0]);
    json_add_known(object, "a_by_b_bits", bits[0][1]);
    json_add_known(object, "b_by_a_bits", bits[1][0]);
    json_add_known(object, "b_by_b_bits", bits[1][1]);
}

static cJSON *side_json(const struct diff *diff, unsigned side)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "input", diff->paths[side]);
    json_add_hex(object, "codebook_id", strait_codebook_id(diff->sets[side]), STRAIT_CODEBOOK_ID_BYTES);
    cJSON_AddNumberToObject(object, "tables", strait_codebook_count(diff->sets[side]));
    return object;
}

static bool print_diff_json(const struct diff *diff)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddItemToObject(root, "a", side_json(diff, 0));
    cJSON_AddItemToObject(root, "b", side_json(diff, 1));
    cJSON *list = cJSON_AddArrayToObject(root, "classes");
    for (uint32_t i = 0; i < diff->count; i++) {
        const struct diff_row *row = &diff->rows[i];
        cJSON *item = cJSON_CreateObject();
        class_json(item, row->class);
        cJSON_AddBoolToObject(item, "fallback", row->is_fallback);
        cJSON_AddNumberToObject(item, "table_in_a", row->table[0]);
        cJSON_AddNumberToObject(item, "table_in_b", row->table[1]);
        cJSON_AddBoolToObject(item, "in_a", row->has[0]);
        cJSON_AddBoolToObject(item, "in_b", row->has[1]);
        cJSON_AddNumberToObject(item, "changed_codes", row->changed);
        costs_json(item, row->bits);
        cJSON_AddItemToArray(list, item);
    }
    costs_json(cJSON_AddObjectToObject(root, "total"), diff->total);
    return json_print(root, stdout);
}

static int run_diff(int argc, char **argv)
{
    static char name[] = "strait codebook diff";
    bool json = false;
    const struct cli_option list[] = {{"json", .flag = &json}};
    enum exit_code code;

    command_begin(argv, name);
    if (!options_parse(list, 1, NULL, diff_usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 2, "two sets, A and B"))
        return EXIT_CODE_USAGE;
    struct diff diff = {.paths = {argv[optind], argv[optind + 1]}};
    bool done = load_side(diff.paths[0], &diff.sets[0]) && load_side(diff.paths[1], &diff.sets[1]) && make_rows(&diff);
    if (done && json)
        done = print_diff_json(&diff);
    else if (done)
        print_diff(&diff);
    free(diff.rows);
    strait_codebook_destroy(diff.sets[0]);
    strait_codebook_destroy(diff.sets[1]);
    return done ? EXIT_CODE_OK : EXIT_CODE_DATA;
}

/* ---- expect: a set and files ------------------------------------------------------------------------------------ */

struct expect_options {
    struct class_rules *rules;
    uint32_t elements; /* 0: the files say it */
    unsigned threads;
    bool json, quiet;
    char **files; /* the set first */
    int file_count;
};

/* Values of a class, or of role other that take the same table. */
struct expect_row {
    struct strait_class class;
    uint32_t table;
    uint64_t values;
    double by_set, by_own; /* bits, of all of them */
};

struct expect {
    const char *path;
    struct strait_codebook *set, *own;
    struct expect_row *rows;
    uint32_t count;
    struct expect_row total;
};

static double row_bits(const struct expect_row *row, double sum)
{
    return row->values == 0 ? 0 : sum / (double)row->values;
}

static double row_expected(const struct expect *expect, const struct expect_row *row)
{
    return strait_codebook_expected(expect->set, row->table) / 1000.0;
}

static bool row_fits(const struct expect *expect, const struct expect_row *row)
{
    const double bits = row_bits(row, row->by_set);
    return !is_above(bits, row_expected(expect, row)) && !is_above(bits, row_bits(row, row->by_own));
}

static uint32_t count_misfits(const struct expect *expect)
{
    uint32_t misfits = 0;
    for (uint32_t i = 0; i < expect->count; i++)
        misfits += !row_fits(expect, &expect->rows[i]);
    return misfits;
}

/* Values of role other share the row of their table, which is of the table's class. */
static struct expect_row *row_of(struct expect *expect, struct strait_class class, uint32_t table)
{
    if (class.role == STRAIT_ROLE_OTHER)
        class = strait_codebook_class(expect->set, table);
    for (uint32_t i = 0; i < expect->count; i++)
        if (expect->rows[i].table == table && codebook_class_compare(expect->rows[i].class, class) == 0)
            return &expect->rows[i];
    expect->rows[expect->count] = (struct expect_row){.class = class, .table = table};
    return &expect->rows[expect->count++];
}

static void add_row(struct expect *expect, const struct codebook_histogram *counted)
{
    const uint32_t table = table_for(expect->set, counted->class, counted->counts);
    const uint32_t own = table_for(expect->own, counted->class, counted->counts);
    const struct cost cost = cost_of(counted->counts, strait_codebook_ranking(expect->set, table));
    struct expect_row *const sums[] = {row_of(expect, counted->class, table), &expect->total};
    for (unsigned i = 0; i < 2; i++) {
        sums[i]->values += cost.values;
        sums[i]->by_set += cost.tiered;
        sums[i]->by_own += cost_of(counted->counts, strait_codebook_ranking(expect->own, own)).tiered;
    }
}

/* Of role other, kinds are looked at if there are any: classes have the same values. */
static bool weigh(struct expect *expect, const struct histograms *counted)
{
    bool kinds = false;
    expect->rows = calloc((size_t)counted->count + 1, sizeof(*expect->rows));
    if (expect->rows == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t i = 0; i < counted->count; i++)
        kinds |= kind_is(counted->list[i].class);
    for (uint32_t i = 0; i < counted->count; i++) {
        const struct strait_class class = counted->list[i].class;
        if (class.role != STRAIT_ROLE_OTHER || kind_is(class) || !kinds)
            add_row(expect, &counted->list[i]);
    }
    return true;
}

/* The set that strait calibrate would make of the counts. */
static bool make_own(const struct histograms *counted, struct strait_codebook **own)
{
    struct histograms joined = {0};
    enum strait_status status = histograms_add(&joined, counted->list, counted->count);
    if (status == STRAIT_OK)
        status = kinds_join(joined.list, &joined.count);
    if (status == STRAIT_OK)
        status = histograms_codebook(&joined, false, own);
    histograms_fini(&joined);
    if (status != STRAIT_OK)
        print_error(NULL, "cannot make a set of the files: %s", strait_status_string(status));
    return status == STRAIT_OK;
}

static bool count_tensors(const struct expect_options *options, struct histograms *histograms)
{
    struct tensors tensors;
    struct progress progress;
    if (!tensors_open_kinds(&tensors, (const char *const *)options->files + 1, (unsigned)options->file_count - 1,
                            tensors_take_safetensors, options->rules, options->elements))
        return false;
    progress_begin(&progress, "counting", tensors.bytes, options->quiet);
    bool counted = spans_count(&tensors.spans, NULL, options->threads, &progress, histograms, NULL);
    progress_end(&progress);
    if (counted && histograms->count == 0) {
        print_error(options->files[1], "no values that have tables: BF16, FP16 or FP32");
        counted = false;
    }
    tensors_close(&tensors);
    return counted;
}

static void print_expect_row(const struct expect *expect, const char *name, const struct expect_row *row, bool total)
{
    const double bits = row_bits(row, row->by_set), own = row_bits(row, row->by_own);
    printf("%-12s", name);
    if (total)
        printf(" %7s", "");
    else
        printf(" %7" PRIu32, row->table);
    printf(" %14" PRIu64, row->values);
    print_bits(bits);
    print_bits(total ? 0 : row_expected(expect, row));
    print_bits(own);
    printf(" %8.1f%s\n", own > 0 ? 100 * (bits / own - 1) : 0, total || row_fits(expect, row) ? "" : "  does not fit");
}

static void print_expect(const struct expect *expect)
{
    const uint32_t misfits = count_misfits(expect);
    printf("%-12s %7s %14s %9s %9s %9s %8s\n", "class", "table", "values", "bits", "expected", "own set", "above %");
    for (uint32_t i = 0; i < expect->count; i++) {
        char name[CLASS_NAME_BYTES];
        class_name(name, expect->rows[i].class);
        print_expect_row(expect, name, &expect->rows[i], false);
    }
    print_expect_row(expect, "total", &expect->total, true);
    if (misfits == 0)
        return;
    printf("warning: %" PRIu32 " of %" PRIu32 " take over 5%% more than ", misfits, expect->count);
    text_put(expect->path, stdout);
    printf(" expects, or than a set of these files would; calibrate one anew\n");
}

static void expect_json(cJSON *object, const struct expect_row *row)
{
    cJSON_AddNumberToObject(object, "values", (double)row->values);
    cJSON_AddNumberToObject(object, "bits", row_bits(row, row->by_set));
    cJSON_AddNumberToObject(object, "own_bits", row_bits(row, row->by_own));
}

static bool print_expect_json(const struct expect *expect)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "codebook", expect->path);
    json_add_hex(root, "codebook_id", strait_codebook_id(expect->set), STRAIT_CODEBOOK_ID_BYTES);
    cJSON_AddBoolToObject(root, "codebook_fits", count_misfits(expect) == 0);
    cJSON *list = cJSON_AddArrayToObject(root, "classes");
    for (uint32_t i = 0; i < expect->count; i++) {
        const struct expect_row *row = &expect->rows[i];
        cJSON *item = cJSON_CreateObject();
        class_json(item, row->class);
        cJSON_AddNumberToObject(item, "table", row->table);
        expect_json(item, row);
        json_add_known(item, "expected_bits", row_expected(expect, row));
        cJSON_AddBoolToObject(item, "fits", row_fits(expect, row));
        cJSON_AddItemToArray(list, item);
    }
    expect_json(cJSON_AddObjectToObject(root, "total"), &expect->total);
    return json_print(root, stdout);
}

static bool expect_files(const struct expect_options *options)
{
    struct expect expect = {.path = options->files[0]};
    struct histograms counted = {0};
    bool done = codebook_load(expect.path, &expect.set);
    done = done && count_tensors(options, &counted) && make_own(&counted, &expect.own) && weigh(&expect, &counted);
    if (done && options->json)
        done = print_expect_json(&expect);
    else if (done)
        print_expect(&expect);
    free(expect.rows);
    histograms_fini(&counted);
    strait_codebook_destroy(expect.set);
    strait_codebook_destroy(expect.own);
    return done;
}

static bool add_dtype(void *options, const char *text)
{
    return calibrate_add_dtype(&((struct expect_options *)options)->elements, text);
}

static bool add_rule(void *options, const char *rule)
{
    return calibrate_add_rule(((struct expect_options *)options)->rules, rule);
}

static int parse_and_expect(struct expect_options *options, int argc, char **argv)
{
    const struct cli_option list[] = {
        {"class", .set = add_rule},
        {"dtype", .set = add_dtype, .values = "bf16 fp16 fp32"},
        {"threads", 'T', .threads = &options->threads},
        {"json", .flag = &options->json},
        {"quiet", 'q', .flag = &options->quiet},
    };
    enum exit_code code;
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), options, expect_usage, argc, argv, &code))
        return code;
    options->files = argv + optind;
    options->file_count = argc - optind;
    if (options->file_count < 2) {
        print_error(NULL, "takes a set and files; see strait codebook expect --help");
        return EXIT_CODE_USAGE;
    }
    return expect_files(options) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}

static int run_expect(int argc, char **argv)
{
    static char name[] = "strait codebook expect";
    struct expect_options options = {.rules = class_rules_create(), .threads = cpu_count()};
    int code = EXIT_CODE_DATA;
    command_begin(argv, name);
    if (options.rules == NULL)
        print_error(NULL, "out of memory");
    else
        code = parse_and_expect(&options, argc, argv);
    class_rules_destroy(options.rules);
    return code;
}

/* ---- Which ------------------------------------------------------------------------------------------------------- */

int cmd_codebook(int argc, char **argv)
{
    static char name[] = "strait codebook";
    if (argc >= 2 && strcmp(argv[1], codebook_names[0]) == 0)
        return run_diff(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], codebook_names[1]) == 0)
        return run_expect(argc - 1, argv + 1);
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return EXIT_CODE_OK;
    }
    command_begin(argv, name);
    if (argc >= 2)
        print_error(NULL, "no '%s': diff or expect", argv[1]);
    fputs(usage, stderr);
    return EXIT_CODE_USAGE;
}
