#include "kernels/block_base.h"

/* The rank of exponent 0, that of zeros: the last rank that has a short code in both coders. */
#define RANK_OF_ZERO 15u

/* How far the exponent of a rank lies below the base, modulo 256. */
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
