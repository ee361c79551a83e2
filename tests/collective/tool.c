/* A tool as NCCL's documentation describes them: it overrides ncclAllReduce and calls pncclAllReduce. How often it was
 * called is told when the process ends. */
#include <stdio.h>

#include "tests/collective/fake_nccl.h"

static unsigned long calls;

FAKE_VISIBLE coll_result ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, COLLECTIVE_TAIL)
{
    calls++;
    return pncclAllReduce(send, recv, count, type, op, comm, stream);
}

__attribute__((destructor)) static void tell(void)
{
    if (calls > 0)
        fprintf(stderr, "tool: %lu calls\n", calls);
}
