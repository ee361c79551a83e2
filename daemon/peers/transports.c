#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/peers/peer_internal.h"

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

static void on_port_closed(void *owner)
{
    struct peer_transport *transport = owner;
    transport_destroy(transport->handle);
    transport->handle = NULL;
    transport->peers->ports--;
    transport->peers->on_part_closed(transport->peers);
}

static const struct port_events port_events = {.failed = on_port_failed, .closed = on_port_closed};

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static bool are_understood(const char *name, const char *options, char *why, size_t why_size)
{
    const struct transport_ops *ops = transport_find(name);
    if (ops == NULL || transport_check(ops, options) == STRAIT_OK)
        return true;
    snprintf(why, why_size, "%s-options: '%s' is not understood", name, options);
    return false;
}

/* A typing error must not silently turn the network off. */
enum strait_status peer_transports_check(const struct peers *peers, char *why, size_t why_size)
{
    const struct node_options *options = &peers->options;
    return are_understood("ucx", options->ucx, why, why_size) && are_understood("nccl", options->nccl, why, why_size)
               ? STRAIT_OK
               : STRAIT_ERR_INVALID;
}

/* UCX, and NCCL's carrier, which is UCX too, listen on the daemon's own address unless their options say otherwise:
 * peers are told a numeric address, so the wildcard address will not do. */
static void complete_options(const struct peers *peers, const char *name, const char *given, char *text, size_t size)
{
    char host[ADDRESS_HOST_MAX];
    struct sockaddr_storage address;
    unsigned port;
    bool known = address_numeric(peers->address, &address) && !address_is_wildcard(&address) &&
                 address_split(peers->address, host, &port);
    bool is_given = strstr(given, "listen=") != NULL || strstr(given, "carrier=") != NULL;
    if (known && !is_given)
        snprintf(text, size, "listen=%s %s", host, given);
    else
        snprintf(text, size, "%s", given);
    if (!known && peers->address[0] != 0 && !is_given)
        log_write(peers->config.log, LOG_WARN, "msg=\"%s is for peers of this host only: set listen= in %s-options\"",
                  name, name);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

void peer_transport_release_memory(struct peer_transport *transport)
{
    if (transport->sends_known)
        transport_memory_release(transport->handle, transport->send_handle);
    transport->sends_known = false;
}

/* Makes the transport; its options are completed from the node's own. */
static enum strait_status open_transport(struct peers *peers, struct peer_transport *transport,
                                         const struct transport_arena *arena, const char *given)
{
    char options[OPTION_TEXT_MAX + ADDRESS_HOST_MAX + 16] = "";
    const bool sends = transport->device < 0 && peers->config.send_size > 0;
    if (given != NULL)
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
    if (status == STRAIT_OK)
        return STRAIT_OK;
    peer_transport_release_memory(transport);
    transport_destroy(transport->handle);
    transport->handle = NULL;
    return status;
}

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
    if (transport->ops != NULL)
        status =
            open_transport(peers, transport, peers->config.arena, strcmp(name, "ucx") == 0 ? peers->options.ucx : NULL);
    if (status != STRAIT_OK) {
        leave_out(peers, name, transport->ops == NULL ? "not in this build" : strait_status_string(status));
        return;
    }
    peers->transport_count++;
    peers->ports++;
    size_t used = strlen(peers->offered);
    snprintf(peers->offered + used, sizeof(peers->offered) - used, "%s%s", used > 0 ? "," : "", name);
}

void peer_transports_open(struct peers *peers)
{
    char list[sizeof(peers->options.transports)], *rest = list, *name;
    memcpy(list, peers->options.transports, sizeof(list));
    while ((name = strsep(&rest, ", ")) != NULL)
        if (name[0] != 0)
            open_named(peers, name);
}

bool peers_can_travel(const struct peers *peers, char *why, size_t why_size)
{
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
        peers->ports++;
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
