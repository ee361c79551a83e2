#include "collective/report_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "collective/engine.h"
#include "collective/group.h"
#include "collective/report.h"

/* `registry`: no communicator is detached meanwhile, so the engine's part of it stays; held for moments. `file`: one
 * report is written at a time; may be held as long as a slow file system takes. In this order: file, registry. */
static pthread_mutex_t file = PTHREAD_MUTEX_INITIALIZER, registry = PTHREAD_MUTEX_INITIALIZER;

static struct {
    bool begun;                         /* the process has a file; under `registry`, as are the next three */
    bool over;                          /* the process exits, and CUDA may have ended */
    char *ended[COLL_REPORT_ENDED_MAX]; /* texts of communicators that have ended; a ring */
    uint64_t ended_count;               /* so far */
    pthread_cond_t wake;                /* the thread, with `registry` */
    bool due;
    char path[PATH_MAX], temporary[PATH_MAX], host[65];
    double started;
    char *last; /* the part of the text that was written last; under `file` */
    bool failed;
} report = {.wake = PTHREAD_COND_INITIALIZER};

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

/* Bytes above ASCII are given as characters of the same numbers: paths and host names need not be UTF-8. */
static void put_string(struct coll_text *text, const char *name, const char *string)
{
    coll_text_add(text, "\"%s\":\"", name);
    for (const uint8_t *at = (const uint8_t *)string; *at != '\0'; at++) {
        if (*at < ' ' || *at > '~')
            coll_text_add(text, "\\u%04x", *at);
        else
            coll_text_add(text, *at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
    }
    coll_text_add(text, "\"");
}

/* The program's locale may have a comma where JSON has a point. Not negative. */
static void put_real(struct coll_text *text, const char *name, double value)
{
    const double most = 1e15, whole = value > 0 && value < most ? value : value >= most ? most : 0;
    const uint64_t millionths = (uint64_t)(whole * 1e6 + 0.5);
    coll_text_add(text, "\"%s\":%" PRIu64 ".%06" PRIu64, name, millionths / 1000000, millionths % 1000000);
}

/* `null`, unless it is known. */
static void put_known(struct coll_text *text, const char *name, double value, bool known)
{
    if (known)
        put_real(text, name, value);
    else
        coll_text_add(text, "\"%s\":null", name);
}

/* ---- Of a communicator ------------------------------------------------------------------------------------------- */

static void put_raw(struct coll_text *text, const struct coll_count *count)
{
    coll_text_add(text, ",\"raw\":[");
    for (unsigned i = 0; i < COLL_REASONS_MAX && count->raw[i].reason != NULL; i++) {
        coll_text_add(text, "%s{", i > 0 ? "," : "");
        put_string(text, "why", count->raw[i].reason);
        coll_text_add(text, ",\"calls\":%" PRIu64 ",\"bytes\":%" PRIu64 "}", count->raw[i].calls, count->raw[i].bytes);
    }
    coll_text_add(text, "]");
}

/* An overflow takes as long as those of the operations that were compressed would on average. */
static double seconds_overflowed(const struct coll_count *count, uint64_t overflows)
{
    return count->compressed > 0 ? count->cost.repair / (double)count->compressed * (double)overflows : 0;
}

static void put_operation(struct coll_text *text, enum coll_operation operation, unsigned type,
                          const struct coll_count *count, const struct coll_figures *figures)
{
    static const struct coll_kind_figures none;
    const struct coll_kind_figures *kind = figures != NULL ? &figures->of[operation][type] : &none;
    const bool measured = figures != NULL && figures->measured;
    coll_text_add(text, "{\"operation\":\"%s\",\"type\":\"%s\"", coll_operation_name(operation), coll_type_name(type));
    coll_text_add(text,
                  ",\"calls\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"grouped\":%" PRIu64 ",\"captured\":%" PRIu64
                  ",\"failed\":%" PRIu64,
                  count->calls, count->bytes, count->grouped, count->captured, count->failed);
    coll_text_add(text,
                  ",\"compressed\":%" PRIu64 ",\"plain_bytes\":%" PRIu64 ",\"wire_bytes\":%" PRIu64
                  ",\"probes\":%" PRIu64 ",\"overflows\":%" PRIu64 ",",
                  count->compressed, count->values, count->wire, count->probes, kind->overflows);
    put_known(text, "nccl_seconds", count->cost.plain, measured);
    coll_text_add(text, ",");
    put_known(text, "coded_seconds", count->cost.coded, measured);
    coll_text_add(text, ",");
    put_known(text, "overflow_seconds", seconds_overflowed(count, kind->overflows), measured && figures->overflow > 0);
    coll_text_add(text, ",\"compared\":%" PRIu64 ",", kind->compared);
    put_known(text, "x", kind->ratio > 0 ? 1 / kind->ratio : 0, kind->compared > 0 && kind->ratio > 0);
    put_raw(text, count);
    coll_text_add(text, "}");
}

static void put_operations(struct coll_text *text, const struct coll_counts *counts, const struct coll_figures *figures)
{
    const char *comma = "";
    coll_text_add(text, ",\"operations\":[");
    for (unsigned operation = 0; operation < COLL_OPERATIONS; operation++)
        for (unsigned type = 0; type < COLL_TYPES; type++) {
            const struct coll_count *count = &counts->of[operation][type];
            if (count->reason == NULL)
                continue;
            coll_text_add(text, "%s", comma);
            put_operation(text, operation, type, count, figures);
            comma = ",";
        }
    coll_text_add(text, "]");
}

static void put_links(struct coll_text *text, const struct coll_figures *figures)
{
    const struct {
        const char *name;
        double rate;
    } rates[] = {
        {"all_gather", figures->gather}, {"all_to_all", figures->exchange}, {"reduce_scatter", figures->scatter},
        {"overflow", figures->overflow}, {"local", figures->local},         {"rail", figures->rail},
        {"shm", figures->shm},           {"encode", figures->encode},       {"decode", figures->decode}};
    coll_text_add(text, ",\"links\":{");
    put_known(text, "start_us", figures->start_us, figures->measured);
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        coll_text_add(text, ",");
        put_known(text, rates[i].name, rates[i].rate, rates[i].rate > 0);
    }
    coll_text_add(text,
                  "},\"memory\":{\"messages\":%" PRIu64 ",\"persistent\":%" PRIu64 ",\"host\":%" PRIu64
                  ",\"host_messages\":%" PRIu64 "},\"hosts\":%u,\"rails\":%u,",
                  figures->memory.suspendable, figures->memory.persistent, figures->host_memory, figures->hosted,
                  figures->hosts, figures->rails);
    put_string(text, "table", figures->table);
}

static const char *state_of(const struct coll_comm_info *info)
{
    return info->ccomm != NULL ? "joined" : info->lazy_join != NULL && info->why != NULL ? "not joined" : "raw";
}

static const char *why_of(const struct coll_comm_copy *copy)
{
    return copy->told[0] != '\0'          ? copy->told
           : copy->info.why != NULL       ? copy->info.why
           : copy->info.ranks == 1        ? "one rank"
           : coll_library()->settings.raw ? "STRAIT_COLL=raw"
                                          : "";
}

/* Adds a communicator; nothing if it is not known. `look`: as coll_engine_ops.figures. */
static void put_communicator(struct coll_text *text, coll_comm comm, const char *before, bool look, bool ended)
{
    struct coll_comm_copy *copy = calloc(1, sizeof(*copy));
    struct coll_figures *figures = NULL;
    if (copy == NULL || !coll_comm_copy(comm, copy)) {
        free(copy);
        return;
    }
    if (copy->info.ccomm != NULL && (figures = calloc(1, sizeof(*figures))) != NULL)
        coll_engine()->figures(copy->info.ccomm, look, figures);
    coll_text_add(text, "%s{\"number\":%" PRIu64 ",\"id\":", before, copy->number);
    coll_text_add(text, copy->id != 0 ? "\"%012" PRIx64 "\"" : "null", copy->id);
    coll_text_add(text, ",\"rank\":%d,\"ranks\":%d,\"ended\":%s,\"pinned\":%s,\"state\":\"%s\",", copy->info.rank,
                  copy->info.ranks, ended ? "true" : "false", copy->info.pinned ? "true" : "false",
                  state_of(&copy->info));
    put_string(text, "why", why_of(copy));
    if (figures != NULL)
        put_links(text, figures);
    put_operations(text, &copy->counts, figures);
    coll_text_add(text, "}");
    free(figures);
    free(copy);
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static const char *mode_of(const struct coll_settings *settings)
{
    return settings->raw ? "raw" : settings->forced ? "compress" : "auto";
}

/* The part that says what was done, which is the same as long as nothing happens. Under `registry`. */
static void put_communicators(struct coll_text *text)
{
    const uint64_t from = report.ended_count > COLL_REPORT_ENDED_MAX ? report.ended_count - COLL_REPORT_ENDED_MAX : 0;
    const char *comma = "";
    coll_text_add(text, "\"dropped\":%" PRIu64 ",\"communicators\":[", from);
    for (uint64_t i = from; i < report.ended_count; i++) {
        const char *ended = report.ended[i % COLL_REPORT_ENDED_MAX];
        if (ended == NULL)
            continue;
        coll_text_add(text, "%s%s", comma, ended);
        comma = ",";
    }
    const unsigned count = coll_comm_list(NULL, 0);
    coll_comm *comms = calloc(count + 1, sizeof(coll_comm));
    const unsigned listed = comms != NULL ? coll_comm_list(comms, count) : 0;
    for (unsigned i = 0; i < listed && i < count; i++) {
        const size_t before = text->size;
        put_communicator(text, comms[i], comma, !report.over, false);
        comma = text->size > before ? "," : comma;
    }
    free(comms);
    coll_text_add(text, "]}\n");
}

static void put_head(struct coll_text *text, bool exits)
{
    const struct coll_library *library = coll_library();
    coll_text_add(text, "{\"schema\":\"" COLL_REPORT_SCHEMA "\",\"schema_version\":%d,", COLL_REPORT_VERSION);
    put_string(text, "library", STRAIT_VERSION);
    coll_text_add(text, ",\"nccl\":%d,", library->version);
    put_string(text, "nccl_path", library->path);
    coll_text_add(text, ",");
    put_string(text, "host", report.host);
    coll_text_add(text, ",\"process\":%ld,", (long)getpid());
    put_real(text, "started", report.started);
    coll_text_add(text, ",");
    put_real(text, "written", now());
    coll_text_add(text, ",\"exited\":%s,", exits ? "true" : "false");
    put_string(text, "mode", mode_of(&library->settings));
    coll_text_add(text, ",\"encrypted\":%s,", coll_is_encrypted() ? "true" : "false");
}

static bool write_all(int to, const struct coll_text *text)
{
    size_t done = 0;
    while (done < text->size) {
        const ssize_t written = write(to, text->dst + done, text->size - done);
        if (written < 0 && errno != EINTR)
            return false;
        done += written > 0 ? (size_t)written : 0;
    }
    return true;
}

/* False: the folder cannot be written, as errno says. */
static bool store(const struct coll_text *text)
{
    (void)unlink(report.temporary);
    const int to = open(report.temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (to < 0)
        return false;
    const bool written = write_all(to, text);
    int error = errno;
    if (close(to) == 0 && written && rename(report.temporary, report.path) == 0)
        return true;
    error = written ? errno : error;
    (void)unlink(report.temporary);
    errno = error;
    return false;
}

/* Writes the file, if anything has changed since. Under `file`. */
static void write_report(bool exits)
{
    struct coll_text text = {.grows = true};
    pthread_mutex_lock(&registry);
    report.due = false;
    put_head(&text, exits);
    const size_t head = text.size;
    put_communicators(&text);
    pthread_mutex_unlock(&registry);
    if (text.size >= text.capacity) { /* no memory for all of it */
        free(text.dst);
        return;
    }
    char *said = strdup(text.dst + head);
    const bool changed = exits || said == NULL || report.last == NULL || strcmp(said, report.last) != 0;
    const bool good = !changed || store(&text);
    if (!good && !report.failed)
        coll_log("STRAIT_COLL_REPORT: %s: %s", report.path, strerror(errno));
    report.failed |= !good;
    free(report.last);
    report.last = good ? said : NULL;
    if (!good)
        free(said);
    free(text.dst);
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static bool is_begun(void)
{
    pthread_mutex_lock(&registry);
    const bool begun = report.begun;
    pthread_mutex_unlock(&registry);
    return begun;
}

static void *keep(void *argument)
{
    (void)argument;
    coll_thread_enter();
    pthread_mutex_lock(&registry);
    while (!report.over) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += COLL_REPORT_EVERY_S;
        while (!report.due && !report.over && pthread_cond_timedwait(&report.wake, &registry, &until) != ETIMEDOUT)
            ;
        pthread_mutex_unlock(&registry);
        pthread_mutex_lock(&file);
        if (is_begun())
            write_report(false);
        pthread_mutex_unlock(&file);
        pthread_mutex_lock(&registry);
    }
    pthread_mutex_unlock(&registry);
    return NULL;
}

/* It takes no signals of the program. */
static bool start_thread(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool good = pthread_create(&thread, NULL, keep, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (good)
        pthread_detach(thread);
    return good;
}

/* ---- Beginning and end ------------------------------------------------------------------------------------------- */

static void name_host(void)
{
    char name[65] = "";
    if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0')
        snprintf(name, sizeof(name), "host");
    snprintf(report.host, sizeof(report.host), "%s", name);
}

/* Names the file, in the folder, which is made if it is not there; the program may change its own folder later. */
static bool name_file(const char *folder)
{
    char there[PATH_MAX], host[65];
    if ((mkdir(folder, 0777) != 0 && errno != EEXIST) || realpath(folder, there) == NULL)
        return false;
    name_host();
    snprintf(host, sizeof(host), "%s", report.host);
    for (char *at = host; *at != '\0'; at++)
        if (strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.", *at) == NULL)
            *at = '_';
    report.started = now();
    const uint64_t time = (uint64_t)(report.started * 1e3);
    int size = snprintf(report.path, sizeof(report.path), "%s/strait-coll-%s-%ld-%" PRIu64 ".json", there, host,
                        (long)getpid(), time);
    if (size < (int)sizeof(report.path))
        size = snprintf(report.temporary, sizeof(report.temporary), "%s/.strait-coll-%s-%ld-%" PRIu64 ".tmp", there,
                        host, (long)getpid(), time);
    errno = ENAMETOOLONG;
    return size < (int)sizeof(report.temporary);
}

/* The file's lock is waited for a moment only: a file system that hangs must not keep the process from ending. */
static void at_exit(void)
{
    enum { PATIENCE_S = 2 };
    struct timespec until;
    if (!is_begun())
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    const bool locked = pthread_mutex_timedlock(&file, &until) == 0;
    if (locked)
        write_report(true);
    pthread_mutex_lock(&registry);
    report.over = true;
    report.begun = false;
    pthread_cond_broadcast(&report.wake);
    pthread_mutex_unlock(&registry);
    if (locked)
        pthread_mutex_unlock(&file);
}

/* CUDA is in use by now, so at_exit comes before its own end. */
void coll_report_begin(void)
{
    const char *folder = coll_library()->settings.report;
    static bool tried;
    if (folder == NULL)
        return;
    pthread_mutex_lock(&registry);
    if (!report.begun && !report.over && !tried) {
        report.begun = name_file(folder) && atexit(at_exit) == 0 && start_thread();
        if (!report.begun)
            coll_log("STRAIT_COLL_REPORT=%s: no reports: %s", folder, strerror(errno));
        tried = !report.begun;
    }
    pthread_mutex_unlock(&registry);
}

/* ---- Communicators that end -------------------------------------------------------------------------------------- */

static void keep_ended(coll_comm comm)
{
    struct coll_text text = {.grows = true};
    put_communicator(&text, comm, "", !report.over, true);
    if (text.size == 0 || text.size >= text.capacity) { /* not known, or no memory */
        free(text.dst);
        return;
    }
    char **place = &report.ended[report.ended_count++ % COLL_REPORT_ENDED_MAX];
    free(*place);
    *place = text.dst;
    report.due = true;
    pthread_cond_signal(&report.wake);
}

struct coll_comm_entry *coll_report_detach(coll_comm comm)
{
    pthread_mutex_lock(&registry);
    if (report.begun && comm != NULL)
        keep_ended(comm);
    struct coll_comm_entry *detached = coll_comm_detach(comm);
    pthread_mutex_unlock(&registry);
    return detached;
}

/* ---- Fork -------------------------------------------------------------------------------------------------------- */

void coll_report_lock(void)
{
    pthread_mutex_lock(&registry);
}

void coll_report_unlock(void)
{
    pthread_mutex_unlock(&registry);
}

/* The thread of the parent may have held `file`. What the parent's communicators did is the parent's to report. */
void coll_report_unlock_in_child(void)
{
    for (unsigned i = 0; i < COLL_REPORT_ENDED_MAX; i++) {
        free(report.ended[i]);
        report.ended[i] = NULL;
    }
    report.begun = report.over = report.due = report.failed = false;
    report.ended_count = 0;
    report.last = NULL;
    report.wake = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    file = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_unlock(&registry);
}
