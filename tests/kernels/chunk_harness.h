/* Shared by the tests of hostile chunks: one chunk, ways to change it, and the verdict on it. All variants must give
 * the same verdict and write nothing outside the listed pages. */
#ifndef STRAIT_TESTS_KERNELS_CHUNK_HARNESS_H
#define STRAIT_TESTS_KERNELS_CHUNK_HARNESS_H

#include <check.h>

#include "internal/bytes.h"
#include "tests/support.h"

enum { CHUNK_MAX = 64 * 1024 };

extern struct strait_codebook *codebook;
extern struct layout src, dst; /* what was encoded, what is decoded */
extern struct guarded room;    /* the hostile chunk ends where it does */
extern uint8_t chunk[CHUNK_MAX];
extern uint64_t chunk_size;

/* ---- Verdicts -------------------------------------------------------------------------------------------------- */

struct judgement {
    struct verdict verified, decoded;
};

/* The verdict, the same from every variant, on chunk[0..size). */
struct judgement judge(uint64_t size);
/* Judges after correcting the metadata sum. */
struct judgement judge_repaired(uint64_t size);

bool is_refused(const struct judgement *j);
/* Whether this change of a row's first byte makes a `tiered` block one of `parts`: it holds the same values when two
 * bytes of padding end it, which are its form and coder then. */
bool same_as_parts(uint8_t row, uint8_t changed);
/* The chunk as a whole was refused with this status. */
void assert_refused(struct judgement j, enum strait_status expected, const char *what);
/* The chunk is fine, except for this page. */
void assert_page_fails(struct judgement j, uint32_t page, enum strait_status expected, const char *what);

/* ---- A chunk with everything in it ----------------------------------------------------------------------------- */

/* Pages 0, 1: a const block and one with an odd end; 2: short, 3: short and raw. Lengths are stored, rows are absent.
 */
extern const struct shape shapes[2];
enum { PAGES = 4, LONG = 16384 + 601, SHORT = 402, METADATA = 48 + 16 * PAGES + 4 * PAGES + 4 * PAGES };

extern const enum strait_mode coded_modes[2];

void chunk_setup(void); /* encoded in coded_modes[0] */
void chunk_teardown(void);
/* In place of chunk_setup: one region of this shape, whose pages lie at multiples of `alignment`, without values yet.
 */
void setup_pages(uint32_t alignment, const struct shape *shape);
/* Encodes what `src` holds into the chunk: as asked; values of a type, without a codebook where the mode needs none; as
 * BF16. */
void encode_asked(const struct asked *asked);
void encode_values(enum strait_element element, enum strait_mode mode);
void encode_chunk(enum strait_mode mode);

/* ---- Changes to it --------------------------------------------------------------------------------------------- */

/* `bytes` bytes at `offset` become `value`. */
struct change {
    const char *what;
    uint32_t offset, bytes;
    uint32_t value;
    enum strait_status expected;
};
void store_bytes(uint64_t offset, uint32_t bytes, uint32_t value);

/* Where the block begins in a chunk of one page of one block: after the header and one entry. */
enum { BLOCK = 64 };
/* Grows the block by this many units of zeros, or shrinks it. */
void block_resize(int by);
uint8_t exponent_of_rank(uint32_t rank); /* in table 0 */

#endif
