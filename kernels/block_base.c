#include "kernels/block_base.h"

#include "internal/bytes.h"
#include "kernels/block.h"

/* Exponent 0, of zeros: the last rank that has a code in both coders. */
#define RANK_OF_ZERO 15u

/* The largest exponent, in place, that is not of an infinity or NaN; 0 when there is none. */
static uint16_t largest(const uint8_t *values, uint32_t count)
{
    const uint16_t infinite = 255 << 7;
    uint16_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint16_t exponent = load_le16(values + 2 * i) & infinite;
        exponent = exponent == infinite ? 0 : exponent;
        found = exponent > found ? exponent : found;
    }
    return found;
}

uint8_t base_find(const uint8_t *values, uint32_t count)
{
    uint16_t smallest = 0;
    for (uint32_t i = 0; i < count; i += BASE_PART) {
        uint16_t of_part = largest(values + 2 * i, count - i < BASE_PART ? count - i : BASE_PART);
        if (of_part != 0 && (smallest == 0 || of_part < smallest))
            smallest = of_part;
    }
    return (uint8_t)(smallest >> 7);
}

/* How far below the base the exponent of a rank lies, modulo 256. */
static uint8_t distance_of(unsigned rank)
{
    static const uint8_t first[21] = {1, 2, 3, 0, 4, 5, 6, 255, 7, 254, 8, 253, 9, 10, 11, 12, 13, 14, 15, 252, 251};
    return rank < sizeof(first) ? first[rank] : (uint8_t)(rank - 5);
}

static void exchange(struct table *table, unsigned rank, unsigned other)
{
    uint8_t exponent = table->exponent[rank];
    table->exponent[rank] = table->exponent[other];
    table->exponent[other] = exponent;
    table->rank[table->exponent[rank]] = (uint8_t)rank;
    table->rank[exponent] = (uint8_t)other;
}

void base_table(struct table *table, uint8_t base)
{
    for (unsigned r = 0; r < 256; r++) {
        table->exponent[r] = (uint8_t)(base - distance_of(r));
        table->rank[table->exponent[r]] = (uint8_t)r;
    }
    if (table->rank[0] > RANK_OF_ZERO)
        exchange(table, RANK_OF_ZERO, table->rank[0]);
    table_set_window(table, base < 26 ? 0 : base > 250 ? 224 : base - 26);
}
