#include "daemon/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal/thread.h"

#define LINE_BYTES  4096u /* with its newline: a pipe writes this much atomically, unmixed with others' lines */
#define QUEUE_BYTES (256u * 1024)
#define CUT_MARK    " cut=true"
#define LAST_MS     1000u /* time to write queued lines at the end */
#define QUIT_MS     200u

/* How many lines of a class may come at once, and how many more each second allows. All peers of a cluster may come and
 * go together. The lines at once fit into the queue. */
static const struct {
    uint32_t at_once, per_second;
} lines_max[LOG_CLASSES] = {
    [LOG_OF_CLIENTS] = {10, 10},   [LOG_OF_CLIENT_ERRORS] = {10, 10}, [LOG_OF_PEERS] = {100, 10},
    [LOG_OF_STRANGERS] = {10, 10}, [LOG_OF_ACCEPT] = {10, 10},        [LOG_OF_SPANS] = {200, 100},
};

struct limit {
    int64_t second;    /* the latest in which a line was to be written */
    uint32_t lines;    /* written, less those that the time since then has made up for */
    uint64_t left_out; /* since the last one written */
};

struct log {
    int fd;
    enum log_level level;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t filled;   /* there are lines to write, or the log ends */
    pthread_cond_t finished; /* the thread will not write any more */
    size_t head, used;       /* in the queue: whole lines */
    uint64_t lost;           /* lines lost since the last report */
    struct limit limits[LOG_CLASSES];
    bool failing; /* the last write failed: a report of lost lines would be lost too */
    bool stop, done;
    bool abandoned; /* nobody waits for the thread: it frees the log */
    bool is_socket; /* as a service's stderr may be */
    int quit;       /* eventfd: stop waiting for the reader */
    char queue[QUEUE_BYTES];
};

static const char *const level_names[] = {"error", "warn", "info", "debug"};

/* ---- One line ---------------------------------------------------------------------------------------------------- */

static size_t print_head(char *line, enum log_level level)
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t size = strftime(line, 64, "ts=%Y-%m-%dT%H:%M:%S", &utc);
    return size + (size_t)snprintf(line + size, 64, ".%03ldZ level=%s ", now.tv_nsec / 1000000, level_names[level]);
}

/* Ends a line that was too long: no half escape, quotes closed, and a mark that it was cut. */
static size_t end_cut_line(char *line, size_t size)
{
    bool quoted = false;
    size_t end = 0;
    size -= sizeof(CUT_MARK) + 2; /* the mark, a quote, a newline */
    for (size_t i = 0, step; i < size; i += step) {
        step = line[i] != '\\' ? 1 : line[i + 1] == 'x' ? 4 : 2;
        if (i + step > size)
            break;
        quoted ^= line[i] == '"';
        end = i + step;
    }
    if (quoted)
        line[end++] = '"';
    memcpy(line + end, CUT_MARK, sizeof(CUT_MARK) - 1);
    return end + sizeof(CUT_MARK) - 1;
}

static size_t print_line(char line[LINE_BYTES], enum log_level level, uint64_t left_out, const char *format,
                         va_list args)
{
    char tail[40] = "";
    int tail_size = left_out > 0 ? snprintf(tail, sizeof(tail), " left_out=%" PRIu64, left_out) : 0;
    size_t head = print_head(line, level), room = LINE_BYTES - (size_t)tail_size;
    int text = vsnprintf(line + head, room - head, format, args);
    size_t size = head + (text > 0 ? (size_t)text : 0);
    if (size >= room)
        size = end_cut_line(line, room - 1);
    memcpy(line + size, tail, (size_t)tail_size);
    size += (size_t)tail_size;
    /* One event is one line, whatever the text holds. */
    for (size_t i = 0; i < size; i++)
        if ((uint8_t)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = ' ';
    line[size] = '\n';
    return size + 1;
}

/* ---- The queue; the mutex is held -------------------------------------------------------------------------------- */

static bool push(struct log *log, const char *line, size_t size)
{
    size_t tail = (log->head + log->used) % QUEUE_BYTES;
    size_t first = size < QUEUE_BYTES - tail ? size : QUEUE_BYTES - tail;
    if (size > QUEUE_BYTES - log->used)
        return false;
    memcpy(log->queue + tail, line, first);
    memcpy(log->queue, line + first, size - first);
    log->used += size;
    return true;
}

__attribute__((format(printf, 2, 3))) static size_t print_warning(char line[LINE_BYTES], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t size = print_line(line, LOG_WARN, 0, format, args);
    va_end(args);
    return size;
}

/* Reports lost lines, at the place in the log where they are missing. */
static void tell_lost(struct log *log)
{
    char line[LINE_BYTES];
    if (log->lost == 0 || log->failing)
        return;
    size_t size = print_warning(line, "msg=\"log lines lost\" lines=%" PRIu64, log->lost);
    if (push(log, line, size))
        log->lost = 0;
}

static char queue_at(const struct log *log, size_t offset)
{
    return log->queue[(log->head + offset) % QUEUE_BYTES];
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

/* Waits until the reader takes more. The write that follows does not block: a pipe with room has room for a piece, and
 * a socket is written without waiting. False: the log ends first. */
static bool wait_writable(const struct log *log)
{
    struct pollfd polled[2] = {{.fd = log->fd, .events = POLLOUT}, {.fd = log->quit, .events = POLLIN}};
    while (poll(polled, 2, -1) < 0 && errno == EINTR)
        ;
    return polled[0].revents != 0 || polled[1].revents == 0;
}

/* Returns how much was written. */
static size_t write_piece(const struct log *log, const char *piece, size_t size)
{
    size_t written = 0;
    while (written < size && wait_writable(log)) {
        ssize_t part = log->is_socket ? send(log->fd, piece + written, size - written, MSG_DONTWAIT | MSG_NOSIGNAL)
                                      : write(log->fd, piece + written, size - written);
        if (part > 0)
            written += (size_t)part;
        else if (part == 0 || (errno != EINTR && errno != EAGAIN))
            break;
    }
    return written;
}

/* Waits for the next piece; 0: the end. The mutex is held. */
static size_t next_piece(struct log *log, char piece[LINE_BYTES])
{
    for (;;) {
        if (log->used == 0)
            tell_lost(log);
        if (log->used > 0) {
            /* Takes as many whole lines as fit into one piece off the queue. */
            size_t size = log->used < LINE_BYTES ? log->used : LINE_BYTES;
            while (queue_at(log, size - 1) != '\n')
                size--;
            for (size_t i = 0; i < size; i++)
                piece[i] = queue_at(log, i);
            log->head = (log->head + size) % QUEUE_BYTES;
            log->used -= size;
            return size;
        }
        if (log->stop)
            return 0;
        pthread_cond_wait(&log->filled, &log->mutex);
    }
}

static void log_free(struct log *log)
{
    pthread_cond_destroy(&log->finished);
    pthread_cond_destroy(&log->filled);
    pthread_mutex_destroy(&log->mutex);
    close(log->quit);
    free(log);
}

static void *log_thread(void *arg)
{
    struct log *log = arg;
    char piece[LINE_BYTES];
    size_t size;
    pthread_mutex_lock(&log->mutex);
    while ((size = next_piece(log, piece)) > 0) {
        pthread_mutex_unlock(&log->mutex);
        size_t written = write_piece(log, piece, size);
        pthread_mutex_lock(&log->mutex);
        log->failing = written < size;
        for (size_t i = written; i < size; i++)
            log->lost += piece[i] == '\n';
    }
    log->done = true;
    bool abandoned = log->abandoned;
    pthread_cond_signal(&log->finished);
    pthread_mutex_unlock(&log->mutex);
    if (abandoned)
        log_free(log);
    return NULL;
}

/* ---- Interface --------------------------------------------------------------------------------------------------- */

static bool is_socket(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode);
}

enum strait_status log_create(int fd, enum log_level level, struct log **log)
{
    struct log *fresh = calloc(1, sizeof(*fresh));
    pthread_condattr_t attributes;
    if (fresh == NULL)
        return STRAIT_ERR_NO_MEMORY;
    fresh->quit = eventfd(0, EFD_CLOEXEC);
    if (fresh->quit < 0) {
        free(fresh);
        return STRAIT_ERR_NO_MEMORY;
    }
    fresh->fd = fd;
    fresh->is_socket = is_socket(fd);
    fresh->level = level;
    pthread_mutex_init(&fresh->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&fresh->filled, &attributes);
    pthread_cond_init(&fresh->finished, &attributes);
    pthread_condattr_destroy(&attributes);
    /* With SIGPIPE blocked, a reader that went away shows as an error of write. */
    if (thread_start(&fresh->thread, log_thread, fresh) != 0) {
        log_free(fresh);
        return STRAIT_ERR_NO_MEMORY;
    }
    *log = fresh;
    return STRAIT_OK;
}

static bool wait_finished(struct log *log, unsigned milliseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += milliseconds % 1000 * 1000000;
    until.tv_sec += milliseconds / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!log->done)
        if (pthread_cond_timedwait(&log->finished, &log->mutex, &until) == ETIMEDOUT)
            return log->done;
    return true;
}

void log_destroy(struct log *log)
{
    if (log == NULL)
        return;
    pthread_t thread = log->thread;
    pthread_mutex_lock(&log->mutex);
    log->stop = true;
    pthread_cond_signal(&log->filled);
    if (!wait_finished(log, LAST_MS)) {
        log->used = 0;
        log->lost = 0;
        eventfd_write(log->quit, 1);
    }
    bool finished = wait_finished(log, QUIT_MS);
    log->abandoned = !finished; /* stuck in a write after all: a file system that hangs */
    pthread_mutex_unlock(&log->mutex);
    if (!finished) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    log_free(log);
}

enum log_level log_level_of(const char *name)
{
    for (int i = LOG_ERROR; i <= LOG_DEBUG; i++)
        if (strcmp(name, level_names[i]) == 0)
            return (enum log_level)i;
    return LOG_INFO;
}

void log_set_level(struct log *log, enum log_level level)
{
    if (log != NULL)
        __atomic_store_n(&log->level, level, __ATOMIC_RELAXED);
}

bool log_enabled(const struct log *log, enum log_level level)
{
    return log != NULL && level <= __atomic_load_n(&log->level, __ATOMIC_RELAXED);
}

static void write_line(struct log *log, enum log_level level, uint64_t left_out, const char *format, va_list args)
{
    char line[LINE_BYTES];
    size_t size = print_line(line, level, left_out, format, args);
    pthread_mutex_lock(&log->mutex);
    tell_lost(log);
    if ((log->lost > 0 && !log->failing) || !push(log, line, size))
        log->lost++;
    pthread_cond_signal(&log->filled);
    pthread_mutex_unlock(&log->mutex);
}

void log_write(struct log *log, enum log_level level, const char *format, ...)
{
    va_list args;
    if (!log_enabled(log, level))
        return;
    va_start(args, format);
    write_line(log, level, 0, format, args);
    va_end(args);
}

/* Whether another line of the class may be written now; *left_out: how many were not, since the last one. */
static bool take_turn(struct log *log, enum log_class class, uint64_t *left_out)
{
    struct limit *limit = &log->limits[class];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&log->mutex);
    const uint64_t made_up = (uint64_t)(now.tv_sec - limit->second) * lines_max[class].per_second;
    limit->lines -= made_up < limit->lines ? (uint32_t)made_up : limit->lines;
    limit->second = now.tv_sec;
    bool granted = limit->lines < lines_max[class].at_once;
    *left_out = limit->left_out;
    limit->lines += granted;
    limit->left_out = granted ? 0 : limit->left_out + 1;
    pthread_mutex_unlock(&log->mutex);
    return granted;
}

void log_limited(struct log *log, enum log_class class, enum log_level level, const char *format, ...)
{
    uint64_t left_out;
    va_list args;
    if (!log_enabled(log, level) || !take_turn(log, class, &left_out))
        return;
    va_start(args, format);
    write_line(log, level, left_out, format, args);
    va_end(args);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static bool needs_quotes(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i] <= ' ' || bytes[i] >= 0x7f || bytes[i] == '"' || bytes[i] == '=' || bytes[i] == '\\')
            return true;
    return size == 0;
}

/* Escapes one byte inside quotes into at most four characters; returns how many. */
static size_t escape(char text[5], uint8_t byte)
{
    if (byte == '"' || byte == '\\')
        return (size_t)snprintf(text, 5, "\\%c", byte);
    if (byte == '\n' || byte == '\r' || byte == '\t')
        return (size_t)snprintf(text, 5, "\\%c", byte == '\n' ? 'n' : byte == '\r' ? 'r' : 't');
    return (size_t)snprintf(text, 5, byte < 0x20 || byte >= 0x7f ? "\\x%02x" : "%c", byte);
}

static void quote(char *dst, size_t capacity, const uint8_t *bytes, size_t size)
{
    size_t used = 0;
    char text[5];
    dst[used++] = '"';
    for (size_t i = 0; i < size; i++) {
        size_t length = escape(text, bytes[i]);
        if (used + length + 2 > capacity)
            break;
        memcpy(dst + used, text, length);
        used += length;
    }
    dst[used++] = '"';
    dst[used] = 0;
}

const char *log_quote(char *dst, size_t capacity, const void *bytes, size_t size)
{
    if (capacity == 0)
        return "";
    dst[0] = 0;
    if (!needs_quotes(bytes, size)) {
        size_t length = size < capacity ? size : capacity - 1;
        memcpy(dst, bytes, length);
        dst[length] = 0;
    } else if (capacity >= 3) {
        quote(dst, capacity, bytes, size);
    }
    return dst;
}
