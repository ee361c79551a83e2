/* The report of a node about itself. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <utlist.h>

#include "daemon/base/hello.h"
#include "daemon/node.h"
#include "daemon/session.h"
#include "daemon/offer.h"
#include "daemon/gpu_path.h"
#include "daemon/sink.h"

#define STATUS_SCHEMA_VERSION 1 /* rises when fields are removed or mean something else: docs/operations.md */

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
    m->request_bytes = 0;
    const struct session *session;
    DL_FOREACH (node->sessions, session)
        m->request_bytes += session->charged;
    m->parked = node->exchange.pending_count - node->exchange.withdrawn_count;
}

static void count_up(void *arg, struct peer *peer)
{
    uint64_t *count = arg;
    *count += peer->state == PEER_UP;
}

/* Time that the calling thread has run. */
static uint64_t thread_cpu_ns(void)
{
    struct timespec time = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void reset_gauges(void *arg, struct peer_figures *figures)
{
    (void)arg;
    figures->connections = figures->round_trip_us = 0;
    memset(figures->by_transport, 0, sizeof(figures->by_transport));
}

static void count_connection(void *arg, struct peer *peer)
{
    (void)arg;
    const struct peer_use *use = peer->owner;
    if (peer->state != PEER_UP || use == NULL)
        return;
    struct peer_figures *figures = use->figures;
    figures->connections++;
    for (unsigned t = 0; t < TRANSPORTS; t++)
        figures->by_transport[t] += strcmp(metric_transport_names[t], peer_transport_name(peer)) == 0;
    if (figures->round_trip_us == 0 || (peer->round_trip_us != 0 && peer->round_trip_us < figures->round_trip_us))
        figures->round_trip_us = peer->round_trip_us;
}

static void refresh_peers(struct node *node)
{
    node->metrics.peers = 0;
    peer_figures_each(&node->peer_figures, reset_gauges, NULL);
    if (node->peers == NULL)
        return;
    peers_each(node->peers, count_up, &node->metrics.peers);
    peers_each(node->peers, count_connection, NULL);
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
    m->loop_cpu_ns = thread_cpu_ns(); /* the loop's thread calls this */
    process_read(&m->process);
    m->draining = node->draining;
    m->rdma_active = transport_rdma_is_active(RDMA_DEVICES);
    m->codebook_loaded = node_codebook(node) != NULL;
    for (unsigned t = 0; t < TRANSPORTS; t++)
        m->spinning[t] = node->peers != NULL && peers_spin(node->peers, metric_transport_names[t]);
    m->half_open = node->half_open;
    m->clients = node->session_count - node->half_open;
    refresh_peers(node);
    m->pools = m->pool_bytes = 0;
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next) {
        m->pools++;
        m->pool_bytes += pool->pool->bytes;
    }
}

/* ---- Figures of peers -------------------------------------------------------------------------------------------- */

#define OF_PEER(field) .offset = offsetof(struct peer_figures, field)

static const struct peer_figure {
    const char *name, *type, *label, *json, *help; /* help NULL: of the family before */
    size_t offset;
    bool microseconds; /* printed as seconds */
} peer_figures[] = {
    {"strait_peer_connections", "gauge", "", "connections", "Connections with the peer that are up.",
     OF_PEER(connections)},
    {"strait_peer_transport_connections", "gauge", ",transport=\"shm\"", "connections_shm",
     "Those of them whose chunks this transport carries.", OF_PEER(by_transport[TRANSPORT_SHM])},
    {"strait_peer_transport_connections", "gauge", ",transport=\"tcp\"", "connections_tcp", NULL,
     OF_PEER(by_transport[TRANSPORT_TCP])},
    {"strait_peer_transport_connections", "gauge", ",transport=\"ucx\"", "connections_ucx", NULL,
     OF_PEER(by_transport[TRANSPORT_UCX])},
    {"strait_peer_round_trip_seconds", "gauge", "", "round_trip_us",
     "Round trip of heartbeats, smoothed; 0: not measured yet.", OF_PEER(round_trip_us), .microseconds = true},
    {"strait_peer_raw_bytes_total", "counter", ",direction=\"sent\"", "raw_bytes_sent",
     "Page bytes in the peer's chunks, before coding.", OF_PEER(raw_bytes_sent)},
    {"strait_peer_raw_bytes_total", "counter", ",direction=\"landed\"", "raw_bytes_landed", NULL,
     OF_PEER(raw_bytes_landed)},
    {"strait_peer_wire_bytes_total", "counter", ",direction=\"sent\"", "wire_bytes_sent",
     "Bytes of the peer's chunks as they travelled.", OF_PEER(wire_bytes_sent)},
    {"strait_peer_wire_bytes_total", "counter", ",direction=\"landed\"", "wire_bytes_landed", NULL,
     OF_PEER(wire_bytes_landed)},
    {"strait_peer_chunks_total", "counter", ",direction=\"sent\"", "chunks_sent",
     "Chunks that the peer was sent, and those of its that are in place.", OF_PEER(chunks_sent)},
    {"strait_peer_chunks_total", "counter", ",direction=\"landed\"", "chunks_landed", NULL, OF_PEER(chunks_landed)},
    {"strait_peer_failures_total", "counter", ",what=\"transfer\"", "failed_transfers",
     "What failed with the peer: transfers that no side aborted, chunks, connections that were up.",
     OF_PEER(failures[PEER_FAILED_TRANSFER])},
    {"strait_peer_failures_total", "counter", ",what=\"chunk\"", "failed_chunks", NULL,
     OF_PEER(failures[PEER_FAILED_CHUNK])},
    {"strait_peer_failures_total", "counter", ",what=\"connection\"", "failed_connections", NULL,
     OF_PEER(failures[PEER_FAILED_CONNECTION])},
};
enum { PEER_FIGURES = sizeof(peer_figures) / sizeof(peer_figures[0]) };

static uint64_t peer_figure_of(const struct peer_figures *figures, const struct peer_figure *figure)
{
    uint64_t value;
    memcpy(&value, (const char *)figures + figure->offset, sizeof(value));
    return value;
}

/* Prints a label's value: an address is what the peer, or a client, says it is. */
static void print_escaped(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\\' || *text == '"')
            fputc('\\', out);
        fputc(*text > ' ' && *text <= '~' ? *text : '?', out);
    }
}

struct peer_printing {
    FILE *out;
    const struct peer_figure *figure;
};

static void print_peer_figure(void *arg, struct peer_figures *figures)
{
    const struct peer_printing *printing = arg;
    fprintf(printing->out, "%s{peer=\"", printing->figure->name);
    print_escaped(printing->out, figures->address);
    const uint64_t value = peer_figure_of(figures, printing->figure);
    if (printing->figure->microseconds)
        fprintf(printing->out, "\"%s} %" PRIu64 ".%06" PRIu64 "\n", printing->figure->label, value / 1000000,
                value % 1000000);
    else
        fprintf(printing->out, "\"%s} %" PRIu64 "\n", printing->figure->label, value);
}

static void print_peer_figures(FILE *out, struct node *node)
{
    for (int f = 0; f < PEER_FIGURES; f++) {
        struct peer_printing printing = {out, &peer_figures[f]};
        if (peer_figures[f].help != NULL)
            fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", peer_figures[f].name, peer_figures[f].help,
                    peer_figures[f].name, peer_figures[f].type);
        peer_figures_each(&node->peer_figures, print_peer_figure, &printing);
    }
}

/* Adds a number without the rounding that doubles have above 2^53. */
static void add_whole(cJSON *object, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    cJSON_AddRawToObject(object, name, text);
}

static void add_wire(cJSON *ways, const char *wire, const char *memory, uint64_t bytes)
{
    if (bytes == 0)
        return;
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(ways, item);
    cJSON_AddStringToObject(item, "wire", wire);
    cJSON_AddStringToObject(item, "memory", memory);
    add_whole(item, "bytes", bytes);
}

/* Adds the ways that bytes have really gone. */
static void add_ways(cJSON *item, const struct peer_figures *figures)
{
    cJSON *ways = cJSON_AddArrayToObject(item, "ways");
    for (unsigned w = 0; w < WIRE_NONE; w++)
        add_wire(ways, metric_wire_names[w], w == WIRE_PEER || w == WIRE_NCCL ? "cuda" : "host", figures->wires[w]);
    add_wire(ways, "ucx", "cuda", figures->ucx_gpus);
}

static void add_peer_figures(void *arg, struct peer_figures *figures)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(arg, item);
    cJSON_AddStringToObject(item, "address", figures->address);
    for (int f = 0; f < PEER_FIGURES; f++)
        add_whole(item, peer_figures[f].json, peer_figure_of(figures, &peer_figures[f]));
    add_ways(item, figures);
}

/* ---- Figures of tenants ------------------------------------------------------------------------------------------ */

static const struct tenant_figure {
    const char *name, *type, *json, *help;
    size_t offset;
} tenant_figures[] = {
    {"strait_tenant_pool_bytes", "gauge", "pool_bytes", "Bytes of pool memory mapped.",
     offsetof(struct tenant, mapped)},
    {"strait_tenant_transfers_live", "gauge", "transfers_live", "Offers and expectations that are not over.",
     offsetof(struct tenant, live)},
    {"strait_tenant_transfers_done_total", "counter", "transfers_done", "Offers and expectations that ended with DONE.",
     offsetof(struct tenant, done)},
    {"strait_tenant_transfers_failed_total", "counter", "transfers_failed", "Offers and expectations that failed.",
     offsetof(struct tenant, failed)},
    {"strait_tenant_bytes_landed_total", "counter", "bytes_landed", "Page bytes that landed in the tenant's pools.",
     offsetof(struct tenant, bytes_landed)},
    {"strait_tenant_denied_total", "counter", "denied", "Attempts of other tenants to reach the tenant's pools.",
     offsetof(struct tenant, denied)},
};
enum { TENANT_FIGURES = sizeof(tenant_figures) / sizeof(tenant_figures[0]) };

static uint64_t figure_of(const struct tenant *tenant, const struct tenant_figure *figure)
{
    uint64_t value;
    memcpy(&value, (const char *)tenant + figure->offset, sizeof(value));
    return value;
}

static void print_tenants(FILE *out, const struct node *node)
{
    for (int f = 0; f < TENANT_FIGURES; f++) {
        const struct tenant_figure *figure = &tenant_figures[f];
        fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", figure->name, figure->help, figure->name, figure->type);
        for (uint32_t t = 0; t < node->tenants.count; t++)
            if (tenant_is_there(&node->tenants.list[t]))
                fprintf(out, "%s{tenant=\"%s\"} %llu\n", figure->name, node->tenants.list[t].name,
                        (unsigned long long)figure_of(&node->tenants.list[t], figure));
    }
}

static void print_build(FILE *out)
{
    fprintf(out,
            "# HELP strait_build_info What runs: its version, and the variant of the codec that it chose.\n"
            "# TYPE strait_build_info gauge\n"
            "strait_build_info{version=\"%s\",codec=\"%s\"} 1\n",
            strait_version(), strait_codec_name(strait_codec_get(NULL)));
}

/* Appends the families that have labels of their own to the text, which it takes. Without memory only the text is
 * there. */
static char *with_labelled(struct node *node, char *text, size_t *size)
{
    char *all = NULL;
    size_t written = 0;
    FILE *out = open_memstream(&all, &written);
    if (out == NULL)
        return text;
    fwrite(text, 1, *size, out);
    print_build(out);
    print_peer_figures(out, node);
    if (node->tenants.count > 1)
        print_tenants(out, node);
    if (fclose(out) != 0) {
        free(all);
        return text;
    }
    free(text);
    *size = written;
    return all;
}

static void add_tenant(const struct tenant *tenant, cJSON *array)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(array, item);
    cJSON_AddStringToObject(item, "name", tenant->name);
    for (int f = 0; f < TENANT_FIGURES; f++)
        cJSON_AddNumberToObject(item, tenant_figures[f].json, (double)figure_of(tenant, &tenant_figures[f]));
}

/* A tenant sees its own figures. */
static void add_tenants(const struct node *node, const struct tenant *only, cJSON *array)
{
    for (uint32_t t = 0; node->tenants.count > 1 && t < node->tenants.count; t++)
        if (tenant_is_there(&node->tenants.list[t]) && (only == NULL || only == &node->tenants.list[t]))
            add_tenant(&node->tenants.list[t], array);
}

char *node_metrics(struct node *node, size_t *size)
{
    refresh(node);
    char *text = metrics_text(&node->metrics, size);
    return text != NULL ? with_labelled(node, text, size) : NULL;
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
    cJSON_AddStringToObject(item, "version", peer->software);
    if (peer->clock_skew_us != HELLO_NO_CLOCK)
        cJSON_AddNumberToObject(item, "clock_skew_us", (double)peer->clock_skew_us);
    cJSON_AddBoolToObject(item, "codebook_matches", peer->codebook_matches);
    cJSON_AddBoolToObject(item, "has_codebook", peer->has_codebook);
    if (use == NULL)
        return;
    cJSON_AddBoolToObject(item, "codebook_known", peer->codebook_matches || use->codebooks.known);
    cJSON_AddBoolToObject(item, "codebook_fetched",
                          peer->has_codebook && !peer->codebook_matches && use->codebooks.claim_count != 0 &&
                              codebooks_have(use->node->codebooks, peer->codebook_id));
    cJSON_AddStringToObject(item, "coding", use->policy.reason);
    cJSON_AddNumberToObject(item, "wire_bytes_per_second",
                            use->policy.link.rate != 0 ? use->policy.link.rate : use->policy.pinned.rate);
    cJSON_AddNumberToObject(item, "nccl_bytes_per_second", use->policy.links[LINK_BY_NCCL].rate);
    cJSON_AddNumberToObject(item, "ucx_gpu_bytes_per_second", use->policy.links[LINK_BY_UCX].rate);
    gpu_path_each(use->node, peer, add_path, cJSON_AddArrayToObject(item, "gpu_ways"));
}

static void add_pools(struct node *node, const struct tenant *only, cJSON *array)
{
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next) {
        if (only != NULL && pool->tenant != only)
            continue;
        char id[2 * STRAIT_POOL_ID_BYTES + 1];
        for (uint32_t i = 0; i < STRAIT_POOL_ID_BYTES; i++)
            snprintf(id + 2 * i, 3, "%02x", pool->key.id.bytes[i]);
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
        cJSON_AddStringToObject(item, "codec", state.codec);
        if (state.failed)
            cJSON_AddStringToObject(item, "why", state.why);
        const struct gpu_links *gpu = gpu_links_of(node, number);
        if (gpu != NULL && gpu->by[LINK_BY_NCCL].asked)
            cJSON_AddStringToObject(item, "nccl", gpu_links_state(gpu, LINK_BY_NCCL));
        if (gpu != NULL && gpu->by[LINK_BY_UCX].asked)
            cJSON_AddStringToObject(item, "ucx", gpu_links_state(gpu, LINK_BY_UCX));
    }
}

/* Bits that mode tiered is expected to spend on an exponent: of all that the set was made of if it has the counts, else
 * the mean of its tables. 0: not known. */
static double expected_bits(const struct strait_codebook *set)
{
    const uint32_t count = strait_codebook_count(set);
    double bits = 0, weights = 0;
    for (uint32_t t = count > 1; t < count; t++) {
        const uint64_t *counts = strait_codebook_counts(set, t);
        double weight = 1;
        for (unsigned e = 0; counts != NULL && e < 256; e++)
            weight += (double)counts[e];
        if (strait_codebook_expected(set, t) == 0)
            continue;
        bits += weight * strait_codebook_expected(set, t) / 1000;
        weights += weight;
    }
    return weights > 0 ? bits / weights : 0;
}

static void add_codebook(const struct node *node, cJSON *root)
{
    const struct strait_codebook *set = node_codebook(node);
    cJSON_AddBoolToObject(root, "codebook", set != NULL);
    if (set == NULL)
        return;
    char id[CODEBOOK_ID_TEXT];
    cJSON_AddStringToObject(root, "codebook_id", codebook_id_text(id, strait_codebook_id(set)));
    cJSON_AddNumberToObject(root, "codebook_tables", strait_codebook_count(set));
    const double bits = expected_bits(set);
    if (bits > 0)
        cJSON_AddNumberToObject(root, "codebook_expected_bits", bits);
}

static void add_node(struct node *node, cJSON *root)
{
    char incarnation[17];
    snprintf(incarnation, sizeof(incarnation), "%016llx", (unsigned long long)node->incarnation);
    cJSON_AddStringToObject(root, "schema", "strait status");
    cJSON_AddNumberToObject(root, "schema_version", STATUS_SCHEMA_VERSION);
    cJSON_AddStringToObject(root, "version", strait_version());
    cJSON_AddNumberToObject(root, "pid", getpid());
    cJSON_AddNumberToObject(root, "uptime_seconds", (double)(uv_hrtime() - node->began) * 1e-9);
    cJSON_AddStringToObject(root, "incarnation", incarnation);
    cJSON_AddStringToObject(root, "address", node->peers != NULL ? peers_address(node->peers) : "");
    cJSON_AddStringToObject(root, "codec", strait_codec_name(strait_codec_get(NULL)));
    cJSON_AddBoolToObject(root, "draining", node->draining);
    add_codebook(node, root);
    cJSON_AddStringToObject(root, "transports", node->peers != NULL ? peers_offered(node->peers) : "");
    cJSON_AddStringToObject(root, "transports_left_out", node->peers != NULL ? peers_left_out(node->peers) : "");
}

/* `tenant` NULL: everything; else without what is other tenants' affair. malloc'ed. */
static char *report(struct node *node, const struct tenant *tenant, size_t *size)
{
    refresh(node);
    cJSON *root = cJSON_CreateObject();
    add_node(node, root);
    cJSON *peers = cJSON_AddArrayToObject(root, "peers");
    if (node->peers != NULL && (tenant == NULL || node->tenants.count == 1))
        peers_each(node->peers, add_peer, peers);
    cJSON *figures = cJSON_AddArrayToObject(root, "peer_figures");
    if (tenant == NULL || node->tenants.count == 1)
        peer_figures_each(&node->peer_figures, add_peer_figures, figures);
    add_tenants(node, tenant, cJSON_AddArrayToObject(root, "tenants"));
    add_pools(node, tenant, cJSON_AddArrayToObject(root, "pools"));
    if (node->devices != NULL)
        add_devices(node, cJSON_AddArrayToObject(root, "devices"));
    char *extra = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    char *text = metrics_json(&node->metrics, extra, size);
    cJSON_free(extra);
    return text;
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

/* Whose figures a client sees; NULL: all. */
static const struct tenant *view_of_client(const struct session *session)
{
    return session->admin ? NULL : session->tenant;
}

static bool is_to_be_answered(const struct session *session)
{
    return session->stats_wanted > 0 && session->stats_turn != session->node->stats_turn && !session->ending;
}

/* Sends a report to whoever waits for this one: one to each. */
static void answer_stats(struct node *node, const struct tenant *only)
{
    size_t size;
    struct session *session;
    char *text = report(node, only, &size);
    struct message message = {.type = MESSAGE_STATS_TEXT, .text = {.text = view_of(text, text != NULL ? size : 0)}};
    DL_FOREACH (node->sessions, session) {
        if (!is_to_be_answered(session) || view_of_client(session) != only)
            continue;
        session->stats_turn = node->stats_turn;
        session_send(session, &message);
        node->stats_wanted |= --session->stats_wanted > 0;
    }
    free(text);
}

void node_answer_stats(struct node *node)
{
    struct session *session;
    if (!node->stats_wanted)
        return;
    node->stats_wanted = false;
    node->stats_turn++;
    DL_FOREACH (node->sessions, session)
        if (is_to_be_answered(session))
            answer_stats(node, view_of_client(session));
}
