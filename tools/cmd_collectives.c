/* strait collectives report */
#include "tools/commands.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/coll_report.h"
#include "tools/report.h"
#include "tools/util.h"

const char *const collectives_names[] = {"report", NULL};

static const char usage[] = "usage: strait collectives report [--json] PATH...\n"
                            "\n"
                            "What libstrait-coll does under a program, or has done.\n"
                            "\n"
                            "  report   merges the reports that processes keep with STRAIT_COLL_REPORT\n"
                            "\n"
                            "strait collectives report --help tells more.\n";

static const char report_usage[] =
    "usage: strait collectives report [--json] PATH...\n"
    "\n"
    "Merges the reports that processes keep with STRAIT_COLL_REPORT=FOLDER, while they run or after it, and prints a\n"
    "table for each communicator. PATH is such a folder or one of its files.\n"
    "\n"
    "  --json               all figures, as one JSON document\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 all files were read, 1 there is none or one is bad, 2 bad usage.\n";

#define MIB (1024.0 * 1024)

struct reading {
    char **paths; /* of files */
    unsigned path_count;
    struct coll_process *processes;
    unsigned count;
    bool good; /* all that was named could be read */
};

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static bool add_path(struct reading *reading, const char *folder, const char *name)
{
    char **grown = realloc(reading->paths, (reading->path_count + 1) * sizeof(*grown));
    if (reading->path_count == COLL_FILES_MAX)
        print_error(folder, "more than %d files", COLL_FILES_MAX);
    reading->paths = grown != NULL ? grown : reading->paths;
    if (grown == NULL || reading->path_count == COLL_FILES_MAX ||
        asprintf(&grown[reading->path_count], "%s%s%s", folder, name[0] != '\0' ? "/" : "", name) < 0)
        return false;
    reading->path_count++;
    return true;
}

static int is_report(const struct dirent *entry)
{
    static const char prefix[] = "strait-coll-", suffix[] = ".json";
    const size_t size = strlen(entry->d_name);
    return strncmp(entry->d_name, prefix, sizeof(prefix) - 1) == 0 && size > sizeof(suffix) &&
           strcmp(entry->d_name + size - (sizeof(suffix) - 1), suffix) == 0;
}

/* A folder that has none is named, as its job may have another one. */
static bool add_folder(struct reading *reading, const char *folder)
{
    struct dirent **entries = NULL;
    const int count = scandir(folder, &entries, is_report, alphasort);
    bool good = count > 0;
    if (count < 0)
        print_error(folder, "%s", strerror(errno));
    else if (count == 0)
        print_error(folder, "no reports: a process keeps one from its first communicator on, with STRAIT_COLL_REPORT");
    for (int i = 0; i < count; i++) {
        good = good && add_path(reading, folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return good;
}

/* The text of a regular file, not terminated; NULL: it cannot be read, which was printed. */
static char *read_text(const char *path, size_t *size)
{
    struct stat stat;
    const int from = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = NULL;
    if (from < 0 || fstat(from, &stat) != 0)
        print_error(path, "%s", strerror(errno));
    else if (!S_ISREG(stat.st_mode) || stat.st_size > COLL_FILE_MAX)
        print_error(path, S_ISREG(stat.st_mode) ? "too large for a report" : "no file");
    else if ((text = malloc((size_t)stat.st_size + 1)) != NULL) {
        ssize_t got = 0;
        for (*size = 0; *size < (size_t)stat.st_size; *size += (size_t)got)
            if ((got = read(from, text + *size, (size_t)stat.st_size - *size)) <= 0)
                break;
        if (got < 0) {
            print_error(path, "%s", strerror(errno));
            free(text);
            text = NULL;
        }
    }
    if (from >= 0)
        close(from);
    return text;
}

/* A file that is wrong is named and left out. */
static bool read_process(struct reading *reading, const char *path)
{
    struct coll_process *process = &reading->processes[reading->count];
    char why[256];
    size_t size = 0;
    char *text = read_text(path, &size);
    const bool good = text != NULL && coll_process_parse(process, text, size, why, sizeof(why));
    if (text != NULL && !good)
        print_error(path, "no report of libstrait-coll: %s", why);
    free(text);
    if (good) {
        process->file = strdup(path);
        reading->count++;
    }
    return good;
}

static void read_all(struct reading *reading, char *const *paths, int count)
{
    struct stat stat_of;
    reading->good = true;
    for (int i = 0; i < count; i++) {
        const bool folder = stat(paths[i], &stat_of) == 0 && S_ISDIR(stat_of.st_mode);
        reading->good &= folder ? add_folder(reading, paths[i]) : add_path(reading, paths[i], "");
    }
    reading->processes = calloc(reading->path_count + 1, sizeof(*reading->processes));
    for (unsigned i = 0; i < reading->path_count && reading->processes != NULL; i++)
        reading->good &= read_process(reading, reading->paths[i]);
    reading->good &= reading->processes != NULL;
}

static void reading_free(struct reading *reading)
{
    for (unsigned i = 0; i < reading->count; i++)
        coll_process_free(&reading->processes[i]);
    for (unsigned i = 0; i < reading->path_count; i++)
        free(reading->paths[i]);
    free(reading->processes);
    free(reading->paths);
}

/* ---- Figures of groups ------------------------------------------------------------------------------------------- */

/* Of the bytes of all calls. */
static double compressed_part(const struct coll_row *row)
{
    double raw = 0;
    for (unsigned i = 0; i < row->raw_count; i++)
        raw += row->raw[i].bytes;
    return row->bytes > raw ? (row->bytes - raw) / row->bytes : 0;
}

/* NCCL's time by ours, by the links as they were measured; < 0: not known. */
static double expected_x(const struct coll_row *row)
{
    const double ours = row->coded_seconds + (row->overflow_seconds > 0 ? row->overflow_seconds : 0);
    return row->nccl_seconds > 0 && ours > 0 ? row->nccl_seconds / ours : -1;
}

/* The part of that time that overflows take; < 0: not known. */
static double overflow_part(const struct coll_row *row)
{
    const double ours = row->coded_seconds + row->overflow_seconds;
    return row->overflow_seconds >= 0 && ours > 0 ? row->overflow_seconds / ours : -1;
}

static bool is_over(const struct coll_communicator *of)
{
    return of->ended || of->process->exited;
}

static unsigned count_over(const struct coll_group *group)
{
    unsigned over = 0;
    for (unsigned i = 0; i < group->count; i++)
        over += is_over(group->members[i]);
    return over;
}

static double last_written(const struct coll_group *group)
{
    double last = 0;
    for (unsigned i = 0; i < group->count; i++)
        last = group->members[i]->process->written > last ? group->members[i]->process->written : last;
    return last;
}

/* "1, 3 to 5": ranks of which there is no report, at most some of them. */
static void list_missing(const struct coll_group *group, char *text, size_t size)
{
    int next = 0;
    size_t used = 0;
    text[0] = '\0';
    for (unsigned i = 0; i <= group->count && used + 32 < size; i++) {
        const int rank = i < group->count ? group->members[i]->rank : group->ranks;
        if (rank - next >= 2)
            used += (size_t)snprintf(text + used, size - used, "%s%d to %d", used > 0 ? ", " : "", next, rank - 1);
        else if (rank - next == 1)
            used += (size_t)snprintf(text + used, size - used, "%s%d", used > 0 ? ", " : "", next);
        next = rank + 1;
    }
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static void put_x(double x)
{
    if (x > 0)
        printf(" %8.2f", x);
    else
        printf(" %8s", "-");
}

static void put_size(double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    unsigned unit = 0;
    for (; bytes >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
        bytes /= 1024;
    printf(" %6.*f %-3s", unit > 0 ? 1 : 0, bytes, units[unit]);
}

/* Reasons with their share of the calls, those of most calls first. */
static void put_reasons(const struct coll_row *row)
{
    bool shown[COLL_RAW_MAX] = {false};
    for (unsigned turn = 0; turn < row->raw_count; turn++) {
        unsigned most = COLL_RAW_MAX;
        for (unsigned i = 0; i < row->raw_count; i++)
            if (!shown[i] && (most == COLL_RAW_MAX || row->raw[i].calls > row->raw[most].calls))
                most = i;
        shown[most] = true;
        fputs(turn > 0 ? "; " : "  ", stdout);
        text_put(row->raw[most].why, stdout);
        if (row->raw[most].calls < row->calls)
            printf(" %.1f %%", 100 * row->raw[most].calls / row->calls);
    }
}

static void put_row(const struct coll_row *row)
{
    char calls[64];
    snprintf(calls, sizeof(calls), row->calls_least != row->calls_most ? "%.0f-%.0f" : "%.0f", row->calls_least,
             row->calls_most);
    fputs("  ", stdout);
    printf("%-14.14s %-7.7s %12s", row->operation, row->type, calls);
    put_size(row->calls > 0 ? row->bytes / row->calls : 0);
    printf(" %9.1f %%", 100 * compressed_part(row));
    put_x(row->wire_bytes > 0 ? row->plain_bytes / row->wire_bytes : -1);
    put_x(row->x);
    put_x(expected_x(row));
    printf(" %9.0f", row->overflows);
    if (row->overflows > 0 && overflow_part(row) >= 0)
        printf(" %6.2f %%", 100 * overflow_part(row));
    else
        printf(" %8s", "-");
    put_reasons(row);
    if (row->failed > 0)
        printf("; %.0f refused by NCCL", row->failed);
    putchar('\n');
}

static void put_measured(const struct coll_communicator *of)
{
    printf("  links        ");
    if (of->start_us < 0)
        printf("not measured");
    else
        for (unsigned i = 0; i < COLL_RATES; i++)
            if (of->rates[i] >= 0)
                printf("%s%s %.4g", i > 0 ? ", " : "", coll_rate_names[i], of->rates[i]);
    printf("%s\n", of->start_us < 0 ? "" : " GB/s");
    if (of->rails > 0)
        printf("  sums         inside each host, then between hosts by %.0f rails\n", of->rails);
}

static void put_memory(const struct coll_group *group)
{
    double messages = 0, persistent = 0, host = 0, fallen_back = 0;
    for (unsigned i = 0; i < group->count; i++) {
        const struct coll_communicator *of = group->members[i];
        messages = of->messages > messages ? of->messages : messages;
        persistent = of->persistent > persistent ? of->persistent : persistent;
        host = of->host > host ? of->host : host;
        fallen_back += of->host_messages;
    }
    printf("  memory       of a GPU %.1f MiB for messages and %.1f MiB besides, of a host %.1f MiB\n", messages / MIB,
           persistent / MIB, host / MIB);
    if (fallen_back > 0)
        printf("  warning      a GPU had no memory: %.1f MiB of messages are in host memory, which is slow\n",
               fallen_back / MIB);
}

static void put_head(const struct coll_group *group, double now)
{
    const struct coll_communicator *first = group->members[0];
    char missing[160];
    printf("communicator ");
    text_put(first->id != NULL ? first->id : "without an id", stdout);
    printf(", %d ranks", group->ranks);
    if (first->has_figures)
        printf(" on %.0f host%s", first->hosts, first->hosts == 1 ? "" : "s");
    const unsigned over = count_over(group);
    if (over == group->count)
        printf(", ended");
    else
        printf(", running, last written %.0f s ago", now > last_written(group) ? now - last_written(group) : 0);
    printf("\n  state        %s", first->pinned ? "pinned to raw, " : "");
    text_put(first->state, stdout);
    if (!first->has_figures && first->why[0] != '\0') {
        printf(": ");
        text_put(first->why, stdout);
    }
    printf(" (STRAIT_COLL=");
    text_put(first->process->mode, stdout);
    printf("%s)\n", first->process->encrypted ? ", NCCL encrypts" : "");
    if (group->ranks > 0 && group->count < (unsigned)group->ranks) {
        list_missing(group, missing, sizeof(missing));
        printf("  no report    of ranks %s\n", missing);
    }
}

static void put_group(const struct coll_group *group, double now)
{
    put_head(group, now);
    if (group->members[0]->has_figures) {
        put_measured(group->members[0]);
        put_memory(group);
    }
    for (unsigned i = 0; i < group->difference_count; i++) {
        printf("  differs      ");
        text_put(group->differences[i], stdout);
        putchar('\n');
    }
    if (group->row_count == 0) {
        printf("  no operations\n\n");
        return;
    }
    printf("  %-14s %-7s %12s %10s %11s %8s %8s %8s %9s %8s  %s\n", "operation", "type", "calls", "each", "compressed",
           "ratio", "x", "expected", "overflows", "cost", "raw");
    for (unsigned i = 0; i < group->row_count; i++)
        put_row(&group->rows[i]);
    putchar('\n');
}

static void print_text(const struct reading *reading, const struct coll_groups *groups)
{
    double dropped = 0;
    for (unsigned i = 0; i < reading->count; i++)
        dropped += reading->processes[i].dropped;
    for (unsigned i = 0; i < groups->count; i++)
        put_group(&groups->list[i], (double)time(NULL));
    if (groups->count == 0 && reading->count > 0)
        puts("no communicators");
    if (dropped > 0)
        printf("%.0f communicators ended so long ago that they are left out\n", dropped);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void add_known(cJSON *object, const char *name, double value)
{
    if (value >= 0)
        cJSON_AddNumberToObject(object, name, value);
    else
        cJSON_AddNullToObject(object, name);
}

static cJSON *row_json(const struct coll_row *row)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "operation", row->operation);
    cJSON_AddStringToObject(object, "type", row->type);
    const struct {
        const char *name;
        double value;
    } counts[] = {{"calls", row->calls},           {"calls_least", row->calls_least}, {"calls_most", row->calls_most},
                  {"bytes", row->bytes},           {"grouped", row->grouped},         {"captured", row->captured},
                  {"failed", row->failed},         {"compressed", row->compressed},   {"plain_bytes", row->plain_bytes},
                  {"wire_bytes", row->wire_bytes}, {"probes", row->probes},           {"overflows", row->overflows},
                  {"compared", row->compared}};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        cJSON_AddNumberToObject(object, counts[i].name, counts[i].value);
    cJSON_AddNumberToObject(object, "compressed_part", compressed_part(row));
    add_known(object, "ratio", row->wire_bytes > 0 ? row->plain_bytes / row->wire_bytes : -1);
    add_known(object, "x", row->x);
    add_known(object, "expected_x", expected_x(row));
    add_known(object, "nccl_seconds", row->nccl_seconds);
    add_known(object, "coded_seconds", row->coded_seconds);
    add_known(object, "overflow_seconds", row->overflow_seconds);
    cJSON *raw = cJSON_AddArrayToObject(object, "raw");
    for (unsigned i = 0; i < row->raw_count; i++) {
        cJSON *reason = cJSON_CreateObject();
        cJSON_AddStringToObject(reason, "why", row->raw[i].why);
        cJSON_AddNumberToObject(reason, "calls", row->raw[i].calls);
        cJSON_AddNumberToObject(reason, "bytes", row->raw[i].bytes);
        cJSON_AddItemToArray(raw, reason);
    }
    return object;
}

static cJSON *rank_json(const struct coll_communicator *of)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "rank", of->rank);
    cJSON_AddStringToObject(object, "host", of->process->host);
    cJSON_AddNumberToObject(object, "process", of->process->process);
    cJSON_AddBoolToObject(object, "ended", is_over(of));
    cJSON_AddStringToObject(object, "state", of->state);
    cJSON_AddStringToObject(object, "why", of->why);
    if (of->has_figures) {
        cJSON *memory = cJSON_AddObjectToObject(object, "memory");
        cJSON_AddNumberToObject(memory, "messages", of->messages);
        cJSON_AddNumberToObject(memory, "persistent", of->persistent);
        cJSON_AddNumberToObject(memory, "host", of->host);
        cJSON_AddNumberToObject(memory, "host_messages", of->host_messages);
    }
    return object;
}

static cJSON *group_json(const struct coll_group *group)
{
    const struct coll_communicator *first = group->members[0];
    cJSON *object = cJSON_CreateObject();
    if (first->id != NULL)
        cJSON_AddStringToObject(object, "id", first->id);
    else
        cJSON_AddNullToObject(object, "id");
    cJSON_AddNumberToObject(object, "ranks", group->ranks);
    cJSON_AddNumberToObject(object, "reported", group->count);
    cJSON_AddBoolToObject(object, "ended", count_over(group) == group->count);
    cJSON_AddStringToObject(object, "mode", first->process->mode);
    if (first->has_figures) {
        cJSON *links = cJSON_AddObjectToObject(object, "links");
        cJSON_AddNumberToObject(object, "hosts", first->hosts);
        cJSON_AddNumberToObject(object, "rails", first->rails > 0 ? first->rails : 0);
        cJSON_AddStringToObject(object, "table", first->table);
        add_known(links, "start_us", first->start_us);
        for (unsigned i = 0; i < COLL_RATES; i++)
            add_known(links, coll_rate_names[i], first->rates[i]);
    }
    cJSON *operations = cJSON_AddArrayToObject(object, "operations");
    for (unsigned i = 0; i < group->row_count; i++)
        cJSON_AddItemToArray(operations, row_json(&group->rows[i]));
    cJSON *differences = cJSON_AddArrayToObject(object, "differences");
    for (unsigned i = 0; i < group->difference_count; i++)
        cJSON_AddItemToArray(differences, cJSON_CreateString(group->differences[i]));
    cJSON *members = cJSON_AddArrayToObject(object, "members");
    for (unsigned i = 0; i < group->count; i++)
        cJSON_AddItemToArray(members, rank_json(group->members[i]));
    return object;
}

static bool print_json(const struct reading *reading, const struct coll_groups *groups)
{
    cJSON *root = cJSON_CreateObject(), *processes = cJSON_AddArrayToObject(root, "processes");
    for (unsigned i = 0; i < reading->count; i++) {
        const struct coll_process *of = &reading->processes[i];
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "file", of->file != NULL ? of->file : "");
        cJSON_AddStringToObject(object, "host", of->host);
        cJSON_AddNumberToObject(object, "process", of->process);
        cJSON_AddStringToObject(object, "library", of->library);
        cJSON_AddNumberToObject(object, "nccl", of->nccl);
        cJSON_AddStringToObject(object, "nccl_path", of->nccl_path);
        cJSON_AddStringToObject(object, "mode", of->mode);
        cJSON_AddNumberToObject(object, "started", of->started);
        cJSON_AddNumberToObject(object, "written", of->written);
        cJSON_AddBoolToObject(object, "exited", of->exited);
        cJSON_AddNumberToObject(object, "dropped", of->dropped);
        cJSON_AddItemToArray(processes, object);
    }
    cJSON *communicators = cJSON_AddArrayToObject(root, "communicators");
    for (unsigned i = 0; i < groups->count; i++)
        cJSON_AddItemToArray(communicators, group_json(&groups->list[i]));
    return json_print(root, stdout);
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static bool report(char *const *paths, int count, bool json)
{
    struct reading reading = {0};
    struct coll_groups groups;
    read_all(&reading, paths, count);
    bool good = coll_merge(&groups, reading.processes, reading.count);
    if (!good)
        print_error(NULL, "out of memory");
    else if (json)
        good = print_json(&reading, &groups);
    else
        print_text(&reading, &groups);
    if (good)
        coll_groups_free(&groups);
    good &= reading.good;
    reading_free(&reading);
    return good;
}

static int run_report(int argc, char **argv)
{
    static char name[] = "strait collectives report";
    bool json = false;
    const struct cli_option list[] = {{"json", .flag = &json}};
    enum exit_code code;
    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), NULL, report_usage, argc, argv, &code))
        return code;
    if (optind == argc) {
        print_error(NULL, "takes the folder of STRAIT_COLL_REPORT; see strait collectives report --help");
        return EXIT_CODE_USAGE;
    }
    return report(argv + optind, argc - optind, json) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}

int cmd_collectives(int argc, char **argv)
{
    static char name[] = "strait collectives";
    if (argc >= 2 && strcmp(argv[1], collectives_names[0]) == 0)
        return run_report(argc - 1, argv + 1);
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return EXIT_CODE_OK;
    }
    command_begin(argv, name);
    if (argc >= 2)
        print_error(NULL, "no '%s': report", argv[1]);
    fputs(usage, stderr);
    return EXIT_CODE_USAGE;
}
