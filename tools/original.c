#include "tools/original.h"

#include <stdio.h>

#include <xxhash.h>

#include "kernels/container.h"

bool original_init(struct original *original)
{
    *original = (struct original){.state = XXH3_createState()};
    return original->state != NULL && XXH3_128bits_reset(original->state) == XXH_OK;
}

void original_fini(struct original *original)
{
    XXH3_freeState(original->state);
    original->state = NULL;
}

void original_add(struct original *original, const void *data, size_t size)
{
    if (size > 0)
        XXH3_128bits_update(original->state, data, size);
    original->bytes += size;
}

void original_hash(const struct original *original, uint8_t hash[16])
{
    XXH128_hash_t sum = XXH3_128bits_digest(original->state);
    container_store_hash(hash, sum.low64, sum.high64);
}

void original_hex(char hex[ORIGINAL_HEX_BYTES], const uint8_t hash[16])
{
    for (unsigned i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[15 - i]);
}
