#include "transport/nccl.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/nccl_internal.h"

#define CARRIER_ARENA_BYTES 4096u

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static bool watch(const struct nccl *nccl, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(nccl->poll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static enum strait_status make_carrier(struct nccl *nccl)
{
    nccl->carrier_arena = aligned_alloc(CARRIER_ARENA_BYTES, CARRIER_ARENA_BYTES);
    if (nccl->carrier_arena == NULL)
        return STRAIT_ERR_NO_MEMORY;
    struct transport_arena arena = {
        .base = nccl->carrier_arena, .size = CARRIER_ARENA_BYTES, .fd = -1, .memory = TRANSPORT_HOST};
    return transport_create(nccl->options.carrier, &arena, &nccl_carrier_events, nccl, nccl->options.rest,
                            &nccl->carrier);
}

static void nccl_destroy(struct transport *transport)
{
    struct nccl *nccl = (struct nccl *)transport;
    transport_destroy(nccl->carrier);
    free(nccl->carrier_arena);
    if (nccl->wake >= 0)
        close(nccl->wake);
    if (nccl->poll >= 0)
        close(nccl->poll);
    free(nccl);
}

/* On failure, nccl_destroy undoes what has been built. */
static enum strait_status build(struct nccl *nccl)
{
    nccl->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    nccl->poll = epoll_create1(EPOLL_CLOEXEC);
    if (nccl->wake < 0 || nccl->poll < 0 || !watch(nccl, nccl->wake))
        return STRAIT_ERR_IO;
    enum strait_status status = make_carrier(nccl);
    if (status == STRAIT_OK && !watch(nccl, transport_fd(nccl->carrier)))
        status = STRAIT_ERR_IO;
    return status;
}

static enum strait_status find_gpu(const struct nccl_options *options, const struct transport_arena *arena,
                                   const struct nccl_calls **calls, struct nccl_place *place)
{
    *calls = nccl_load(options->library[0] != '\0' ? options->library : NULL);
    if (*calls == NULL)
        return STRAIT_ERR_UNSUPPORTED;
    return (*calls)->locate(arena->base, place) == NCCL_DONE ? STRAIT_OK : STRAIT_ERR_INVALID;
}

void nccl_prepare(const char *text, const void *memory)
{
    struct nccl_options options;
    struct transport_arena arena = {.base = (void *)(uintptr_t)memory};
    const struct nccl_calls *calls;
    struct nccl_place place;
    if (nccl_options_read(text, &options) != STRAIT_OK)
        return;
    free(options.rest);
    (void)find_gpu(&options, &arena, &calls, &place);
}

static enum strait_status create_with(const struct transport_arena *arena, const struct transport_events *events,
                                      void *owner, const struct nccl_options *options, struct transport **transport)
{
    const struct nccl_calls *calls;
    struct nccl_place place;
    enum strait_status status = find_gpu(options, arena, &calls, &place);
    if (status != STRAIT_OK)
        return status;
    struct nccl *nccl = calloc(1, sizeof(*nccl));
    if (nccl == NULL)
        return STRAIT_ERR_NO_MEMORY;
    core_init(&nccl->core, &transport_nccl, events, owner);
    nccl->core.quiet = nccl_link_quiet;
    nccl->core.release = nccl_link_release;
    nccl->calls = calls;
    nccl->options = *options;
    nccl->place = place;
    status = build(nccl);
    nccl->options.rest = NULL;
    if (status == STRAIT_OK)
        *transport = &nccl->core.base;
    else
        nccl_destroy(&nccl->core.base);
    return status;
}

/* Checks only the text: NCCL is loaded when a GPU is taken into use. */
static enum strait_status nccl_check(const char *text)
{
    struct nccl_options options;
    enum strait_status status = nccl_options_read(text, &options);
    if (status != STRAIT_OK)
        return status;
    status = transport_check(options.carrier, options.rest);
    free(options.rest);
    return status;
}

static enum strait_status nccl_create(const struct transport_arena *arena, const struct transport_events *events,
                                      void *owner, const char *text, struct transport **transport)
{
    struct nccl_options options;
    if (arena->base == NULL || arena->size == 0 || arena->memory != TRANSPORT_CUDA)
        return STRAIT_ERR_INVALID;
    enum strait_status status = nccl_options_read(text, &options);
    if (status != STRAIT_OK)
        return status;
    status = create_with(arena, events, owner, &options, transport);
    free(options.rest);
    return status;
}

/* ---- Progress ---------------------------------------------------------------------------------------------------- */

static int nccl_fd(const struct transport *transport)
{
    return ((const struct nccl *)transport)->poll;
}

static bool hear_engines(struct nccl *nccl)
{
    eventfd_t count;
    if (eventfd_read(nccl->wake, &count) != 0)
        return false;
    for (struct core_link *link = nccl->core.links; link != NULL; link = link->next)
        nccl_link_hear_engine((struct nccl_link *)link);
    return true;
}

static bool nccl_progress(struct transport *transport)
{
    struct nccl *nccl = (struct nccl *)transport;
    bool any = core_deliver(&nccl->core);
    any |= transport_progress(nccl->carrier);
    any |= hear_engines(nccl);
    any |= core_deliver(&nccl->core);
    return core_reap(&nccl->core) || any;
}

static enum strait_status nccl_arm(struct transport *transport)
{
    struct nccl *nccl = (struct nccl *)transport;
    return core_is_due(&nccl->core) ? STRAIT_ERR_AGAIN : transport_arm(nccl->carrier);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* NCCL copies from any memory of the GPU, so nothing needs registration. */
static enum strait_status nccl_memory(struct transport *transport, void *base, size_t size, void **handle)
{
    (void)transport, (void)base, (void)size;
    *handle = NULL;
    return STRAIT_OK;
}

static void nccl_memory_release(struct transport *transport, void *handle)
{
    (void)transport, (void)handle;
}

static void *nccl_map(struct link *link, size_t offset, size_t size)
{
    (void)link, (void)offset, (void)size;
    return NULL;
}

const struct transport_ops transport_nccl = {
    .name = "nccl",
    .send_memory = TRANSPORT_CUDA,
    .receive_memory = TRANSPORT_CUDA,
    .direct = false,
    .missing = nccl_missing,
    .check = nccl_check,
    .create = nccl_create,
    .destroy = nccl_destroy,
    .fd = nccl_fd,
    .progress = nccl_progress,
    .arm = nccl_arm,
    .memory = nccl_memory,
    .memory_release = nccl_memory_release,
    .open = nccl_link_open,
    .address = nccl_link_address,
    .connect = nccl_link_connect,
    .close = nccl_link_close,
    .abandon = nccl_link_abandon,
    .map = nccl_map,
    .send = nccl_link_send,
};
