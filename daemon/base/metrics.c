#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/base/metrics.h"

#define AT(field) .offset = offsetof(struct metrics, field)

const char *const metric_stage_names[STAGES] = {
    [STAGE_QUEUE] = "queue",   [STAGE_ENCODE] = "encode", [STAGE_WIRE] = "wire",
    [STAGE_DECODE] = "decode", [STAGE_COPY] = "copy",     [STAGE_TRANSFER] = "transfer",
};

const char *const metric_transport_names[TRANSPORTS] = {
    [TRANSPORT_SHM] = "shm", [TRANSPORT_TCP] = "tcp", [TRANSPORT_UCX] = "ucx", [TRANSPORT_NCCL] = "nccl"};
const char *const metric_wire_names[WIRE_NONE] = {[WIRE_SHM] = "shm",       [WIRE_TCP] = "tcp",   [WIRE_UCX] = "ucx",
                                                  [WIRE_PINNED] = "pinned", [WIRE_PEER] = "peer", [WIRE_NCCL] = "nccl"};
const char *const metric_phase_names[PHASES] = {
    [PHASE_START] = "start",   [PHASE_CONNECT] = "connect", [PHASE_ANSWER] = "answer", [PHASE_CHUNKS] = "chunks",
    [PHASE_DECODE] = "decode", [PHASE_VERDICT] = "verdict", [PHASE_OFFER] = "offer",   [PHASE_ENCODE] = "encode",
    [PHASE_SEND] = "send",     [PHASE_END] = "end",
};

static const char *phase_role(unsigned phase)
{
    return phase < SINK_PHASES ? "sink" : "source";
}

#define SENT   "direction=\"sent\""
#define LANDED "direction=\"landed\""

#define WIRE(name, memory) "wire=\"" name "\",memory=\"" memory "\""

const struct metric_row metric_counters[] = {
    {"strait_transfers_started_total", "role=\"source\"", "Offers and expectations begun.", "offers", AT(offers)},
    {"strait_transfers_started_total", "role=\"sink\"", NULL, "expectations", AT(expectations)},
    {"strait_reads_served_total", NULL, "Reads of served pages begun, which count as offers too.", "reads_served",
     AT(reads)},
    {"strait_transfers_done_total", "role=\"source\"", "Offers and expectations that ended with DONE.", "source_done",
     AT(source_done)},
    {"strait_transfers_done_total", "role=\"sink\"", NULL, "sink_done", AT(sink_done)},
    {"strait_chunk_raw_bytes_total", SENT, "Page bytes in chunks, before coding.", "raw_bytes_sent",
     AT(raw_bytes_sent)},
    {"strait_chunk_raw_bytes_total", LANDED, NULL, "raw_bytes_landed", AT(raw_bytes_landed)},
    {"strait_chunk_wire_bytes_total", SENT, "Bytes of chunks as they travelled.", "wire_bytes_sent",
     AT(wire_bytes_sent)},
    {"strait_chunk_wire_bytes_total", LANDED, NULL, "wire_bytes_landed", AT(wire_bytes_landed)},
    {"strait_wire_bytes_total", WIRE("shm", "host"), "Bytes of chunks sent, by their way.", "wire_bytes_shm",
     AT(wires[WIRE_SHM])},
    {"strait_wire_bytes_total", WIRE("tcp", "host"), NULL, "wire_bytes_tcp", AT(wires[WIRE_TCP])},
    {"strait_wire_bytes_total", WIRE("ucx", "host"), NULL, "wire_bytes_ucx", AT(wires[WIRE_UCX])},
    {"strait_wire_bytes_total", WIRE("pinned", "host"), NULL, "wire_bytes_pinned", AT(wires[WIRE_PINNED])},
    {"strait_wire_bytes_total", WIRE("peer", "cuda"), NULL, "wire_bytes_peer", AT(wires[WIRE_PEER])},
    {"strait_wire_bytes_total", WIRE("nccl", "cuda"), NULL, "wire_bytes_nccl", AT(wires[WIRE_NCCL])},
    {"strait_wire_bytes_total", WIRE("ucx", "cuda"), NULL, "wire_bytes_ucx_cuda", AT(ucx_gpus)},
    {"strait_chunks_sent_total", "coding=\"raw\"", "Chunks sent, by how they were coded.", "chunks_sent_raw",
     AT(chunks_sent[CODED_RAW])},
    {"strait_chunks_sent_total", "coding=\"top16\"", NULL, "chunks_sent_top16", AT(chunks_sent[CODED_TOP16])},
    {"strait_chunks_sent_total", "coding=\"tiered\"", NULL, "chunks_sent_tiered", AT(chunks_sent[CODED_TIERED])},
    {"strait_chunks_sent_total", "coding=\"base\"", NULL, "chunks_sent_base", AT(chunks_sent[CODED_BASE])},
    {"strait_chunks_sent_total", "coding=\"split\"", NULL, "chunks_sent_split", AT(chunks_sent[CODED_SPLIT])},
    {"strait_chunks_sent_total", "coding=\"parts\"", NULL, "chunks_sent_parts", AT(chunks_sent[CODED_PARTS])},
    {"strait_chunks_sent_total", "coding=\"local\"", NULL, "chunks_sent_local", AT(chunks_sent[CODED_LOCAL])},
    {"strait_chunks_landed_total", NULL, "Chunks checked, decoded and in place.", "chunks_landed", AT(chunks_landed)},
    {"strait_chunks_refused_total", NULL, "Chunks turned away: stale or of no live expectation.", "chunks_refused",
     AT(chunks_refused)},
    {"strait_chunks_forged_total", NULL, "Encrypted chunks that were not what the peer had encrypted.", "chunks_forged",
     AT(chunks_forged)},
    {"strait_local_bytes_total", NULL, "Bytes copied page to page under this daemon.", "local_bytes", AT(local_bytes)},
    {"strait_coded_values_total", NULL, "Values encoded by the tables of the codebook set.", "coded_values",
     AT(coded_values)},
    {"strait_escapes_total", NULL, "Values whose exponent the codebook had no short code for.", "escapes", AT(escapes)},
    {"strait_exponent_bits_total", NULL,
     "Bits that mode tiered spent on exponents, of chunks whose tables expect some.", "exponent_bits",
     AT(exponent_bits)},
    {"strait_exponent_bits_expected_total", NULL, "Bits that the tables expected of them.", "expected_bits",
     AT(expected_bits)},
    {"strait_grants_total", NULL, "Grants of receive slots given.", "grants", AT(grants)},
    {"strait_grants_reclaimed_total", NULL, "Unused grants asked back.", "grants_reclaimed", AT(grants_reclaimed)},
    {"strait_accept_rests_total", "listener=\"clients\"",
     "Times that a listener stopped accepting for 100 ms: no descriptor or memory was left.", "accept_rests_clients",
     AT(accept_rests[LISTENER_CLIENTS])},
    {"strait_accept_rests_total", "listener=\"peers\"", NULL, "accept_rests_peers", AT(accept_rests[LISTENER_PEERS])},
    {"strait_accept_rests_total", "listener=\"metrics\"", NULL, "accept_rests_metrics",
     AT(accept_rests[LISTENER_METRICS])},
    {"strait_busy_polls_total", "result=\"paid\"",
     "Times that the loop polled for the next step of a transfer instead of sleeping, by whether it came.",
     "busy_polls_paid", AT(busy_polls_paid)},
    {"strait_busy_polls_total", "result=\"lost\"", NULL, "busy_polls_lost", AT(busy_polls_lost)},
    {"strait_clients_accepted_total", NULL, "Connections of clients accepted.", "clients_accepted",
     AT(clients_accepted)},
    {"strait_clients_refused_total", "reason=\"clients\"", "Connections of clients refused.", "clients_refused",
     AT(clients_refused[REFUSED_CLIENTS])},
    {"strait_clients_refused_total", "reason=\"clients_per_user\"", NULL, "clients_refused_per_user",
     AT(clients_refused[REFUSED_CLIENTS_PER_USER])},
    {"strait_clients_refused_total", "reason=\"half_open\"", NULL, "clients_refused_half_open",
     AT(clients_refused[REFUSED_HALF_OPEN])},
    {"strait_clients_refused_total", "reason=\"no_hello\"", NULL, "clients_refused_no_hello",
     AT(clients_refused[REFUSED_NO_HELLO])},
    {"strait_clients_refused_total", "reason=\"no_tenant\"", NULL, "clients_refused_no_tenant",
     AT(clients_refused[REFUSED_NO_TENANT])},
    {"strait_clients_refused_total", "reason=\"stopping\"", NULL, "clients_refused_stopping",
     AT(clients_refused[REFUSED_STOPPING])},
    {"strait_clients_refused_total", "reason=\"no_memory\"", NULL, "clients_refused_no_memory",
     AT(clients_refused[REFUSED_NO_MEMORY])},
    {"strait_client_errors_total", NULL, "Connections of clients ended for a violation of the protocol.",
     "client_errors", AT(client_errors)},
    {"strait_notes_total", "result=\"delivered\"", "Notifications of this node's clients, by what became of them.",
     "notes_delivered", AT(notes_delivered)},
    {"strait_notes_total", "result=\"failed\"", NULL, "notes_failed", AT(notes_failed)},
    {"strait_withdrawals_lost_total", NULL, "Ends that the other side could not be told: it waits for its deadline.",
     "withdrawals_lost", AT(withdrawals_lost)},
    {"strait_denied_total", NULL, "Requests and notifications for another tenant, which were denied.", "denied",
     AT(denied)},
    {"strait_peers_connected_total", NULL, "Connections with peers that were established.", "peers_connected",
     AT(peers_connected)},
    {"strait_peers_lost_total", NULL, "Connections with peers that were lost.", "peers_lost", AT(peers_lost)},
    {"strait_peer_records_refused_total", NULL,
     "Times that a client named one more peer, while the addresses that its user's clients named were too many.",
     "peer_records_refused", AT(peer_records_refused)},
    {"strait_peer_greetings_put_off_total", NULL,
     "Times that a connection of a stranger had to wait: handshakes had used up their share of the time.",
     "greetings_put_off", AT(greetings_put_off)},
    {"strait_peer_errors_total", NULL, "Connections with peers ended for a violation of the protocol.", "peer_errors",
     AT(peer_errors)},
    {"strait_auth_failures_total", NULL, "Peers that could not prove who they are.", "auth_failures",
     AT(auth_failures)},
    {"strait_codebook_fetches_total", "result=\"fetched\"",
     "Codebook sets asked for from peers that have another one, by what became of it.", "codebooks_fetched",
     AT(codebooks_fetched)},
    {"strait_codebook_fetches_total", "result=\"failed\"", NULL, "codebook_fetches_failed",
     AT(codebook_fetches_failed)},
    {"strait_loop_cpu_seconds_total", NULL, "Time that the event loop's thread has run.", "loop_cpu_ns",
     AT(loop_cpu_ns), .nanoseconds = true},
    {"process_cpu_seconds_total", NULL, "Time that all threads of the process have run.", "process_cpu_ns",
     AT(process.cpu_ns), .nanoseconds = true},
};

const struct metric_row metric_gauges[] = {
    {"strait_clients", NULL, "Clients connected.", "clients", AT(clients)},
    {"strait_clients_half_open", NULL, "Connections of clients that have not sent a hello.", "clients_half_open",
     AT(half_open)},
    {"strait_transport_spinning", "transport=\"shm\"",
     "1: the transport has kept the loop awake for 2 s and nothing came of it.", "spinning_shm",
     AT(spinning[TRANSPORT_SHM])},
    {"strait_transport_spinning", "transport=\"tcp\"", NULL, "spinning_tcp", AT(spinning[TRANSPORT_TCP])},
    {"strait_transport_spinning", "transport=\"ucx\"", NULL, "spinning_ucx", AT(spinning[TRANSPORT_UCX])},
    {"strait_transport_spinning", "transport=\"nccl\"", NULL, "spinning_nccl", AT(spinning[TRANSPORT_NCCL])},
    {"strait_pools", NULL, "Pools registered.", "pools", AT(pools)},
    {"strait_pool_bytes", NULL, "Bytes of pool memory mapped.", "pool_bytes", AT(pool_bytes)},
    {"strait_gpus", NULL, "GPUs taken into use.", "gpus", AT(gpus)},
    {"strait_gpus_failed", NULL, "GPUs that cannot be used until the daemon is started again.", "gpus_failed",
     AT(gpus_failed)},
    {"strait_draining", NULL, "1: it is stopping, and takes no new requests.", "draining", AT(draining)},
    {"strait_codebook_loaded", NULL, "1: it has a codebook set; 0: pages are coded without tables.", "codebook_loaded",
     AT(codebook_loaded)},
    {"strait_rdma_active", NULL, "1: a device for RDMA of this node has an active port.", "rdma_active",
     AT(rdma_active)},
    {"process_start_time_seconds", NULL, "When the process began, since 1970.", "process_began_ns",
     AT(process.began_ns), .nanoseconds = true},
    {"process_resident_memory_bytes", NULL, "Memory of the process that is in use.", "process_resident_bytes",
     AT(process.resident_bytes)},
    {"process_virtual_memory_bytes", NULL, "Addresses of the process that are mapped.", "process_virtual_bytes",
     AT(process.virtual_bytes)},
    {"process_open_fds", NULL, "Descriptors that are open.", "process_open_fds", AT(process.open_fds)},
    {"process_max_fds", NULL, "Descriptors that may be open.", "process_max_fds", AT(process.max_fds)},
    {"strait_peers", NULL, "Peers connected.", "peers", AT(peers)},
    {"strait_transfers_live", "role=\"source\"", "Offers and expectations that have no verdict yet.", "live_offers",
     AT(live_offers)},
    {"strait_transfers_live", "role=\"sink\"", NULL, "live_expectations", AT(live_expectations)},
    {"strait_request_bytes", NULL, "Memory that the requests of clients take.", "request_bytes", AT(request_bytes)},
    {"strait_parked", NULL, "Requests that wait for their other side.", "parked", AT(parked)},
    {"strait_slots", NULL, "Slots of the receive arena.", "slots", AT(slots)},
    {"strait_slots_used", NULL, "Slots of the receive arena that are granted or hold a chunk.", "slots_used",
     AT(slots_used)},
    {"strait_slots_quarantined", NULL, "Slots that a lost peer might still write to.", "slots_quarantined",
     AT(slots_quarantined)},
    {"strait_send_slots", NULL, "Slots of the send arena.", "send_slots", AT(send_slots)},
    {"strait_send_slots_used", NULL, "Slots of the send arena in use.", "send_slots_used", AT(send_slots_used)},
    {"strait_quarantined_pages", NULL, "Pages of failed transfers that are not drained yet.", "quarantined_pages",
     AT(quarantined_pages)},
};

const size_t metric_counter_count = sizeof(metric_counters) / sizeof(metric_counters[0]);
const size_t metric_gauge_count = sizeof(metric_gauges) / sizeof(metric_gauges[0]);

const char *metric_reason_name(unsigned reason)
{
    static const char *const names[] = {
        [STRAIT_REASON_NONE] = "none",
        [STRAIT_REASON_TIMEOUT] = "timeout",
        [STRAIT_REASON_LEASE_EXPIRED] = "lease_expired",
        [STRAIT_REASON_PEER_DOWN] = "peer_down",
        [STRAIT_REASON_PEER_ABORT] = "peer_abort",
        [STRAIT_REASON_ABORTED] = "aborted",
        [STRAIT_REASON_GEOMETRY] = "geometry",
        [STRAIT_REASON_CODEC] = "codec",
        [STRAIT_REASON_INTEGRITY] = "integrity",
        [STRAIT_REASON_NO_MEMORY] = "no_memory",
        [STRAIT_REASON_LOCAL] = "local",
        [STRAIT_REASON_BUSY] = "busy",
        [STRAIT_REASON_DENIED] = "denied",
        [STRAIT_REASON_NOT_SERVED] = "not_served",
    };
    return reason < sizeof(names) / sizeof(names[0]) ? names[reason] : NULL;
}

/* ---- Histograms -------------------------------------------------------------------------------------------------- */

static unsigned bucket_of(uint64_t microseconds)
{
    if (microseconds <= 1)
        return 0;
    unsigned bits = 64 - (unsigned)__builtin_clzll(microseconds - 1); /* the smallest b with value <= 2^b */
    return bits < HISTOGRAM_BUCKETS - 1 ? bits : HISTOGRAM_BUCKETS - 1;
}

void histogram_record(struct histogram *histogram, uint64_t microseconds)
{
    histogram->buckets[bucket_of(microseconds)]++;
    histogram->count++;
    histogram->sum_us += microseconds;
}

/* Rank of the value that the quantile asks for: 1..count. */
static uint64_t quantile_rank(uint64_t count, double quantile)
{
    double rank = quantile * (double)count;
    if (!(rank > 1))
        return 1;
    if (rank >= (double)count)
        return count;
    uint64_t whole = (uint64_t)rank;
    return whole + ((double)whole < rank);
}

uint64_t histogram_quantile(const struct histogram *histogram, double quantile)
{
    if (histogram->count == 0)
        return 0;
    uint64_t rank = quantile_rank(histogram->count, quantile), below = 0;
    for (unsigned b = 0; b < HISTOGRAM_BUCKETS - 1; b++) {
        below += histogram->buckets[b];
        if (below >= rank)
            return histogram_bound(b);
    }
    return UINT64_MAX;
}

/* ---- Phases ------------------------------------------------------------------------------------------------------ */

void timeline_mark(struct timeline *timeline, enum phase phase)
{
    timeline->ends[phase] = uv_hrtime();
}

void timeline_mark_first(struct timeline *timeline, enum phase phase)
{
    if (timeline->ends[phase] == 0)
        timeline_mark(timeline, phase);
}

/* Positions are rounded, not lengths, so that the lengths add up to the rounded whole. A phase without an end was not
 * passed through: its time belongs to the next. */
void metrics_record(struct metrics *metrics, const struct timeline *timeline, enum phase first)
{
    const unsigned end = first < SINK_PHASES ? SINK_PHASES : PHASES;
    uint64_t at = timeline->began;
    for (unsigned p = first; p < end; p++) {
        const uint64_t until = timeline->ends[p] > at ? timeline->ends[p] : at;
        histogram_record(&metrics->phases[p], (until - timeline->began) / 1000 - (at - timeline->began) / 1000);
        at = until;
    }
}

/* The metrics as JSON. Numbers are printed as raw text, because as doubles counters above 2^53 would be rounded. */

static bool add_number(cJSON *object, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    return cJSON_AddRawToObject(object, name, text) != NULL;
}

static bool add_rows(cJSON *root, const char *name, const struct metrics *metrics, const struct metric_row *rows,
                     size_t count)
{
    cJSON *object = cJSON_AddObjectToObject(root, name);
    for (size_t i = 0; i < count; i++)
        if (!add_number(object, rows[i].name, metric_value(metrics, &rows[i])))
            return false;
    return object != NULL;
}

static bool add_failures(cJSON *root, const char *name, const uint64_t failed[16])
{
    cJSON *object = cJSON_AddObjectToObject(root, name);
    for (unsigned reason = STRAIT_REASON_NONE + 1; metric_reason_name(reason) != NULL; reason++)
        if (!add_number(object, metric_reason_name(reason), failed[reason]))
            return false;
    return object != NULL;
}

/* null: the value is beyond the last bucket's bound. */
static bool add_quantile(cJSON *object, const char *name, const struct histogram *histogram, double quantile)
{
    uint64_t value = histogram_quantile(histogram, quantile);
    return value == UINT64_MAX ? cJSON_AddNullToObject(object, name) != NULL : add_number(object, name, value);
}

/* Counts of the buckets up to the last that has any: bucket b has those up to 2^b microseconds. */
static bool add_buckets(cJSON *object, const struct histogram *histogram)
{
    char text[HISTOGRAM_BUCKETS * 21 + 3] = "[";
    size_t used = 1, count = HISTOGRAM_BUCKETS;
    while (count > 0 && histogram->buckets[count - 1] == 0)
        count--;
    for (size_t b = 0; b < count; b++)
        used +=
            (size_t)snprintf(text + used, sizeof(text) - used, "%s%" PRIu64, b > 0 ? "," : "", histogram->buckets[b]);
    strcpy(text + used, "]");
    return cJSON_AddRawToObject(object, "buckets", text) != NULL;
}

static bool add_histogram(cJSON *parent, const char *name, const struct histogram *histogram)
{
    cJSON *object = cJSON_AddObjectToObject(parent, name);
    return object != NULL && add_buckets(object, histogram) && add_number(object, "count", histogram->count) &&
           add_number(object, "sum_us", histogram->sum_us) && add_quantile(object, "p50_us", histogram, 0.5) &&
           add_quantile(object, "p90_us", histogram, 0.9) && add_quantile(object, "p99_us", histogram, 0.99);
}

static bool add_stages(cJSON *root, const struct metrics *metrics)
{
    cJSON *object = cJSON_AddObjectToObject(root, "stages");
    for (unsigned i = 0; i < STAGES; i++)
        if (!add_histogram(object, metric_stage_names[i], &metrics->stages[i]))
            return false;
    return object != NULL;
}

/* By role: "phases":{"sink":{"start":{...},...},"source":{...}}. */
static bool add_phases(cJSON *root, const struct metrics *metrics)
{
    cJSON *object = cJSON_AddObjectToObject(root, "phases"),
          *roles[] = {cJSON_AddObjectToObject(object, "sink"), cJSON_AddObjectToObject(object, "source")};
    for (unsigned i = 0; i < PHASES; i++)
        if (!add_histogram(roles[i >= SINK_PHASES], metric_phase_names[i], &metrics->phases[i]))
            return false;
    return object != NULL;
}

static bool fill(cJSON *root, const struct metrics *metrics)
{
    return root != NULL && add_rows(root, "counters", metrics, metric_counters, metric_counter_count) &&
           add_failures(root, "source_failed", metrics->source_failed) &&
           add_failures(root, "sink_failed", metrics->sink_failed) &&
           add_rows(root, "gauges", metrics, metric_gauges, metric_gauge_count) && add_stages(root, metrics) &&
           add_phases(root, metrics) && add_histogram(root, "stalls", &metrics->stalls);
}

/* Is `extra` an object that uses none of our names? */
static bool extra_fits(const cJSON *root, const char *extra)
{
    cJSON *object = cJSON_ParseWithOpts(extra, NULL, true), *item;
    bool good = cJSON_IsObject(object);
    cJSON_ArrayForEach(item, object) good = good && cJSON_GetObjectItemCaseSensitive(root, item->string) == NULL;
    cJSON_Delete(object);
    return good;
}

/* Joins two objects as texts: if they were parsed and printed again, the numbers of `extra` would lose digits. */
static char *join(const char *ours, const char *extra, size_t *size)
{
    const char *inside = strchr(extra, '{') + 1;
    bool empty = inside[strspn(inside, " \t\r\n")] == '}';
    char *text = NULL;
    int length = asprintf(&text, "%.*s%s%s", (int)strlen(ours) - 1, ours, empty ? "" : ",", inside);
    if (length < 0)
        return NULL;
    *size = (size_t)length;
    return text;
}

char *metrics_json(const struct metrics *metrics, const char *extra, size_t *size)
{
    cJSON *root = cJSON_CreateObject();
    char *text = NULL, *joined = NULL;
    if (fill(root, metrics) && (extra == NULL || extra_fits(root, extra)))
        text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    if (text != NULL)
        joined = join(text, extra != NULL ? extra : "{}", size);
    cJSON_free(text);
    return joined;
}

/* Prometheus text exposition format, version 0.0.4. */

static void print_family(FILE *out, const char *family, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", family, help, family, type);
}

static void print_rows(FILE *out, const struct metrics *metrics, const struct metric_row *rows, size_t count,
                       const char *type)
{
    for (size_t i = 0; i < count; i++) {
        const struct metric_row *row = &rows[i];
        if (row->help != NULL)
            print_family(out, row->family, type, row->help);
        if (row->nanoseconds) {
            uint64_t value = metric_value(metrics, row);
            fprintf(out, "%s %" PRIu64 ".%09" PRIu64 "\n", row->family, value / 1000000000, value % 1000000000);
        } else if (row->labels != NULL)
            fprintf(out, "%s{%s} %" PRIu64 "\n", row->family, row->labels, metric_value(metrics, row));
        else
            fprintf(out, "%s %" PRIu64 "\n", row->family, metric_value(metrics, row));
    }
}

static void print_failures(FILE *out, const char *role, const uint64_t failed[16])
{
    for (unsigned reason = STRAIT_REASON_NONE + 1; metric_reason_name(reason) != NULL; reason++)
        fprintf(out, "strait_transfers_failed_total{role=\"%s\",reason=\"%s\"} %" PRIu64 "\n", role,
                metric_reason_name(reason), failed[reason]);
}

/* `label` is empty or ends with a comma. +Inf and _count are summed from the buckets: they must agree. */
static void print_histogram(FILE *out, const char *family, const char *label, const struct histogram *histogram)
{
    int bare = (int)strlen(label) - (label[0] != 0);
    const char *open = bare > 0 ? "{" : "", *close = bare > 0 ? "}" : "";
    uint64_t total = 0;
    for (unsigned b = 0; b < HISTOGRAM_BUCKETS - 1; b++) {
        total += histogram->buckets[b];
        fprintf(out, "%s_bucket{%sle=\"%.9g\"} %" PRIu64 "\n", family, label, (double)histogram_bound(b) / 1e6, total);
    }
    total += histogram->buckets[HISTOGRAM_BUCKETS - 1];
    fprintf(out, "%s_bucket{%sle=\"+Inf\"} %" PRIu64 "\n", family, label, total);
    fprintf(out, "%s_sum%s%.*s%s %" PRIu64 ".%06" PRIu64 "\n", family, open, bare, label, close,
            histogram->sum_us / 1000000, histogram->sum_us % 1000000);
    fprintf(out, "%s_count%s%.*s%s %" PRIu64 "\n", family, open, bare, label, close, total);
}

static void print_metrics(FILE *out, const struct metrics *metrics)
{
    print_rows(out, metrics, metric_counters, metric_counter_count, "counter");
    print_family(out, "strait_transfers_failed_total", "counter", "Offers and expectations that failed, by reason.");
    print_failures(out, "source", metrics->source_failed);
    print_failures(out, "sink", metrics->sink_failed);
    print_rows(out, metrics, metric_gauges, metric_gauge_count, "gauge");
    char label[64];
    print_family(out, "strait_stage_seconds", "histogram", "Time that chunks and transfers spent in each stage.");
    for (unsigned i = 0; i < STAGES; i++) {
        snprintf(label, sizeof(label), "stage=\"%s\",", metric_stage_names[i]);
        print_histogram(out, "strait_stage_seconds", label, &metrics->stages[i]);
    }
    print_family(out, "strait_request_seconds", "histogram",
                 "Time of requests that ended with DONE, by the phases that they consist of.");
    for (unsigned i = 0; i < PHASES; i++) {
        snprintf(label, sizeof(label), "role=\"%s\",phase=\"%s\",", phase_role(i), metric_phase_names[i]);
        print_histogram(out, "strait_request_seconds", label, &metrics->phases[i]);
    }
    print_family(out, "strait_loop_stall_seconds", "histogram", "Time that one turn of the event loop took.");
    print_histogram(out, "strait_loop_stall_seconds", "", &metrics->stalls);
}

char *metrics_text(const struct metrics *metrics, size_t *size)
{
    char *text = NULL;
    size_t written = 0;
    FILE *out = open_memstream(&text, &written);
    if (out == NULL)
        return NULL;
    print_metrics(out, metrics);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        return NULL;
    }
    *size = written;
    return text;
}
