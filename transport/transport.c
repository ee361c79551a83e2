#include "transport/transport.h"

#include <glob.h>
#include <stdio.h>
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

/* "4: ACTIVE" */
static bool is_active(const char *state_file)
{
    char state[32] = "";
    FILE *file = fopen(state_file, "re");
    if (file == NULL)
        return false;
    const bool active = fgets(state, sizeof(state), file) != NULL && strncmp(state, "4:", 2) == 0;
    fclose(file);
    return active;
}

bool transport_rdma_is_active(const char *devices)
{
    char pattern[512];
    glob_t ports;
    bool active = false;
    if (snprintf(pattern, sizeof(pattern), "%s/*/ports/*/state", devices) >= (int)sizeof(pattern) ||
        glob(pattern, 0, NULL, &ports) != 0)
        return false;
    for (size_t i = 0; i < ports.gl_pathc && !active; i++)
        active = is_active(ports.gl_pathv[i]);
    globfree(&ports);
    return active;
}

void transport_leave_signals(void)
{
#if STRAIT_HAVE_UCX
    ucx_leave_signals();
#endif
}
