#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

void print_error(const char *file, const char *format, ...)
{
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (file == NULL)
        file = "";
    fprintf(stderr, "%s: %s%s%s\n", command_name, file, file[0] == '\0' ? "" : ": ", text);
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

uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- Signals --------------------------------------------------------------------------------------------------- */

static const char *volatile unfinished; /* the temporary file to remove when a signal ends the process */

/* Only async-signal-safe calls from here. */
static void on_end(int number)
{
    const char *path = unfinished;
    if (path != NULL)
        unlink(path);
    signal(number, SIG_DFL);
    raise(number);
}

static void on_lost_page(int number)
{
    static const char text[] = "strait: an input file shrank, or its disk failed, while it was read\n";
    const char *path = unfinished;
    (void)number;
    if (path != NULL)
        unlink(path);
    ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)written;
    _exit(EXIT_CODE_DATA);
}

/* A signal that the parent process had ignored (nohup) stays ignored. */
static void handle_signal(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler}, before;
    sigemptyset(&action.sa_mask);
    if (sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
        sigaction(number, &action, NULL);
}

static void guard_unfinished(const char *path)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXCPU, SIGXFSZ};
    unfinished = path;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        handle_signal(ends[i], on_end);
}

/* ---- Input ----------------------------------------------------------------------------------------------------- */

static const uint8_t no_bytes[1];

/* mmap refuses a length of 0. */
static bool map_whole(struct input *input, int fd)
{
    input->data = no_bytes;
    if (input->size == 0)
        return true;
    void *data = mmap(NULL, input->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
        return false;
    madvise(data, input->size, MADV_SEQUENTIAL); /* advice: it may fail */
    handle_signal(SIGBUS, on_lost_page);
    input->data = data;
    return true;
}

bool input_open(struct input *input, const char *path)
{
    struct stat info;
    bool mapped = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not wait for the writer of a pipe */
    if (fd < 0 || fstat(fd, &info) != 0) {
        print_error(path, "%s", strerror(errno));
        goto out;
    }
    if (!S_ISREG(info.st_mode)) {
        print_error(path, "not a regular file");
        goto out;
    }
    *input = (struct input){.path = path, .size = (uint64_t)info.st_size};
    mapped = map_whole(input, fd);
    if (!mapped)
        print_error(path, "cannot be mapped: %s", strerror(errno));
out:
    if (fd >= 0)
        close(fd);
    return mapped;
}

void input_close(struct input *input)
{
    if (input->size > 0)
        munmap((void *)(uintptr_t)input->data, input->size);
    *input = (struct input){.data = no_bytes};
}

/* ---- Output ---------------------------------------------------------------------------------------------------- */

static const char *output_name(const struct output *output)
{
    return strcmp(output->path, "-") == 0 ? "standard output" : output->path;
}

/* Devices and pipes cannot be replaced by renaming: that would turn /dev/null into a file. */
static bool is_in_place(const char *path)
{
    struct stat info;
    return strcmp(path, "-") == 0 || (stat(path, &info) == 0 && !S_ISREG(info.st_mode));
}

/* The file behind the name: renaming onto a symbolic link would replace the link. */
static char *resolve(const char *path)
{
    char *real = realpath(path, NULL);
    return real != NULL ? real : strdup(path);
}

/* Permissions of the file that will be replaced, or of a new one. */
static mode_t choose_mode(const struct output *output, mode_t mode)
{
    struct stat info;
    mode_t mask;

    if (output->replace && stat(output->path, &info) == 0)
        return info.st_mode & 0777;
    mask = umask(0); /* the only way to read it */
    umask(mask);
    return mode & ~mask;
}

/* Creates a file beside the final one, so that rename works, and sets output->temp to its name, also when that fails.
 */
static int open_temp(struct output *output, mode_t mode)
{
    if (asprintf(&output->temp, "%s.XXXXXX", output->path) < 0) {
        output->temp = NULL;
        return -1;
    }
    int fd = mkostemp(output->temp, O_CLOEXEC);
    if (fd >= 0)
        fchmod(fd, choose_mode(output, mode)); /* mkostemp makes private files; if this fails, it stays private */
    return fd;
}

static int open_in_place(const char *path)
{
    return strcmp(path, "-") == 0 ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                                  : open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
}

static void output_free(struct output *output)
{
    free(output->temp);
    free(output->path);
    *output = (struct output){.fd = -1};
}

bool output_open(struct output *output, const char *path, unsigned mode, bool replace)
{
    bool in_place = is_in_place(path);
    char *name = in_place ? strdup(path) : resolve(path);
    *output = (struct output){.path = name, .fd = -1, .replace = replace};
    if (name != NULL && in_place)
        output->fd = open_in_place(name);
    if (name != NULL && !in_place)
        output->fd = open_temp(output, mode);
    if (output->fd < 0) {
        print_error(path, "cannot be written: %s", strerror(errno));
        output_free(output);
        return false;
    }
    if (output->temp != NULL)
        guard_unfinished(output->temp);
    return true;
}

bool output_write(struct output *output, const void *data, size_t size)
{
    const uint8_t *src = data;
    while (size > 0) {
        ssize_t written = write(output->fd, src, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0) {
            print_error(output_name(output), "%s", strerror(errno));
            return false;
        }
        src += written;
        size -= (size_t)written;
    }
    return true;
}

/* The rename is durable once the folder is synced; if that is impossible, the data is still durable. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path) + 1);
    int fd = folder == NULL ? -1 : open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

/* For file systems without RENAME_NOREPLACE; without links too, a last check has to suffice. */
static int link_or_rename(const char *temp, const char *path)
{
    struct stat info;

    if (link(temp, path) == 0) {
        unlink(temp);
        return 0;
    }
    if (errno == EEXIST)
        return -1;
    if (lstat(path, &info) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(temp, path);
}

static int give_name(const struct output *output)
{
    if (output->replace)
        return rename(output->temp, output->path);
    if (renameat2(AT_FDCWD, output->temp, AT_FDCWD, output->path, RENAME_NOREPLACE) == 0)
        return 0;
    return errno == EINVAL || errno == ENOSYS || errno == ENOTSUP ? link_or_rename(output->temp, output->path) : -1;
}

static bool output_publish(struct output *output)
{
    if (fsync(output->fd) != 0)
        return false;
    int closed = close(output->fd);
    output->fd = -1;
    if (closed != 0 || give_name(output) != 0)
        return false;
    unfinished = NULL;
    sync_folder(output->path);
    return true;
}

bool output_commit(struct output *output)
{
    bool done;
    if (output->temp != NULL) {
        done = output_publish(output);
    } else {
        done = close(output->fd) == 0;
        output->fd = -1;
    }
    if (!done) {
        print_error(output_name(output), "%s",
                    errno == EEXIST ? "exists since a moment ago; -f replaces it" : strerror(errno));
        output_abandon(output);
        return false;
    }
    output_free(output);
    return true;
}

void output_abandon(struct output *output)
{
    if (output->fd >= 0)
        close(output->fd);
    if (output->temp != NULL) {
        unlink(output->temp);
        unfinished = NULL;
    }
    output_free(output);
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

#define HEX_BYTES_MAX 32u

bool json_print(cJSON *object, FILE *stream)
{
    char *text = cJSON_Print(object);
    bool printed = text != NULL && fprintf(stream, "%s\n", text) > 0 && fflush(stream) == 0;

    if (!printed)
        print_error(NULL, "cannot print the report");
    cJSON_free(text);
    cJSON_Delete(object);
    return printed;
}

void json_add_hex(cJSON *object, const char *name, const uint8_t *bytes, size_t size)
{
    char hex[2 * HEX_BYTES_MAX + 1] = "";

    for (size_t i = 0; i < size && i < HEX_BYTES_MAX; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    cJSON_AddStringToObject(object, name, hex);
}

void json_add_known(cJSON *object, const char *name, double value)
{
    if (value > 0)
        cJSON_AddNumberToObject(object, name, value);
    else
        cJSON_AddNullToObject(object, name);
}

bool option_threads(const char *text, unsigned *threads)
{
    uint64_t number;

    if (!parse_number(text, OPTION_THREADS_MAX, &number)) {
        print_error(NULL, "-T takes a number from 0 (all processors) to %u, not '%s'", OPTION_THREADS_MAX, text);
        return false;
    }
    *threads = number == 0 ? cpu_count() : (unsigned)number;
    return true;
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

bool option_codec(const char *text, const struct strait_codec **codec)
{
    *codec = strait_codec_get(text);
    if (*codec == NULL)
        print_error(NULL, "--codec: this build or processor has no '%s'", text);
    return *codec != NULL;
}

bool codebook_load(const char *path, struct strait_codebook **codebook)
{
    struct input input;
    enum strait_status status;

    if (!input_open(&input, path))
        return false;
    status = strait_codebook_parse(input.data, input.size, codebook);
    if (status != STRAIT_OK)
        print_error(path, "not a codebook set: %s", strait_status_string(status));
    input_close(&input);
    return status == STRAIT_OK;
}

/* Whether the name is taken by a file or a dangling symbolic link. Devices and pipes may be written to. */
static bool is_taken(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? S_ISREG(info.st_mode) : lstat(path, &info) == 0;
}

bool output_allowed(const char *path, bool force)
{
    bool is_stdout = strcmp(path, "-") == 0;

    if (force)
        return true;
    if (is_stdout && isatty(STDOUT_FILENO)) {
        print_error("stdout", "is a terminal; -f writes to it anyway");
        return false;
    }
    if (!is_stdout && is_taken(path)) {
        print_error(path, "exists; -f replaces it");
        return false;
    }
    return true;
}

const char *const block_mode_names[STRAIT_BLOCK_MODES_ALL] = {
    [STRAIT_BLOCK_RAW] = "raw",       [STRAIT_BLOCK_CONST] = "const",
    [STRAIT_BLOCK_TOP16] = "top16",   [STRAIT_BLOCK_TOP16_ESCAPES] = "top16_escapes",
    [STRAIT_BLOCK_TIERED] = "tiered", [STRAIT_BLOCK_BASE] = "base",
    [STRAIT_BLOCK_SPLIT] = "split",   [STRAIT_BLOCK_FP32Z] = "fp32z",
};

void totals_add(struct totals *totals, uint32_t pages, const struct strait_result *result,
                struct strait_class_stats *stats, uint32_t table_count)
{
    totals->pages += pages;
    for (unsigned m = 0; m < STRAIT_BLOCK_MODES; m++)
        totals->values[m] += result->values[m];
    for (uint32_t t = 0; t < table_count; t++) {
        totals->coded.values += stats[t].values;
        totals->coded.escapes += stats[t].escapes;
    }
    if (table_count > 0)
        memset(stats, 0, table_count * sizeof(*stats));
}

double ratio_of(uint64_t a, uint64_t b)
{
    return b == 0 ? 0.0 : (double)a / (double)b;
}

/* Share of coded values that needed the escape stream or the last tier; 0 when none were coded. */
static double totals_escape_rate(const struct totals *totals)
{
    return ratio_of(totals->coded.escapes, totals->coded.values);
}

static uint64_t all_values(const struct totals *totals)
{
    uint64_t all = 0;
    for (unsigned m = 0; m < STRAIT_BLOCK_MODES; m++)
        all += totals->values[m];
    return all;
}

void totals_print(const struct totals *totals, FILE *stream)
{
    uint64_t all = all_values(totals);
    const char *separator = "  blocks: ";

    for (unsigned m = STRAIT_BLOCK_MODES; m-- > 0;) {
        if (totals->values[m] == 0)
            continue;
        fprintf(stream, "%s%s %.2f%%", separator, block_mode_names[m], 100 * ratio_of(totals->values[m], all));
        separator = ", ";
    }
    if (totals->coded.values > 0)
        fprintf(stream, "; escapes %.4f%% of coded values", 100 * totals_escape_rate(totals));
    if (all > 0)
        fputc('\n', stream);
}

void totals_json(const struct totals *totals, cJSON *object)
{
    cJSON *modes;

    cJSON_AddNumberToObject(object, "chunks", (double)totals->chunks);
    cJSON_AddNumberToObject(object, "pages", (double)totals->pages);
    modes = cJSON_AddObjectToObject(object, "mode_bytes");
    for (unsigned m = 0; m < STRAIT_BLOCK_MODES; m++)
        cJSON_AddNumberToObject(modes, block_mode_names[m], 2 * (double)totals->values[m]);
    cJSON_AddNumberToObject(object, "coded_values", (double)totals->coded.values);
    cJSON_AddNumberToObject(object, "escapes", (double)totals->coded.escapes);
    cJSON_AddNumberToObject(object, "escape_rate", totals_escape_rate(totals));
}
