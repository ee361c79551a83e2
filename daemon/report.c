/* The report of a node about itself. */
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <utlist.h>

#include "daemon/node.h"
#include "daemon/session.h"
#include "daemon/offer.h"
#include "daemon/gpu_path.h"
#include "daemon/sink.h"

static void refresh_slots(struct node *node)
{
    struct metrics *m = &node->metrics;
    m->slots = node->receive.slot_count;
    m->slots_used = 0;
    for (uint32_t i = 0; i < node->receive.arena_count; i++)
        m->slots_used += node->receive.arenas[i]->slots.used;
    m->send_slots = node->send.slot_count;
    m->send_slots_used = node->send.used;
    const struct gpu_links *gpu;
    LL_FOREACH (node->gpu_links, gpu) {
        m->send_slots += gpu->send.slot_count;
        m->send_slots_used += gpu->send.used;
    }
    m->slots_quarantined = 0;
    for (uint32_t i = 0; i < node->receive.slot_count; i++)
        if (node->receive.slots[i].sink != NULL && node->receive.slots[i].sink->expectation->request.decided)
            m->slots_quarantined++;
}

static void refresh_requests(struct node *node)
{
    struct metrics *m = &node->metrics;
    m->live_expectations = m->live_offers = m->quarantined_pages = 0;
    const struct expectation *e;
    DL_FOREACH (node->exchange.expectations, e) {
        m->live_expectations += !e->request.decided;
        if (e->request.decided && !e->request.drained)
            m->quarantined_pages += e->request.pages.total;
    }
    const struct offer *o;
    DL_FOREACH (node->exchange.offers, o) {
        m->live_offers += !o->request.decided;
        if (o->request.decided && !o->request.drained)
            m->quarantined_pages += o->request.pages.total;
    }
    m->parked = node->exchange.pending_count;
}

static void count_up(void *arg, struct peer *peer)
{
    uint64_t *count = arg;
    *count += peer->state == PEER_UP;
}

static void refresh(struct node *node)
{
    struct metrics *m = &node->metrics;
    refresh_slots(node);
    refresh_requests(node);
    struct device_state state;
    m->gpus = m->gpus_failed = 0;
    for (int32_t number = 0; node->devices != NULL && number < DEVICES_MAX; number++) {
        m->gpus += devices_state(node->devices, number, &state);
        m->gpus_failed += state.failed;
    }
    m->clients = node->session_count;
    m->peers = 0;
    if (node->peers != NULL)
        peers_each(node->peers, count_up, &m->peers);
    m->pools = m->pool_bytes = 0;
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next) {
        m->pools++;
        m->pool_bytes += pool->pool->bytes;
    }
}

char *node_metrics(struct node *node, size_t *size)
{
    refresh(node);
    return metrics_text(&node->metrics, size);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void add_path(void *arg, const struct gpu_path_report *report)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(arg, item);
    cJSON_AddNumberToObject(item, "device", report->device);
    cJSON_AddNumberToObject(item, "peer_device", report->peer_device);
    cJSON_AddStringToObject(item, "wire", report->wire);
    if (report->why[0] != '\0')
        cJSON_AddStringToObject(item, "why", report->why);
}

static void add_peer(void *arg, struct peer *peer)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(arg, item);
    cJSON_AddStringToObject(item, "address", peer->address);
    cJSON_AddBoolToObject(item, "dialled", peer->dialled);
    static const char *const texts[] = {"idle", "dialling", "proving", "linking", "up", "closing"};
    cJSON_AddStringToObject(item, "state", texts[peer->state]);
    if (peer->state != PEER_UP) {
        cJSON_AddStringToObject(item, "why", peer->why);
        return;
    }
    const struct peer_use *use = peer->owner;
    cJSON_AddStringToObject(item, "transport", peer->link->transport->ops->name);
    cJSON_AddNumberToObject(item, "round_trip_us", (double)peer->round_trip_us);
    cJSON_AddBoolToObject(item, "codebook_matches", peer->codebook_matches);
    if (use == NULL)
        return;
    cJSON_AddStringToObject(item, "coding", use->policy.reason);
    cJSON_AddNumberToObject(item, "wire_bytes_per_second",
                            use->policy.link.rate != 0 ? use->policy.link.rate : use->policy.pinned.rate);
    cJSON_AddNumberToObject(item, "nccl_bytes_per_second", use->policy.links[LINK_BY_NCCL].rate);
    cJSON_AddNumberToObject(item, "ucx_gpu_bytes_per_second", use->policy.links[LINK_BY_UCX].rate);
    gpu_path_each(use->node, peer, add_path, cJSON_AddArrayToObject(item, "gpu_ways"));
}

static void add_pools(struct node *node, cJSON *array)
{
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next) {
        char id[2 * STRAIT_POOL_ID_BYTES + 1];
        for (uint32_t i = 0; i < STRAIT_POOL_ID_BYTES; i++)
            snprintf(id + 2 * i, 3, "%02x", pool->id.bytes[i]);
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(array, item);
        cJSON_AddStringToObject(item, "id", id);
        cJSON_AddNumberToObject(item, "bytes", (double)pool->pool->bytes);
        cJSON_AddNumberToObject(item, "device_bytes", (double)pool->pool->device_bytes);
        cJSON_AddNumberToObject(item, "groups", pool->pool->group_count);
        cJSON_AddNumberToObject(item, "uses", pool->uses);
        cJSON_AddBoolToObject(item, "removing", pool->removing);
    }
}

/* Adds the devices that clients use. */
static void add_devices(struct node *node, cJSON *array)
{
    struct device_state state;
    for (int32_t number = 0; number < DEVICES_MAX; number++) {
        if (!devices_state(node->devices, number, &state))
            continue;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(array, item);
        cJSON_AddNumberToObject(item, "device", number);
        cJSON_AddStringToObject(item, "state", state.failed ? "failed" : "in use");
        if (state.failed)
            cJSON_AddStringToObject(item, "why", state.why);
        const struct gpu_links *gpu = gpu_links_of(node, number);
        if (gpu != NULL && gpu->by[LINK_BY_NCCL].asked)
            cJSON_AddStringToObject(item, "nccl", gpu_links_state(gpu, LINK_BY_NCCL));
        if (gpu != NULL && gpu->by[LINK_BY_UCX].asked)
            cJSON_AddStringToObject(item, "ucx", gpu_links_state(gpu, LINK_BY_UCX));
    }
}

static void add_node(struct node *node, cJSON *root)
{
    char incarnation[17];
    snprintf(incarnation, sizeof(incarnation), "%016llx", (unsigned long long)node->incarnation);
    cJSON_AddStringToObject(root, "version", strait_version());
    cJSON_AddNumberToObject(root, "uptime_seconds", (double)(uv_hrtime() - node->began) * 1e-9);
    cJSON_AddStringToObject(root, "incarnation", incarnation);
    cJSON_AddStringToObject(root, "address", node->peers != NULL ? peers_address(node->peers) : "");
    cJSON_AddStringToObject(root, "codec", strait_codec_name(strait_codec_get(NULL)));
    cJSON_AddBoolToObject(root, "draining", node->draining);
    cJSON_AddBoolToObject(root, "codebook", node->codebook != NULL);
}

char *node_report(struct node *node, size_t *size)
{
    refresh(node);
    cJSON *root = cJSON_CreateObject();
    add_node(node, root);
    cJSON *peers = cJSON_AddArrayToObject(root, "peers");
    if (node->peers != NULL)
        peers_each(node->peers, add_peer, peers);
    add_pools(node, cJSON_AddArrayToObject(root, "pools"));
    if (node->devices != NULL)
        add_devices(node, cJSON_AddArrayToObject(root, "devices"));
    char *extra = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    char *text = metrics_json(&node->metrics, extra, size);
    cJSON_free(extra);
    return text;
}
