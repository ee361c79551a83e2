// Emulated barriers in shared memory and bulk copies.
#ifndef STRAIT_TESTS_EMULATED_BARRIERS_H
#define STRAIT_TESTS_EMULATED_BARRIERS_H

#include <cstdint>

namespace emulated
{

void barrier_begin(uint64_t *barrier, uint32_t arrivals);
void barrier_arrive(uint64_t *barrier, uint32_t arrivals);
void barrier_expect(uint64_t *barrier, uint32_t bytes);
bool barrier_passed(const uint64_t *barrier, uint32_t parity);
void barrier_wait(uint64_t *barrier, uint32_t parity);

// Bytes arrive at any time later; those of stores have been read after wait_read and are there after wait_stores.
void bulk_load(void *dst, const void *src, uint32_t bytes, uint64_t *barrier);
void bulk_store(void *dst, const void *src, uint32_t bytes);
void bulk_prefetch(const void *src, uint32_t bytes);
void wait_read();
void wait_stores();

// For the scheduler: lets one load that is under way arrive, if there is one.
bool finish_a_load();
bool has_loads();

} // namespace emulated
#endif
