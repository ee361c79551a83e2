/* Encrypted chunks: what opens them, and that nothing else does. */
#include <string.h>

#include "daemon/base/seal.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { BYTES = 1000, HEADER = 56 };

static const enum seal_suite suites[] = {SEAL_CHACHA20_POLY1305, SEAL_AES_256_GCM};
static uint8_t header[HEADER], chunk[BYTES + SEAL_TAG_BYTES];

TEST_FIXTURE(seal, NULL, NULL);

static struct seal_direction direction_of(int suite, const char *secret)
{
    struct seal_direction made = {.suite = suites[suite]};
    strcpy((char *)made.secret, secret);
    return made;
}

static void close_chunk(struct seal_direction *direction, uint64_t number)
{
    struct seal seal;
    memset(chunk, 0x5a, BYTES);
    memset(header, 1, HEADER);
    ck_assert(seal_make(direction, number, header, HEADER, &seal));
    ck_assert(seal_close(&seal, chunk, BYTES));
}

static bool opens(struct seal_direction *direction, uint64_t number)
{
    struct seal seal;
    uint8_t copy[sizeof(chunk)];
    memcpy(copy, chunk, sizeof(chunk));
    ck_assert(seal_make(direction, number, header, HEADER, &seal));
    if (!seal_open(&seal, copy, sizeof(copy)))
        return false;
    for (int i = 0; i < BYTES; i++)
        ck_assert_uint_eq(0x5a, copy[i]);
    return true;
}

/* Numbers of the first key, of the second, and of both ends of the latter. */
static const uint64_t numbers[] = {0, 1, SEAL_KEY_CHUNKS - 1, SEAL_KEY_CHUNKS, 2 * SEAL_KEY_CHUNKS - 1, UINT64_MAX};

TEST_LOOP(a_chunk_opens_with_its_own_number_only, COUNT(suites) * COUNT(numbers))
{
    struct seal_direction from = direction_of(_i % COUNT(suites), "secret"), to = from;
    uint64_t number = numbers[_i / COUNT(suites)];
    close_chunk(&from, number);
    for (int i = 0; i < COUNT(numbers); i++)
        ck_assert(opens(&to, numbers[i]) == (numbers[i] == number));
}

TEST_LOOP(no_bit_of_a_chunk_or_its_header_can_be_changed, COUNT(suites))
{
    struct seal_direction direction = direction_of(_i, "secret");
    close_chunk(&direction, 5);
    for (size_t bit = 0; bit < 8 * sizeof(chunk); bit += bit < 8 * BYTES ? 61 : 1) {
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert(!opens(&direction, 5));
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bit = 0; bit < 8 * HEADER; bit++) {
        header[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert(!opens(&direction, 5));
        header[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    ck_assert(opens(&direction, 5));
}

TEST_LOOP(another_secret_or_suite_does_not_open_it, COUNT(suites))
{
    struct seal_direction direction = direction_of(_i, "secret"), other = direction_of(_i, "Secret"),
                          suite = direction_of(1 - _i, "secret");
    close_chunk(&direction, 5);
    ck_assert(!opens(&other, 5));
    ck_assert(!opens(&suite, 5));
}

/* The same bytes under two numbers, also of two keys: nothing of one helps to read the other. */
TEST_LOOP(equal_chunks_look_different, COUNT(suites))
{
    struct seal_direction direction = direction_of(_i, "secret");
    uint8_t first[sizeof(chunk)];
    close_chunk(&direction, 0);
    memcpy(first, chunk, sizeof(chunk));
    for (int i = 1; i < COUNT(numbers); i++) {
        size_t equal = 0;
        close_chunk(&direction, numbers[i]);
        for (size_t at = 0; at < sizeof(chunk); at++)
            equal += chunk[at] == first[at];
        ck_assert_uint_le(equal, 30); /* of 1016, 4 by chance */
    }
}

int main(void)
{
    return run_tests("seal", NULL, NULL);
}
