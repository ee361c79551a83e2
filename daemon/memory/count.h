/* Counting of the exponents in pages that a pool's owner may want back at any time. */
#ifndef STRAIT_DAEMON_MEMORY_COUNT_H
#define STRAIT_DAEMON_MEMORY_COUNT_H

#include <stdbool.h>
#include <stdint.h>
#include <strait/codec.h>

struct jobs;

#define COUNT_PARTS_MAX   1024u
#define COUNT_CLASSES_MAX 64u
#define COUNT_BYTES       (512u * 1024) /* in an order at most, but for a larger page that is alone */

/* The values of one class in an order. */
struct class_count {
    struct strait_class class;
    uint64_t bytes; /* counted */
    uint64_t counts[256];
};

/* Order to count some pages on a worker, one after the other. It is filled on the loop's thread, and counts from
 * count_start until `done`. count_stop ends it early: what was counted up to then stays. */
struct count;

typedef void count_done(void *owner, struct count *count);

/* NULL: no memory. */
struct count *count_create(void);
/* Frees an order that was not started, or is done. NULL is allowed. */
void count_destroy(struct count *count);
/* Makes such an order empty, to be filled anew. */
void count_clear(struct count *count);
/* Whether values of this type have exponents that are counted. */
bool count_takes(enum strait_element element);
/* Adds a page of host memory with such values. False, and nothing is added: the order is full. */
bool count_add(struct count *count, struct strait_class class, enum strait_element element,
               const struct strait_region *region, uint32_t id);
uint64_t count_size(const struct count *count); /* bytes of the pages added */
/* Hands the order to a worker; `done` is called on the loop's thread, never from inside this call. False: no memory;
 * nothing was started. */
bool count_start(struct count *count, struct jobs *jobs, count_done *done, void *owner);
/* No page of the order is touched any more once this has returned. It waits while a worker copies a part of one: a few
 * microseconds. May be called at any time, and more than once; the order is `done` all the same. */
void count_stop(struct count *count);
/* What was counted: classes [0, *class_count). Call it when the order is done. */
const struct class_count *count_results(const struct count *count, uint32_t *class_count);
uint64_t count_nanoseconds(const struct count *count); /* that counting took, once done */

#endif
