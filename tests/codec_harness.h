/* Shared by the tests of the codec's calls. */
#ifndef STRAIT_TESTS_CODEC_HARNESS_H
#define STRAIT_TESTS_CODEC_HARNESS_H

#include <check.h>

#include "tests/support.h"

extern struct strait_codebook *codebook; /* from setup to teardown */
void setup(void);
void teardown(void);

extern const enum strait_mode modes[6];
extern const enum strait_mode coded_modes[2];

uint64_t units_of(uint64_t bytes);

/* Encodes and decodes one page of these bytes with every variant. Returns the chunk, to be freed. */
uint8_t *page_round_trip(const struct asked *asked, uint32_t table, const void *bytes, uint32_t size,
                         struct verdict *verdict);

#endif
