#include "transport/shm.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/options.h"
#include "transport/shm_internal.h"

#define READY_MAX 32

/* ---- Links ----------------------------------------------------------------------------------------------------- */

/* The pidfd of the process at the other end; -1: it is this process, or cannot be determined. */
static int peer_process(int fd, bool *known)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    *known = false;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0)
        return -1; /* in another pid namespace */
    *known = true;
    if (peer.pid == getpid())
        return -1;
    int process = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    *known = process >= 0;
    return process;
}

static enum strait_status shm_link_open(struct transport *base, int fd, enum link_side side, void *link_owner,
                                        struct link **out)
{
    struct shm *shm = (struct shm *)base;
    bool good = fd >= 0 && (side == LINK_ACCEPTED || side == LINK_DIALLED);
    struct shm_link *link = good ? calloc(1, sizeof(*link)) : NULL;
    if (link == NULL) {
        if (fd >= 0)
            close(fd);
        return good ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_INVALID;
    }
    link->fd = fd;
    link->process = peer_process(fd, &link->sees_end);
    link->side = side;
    link->in_arena = -1;
    link->out_tail = &link->out_head;
    core_link_add(&shm->core, &link->core, link_owner);
    *out = &link->core.base;
    return STRAIT_OK;
}

/* The hello carries everything that the peer needs. */
static size_t shm_link_address(struct link *base, void *dst, size_t capacity)
{
    (void)base, (void)dst, (void)capacity;
    return 0;
}

static enum strait_status shm_link_connect(struct link *base, const void *address, size_t size)
{
    struct shm_link *link = (struct shm_link *)base;
    (void)address;
    if (link->core.state != LINK_OPEN || size != 0)
        return STRAIT_ERR_INVALID;
    if (!shm_watch(link, EPOLLIN))
        return STRAIT_ERR_IO;
    if (link->side == LINK_ACCEPTED && !shm_send_hello(link)) {
        shm_watch(link, 0);
        return STRAIT_ERR_NO_MEMORY;
    }
    link->core.state = LINK_CONNECTING;
    shm_flush(link);
    return STRAIT_OK;
}

static void unmap(struct shm_link *link)
{
    if (link->map != NULL)
        munmap(link->map, link->map_size);
    link->map = NULL;
}

/* The order is essential: by the time the peer sees our end of file, nothing in this process maps its arena. */
static void shm_link_close(struct link *base)
{
    struct shm_link *link = (struct shm_link *)base;
    if (!core_link_close(&link->core))
        return;
    unmap(link);
    if (!link->shared)
        link->ended = true; /* the peer never got our arena */
    if (link->dying) {
        shm_out_fail(link);
        shm_watch(link, EPOLLIN);
        return;
    }
    shm_send_farewell(link);
    shm_flush(link);
}

/* As if the peer's side had ended: anything it still stores goes into a file that nobody reads. */
static void shm_link_abandon(struct link *base)
{
    struct shm_link *link = (struct shm_link *)base;
    if (link->core.state != LINK_CLOSING)
        return;
    link->ended = true;
    shm_out_fail(link);
    shm_watch(link, 0);
}

static bool shm_quiet(struct core_link *link)
{
    const struct shm_link *shm = (struct shm_link *)link;
    return shm->ended && shm->out_head == NULL; /* the peer must get the farewell */
}

static bool shm_sees_end(const struct link *link)
{
    return ((const struct shm_link *)link)->sees_end;
}

static void shm_release(struct core_link *base)
{
    struct shm_link *link = (struct shm_link *)base;
    unmap(link);
    shm_watch(link, 0);
    close(link->fd);
    if (link->process >= 0)
        close(link->process);
    if (link->in_arena >= 0)
        close(link->in_arena);
    free(link);
}

static void *shm_link_map(struct link *base, size_t offset, size_t size)
{
    struct shm_link *link = (struct shm_link *)base;
    if (link->core.state != LINK_CONNECTED || offset > link->map_size || size > link->map_size - offset)
        return NULL;
    return (uint8_t *)link->map + offset;
}

/* ---- The transport --------------------------------------------------------------------------------------------- */

static enum strait_status shm_create(const struct transport_arena *arena, const struct transport_events *events,
                                     void *owner, const char *options, struct transport **transport)
{
    if (arena->fd < 0 || arena->size == 0 || arena->memory != TRANSPORT_HOST || options_none(options) != STRAIT_OK)
        return STRAIT_ERR_INVALID;
    struct shm *shm = calloc(1, sizeof(*shm));
    if (shm == NULL)
        return STRAIT_ERR_NO_MEMORY;
    shm->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (shm->epoll < 0) {
        free(shm);
        return STRAIT_ERR_IO;
    }
    core_init(&shm->core, &transport_shm, events, owner);
    shm->core.quiet = shm_quiet;
    shm->core.release = shm_release;
    shm->arena = *arena;
    *transport = &shm->core.base;
    return STRAIT_OK;
}

static void shm_destroy(struct transport *transport)
{
    struct shm *shm = (struct shm *)transport;
    close(shm->epoll);
    free(shm);
}

static int shm_fd(const struct transport *transport)
{
    return ((const struct shm *)transport)->epoll;
}

/* Only core_reap frees links, so the pointers from epoll stay valid throughout the loop. */
static bool shm_progress(struct transport *transport)
{
    struct shm *shm = (struct shm *)transport;
    struct epoll_event ready[READY_MAX];
    bool any = core_deliver(&shm->core);
    int count = epoll_wait(shm->epoll, ready, READY_MAX, 0);
    for (int i = 0; i < count; i++)
        shm_serve(ready[i].data.ptr, ready[i].events);
    any |= core_deliver(&shm->core);
    any |= core_reap(&shm->core);
    return any || count > 0;
}

static enum strait_status shm_arm(struct transport *transport)
{
    return core_is_due(&((struct shm *)transport)->core) ? STRAIT_ERR_AGAIN : STRAIT_OK;
}

/* Stores need no registered memory. */
static enum strait_status shm_memory(struct transport *transport, void *base, size_t size, void **handle)
{
    (void)transport, (void)base, (void)size;
    *handle = NULL;
    return STRAIT_OK;
}

static void shm_memory_release(struct transport *transport, void *handle)
{
    (void)transport, (void)handle;
}

const struct transport_ops transport_shm = {
    .name = "shm",
    .send_memory = TRANSPORT_HOST,
    .receive_memory = TRANSPORT_HOST,
    .direct = true,
    .create = shm_create,
    .destroy = shm_destroy,
    .fd = shm_fd,
    .progress = shm_progress,
    .arm = shm_arm,
    .memory = shm_memory,
    .memory_release = shm_memory_release,
    .open = shm_link_open,
    .address = shm_link_address,
    .connect = shm_link_connect,
    .close = shm_link_close,
    .abandon = shm_link_abandon,
    .sees_end = shm_sees_end,
    .map = shm_link_map,
    .send = shm_link_send,
};
