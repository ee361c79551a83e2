/* Length and XXH3-128 of the original, computed as its bytes pass through. */
#ifndef STRAIT_TOOLS_ORIGINAL_H
#define STRAIT_TOOLS_ORIGINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct XXH3_state_s;

struct original {
    struct XXH3_state_s *state;
    uint64_t bytes;
};

/* False: out of memory. original_fini may follow in any case. */
bool original_init(struct original *original);
void original_fini(struct original *original);

void original_add(struct original *original, const void *data, size_t size);

/* The hash so far, in the byte order of the file format. */
void original_hash(const struct original *original, uint8_t hash[16]);

/* 32 digits, most significant first, as xxhsum -H2 prints them. */
#define ORIGINAL_HEX_BYTES 33
void original_hex(char hex[ORIGINAL_HEX_BYTES], const uint8_t hash[16]);

#endif
