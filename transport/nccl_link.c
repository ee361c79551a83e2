/* A link from its start to its end: the carrier connects, the engine makes an id, hellos exchange the ids, the engines
 * connect, and each side tells that it is ready. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "transport/nccl_internal.h"

static struct nccl *nccl_of(const struct nccl_link *link)
{
    return (struct nccl *)link->core.core;
}

/* ---- Start ------------------------------------------------------------------------------------------------------- */

/* Kernels that wait for a peer's kernels, which in turn wait for a multiprocessor, could wait for ever. */
static bool has_room(const struct nccl *nccl)
{
    uint64_t blocks = (uint64_t)(nccl->core.link_count + 1) * NCCL_DIRECTIONS * nccl->options.blocks;
    return blocks <= nccl->place.multiprocessors;
}

enum strait_status nccl_link_open(struct transport *transport, int fd, enum link_side side, void *link_owner,
                                  struct link **out)
{
    struct nccl *nccl = (struct nccl *)transport;
    if (fd >= 0)
        close(fd);
    if (fd >= 0 || (side != LINK_ACCEPTED && side != LINK_DIALLED))
        return STRAIT_ERR_INVALID;
    if (!has_room(nccl))
        return STRAIT_ERR_AGAIN;
    struct nccl_link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = link_open(nccl->carrier, -1, side, link, &link->carrier);
    if (status != STRAIT_OK) {
        free(link);
        return status;
    }
    core_link_add(&nccl->core, &link->core, link_owner);
    *out = &link->core.base;
    return STRAIT_OK;
}

/* An id that is the same for all transports of this process, whatever thread asks, but not inherited by a forked child.
 */
static void own_process(uint8_t dst[NCCL_PLACE_BYTES])
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint8_t process[NCCL_PLACE_BYTES];
    static pid_t drawn_by;
    pthread_mutex_lock(&lock);
    if (drawn_by != getpid() && getrandom(process, sizeof(process), 0) == sizeof(process))
        drawn_by = getpid();
    memcpy(dst, process, NCCL_PLACE_BYTES);
    pthread_mutex_unlock(&lock);
}

size_t nccl_link_address(struct link *base, void *dst, size_t capacity)
{
    struct nccl_link *link = (struct nccl_link *)base;
    const struct nccl *nccl = nccl_of(link);
    uint8_t carrier[LINK_ADDRESS_MAX];
    struct nccl_address address = {.library = nccl->calls->library, .carrier = carrier};
    if (link->carrier == NULL)
        return 0;
    address.carrier_size = link_address(link->carrier, carrier, sizeof(carrier));
    own_process(address.process);
    memcpy(address.identity, nccl->place.identity, NCCL_PLACE_BYTES);
    size_t size = NCCL_ADDRESS_FIXED + address.carrier_size;
    if (size <= capacity && address.carrier_size <= NCCL_ADDRESS_CARRIER)
        nccl_address_write(dst, &address);
    return size;
}

/* Why the two ends cannot be connected, where NCCL would find out only after some time or not at all. NULL: no reason
 * is known. */
static const char *objection(const struct nccl *nccl, const struct nccl_address *peer)
{
    uint8_t process[NCCL_PLACE_BYTES];
    own_process(process);
    if (peer->library != nccl->calls->library)
        return "the peer has another version of NCCL";
    if (memcmp(peer->identity, nccl->place.identity, NCCL_PLACE_BYTES) == 0)
        return "both ends are on the same GPU";
    if (!nccl->calls->within_process && memcmp(peer->process, process, NCCL_PLACE_BYTES) == 0)
        return "both ends are in the same process";
    return NULL;
}

enum strait_status nccl_link_connect(struct link *base, const void *src, size_t size)
{
    struct nccl_link *link = (struct nccl_link *)base;
    struct nccl_address address;
    if (link->core.state != LINK_OPEN)
        return STRAIT_ERR_INVALID;
    enum strait_status status = nccl_address_read(src, size, &address);
    if (status != STRAIT_OK)
        return status;
    const char *why = objection(nccl_of(link), &address);
    if (why == NULL) {
        status = link_connect(link->carrier, address.carrier, address.carrier_size);
        if (status != STRAIT_OK)
            return status;
    }
    link->core.state = LINK_CONNECTING;
    if (why != NULL)
        nccl_link_break(link, why);
    return STRAIT_OK;
}

void nccl_link_settle(struct nccl_link *link)
{
    if (link->core.state == LINK_CONNECTING && link->said_ready && link->heard_ready)
        core_link_connected(&link->core);
}

static void say_hello(struct nccl_link *link, const uint8_t *id)
{
    struct nccl_message hello = {.type = NCCL_HELLO, .value = NCCL_VERSION};
    link->said_hello = true;
    nccl_say(link, &hello, id, NCCL_ID_BYTES);
}

static void say_ready(struct nccl_link *link)
{
    struct nccl_message ready = {.type = NCCL_READY};
    link->said_ready = true;
    nccl_say(link, &ready, NULL, 0);
    nccl_link_settle(link);
}

void nccl_link_hear_engine(struct nccl_link *link)
{
    struct nccl_news news;
    if (link->engine == NULL || link->abandoned)
        return;
    nccl_engine_take(link->engine, &news);
    nccl_chunks_over(news.over);
    link->drained = news.drained;
    if (news.failed != NULL)
        nccl_link_break(link, news.failed);
    if (link->core.state == LINK_CONNECTING && news.id_made && !link->said_hello)
        say_hello(link, news.id);
    if (link->core.state == LINK_CONNECTING && news.ready && !link->said_ready)
        say_ready(link);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* Nothing is sent any more. The end of the carrier's link tells the peer. */
static void wind_down(struct nccl_link *link)
{
    if (link->carrier != NULL && !link->carrier_closing)
        link_close(link->carrier);
    link->carrier_closing = true;
    if (link->engine != NULL)
        nccl_engine_end(link->engine);
    nccl_chunks_fail(link);
}

void nccl_link_break(struct nccl_link *link, const char *why)
{
    if (link->core.state >= LINK_BROKEN)
        return;
    core_link_break(&link->core, why);
    wind_down(link);
}

void nccl_link_close(struct link *base)
{
    struct nccl_link *link = (struct nccl_link *)base;
    if (core_link_close(&link->core))
        wind_down(link);
}

void nccl_link_abandon(struct link *base)
{
    struct nccl_link *link = (struct nccl_link *)base;
    if (link->core.state != LINK_CLOSING || link->abandoned || link->engine == NULL)
        return;
    link->abandoned = true;
    nccl_chunks_over(nccl_engine_abandon(link->engine));
}

bool nccl_link_quiet(struct core_link *base)
{
    const struct nccl_link *link = (const struct nccl_link *)base;
    return link->carrier == NULL && (link->engine == NULL || link->drained || link->abandoned);
}

void nccl_link_release(struct core_link *base)
{
    struct nccl_link *link = (struct nccl_link *)base;
    if (link->engine != NULL)
        nccl_engine_release(link->engine);
    free(link);
}
