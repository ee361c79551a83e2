/* Shared by the tests of jobs: pools in which every byte outside the pages is watched, jobs on a loop of their own, and
 * pieces of pages of all kinds. */
#ifndef STRAIT_TESTS_JOB_HARNESS_H
#define STRAIT_TESTS_JOB_HARNESS_H

#include <check.h>
#include <string.h>
#include <uv.h>

#include "daemon/memory/job.h"
#include "tests/support.h"

/* ---- Pools with canaries ----------------------------------------------------------------------------------------- */

/* A pool in its own memfd, which holds CANARY outside the pages. */
struct world {
    uint8_t *memory;
    size_t size;
    int fd;
    struct pool *pool;
};

enum { ROOM = 4 << 20, BIG_ROOM = 40 << 20 };

#define CHUNK(at, bytes_) (&(const struct job_chunk){.bytes = (at), .size = (bytes_)})

/* Of `size` bytes. */
void world_open(struct world *world, const struct wire_region *regions, uint32_t count, size_t size);
void world_close(struct world *world);

struct wire_region region_of(uint32_t group, int32_t layer, enum strait_role role, uint64_t offset);
struct wire_region with_rows(struct wire_region region, uint32_t rows, uint32_t row_bytes, uint64_t row_stride,
                             uint64_t page_stride, enum strait_element element);

enum { GROUPS = 3, PAGES = 24 };

/* Group 0: K and V of two layers, interleaved; group 1: rows with gaps, longer pages; group 2: odd bytes at odd places.
 * b has the same pages at other places. */
void open_worlds(struct world *a, struct world *b);

void fill_pages(struct world *world, const struct piece *piece, const uint32_t *ids, struct rng *rng,
                enum pattern pattern);
/* Requires the pages of b to equal those of a. */
void arrived(const struct world *a, const uint32_t *a_ids, struct world *b, const uint32_t *b_ids,
             const struct piece *piece);
/* Overwrites these pages with CANARY; whether the whole world is CANARY then. */
bool only_pages_touched(struct world *world, const struct piece *piece, const uint32_t *ids);

/* ---- Jobs -------------------------------------------------------------------------------------------------------- */

extern uv_loop_t loop;
extern struct jobs *jobs;

struct told {
    int count;
    uint64_t cookie;
    struct job_result result;
};

void on_told(void *owner, uint64_t cookie, const struct job_result *result);

void jobs_open(const struct strait_codebook *set, uint64_t small_bytes);
void jobs_close(void);

/* These run the loop until the job is over. */
struct job_result encode(struct world *world, const struct piece *piece, const uint32_t *ids, enum strait_mode mode,
                         void *dst, uint64_t capacity);
struct job_result decode(struct world *world, const struct piece *piece, const uint32_t *ids, const void *src,
                         uint64_t size);
struct job_result copy(struct world *src, const uint32_t *src_ids, struct world *dst, const uint32_t *dst_ids,
                       const struct piece *piece);

/* ---- What they work on ------------------------------------------------------------------------------------------- */

enum { IDS = 7, PIECES = 6 };

extern const struct strait_codebook *no_codebook;
extern struct strait_codebook *codebook; /* of this test */
extern const uint32_t ids_there[IDS], ids_here[IDS];
extern const struct piece pieces[PIECES];
extern uint8_t chunk[1 << 20];

uint64_t raw_bytes(const struct piece *piece);
/* Fills the pages of a piece, by its number, and encodes them to `chunk`. */
struct job_result make_chunk(struct world *a, int piece, enum strait_mode mode);

/* job_case makes a case with the fixture; job_main runs a suite of it. */
TCase *job_case(void);
int job_main(const char *name, TCase *tcase);

#endif
