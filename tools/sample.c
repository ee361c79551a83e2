#include "tools/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ask.h"
#include "tools/util.h"

static void copy(char *dst, size_t size, const char *text)
{
    snprintf(dst, size, "%s", text);
}

static const cJSON *part_of(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static double sum_of(const cJSON *object)
{
    double sum = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, object) sum += cJSON_IsNumber(item) ? item->valuedouble : 0;
    return sum;
}

static double sum_of_named(const cJSON *object, const char *beginning)
{
    double sum = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, object) if (strncmp(item->string, beginning, strlen(beginning)) == 0) sum +=
        item->valuedouble;
    return sum;
}

static struct traffic traffic_of_node(const cJSON *root)
{
    const cJSON *counters = part_of(root, "counters");
    return (struct traffic){
        .raw_in = number_of(counters, "raw_bytes_landed"),
        .raw_out = number_of(counters, "raw_bytes_sent"),
        .wire_in = number_of(counters, "wire_bytes_landed"),
        .wire_out = number_of(counters, "wire_bytes_sent"),
        .chunks = number_of(counters, "chunks_landed") + sum_of_named(counters, "chunks_sent_") -
                  number_of(counters, "chunks_sent_local"),
        .done = number_of(counters, "sink_done") + number_of(counters, "source_done"),
        .failed = sum_of(part_of(root, "sink_failed")) + sum_of(part_of(root, "source_failed")),
        .local = number_of(counters, "local_bytes"),
    };
}

static struct traffic traffic_of_peer(const cJSON *figures)
{
    return (struct traffic){
        .raw_in = number_of(figures, "raw_bytes_landed"),
        .raw_out = number_of(figures, "raw_bytes_sent"),
        .wire_in = number_of(figures, "wire_bytes_landed"),
        .wire_out = number_of(figures, "wire_bytes_sent"),
        .chunks = number_of(figures, "chunks_landed") + number_of(figures, "chunks_sent"),
        .failed = sum_of_named(figures, "failed_"),
    };
}

/* Names the transports of the peer's connections. */
static void read_links(const cJSON *figures, struct peer_sample *peer)
{
    static const char *const transports[] = {"ucx", "shm", "tcp"};
    char name[32];
    for (size_t i = 0; i < sizeof(transports) / sizeof(transports[0]); i++) {
        snprintf(name, sizeof(name), "connections_%s", transports[i]);
        if (number_of(figures, name) == 0)
            continue;
        const size_t used = strlen(peer->links);
        snprintf(peer->links + used, sizeof(peer->links) - used, "%s%s", used > 0 ? "," : "", transports[i]);
    }
    peer->up = number_of(figures, "connections") > 0;
}

static struct peer_sample *find_peer(const struct sample *sample, const char *address)
{
    for (uint32_t i = 0; i < sample->peer_count; i++)
        if (strcmp(sample->peers[i].address, address) == 0)
            return &sample->peers[i];
    return NULL;
}

static struct peer_sample *add_peer(struct sample *sample, const char *address)
{
    struct peer_sample *peer = &sample->peers[sample->peer_count++];
    copy(peer->address, sizeof(peer->address), address);
    return peer;
}

/* The row of peers without one of their own is left out while it is empty. */
static void read_figures(const cJSON *list, struct sample *sample)
{
    const cJSON *figures;
    cJSON_ArrayForEach(figures, list)
    {
        const struct traffic total = traffic_of_peer(figures);
        if (strcmp(text_of(figures, "address"), "other") == 0 && total.chunks + total.failed == 0 &&
            number_of(figures, "connections") == 0)
            continue;
        struct peer_sample *peer = add_peer(sample, text_of(figures, "address"));
        peer->total = total;
        peer->round_trip_us = number_of(figures, "round_trip_us");
        read_links(figures, peer);
    }
}

/* Peers of which no connection is up have a state; some were never reached. */
static void read_states(const cJSON *list, struct sample *sample)
{
    const cJSON *connection;
    cJSON_ArrayForEach(connection, list)
    {
        struct peer_sample *peer = find_peer(sample, text_of(connection, "address"));
        if (peer == NULL)
            peer = add_peer(sample, text_of(connection, "address"));
        if (!peer->up)
            copy(peer->links, sizeof(peer->links), text_of(connection, "state"));
    }
    for (uint32_t i = 0; i < sample->peer_count; i++)
        if (sample->peers[i].links[0] == '\0')
            copy(sample->peers[i].links, sizeof(sample->peers[i].links), "gone");
}

static void read_gauges(const cJSON *gauges, struct sample *sample)
{
    sample->clients = number_of(gauges, "clients");
    sample->pools = number_of(gauges, "pools");
    sample->pool_bytes = number_of(gauges, "pool_bytes");
    sample->inflight = number_of(gauges, "live_offers") + number_of(gauges, "live_expectations");
    sample->parked = number_of(gauges, "parked");
    sample->slots = number_of(gauges, "slots");
    sample->slots_used = number_of(gauges, "slots_used");
    sample->slots_quarantined = number_of(gauges, "slots_quarantined");
    sample->send_slots = number_of(gauges, "send_slots");
    sample->send_slots_used = number_of(gauges, "send_slots_used");
}

static void read_histogram(const cJSON *histogram, double buckets[SAMPLE_BUCKETS])
{
    const cJSON *bucket;
    uint32_t b = 0;
    cJSON_ArrayForEach(bucket, part_of(histogram, "buckets")) if (b < SAMPLE_BUCKETS) buckets[b++] =
        bucket->valuedouble;
}

bool sample_read(const char *text, struct sample *sample)
{
    cJSON *root = cJSON_Parse(text);
    *sample = (struct sample){.at_ns = clock_ns()};
    const cJSON *figures = part_of(root, "peer_figures"), *connections = part_of(root, "peers");
    const int most = cJSON_GetArraySize(figures) + cJSON_GetArraySize(connections);
    sample->peers = calloc((size_t)most + 1, sizeof(*sample->peers));
    if (!cJSON_IsObject(part_of(root, "counters")) || sample->peers == NULL) {
        copy(sample->why, sizeof(sample->why), "the answer is not that of a straitd");
        cJSON_Delete(root);
        return false;
    }
    sample->there = true;
    copy(sample->version, sizeof(sample->version), text_of(root, "version"));
    copy(sample->address, sizeof(sample->address), text_of(root, "address"));
    copy(sample->incarnation, sizeof(sample->incarnation), text_of(root, "incarnation"));
    copy(sample->codec, sizeof(sample->codec), text_of(root, "codec"));
    sample->draining = is_true(root, "draining");
    sample->codebook = is_true(root, "codebook");
    sample->uptime = number_of(root, "uptime_seconds");
    sample->total = traffic_of_node(root);
    read_gauges(part_of(root, "gauges"), sample);
    read_histogram(part_of(part_of(root, "stages"), "transfer"), sample->transfers);
    read_figures(figures, sample);
    read_states(connections, sample);
    cJSON_Delete(root);
    return true;
}

void sample_take(struct asked *daemon, unsigned patience_ms, struct sample *sample)
{
    char *text = daemon_ask(daemon, patience_ms);
    *sample = (struct sample){.there = false};
    if (text != NULL)
        (void)sample_read(text, sample);
    else
        copy(sample->why, sizeof(sample->why), daemon->why);
    free(text);
}

void sample_free(struct sample *sample)
{
    free(sample->peers);
    *sample = (struct sample){.there = false};
}

/* ---- Growth ------------------------------------------------------------------------------------------------------ */

double sample_seconds(const struct sample *before, const struct sample *now)
{
    return before->there && now->there && strcmp(before->incarnation, now->incarnation) == 0
               ? (double)(now->at_ns - before->at_ns) / 1e9
               : 0;
}

static double rate_of(double before, double now, double seconds)
{
    return seconds > 0 ? (now >= before ? now - before : now) / seconds : 0;
}

struct traffic traffic_rate(const struct traffic *before, const struct traffic *now, double seconds)
{
    return (struct traffic){
        .raw_in = rate_of(before->raw_in, now->raw_in, seconds),
        .raw_out = rate_of(before->raw_out, now->raw_out, seconds),
        .wire_in = rate_of(before->wire_in, now->wire_in, seconds),
        .wire_out = rate_of(before->wire_out, now->wire_out, seconds),
        .chunks = rate_of(before->chunks, now->chunks, seconds),
        .done = rate_of(before->done, now->done, seconds),
        .failed = rate_of(before->failed, now->failed, seconds),
        .local = rate_of(before->local, now->local, seconds),
    };
}

struct traffic sample_peer_total(const struct sample *before, const char *address)
{
    const struct peer_sample *peer = before->there ? find_peer(before, address) : NULL;
    return peer != NULL ? peer->total : (struct traffic){0};
}

double sample_quantile(const struct sample *before, const struct sample *now, double quantile)
{
    double counts[SAMPLE_BUCKETS], sum = 0, below = 0;
    for (uint32_t b = 0; b < SAMPLE_BUCKETS; b++) {
        counts[b] = now->transfers[b] - (before != NULL ? before->transfers[b] : 0);
        sum += counts[b];
    }
    if (!(sum > 0))
        return -1;
    for (uint32_t b = 0; b < SAMPLE_BUCKETS - 1; b++) {
        below += counts[b];
        if (below >= quantile * sum && below > 0)
            return ldexp(1, (int)b);
    }
    return INFINITY;
}
