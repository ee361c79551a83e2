#include "kernels/sum.h"

#include <string.h>

#include "internal/bytes.h"

const uint32_t sum_keys[SUM_LANES] = {
    0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89,
    0x452821E6, 0x38D01377, 0xBE5466CF, 0x34E90C6C, 0xC0AC29B7, 0xC97C50DD, 0x3F84D5B5, 0xB5470917,
};
const uint32_t sum_steps[2] = {0x9E3779B1, 0x85EBCA77};

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t sum_seed(uint64_t a, uint64_t b, uint64_t c)
{
    return mix(mix(a + (b << 32)) + c);
}

static uint32_t key(uint32_t word)
{
    return sum_keys[word % SUM_LANES] + word / SUM_LANES * sum_steps[word % 2];
}

static uint64_t term(uint64_t pair, uint32_t word)
{
    uint64_t x = (uint32_t)((uint32_t)pair + key(word));
    uint64_t y = (uint32_t)((uint32_t)(pair >> 32) + key(word + 1));
    return x * y + x + (y << 32);
}

uint64_t sum_terms(const uint8_t *src, size_t size, uint32_t word)
{
    uint64_t sum = 0;
    size_t i = 0;
    for (; i + 8 <= size; i += 8, word += 2)
        sum += term(load_le64(src + i), word);
    if (i < size) {
        uint8_t last[8] = {0};
        memcpy(last, src + i, size - i);
        sum += term(load_le64(last), word);
    }
    return sum;
}
