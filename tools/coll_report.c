#include "tools/coll_report.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA     "strait-coll report"
#define VERSION    1
#define NUMBER_MAX 1e19
#define UNKNOWN    (-1.0)

const char *const coll_rate_names[COLL_RATES] = {"all_gather", "all_to_all", "reduce_scatter", "overflow", "local",
                                                 "rail",       "shm",        "encode",         "decode"};

/* ---- Members of objects ------------------------------------------------------------------------------------------ */

/* Where a report is wrong; the first finding stays. */
struct finding {
    char *why;
    size_t size;
    bool bad;
};

__attribute__((format(printf, 2, 3))) static bool refuse(struct finding *finding, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!finding->bad)
        vsnprintf(finding->why, finding->size, format, arguments);
    va_end(arguments);
    finding->bad = true;
    return false;
}

static const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static double number_in(struct finding *finding, const cJSON *object, const char *name)
{
    const cJSON *item = member(object, name);
    if (cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= NUMBER_MAX)
        return item->valuedouble;
    refuse(finding, "no number \"%s\"", name);
    return 0;
}

/* The member may be null. */
static double known_in(struct finding *finding, const cJSON *object, const char *name)
{
    return cJSON_IsNull(member(object, name)) ? UNKNOWN : number_in(finding, object, name);
}

/* The member is in no report of an earlier release. */
static double later_in(struct finding *finding, const cJSON *object, const char *name)
{
    return member(object, name) == NULL ? UNKNOWN : known_in(finding, object, name);
}

static const char *string_in(struct finding *finding, const cJSON *object, const char *name)
{
    const char *string = cJSON_GetStringValue(member(object, name));
    if (string != NULL && strlen(string) <= COLL_STRING_MAX)
        return string;
    refuse(finding, "no text \"%s\"", name);
    return "";
}

/* A name of an operation or a type, which is printed as it is. */
static const char *name_in(struct finding *finding, const cJSON *object, const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    const char *string = string_in(finding, object, name);
    const size_t size = strlen(string);
    if (size > 0 && size < 32 && strspn(string, letters) == size)
        return string;
    refuse(finding, "\"%s\" is no name", name);
    return "";
}

static bool bool_in(struct finding *finding, const cJSON *object, const char *name)
{
    const cJSON *item = member(object, name);
    if (!cJSON_IsBool(item))
        refuse(finding, "no true or false \"%s\"", name);
    return cJSON_IsTrue(item);
}

/* Elements of an array of objects, of which there may be `most`. NULL: none, or there is no such array. */
static const cJSON *array_in(struct finding *finding, const cJSON *object, const char *name, unsigned most,
                             unsigned *count)
{
    const cJSON *array = member(object, name), *item;
    *count = 0;
    if (!cJSON_IsArray(array)) {
        refuse(finding, "no array \"%s\"", name);
        return NULL;
    }
    cJSON_ArrayForEach(item, array)
    {
        if (!cJSON_IsObject(item) || *count == most) {
            refuse(finding, *count == most ? "more than %u \"%s\"" : "not %u objects in \"%s\"", most, name);
            *count = 0;
            return NULL;
        }
        ++*count;
    }
    return array->child;
}

/* ---- A process --------------------------------------------------------------------------------------------------- */

static void parse_row(struct finding *finding, const cJSON *object, struct coll_row *row)
{
    const struct {
        const char *name;
        double *value;
    } counts[] = {{"calls", &row->calls},
                  {"bytes", &row->bytes},
                  {"grouped", &row->grouped},
                  {"captured", &row->captured},
                  {"failed", &row->failed},
                  {"compressed", &row->compressed},
                  {"plain_bytes", &row->plain_bytes},
                  {"wire_bytes", &row->wire_bytes},
                  {"probes", &row->probes},
                  {"overflows", &row->overflows},
                  {"compared", &row->compared}};
    row->operation = name_in(finding, object, "operation");
    row->type = name_in(finding, object, "type");
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        *counts[i].value = number_in(finding, object, counts[i].name);
    row->nccl_seconds = known_in(finding, object, "nccl_seconds");
    row->coded_seconds = known_in(finding, object, "coded_seconds");
    row->overflow_seconds = known_in(finding, object, "overflow_seconds");
    row->x = known_in(finding, object, "x");
    row->calls_least = row->calls_most = row->calls;
    const cJSON *raw = array_in(finding, object, "raw", COLL_RAW_MAX, &row->raw_count);
    for (unsigned i = 0; i < row->raw_count; i++, raw = raw->next)
        row->raw[i] = (struct coll_raw){string_in(finding, raw, "why"), number_in(finding, raw, "calls"),
                                        number_in(finding, raw, "bytes")};
}

static void parse_figures(struct finding *finding, const cJSON *object, struct coll_communicator *of)
{
    const cJSON *links = member(object, "links"), *memory = member(object, "memory");
    of->has_figures = links != NULL;
    of->table = "";
    if (!of->has_figures)
        return;
    of->start_us = known_in(finding, links, "start_us");
    for (unsigned i = 0; i < COLL_RATES; i++)
        of->rates[i] = i >= COLL_RATE_LOCAL && i <= COLL_RATE_SHM ? later_in(finding, links, coll_rate_names[i])
                                                                  : known_in(finding, links, coll_rate_names[i]);
    of->messages = number_in(finding, memory, "messages");
    of->persistent = number_in(finding, memory, "persistent");
    of->host = number_in(finding, memory, "host");
    of->host_messages = number_in(finding, memory, "host_messages");
    of->hosts = number_in(finding, object, "hosts");
    of->rails = later_in(finding, object, "rails");
    of->table = string_in(finding, object, "table");
}

/* A rank and a number of ranks, or -1 and -1. */
static void parse_ranks(struct finding *finding, const cJSON *object, struct coll_communicator *of)
{
    const cJSON *rank = member(object, "rank"), *ranks = member(object, "ranks");
    const bool numbers = cJSON_IsNumber(rank) && cJSON_IsNumber(ranks);
    of->rank = numbers ? rank->valueint : -1;
    of->ranks = numbers ? ranks->valueint : -1;
    const bool known = of->ranks >= 1 && of->ranks <= COLL_FILE_RANKS_MAX && of->rank >= 0 && of->rank < of->ranks;
    if (!numbers || (!known && (of->rank != -1 || of->ranks != -1)))
        refuse(finding, "no \"rank\" and \"ranks\"");
}

static void parse_communicator(struct finding *finding, const cJSON *object, struct coll_communicator *of)
{
    unsigned count;
    parse_ranks(finding, object, of);
    of->number = number_in(finding, object, "number");
    of->id = cJSON_IsNull(member(object, "id")) ? NULL : string_in(finding, object, "id");
    of->ended = bool_in(finding, object, "ended");
    of->pinned = bool_in(finding, object, "pinned");
    of->state = string_in(finding, object, "state");
    of->why = string_in(finding, object, "why");
    parse_figures(finding, object, of);
    const cJSON *row = array_in(finding, object, "operations", COLL_ROWS_MAX, &count);
    of->rows = count > 0 ? calloc(count, sizeof(*of->rows)) : NULL;
    of->row_count = of->rows != NULL ? count : 0;
    if (count > 0 && of->rows == NULL)
        refuse(finding, "no memory");
    for (unsigned i = 0; i < of->row_count; i++, row = row->next)
        parse_row(finding, row, &of->rows[i]);
}

static void parse_head(struct finding *finding, struct coll_process *process)
{
    const cJSON *tree = process->tree;
    process->library = string_in(finding, tree, "library");
    process->nccl = number_in(finding, tree, "nccl");
    process->nccl_path = string_in(finding, tree, "nccl_path");
    process->host = string_in(finding, tree, "host");
    process->process = number_in(finding, tree, "process");
    process->started = number_in(finding, tree, "started");
    process->written = number_in(finding, tree, "written");
    process->exited = bool_in(finding, tree, "exited");
    process->mode = string_in(finding, tree, "mode");
    process->encrypted = bool_in(finding, tree, "encrypted");
    process->dropped = number_in(finding, tree, "dropped");
}

static void parse_tree(struct finding *finding, struct coll_process *process)
{
    const char *schema = cJSON_GetStringValue(member(process->tree, "schema"));
    const cJSON *version = member(process->tree, "schema_version");
    unsigned count;
    if (schema == NULL || strcmp(schema, SCHEMA) != 0) {
        refuse(finding, "its schema is not \"" SCHEMA "\"");
        return;
    }
    if (!cJSON_IsNumber(version) || version->valueint != VERSION) {
        refuse(finding, "its schema_version is not %d, the one that this program reads", VERSION);
        return;
    }
    parse_head(finding, process);
    const cJSON *item = array_in(finding, process->tree, "communicators", COLL_COMMS_MAX, &count);
    process->communicators = count > 0 ? calloc(count, sizeof(*process->communicators)) : NULL;
    process->count = process->communicators != NULL ? count : 0;
    if (count > 0 && process->communicators == NULL)
        refuse(finding, "no memory");
    for (unsigned i = 0; i < process->count; i++, item = item->next)
        parse_communicator(finding, item, &process->communicators[i]);
}

bool coll_process_parse(struct coll_process *process, const char *text, size_t size, char *why, size_t why_size)
{
    struct finding finding = {why, why_size, false};
    memset(process, 0, sizeof(*process));
    process->tree = size <= COLL_FILE_MAX ? cJSON_ParseWithLength(text, size) : NULL;
    if (process->tree == NULL)
        return refuse(&finding, size <= COLL_FILE_MAX ? "it is no JSON" : "it is too large");
    parse_tree(&finding, process);
    if (!finding.bad)
        return true;
    coll_process_free(process);
    return false;
}

void coll_process_free(struct coll_process *process)
{
    for (unsigned i = 0; i < process->count; i++)
        free(process->communicators[i].rows);
    free(process->communicators);
    free(process->file);
    cJSON_Delete(process->tree);
    memset(process, 0, sizeof(*process));
}

/* ---- Merging rows ------------------------------------------------------------------------------------------------ */

static double sum_known(double a, double b)
{
    return a < 0 ? b : b < 0 ? a : a + b;
}

static void add_raw(struct coll_row *to, const struct coll_raw *raw)
{
    unsigned at = 0;
    while (at < to->raw_count && strcmp(to->raw[at].why, raw->why) != 0)
        at++;
    if (at == COLL_RAW_MAX)
        at--; /* the last one stands for those that have no place */
    if (at == to->raw_count)
        to->raw[to->raw_count++] = (struct coll_raw){raw->why, 0, 0};
    to->raw[at].calls += raw->calls;
    to->raw[at].bytes += raw->bytes;
}

static bool is_pairs(const struct coll_row *row)
{
    return strcmp(row->operation, "send") == 0 || strcmp(row->operation, "recv") == 0;
}

static void add_row(struct coll_row *to, const struct coll_row *row)
{
    to->calls += row->calls;
    to->bytes += row->bytes;
    to->grouped += row->grouped;
    to->captured += row->captured;
    to->failed += row->failed;
    to->compressed += row->compressed;
    to->plain_bytes += row->plain_bytes;
    to->wire_bytes += row->wire_bytes;
    to->probes += row->probes;
    to->overflows = is_pairs(row) ? to->overflows + row->overflows : fmax(to->overflows, row->overflows);
    to->nccl_seconds = sum_known(to->nccl_seconds, row->nccl_seconds);
    to->coded_seconds = sum_known(to->coded_seconds, row->coded_seconds);
    to->overflow_seconds = sum_known(to->overflow_seconds, row->overflow_seconds);
    if (row->compared > to->compared) {
        to->compared = row->compared;
        to->x = row->x;
    }
    to->calls_least = fmin(to->calls_least, row->calls);
    to->calls_most = fmax(to->calls_most, row->calls);
    for (unsigned i = 0; i < row->raw_count; i++)
        add_raw(to, &row->raw[i]);
}

static bool is_same_kind(const struct coll_row *a, const struct coll_row *b)
{
    return strcmp(a->operation, b->operation) == 0 && strcmp(a->type, b->type) == 0;
}

static struct coll_row *row_like(const struct coll_group *group, const struct coll_row *row)
{
    for (unsigned i = 0; i < group->row_count; i++)
        if (is_same_kind(&group->rows[i], row))
            return &group->rows[i];
    return NULL;
}

/* A rank that has no row of a kind has called it 0 times. */
static bool add_rows(struct coll_group *group, const struct coll_communicator *of, bool first)
{
    for (unsigned i = 0; i < of->row_count; i++) {
        struct coll_row *to = row_like(group, &of->rows[i]);
        if (to == NULL) {
            struct coll_row *grown = realloc(group->rows, (group->row_count + 1) * sizeof(*grown));
            if (grown == NULL)
                return false;
            group->rows = grown;
            to = &grown[group->row_count++];
            *to = (struct coll_row){.operation = of->rows[i].operation,
                                    .type = of->rows[i].type,
                                    .x = UNKNOWN,
                                    .nccl_seconds = UNKNOWN,
                                    .coded_seconds = UNKNOWN,
                                    .overflow_seconds = UNKNOWN,
                                    .calls_least = first ? of->rows[i].calls : 0};
        }
        add_row(to, &of->rows[i]);
    }
    for (unsigned i = 0; i < group->row_count; i++) {
        bool there = false;
        for (unsigned own = 0; own < of->row_count; own++)
            there |= is_same_kind(&of->rows[own], &group->rows[i]);
        group->rows[i].calls_least = there ? group->rows[i].calls_least : 0;
    }
    return true;
}

/* ---- Differences ------------------------------------------------------------------------------------------------- */

enum { DIFFERENCES_MAX = 32 };

__attribute__((format(printf, 2, 3))) static bool differs(struct coll_group *group, const char *format, ...)
{
    va_list arguments;
    char *text = NULL, **grown = NULL;
    if (group->difference_count == DIFFERENCES_MAX)
        return true;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0)
        text = NULL;
    va_end(arguments);
    if (text != NULL)
        grown = realloc(group->differences, (group->difference_count + 1) * sizeof(*grown));
    if (grown == NULL) {
        free(text);
        return false;
    }
    group->differences = grown;
    grown[group->difference_count++] = text;
    return true;
}

static bool compare_members(struct coll_group *group)
{
    const struct coll_communicator *first = group->members[0];
    bool good = true;
    for (unsigned i = 1; i < group->count && good; i++) {
        const struct coll_communicator *of = group->members[i];
        const struct {
            const char *what, *own, *firsts;
        } texts[] = {{"the library", of->process->library, first->process->library},
                     {"STRAIT_COLL", of->process->mode, first->process->mode},
                     {"the state", of->state, first->state}};
        for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]) && good; k++)
            if (strcmp(texts[k].own, texts[k].firsts) != 0)
                good = differs(group, "rank %d: %s is %s, of rank %d %s", of->rank, texts[k].what, texts[k].own,
                               first->rank, texts[k].firsts);
        if (good && of->process->nccl != first->process->nccl)
            good = differs(group, "rank %d: NCCL is %.0f, of rank %d %.0f", of->rank, of->process->nccl, first->rank,
                           first->process->nccl);
        if (good && strcmp(of->table, first->table) != 0)
            good = differs(group, "rank %d decides by other sizes than rank %d", of->rank, first->rank);
        if (good && of->pinned != first->pinned)
            good = differs(group, "rank %d is %spinned to raw, rank %d is %s", of->rank, of->pinned ? "" : "not ",
                           first->rank, first->pinned ? "pinned" : "not");
    }
    return good;
}

/* Collectives are called by all ranks alike. Files are written at different times, so that is so at the end alone. */
static bool compare_calls(struct coll_group *group)
{
    bool over = group->count > 1, good = true;
    for (unsigned i = 0; i < group->count; i++)
        over &= group->members[i]->ended || group->members[i]->process->exited;
    for (unsigned i = 0; i < group->row_count && over && good; i++) {
        const struct coll_row *row = &group->rows[i];
        if (!is_pairs(row) && row->calls_least != row->calls_most)
            good = differs(group, "%s %s: some ranks have called it %.0f times, and some %.0f times", row->operation,
                           row->type, row->calls_least, row->calls_most);
    }
    return good;
}

/* ---- Merging communicators --------------------------------------------------------------------------------------- */

static int by_start(const struct coll_communicator *a, const struct coll_communicator *b)
{
    if (a->process->started != b->process->started)
        return a->process->started < b->process->started ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Those of one communicator are neighbours; of those of one rank the one that was written last comes first. Without an
 * id each is a communicator of its own. */
static int by_communicator(const void *left, const void *right)
{
    const struct coll_communicator *const a = *(const struct coll_communicator *const *)left,
                                          *const b = *(const struct coll_communicator *const *)right;
    const int ids = strcmp(a->id != NULL ? a->id : "", b->id != NULL ? b->id : "");
    if (ids != 0)
        return ids;
    if (a->id != NULL && a->ranks != b->ranks)
        return a->ranks < b->ranks ? -1 : 1;
    if (a->id != NULL && a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->process->written != b->process->written)
        return a->process->written > b->process->written ? -1 : 1;
    return by_start(a, b);
}

static bool is_same_communicator(const struct coll_communicator *a, const struct coll_communicator *b)
{
    return a->id != NULL && b->id != NULL && strcmp(a->id, b->id) == 0 && a->ranks == b->ranks;
}

static const struct coll_communicator *earliest(const struct coll_group *group)
{
    const struct coll_communicator *found = group->members[0];
    for (unsigned i = 1; i < group->count; i++)
        found = by_start(group->members[i], found) < 0 ? group->members[i] : found;
    return found;
}

static int by_age(const void *left, const void *right)
{
    return by_start(earliest(left), earliest(right));
}

/* Takes the first `count` of the list, which are of one communicator. */
static bool fill_group(struct coll_group *group, const struct coll_communicator *const *list, unsigned count)
{
    bool good = true;
    group->ranks = list[0]->ranks;
    group->members = calloc(count, sizeof(*group->members));
    for (unsigned i = 0; i < count && group->members != NULL && good; i++) {
        if (i > 0 && list[i]->rank == list[i - 1]->rank && list[i]->rank >= 0) {
            good = differs(group, "rank %d is there twice: of %s the older one does not count", list[i]->rank,
                           list[i]->process->file != NULL ? list[i]->process->file : "its reports");
            continue;
        }
        group->members[group->count++] = list[i];
        good = add_rows(group, list[i], group->count == 1);
    }
    return group->members != NULL && good && compare_members(group) && compare_calls(group);
}

bool coll_merge(struct coll_groups *groups, const struct coll_process *processes, unsigned count)
{
    size_t all = 0, listed = 0;
    bool good = true;
    *groups = (struct coll_groups){0};
    for (unsigned i = 0; i < count; i++)
        all += processes[i].count;
    if (all == 0)
        return true;
    const struct coll_communicator **list = calloc(all, sizeof(*list));
    groups->list = calloc(all, sizeof(*groups->list));
    for (unsigned i = 0; i < count && list != NULL; i++)
        for (unsigned k = 0; k < processes[i].count; k++) {
            processes[i].communicators[k].process = &processes[i];
            list[listed++] = &processes[i].communicators[k];
        }
    good = list != NULL && groups->list != NULL;
    if (good)
        qsort(list, all, sizeof(*list), by_communicator);
    for (size_t from = 0, until; from < all && good; from = until) {
        for (until = from + 1; until < all && is_same_communicator(list[from], list[until]);)
            until++;
        good = fill_group(&groups->list[groups->count++], list + from, (unsigned)(until - from));
    }
    if (good)
        qsort(groups->list, groups->count, sizeof(*groups->list), by_age);
    free(list);
    if (!good)
        coll_groups_free(groups);
    return good;
}

void coll_groups_free(struct coll_groups *groups)
{
    for (unsigned i = 0; i < groups->count; i++) {
        struct coll_group *group = &groups->list[i];
        for (unsigned k = 0; k < group->difference_count; k++)
            free(group->differences[k]);
        free(group->differences);
        free(group->members);
        free(group->rows);
    }
    free(groups->list);
    *groups = (struct coll_groups){0};
}
