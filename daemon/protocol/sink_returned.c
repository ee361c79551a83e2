/* Ranges of units that came back unused. */
#include "daemon/protocol/leg_grants.h"

#include <string.h>

/* There is room: a range that returns was one of at most LEG_GRANTS pieces, a grant's or the first SEGMENTS'. */
void sink_give_back(struct sink_leg *leg, uint32_t first, uint32_t count)
{
    uint32_t at = 0;
    while (at < leg->returned_count && leg->returned[at].first < first)
        at++;
    memmove(&leg->returned[at + 1], &leg->returned[at], (leg->returned_count - at) * sizeof(leg->returned[0]));
    leg->returned[at].first = first;
    leg->returned[at].count = count;
    leg->returned_count++;
}

void sink_take_back(struct sink_leg *leg, uint32_t count)
{
    if (count < leg->returned[0].count) {
        leg->returned[0].first += count;
        leg->returned[0].count -= count;
        return;
    }
    leg->returned_count--;
    memmove(&leg->returned[0], &leg->returned[1], leg->returned_count * sizeof(leg->returned[0]));
    memset(&leg->returned[leg->returned_count], 0, sizeof(leg->returned[0]));
}
