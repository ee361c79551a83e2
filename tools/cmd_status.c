/* strait status */
#include "tools/commands.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <strait/strait.h>

#include "internal/default_socket.h"
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

#define PATIENCE_MS 2000u
#define PROBE_MS    500u /* a running daemon has answered by then; otherwise find out why not */
#define MS_NS       UINT64_C(1000000)
#define MIB         (1024.0 * 1024)

/* ---- Asking ---------------------------------------------------------------------------------------------------- */

/* Checks the socket's file only. Returns 0 or errno. */
static int look_at_socket(const char *path)
{
    if (strlen(path) >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
        return ENAMETOOLONG;
    return access(path, W_OK) == 0 ? 0 : errno;
}

/* Tries once to connect, as the library does repeatedly, to learn the reason. Returns 0 or errno. */
static int try_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    int error = connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 ? 0 : errno;
    close(fd);
    return error;
}

static bool tell_unreachable(const char *path, int error)
{
    switch (error) {
    case ENOENT:
        print_error(path, "no such socket: straitd does not run here, or on another socket (--socket)");
        break;
    case ECONNREFUSED:
        print_error(path, "nobody listens there: straitd was killed and left its socket, or this is no socket");
        break;
    case EACCES:
    case EPERM:
        print_error(path, "no permission: users of the socket's group may connect");
        break;
    case EAGAIN:
        print_error(path, "straitd does not accept connections: it hangs, or is stopped");
        break;
    default:
        print_error(path, "%s", strerror(error));
    }
    return false;
}

static bool is_reachable(const char *path, int error)
{
    return error == 0 || tell_unreachable(path, error);
}

/* Handles what the library reports about the connection. */
static bool take_events(struct strait_client *client, const char *path, int patience_ms, char **answer)
{
    struct strait_event events[8];
    uint32_t count = strait_wait(client, events, 8, patience_ms);
    for (uint32_t i = 0; i < count; i++) {
        if (events[i].type == STRAIT_EVENT_STATS && *answer == NULL)
            *answer = strndup(events[i].data, events[i].data_size);
        if (events[i].type != STRAIT_EVENT_CONNECTION || events[i].connected)
            continue;
        /* No sign of life yet, or nobody there: what comes behind says more. */
        if (events[i].status == STRAIT_ERR_AGAIN || events[i].status == STRAIT_ERR_IO)
            continue;
        print_error(path, "%s",
                    events[i].text != NULL && events[i].text[0] != '\0' ? events[i].text : "the connection was lost");
        return false;
    }
    return true;
}

static int patience_until(uint64_t now, uint64_t end)
{
    return end > now ? (int)((end - now) / MS_NS) + 1 : 0;
}

/* The daemon notices every connection, so the socket is tried separately only if the library gets no connection. */
static bool await_answer(struct strait_client *client, const char *path, char **answer)
{
    uint64_t now = clock_ns(), end = now + PATIENCE_MS * MS_NS, probe = now + PROBE_MS * MS_NS;
    bool asked = false, probed = false;
    for (; *answer == NULL && now < end; now = clock_ns()) {
        if (!asked && strait_client_connected(client))
            asked = strait_stats(client) == STRAIT_OK;
        if (!asked && !probed && now >= probe) {
            if (!is_reachable(path, try_socket(path)))
                return false;
            probed = true;
        }
        if (!take_events(client, path, patience_until(now, asked || probed ? end : probe), answer))
            return false;
    }
    if (*answer == NULL)
        print_error(path, "no answer within %u seconds: straitd hangs, is stopped, or it is another program's socket",
                    PATIENCE_MS / 1000);
    return *answer != NULL;
}

/* The daemon's statistics; the caller frees them. NULL: there are none; the error is on stderr. */
static char *ask(const char *path)
{
    struct strait_client_config config = {.size = sizeof(config), .socket = path};
    struct strait_client *client;
    char *answer = NULL;
    if (!is_reachable(path, look_at_socket(path)))
        return NULL;
    enum strait_status status = strait_client_open(&config, &client);
    if (status != STRAIT_OK) {
        print_error(path, "%s", strait_status_string(status));
        return NULL;
    }
    await_answer(client, path, &answer);
    strait_client_close(client);
    return answer;
}

/* ---- Printing -------------------------------------------------------------------------------------------------- */

static double number_of(const cJSON *object, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(value) ? value->valuedouble : 0;
}

static const char *text_of(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    return text != NULL ? text : "";
}

static bool is_true(const cJSON *object, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, name));
}

static void print_node(const cJSON *root)
{
    const char *address = text_of(root, "address");
    const cJSON *uptime = cJSON_GetObjectItemCaseSensitive(root, "uptime_seconds");
    printf("straitd %s%s", text_of(root, "version"), is_true(root, "draining") ? ", draining" : "");
    if (cJSON_IsNumber(uptime))
        printf(", up %.0f s", uptime->valuedouble);
    printf("\n  address      %s\n", address[0] != '\0' ? address : "none: other daemons cannot reach it");
    printf("  codec        %s, %s\n", text_of(root, "codec"),
           is_true(root, "codebook") ? "with a codebook set" : "no codebook set: pages travel raw");
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

static void print_peer(const cJSON *peer, bool has_codebook)
{
    const char *transport = text_of(peer, "transport"), *coding = text_of(peer, "coding"), *why = text_of(peer, "why");
    const char *state = text_of(peer, "state");
    printf("  %-22s %s, %s", text_of(peer, "address"), strcmp(state, "idle") == 0 ? "not connected" : state,
           is_true(peer, "dialled") ? "dialled" : "accepted");
    if (transport[0] != '\0')
        print_link(transport, number_of(peer, "round_trip_us"));
    if (why[0] != '\0')
        printf(": %s", why);
    if (transport[0] != '\0' && has_codebook && !is_true(peer, "codebook_matches"))
        printf(is_true(peer, "has_codebook") ? ", another codebook set" : ", no codebook set there");
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
    cJSON_ArrayForEach(peer, peers) print_peer(peer, is_true(root, "codebook"));
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
    char *answer = ask(path);
    bool told = answer != NULL;
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
    if (optind != argc) {
        print_error(NULL, "takes no arguments; see strait status --help");
        return EXIT_CODE_USAGE;
    }
    return status(path, json) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
