/* Writes to one file, many at once: past the page cache by io_uring where it is allowed, else by threads. */
#ifndef STRAIT_CHECKPOINT_WRITER_H
#define STRAIT_CHECKPOINT_WRITER_H

#include <stddef.h>
#include <stdint.h>

/* The caller's until writer_put, and again from `written` on. */
struct write {
    const void *data;
    size_t bytes;
    uint64_t offset;
    struct write *next; /* the writer's */
};

struct writer;

/* written: called by the writer's threads, once for each write, with 0 or an errno. After one that failed all others
 * fail with the same errno, those under way excepted. Returns 0 or an errno. */
int writer_start(struct writer **writer, int fd, void (*written)(void *context, struct write *write, int error),
                 void *context);
void writer_put(struct writer *writer, struct write *write);
/* Lets writes that have not begun fail with the errno, unless one has failed before. */
void writer_fail(struct writer *writer, int error);
/* Waits until all writes are done, and frees the writer. Returns the seconds in which one or more were under way. */
double writer_stop(struct writer *writer);

#endif
