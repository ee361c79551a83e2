#include "transport/transport.h"

#include <string.h>

#include "transport/loopback.h"
#include "transport/nccl.h"
#include "transport/shm.h"
#include "transport/tcp.h"
#if STRAIT_HAVE_UCX
#include "transport/ucx.h"
#endif

static const struct transport_ops *const kinds[] = {
    &transport_shm,
#if STRAIT_HAVE_UCX
    &transport_ucx,
#endif
    &transport_nccl, &transport_tcp, &transport_loopback,
};

const struct transport_ops *transport_at(uint32_t index)
{
    return index < sizeof(kinds) / sizeof(kinds[0]) ? kinds[index] : NULL;
}

const struct transport_ops *transport_find(const char *name)
{
    for (uint32_t i = 0; transport_at(i) != NULL; i++)
        if (strcmp(kinds[i]->name, name) == 0)
            return kinds[i];
    return NULL;
}

void transport_leave_signals(void)
{
#if STRAIT_HAVE_UCX
    ucx_leave_signals();
#endif
}
