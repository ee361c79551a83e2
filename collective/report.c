#include "collective/report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "collective/load.h"
#include "collective/track.h"

/* ---- Text of any length --------------------------------------------------------------------------------------------
 */

struct text {
    char *dst;
    size_t capacity, size; /* size: what the whole text needs, without its terminator */
};

__attribute__((format(printf, 2, 3))) static void put(struct text *text, const char *format, ...)
{
    size_t left = text->size < text->capacity ? text->capacity - text->size : 0;
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(left > 0 ? text->dst + text->size : NULL, left, format, arguments);
    va_end(arguments);
    text->size += size > 0 ? (size_t)size : 0;
}

/* ---- Parts ---------------------------------------------------------------------------------------------------------
 */

static void put_library(struct text *text)
{
    const struct coll_library *library = coll_library_if_loaded();
    put(text, "strait-coll " STRAIT_VERSION ", process %ld, ", (long)getpid());
    if (library == NULL)
        put(text, "NCCL not called yet\n");
    else if (!library->found)
        put(text, "no NCCL\n");
    else
        put(text, "NCCL %d from %s%s\n", library->version, library->path,
            library->settings.off ? ", off: nothing is counted"
            : library->forward    ? ", which counts: it is another copy of this library"
                                  : "");
}

static void put_standing(struct text *text, coll_comm comm, const struct coll_standing *standing)
{
    put(text, "communicator %p", (void *)comm);
    if (standing->ranks >= 0)
        put(text, ", rank %d of %d", standing->rank, standing->ranks);
    if (standing->memory > 0)
        put(text, ", %d registered", standing->memory);
    put(text, "%s%s\n", standing->pinned ? ", pinned to raw" : "", standing->ending ? ", ending" : "");
}

static void put_count(struct text *text, unsigned operation, unsigned type, const struct coll_count *count)
{
    put(text,
        "%-14s %-7s %10" PRIu64 " %16" PRIu64 " %10" PRIu64 " %10" PRIu64 " %7" PRIu64 " %10" PRIu64 " %16" PRIu64,
        coll_operation_name(operation), coll_type_name(type), count->calls, count->bytes, count->grouped,
        count->captured, count->failed, count->compressed, count->wire);
    put(text, "  %s%s\n", count->compressed > 0 ? "the last: " : "raw: ", count->reason);
}

static void put_counts(struct text *text, const struct coll_counts *counts)
{
    put(text, "%-14s %-7s %10s %16s %10s %10s %7s %10s %16s  way\n", "operation", "type", "calls", "bytes", "in groups",
        "captured", "failed", "compressed", "their bytes");
    for (unsigned operation = 0; operation < COLL_OPERATIONS; operation++)
        for (unsigned type = 0; type < COLL_TYPES; type++)
            if (counts->of[operation][type].reason != NULL)
                put_count(text, operation, type, &counts->of[operation][type]);
}

/* ---- Reports -------------------------------------------------------------------------------------------------------
 */

size_t coll_report(coll_comm comm, char *dst, size_t dst_capacity)
{
    struct text text = {.dst = dst, .capacity = dst_capacity};
    struct coll_standing standing;
    struct coll_counts counts;
    if (!coll_track_counts(comm, &standing, &counts))
        return 0;
    put_library(&text);
    if (comm != NULL)
        put_standing(&text, comm, &standing);
    put_counts(&text, &counts);
    return text.size + 1;
}

/* Long enough for all possible rows. */
enum { REPORT_MAX = (COLL_OPERATIONS * COLL_TYPES + 3) * 200 + COLL_PATH_MAX };

static void print(coll_comm comm)
{
    const struct coll_library *library = coll_library_if_loaded();
    if (library == NULL || !library->settings.print)
        return;
    char *text = malloc(REPORT_MAX);
    if (text != NULL && coll_report(comm, text, REPORT_MAX) > 0)
        fputs(text, stderr); /* one write: reports of several processes do not mix */
    free(text);
}

void coll_report_ended(coll_comm comm)
{
    if (comm != NULL)
        print(comm);
}

void coll_report_process(void)
{
    print(NULL);
}
