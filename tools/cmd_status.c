/* strait status */
#include "tools/commands.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <strait/codec.h>

#include "internal/default_socket.h"
#include "tools/ask.h"
#include "tools/util.h"

static const char usage[] =
    "usage: strait status [--socket PATH] [--json]\n"
    "\n"
    "Asks the straitd of this node how it is: its clients and pools, its arenas, and of each peer how it is reached,\n"
    "or why it is not.\n"
    "\n"
    "  --socket PATH        the daemon's socket (else $STRAIT_SOCKET, that of this user's own daemon in\n"
    "                       $XDG_RUNTIME_DIR, or /run/strait/straitd.sock)\n"
    "  --json               all figures, as the daemon gives them\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 it answered, 1 it did not, 2 bad usage.\n";

#define MIB (1024.0 * 1024)

/* ---- Printing -------------------------------------------------------------------------------------------------- */

static void print_node(const cJSON *root)
{
    const char *address = text_of(root, "address");
    const cJSON *uptime = cJSON_GetObjectItemCaseSensitive(root, "uptime_seconds");
    printf("straitd %s%s", text_of(root, "version"), is_true(root, "draining") ? ", draining" : "");
    if (cJSON_IsNumber(uptime))
        printf(", up %.0f s", uptime->valuedouble);
    printf("\n  address      %s\n", address[0] != '\0' ? address : "none: other daemons cannot reach it");
    printf("  codec        %s, %s", text_of(root, "codec"),
           is_true(root, "codebook") ? "with a codebook set" : "no codebook set: pages are coded without tables");
    if (number_of(root, "codebook_tables") > 0)
        printf(" of %.0f tables", number_of(root, "codebook_tables"));
    if (number_of(root, "codebook_expected_bits") > 0)
        printf(", which expects %.3f bits for an exponent", number_of(root, "codebook_expected_bits"));
    const cJSON *counters = cJSON_GetObjectItemCaseSensitive(root, "counters");
    const double expected = number_of(counters, "expected_bits"), spent = number_of(counters, "exponent_bits");
    if (expected > 0)
        printf("; what was sent took %.3f of what its tables expect%s", spent / expected,
               spent > STRAIT_CODEBOOK_FITS * expected ? ": the set does not fit" : "");
    putchar('\n');
    const char *transports = text_of(root, "transports"), *left_out = text_of(root, "transports_left_out");
    printf("  transports   %s%s%s%s\n", transports[0] != '\0' ? transports : "none", left_out[0] != '\0' ? " (" : "",
           left_out, left_out[0] != '\0' ? ")" : "");
}

static void print_use(const cJSON *root)
{
    const cJSON *gauges = cJSON_GetObjectItemCaseSensitive(root, "gauges");
    printf("  clients      %.0f; pools %.0f, %.1f MiB\n", number_of(gauges, "clients"), number_of(gauges, "pools"),
           number_of(gauges, "pool_bytes") / MIB);
    printf("  transfers    %.0f offered, %.0f expected, %.0f parked; %.0f pages quarantined\n",
           number_of(gauges, "live_offers"), number_of(gauges, "live_expectations"), number_of(gauges, "parked"),
           number_of(gauges, "quarantined_pages"));
    printf("  arenas       %.0f of %.0f receive slots in use (%.0f quarantined), %.0f of %.0f send slots\n",
           number_of(gauges, "slots_used"), number_of(gauges, "slots"), number_of(gauges, "slots_quarantined"),
           number_of(gauges, "send_slots_used"), number_of(gauges, "send_slots"));
}

static void print_gpus(const cJSON *root)
{
    const cJSON *gpu, *gpus = cJSON_GetObjectItemCaseSensitive(root, "devices");
    cJSON_ArrayForEach(gpu, gpus) printf("  GPU %-8.0f %s%s%s\n", number_of(gpu, "device"), text_of(gpu, "state"),
                                         text_of(gpu, "why")[0] != '\0' ? ": " : "", text_of(gpu, "why"));
}

static void print_way(const cJSON *root, const char *name, const char *done, const char *failed, const char *direction)
{
    const cJSON *counters = cJSON_GetObjectItemCaseSensitive(root, "counters"), *reason;
    char raw_name[32], wire_name[32];
    snprintf(raw_name, sizeof(raw_name), "raw_bytes_%s", direction);
    snprintf(wire_name, sizeof(wire_name), "wire_bytes_%s", direction);
    double raw = number_of(counters, raw_name), wire = number_of(counters, wire_name);
    printf("  %-12s %.0f done, %.1f MiB as %.1f MiB", name, number_of(counters, done), raw / MIB, wire / MIB);
    if (wire > 0)
        printf(" (%.3f)", raw / wire);
    cJSON_ArrayForEach(reason, cJSON_GetObjectItemCaseSensitive(root, failed)) if (reason->valuedouble > 0)
        printf("; %.0f failed: %s", reason->valuedouble, reason->string);
    putchar('\n');
}

/* The path from one of the daemon's GPUs to one of the peer's. */
static void print_gpu_way(const cJSON *way)
{
    const char *why = text_of(way, "why");
    printf("\n  %-22s GPU %.0f to its %.0f: %s%s%s%s", "", number_of(way, "device"), number_of(way, "peer_device"),
           text_of(way, "wire"), why[0] != '\0' ? " (" : "", why, why[0] != '\0' ? ")" : "");
}

/* The round trip is that of heartbeats: before the first has been answered there is none. */
static void print_link(const char *transport, double round_trip_us)
{
    if (round_trip_us > 0)
        printf(", %s, round trip %.0f us", transport, round_trip_us);
    else
        printf(", %s, round trip not measured yet", transport);
}

/* Nothing where both have the same set, or none. */
static void print_codebook(const cJSON *peer, bool has_codebook)
{
    if (is_true(peer, "codebook_matches") || (!has_codebook && !is_true(peer, "has_codebook")))
        return;
    if (is_true(peer, "has_codebook"))
        printf(", another codebook set%s", is_true(peer, "codebook_fetched") ? " (fetched)" : "");
    else
        printf(", no codebook set there");
    if (has_codebook && is_true(peer, "codebook_known"))
        printf(", decodes by ours");
}

static void print_peer(const cJSON *peer, bool has_codebook, const char *own_version)
{
    const char *version = text_of(peer, "version");
    const char *transport = text_of(peer, "transport"), *coding = text_of(peer, "coding"), *why = text_of(peer, "why");
    const char *state = text_of(peer, "state");
    printf("  %-22s %s, %s", text_of(peer, "address"), strcmp(state, "idle") == 0 ? "not connected" : state,
           is_true(peer, "dialled") ? "dialled" : "accepted");
    if (transport[0] != '\0')
        print_link(transport, number_of(peer, "round_trip_us"));
    if (version[0] != '\0' && strcmp(version, own_version) != 0)
        printf(", straitd %s", version);
    if (why[0] != '\0')
        printf(": %s", why);
    if (transport[0] != '\0')
        print_codebook(peer, has_codebook);
    if (coding[0] != '\0')
        printf("\n  %-22s sends %s", "", coding);
    const cJSON *way, *ways = cJSON_GetObjectItemCaseSensitive(peer, "gpu_ways");
    cJSON_ArrayForEach(way, ways) print_gpu_way(way);
    putchar('\n');
}

/* What has gone to and come from a peer, by which ways, over all connections since the daemon's start. */
static void print_carried(const cJSON *figures)
{
    const double sent = number_of(figures, "raw_bytes_sent"), landed = number_of(figures, "raw_bytes_landed");
    const char *before = ": by ";
    const cJSON *way, *ways = cJSON_GetObjectItemCaseSensitive(figures, "ways");
    if (sent + landed == 0)
        return;
    printf("  %-22s sent %.1f MiB as %.1f MiB", text_of(figures, "address"), sent / MIB,
           number_of(figures, "wire_bytes_sent") / MIB);
    cJSON_ArrayForEach(way, ways)
    {
        printf("%s%s%s %.1f", before, text_of(way, "wire"),
               strcmp(text_of(way, "memory"), "cuda") == 0 ? " between GPUs" : "", number_of(way, "bytes") / MIB);
        before = ", ";
    }
    printf("; received %.1f MiB as %.1f MiB", landed / MIB, number_of(figures, "wire_bytes_landed") / MIB);
    const double failed = number_of(figures, "failed_transfers") + number_of(figures, "failed_chunks");
    if (failed > 0)
        printf("; %.0f failures", failed);
    putchar('\n');
}

static void print_carried_all(const cJSON *root)
{
    const cJSON *figures, *list = cJSON_GetObjectItemCaseSensitive(root, "peer_figures");
    double bytes = 0;
    cJSON_ArrayForEach(figures, list) bytes +=
        number_of(figures, "raw_bytes_sent") + number_of(figures, "raw_bytes_landed");
    if (bytes > 0)
        puts("carried since the start");
    cJSON_ArrayForEach(figures, list) print_carried(figures);
}

static void print_peers(const cJSON *root)
{
    const cJSON *peers = cJSON_GetObjectItemCaseSensitive(root, "peers"), *peer;
    puts(cJSON_GetArraySize(peers) > 0 ? "peers" : "no peers");
    cJSON_ArrayForEach(peer, peers) print_peer(peer, is_true(root, "codebook"), text_of(root, "version"));
}

static bool print_summary(const char *path, const char *answer)
{
    cJSON *root = cJSON_Parse(answer);
    if (root == NULL) {
        print_error(path, "the answer is not JSON");
        return false;
    }
    print_node(root);
    print_use(root);
    print_gpus(root);
    print_way(root, "sent", "source_done", "source_failed", "sent");
    print_way(root, "received", "sink_done", "sink_failed", "landed");
    print_peers(root);
    print_carried_all(root);
    cJSON_Delete(root);
    return true;
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

static bool status(const char *path, bool json)
{
    struct asked daemon = {.path = path};
    char *answer = daemon_ask(&daemon, ASK_PATIENCE_MS);
    bool told = answer != NULL;
    if (!told)
        print_error(path, "%s", daemon.why);
    daemon_leave(&daemon);
    if (told && json)
        puts(answer); /* unparsed: counters above 2^53 would lose digits */
    else if (told)
        told = print_summary(path, answer);
    free(answer);
    return told;
}

int cmd_status(int argc, char **argv)
{
    static char name[] = "strait status";
    char own[SOCKET_PATH_MAX + 1];
    const char *path = socket_find(own);
    bool json = false;
    const struct cli_option list[] = {{"socket", .text = &path}, {"json", .flag = &json}};
    enum exit_code code;
    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), NULL, usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 0, "no arguments"))
        return EXIT_CODE_USAGE;
    return status(path, json) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
