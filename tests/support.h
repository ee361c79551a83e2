/* Shared by the test programs and the fuzzers. Does not need Check: a require() that fails prints and aborts. */
#ifndef STRAIT_TESTS_SUPPORT_H
#define STRAIT_TESTS_SUPPORT_H

#include <arpa/inet.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <strait/codec.h>
#include <sys/socket.h>
#include <unistd.h>

/* How long the machine stalled all processes. The service's time limits hold on a machine that runs every process that
 * is ready; test machines are shared and sometimes stand still for a second. A test of an exact limit subtracts this
 * time from the time that passed. */

/* Starts a process, which ends with this one, that repeatedly sleeps a millisecond and adds up the excess. Call it
 * before threads and forks: processes that are forked later read the same count. */
bool machine_watch(void);

/* Total stall time since machine_watch; 0 if it was not called. On a machine that keeps up it does not grow. */
uint64_t machine_late_ns(void);
double machine_late_s(void);
double clock_s(void); /* seconds of a clock that never steps back */

static inline uint64_t machine_late_ms(void)
{
    return machine_late_ns() / 1000000;
}

/* A TCP port of loopback for daemons that a test starts one after another. It must stay reserved before the first and
 * in between, or the kernel could give it to a process that asks for any port, as UCX does, or that connects. */

/* Binds the port without listening: the kernel gives it to no one else, but a process that names it and sets
 * SO_REUSEADDR, as daemons do, can listen on it. Reserved until the descriptor is closed. 0: there is none. */
static inline unsigned port_reserve_of(int family, int *fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } address = {.any.sa_family = (sa_family_t)family};
    socklen_t size = family == AF_INET6 ? sizeof(address.six) : sizeof(address.four);
    const int on = 1;
    if (family == AF_INET6)
        address.six.sin6_addr = in6addr_loopback;
    else
        address.four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd >= 0 && bind(*fd, &address.any, size) == 0 &&
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 && /* only now: the port is ours alone */
        getsockname(*fd, &address.any, &size) == 0)
        return ntohs(family == AF_INET6 ? address.six.sin6_port : address.four.sin_port);
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return 0;
}

/* Of IPv4. */
static inline unsigned port_reserve(int *fd)
{
    return port_reserve_of(AF_INET, fd);
}

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* Unlike assert(), it stays in release builds. */
#define require(condition)                                                                          \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__, #condition); \
            abort();                                                                                \
        }                                                                                           \
    } while (0)

/* Sanitizers are slow: with them, loops over every bit take every STRIDEth one. Loops over several things at once are
 * of 2, 3, 6 or so of each, so STRIDE is prime to these. */
#if defined(__SANITIZE_THREAD__)
enum { STRIDE = 7 };
#elif defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 5 };
#else
enum { STRIDE = 1 };
#endif

/* For what makes or compares values byte by byte: ThreadSanitizer would look at each access. Others read and write the
 * same bytes, watched. */
#define UNWATCHED __attribute__((no_sanitize("thread")))

/* Tests with time limits allow more time under sanitizers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* ---- Random numbers -------------------------------------------------------------------------------------------- */

/* Generator whose numbers are equal on every machine; STRAIT_TEST_SEED chooses others. */
struct rng {
    uint64_t state;
};

uint64_t test_seed(void);
struct rng rng_init(uint64_t stream);
uint64_t rng_next(struct rng *rng);
uint32_t rng_below(struct rng *rng, uint32_t limit);
void rng_fill(struct rng *rng, void *dst, size_t size);

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

#define CANARY 0xA5

/* `size` bytes, all CANARY, that end at an unreadable page. Reading far before them faults too. */
struct guarded {
    uint8_t *bytes;
    size_t size;
    uint8_t *map;
    size_t map_size;
};

void guarded_init(struct guarded *guarded, size_t size);
/* Fails if something was written before the bytes. */
void guarded_fini(struct guarded *guarded);

bool is_filled(const uint8_t *bytes, size_t size, uint8_t with);

/* ---- Descriptors ----------------------------------------------------------------------------------------------- */

/* A memfd with these seals, mapped to *base unless that is NULL. */
int sealed_memory(size_t size, int seals, void **base);
int open_descriptors(void);
/* From now on this process gets no descriptor, until they are allowed again. */
void descriptors_forbid(void);
void descriptors_allow(void);
/* Time that all threads of this process have run. */
double process_cpu_s(void);

/* A unix socket that listens at the path, in place of what was there, and a connection to it, which waits while there
 * are too many. Neither blocks later. */
int unix_listen(const char *path);
int unix_dial(const char *path);
/* Sends the bytes with `count` copies of the descriptor `passed`. */
void send_with_rights(int fd, const void *bytes, size_t size, int passed, unsigned count);

/* ---- Variants -------------------------------------------------------------------------------------------------- */

#ifdef __aarch64__
enum { VARIANTS = 2 };
#else
enum { VARIANTS = 3 };
#endif
extern const char *const variant_names[VARIANTS]; /* "scalar" first: the others are compared with it */

/* NULL when this build or processor lacks it. */
const struct strait_codec *variant(int index);
/* The first so many are there. */
int variant_count(void);

/* Prints the seed, and which variants are not tested here. */
void print_conditions(void);

/* ---- Codebooks and values -------------------------------------------------------------------------------------- */

/* Tables: 0 like a bell curve, 1 falling from 255, 2 in random order, 3 rising from 0, 4 in two clusters. */
enum { TEST_TABLES = 5 };
void test_ranking(uint8_t ranking[256], uint32_t table);
struct strait_codebook *test_codebook(void);

/* Distributions of a page's exponents, by rank. */
enum pattern {
    PATTERN_FALLING,  /* each rank half as frequent as the one before; rarely any rank */
    PATTERN_NOISE,    /* every bit random */
    PATTERN_LOW,      /* 0..2: one tier */
    PATTERN_MIDDLE,   /* 0..5: two tiers */
    PATTERN_TOP16,    /* 0..15 */
    PATTERN_RARE,     /* 0..15, and a few percent of any rank */
    PATTERN_EDGES,    /* first and last ranks of all tiers */
    PATTERN_HIGH,     /* 21..255 */
    PATTERN_SHARE,    /* a share of 16..255, from none to all, that differs from page to page */
    PATTERN_LIMIT,    /* blocks just below or just above the raw size, as `top16` or as `tiered` */
    PATTERN_RUNS,     /* runs of one exponent, runs of zero */
    PATTERN_WIDENED,  /* falling, every other value zero: FP32 made of BF16 */
    PATTERN_FP16,     /* like values of FP16: exponents near 12, rarely any other */
    PATTERN_NARROWED, /* the same without their three lowest bits, but for up to a tenth subnormal ones */
    PATTERN_FP8,      /* like pairs of FP8 values of either type: exponents near 11 or 22, rarely any other */
    PATTERN_SPREAD,   /* twelve exponents, none more frequent than another, rarely one far below */
    PATTERN_NEARLY,   /* one value, with a single other one somewhere */
    PATTERN_CONST,    /* one value */
    PATTERNS
};

uint16_t join_value(uint8_t sign_mantissa, uint8_t exponent);
void put_value(uint8_t *bytes, size_t index, uint16_t value);
uint16_t get_value(const uint8_t *bytes, size_t index);
/* Fills `size` bytes, which may be odd. */
void fill_pattern(struct rng *rng, enum pattern pattern, const uint8_t ranking[256], uint8_t *bytes, size_t size);

/* ---- Page lists ------------------------------------------------------------------------------------------------ */

/* A region: its pages, the gaps between rows and pages in bytes, and the offset of its base from an aligned address.
 * `columns` of rows, if there are several, lie one after another, each with its piece of every row. */
struct shape {
    uint32_t page_count, rows, row_bytes, row_gap, page_gap, skew, table, columns;
};

enum { REGIONS_MAX = 8 };

/* Bytes that belong to no listed page. */
struct gap {
    size_t offset, size;
};

/* A page list with its own memory. Bytes of no listed page are CANARY; the last page ends at a guard page, or less than
 * `alignment` bytes before it. */
struct layout {
    struct guarded memory;
    struct gap *gaps;
    size_t gap_count;
    struct strait_region regions[REGIONS_MAX];
    struct strait_pages pages;
};

/* `ids` is borrowed; NULL: 0, 1, 2, ... Ids beyond a region are allowed: such pages have no memory. */
void layout_init(struct layout *layout, uint32_t alignment, const struct shape *shapes, uint32_t region_count,
                 const uint32_t *ids, uint32_t id_count);
/* A list like another, with memory of its own, all CANARY. */
void layout_mirror(struct layout *layout, const struct layout *like);
/* It may be all zeros, which it is afterwards. */
void layout_fini(struct layout *layout);

uint32_t layout_count(const struct layout *layout);
uint32_t layout_page_bytes(const struct layout *layout, uint32_t index);
void layout_read(const struct layout *layout, uint32_t index, uint8_t *page);
void layout_write(struct layout *layout, uint32_t index, const uint8_t *page);
void layout_fill(struct layout *layout, struct rng *rng, enum pattern pattern, const struct strait_codebook *codebook);
void layout_clear(struct layout *layout);
/* Whether nothing outside the listed pages was written; whether nothing at all was. */
bool layout_intact(const struct layout *layout);
bool layout_untouched(const struct layout *layout);

/* ---- Running the codec ----------------------------------------------------------------------------------------- */

enum { STATUS_UNSET = 77, VERDICT_PAGES = 64 };

/* Everything that a call reports; equal verdicts are equal bytes. */
struct verdict {
    struct strait_result result;
    int64_t returned;
    struct strait_class_stats stats[TEST_TABLES];
    int32_t page_status[VERDICT_PAGES]; /* STATUS_UNSET where none was reported */
};

struct strait_run verdict_begin(struct verdict *verdict);

struct asked {
    const struct strait_codebook *codebook;
    enum strait_element element;
    enum strait_mode mode;
};

/* Encodes into a buffer of exactly the bound and returns the chunk in malloc()ed memory; NULL when there is none. */
uint8_t *encode_layout(const struct strait_codec *codec, const struct asked *asked, const struct layout *src,
                       struct verdict *verdict);
void decode_layout(const struct strait_codec *codec, const struct strait_codebook *codebook, const struct layout *dst,
                   const uint32_t *select, const uint8_t *chunk, uint64_t size, struct verdict *verdict);
void verify_chunk(const struct strait_codec *codec, const struct strait_codebook *codebook, const uint8_t *chunk,
                  uint64_t size, struct verdict *verdict);

/* Encodes with every variant and requires equal bytes and reports; decodes with every variant and requires the source
 * bytes, and no writes elsewhere. Returns the chunk, to be freed. */
uint8_t *round_trip(const struct asked *asked, const struct layout *src, struct verdict *verdict);

/* ---- The format, read from FORMAT.md and not from the code ----------------------------------------------------- */

/* The sums of FORMAT.md, section 5. */
uint64_t reference_sum(const uint8_t *bytes, uint64_t size, uint64_t a, uint64_t b, uint64_t c);
uint64_t reference_page_sum(const uint8_t *page, uint32_t page_bytes, uint32_t index, uint32_t table);

/* Where the parts of a chunk are, according to its header. */
struct anatomy {
    uint64_t page_count, page_bytes, rows_per_page, lengths, rows, metadata_bytes;
    bool has_lengths;
};

/* False when there is no header or its numbers are out of range. */
bool anatomy_read(struct anatomy *anatomy, const uint8_t *chunk, uint64_t size);
uint64_t anatomy_row(const struct anatomy *anatomy, uint64_t page, uint64_t block);
/* Corrects the metadata sum. False when the chunk ends before its metadata does. */
bool repair_metadata(uint8_t *chunk, uint64_t size);

#endif
