#include "collective/engine/divide.h"

/* Seeing need be neither symmetric nor transitive: a leader follows nobody. */
void divide(struct division *division, const uint64_t *sees, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        int leader = 0;
        while (leader < rank && (division->leader[leader] != leader || (sees[rank] >> leader & 1) == 0))
            leader++;
        division->leader[rank] = (uint8_t)leader;
    }
}
