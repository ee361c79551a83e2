#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "tools/calibrate.h"
#include "tools/demo.h"
#include "tools/input.h"
#include "tools/util.h"

static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
#define ENDS (sizeof(ends) / sizeof(ends[0]))

static volatile sig_atomic_t caught;

static void note(int number)
{
    caught = number;
}

/* A signal that the parent process had ignored (nohup) stays ignored. A closed pipe becomes an output error, reported
 * at the end. */
void demo_signals_catch(void)
{
    struct sigaction action = {.sa_handler = note}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ENDS; i++)
        if (sigaction(ends[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(ends[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* Returns the signals that were blocked before. */
static sigset_t signals_block(void)
{
    sigset_t set, before;
    sigemptyset(&set);
    for (size_t i = 0; i < ENDS; i++)
        sigaddset(&set, ends[i]);
    sigprocmask(SIG_BLOCK, &set, &before);
    return before;
}

/* In a child: signals that the demo records end the child, also those that came while they were blocked. */
static void signals_reset(const sigset_t *before)
{
    struct sigaction now;
    for (size_t i = 0; i < ENDS; i++)
        if (sigaction(ends[i], NULL, &now) == 0 && now.sa_handler == note)
            signal(ends[i], SIG_DFL);
    sigprocmask(SIG_SETMASK, before, NULL);
}

bool demo_interrupted(void)
{
    return caught != 0;
}

void demo_signals_obey(void)
{
    if (caught == 0)
        return;
    signal(caught, SIG_DFL);
    raise(caught);
}

#define WINDOW_STEP 97u /* values between the beginnings of successive pages; odd, so that pages differ */

/* ---- The file --------------------------------------------------------------------------------------------------- */

/* Path of the sample, relative to the program's folder in an installation, or in a build tree. The caller frees it. */
static char *find_sample(void)
{
    static const char place[] = "../share/strait/kv-slice.safetensors";
    char program[PATH_MAX], *path = NULL;
    ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[size > 0 ? size : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    if (asprintf(&path, "%s/%s", program, place) < 0) {
        print_error(NULL, "out of memory");
        return NULL;
    }
    if (access(path, R_OK) == 0)
        return path;
    print_error(path, "%s: is the installation complete?", strerror(errno));
    free(path);
    return NULL;
}

/* ---- Pages ------------------------------------------------------------------------------------------------------ */

/* Fills the page from a window of the tensor, taken as a ring. Every page has another window, so that a misplaced page
 * is noticed. */
static void fill_page(uint8_t *page, const struct span *span, uint32_t index)
{
    uint64_t size = 2 * span->values, at = 2 * ((uint64_t)index * WINDOW_STEP % span->values);
    for (uint64_t done = 0, part; done < DEMO_PAGE_BYTES; done += part) {
        part = size - at < DEMO_PAGE_BYTES - done ? size - at : DEMO_PAGE_BYTES - done;
        memcpy(page + done, span->data + at, part);
        at = 0;
    }
}

static bool fill_pages(struct demo_sample *sample, const struct spans *spans)
{
    sample->region_count = (uint32_t)spans->count;
    sample->page_count = DEMO_BYTES / DEMO_PAGE_BYTES / sample->region_count;
    sample->classes = calloc(sample->region_count, sizeof(sample->classes[0]));
    if (sample->classes == NULL || strait_alloc(demo_bytes(sample), &sample->memory) != STRAIT_OK) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t region = 0; region < sample->region_count; region++) {
        sample->classes[region] = spans->list[region].class;
        for (uint32_t page = 0; page < sample->page_count; page++)
            fill_page(demo_page(&sample->memory, sample, region, page), &spans->list[region], page);
    }
    return true;
}

/* ---- Codebook --------------------------------------------------------------------------------------------------- */

static enum strait_status serialize(const struct strait_codebook *codebook, struct demo_sample *sample)
{
    sample->set_size = strait_codebook_serialized_size(codebook);
    sample->set = malloc(sample->set_size);
    return sample->set == NULL ? STRAIT_ERR_NO_MEMORY
                               : strait_codebook_serialize(codebook, sample->set, sample->set_size);
}

static bool calibrate(struct demo_sample *sample, struct spans *spans)
{
    struct histograms histograms = {0};
    struct progress progress;
    struct strait_codebook *codebook = NULL;
    progress_begin(&progress, "counting", PROGRESS_TOTAL_UNKNOWN, true);
    enum strait_status status = spans_count(spans, 1, &progress, &histograms) ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
    progress_end(&progress);
    if (status == STRAIT_OK)
        status = histograms_codebook(&histograms, false, &codebook);
    if (status == STRAIT_OK)
        status = serialize(codebook, sample);
    if (status != STRAIT_OK)
        print_error(NULL, "calibration of the sample: %s", strait_status_string(status));
    strait_codebook_destroy(codebook);
    histograms_fini(&histograms);
    return status == STRAIT_OK;
}

/* ---- All of it -------------------------------------------------------------------------------------------------- */

static bool demo_sample_take(struct demo_sample *sample, struct tensors *tensors)
{
    size_t count = tensors->spans.count;
    if (count == 0 || count > DEMO_BYTES / DEMO_PAGE_BYTES) {
        print_error(sample->path, "not a sample for this: %zu BF16 tensors", count);
        return false;
    }
    return calibrate(sample, &tensors->spans) && fill_pages(sample, &tensors->spans);
}

bool demo_sample_init(struct demo_sample *sample)
{
    struct tensors tensors;
    *sample = (struct demo_sample){.path = find_sample(), .memory.fd = -1};
    struct class_rules *rules = class_rules_create();
    if (rules == NULL)
        print_error(NULL, "out of memory");
    bool taken = rules != NULL && sample->path != NULL &&
                 tensors_open(&tensors, &sample->path, 1, tensors_take_safetensors, rules, TENSORS_BF16);
    if (taken) {
        taken = demo_sample_take(sample, &tensors);
        tensors_close(&tensors);
    }
    class_rules_destroy(rules);
    return taken;
}

void demo_sample_fini(struct demo_sample *sample)
{
    if (sample->memory.base != NULL)
        strait_free(&sample->memory);
    free(sample->classes);
    free(sample->set);
    free((char *)(uintptr_t)sample->path);
    *sample = (struct demo_sample){.memory.fd = -1};
}

#define MIB (1024.0 * 1024)

static const char *const role_names[] = {[STRAIT_ROLE_OTHER] = "other", [STRAIT_ROLE_K] = "k", [STRAIT_ROLE_V] = "v"};

/* ---- Shared ------------------------------------------------------------------------------------------------------ */

static bool row_verified(const struct demo_row *row, const struct demo_sample *sample)
{
    return row->bad_count == 0 && row->pages_right == demo_pages(sample);
}

static bool all_rows_verified(const struct demo_report *report)
{
    for (uint32_t i = 0; i < report->row_count; i++)
        if (!row_verified(&report->rows[i], report->sample))
            return false;
    return report->row_count > 0;
}

bool demo_verified(const struct demo_report *report)
{
    return report->complete && all_rows_verified(report);
}

static double gigabytes_per_second(const struct demo_row *row)
{
    return row->seconds > 0 ? (double)row->raw_bytes * 1e-9 / row->seconds : 0;
}

static double ratio(const struct demo_row *row)
{
    return (double)row->raw_bytes / (double)row->wire_bytes;
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

void demo_print_head(const struct demo_sample *sample, FILE *stream)
{
    fprintf(
        stream,
        "A prefill and a decode worker, a straitd for each, %.1f MiB of real KV cache: %" PRIu32 " pages of %u KiB\n"
        "in no order. Each row: the same pages, moved %u times, every page compared; the median time.\n"
        "network is UCX over TCP on loopback, shm shared memory between the two daemons, local both workers at one.\n\n"
        "%-8s %-9s %-7s %9s %9s %6s %9s %6s  %s\n",
        (double)demo_bytes(sample) / MIB, demo_pages(sample), DEMO_PAGE_BYTES / 1024, DEMO_ROUNDS, "path", "transport",
        "coding", "raw MiB", "wire MiB", "ratio", "time ms", "GB/s", "verified");
    fflush(stream);
}

void demo_print_row(const struct demo_row *row, const struct demo_sample *sample, FILE *stream)
{
    fprintf(stream, "%-8s %-9s %-7s %9.2f ", row->path, row->transport, row->coding, (double)row->raw_bytes / MIB);
    if (row->wire_bytes > 0)
        fprintf(stream, "%9.2f %6.3f ", (double)row->wire_bytes / MIB, ratio(row));
    else
        fprintf(stream, "%9s %6s ", "-", "-");
    fprintf(stream, "%9.2f %6.2f  %s%" PRIu32 " of %" PRIu32 " pages\n", row->seconds * 1e3, gigabytes_per_second(row),
            row_verified(row, sample) ? "" : "NO: ", row->pages_right, demo_pages(sample));
    fflush(stream);
}

static void print_hash(const char *name, const uint8_t bytes[DEMO_HASH_BYTES], FILE *stream)
{
    fprintf(stream, "%s ", name);
    for (int i = 0; i < DEMO_HASH_BYTES; i++)
        fprintf(stream, "%02x", bytes[i]);
}

static void print_bad(const struct demo_row *row, const struct demo_sample *sample, FILE *stream)
{
    for (uint32_t i = 0; i < row->bad_count; i++) {
        const struct demo_bad *bad = &row->bad[i];
        fprintf(stream,
                "WRONG: %s, %s: layer %" PRId32 " %s, page %" PRIu32 " (page %" PRIu32 " of the source): ", row->path,
                row->coding, sample->classes[bad->region].layer, role_names[sample->classes[bad->region].role],
                bad->sink_page, bad->source_page);
        print_hash("sent", bad->sent, stream);
        print_hash(", landed", bad->landed, stream);
        fputc('\n', stream);
    }
}

void demo_print_end(const struct demo_report *report, FILE *stream)
{
    if (report->row_count > 0)
        print_hash("\nXXH3-128 over the XXH3-128 of all pages: source", report->rows[0].sent, stream);
    fputs(all_rows_verified(report) ? ", landed the same in every row\n" : "\n", stream);
    for (uint32_t i = 0; i < report->row_count; i++)
        print_bad(&report->rows[i], report->sample, stream);
    if (report->flip)
        fputs("--fault flip turned one bit of a landed page over, after its transfer was DONE and checked by straitd,\n"
              "to show that this comparison can fail.\n",
              stream);
    fprintf(stream, "verified: %s\n", demo_verified(report) ? "true" : "false");
}

/* ---- For machines ------------------------------------------------------------------------------------------------ */

static cJSON *row_object(const struct demo_row *row, const struct demo_sample *sample)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "path", row->path);
    cJSON_AddStringToObject(object, "transport", row->transport);
    cJSON_AddStringToObject(object, "coding", row->coding);
    cJSON_AddNumberToObject(object, "raw_bytes", (double)row->raw_bytes);
    cJSON_AddNumberToObject(object, "wire_bytes", (double)row->wire_bytes);
    if (row->wire_bytes > 0)
        cJSON_AddNumberToObject(object, "ratio", ratio(row));
    else
        cJSON_AddNullToObject(object, "ratio");
    cJSON_AddNumberToObject(object, "seconds", row->seconds);
    cJSON_AddNumberToObject(object, "gigabytes_per_second", gigabytes_per_second(row));
    cJSON_AddNumberToObject(object, "pages_right", row->pages_right);
    json_add_hex(object, "source_hash", row->sent, DEMO_HASH_BYTES);
    json_add_hex(object, "landed_hash", row->landed, DEMO_HASH_BYTES);
    cJSON_AddBoolToObject(object, "verified", row_verified(row, sample));
    return object;
}

static void add_bad(cJSON *array, const struct demo_row *row, const struct demo_sample *sample)
{
    for (uint32_t i = 0; i < row->bad_count; i++) {
        const struct demo_bad *bad = &row->bad[i];
        cJSON *object = cJSON_CreateObject();
        cJSON_AddItemToArray(array, object);
        cJSON_AddStringToObject(object, "path", row->path);
        cJSON_AddStringToObject(object, "coding", row->coding);
        cJSON_AddNumberToObject(object, "layer", sample->classes[bad->region].layer);
        cJSON_AddStringToObject(object, "role", role_names[sample->classes[bad->region].role]);
        cJSON_AddNumberToObject(object, "page", bad->sink_page);
        cJSON_AddNumberToObject(object, "source_page", bad->source_page);
        json_add_hex(object, "source_hash", bad->sent, DEMO_HASH_BYTES);
        json_add_hex(object, "landed_hash", bad->landed, DEMO_HASH_BYTES);
    }
}

static void add_errors(cJSON *array)
{
    size_t count;
    char *const *errors = errors_kept(&count);
    for (size_t i = 0; i < count; i++)
        cJSON_AddItemToArray(array, cJSON_CreateString(errors[i]));
}

bool demo_print_json(const struct demo_report *report, FILE *stream)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddBoolToObject(object, "verified", demo_verified(report));
    cJSON_AddStringToObject(object, "version", strait_version());
    cJSON_AddStringToObject(object, "codec", strait_codec_name(strait_codec_get(NULL)));
    if (report->flip)
        cJSON_AddStringToObject(object, "fault", "flip");
    else
        cJSON_AddNullToObject(object, "fault");
    cJSON_AddNumberToObject(object, "pages", demo_pages(report->sample));
    cJSON_AddNumberToObject(object, "page_bytes", DEMO_PAGE_BYTES);
    cJSON_AddNumberToObject(object, "rounds", DEMO_ROUNDS);
    cJSON *rows = cJSON_AddArrayToObject(object, "transfers"), *bad = cJSON_AddArrayToObject(object, "bad_pages");
    for (uint32_t i = 0; i < report->row_count; i++) {
        cJSON_AddItemToArray(rows, row_object(&report->rows[i], report->sample));
        add_bad(bad, &report->rows[i], report->sample);
    }
    add_errors(cJSON_AddArrayToObject(object, "errors"));
    return json_print(object, stream);
}

#define CONNECT_MS   20000u
#define STOP_MS      10000u
#define STEP_MS      5u
#define LOG_LINES    8u
#define LOG_END      4096
#define FOLDER_BYTES 64u /* maximum, so that the path of a socket in it is short enough */

extern char **environ;

/* ---- The folder -------------------------------------------------------------------------------------------------- */

bool demo_folder_create(char folder[DEMO_PATH_MAX])
{
    const char *place = getenv("TMPDIR");
    if (place == NULL || place[0] != '/' || strlen(place) + sizeof("/strait-demo-XXXXXX") > FOLDER_BYTES)
        place = "/tmp";
    snprintf(folder, DEMO_PATH_MAX, "%s/strait-demo-XXXXXX", place);
    if (mkdtemp(folder) != NULL)
        return true;
    print_error(folder, "%s", strerror(errno));
    folder[0] = '\0';
    return false;
}

/* The folder has no subfolders. */
void demo_folder_remove(const char *folder)
{
    DIR *list = folder[0] != '\0' ? opendir(folder) : NULL;
    if (list == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(list)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(list), entry->d_name, 0);
    closedir(list);
    if (rmdir(folder) != 0)
        print_error(folder, "cannot be removed: %s", strerror(errno));
}

bool demo_file_write(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "we");
    bool written = file != NULL && fwrite(data, 1, size, file) == size;
    if (file != NULL)
        written = fclose(file) == 0 && written;
    if (!written)
        print_error(path, "cannot be written: %s", strerror(errno));
    return written;
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

static char *beside(const char *folder, const char *place)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", folder, place) < 0)
        return NULL;
    if (access(path, X_OK) == 0)
        return path;
    free(path);
    return NULL;
}

static char *named(const char *path)
{
    if (access(path, X_OK) == 0)
        return strdup(path);
    print_error(path, "STRAITD names no program: %s", strerror(errno));
    return NULL;
}

/* Places relative to the folder of this program: installed together, in /usr/sbin, in a build tree. */
char *demo_straitd(void)
{
    static const char *const places[] = {"straitd", "../sbin/straitd", "../daemon/straitd"};
    const char *choice = getenv("STRAITD");
    if (choice != NULL && choice[0] != '\0')
        return named(choice);
    char program[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[size > 0 ? size : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        char *path = beside(program, places[i]);
        if (path != NULL)
            return path;
    }
    print_error(NULL, "no straitd in %s: STRAITD=PATH says where it is", program);
    return NULL;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

/* Leaves out options in the environment, which are meant for the node's own daemon. The caller frees the list. */
static char **clean_environment(void)
{
    size_t count = 0, kept = 0;
    while (environ[count] != NULL)
        count++;
    char **list = calloc(count + 1, sizeof(*list));
    for (size_t i = 0; list != NULL && i < count; i++)
        if (strncmp(environ[i], "STRAITD_", 8) != 0)
            list[kept++] = environ[i];
    return list;
}

/* Runs in the child, which only reads the memory that it shares. Ctrl-C must reach only the demo, which then ends its
 * daemons. */
static void become(char *const *arguments, char *const *environment, int log, pid_t parent)
{
    int null = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent && dup2(null, STDIN_FILENO) >= 0 &&
        dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0)
        execve(arguments[0], arguments, environment);
    dprintf(log, "%s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

static pid_t spawn(char *const *arguments, const char *log_path)
{
    pid_t parent = getpid(), pid = -1;
    char **environment = clean_environment();
    int log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    sigset_t before = signals_block(); /* a child must not record the signal that is to end it */
    if (log >= 0 && environment != NULL)
        pid = fork();
    if (pid == 0) {
        signals_reset(&before);
        become(arguments, environment, log, parent);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid < 0)
        print_error(arguments[0], "cannot be started: %s", strerror(errno));
    if (log >= 0)
        close(log);
    free(environment);
    return pid;
}

/* Restricts UCX to tcp: between processes of one host it would use shared memory. */
static bool write_options(const struct demo_daemon *daemon, const char *path, const char *transport, const char *set)
{
    char text[1024];
    int size = snprintf(text, sizeof(text),
                        "socket = %s\n"
                        "listen = 127.0.0.1:0\n"
                        "metrics =\n"
                        "codebook = %s\n"
                        "transports = %s\n"
                        "ucx-options = tls=tcp devices=lo\n"
                        "arena-bytes = 64M\n"
                        "send-bytes = 32M\n",
                        daemon->socket, set, transport);
    return demo_file_write(path, text, (size_t)size);
}

bool demo_daemon_start(struct demo_daemon *daemon, const char *straitd, const char *folder, const char *name,
                       const char *transport, const char *set)
{
    char options[DEMO_PATH_MAX];
    *daemon = (struct demo_daemon){.name = name};
    snprintf(daemon->socket, sizeof(daemon->socket), "%.64s/%.20s.sock", folder, name);
    snprintf(daemon->log, sizeof(daemon->log), "%.64s/%.20s.log", folder, name);
    snprintf(options, sizeof(options), "%.64s/%.20s.conf", folder, name);
    if (!write_options(daemon, options, transport, set))
        return false;
    const char *const arguments[] = {straitd, "--config", options, NULL};
    char *list[sizeof(arguments) / sizeof(arguments[0])];
    memcpy(list, arguments, sizeof(list));
    pid_t pid = spawn(list, daemon->log);
    if (pid > 0)
        daemon->pid = pid;
    return pid > 0;
}

/* ---- Watching ---------------------------------------------------------------------------------------------------- */

static const char *last_lines(char *text, unsigned lines)
{
    char *at = text + strlen(text);
    while (at > text && at[-1] == '\n')
        *--at = '\0';
    for (; at > text; at--)
        if (at[-1] == '\n' && --lines == 0)
            break;
    return at;
}

void demo_daemon_tell_log(const struct demo_daemon *daemon)
{
    char text[LOG_END + 1] = "";
    FILE *file = fopen(daemon->log, "re");
    if (file == NULL)
        return;
    if (fseek(file, -LOG_END, SEEK_END) != 0)
        rewind(file);
    text[fread(text, 1, LOG_END, file)] = '\0';
    fclose(file);
    if (text[0] != '\0')
        fprintf(stderr, "the log of the %s's straitd ends with:\n%s\n", daemon->name, last_lines(text, LOG_LINES));
}

/* Reports how the daemon ended, unless it ended cleanly. */
static bool ended_well(struct demo_daemon *daemon, int status)
{
    daemon->pid = 0;
    if (WIFSIGNALED(status))
        print_error(NULL, "the %s's straitd was ended by signal %d", daemon->name, WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        print_error(NULL, "the %s's straitd ended with status %d", daemon->name, WEXITSTATUS(status));
    else
        return true;
    demo_daemon_tell_log(daemon);
    return false;
}

bool demo_daemon_runs(struct demo_daemon *daemon)
{
    int status;
    if (daemon->pid == 0)
        return false;
    if (waitpid(daemon->pid, &status, WNOHANG) == 0)
        return true;
    if (ended_well(daemon, status))
        print_error(NULL, "the %s's straitd has ended", daemon->name);
    return false;
}

/* A client that finds no socket tries again only after a while, so it is opened when there is one. */
static bool demo_daemon_listens(struct demo_daemon *daemon)
{
    for (unsigned waited = 0; access(daemon->socket, F_OK) != 0; waited += STEP_MS) {
        if (waited >= CONNECT_MS || demo_interrupted() || !demo_daemon_runs(daemon))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
    }
    return true;
}

/* ---- Stopping ---------------------------------------------------------------------------------------------------- */

bool demo_daemon_stop(struct demo_daemon *daemon)
{
    int status = 0;
    if (daemon->pid == 0)
        return true;
    kill(daemon->pid, SIGTERM);
    for (unsigned waited = 0; waitpid(daemon->pid, &status, WNOHANG) == 0; waited += STEP_MS) {
        if (waited == STOP_MS)
            kill(daemon->pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
    }
    return ended_well(daemon, status);
}

#define STATS_MS 10000u
#define TURN_MS  50 /* a signal or the end of a daemon is noticed within this time */

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void fail(struct demo_side *side, const char *what, const char *why)
{
    side->failed = true;
    print_error(NULL, "%s's worker: %s: %s", side->daemon->name, what, why);
}

static void take_pool(struct demo_side *side, const struct strait_event *event)
{
    side->registered = event->status == STRAIT_OK;
    if (!side->registered)
        fail(side, "the daemon refused the pool", event->text);
}

static void take_state(struct demo_side *side, const struct strait_event *event)
{
    if (event->state != STRAIT_DONE && event->state != STRAIT_FAILED)
        return;
    side->verdict = event->state;
    if (event->state == STRAIT_FAILED)
        print_error(NULL, "%s's worker: transfer failed: %s%s%s", side->daemon->name,
                    strait_reason_string((int)event->reason), event->text[0] != '\0' ? ": " : "", event->text);
}

static void take_connection(struct demo_side *side, const struct strait_event *event)
{
    if (event->connected)
        return;
    fail(side, "connection to the daemon lost", event->text != NULL ? event->text : "");
}

static void demo_side_take(struct demo_side *side, const struct strait_event *event)
{
    switch (event->type) {
    case STRAIT_EVENT_POOL:
        take_pool(side, event);
        break;
    case STRAIT_EVENT_STATE:
        take_state(side, event);
        break;
    case STRAIT_EVENT_CONNECTION:
        take_connection(side, event);
        break;
    case STRAIT_EVENT_STATS:
        free(side->stats);
        side->stats = strndup(event->data, event->data_size);
        break;
    default:
        break;
    }
}

static void pump(struct demo_side *side)
{
    struct strait_event events[16];
    uint32_t count = strait_poll(side->client, events, 16);
    for (uint32_t i = 0; i < count; i++)
        demo_side_take(side, &events[i]);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static bool goes_on(const struct demo_pair *pair)
{
    return !pair->source->failed && !pair->sink->failed && !demo_interrupted() &&
           demo_daemon_runs(pair->source->daemon) && demo_daemon_runs(pair->sink->daemon);
}

static void turn(const struct demo_pair *pair)
{
    struct pollfd fds[2] = {{.fd = strait_client_fd(pair->source->client), .events = POLLIN},
                            {.fd = strait_client_fd(pair->sink->client), .events = POLLIN}};
    poll(fds, 2, TURN_MS);
    pump(pair->source);
    if (pair->sink != pair->source)
        pump(pair->sink);
}

bool demo_until(const struct demo_pair *pair, bool (*reached)(const struct demo_pair *pair), unsigned ms,
                const char *what)
{
    uint64_t end = clock_ns() + ms * UINT64_C(1000000);
    while (!reached(pair)) {
        if (!goes_on(pair))
            return false;
        if (clock_ns() > end) {
            print_error(NULL, "%s: not within %u seconds", what, ms / 1000);
            return false;
        }
        turn(pair);
    }
    return true;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static enum strait_status register_pool(struct demo_side *side, const struct demo_sample *sample,
                                        const struct strait_memory *memory)
{
    struct strait_pool_region *regions = calloc(sample->region_count, sizeof(*regions));
    if (regions == NULL)
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < sample->region_count; i++)
        regions[i] = (struct strait_pool_region){
            .handle = STRAIT_HANDLE_MEMFD,
            .device = -1,
            .fd = memory->fd,
            .offset = (uint64_t)i * sample->page_count * DEMO_PAGE_BYTES,
            .page_stride = DEMO_PAGE_BYTES,
            .page_count = sample->page_count,
            .rows = 1,
            .row_bytes = DEMO_PAGE_BYTES,
            .element = STRAIT_ELEMENT_BF16,
            .role = sample->classes[i].role,
            .layer = sample->classes[i].layer,
        };
    struct strait_pool_params params = {
        .size = sizeof(params), .regions = regions, .region_count = sample->region_count};
    enum strait_status status = strait_pool_register(side->client, &params, &side->pool);
    free(regions);
    return status;
}

static bool is_registered(const struct demo_pair *pair)
{
    return pair->source->registered;
}

bool demo_side_open(struct demo_side *side, struct demo_daemon *daemon, const struct demo_sample *sample,
                    const struct strait_memory *memory)
{
    *side = (struct demo_side){.daemon = daemon};
    if (!demo_daemon_listens(daemon))
        return false;
    struct strait_client_config config = {.size = sizeof(config), .socket = daemon->socket};
    enum strait_status status = strait_client_open(&config, &side->client);
    if (status == STRAIT_OK)
        status = register_pool(side, sample, memory);
    if (status != STRAIT_OK) {
        fail(side, "cannot begin", strait_status_string(status));
        return false;
    }
    struct demo_pair alone = {side, side};
    return demo_until(&alone, is_registered, CONNECT_MS, "an answer of straitd");
}

void demo_side_close(struct demo_side *side)
{
    strait_client_close(side->client);
    free(side->stats);
    *side = (struct demo_side){0};
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static bool has_stats(const struct demo_pair *pair)
{
    return pair->source->stats != NULL;
}

struct cJSON *demo_stats(const struct demo_pair *pair)
{
    free(pair->source->stats);
    pair->source->stats = NULL;
    if (strait_stats(pair->source->client) != STRAIT_OK) {
        print_error(NULL, "straitd is away");
        return NULL;
    }
    if (!demo_until(pair, has_stats, STATS_MS, "statistics"))
        return NULL;
    cJSON *stats = cJSON_Parse(pair->source->stats);
    if (stats == NULL)
        print_error(NULL, "straitd's statistics cannot be read");
    return stats;
}

#define TRANSFER_MS 60000u
#define BLOB_ROOM   65536u

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Pages in random order, as after a while in a page allocator. */
static void shuffle(uint32_t *ids, uint32_t count, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        ids[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t other = (uint32_t)(next_random(&seed) % i), id = ids[i - 1];
        ids[i - 1] = ids[other];
        ids[other] = id;
    }
}

static void hash(uint8_t dst[DEMO_HASH_BYTES], const void *src, size_t size)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(src, size));
    memcpy(dst, canonical.digest, DEMO_HASH_BYTES);
}

static void hash_page(uint8_t dst[DEMO_HASH_BYTES], const struct demo_sample *sample,
                      const struct strait_memory *memory, uint32_t region, uint32_t page)
{
    hash(dst, demo_page(memory, sample, region, page), DEMO_PAGE_BYTES);
}

bool demo_plan_init(struct demo_plan *plan, const struct demo_sample *sample, const struct strait_memory *landing)
{
    *plan = (struct demo_plan){.sample = sample, .landing = landing};
    plan->from = calloc(sample->page_count, sizeof(plan->from[0]));
    plan->to = calloc(sample->page_count, sizeof(plan->to[0]));
    plan->hashes = calloc(demo_pages(sample), sizeof(plan->hashes[0]));
    if (plan->from == NULL || plan->to == NULL || plan->hashes == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    shuffle(plan->from, sample->page_count, 1);
    shuffle(plan->to, sample->page_count, 2);
    for (uint32_t i = 0; i < demo_pages(sample); i++)
        hash_page(plan->hashes[i], sample, &sample->memory, i / sample->page_count, plan->from[i % sample->page_count]);
    return true;
}

void demo_plan_fini(struct demo_plan *plan)
{
    free(plan->from);
    free(plan->to);
    free(plan->hashes);
    *plan = (struct demo_plan){0};
}

/* ---- One transfer ------------------------------------------------------------------------------------------------ */

static bool begin_offer(const struct demo_side *source, const struct demo_plan *plan, const char *key,
                        struct strait_transfer **transfer)
{
    struct strait_page_list list = {.count = plan->sample->page_count, .ids = plan->from};
    struct strait_offer_params params = {.size = sizeof(params),
                                         .key = key,
                                         .key_size = strlen(key),
                                         .lists = &list,
                                         .list_count = 1,
                                         .lease_ms = TRANSFER_MS,
                                         .last = true};
    return strait_offer(source->pool, &params, transfer) == STRAIT_OK;
}

static bool begin_expect(const struct demo_side *sink, const struct demo_plan *plan, const char *key,
                         const struct strait_peer *peer, struct strait_transfer **transfer)
{
    struct strait_page_list list = {.count = plan->sample->page_count, .ids = plan->to};
    struct strait_expect_params params = {.size = sizeof(params),
                                          .key = key,
                                          .key_size = strlen(key),
                                          .lists = &list,
                                          .list_count = 1,
                                          .deadline_ms = TRANSFER_MS};
    return strait_expect(sink->pool, &params, transfer) == STRAIT_OK &&
           strait_start(*transfer, peer, NULL) == STRAIT_OK;
}

static bool sink_decided(const struct demo_pair *pair)
{
    return pair->sink->verdict != STRAIT_BOOTSTRAP;
}

static bool both_decided(const struct demo_pair *pair)
{
    return sink_decided(pair) && pair->source->verdict != STRAIT_BOOTSTRAP;
}

static bool both_done(const struct demo_pair *pair)
{
    return pair->sink->verdict == STRAIT_DONE && pair->source->verdict == STRAIT_DONE;
}

static bool transfer_once(const struct demo_pair *pair, const struct demo_plan *plan, const struct strait_peer *peer,
                          double *seconds)
{
    static unsigned number;
    char key[32];
    struct strait_transfer *offer = NULL, *expectation = NULL;
    snprintf(key, sizeof(key), "demo-%u", ++number);
    memset(plan->landing->base, 0, plan->landing->size);
    pair->source->verdict = pair->sink->verdict = STRAIT_BOOTSTRAP;
    uint64_t begin = clock_ns();
    bool begun =
        begin_offer(pair->source, plan, key, &offer) && begin_expect(pair->sink, plan, key, peer, &expectation);
    if (!begun)
        print_error(NULL, "the transfer cannot be begun");
    bool landed = begun && demo_until(pair, sink_decided, TRANSFER_MS + 1000, "the transfer");
    *seconds = (double)(clock_ns() - begin) * 1e-9;
    bool done = landed && demo_until(pair, both_decided, TRANSFER_MS + 1000, "the transfer") && both_done(pair);
    strait_release(offer);
    strait_release(expectation);
    return done;
}

/* ---- The check ------------------------------------------------------------------------------------------------- */

static void flip_bit(const struct demo_plan *plan)
{
    const struct demo_sample *sample = plan->sample;
    demo_page(plan->landing, sample, sample->region_count / 2, plan->to[sample->page_count / 2])[4711] ^= 0x10;
}

static void note_bad(struct demo_row *row, const struct demo_plan *plan, uint32_t index, const uint8_t *landed)
{
    if (row->bad_count == DEMO_BAD_MAX)
        return;
    struct demo_bad *bad = &row->bad[row->bad_count++];
    uint32_t logical = index % plan->sample->page_count;
    *bad = (struct demo_bad){
        .region = index / plan->sample->page_count, .source_page = plan->from[logical], .sink_page = plan->to[logical]};
    memcpy(bad->sent, plan->hashes[index], DEMO_HASH_BYTES);
    memcpy(bad->landed, landed, DEMO_HASH_BYTES);
}

/* Checks every page and lists those that differ in the row; false: out of memory. */
static bool check_pages(const struct demo_plan *plan, struct demo_row *row)
{
    uint32_t count = demo_pages(plan->sample), right = 0;
    uint8_t(*landed)[DEMO_HASH_BYTES] = calloc(count, sizeof(landed[0]));
    if (landed == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        hash_page(landed[i], plan->sample, plan->landing, i / plan->sample->page_count,
                  plan->to[i % plan->sample->page_count]);
        bool same = memcmp(landed[i], plan->hashes[i], DEMO_HASH_BYTES) == 0;
        right += same;
        if (!same)
            note_bad(row, plan, i, landed[i]);
    }
    row->pages_right = right;
    hash(row->sent, plan->hashes, sizeof(plan->hashes[0]) * count);
    hash(row->landed, landed, sizeof(landed[0]) * count);
    free(landed);
    return true;
}

/* ---- Figures --------------------------------------------------------------------------------------------------- */

static double counter(const struct cJSON *stats, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(stats, "counters"), name);
    return cJSON_IsNumber(value) ? value->valuedouble : 0;
}

/* The transport of the only peer. */
static void name_transport(struct demo_row *row, const struct cJSON *stats)
{
    const cJSON *peer;
    snprintf(row->transport, sizeof(row->transport), "%s", "copy");
    if (row->wire_bytes == 0)
        return;
    cJSON_ArrayForEach(peer, cJSON_GetObjectItemCaseSensitive(stats, "peers"))
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(peer, "transport"));
        if (name != NULL)
            snprintf(row->transport, sizeof(row->transport), "%s", name);
    }
}

static bool take_figures(const struct demo_pair *pair, struct demo_row *row, double wire_before)
{
    struct cJSON *stats = demo_stats(pair);
    if (stats == NULL)
        return false;
    row->wire_bytes = (uint64_t)((counter(stats, "wire_bytes_sent") - wire_before) / DEMO_ROUNDS);
    name_transport(row, stats);
    cJSON_Delete(stats);
    return true;
}

static bool wire_bytes_sent(const struct demo_pair *pair, double *bytes)
{
    struct cJSON *stats = demo_stats(pair);
    if (stats == NULL)
        return false;
    *bytes = counter(stats, "wire_bytes_sent");
    cJSON_Delete(stats);
    return true;
}

/* ---- A row ----------------------------------------------------------------------------------------------------- */

static int by_size(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Stops at the first round with a bad page. */
static bool measure(const struct demo_pair *pair, const struct demo_plan *plan, const struct strait_peer *peer,
                    struct demo_row *row)
{
    double seconds[DEMO_ROUNDS], first, before;
    if (!transfer_once(pair, plan, peer, &first) || !check_pages(plan, row) || !wire_bytes_sent(pair, &before))
        return false;
    for (uint32_t round = 0; round < DEMO_ROUNDS; round++) {
        if (!transfer_once(pair, plan, peer, &seconds[round]))
            return false;
        if (row->flip && round == DEMO_ROUNDS - 1)
            flip_bit(plan);
        if (row->bad_count == 0 && !check_pages(plan, row))
            return false;
    }
    qsort(seconds, DEMO_ROUNDS, sizeof(seconds[0]), by_size);
    row->seconds = seconds[DEMO_ROUNDS / 2];
    return take_figures(pair, row, before);
}

static bool know_each_other(const struct demo_pair *pair, struct strait_peer **peer)
{
    uint8_t *blob = malloc(BLOB_ROOM);
    size_t size;
    bool known = blob != NULL && strait_pool_export(pair->source->pool, blob, BLOB_ROOM, &size) == STRAIT_OK &&
                 strait_peer_import(pair->sink->client, blob, size, peer) == STRAIT_OK;
    free(blob);
    if (!known)
        print_error(NULL, "the pool cannot be exported or imported");
    return known;
}

bool demo_move(const struct demo_pair *pair, const struct demo_plan *plan, struct demo_row *row)
{
    struct strait_peer *peer;
    row->raw_bytes = demo_bytes(plan->sample);
    if (!know_each_other(pair, &peer))
        return false;
    enum strait_status status = strait_set_policy(pair->source->pool, row->pin);
    if (status != STRAIT_OK)
        print_error(NULL, "coding %s: %s", row->coding, strait_status_string(status));
    bool moved = status == STRAIT_OK && measure(pair, plan, peer, row);
    strait_peer_remove(peer);
    return moved;
}
