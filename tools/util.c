/* Helpers of all commands: messages, numbers, threads, progress, options. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/util.h"

#define PROGRESS_NS   200000000u /* between two updates of the line */
#define MESSAGE_BYTES 1024

/* ---- Messages -------------------------------------------------------------------------------------------------- */

static const char *command_name = "strait"; /* set once, before there are threads */

void command_begin(char **argv, char *name)
{
    command_name = name;
    argv[0] = name;
}

const char *command_running(void)
{
    return command_name;
}

/* Messages that print_error keeps; without memory a message is left out. */
static struct {
    bool wanted;
    pthread_mutex_t lock;
    char **list;
    size_t count, capacity;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool kept_has_room(void)
{
    if (kept.count == kept.capacity) {
        size_t capacity = 2 * kept.capacity + 16;
        char **grown = realloc(kept.list, capacity * sizeof(*grown));
        if (grown == NULL)
            return false;
        kept.list = grown;
        kept.capacity = capacity;
    }
    return true;
}

static void keep(const char *file, const char *text)
{
    pthread_mutex_lock(&kept.lock);
    if (kept_has_room() && asprintf(&kept.list[kept.count], "%s%s%s", file, file[0] == '\0' ? "" : ": ", text) >= 0)
        kept.count++;
    pthread_mutex_unlock(&kept.lock);
}

void errors_keep(void)
{
    kept.wanted = true;
}

char *const *errors_kept(size_t *count)
{
    *count = kept.count;
    return kept.list;
}

/* A zero byte ends the text, and so any character. */
unsigned text_character(const char *text_, uint32_t *code)
{
    const unsigned char *text = (const unsigned char *)text_;
    const unsigned length = text[0] < 0x80   ? 1
                            : text[0] < 0xc2 ? 0
                            : text[0] < 0xe0 ? 2
                            : text[0] < 0xf0 ? 3
                            : text[0] < 0xf5 ? 4
                                             : 0;
    *code = length < 2 ? text[0] : text[0] & (0x7fu >> length);
    for (unsigned i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        *code = *code << 6 | (text[i] & 0x3f);
    }
    const bool too_long = (length == 3 && *code < 0x800) || (length == 4 && *code < 0x10000);
    return too_long || (*code >= 0xd800 && *code < 0xe000) || *code > 0x10ffff ? 0 : length;
}

bool text_is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e || code == 0x200f ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

char *text_printable(const char *text)
{
    char *made = malloc(4 * strlen(text) + 1), *dst = made;
    while (made != NULL && *text != '\0') {
        uint32_t code;
        unsigned length = text_character(text, &code);
        if (length == 0 || text_is_control(code)) {
            do
                dst += sprintf(dst, "\\x%02x", (unsigned char)*text++);
            while (length-- > 1);
            continue;
        }
        for (; length > 0; length--)
            *dst++ = *text++;
    }
    if (made != NULL)
        *dst = '\0';
    return made;
}

void text_put(const char *text, FILE *stream)
{
    char *printable = text_printable(text);
    fputs(printable != NULL ? printable : "?", stream);
    free(printable);
}

static void print_line(const char *file, const char *text)
{
    char *line = NULL, *printable = NULL;
    if (asprintf(&line, "%s: %s%s%s", command_name, file, file[0] == '\0' ? "" : ": ", text) < 0)
        line = NULL;
    if (line != NULL)
        printable = text_printable(line);
    fprintf(stderr, "%s\n", printable == NULL ? "out of memory" : printable);
    free(printable);
    free(line);
}

void print_error(const char *file, const char *format, ...)
{
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (file == NULL)
        file = "";
    print_line(file, text);
    if (kept.wanted)
        keep(file, text);
}

/* ---- Numbers --------------------------------------------------------------------------------------------------- */

/* Reads digits, and sets *rest to what follows them. */
static bool parse_digits(const char *text, uint64_t *value, const char **rest)
{
    char *end;
    if (text[0] < '0' || text[0] > '9') /* strtoumax takes signs and spaces */
        return false;
    errno = 0;
    uintmax_t number = strtoumax(text, &end, 10);
    if (errno != 0 || number > UINT64_MAX)
        return false;
    *value = number;
    *rest = end;
    return true;
}

bool parse_number(const char *text, uint64_t max, uint64_t *value)
{
    const char *rest;
    uint64_t number;
    if (!parse_digits(text, &number, &rest) || *rest != '\0' || number > max)
        return false;
    *value = number;
    return true;
}

bool parse_size(const char *text, uint64_t max, uint64_t *value)
{
    static const char units[] = "KMGT";
    const char *rest;
    uint64_t number;
    if (!parse_digits(text, &number, &rest))
        return false;
    const char *unit = *rest == '\0' ? NULL : strchr(units, *rest);
    unsigned shift = unit == NULL ? 0 : 10 * (unsigned)(unit - units + 1);
    if (rest[unit != NULL] != '\0' || number > max >> shift)
        return false;
    *value = number << shift;
    return true;
}

/* ---- Threads --------------------------------------------------------------------------------------------------- */

unsigned cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return (unsigned)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than a cpu_set_t holds */
    return online < 1 ? 1 : (unsigned)online;
}

struct worker {
    pthread_t thread;
    void (*fn)(void *arg, unsigned index);
    void *arg;
    unsigned index;
};

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    worker->fn(worker->arg, worker->index);
    return NULL;
}

void parallel_run(unsigned threads, void (*fn)(void *arg, unsigned index), void *arg)
{
    struct worker *workers = threads > 1 ? calloc(threads, sizeof(*workers)) : NULL;
    unsigned started = 1; /* the caller is thread 0 */
    for (; workers != NULL && started < threads; started++) {
        workers[started] = (struct worker){.fn = fn, .arg = arg, .index = started};
        if (pthread_create(&workers[started].thread, NULL, worker_main, &workers[started]) != 0)
            break;
    }
    fn(arg, 0);
    for (unsigned i = 1; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    free(workers);
}

/* ---- Progress -------------------------------------------------------------------------------------------------- */

void progress_begin(struct progress *progress, const char *what, uint64_t total, bool quiet)
{
    progress->what = what;
    progress->total = total;
    progress->started = clock_ns();
    progress->shown = !quiet && isatty(STDERR_FILENO) == 1;
    atomic_init(&progress->done, 0);
    atomic_init(&progress->next, progress->started + PROGRESS_NS); /* short work shows nothing */
}

static void progress_print(const struct progress *progress, uint64_t done, uint64_t now)
{
    double seconds = (double)(now - progress->started) / 1e9;
    double percent = progress->total == 0 ? 100 : 100.0 * (double)done / (double)progress->total;
    double rate = (double)done / 1e9 / seconds;
    if (progress->total == PROGRESS_TOTAL_UNKNOWN)
        fprintf(stderr, "\r%s: %s %.1f MB  %.2f GB/s\033[K", command_name, progress->what, (double)done / 1e6, rate);
    else
        fprintf(stderr, "\r%s: %s %5.1f%%  %.2f GB/s\033[K", command_name, progress->what, percent, rate);
}

void progress_add(struct progress *progress, uint64_t bytes)
{
    uint64_t done = atomic_fetch_add(&progress->done, bytes) + bytes;
    if (!progress->shown)
        return;
    uint64_t now = clock_ns(), next = atomic_load(&progress->next);
    if (now >= next && atomic_compare_exchange_strong(&progress->next, &next, now + PROGRESS_NS)) /* one thread wins */
        progress_print(progress, done, now);
}

void progress_end(struct progress *progress)
{
    if (progress->shown)
        fputs("\r\033[K", stderr);
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static struct {
    option_listener *listener;
    void *arg;
} listening;

void options_listen(option_listener *listener, void *arg)
{
    listening.listener = listener;
    listening.arg = arg;
}

bool options_list(const struct option_listed *option)
{
    if (listening.listener != NULL && option != NULL)
        listening.listener(listening.arg, option);
    return listening.listener != NULL;
}

/* The line of the usage that begins with "  --name " or "  -n, --name ": what follows the name. NULL: there is none. */
static const char *usage_line(const char *usage, const char *name)
{
    char dashed[64];
    const int size = snprintf(dashed, sizeof(dashed), "--%s", name);
    for (const char *line = usage; line != NULL; line = strchr(line, '\n')) {
        line += line[0] == '\n';
        const char *at = line + strspn(line, " ");
        if (at > line && at[0] == '-' && at[1] != '-' && at[2] == ',')
            at += 4;
        if (at > line && strncmp(at, dashed, (size_t)size) == 0 && (at[size] == ' ' || at[size] == '\n'))
            return at + size;
    }
    return NULL;
}

/* Copies up to the end of the line, or, for an argument, up to the spaces before the help. */
static const char *take_words(const char *at, bool argument, char *dst, size_t size)
{
    size_t length = strcspn(at, "\n");
    const char *gap = argument ? strstr(at, "  ") : NULL;
    if (gap != NULL && (size_t)(gap - at) < length)
        length = (size_t)(gap - at);
    snprintf(dst, size, "%.*s", (int)length, at);
    return at + length;
}

static void list_option(const struct cli_option *option, const char *usage)
{
    char argument[64] = "VALUE", help[256] = "";
    const char *at = usage_line(usage, option->name);
    if (at != NULL && at[0] == ' ' && at[1] != ' ')
        at = take_words(at + 1, true, argument, sizeof(argument));
    if (at != NULL)
        (void)take_words(at + strspn(at, " "), false, help, sizeof(help));
    options_list(&(struct option_listed){.name = option->name,
                                         .letter = option->letter,
                                         .argument = option->flag == NULL ? argument : NULL,
                                         .values = option->codec != NULL ? "avx512 avx2 scalar" : option->values,
                                         .help = help});
}

static bool option_threads(const char *text, unsigned *threads)
{
    uint64_t number;

    if (!parse_number(text, OPTION_THREADS_MAX, &number)) {
        print_error(NULL, "-T takes a number from 0 (all processors) to %u, not '%s'", OPTION_THREADS_MAX, text);
        return false;
    }
    *threads = number == 0 ? cpu_count() : (unsigned)number;
    return true;
}

static bool option_codec(const char *text, const struct strait_codec **codec)
{
    *codec = strait_codec_get(text);
    if (*codec == NULL)
        print_error(NULL, "--codec: this build or processor has no '%s'", text);
    return *codec != NULL;
}

static bool take_option(const struct cli_option *option, void *options, const char *text)
{
    if (option->flag != NULL)
        return *option->flag = true;
    if (option->threads != NULL)
        return option_threads(text, option->threads);
    if (option->codec != NULL)
        return option_codec(text, option->codec);
    if (option->set != NULL)
        return option->set(options, text);
    *option->text = text;
    return true;
}

#define LONG_OPTION 256 /* number of the first one, beyond all letters */

bool options_parse(const struct cli_option *list, unsigned count, void *options, const char *usage, int argc,
                   char **argv, enum exit_code *code)
{
    struct option longs[CLI_OPTIONS_MAX + 2] = {{"help", no_argument, NULL, 'h'}};
    char letters[2 * CLI_OPTIONS_MAX + 2] = "h";
    size_t used = 1;
    int found, index;

    if (options_list(NULL)) {
        for (unsigned i = 0; i < count; i++)
            list_option(&list[i], usage);
        options_list(&(struct option_listed){.name = "help", .letter = 'h', .help = "print this"});
        *code = EXIT_CODE_OK;
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        bool takes = list[i].flag == NULL;
        longs[i + 1] =
            (struct option){list[i].name, takes ? required_argument : no_argument, NULL, LONG_OPTION + (int)i};
        if (list[i].letter != 0)
            used += (size_t)snprintf(letters + used, sizeof(letters) - used, "%c%s", list[i].letter, takes ? ":" : "");
    }
    optind = 1;
    while ((found = getopt_long(argc, argv, letters, longs, &index)) != -1) {
        unsigned i = found >= LONG_OPTION ? (unsigned)(found - LONG_OPTION) : 0;
        *code = found == 'h' ? EXIT_CODE_OK : EXIT_CODE_USAGE;
        if (found == 'h')
            fputs(usage, stdout);
        while (found < LONG_OPTION && i < count && list[i].letter != found)
            i++;
        if (found == 'h' || i == count || !take_option(&list[i], options, optarg))
            return false; /* getopt_long has printed what is wrong with an option that is not in the list */
    }
    return true;
}

bool operands_are(int argc, int count, const char *what)
{
    if (argc - optind != count)
        print_error(NULL, "takes %s; see %s --help", what, command_name);
    return argc - optind == count;
}

bool option_size(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *size)
{
    if (parse_size(text, max, size) && *size >= min)
        return true;
    print_error(NULL, "%s takes a size from %" PRIu64 " to %" PRIu64 ", such as 64K, not '%s'", option, min, max, text);
    return false;
}

bool option_name(const char *option, const char *text, const char *const *names, unsigned count, unsigned *index)
{
    for (*index = 0; *index < count; (*index)++)
        if (strcmp(text, names[*index]) == 0)
            return true;
    print_error(NULL, "%s: unknown value '%s'", option, text);
    return false;
}

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

/* Places relative to the folder of this program: installed together, in sbin, in a build tree. */
char *find_straitd(void)
{
    static const char *const places[] = {"straitd", "../sbin/straitd", "../daemon/straitd"};
    const char *choice = getenv("STRAITD");
    char program[PATH_MAX], *path = NULL;
    ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);

    if (choice != NULL && choice[0] != '\0') {
        if (access(choice, X_OK) == 0)
            return strdup(choice);
        print_error(choice, "STRAITD names no program: %s", strerror(errno));
        return NULL;
    }
    program[size > 0 ? size : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (asprintf(&path, "%s/%s", program, places[i]) < 0)
            return NULL;
        if (access(path, X_OK) == 0)
            return path;
        free(path);
    }
    print_error(NULL, "no straitd beside this program: STRAITD=PATH names one");
    return NULL;
}
