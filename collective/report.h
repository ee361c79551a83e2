/* Reports as text: what this library did, for people. */
#ifndef STRAIT_COLLECTIVE_REPORT_H
#define STRAIT_COLLECTIVE_REPORT_H

#include <stddef.h>

#include "collective/comm.h"

/* Text that is written piece by piece into memory of a fixed size, or that grows. */
struct coll_text {
    char *dst;
    size_t capacity, size; /* size: what the whole text needs, without its terminator */
    bool grows;            /* dst is reallocated; the owner frees it */
};
__attribute__((format(printf, 2, 3))) void coll_text_add(struct coll_text *text, const char *format, ...);

/* Said once on stderr, and in reports. */
extern const char coll_encrypted_text[];

/* strait_coll_report of this library, even if another copy of it comes before. */
size_t coll_report(coll_comm comm, char *dst, size_t dst_capacity);

/* Prints it on stderr, if STRAIT_COLL_PRINT is set: of a communicator that ends, or of the process (NULL). */
void coll_report_print(coll_comm comm);

#endif
