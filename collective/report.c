#include "collective/report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- Text of any length ------------------------------------------------------------------------------------------ */

/* Without memory the text ends where it is, and its size tells that it should be longer. */
static void grow(struct coll_text *text, size_t needed)
{
    const size_t doubled = 2 * text->capacity, capacity = needed > doubled ? needed : doubled;
    char *grown = realloc(text->dst, capacity);
    text->dst = grown != NULL ? grown : text->dst;
    text->capacity = grown != NULL ? capacity : text->capacity;
}

void coll_text_add(struct coll_text *text, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    size_t left = text->size < text->capacity ? text->capacity - text->size : 0;
    int size = vsnprintf(left > 0 ? text->dst + text->size : NULL, left, format, arguments);
    if (size > 0 && text->grows && (size_t)size >= left) {
        grow(text, text->size + (size_t)size + 1);
        left = text->size < text->capacity ? text->capacity - text->size : 0;
        (void)vsnprintf(left > 0 ? text->dst + text->size : NULL, left, format, again);
    }
    va_end(again);
    va_end(arguments);
    text->size += size > 0 ? (size_t)size : 0;
}

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

static void put_counts(struct coll_text *text, const struct coll_counts *counts)
{
    coll_text_add(text, "%-14s %-7s %10s %16s %10s %10s %7s %10s %16s  way\n", "operation", "type", "calls", "bytes",
                  "in groups", "captured", "failed", "compressed", "their bytes");
    for (unsigned operation = 0; operation < COLL_OPERATIONS; operation++)
        for (unsigned type = 0; type < COLL_TYPES; type++) {
            const struct coll_count *count = &counts->of[operation][type];
            if (count->reason == NULL)
                continue;
            coll_text_add(text,
                          "%-14s %-7s %10" PRIu64 " %16" PRIu64 " %10" PRIu64 " %10" PRIu64 " %7" PRIu64 " %10" PRIu64
                          " %16" PRIu64,
                          coll_operation_name(operation), coll_type_name(type), count->calls, count->bytes,
                          count->grouped, count->captured, count->failed, count->compressed, count->wire);
            coll_text_add(text, "  %s%s\n", count->compressed > 0 ? "the last: " : "raw: ", count->reason);
        }
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

const char coll_encrypted_text[] =
    "ncclSetEncryption: communicators that are made from now on stay raw between hosts, as connections of this library "
    "are not encrypted";

size_t coll_report(coll_comm comm, char *dst, size_t dst_capacity)
{
    struct coll_text text = {.dst = dst, .capacity = dst_capacity};
    struct coll_comm_info info;
    struct coll_counts counts;
    if (!coll_comm_counts(comm, &info, &counts))
        return 0;
    const struct coll_library *library = coll_library_if_loaded();
    coll_text_add(&text, "strait-coll " STRAIT_VERSION ", process %ld, ", (long)getpid());
    if (library == NULL)
        coll_text_add(&text, "NCCL not called yet\n");
    else if (!library->found)
        coll_text_add(&text, "no NCCL\n");
    else
        coll_text_add(&text, "NCCL %d from %s%s\n", library->version, library->path,
                      library->forward ? ", which counts: it is another copy of this library" : "");
    if (coll_is_encrypted())
        coll_text_add(&text, "%s\n", coll_encrypted_text);
    if (comm != NULL) {
        coll_text_add(&text, "communicator %p", (void *)comm);
        if (info.ranks >= 0)
            coll_text_add(&text, ", rank %d of %d", info.rank, info.ranks);
        if (info.memory > 0)
            coll_text_add(&text, ", %d registered", info.memory);
        coll_text_add(&text, "%s%s\n", info.pinned ? ", pinned to raw" : "", info.ending ? ", ending" : "");
    }
    put_counts(&text, &counts);
    return text.size + 1;
}

/* Long enough for all possible rows. */
enum { REPORT_MAX = (COLL_OPERATIONS * COLL_TYPES + 4) * 200 + COLL_PATH_MAX };

void coll_report_print(coll_comm comm)
{
    const struct coll_library *library = coll_library_if_loaded();
    if (library == NULL || !library->settings.print)
        return;
    char *text = malloc(REPORT_MAX);
    if (text != NULL && coll_report(comm, text, REPORT_MAX) > 0)
        fputs(text, stderr); /* one write: reports of several processes do not mix */
    free(text);
}
