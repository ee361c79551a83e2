/* Codebook set as the block coders see it, and the rankings that need none. */
#ifndef STRAIT_KERNELS_CODEBOOK_H
#define STRAIT_KERNELS_CODEBOOK_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

/* How many exponents outside the window are looked up one by one. */
#define TABLE_STRAYS 4

/* How far a window may reach past exponent 255, to the first ones. */
#define TABLE_WRAP 16

/* One ranking of all exponents, in both directions, and a window in which short look-up tables find most of it. */
struct table {
    uint8_t rank[256 + TABLE_WRAP]; /* by exponent; where the window wraps around, the first ones once more */
    uint8_t exponent[256];          /* by rank */
    uint8_t window;                 /* first of 32 consecutive exponents that hold most of the ranks below TIER4_RANK */
    uint8_t stray_count;            /* how many of these ranks have exponents outside the window: 0..TIER4_RANK */
    uint8_t strays[TABLE_STRAYS];   /* those exponents, lowest ranks first, if there are at most TABLE_STRAYS */
};

/* Makes the ranking of a base, which needs no calibration: mode `base` of FORMAT.md, section 3.2. */
void base_table(struct table *table, uint8_t base);

/* Makes the ranking of symbols of mode 11, FORMAT.md, section 3.4. Symbols without a rank have those from 21 on. */
void parts_table(struct table *table);

struct strait_codebook {
    uint32_t count;
    uint8_t id[STRAIT_CODEBOOK_ID_BYTES];
    struct strait_class *classes; /* count of them; NULL: tables are found by index */
    uint32_t *expected;           /* thousandths of a bit, count of them; NULL: none is known */
    uint64_t (*counts)[256];      /* count of them, zeroes where they are not known; NULL: none is known */
    struct table tables[];
};

/* The id of a set with these rankings (FORMAT.md, section 2). False when libcrypto fails. */
bool codebook_id(uint8_t id[STRAIT_CODEBOOK_ID_BYTES], const uint8_t (*rankings)[256], uint32_t count);

#endif
