/* Shared by the tests of pools: descriptors and regions that a client may register, and those that are refused. */
#ifndef STRAIT_TESTS_POOL_HARNESS_H
#define STRAIT_TESTS_POOL_HARNESS_H

#include <check.h>
#include <fcntl.h> /* seals */
#include <string.h>
#include <unistd.h>

#include "daemon/memory/pool.h"
#include "tests/support.h"

enum { PAGE = 4096, PAGES = 16, BYTES = 4 * PAGE * PAGES, WHY = 256 };

extern char why[WHY]; /* of the last refusal */
extern int fds[4];    /* memfds of BYTES bytes, sealed */

/* The fixture. */
void open_fds(void);
void close_fds(void);

int make_memfd(size_t size, int seals);

/* One of several layers, each in a quarter of a memfd. */
struct wire_region layer_region(int32_t layer);

enum strait_status map_all(const struct wire_region *regions, uint32_t count, bool embedded, uint64_t bytes_max,
                           const struct strait_codebook *codebook, struct pool **pool);
struct pool *map_good(const struct wire_region *regions, uint32_t count, bool embedded);
/* Requires the refusal, and that nothing stays mapped. */
void refused(const struct wire_region *regions, uint32_t count, bool embedded, enum strait_status with);

/* How often memfds are mapped into this process. */
int mappings(void);

int pool_main(Suite *suite);

#endif
