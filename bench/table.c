#include "bench/table.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "tools/util.h"
#include "tools/report.h"

#define CELL_BYTES   192
#define COLUMNS_MAX  32u
#define SAMPLE_BYTES (16u * 1024 * 1024) /* of a row and turn, made of small transfers */
#define SAMPLES_AUTO 100u                /* maximum, unless more are asked for */

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* ---- Figures ----------------------------------------------------------------------------------------------------- */

const char *const p50_min_max[] = {"p50", "min", "max", NULL};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_of(double *samples, size_t count)
{
    qsort(samples, count, sizeof(samples[0]), by_value);
    return (samples[(count - 1) / 2] + samples[count / 2]) / 2;
}

unsigned samples_in_turn(uint64_t asked, uint64_t bytes)
{
    const uint64_t fitting = SAMPLE_BYTES / bytes;

    if (asked > 0)
        return (unsigned)asked;
    return fitting < 1 ? 1 : fitting > SAMPLES_AUTO ? SAMPLES_AUTO : (unsigned)fitting;
}

static double median_ns(const uint64_t *ns, unsigned count)
{
    double samples[SAMPLES_MAX];

    for (unsigned i = 0; i < count; i++)
        samples[i] = (double)ns[i];
    return median_of(samples, count);
}

double times_by_base(const uint64_t *ns, unsigned samples, const uint64_t *base_ns, unsigned base_samples,
                     unsigned turns)
{
    double quotients[REPEATS_MAX];

    for (unsigned t = 0; t < turns; t++)
        quotients[t] =
            median_ns(base_ns + (size_t)t * base_samples, base_samples) / median_ns(ns + (size_t)t * samples, samples);
    return median_of(quotients, turns);
}

void row_add_figures(cJSON *row, const char *key, double *samples, size_t count, const char *const *names)
{
    cJSON *object = cJSON_AddObjectToObject(row, key);
    double median = median_of(samples, count);

    for (; *names != NULL; names++) {
        size_t rank = strcmp(*names, "min") == 0 ? 1 : strcmp(*names, "max") == 0 ? count : 0;
        if (rank == 0)
            rank = (count * strtoul(*names + 1, NULL, 10) + 99) / 100;
        double figure = strcmp(*names, "p50") == 0 ? median : samples[rank > 0 ? rank - 1 : 0];
        cJSON_AddNumberToObject(object, *names, figure);
    }
}

void row_add_times(cJSON *row, const char *key, const uint64_t *ns, size_t count)
{
    cJSON *list = cJSON_AddArrayToObject(row, key);

    for (size_t i = 0; i < count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)ns[i]));
}

void row_add_texts(cJSON *row, const char *key, const char *const *list, unsigned count)
{
    cJSON_AddItemToObject(row, key, cJSON_CreateStringArray(list, (int)count));
}

/* ---- Facts ------------------------------------------------------------------------------------------------------- */

/* The value of the first line `NAME : VALUE` of a file; name "": the first line itself. */
static void add_line_of(cJSON *object, const char *key, const char *path, const char *name)
{
    char line[512] = "";
    const char *value = NULL;
    FILE *file = fopen(path, "re");

    while (file != NULL && value == NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            value = name[0] == '\0' ? line : strchr(line, ':');
    if (file != NULL)
        fclose(file);
    if (value != NULL) {
        char *chosen = strchr(line, '['), *end = chosen == NULL ? NULL : strchr(chosen, ']');
        if (end != NULL) { /* "always [madvise] never" */
            *end = '\0';
            value = chosen + 1;
        }
        value += strspn(value, ": ");
        line[strcspn(line, "\n")] = '\0';
    }
    cJSON_AddStringToObject(object, key, value != NULL ? value : "unknown");
}

static void add_machine(cJSON *root)
{
    cJSON *machine = cJSON_AddObjectToObject(root, "machine");
    char kernel[sizeof(struct utsname)] = "unknown";
    struct utsname name;
    double load = -1;

    add_line_of(machine, "cpu", "/proc/cpuinfo", "model name");
    cJSON_AddNumberToObject(machine, "processors", cpu_count());
    add_line_of(machine, "l3", "/sys/devices/system/cpu/cpu0/cache/index3/size", "");
    if (uname(&name) == 0)
        snprintf(kernel, sizeof(kernel), "%s %s", name.sysname, name.release);
    cJSON_AddStringToObject(machine, "kernel", kernel);
    add_line_of(machine, "transparent_huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled", "");
    getloadavg(&load, 1);
    cJSON_AddNumberToObject(machine, "load", load);
}

/* The content of the file is unchanged. */
static bool can_write(const char *path)
{
    struct stat info;
    bool made = lstat(path, &info) != 0;

    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return true; /* the reader of a pipe would take the check for the end */
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return false;
    close(fd);
    if (made)
        unlink(path);
    return true;
}

bool report_init(struct report *report, const struct bench_options *options)
{
    cJSON *root = cJSON_CreateObject(), *command;

    *report = (struct report){options, root};
    if (options->save != NULL && !can_write(options->save)) {
        print_error(options->save, "cannot be written: %s", strerror(errno));
        return false;
    }
    json_add_schema(root);
    cJSON_AddStringToObject(root, "version", STRAIT_BENCH_VERSION);
    cJSON_AddStringToObject(root, "commit", STRAIT_BENCH_COMMIT);
    cJSON_AddStringToObject(root, "compiler", COMPILER);
    add_machine(root);
    command = cJSON_AddArrayToObject(root, "command");
    for (int i = 0; i < options->argc; i++)
        cJSON_AddItemToArray(command, cJSON_CreateString(options->argv[i]));
    return true;
}

void report_fini(struct report *report)
{
    cJSON_Delete(report->root);
    report->root = NULL;
}

void report_add_values(struct report *report, const struct bench_values *values)
{
    const struct bench_options *options = report->options;
    cJSON *input = cJSON_AddObjectToObject(report->root, "input"), *codebook;

    row_add_texts(input, "files", options->inputs.list, options->inputs.count);
    if (values == NULL)
        return;
    cJSON_AddNumberToObject(input, "tensors", (double)values->tensors.spans.count);
    cJSON_AddNumberToObject(input, "tensor_bytes", (double)values->tensors.bytes);
    cJSON_AddNumberToObject(input, "skipped_tensors", (double)values->tensors.skipped);
    codebook = cJSON_AddObjectToObject(report->root, "codebook");
    json_add_hex(codebook, "id", strait_codebook_id(values->codebook), STRAIT_CODEBOOK_ID_BYTES);
    cJSON_AddNumberToObject(codebook, "tables", strait_codebook_count(values->codebook));
    if (options->codebook != NULL)
        cJSON_AddStringToObject(codebook, "file", options->codebook);
    else if (options->calibs.count > 0)
        row_add_texts(codebook, "calibrated_on", options->calibs.list, options->calibs.count);
    else
        row_add_texts(codebook, "calibrated_on", options->inputs.list, options->inputs.count);
}

void report_note(struct report *report, const char *format, ...)
{
    cJSON *notes = cJSON_GetObjectItemCaseSensitive(report->root, "notes");
    char text[512];
    va_list args;

    if (notes == NULL)
        notes = cJSON_AddArrayToObject(report->root, "notes");
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    cJSON_AddItemToArray(notes, cJSON_CreateString(text));
}

cJSON *report_add_row(struct report *report, const char *rows)
{
    cJSON *list = cJSON_GetObjectItemCaseSensitive(report->root, rows), *row = cJSON_CreateObject();

    if (list == NULL)
        list = cJSON_AddArrayToObject(report->root, rows);
    cJSON_AddItemToArray(list, row);
    return row;
}

/* ---- Text: facts ------------------------------------------------------------------------------------------------- */

/* "cpu X, processors 2" for an object, "a, b" for an array. */
static void print_value(const cJSON *value, const char *separator, FILE *stream)
{
    const cJSON *member;

    if (cJSON_IsObject(value) || cJSON_IsArray(value)) {
        cJSON_ArrayForEach(member, value)
        {
            fprintf(stream, "%s%s%s", member == value->child ? "" : separator,
                    cJSON_IsObject(value) ? member->string : "", cJSON_IsObject(value) ? " " : "");
            print_value(member, ", ", stream);
        }
    } else if (cJSON_IsString(value)) {
        fputs(value->valuestring, stream);
    } else if (cJSON_IsNumber(value)) {
        fprintf(stream, fmod(value->valuedouble, 1) == 0 ? "%.0f" : "%.4g", value->valuedouble);
    } else {
        fputs(cJSON_IsTrue(value) ? "yes" : cJSON_IsFalse(value) ? "no" : "-", stream);
    }
}

static bool is_shown_elsewhere(const char *key, const struct table *tables, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (strcmp(key, tables[i].rows) == 0)
            return true;
    return strcmp(key, "notes") == 0;
}

static void print_facts(const cJSON *root, const struct table *tables, unsigned count, FILE *stream)
{
    const cJSON *fact;

    cJSON_ArrayForEach(fact, root)
    {
        bool empty = cJSON_IsArray(fact) && fact->child == NULL;
        empty |= strncmp(fact->string, "schema", strlen("schema")) == 0; /* for programs */
        if (empty || is_shown_elsewhere(fact->string, tables, count))
            continue;
        fprintf(stream, "%-14s ", fact->string);
        print_value(fact, strcmp(fact->string, "command") == 0 ? " " : ", ", stream);
        fputc('\n', stream);
    }
}

/* ---- Text: tables ------------------------------------------------------------------------------------------------ */

/* The figure at a key such as "encode_GBps.p50"; NULL: the row has none. */
static const cJSON *figure_at(const cJSON *row, const char *key)
{
    const char *point = strchr(key, '.');
    char name[64];

    if (point == NULL)
        return cJSON_GetObjectItemCaseSensitive(row, key);
    snprintf(name, sizeof(name), "%.*s", (int)(point - key), key);
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(row, name), point + 1);
}

static bool is_wrong(const cJSON *figure)
{
    return cJSON_IsFalse(figure) || (cJSON_IsNumber(figure) && figure->valuedouble != 0);
}

static void format_size(char cell[CELL_BYTES], double bytes)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    unsigned unit = 0;

    for (; unit < 4 && bytes > 0 && fmod(bytes, 1024) == 0; unit++)
        bytes /= 1024;
    snprintf(cell, CELL_BYTES, "%.0f%s", bytes, units[unit]);
}

static void format_number(char cell[CELL_BYTES], double number)
{
    double size = fabs(number);

    snprintf(cell, CELL_BYTES, "%.*f",
             size == 0      ? 0
             : size < 0.995 ? 4
             : size < 9.995 ? 3
             : size < 99.5  ? 2
                            : 1,
             number);
}

/* Leaves the cell empty where there is no figure. */
static void format_cell(char cell[CELL_BYTES], const cJSON *row, const struct column *column)
{
    const cJSON *figure = figure_at(row, column->key);
    double number = cJSON_IsNumber(figure) ? figure->valuedouble : 0;

    cell[0] = '\0';
    if (figure == NULL || cJSON_IsNull(figure))
        return;
    switch (column->format) {
    case COLUMN_TEXT:
        snprintf(cell, CELL_BYTES, "%s",
                 cJSON_IsString(figure) ? figure->valuestring
                 : cJSON_IsTrue(figure) ? column->heading
                                        : "");
        break;
    case COLUMN_COUNT:
        if (number != 0)
            snprintf(cell, CELL_BYTES, "%.0f", number);
        break;
    case COLUMN_SIZE:
        if (number != 0)
            format_size(cell, number);
        break;
    case COLUMN_NUMBER:
        format_number(cell, number);
        break;
    case COLUMN_RATIO:
        snprintf(cell, CELL_BYTES, "%.4f", number);
        break;
    case COLUMN_PERCENT:
        snprintf(cell, CELL_BYTES, "%.1f%%", 100 * number);
        break;
    case COLUMN_US:
        snprintf(cell, CELL_BYTES, "%.1f", number / 1e3);
        break;
    case COLUMN_CHECK:
        snprintf(cell, CELL_BYTES, "%s", is_wrong(figure) ? "WRONG" : "ok");
        break;
    }
}

static bool is_shown(const cJSON *row, const struct table *table)
{
    return figure_at(row, "skipped") == NULL && (table->needs == NULL || figure_at(row, table->needs) != NULL);
}

/* Widths of columns, 0 for those that no row has. Returns the number of rows. */
static unsigned measure(const cJSON *rows, const struct table *table, int widths[COLUMNS_MAX])
{
    char cell[CELL_BYTES];
    const cJSON *row;
    unsigned count = 0;

    memset(widths, 0, COLUMNS_MAX * sizeof(widths[0]));
    cJSON_ArrayForEach(row, rows)
    {
        if (!is_shown(row, table))
            continue;
        count++;
        for (unsigned c = 0; c < table->column_count; c++) {
            format_cell(cell, row, &table->columns[c]);
            int length = (int)strlen(cell), heading = (int)strlen(table->columns[c].heading);
            if (length > 0)
                length = length > heading ? length : heading;
            widths[c] = widths[c] > length ? widths[c] : length;
        }
    }
    return count;
}

static void print_cell(const struct table *table, const int *widths, unsigned c, const char *text, FILE *stream)
{
    bool left = table->columns[c].format == COLUMN_TEXT || table->columns[c].format == COLUMN_CHECK, last = true;

    for (unsigned next = c + 1; next < table->column_count; next++)
        last = last && widths[next] == 0;
    fprintf(stream, "%*s%s", !left ? widths[c] : last ? 0 : -widths[c], text, last ? "\n" : "  ");
}

/* The groups' names end where their last columns end. */
static void print_groups(const struct table *table, const int *widths, FILE *stream)
{
    bool any = false;
    int blank = -2;

    for (unsigned c = 0; c < table->column_count; c++)
        any |= table->columns[c].group != NULL && widths[c] > 0;
    if (!any)
        return;
    for (unsigned c = 0; c < table->column_count; c++) {
        const char *group = table->columns[c].group;
        const char *next = c + 1 < table->column_count ? table->columns[c + 1].group : NULL;
        if (widths[c] == 0)
            continue;
        blank += widths[c] + 2; /* and two between columns */
        if (group != NULL && (next == NULL || strcmp(group, next) != 0)) {
            fprintf(stream, "%*s", blank, group);
            blank = 0;
        }
    }
    fputc('\n', stream);
}

static void print_table(const cJSON *root, const struct table *table, FILE *stream)
{
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(root, table->rows), *row;
    int widths[COLUMNS_MAX];
    char cell[CELL_BYTES];

    if (measure(rows, table, widths) == 0)
        return;
    fprintf(stream, "\n%s%s", table->title != NULL ? table->title : "", table->title != NULL ? "\n" : "");
    print_groups(table, widths, stream);
    for (unsigned c = 0; c < table->column_count; c++)
        if (widths[c] > 0)
            print_cell(table, widths, c, table->columns[c].heading, stream);
    cJSON_ArrayForEach(row, rows)
    {
        if (!is_shown(row, table))
            continue;
        for (unsigned c = 0; c < table->column_count; c++) {
            if (widths[c] == 0)
                continue;
            format_cell(cell, row, &table->columns[c]);
            print_cell(table, widths, c, cell[0] != '\0' ? cell : "-", stream);
        }
    }
}

/* Lists the reasons of rows that were skipped, the same reason once. */
static void print_skipped(const cJSON *rows, FILE *stream)
{
    const cJSON *row, *other;

    cJSON_ArrayForEach(row, rows)
    {
        const char *why = cJSON_GetStringValue(figure_at(row, "skipped")), *before = NULL;
        if (why == NULL)
            continue;
        for (other = rows->child; other != row && before == NULL; other = other->next) {
            before = cJSON_GetStringValue(figure_at(other, "skipped"));
            before = before != NULL && strcmp(before, why) == 0 ? before : NULL;
        }
        if (before == NULL)
            fprintf(stream, "skipped: %s: %s\n", cJSON_GetStringValue(figure_at(row, "case")), why);
    }
}

static void print_text(const cJSON *root, const struct table *tables, unsigned count, FILE *stream)
{
    const cJSON *note;

    print_facts(root, tables, count, stream);
    for (unsigned i = 0; i < count; i++)
        print_table(root, &tables[i], stream);
    for (unsigned i = 0; i < count; i++)
        if (i == 0 || strcmp(tables[i].rows, tables[i - 1].rows) != 0)
            print_skipped(cJSON_GetObjectItemCaseSensitive(root, tables[i].rows), stream);
    cJSON_ArrayForEach(note, cJSON_GetObjectItemCaseSensitive(root, "notes"))
        fprintf(stream, "%s\n", note->valuestring);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static bool write_json(const cJSON *root, FILE *stream)
{
    char *text = cJSON_Print(root);
    bool written = text != NULL && fprintf(stream, "%s\n", text) > 0 && fflush(stream) == 0;

    cJSON_free(text);
    return written;
}

static bool save(const cJSON *root, const char *path)
{
    FILE *file = fopen(path, "we");
    bool saved = file != NULL && write_json(root, file);

    if (file != NULL)
        saved = fclose(file) == 0 && saved;
    if (!saved)
        print_error(path, "cannot be written");
    return saved;
}

static bool passed(const cJSON *root, const struct table *table)
{
    const cJSON *row;

    cJSON_ArrayForEach(
        row, cJSON_GetObjectItemCaseSensitive(
                 root, table->rows)) for (unsigned c = 0; c < table->column_count;
                                          c++) if (table->columns[c].format == COLUMN_CHECK &&
                                                   is_wrong(figure_at(row, table->columns[c].key))) return false;
    return true;
}

bool report_finish(struct report *report, const struct table *tables, unsigned count)
{
    bool good = true, right = true;

    if (report->options->json)
        good = write_json(report->root, stdout);
    else
        print_text(report->root, tables, count, stdout);
    if (!good || fflush(stdout) != 0) {
        print_error(NULL, "cannot print the report");
        good = false;
    }
    if (report->options->save != NULL)
        good = save(report->root, report->options->save) && good;
    for (unsigned i = 0; i < count; i++)
        right = right && passed(report->root, &tables[i]);
    if (!right)
        print_error(NULL, "a check failed: what arrived is not what was sent");
    return good && right;
}
