// The sum of FORMAT.md section 5, a vector of four words at a time.
#ifndef STRAIT_KERNELS_CUDA_SUMS_CUH
#define STRAIT_KERNELS_CUDA_SUMS_CUH

#include "kernels/cuda/ptx.cuh"

namespace strait
{

constexpr uint32_t SUM_STEP_EVEN = 0x9E3779B1u, SUM_STEP_ODD = 0x85EBCA77u;

__constant__ const uint32_t sum_keys[16] = {
    0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89,
    0x452821E6, 0x38D01377, 0xBE5466CF, 0x34E90C6C, 0xC0AC29B7, 0xC97C50DD, 0x3F84D5B5, 0xB5470917,
};

DEVICE uint64_t sum_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

DEVICE uint64_t sum_seed(uint64_t a, uint64_t b, uint64_t c)
{
    return sum_mix(sum_mix(a + (b << 32)) + c);
}

// The three parts of the terms, added up separately: fewer carries.
struct partial_sum {
    uint64_t products, even;
    uint32_t odd;
};

DEVICE uint64_t sum_total(const partial_sum &sum)
{
    return sum.products + sum.even + (static_cast<uint64_t>(sum.odd) << 32);
}

// The keys of the four words of vector v are keys[v % 4] plus v / 4 times the steps.
DEVICE void sum_load_keys(uint32_t keys[4], uint32_t vector)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        keys[k] = sum_keys[vector % 4 * 4 + k];
}

DEVICE void sum_pair(partial_sum &sum, uint32_t even, uint32_t odd)
{
    sum.products += static_cast<uint64_t>(even) * odd;
    sum.even += even;
    sum.odd += odd;
}

// Adds a vector of the page; even_step and odd_step are its number / 4 times the steps. It takes both pairs at once,
// because an addition of three numbers is one instruction.
DEVICE void sum_vector(partial_sum &sum, const uint32_t w[4], const uint32_t keys[4], uint32_t even_step,
                       uint32_t odd_step)
{
    const uint32_t a = w[0] + keys[0] + even_step, b = w[1] + keys[1] + odd_step;
    const uint32_t c = w[2] + keys[2] + even_step, d = w[3] + keys[3] + odd_step;
    sum.products += static_cast<uint64_t>(a) * b;
    sum.products += static_cast<uint64_t>(c) * d;
    sum.even += static_cast<uint64_t>(a) + c;
    sum.odd += b + d;
}

// The same for a vector of which only `bytes` bytes exist; its words are zero beyond them.
DEVICE void sum_part(partial_sum &sum, const uint32_t w[4], uint32_t bytes, const uint32_t keys[4], uint32_t even_step,
                     uint32_t odd_step)
{
    for (int j = 0; j < 2; j++)
        if (8 * j < bytes)
            sum_pair(sum, w[2 * j] + keys[2 * j] + even_step, w[2 * j + 1] + keys[2 * j + 1] + odd_step);
}

// The sum of any vector, by its number: for where speed does not matter.
DEVICE uint64_t sum_of_vector(const uint32_t w[4], uint32_t vector)
{
    partial_sum sum = {0, 0, 0};
    uint32_t keys[4], step = vector / 4;
    sum_load_keys(keys, vector);
    sum_vector(sum, w, keys, step * SUM_STEP_EVEN, step * SUM_STEP_ODD);
    return sum_total(sum);
}

// Zeroes a vector from byte `bytes` on.
DEVICE void keep_bytes(uint32_t w[4], uint32_t bytes)
{
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t keep = bytes <= 4 * j ? 0 : bytes - 4 * j;
        w[j] &= keep >= 4 ? 0xffffffffu : (1u << (8 * keep)) - 1;
    }
}

} // namespace strait
#endif
