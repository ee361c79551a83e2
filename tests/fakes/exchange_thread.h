/* What collective/engine/exchange.h requires of its includer, for blocks of one CPU thread. A file that includes this
 * adds exchange_put and exchange_take. */
#ifndef TESTS_COLL_FAKE_EXCHANGE_THREAD_H
#define TESTS_COLL_FAKE_EXCHANGE_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#define EXCHANGE_FN static inline

EXCHANGE_FN bool exchange_leads(void)
{
    return true;
}

EXCHANGE_FN uint32_t exchange_lane(void)
{
    return 0;
}

EXCHANGE_FN uint32_t exchange_lanes(void)
{
    return 1;
}

EXCHANGE_FN uint64_t exchange_broadcast(uint64_t x)
{
    return x;
}

EXCHANGE_FN uint64_t exchange_least(uint64_t x)
{
    return x;
}

EXCHANGE_FN uint64_t exchange_load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

EXCHANGE_FN void exchange_store(uint64_t *word, uint64_t x)
{
    __atomic_store_n(word, x, __ATOMIC_RELEASE);
}

EXCHANGE_FN bool exchange_lock(uint32_t *busy)
{
    return __atomic_exchange_n(busy, 1, __ATOMIC_ACQUIRE) == 0;
}

EXCHANGE_FN void exchange_unlock(uint32_t *busy)
{
    __atomic_store_n(busy, 0, __ATOMIC_RELEASE);
}

#endif
