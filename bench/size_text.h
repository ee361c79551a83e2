/* Sizes in tables. */
#ifndef STRAIT_BENCH_SIZE_TEXT_H
#define STRAIT_BENCH_SIZE_TEXT_H

#include <inttypes.h>
#include <stdio.h>

#define SIZE_TEXT_BYTES 24

/* "32K", or plain bytes when the size is not a round number. */
static inline const char *size_text(char text[SIZE_TEXT_BYTES], uint64_t bytes)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    unsigned unit = 0;

    for (; unit < 4 && bytes > 0 && bytes % 1024 == 0; unit++)
        bytes /= 1024;
    snprintf(text, SIZE_TEXT_BYTES, "%" PRIu64 "%s", bytes, units[unit]);
    return text;
}

#endif
