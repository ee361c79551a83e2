#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/peers/peer_internal.h"
#if STRAIT_HAVE_UCX
#include "transport/ucx.h"
#endif

/* Transports of a node: those that its options name are checked, made and offered to peers. */

/* ---- Failed and closed ports ------------------------------------------------------------------------------------- */

static void on_port_failed(void *owner)
{
    struct peer_transport *transport = owner;
    struct connection *c;
    log_write(transport->peers->config.log, LOG_ERROR, "msg=\"transport broken\" transport=%s", transport->ops->name);
    TAILQ_FOREACH(c, &transport->peers->connections, entry)
    {
        if (c->current != NULL && c->current->transport == transport)
            connection_fail(c, "transport %s is broken", transport->ops->name);
        struct gpu_link *g;
        LIST_FOREACH(g, &c->gpu_links, entry)
        {
            if (g->link != NULL && g->link->transport == transport)
                gpu_link_broken(c, g, "its transport is broken");
        }
    }
}

static void on_port_spinning(void *owner, bool spins)
{
    struct peer_transport *transport = owner;
    if (spins)
        log_limited(transport->peers->config.log, LOG_OF_PEERS, LOG_WARN,
                    "msg=\"transport spins\" transport=%s error=\"it keeps the loop awake, and nothing comes of it\"",
                    transport->ops->name);
    else
        log_limited(transport->peers->config.log, LOG_OF_PEERS, LOG_INFO,
                    "msg=\"transport spins no more\" transport=%s", transport->ops->name);
}

bool peers_spin(const struct peers *peers, const char *name)
{
    const struct peer_transport *transport;
    for (uint32_t i = 0; i < peers->transport_count; i++) {
        transport = &peers->transports[i];
        if (strcmp(transport->ops->name, name) == 0 && transport->handle != NULL && port_is_spinning(transport->port))
            return true;
    }
    LIST_FOREACH(transport, &peers->gpu_transports, entry)
    {
        if (strcmp(transport->ops->name, name) == 0 && transport->handle != NULL && port_is_spinning(transport->port))
            return true;
    }
    return false;
}

static void release_memory(struct peer_transport *transport)
{
    if (transport->sends_known)
        transport_memory_release(transport->handle, transport->send_handle);
    transport->sends_known = false;
}

static void on_port_closed(void *owner)
{
    struct peer_transport *transport = owner;
    struct peers *peers = transport->peers;
    release_memory(transport);
    transport_destroy(transport->handle);
    transport->handle = NULL;
    if (transport->left)
        free(transport);
    peers->ports--;
    peers->on_part_closed(peers);
}

static const struct port_events port_events = {
    .failed = on_port_failed, .spinning = on_port_spinning, .closed = on_port_closed};

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static bool are_understood(const char *name, const char *options, char *why, size_t why_size)
{
    const struct transport_ops *ops = transport_find(name);
    if (ops == NULL || transport_check(ops, options) == STRAIT_OK)
        return true;
    snprintf(why, why_size, "%s-options: '%s' is not understood%s", name, options,
             strstr(options, "tls=") == NULL ? ""
                                             : "; tls may not name posix, sysv, cma, xpmem, self, sm, shm, mm or all");
    return false;
}

/* A typing error must not silently turn the network off. */
enum strait_status peers_check_options(const struct node_options *options, char *why, size_t why_size)
{
    return are_understood("ucx", options->ucx, why, why_size) && are_understood("nccl", options->nccl, why, why_size)
               ? STRAIT_OK
               : STRAIT_ERR_INVALID;
}

/* Is it an address of this host, and not only a name that others have for it (NAT)? */
static bool is_own(struct sockaddr_storage address)
{
    const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address_set_port(&address, 0);
    const bool bound = fd >= 0 && bind(fd, (const struct sockaddr *)&address, address_size(&address)) == 0;
    if (fd >= 0)
        close(fd);
    return bound;
}

/* Finds the host that a transport with one address listens at: the best that peers dial and that is ours, else the
 * first that we listen at. False: there is none. */
static bool own_host(const struct peers *peers, char host[ADDRESS_HOST_MAX])
{
    struct sockaddr_storage address;
    char item[ADDRESS_TEXT_MAX];
    unsigned port;
    for (const char *rest = peers->address; rest != NULL;) {
        rest = address_next(rest, item);
        if (address_split(item, host, &port) && address_numeric(host, port, &address) == ADDRESS_NUMERIC &&
            is_own(address))
            return true;
    }
    for (uint32_t i = 0; i < peers->sockets.bound.count; i++)
        if (!address_is_wildcard(&peers->sockets.bound.found[i].address))
            return address_split(address_text(&peers->sockets.bound.found[i].address, item), host, &port);
    return false;
}

/* UCX, and NCCL's carrier, which is UCX too, listen at the daemon's own address unless their options say otherwise:
 * peers are told a numeric address, so the wildcard address will not do. */
static void complete_options(const struct peers *peers, const char *name, const char *given, char *text, size_t size)
{
    char host[ADDRESS_HOST_MAX];
    const bool known = own_host(peers, host);
    bool is_given = strstr(given, "listen=") != NULL || strstr(given, "carrier=") != NULL;
    if (known && !is_given)
        snprintf(text, size, "listen=%s %s", host, given);
    else
        snprintf(text, size, "%s", given);
    if (peers->options.require_rdma && strcmp(name, "ucx") == 0 && strstr(given, "tls=") == NULL)
        strcat(text, " tls=^tcp"); /* there is room: callers add 32 bytes */
    if (!known && peers->address[0] != 0 && !is_given)
        log_write(peers->config.log, LOG_WARN, "msg=\"%s is for peers of this host only: set listen= in %s-options\"",
                  name, name);
}

/* ---- UCX over TCP ------------------------------------------------------------------------------------------------ */

/* Before 1.17 what strangers send to UCX's ports for TCP can end this process, or keep it busy for good. */
static bool ucx_is_sound(char *version, size_t size)
{
#if STRAIT_HAVE_UCX
    return ucx_is_sound_over_tcp(version, size);
#else
    snprintf(version, size, "%s", "");
    return true;
#endif
}

static bool ucx_has_rdma(void)
{
#if STRAIT_HAVE_UCX
    return ucx_can_load_rdma();
#else
    return false;
#endif
}

static const char *rdma_devices(const struct peers *peers)
{
    return peers->config.rdma_devices != NULL ? peers->config.rdma_devices : RDMA_DEVICES;
}

/* What keeps this node from RDMA; NULL: nothing that shows before a link is made. */
static const char *rdma_lack(const struct peers *peers)
{
    char version[32];
    if (transport_find("ucx") == NULL)
        return "this build has no UCX";
    if (!transport_rdma_is_active(rdma_devices(peers)))
        return "no device for RDMA of this node has an active port";
    if (!ucx_has_rdma())
        return "libibverbs.so.1 is not installed";
    if (strstr(peers->offered, "ucx") != NULL)
        return NULL;
    return ucx_is_sound(version, sizeof(version)) ? "transports does not name ucx, or it cannot be made"
                                                  : "UCX is older than 1.17: transports has to name ucx";
}

/* Once: somebody wants it in spite of that. */
static void warn_of_ucx(struct peers *peers)
{
    char version[32];
    if (!peers->warned_of_ucx && !ucx_is_sound(version, sizeof(version)))
        log_write(peers->config.log, LOG_WARN,
                  "msg=\"ucx over TCP: its ports are for trusted networks only\" version=%s "
                  "error=\"before 1.17 hostile bytes end the process or keep it busy; tcp has no such ports\"",
                  version);
    peers->warned_of_ucx = true;
}

/* Whether UCX is to be used where nobody asked for it. Its listener has a port for TCP whatever it may use, also with
 * RDMA and tls=^tcp. */
static bool ucx_is_wanted(const struct peers *peers)
{
    char version[32];
    if (transport_find("ucx") == NULL || !transport_rdma_is_active(rdma_devices(peers)))
        return false;
    const bool sound = ucx_is_sound(version, sizeof(version));
    if (!sound && strstr(peers->options.transports, "ucx") == NULL)
        log_write(
            peers->config.log, LOG_INFO,
            "msg=\"RDMA is not used\" version=%s error=\"before 1.17 UCX is used only where transports names it\"",
            version);
    if (sound && !ucx_has_rdma()) {
        log_write(peers->config.log, LOG_WARN,
                  "msg=\"RDMA is not used\" version=%s error=\"libibverbs.so.1 is not installed\"", version);
        return false;
    }
    return sound;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* Makes the transport; its options are completed from the node's own. */
static enum strait_status open_transport(struct peers *peers, struct peer_transport *transport,
                                         const struct transport_arena *arena, const char *given)
{
    char options[OPTION_TEXT_MAX + ADDRESS_HOST_MAX + 32] = "";
    const bool sends = transport->device < 0 && peers->config.send_size > 0;
    if (transport->ops == &transport_tcp)
        snprintf(options, sizeof(options), "listen=none connections=%u", peers->options.tcp_connections);
    else if (given != NULL)
        complete_options(peers, transport->ops->name, given, options, sizeof(options));
    enum strait_status status =
        transport_create(transport->ops, arena, &peer_transport_events, transport, options, &transport->handle);
    if (status != STRAIT_OK)
        return status;
    if (sends)
        status = transport_memory(transport->handle, peers->config.send_base, peers->config.send_size,
                                  &transport->send_handle);
    transport->sends_known = status == STRAIT_OK && sends;
    if (status == STRAIT_OK)
        status = port_create(peers->config.loop, transport->handle, &port_events, transport, &transport->port);
    if (status == STRAIT_OK) {
        peers->ports++;
        return STRAIT_OK;
    }
    release_memory(transport);
    transport_destroy(transport->handle);
    transport->handle = NULL;
    return status;
}

/* A library behind a transport may only say that the system refused something. Other values of errno are often those of
 * its search for devices. */
static const char *failure_text(enum strait_status status, int error)
{
    if (status == STRAIT_ERR_IO && error == EMFILE)
        return "Too many open files (LimitNOFILE, ulimit -n)";
    if (status == STRAIT_ERR_IO && error == ENFILE)
        return "Too many open files in system";
    if (status == STRAIT_ERR_IO && error == EAFNOSUPPORT)
        return "this version of it breaks over IPv6: tcp does not, nor UCX 1.17 (or listen= in ucx-options, of IPv4)";
    return strait_status_string(status);
}

/* ---- On demand --------------------------------------------------------------------------------------------------- */

/* UCX's ports have no authentication, and it takes memory and threads of its own: it is there only while a peer that
 * has proved who it is uses it. */
enum strait_status peer_transport_begin(struct peer_transport *transport)
{
    struct peers *peers = transport->peers;
    if (transport->handle != NULL)
        return STRAIT_OK;
    errno = 0;
    enum strait_status status =
        peers->closing ? STRAIT_ERR_AGAIN : open_transport(peers, transport, peers->config.arena, peers->options.ucx);
    if (status != STRAIT_OK && status != STRAIT_ERR_AGAIN)
        log_limited(peers->config.log, LOG_OF_PEERS, LOG_WARN, "msg=\"transport not made\" transport=%s error=\"%s\"",
                    transport->ops->name, failure_text(status, errno));
    return status;
}

/* Closing takes a turn of the loop: a link that is wanted meanwhile gets a new transport. */
void peer_transport_leave(struct peer_transport *transport)
{
    if (!transport->on_demand || transport->links > 0 || transport->handle == NULL)
        return;
    struct peer_transport *left = malloc(sizeof(*left));
    if (left == NULL)
        return; /* after the next link */
    *left = *transport;
    left->left = true;
    transport->handle = NULL;
    transport->port = NULL;
    transport->sends_known = false;
    port_set_owner(left->port, left);
    port_close(left->port);
}

void peer_transport_close(struct peer_transport *transport)
{
    if (transport->handle != NULL)
        port_close(transport->port);
}

/* ---- By their names ---------------------------------------------------------------------------------------------- */

static void leave_out(struct peers *peers, const char *name, const char *error)
{
    size_t used = strlen(peers->left_out);
    log_write(peers->config.log, LOG_WARN, "msg=\"transport left out\" transport=%s error=\"%s\"", name, error);
    snprintf(peers->left_out + used, sizeof(peers->left_out) - used, "%s%s: %s", used > 0 ? "; " : "", name, error);
}

static void open_named(struct peers *peers, const char *name)
{
    struct peer_transport *transport = &peers->transports[peers->transport_count];
    enum strait_status status = STRAIT_ERR_UNSUPPORTED;
    if (peers->transport_count == PEER_TRANSPORTS_MAX || peer_transport_find(peers, name, strlen(name)) != NULL)
        return;
    if (strcmp(name, "shm") == 0 && peers->shm_path[0] == 0) {
        peers->alone = true; /* without a unix socket no peer can reach it */
        return;
    }
    *transport = (struct peer_transport){.peers = peers, .ops = transport_find(name), .device = -1};
    errno = 0;
    transport->on_demand = strcmp(name, "ucx") == 0;
    if (peers->options.require_rdma && strcmp(name, "tcp") == 0) {
        leave_out(peers, name, "require-rdma");
        return;
    }
    if (transport->ops != NULL)
        status =
            open_transport(peers, transport, peers->config.arena, transport->on_demand ? peers->options.ucx : NULL);
    if (status == STRAIT_OK)
        peer_transport_leave(transport); /* that it can be made was to be seen */
    if (status != STRAIT_OK) {
        leave_out(peers, name, transport->ops == NULL ? "not in this build" : failure_text(status, errno));
        return;
    }
    peers->transport_count++;
    size_t used = strlen(peers->offered);
    snprintf(peers->offered + used, sizeof(peers->offered) - used, "%s%s", used > 0 ? "," : "", name);
}

static void open_auto(struct peers *peers)
{
    open_named(peers, "shm");
    if (ucx_is_wanted(peers))
        open_named(peers, "ucx");
    open_named(peers, "tcp");
}

void peer_transports_open(struct peers *peers)
{
    char list[sizeof(peers->options.transports)], *rest = list, *name;
    memcpy(list, peers->options.transports, sizeof(list));
    while ((name = strsep(&rest, ", ")) != NULL)
        if (strcmp(name, "auto") == 0)
            open_auto(peers);
        else if (name[0] != 0)
            open_named(peers, name);
    const struct peer_transport *ucx = peer_transport_find(peers, "ucx", 3);
    if (ucx != NULL)
        warn_of_ucx(peers);
    log_write(peers->config.log, LOG_INFO, "msg=transports usable=\"%s\" left_out=\"%s\"", peers->offered,
              peers->left_out);
}

bool peers_can_travel(const struct peers *peers, char *why, size_t why_size)
{
    const char *lack = peers->options.require_rdma ? rdma_lack(peers) : NULL;
    if (lack != NULL) {
        snprintf(why, why_size, "require-rdma = yes: %s", lack);
        return false;
    }
    if (peers->transport_count > 0 || peers->alone)
        return true;
    snprintf(why, why_size, "transports = %s: none can be used (%s)", peers->options.transports, peers->left_out);
    return false;
}

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

enum strait_status peers_open_gpu(struct peers *peers, enum message_link_by by, uint32_t device,
                                  const struct transport_ops *ops, const struct transport_arena *arena,
                                  const char *options, char *why, size_t why_size)
{
    struct peer_transport *transport =
        peers->closing || gpu_transport_find(peers, by, device) != NULL ? NULL : calloc(1, sizeof(*transport));
    snprintf(why, why_size, "%s", transport != NULL ? "" : strait_status_string(STRAIT_ERR_INVALID));
    if (transport == NULL)
        return STRAIT_ERR_INVALID;
    *transport = (struct peer_transport){.peers = peers, .ops = ops, .device = (int32_t)device, .by = by};
    enum strait_status status = open_transport(peers, transport, arena, options);
    if (status == STRAIT_OK) {
        LIST_INSERT_HEAD(&peers->gpu_transports, transport, entry);
        warn_of_ucx(peers); /* NCCL's carrier is UCX too */
        return status;
    }
    if (status == STRAIT_ERR_UNSUPPORTED)
        transport_missing(ops, why, why_size);
    if (why[0] == 0)
        snprintf(why, why_size, "%s", strait_status_string(status));
    free(transport);
    return status;
}

bool peers_has_gpu(const struct peers *peers, enum message_link_by by, uint32_t device)
{
    return gpu_transport_find(peers, by, device) != NULL;
}
