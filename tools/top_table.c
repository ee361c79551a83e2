#include "tools/top_table.h"

#include "tools/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GB       1e9
#define CELL_MAX 320

const char *const top_sort_names[TOP_SORTS] = {
    [TOP_BY_NAME] = "name", [TOP_BY_BYTES] = "bytes", [TOP_BY_ERRORS] = "errors"};

/* A daemon, or one of its peers, and how fast its counters grow. */
struct row {
    const struct top_node *node;
    const struct peer_sample *peer; /* NULL: the daemon itself */
    const char *name;
    struct traffic total, rate;
    double seconds; /* of the rates; 0: there are none */
};

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static struct row row_of_node(const struct top_node *node)
{
    const double seconds = sample_seconds(&node->before, &node->now);
    return (struct row){
        .node = node,
        .name = node->now.there && node->now.address[0] != '\0' ? node->now.address : node->socket,
        .total = node->now.total,
        .rate = traffic_rate(&node->before.total, &node->now.total, seconds),
        .seconds = seconds,
    };
}

static struct row row_of_peer(const struct top_node *node, const struct peer_sample *peer)
{
    const double seconds = sample_seconds(&node->before, &node->now);
    const struct traffic before = sample_peer_total(&node->before, peer->address);
    return (struct row){
        .node = node,
        .peer = peer,
        .name = peer->address,
        .total = peer->total,
        .rate = traffic_rate(&before, &peer->total, seconds),
        .seconds = seconds,
    };
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

static int compare_bytes(const void *a, const void *b)
{
    const struct traffic *one = &((const struct row *)a)->rate, *other = &((const struct row *)b)->rate;
    const double first = one->raw_in + one->raw_out, second = other->raw_in + other->raw_out;
    return first != second ? (first < second) - (first > second) : compare_names(a, b);
}

static int compare_errors(const void *a, const void *b)
{
    const double first = ((const struct row *)a)->total.failed, second = ((const struct row *)b)->total.failed;
    return first != second ? (first < second) - (first > second) : compare_names(a, b);
}

static void sort_rows(struct row *rows, unsigned count, enum top_sort sort)
{
    static int (*const compare[TOP_SORTS])(const void *, const void *) = {
        [TOP_BY_NAME] = compare_names, [TOP_BY_BYTES] = compare_bytes, [TOP_BY_ERRORS] = compare_errors};
    if (count > 0)
        qsort(rows, count, sizeof(*rows), compare[sort]);
}

/* Rows of all daemons, sorted; malloc'ed. NULL: no memory. */
static struct row *rows_of_nodes(const struct top_node *nodes, unsigned count, enum top_sort sort)
{
    struct row *rows = calloc(count + 1, sizeof(*rows));
    for (unsigned i = 0; rows != NULL && i < count; i++)
        rows[i] = row_of_node(&nodes[i]);
    if (rows != NULL)
        sort_rows(rows, count, sort);
    return rows;
}

/* The same of the daemon's peers. */
static struct row *rows_of_peers(const struct top_node *node, enum top_sort sort)
{
    struct row *rows = calloc(node->now.peer_count + 1, sizeof(*rows));
    for (unsigned i = 0; rows != NULL && i < node->now.peer_count; i++)
        rows[i] = row_of_peer(node, &node->now.peers[i]);
    if (rows != NULL)
        sort_rows(rows, node->now.peer_count, sort);
    return rows;
}

/* ---- Cells ------------------------------------------------------------------------------------------------------- */

static void cell(char text[CELL_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));
static void cell(char text[CELL_MAX], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, CELL_MAX, format, arguments);
    va_end(arguments);
}

/* Names come from other daemons: whatever could steer the terminal is replaced. */
static void put_name(char text[CELL_MAX], const struct row *row)
{
    cell(text, "%s", row->name);
    for (char *at = text; *at != '\0'; at++)
        if (*at <= ' ' || *at > '~')
            *at = '?';
}

static void put_rate(char text[CELL_MAX], const struct row *row, double bytes)
{
    if (row->seconds > 0)
        cell(text, "%.3f", bytes / GB);
    else
        cell(text, "-");
}

static void put_in(char text[CELL_MAX], const struct row *row)
{
    put_rate(text, row, row->rate.raw_in);
}

static void put_out(char text[CELL_MAX], const struct row *row)
{
    put_rate(text, row, row->rate.raw_out);
}

static void put_wire(char text[CELL_MAX], const struct row *row)
{
    put_rate(text, row, row->rate.wire_in + row->rate.wire_out);
}

static void put_local(char text[CELL_MAX], const struct row *row)
{
    put_rate(text, row, row->rate.local);
}

/* That of the interval; while nothing moves, that since the start. */
static void put_ratio(char text[CELL_MAX], const struct row *row)
{
    const double now = traffic_ratio(&row->rate), ratio = now > 0 ? now : traffic_ratio(&row->total);
    cell(text, ratio > 0 ? "%.3f" : "-", ratio);
}

static void put_saved(char text[CELL_MAX], const struct row *row)
{
    static const char *const units[] = {"", "K", "M", "G", "T", "P"};
    double bytes = traffic_saved(&row->total);
    unsigned unit = 0;
    for (; fabs(bytes) >= 1000 && unit < 5; unit++)
        bytes /= 1000;
    cell(text, unit == 0 ? "%.0f%sB" : "%.1f%sB", bytes, units[unit]);
}

static void put_done(char text[CELL_MAX], const struct row *row)
{
    cell(text, row->seconds > 0 ? "%.1f" : "-", row->rate.done);
}

static void put_chunks(char text[CELL_MAX], const struct row *row)
{
    cell(text, row->seconds > 0 ? "%.1f" : "-", row->rate.chunks);
}

static void put_errors(char text[CELL_MAX], const struct row *row)
{
    cell(text, "%.0f", row->total.failed);
}

static void put_quantile(char text[CELL_MAX], const struct row *row, double quantile)
{
    const double us = row->seconds > 0 ? sample_quantile(&row->node->before, &row->node->now, quantile) : -1;
    if (us < 0)
        cell(text, "-");
    else if (isinf(us))
        cell(text, ">67 s");
    else
        cell(text, "%.3g", us / 1000);
}

static void put_p50(char text[CELL_MAX], const struct row *row)
{
    put_quantile(text, row, 0.5);
}

static void put_p99(char text[CELL_MAX], const struct row *row)
{
    put_quantile(text, row, 0.99);
}

static void put_clients(char text[CELL_MAX], const struct row *row)
{
    cell(text, "%.0f", row->node->now.clients);
}

static void put_inflight(char text[CELL_MAX], const struct row *row)
{
    cell(text, "%.0f", row->node->now.inflight);
}

static void put_parked(char text[CELL_MAX], const struct row *row)
{
    cell(text, "%.0f", row->node->now.parked);
}

static void put_share(char text[CELL_MAX], double used, double all)
{
    cell(text, all > 0 ? "%.0f%%" : "-", all > 0 ? 100 * used / all : 0);
}

static void put_receive(char text[CELL_MAX], const struct row *row)
{
    put_share(text, row->node->now.slots_used, row->node->now.slots);
}

static void put_send(char text[CELL_MAX], const struct row *row)
{
    put_share(text, row->node->now.send_slots_used, row->node->now.send_slots);
}

static void put_link(char text[CELL_MAX], const struct row *row)
{
    cell(text, "%s", row->peer->links);
}

static void put_round_trip(char text[CELL_MAX], const struct row *row)
{
    cell(text, row->peer->round_trip_us > 0 ? "%.0f" : "-", row->peer->round_trip_us);
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

#define NAME_WIDTH 24

struct column {
    const char *title;
    int width; /* negative: flush left */
    void (*put)(char text[CELL_MAX], const struct row *row);
};

static const struct column node_columns[] = {
    {"DAEMON", -NAME_WIDTH, put_name}, {"IN GB/s", 7, put_in},    {"OUT GB/s", 8, put_out},
    {"WIRE GB/s", 9, put_wire},        {"RATIO", 5, put_ratio},   {"SAVED", 7, put_saved},
    {"DONE/s", 7, put_done},           {"P50 ms", 7, put_p50},    {"P99 ms", 7, put_p99},
    {"ERRORS", 6, put_errors},         {"LIVE", 4, put_inflight}, {"PARKED", 6, put_parked},
    {"RECV", 4, put_receive},          {"SEND", 4, put_send},     {"LOCAL GB/s", 10, put_local},
    {"CLIENTS", 7, put_clients},
};

static const struct column peer_columns[] = {
    {"PEER", -NAME_WIDTH, put_name}, {"IN GB/s", 7, put_in},  {"OUT GB/s", 8, put_out},    {"WIRE GB/s", 9, put_wire},
    {"RATIO", 5, put_ratio},         {"SAVED", 7, put_saved}, {"CHUNKS/s", 8, put_chunks}, {"ERRORS", 6, put_errors},
    {"RTT us", 7, put_round_trip},   {"LINK", -4, put_link},
};
#define COLUMNS(table) (sizeof(table) / sizeof((table)[0]))

/* A name that is too long moves its row to the right rather than be cut: two of them may have the same beginning. */
static void print_cell(FILE *out, const struct column *column, const char *text)
{
    fprintf(out, "%s%*s", column->put == put_name ? "" : " ", column->width, text);
}

static void print_titles(FILE *out, const struct column *columns, size_t count)
{
    for (size_t c = 0; c < count; c++)
        print_cell(out, &columns[c], columns[c].title);
    fputc('\n', out);
}

static void print_row(FILE *out, const struct column *columns, size_t count, const struct row *row)
{
    char text[CELL_MAX];
    for (size_t c = 0; c < count; c++) {
        columns[c].put(text, row);
        print_cell(out, &columns[c], text);
    }
    fputc('\n', out);
}

static void print_node(FILE *out, const struct row *row)
{
    const struct sample *now = &row->node->now;
    if (!now->there) {
        fprintf(out, "%*s %s\n", -NAME_WIDTH, row->name, now->why);
        return;
    }
    print_row(out, node_columns, COLUMNS(node_columns), row);
    if (now->draining || !now->codebook)
        fprintf(out, "  %s%s%s\n", now->draining ? "draining" : "", now->draining && !now->codebook ? "; " : "",
                now->codebook ? "" : "no codebook set: pages are coded without tables");
    if (now->slots_quarantined > 0)
        fprintf(out, "  %.0f receive slots quarantined\n", now->slots_quarantined);
}

static void print_peers(FILE *out, const struct top_node *node, bool named, enum top_sort sort)
{
    struct row *rows = rows_of_peers(node, sort);
    for (unsigned i = 0; rows != NULL && i < node->now.peer_count; i++) {
        if (i == 0) {
            fputc('\n', out);
            if (named)
                fprintf(out, "of %s\n", node->now.address[0] != '\0' ? node->now.address : node->socket);
            print_titles(out, peer_columns, COLUMNS(peer_columns));
        }
        print_row(out, peer_columns, COLUMNS(peer_columns), &rows[i]);
    }
    free(rows);
}

void top_print(FILE *out, const struct top_node *nodes, unsigned count, enum top_sort sort)
{
    struct row *rows = rows_of_nodes(nodes, count, sort);
    if (rows == NULL)
        return;
    print_titles(out, node_columns, COLUMNS(node_columns));
    for (unsigned i = 0; i < count; i++)
        print_node(out, &rows[i]);
    for (unsigned i = 0; i < count; i++)
        print_peers(out, rows[i].node, count > 1, sort);
    free(rows);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void add_traffic(cJSON *object, const struct row *row)
{
    cJSON *total = cJSON_AddObjectToObject(object, "total");
    cJSON *rate = row->seconds > 0 ? cJSON_AddObjectToObject(object, "rate") : NULL;
    if (rate == NULL)
        cJSON_AddNullToObject(object, "rate");
    const struct traffic *parts[] = {&row->total, &row->rate};
    cJSON *objects[] = {total, rate};
    for (int i = 0; i < 2 && objects[i] != NULL; i++) {
        const struct traffic *traffic = parts[i];
        cJSON_AddNumberToObject(objects[i], "in_bytes", traffic->raw_in);
        cJSON_AddNumberToObject(objects[i], "out_bytes", traffic->raw_out);
        cJSON_AddNumberToObject(objects[i], "wire_in_bytes", traffic->wire_in);
        cJSON_AddNumberToObject(objects[i], "wire_out_bytes", traffic->wire_out);
        cJSON_AddNumberToObject(objects[i], "saved_bytes", traffic_saved(traffic));
        cJSON_AddNumberToObject(objects[i], "chunks", traffic->chunks);
        cJSON_AddNumberToObject(objects[i], "failed", traffic->failed);
        if (row->peer == NULL) {
            cJSON_AddNumberToObject(objects[i], "done", traffic->done);
            cJSON_AddNumberToObject(objects[i], "local_bytes", traffic->local);
        }
        const double ratio = traffic_ratio(traffic);
        if (ratio > 0)
            cJSON_AddNumberToObject(objects[i], "ratio", ratio);
        else
            cJSON_AddNullToObject(objects[i], "ratio");
    }
}

/* null: nothing came, or it took longer than the last bucket's bound. */
static void add_quantile(cJSON *object, const char *name, double us)
{
    if (us < 0 || isinf(us))
        cJSON_AddNullToObject(object, name);
    else
        cJSON_AddNumberToObject(object, name, us);
}

static void add_latency(cJSON *item, const struct row *row)
{
    const struct sample *before = &row->node->before, *now = &row->node->now;
    const bool rated = row->seconds > 0;
    cJSON *latency = cJSON_AddObjectToObject(item, "transfer_us");
    add_quantile(latency, "p50", rated ? sample_quantile(before, now, 0.5) : -1);
    add_quantile(latency, "p99", rated ? sample_quantile(before, now, 0.99) : -1);
    add_quantile(latency, "p50_since_start", sample_quantile(NULL, now, 0.5));
    add_quantile(latency, "p99_since_start", sample_quantile(NULL, now, 0.99));
}

static void add_peer(cJSON *peers, const struct row *row)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(peers, item);
    cJSON_AddStringToObject(item, "address", row->peer->address);
    cJSON_AddBoolToObject(item, "up", row->peer->up);
    cJSON_AddStringToObject(item, "link", row->peer->links);
    cJSON_AddNumberToObject(item, "round_trip_us", row->peer->round_trip_us);
    add_traffic(item, row);
}

static void add_arena(cJSON *item, const char *name, double used, double all)
{
    cJSON *arena = cJSON_AddObjectToObject(item, name);
    cJSON_AddNumberToObject(arena, "slots", all);
    cJSON_AddNumberToObject(arena, "used", used);
}

static void add_node(cJSON *nodes, const struct row *row, enum top_sort sort)
{
    const struct sample *now = &row->node->now;
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(nodes, item);
    cJSON_AddStringToObject(item, "socket", row->node->socket);
    if (!now->there) {
        cJSON_AddStringToObject(item, "error", now->why);
        return;
    }
    cJSON_AddStringToObject(item, "address", now->address);
    cJSON_AddStringToObject(item, "version", now->version);
    cJSON_AddStringToObject(item, "codec", now->codec);
    cJSON_AddNumberToObject(item, "uptime_seconds", now->uptime);
    cJSON_AddBoolToObject(item, "draining", now->draining);
    cJSON_AddBoolToObject(item, "codebook", now->codebook);
    cJSON_AddNumberToObject(item, "interval_seconds", row->seconds);
    cJSON_AddNumberToObject(item, "clients", now->clients);
    cJSON_AddNumberToObject(item, "pools", now->pools);
    cJSON_AddNumberToObject(item, "pool_bytes", now->pool_bytes);
    cJSON_AddNumberToObject(item, "live", now->inflight);
    cJSON_AddNumberToObject(item, "parked", now->parked);
    add_arena(item, "receive_arena", now->slots_used, now->slots);
    add_arena(item, "send_arena", now->send_slots_used, now->send_slots);
    add_traffic(item, row);
    add_latency(item, row);
    cJSON *peers = cJSON_AddArrayToObject(item, "peers");
    struct row *rows = rows_of_peers(row->node, sort);
    for (unsigned i = 0; rows != NULL && i < now->peer_count; i++)
        add_peer(peers, &rows[i]);
    free(rows);
}

char *top_json(const struct top_node *nodes, unsigned count, enum top_sort sort)
{
    struct row *rows = rows_of_nodes(nodes, count, sort);
    cJSON *root = cJSON_CreateObject();
    json_add_schema(root);
    cJSON_AddNumberToObject(root, "time", (double)time(NULL));
    cJSON *list = cJSON_AddArrayToObject(root, "daemons");
    for (unsigned i = 0; rows != NULL && i < count; i++)
        add_node(list, &rows[i], sort);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    free(rows);
    return text;
}
