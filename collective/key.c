#include "collective/key.h"

#include <sys/random.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static void add(struct coll_key *key, uint64_t word)
{
    key->words[0] = mix(key->words[0] ^ word);
    key->words[1] = mix(key->words[1] + word + UINT64_C(0x9E3779B97F4A7C15));
}

struct coll_key coll_key_of(const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    struct coll_key key = {.words = {1, 2}};
    for (size_t i = 0; i < size; i++)
        add(&key, at[i]);
    return key;
}

struct coll_key coll_key_child(const struct coll_key *parent, uint64_t way, uint64_t number, int64_t color)
{
    struct coll_key key = *parent;
    if (coll_key_is_none(parent))
        return key;
    add(&key, way);
    add(&key, number);
    add(&key, (uint64_t)color);
    return key;
}

struct coll_key coll_key_draw(void)
{
    struct coll_key key = {.words = {0, 0}};
    if (getrandom(key.words, sizeof(key.words), 0) != sizeof(key.words))
        key.words[0] = key.words[1] = 0;
    return key;
}

bool coll_key_is_none(const struct coll_key *key)
{
    return key->words[0] == 0 && key->words[1] == 0;
}

bool coll_key_has_place(const struct coll_key *key)
{
    return key->place.address.family != 0;
}
