/* Logging: logfmt lines, one per event, written by a thread of its own so that a stalled reader of stderr never stalls
 * the daemon. */
#ifndef STRAIT_DAEMON_BASE_LOG_H
#define STRAIT_DAEMON_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include <strait/status.h>

enum log_level {
    LOG_ERROR = 0,
    LOG_WARN = 1,
    LOG_INFO = 2,
    LOG_DEBUG = 3,
};

struct log;

/* Writes to `fd` (borrowed) from its own thread through a bounded queue; lines that do not fit are counted and reported
 * later. ERR_NO_MEMORY. */
enum strait_status log_create(int fd, enum log_level level, struct log **log);
/* Writes what is queued (for at most a second) and ends the thread. NULL is allowed. */
void log_destroy(struct log *log);

enum log_level log_level_of(const char *name); /* "error", "warn", "info", "debug"; LOG_INFO for any other */
void log_set_level(struct log *log, enum log_level level); /* any thread */

bool log_enabled(const struct log *log, enum log_level level); /* false for NULL */

/* One line: `ts=<UTC, ms> level=info ` and then the text, which is logfmt already, like
 * log_write(log, LOG_INFO, "msg=\"peer connected\" peer=%s", name). Foreign bytes go through log_quote first. Any
 * thread; NULL log: nothing. */
void log_write(struct log *log, enum log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Who can cause a line again and again, as often as they like. */
enum log_class {
    LOG_OF_CLIENTS,
    LOG_OF_CLIENT_ERRORS,
    LOG_OF_PEERS,
    LOG_OF_STRANGERS, /* at the ports for peers */
    LOG_OF_ACCEPT,
    LOG_OF_SPANS, /* of requests that belong to a trace */
    LOG_CLASSES,
};

/* The same for lines of such a class: at most ten in a second; of peers a hundred at once, and then ten a second too;
 * of spans two hundred at once, and then a hundred a second. The next one that is written ends with `left_out=`, the
 * number of those that were not. */
void log_limited(struct log *log, enum log_class class, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Writes bytes as a logfmt value, quoted and escaped where needed, cut to fit; returns dst. */
const char *log_quote(char *dst, size_t capacity, const void *bytes, size_t size);

#endif
